//! What a run leaves on record.

use std::time::Duration;

use crate::amount::JobInfo;
use crate::grant::{Grant, WaitTime};
use crate::money::Cost;
use crate::sync::Arc;
use crate::upstream::UpstreamFailure;

/// How a run went, beside its result.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobRecord {
    /// Who the job is.
    pub job: Arc<JobInfo>,
    /// How many attempts were begun, one that was not admitted included.
    pub attempts: u32,
    /// How long it waited for its grants, over all attempts, the last one included that was not
    /// granted.
    pub admission_wait: Duration,
    /// How long each account kept it before its grants, over all attempts, in the order they first
    /// did. The accounts overlap in time, so the values do not add up to `admission_wait`.
    pub wait_times: Vec<WaitTime>,
    /// What its models' calls cost, over all attempts.
    pub cost: Cost,
    /// What the upstream said when an attempt last failed for its sake. Where the run ends before
    /// the next attempt begins (a cap, a full line, a circuit, its time), this is why there was to
    /// be one.
    pub last_failure: Option<UpstreamFailure>,
}

impl JobRecord {
    pub(super) fn new(job: Arc<JobInfo>) -> Self {
        Self {
            job,
            attempts: 0,
            admission_wait: Duration::ZERO,
            wait_times: Vec::new(),
            cost: Cost::new(),
            last_failure: None,
        }
    }

    pub(super) fn granted(&mut self, grant: &Grant) {
        self.admission_wait = self.admission_wait.saturating_add(grant.wall_wait());
        for time in grant.wait_times() {
            match self.wait_times.iter_mut().find(|known| known.account == time.account) {
                Some(known) => known.wait = known.wait.saturating_add(time.wait),
                None => self.wait_times.push(time.clone()),
            }
        }
    }

    pub(super) fn waited_in_vain(&mut self, wait: Duration) {
        self.admission_wait = self.admission_wait.saturating_add(wait);
    }

    pub(super) fn spent(&mut self, cost: &Cost) {
        // The sums and not their amounts, which round what has more digits than a decimal.
        for (currency, sum) in cost.sums() {
            self.cost.add_sum(currency, sum);
        }
    }
}
