//! What the random histories met: a run in which nothing happened proves nothing.

use std::time::Duration;

use crate::plain::Outcome;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// At the instant they came, by the inline path or from the line.
    pub(crate) granted_at_once: u64,
    pub(crate) granted_later: u64,
    pub(crate) refused_at_once: u64,
    pub(crate) refused_later: u64,
    pub(crate) timed_out: u64,
    pub(crate) queue_full: u64,
    pub(crate) rests_drained: u64,
    pub(crate) rests_unwell: u64,
    pub(crate) longest_line: usize,
}

impl Seen {
    pub(crate) const fn outcome(&mut self, outcome: &Outcome, waited: Duration) {
        let counter = match (outcome, waited.is_zero()) {
            (Outcome::Granted, true) => &mut self.granted_at_once,
            (Outcome::Granted, false) => &mut self.granted_later,
            (Outcome::Refused(_), true) => &mut self.refused_at_once,
            (Outcome::Refused(_), false) => &mut self.refused_later,
            (Outcome::TimedOut, _) => &mut self.timed_out,
            (Outcome::QueueFull, _) => &mut self.queue_full,
        };
        *counter += 1;
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.granted_at_once += other.granted_at_once;
        self.granted_later += other.granted_later;
        self.refused_at_once += other.refused_at_once;
        self.refused_later += other.refused_later;
        self.timed_out += other.timed_out;
        self.queue_full += other.queue_full;
        self.rests_drained += other.rests_drained;
        self.rests_unwell += other.rests_unwell;
        self.longest_line = self.longest_line.max(other.longest_line);
    }

    /// Each of it at least once a case, on average.
    pub(crate) fn check(&self, cases: u64) {
        let rarest = [
            self.granted_at_once,
            self.granted_later,
            self.refused_at_once,
            self.refused_later,
            self.timed_out,
            self.queue_full,
            self.rests_drained,
            self.rests_unwell,
            self.longest_line as u64 * cases / 10,
        ];
        assert!(rarest.iter().all(|&seen| seen >= cases), "too little happened: {self:?}");
    }
}
