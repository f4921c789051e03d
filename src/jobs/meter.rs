//! What the calls of an attempt really used.

use super::plan::Plan;
use super::spend::Priced;
use crate::error::Names;
use crate::models::{ModelSpec, Usage};
use crate::money::{Cost, Money};
use crate::sync::{Arc, Mutex};

/// Why a usage was not recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UsageError {
    /// The job did not require the model, so nothing was reserved for it.
    #[error(
        "model `{model}` is not among what this job calls ({}); require it first",
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
    used: Vec<Option<Usage>>,
    has_ended: bool,
}

/// One usage, recorded.
pub(super) struct Recorded {
    /// Which call of the plan it is of.
    pub(super) call: usize,
    /// What that call has used in all.
    pub(super) sum: Usage,
    /// What this usage costs.
    pub(super) cost: Option<Money>,
}

impl Meter {
    pub(super) fn new(plan: &Plan) -> Self {
        let state = State { used: vec![None; plan.calls.len()], has_ended: false };
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
        let sum = self.add(call, usage);
        let sum = sum.ok_or_else(|| UsageError::Ended { model: model.id.clone() })?;
        let cost = Priced::of(&plan.calls[call].model, usage).cost;
        Ok(Recorded { call, sum, cost })
    }

    /// What a call has used in all, with this added; `None` once the attempt has ended.
    fn add(&self, call: usize, usage: Usage) -> Option<Usage> {
        let State { used, has_ended } = &mut *self.state.lock();
        if *has_ended {
            return None;
        }
        let sum = used[call].unwrap_or_default().plus(usage);
        used[call] = Some(sum);
        Some(sum)
    }

    /// What a call has used in all.
    pub(super) fn sum(&self, call: usize) -> Usage {
        self.state.lock().used[call].unwrap_or_default()
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
            let used = match (used, unrecorded) {
                (Some(used), _) => used,
                (None, Unrecorded::AsReserved) => call.reserved,
                (None, Unrecorded::Nothing) => continue,
            };
            if let Some(money) = Priced::of(&call.model, used).cost {
                cost.add(money);
            }
        }
        cost
    }
}
