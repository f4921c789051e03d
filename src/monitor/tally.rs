//! Counts of how jobs fared, and of how long they waited.

use std::time::Duration;

use crate::error::AdmitError;
use crate::snapshot::{Totals, WaitHistogram};

/// What a snapshot's totals are made of.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) totals: Totals,
    pub(crate) waits: WaitHistogram,
}

impl Tally {
    pub(super) const fn granted_at_once(&mut self, jobs: u64) {
        self.totals.granted += jobs;
        self.waits.at_once(jobs);
    }

    pub(super) fn granted_after(&mut self, wait: Duration) {
        self.totals.granted += 1;
        self.waits.record(wait);
    }

    /// A job left without a grant.
    pub(super) const fn left(&mut self, error: &AdmitError) {
        match error {
            AdmitError::Cancelled => self.totals.cancelled += 1,
            AdmitError::TimedOut { .. } => self.totals.timed_out += 1,
            _ => self.totals.refused += 1,
        }
    }
}
