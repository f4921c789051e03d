//! The latch: memory is critical until it is clearly not.

use tokio::time::Instant;

use super::MemoryReading;

/// What a reading did to the latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    /// It is set now and was not.
    Set,
    /// It is clear now and was not.
    Cleared,
}

/// Set by a reading of at least 95 %, cleared only by one below 90 %.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Latch {
    since: Option<Instant>,
}

impl Latch {
    /// Percent of the limit at which it sets.
    pub(super) const SETS_AT: u64 = 95;
    /// Percent of the limit below which it clears.
    pub(super) const CLEARS_BELOW: u64 = 90;

    /// Takes in one reading; answers the change, if it made one.
    pub(super) fn observe(&mut self, reading: MemoryReading, now: Instant) -> Option<Edge> {
        if self.since.is_none() && reading.reaches(Self::SETS_AT) {
            self.since = Some(now);
            Some(Edge::Set)
        } else if self.since.is_some() && !reading.reaches(Self::CLEARS_BELOW) {
            self.since = None;
            Some(Edge::Cleared)
        } else {
            None
        }
    }

    /// Since when it is set; `None` while it is clear.
    pub(super) const fn since(&self) -> Option<Instant> {
        self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sets_at_95_percent_and_clears_only_below_90() {
        let now = Instant::now();
        let mut latch = Latch::default();
        let mut at = |used| latch.observe(MemoryReading::new(used, 100_000), now);
        assert_eq!(at(94_999), None);
        assert_eq!(at(95_000), Some(Edge::Set));
        assert_eq!(at(99_000), None);
        assert_eq!(at(90_000), None);
        assert_eq!(at(94_000), None);
        assert_eq!(at(89_999), Some(Edge::Cleared));
        assert_eq!(at(94_999), None);
        assert_eq!(at(200_000), Some(Edge::Set));
    }

    #[test]
    fn a_byte_decides_at_any_size() {
        let now = Instant::now();
        let mut latch = Latch::default();
        let limit = u64::MAX / 100 * 100;
        let threshold = limit / 100 * 95;
        assert_eq!(latch.observe(MemoryReading::new(threshold - 1, limit), now), None);
        assert_eq!(latch.observe(MemoryReading::new(threshold, limit), now), Some(Edge::Set));
        let threshold = limit / 100 * 90;
        assert_eq!(latch.observe(MemoryReading::new(threshold, limit), now), None);
        let below = MemoryReading::new(threshold - 1, limit);
        assert_eq!(latch.observe(below, now), Some(Edge::Cleared));
    }

    #[test]
    fn it_knows_since_when_it_is_set() {
        let (now, later) = (Instant::now(), Instant::now() + std::time::Duration::from_secs(1));
        let mut latch = Latch::default();
        latch.observe(MemoryReading::new(95, 100), now);
        latch.observe(MemoryReading::new(99, 100), later);
        assert_eq!(latch.since(), Some(now));
        latch.observe(MemoryReading::new(0, 0), later);
        assert_eq!(latch.since(), None);
    }
}
