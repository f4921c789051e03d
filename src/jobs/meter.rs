//! What the calls of an attempt really used.

use super::plan::{Plan, PlannedCall};
use super::spend::Priced;
use crate::error::Names;
use crate::models::{ModelSpec, Usage};
use crate::money::{Cost, Money};
use crate::one_line::OneLine;
use crate::sync::{Arc, Mutex};

/// Why a usage was not recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UsageError {
    /// The job did not require the model, so nothing was reserved for it.
    #[error(
        "model `{}` is not among what this job calls ({}); require it first",
        OneLine(model),
        Names(calls)
    )]
    NotRequired {
        /// The model's id.
        model: String,
        /// Those it does call.
        calls: Vec<Arc<str>>,
    },
    /// The job named fewer calls of the model.
    #[error(
        "model `{}`: there is no call {call} among the {named} this job named, counted from 0; require \
         a call for each time the model is called",
        OneLine(model)
    )]
    NoSuchCall {
        /// The model's id.
        model: String,
        /// The call that was told, from 0.
        call: usize,
        /// How many calls of the model were named.
        named: usize,
    },
    /// The attempt has ended and its cost is settled.
    #[error(
        "model `{}`: the attempt has ended; usage is recorded while the job runs",
        OneLine(model)
    )]
    Ended {
        /// The model's id.
        model: String,
    },
}

/// What became of the calls nobody recorded a usage of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unrecorded {
    /// They are taken to have used what was reserved.
    AsReserved,
    /// The upstream failed, so they cost nothing: the next attempt reserves them anew, and a retry
    /// must not count twice.
    Nothing,
}

/// The usage of an attempt's calls.
pub(super) struct Meter {
    state: Mutex<State>,
}

struct State {
    /// In the plan's order.
    models: Vec<ModelUse>,
    has_ended: bool,
}

/// What is recorded of one model's calls.
#[derive(Clone, Default)]
struct ModelUse {
    sum: Usage,
    /// For each call that was named, whether a usage of it is in the sum.
    is_recorded: Vec<bool>,
}

impl ModelUse {
    /// Adds the usage of one call; of the first that has none where nobody says of which, and of none
    /// where each has one.
    fn add(&mut self, call: Option<usize>, usage: Usage) {
        let call = call.or_else(|| self.is_recorded.iter().position(|is_recorded| !is_recorded));
        if let Some(call) = call {
            self.is_recorded[call] = true;
        }
        self.sum = self.sum.plus(usage);
    }

    fn used(&self, planned: &PlannedCall) -> Used {
        let rest = planned
            .reserved
            .iter()
            .zip(&self.is_recorded)
            .filter(|(_, is_recorded)| !**is_recorded);
        let outstanding = rest.fold(Usage::default(), |sum, (&reserved, _)| sum.plus(reserved));
        Used { sum: self.sum, outstanding }
    }
}

/// What the calls of one model come to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Used {
    /// Of those a usage was recorded of.
    sum: Usage,
    /// What is reserved for the others.
    outstanding: Usage,
}

impl Used {
    pub(super) const fn total(self) -> Usage {
        self.sum.plus(self.outstanding)
    }
}

/// One usage, recorded.
pub(super) struct Recorded {
    /// Which model of the plan it is of.
    pub(super) model: usize,
    /// What that model's calls come to with it.
    pub(super) used: Used,
    /// What this usage costs.
    pub(super) cost: Option<Money>,
}

impl Meter {
    pub(super) fn new(plan: &Plan) -> Self {
        let models = plan.calls.iter().map(|planned| ModelUse {
            sum: Usage::default(),
            is_recorded: vec![false; planned.reserved.len()],
        });
        Self { state: Mutex::new(State { models: models.collect(), has_ended: false }) }
    }

    /// Adds a usage: of that call of the model, or of the next.
    pub(super) fn record(
        &self,
        plan: &Plan,
        model: &ModelSpec,
        call: Option<usize>,
        usage: Usage,
    ) -> Result<Recorded, UsageError> {
        let Some(index) = plan.calls.iter().position(|planned| planned.model.id == model.id) else {
            let calls = plan.calls.iter().map(|planned| planned.model.id.as_str().into()).collect();
            return Err(UsageError::NotRequired { model: model.id.clone(), calls });
        };
        let planned = &plan.calls[index];
        let named = planned.reserved.len();
        if let Some(call) = call.filter(|&call| call >= named) {
            return Err(UsageError::NoSuchCall { model: model.id.clone(), call, named });
        }
        let used = {
            let State { models, has_ended } = &mut *self.state.lock();
            if *has_ended {
                return Err(UsageError::Ended { model: model.id.clone() });
            }
            models[index].add(call, usage);
            models[index].used(planned)
        };
        let cost = Priced::of(&planned.model, usage).cost;
        Ok(Recorded { model: index, used, cost })
    }

    /// What a model's calls come to.
    pub(super) fn used(&self, plan: &Plan, model: usize) -> Used {
        self.state.lock().models[model].used(&plan.calls[model])
    }

    /// Ends the attempt: what its calls cost. Nothing more is recorded.
    pub(super) fn end(&self, plan: &Plan, unrecorded: Unrecorded) -> Cost {
        let models = {
            let mut state = self.state.lock();
            state.has_ended = true;
            state.models.clone()
        };
        let mut cost = Cost::new();
        for (planned, model) in plan.calls.iter().zip(models) {
            let used = model.used(planned);
            let sum = match unrecorded {
                Unrecorded::AsReserved => used.total(),
                Unrecorded::Nothing if !model.is_recorded.contains(&true) => continue,
                Unrecorded::Nothing => used.sum,
            };
            if let Some(money) = Priced::of(&planned.model, sum).cost {
                cost.add(money);
            }
        }
        cost
    }
}
