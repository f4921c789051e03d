//! How much work the monitor does: for tests, which hold it to what it promises to leave alone.

use crate::demand::Demand;

/// What the monitor has done since it was built. Only with the feature `testing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(any(test, feature = "testing")), expect(unreachable_pub, reason = "not exported"))]
#[non_exhaustive]
pub struct Counters {
    /// Waiters looked at, in passes.
    pub examined: u64,
    /// Questions put to accounts, in passes.
    pub asked: u64,
    /// Passes made, whoever made them.
    pub passes: u64,
    /// Waiters woken for their outcome.
    pub wakes: u64,
    /// Times the evaluator set its timer to another instant.
    pub timers: u64,
    /// Waiters and grants read for snapshots.
    pub told: u64,
}

/// The counting itself: nothing without the feature.
#[cfg(any(test, feature = "testing"))]
impl Counters {
    pub(super) fn count_look(&mut self, demand: &Demand) {
        self.examined += 1;
        self.asked += demand.entries().len() as u64;
    }

    pub(super) const fn count_asked(&mut self, questions: u64) {
        self.asked += questions;
    }

    pub(super) const fn count_pass(&mut self) {
        self.passes += 1;
    }

    pub(super) const fn count_wake(&mut self) {
        self.wakes += 1;
    }

    pub(super) const fn count_timer(&mut self) {
        self.timers += 1;
    }

    pub(super) const fn count_told(&mut self) {
        self.told += 1;
    }
}

#[cfg(not(any(test, feature = "testing")))]
#[expect(clippy::unused_self, clippy::needless_pass_by_ref_mut, reason = "nothing is counted")]
impl Counters {
    pub(super) const fn count_look(&mut self, _: &Demand) {}
    pub(super) const fn count_asked(&mut self, _: u64) {}
    pub(super) const fn count_pass(&mut self) {}
    pub(super) const fn count_wake(&mut self) {}
    pub(super) const fn count_timer(&mut self) {}
    pub(super) const fn count_told(&mut self) {}
}
