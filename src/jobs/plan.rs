//! Requirements made ready to run: the same for every attempt.

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
    pub(super) reserved: Usage,
}

impl Plan {
    /// What a call's account is charged where the call used so much: what the job takes of the same
    /// account beside its calls stays as it is.
    pub(super) fn charge(&self, call: usize, used: Usage) -> u64 {
        let PlannedCall { account, reserved, .. } = &self.calls[call];
        let demanded = self.demand.amount_on(account.link().id()).units;
        used.total().saturating_add(demanded.saturating_sub(reserved.total()))
    }
}
