//! Requirements made ready to run: the same for every attempt.

use super::meter::Used;
use super::spend::Priced;
use crate::account::Account;
use crate::amount::JobInfo;
use crate::db::AnyProvider;
use crate::demand::Demand;
use crate::models::{ModelSpec, Usage};
use crate::sync::Arc;

/// The one demand of a job, and what it was made of.
pub(super) struct Plan {
    pub(super) demand: Demand,
    pub(super) calls: Vec<PlannedCall>,
    /// What the calls cost as reserved.
    pub(super) priced: Vec<Priced>,
    /// In the order they were declared.
    pub(super) providers: Vec<Arc<dyn AnyProvider>>,
    pub(super) is_transactional: bool,
    pub(super) is_read_only: bool,
    pub(super) job: Arc<JobInfo>,
}

/// A model the job calls.
pub(super) struct PlannedCall {
    pub(super) model: Arc<ModelSpec>,
    pub(super) account: Arc<dyn Account>,
    /// For each time it is called.
    pub(super) reserved: Vec<Usage>,
}

impl PlannedCall {
    /// What is reserved for all its calls.
    pub(super) fn reserved(&self) -> Usage {
        self.reserved.iter().fold(Usage::default(), |sum, &one| sum.plus(one))
    }
}

impl Plan {
    /// What a model's account is charged where its calls have come to so much: what the job takes of
    /// the same account beside its calls stays as it is.
    pub(super) fn charge(&self, model: usize, used: Used) -> u64 {
        let planned = &self.calls[model];
        let demanded = self.demand.amount_on(planned.account.link().id()).units;
        let beside = demanded.saturating_sub(planned.reserved().total());
        used.total().total().saturating_add(beside)
    }
}
