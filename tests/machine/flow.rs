//! How much can be there at the most of what only the clock brings back: integers, and whole
//! nanoseconds.

use std::time::Duration;

use admit::Amount;
use tokio::time::Instant;

use crate::setup::Window;
use crate::transition::Job;

const MINUTE: i128 = 60_000_000_000;

/// The most a bucket can hold. A throttle and a hold only make it less, so they are not counted.
pub(crate) struct Flow {
    caps: [i128; 2],
    levels: [i128; 2],
    at: Instant,
}

impl Flow {
    pub(crate) fn full((requests, tokens): (u32, u64), at: Instant) -> Self {
        let caps = [i128::from(requests), i128::from(tokens)];
        Self { caps, levels: caps.map(|cap| cap * MINUTE), at }
    }

    fn refill(&mut self, now: Instant) {
        let nanos = now.saturating_duration_since(self.at).as_nanos();
        let nanos = i128::try_from(nanos).expect("a case does not last for ages");
        self.at = self.at.max(now);
        for (level, cap) in self.levels.iter_mut().zip(self.caps) {
            *level = (*level + cap * nanos).min(cap * MINUTE);
        }
    }

    pub(crate) fn take(&mut self, amount: Amount, now: Instant) -> Result<(), String> {
        self.refill(now);
        let amounts = [i128::from(amount.requests), i128::from(amount.units)];
        for ((level, wanted), what) in
            self.levels.iter_mut().zip(amounts).zip(["requests", "tokens"])
        {
            *level -= wanted * MINUTE;
            // Within one of the exact value.
            if wanted > 0 && *level < -MINUTE {
                return Err(format!("overdrawn by {} {what}", -*level / MINUTE));
            }
        }
        Ok(())
    }

    pub(crate) fn give(&mut self, requests: u32, tokens: u64, now: Instant) {
        self.refill(now);
        for ((level, cap), back) in
            self.levels.iter_mut().zip(self.caps).zip([i128::from(requests), i128::from(tokens)])
        {
            *level = (*level + back * MINUTE).min(cap * MINUTE);
        }
    }

    /// More was used than was taken: the level may go below nothing.
    pub(crate) fn owe(&mut self, tokens: u64) {
        self.levels[1] -= i128::from(tokens) * MINUTE;
    }

    pub(crate) fn limit(&mut self, (requests, tokens): (u32, u64), now: Instant) {
        self.refill(now);
        self.caps = [i128::from(requests), i128::from(tokens)];
        for (level, cap) in self.levels.iter_mut().zip(self.caps) {
            *level = (*level).min(cap * MINUTE);
        }
    }
}

/// The slots of a window, as long as they count at the least: a throttle makes that longer.
pub(crate) struct Span {
    max: u32,
    per: Duration,
    slots: Vec<(Instant, Job, u32)>,
}

impl Span {
    pub(crate) const fn new(window: Window) -> Self {
        let per = Duration::from_millis(window.per_ms);
        Self { max: window.max, per, slots: Vec::new() }
    }

    pub(crate) fn take(&mut self, job: Job, requests: u32, now: Instant) -> Result<(), String> {
        self.slots.retain(|&(at, ..)| now < at + self.per);
        self.slots.push((now, job, requests));
        let live: u32 = self.slots.iter().map(|slot| slot.2).sum();
        if requests > 0 && live > self.max {
            return Err(format!("{live} in a span for {}", self.max));
        }
        Ok(())
    }

    pub(crate) fn give(&mut self, job: Job) {
        self.slots.retain(|slot| slot.1 != job);
    }
}
