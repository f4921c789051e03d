//! The sliding log of a window: when each slot was taken, and which have left.
//!
//! A leaf: no clock, no lock. Spans are half-open, so a stamp leaves at the instant `at + length`
//! exactly. The log says nothing of what the length is; whoever owns it calls
//! [`Stamps::drop_left`] before changing its mind.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// The slots taken, oldest first; slots of one instant are stored once.
///
/// A stamp carries no count but the running number of its last slot, counted since the log began.
/// The slots of any range are then a difference of two numbers, and both questions asked all the
/// time (how many are live, when does the k-th oldest leave) are binary searches. Only taking a
/// stamp out renumbers those after it, and what is taken out is nearly always the newest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stamps {
    log: VecDeque<Stamp>,
    /// The number of the last slot that was dropped from the front.
    dropped: u64,
}

#[derive(Clone, Copy, Debug)]
struct Stamp {
    at: Instant,
    /// The number of the last slot filed at this instant.
    last: u64,
}

impl Stamps {
    /// Files `count` slots at `at`, which must not be older than what was filed before.
    pub(crate) fn file(&mut self, at: Instant, count: u32) {
        if count == 0 {
            return;
        }
        let last = self.last() + u64::from(count);
        match self.log.back_mut() {
            Some(newest) if newest.at == at => newest.last = last,
            newest => {
                debug_assert!(newest.is_none_or(|newest| newest.at < at), "filed out of order");
                self.log.push_back(Stamp { at, last });
            }
        }
    }

    /// How many slots have not left at `now`, where each stays for `length`.
    pub(crate) fn live(&self, now: Instant, length: Duration) -> u64 {
        self.last() - self.left_through(now, length)
    }

    /// When the `k`-th oldest of the live slots leaves, counted from 1.
    ///
    /// `None` when there are fewer, or when that instant is past what the clock can say.
    pub(crate) fn leaving(&self, k: u64, now: Instant, length: Duration) -> Option<Instant> {
        let slot = self.left_through(now, length).saturating_add(k);
        let index = self.log.partition_point(|stamp| stamp.last < slot);
        self.log.get(index)?.at.checked_add(length)
    }

    /// Forgets the slots that have left at `now`.
    ///
    /// Due before the length changes: a stamp that left under the old length must not come back
    /// under a longer one.
    pub(crate) fn drop_left(&mut self, now: Instant, length: Duration) {
        self.dropped = self.left_through(now, length);
        self.log.drain(..self.left_before(now, length));
    }

    /// Takes out up to `count` of the slots filed at `at`, and answers how many were there.
    pub(crate) fn remove(&mut self, at: Instant, count: u32) -> u32 {
        let Ok(index) = self.log.binary_search_by(|stamp| stamp.at.cmp(&at)) else {
            return 0;
        };
        let there = self.log[index].last - self.through(index);
        // At most `count`, so it fits back into 32 bits.
        let removed = there.min(u64::from(count));
        for stamp in self.log.range_mut(index..) {
            stamp.last -= removed;
        }
        if removed == there {
            self.log.remove(index);
        }
        removed as u32
    }

    /// The number of the last slot filed.
    fn last(&self) -> u64 {
        self.through(self.log.len())
    }

    /// The number of the last slot before the stamp at `index`.
    fn through(&self, index: usize) -> u64 {
        index.checked_sub(1).map_or(self.dropped, |before| self.log[before].last)
    }

    /// How many stamps have left.
    fn left_before(&self, now: Instant, length: Duration) -> usize {
        self.log.partition_point(|stamp| now.saturating_duration_since(stamp.at) >= length)
    }

