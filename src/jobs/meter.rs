//! What the calls of an attempt really used.

use super::plan::Plan;
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
    /// The attempt has ended and its cost is settled.
    #[error("model `{model}`: the attempt has ended; usage is recorded while the job runs")]
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
    used: Vec<Used>,
    has_ended: bool,
}

/// What the calls of one model have used, as far as it is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) sum: Usage,
    /// How many usages that is.
    pub(super) recorded: usize,
}

impl Used {
    /// The sum of it and of what is taken to be used besides.
    pub(super) const fn with(self, outstanding: Usage) -> Usage {
        self.sum.plus(outstanding)
    }
}

/// One usage, recorded.
pub(super) struct Recorded {
    /// Which model of the plan it is of.
    pub(super) call: usize,
    /// What that model's calls have used in all.
    pub(super) used: Used,
    /// What this usage costs.
    pub(super) cost: Option<Money>,
}

impl Meter {
    pub(super) fn new(plan: &Plan) -> Self {
        let state = State { used: vec![Used::default(); plan.calls.len()], has_ended: false };
        Self { state: Mutex::new(state) }
    }

    /// Adds a usage.
    pub(super) fn record(
        &self,
        plan: &Plan,
        model: &ModelSpec,
        usage: Usage,
    ) -> Result<Recorded, UsageError> {
        let Some(call) = plan.calls.iter().position(|call| call.model.id == model.id) else {
            let calls = plan.calls.iter().map(|call| call.model.id.as_str().into()).collect();
            return Err(UsageError::NotRequired { model: model.id.clone(), calls });
        };
        let used = self.add(call, usage);
        let used = used.ok_or_else(|| UsageError::Ended { model: model.id.clone() })?;
        let cost = Priced::of(&plan.calls[call].model, usage).cost;
        Ok(Recorded { call, used, cost })
    }

    /// What a model's calls have used in all, with this added; `None` once the attempt has ended.
    fn add(&self, call: usize, usage: Usage) -> Option<Used> {
        let State { used, has_ended } = &mut *self.state.lock();
        if *has_ended {
            return None;
        }
        let Used { sum, recorded } = used[call];
        used[call] = Used { sum: sum.plus(usage), recorded: recorded.saturating_add(1) };
        Some(used[call])
    }

    /// What a model's calls have used in all.
    pub(super) fn used(&self, call: usize) -> Used {
        self.state.lock().used[call]
    }

    /// Ends the attempt: what its calls cost. Nothing more is recorded.
    pub(super) fn end(&self, plan: &Plan, unrecorded: Unrecorded) -> Cost {
        let used = {
            let mut state = self.state.lock();
            state.has_ended = true;
            state.used.clone()
        };
        let mut cost = Cost::new();
        for (call, used) in plan.calls.iter().zip(used) {
            let sum = match unrecorded {
                Unrecorded::AsReserved => used.with(call.outstanding(used.recorded)),
                Unrecorded::Nothing if used.recorded == 0 => continue,
                Unrecorded::Nothing => used.sum,
            };
            if let Some(money) = Priced::of(&call.model, sum).cost {
                cost.add(money);
            }
        }
        cost
    }
}