    /// The number of the last slot that has left.
    fn left_through(&self, now: Instant, length: Duration) -> u64 {
        self.through(self.left_before(now, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(1);
    const NANO: Duration = Duration::from_nanos(1);

    fn ms(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn a_stamp_leaves_at_its_instant_plus_the_length_and_not_before() {
        let start = Instant::now();
        let mut stamps = Stamps::default();
        stamps.file(start, 2);
        assert_eq!(stamps.live(start, LENGTH), 2);
        assert_eq!(stamps.live(start + LENGTH - NANO, LENGTH), 2);
        assert_eq!(stamps.live(start + LENGTH, LENGTH), 0);
        assert_eq!(stamps.leaving(2, start, LENGTH), Some(start + LENGTH));
        assert_eq!(stamps.leaving(3, start, LENGTH), None);
    }

    #[test]
    fn slots_of_one_instant_are_one_stamp() {
        let start = Instant::now();
        let mut stamps = Stamps::default();
        for _ in 0..1_000 {
            stamps.file(start, 3);
        }
        stamps.file(start, 0);
        assert_eq!(stamps.log.len(), 1);
        assert_eq!(stamps.live(start, LENGTH), 3_000);
    }

    #[test]
    fn the_kth_oldest_is_found_across_counts() {
        let start = Instant::now();
        let mut stamps = Stamps::default();
        for (at, count) in [(0, 2), (100, 1), (200, 3)] {
            stamps.file(ms(start, at), count);
        }
        let leaving = |k, now| stamps.leaving(k, ms(start, now), LENGTH);
        for (k, at) in [(1, 0), (2, 0), (3, 100), (4, 200), (6, 200)] {
            assert_eq!(leaving(k, 300), Some(ms(start, at + 1_000)), "{k}");
        }
        assert_eq!(leaving(7, 300), None);
        assert_eq!(leaving(1, 1_000), Some(ms(start, 1_100)), "the two oldest have left");
        assert_eq!(leaving(4, 1_000), Some(ms(start, 1_200)));
        assert_eq!(leaving(5, 1_000), None);
    }

    #[test]
    fn removal_takes_the_stamps_filed_then_and_no_others() {
        let start = Instant::now();
        let mut stamps = Stamps::default();
        for at in [0, 100, 200] {
            stamps.file(ms(start, at), 2);
        }
        assert_eq!(stamps.remove(ms(start, 100), 1), 1);
        assert_eq!(stamps.live(ms(start, 200), LENGTH), 5);
        assert_eq!(stamps.remove(ms(start, 100), 5), 1, "clamped to what is there");
        assert_eq!(stamps.remove(ms(start, 100), 1), 0);
        assert_eq!(stamps.remove(ms(start, 150), 1), 0);
        assert_eq!(stamps.log.len(), 2);
        assert_eq!(stamps.leaving(3, ms(start, 200), LENGTH), Some(ms(start, 1_200)));
        assert_eq!(stamps.live(ms(start, 200), LENGTH), 4);
    }

    #[test]
    fn what_was_dropped_does_not_come_back_under_a_longer_length() {
        let start = Instant::now();
        let mut stamps = Stamps::default();
        stamps.file(start, 5);
        stamps.file(ms(start, 800), 1);
        stamps.drop_left(ms(start, 1_200), LENGTH);
        assert_eq!(stamps.live(ms(start, 1_200), 2 * LENGTH), 1);
        assert_eq!(stamps.remove(start, 5), 0);
        stamps.file(ms(start, 1_300), 2);
        assert_eq!(stamps.live(ms(start, 1_300), 2 * LENGTH), 3);
        assert_eq!(stamps.leaving(2, ms(start, 1_300), LENGTH), Some(ms(start, 2_300)));
    }

    #[test]
    fn an_emptied_log_goes_on_counting() {
        let start = Instant::now();
        let mut stamps = Stamps::default();
        stamps.file(start, 5);
        stamps.drop_left(start + LENGTH, LENGTH);
        stamps.file(start + LENGTH, 2);
        assert_eq!(stamps.remove(start + LENGTH, 2), 2);
        assert_eq!(stamps.live(start + LENGTH, LENGTH), 0);
        stamps.file(start + LENGTH, 1);
        assert_eq!(stamps.live(start + LENGTH, LENGTH), 1);
    }

    #[test]
    fn a_length_past_the_clock_never_ends() {
        let start = Instant::now();
        let mut stamps = Stamps::default();
        stamps.file(start, 1);
        assert_eq!(stamps.leaving(1, start, Duration::MAX), None);
        assert_eq!(stamps.live(start + Duration::from_secs(1 << 32), Duration::MAX), 1);
    }
}
