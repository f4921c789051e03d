//! How much slower than configured a limit runs, because its upstream asked for less.
//!
//! A leaf: whole tenths and rules, no clock and no lock. The account around it decides which
//! reports are news ([`Throttle::is_news`]) and what relaxing or tightening means for its waiters.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// The steps by which a throttle rises and falls. Amounts are tenths: 5 is 0.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThrottleRules {
    /// What one pressure signal of weight 1 adds.
    pub(crate) step: u32,
    /// The most the throttle can be.
    pub(crate) max: u32,
    /// How many successes take [`ease`](Self::ease) off, while pressure is recent. Positive.
    pub(crate) successes: u32,
    /// What that many successes take off together.
    pub(crate) ease: u32,
    /// How long after the last pressure the upstream counts as calm.
    pub(crate) calm_after: Duration,
    /// What every single success takes off once it is calm.
    pub(crate) calm_ease: u32,
}

impl ThrottleRules {
    /// What every limit starts from: at most 9.0, 0.2 off for three successes, 0.5 off for each
    /// success five minutes after the last pressure. Only the step differs.
    pub(crate) const fn with_step(step: u32) -> Self {
        Self {
            step,
            max: 90,
            successes: 3,
            ease: 2,
            calm_after: Duration::from_secs(5 * 60),
            calm_ease: 5,
        }
    }
}

/// The throttle of one limit: a per-minute budget is stretched over `1 + throttle` minutes.
///
/// Tenths are whole numbers, so that after any sequence of steps it is exactly what the rules say:
/// a float would end a relaxation at 2e-17 and never again be "healthy".
#[derive(Clone, Debug)]
pub(crate) struct Throttle {
    rules: ThrottleRules,
    tenths: u32,
    /// Successes counted towards the next ease. Pressure does not reset it, zero throttle does.
    successes: u32,
    /// When pressure was last put on, counted or advisory: from here the upstream calms down.
    last_pressure: Option<Instant>,
    /// When a failure last counted: work begun before knew nothing of it.
    last_failure: Option<Instant>,
}

impl Throttle {
    pub(crate) const fn new(rules: ThrottleRules) -> Self {
        Self { rules, tenths: 0, successes: 0, last_pressure: None, last_failure: None }
    }

    /// The throttle in tenths.
    pub(crate) const fn tenths(&self) -> u32 {
        self.tenths
    }

    /// The throttle as a number: 0.5 is half as slow again.
    pub(crate) fn value(&self) -> f64 {
        f64::from(self.tenths) / 10.0
    }

    pub(crate) const fn is_at_max(&self) -> bool {
        self.tenths >= self.rules.max
    }

    /// `span × (1 + throttle)`, to the nanosecond below.
    pub(crate) fn stretch(&self, span: Duration) -> Duration {
        let nanos = span.as_nanos().saturating_mul(10 + u128::from(self.tenths)) / 10;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// `throttle:1.5x` above zero.
    pub(crate) fn indicator(&self) -> Option<String> {
        (self.tenths > 0).then(|| format!("throttle:{}x", Factor(self.tenths)))
    }

    /// Whether a failure of work begun at `at` says anything new: one storm counts once.
    ///
    /// Fifty answers already in flight when the first failure arrives were all asked for before
    /// anybody could slow down, so forty-nine of them say nothing about the slowed pace.
    pub(crate) fn is_news(&self, at: Instant) -> bool {
        self.last_failure.is_none_or(|last| at >= last)
    }

    /// Marks `now` as the instant of the last counted failure, whatever it did to the throttle.
    pub(crate) fn count_failure(&mut self, now: Instant) {
        self.last_failure = self.last_failure.max(Some(now));
    }

    /// Puts `weight` steps on, and answers whether the throttle rose. Weight zero is no pressure.
    pub(crate) fn pressure(&mut self, weight: u32, now: Instant) -> bool {
        if weight == 0 {
            return false;
        }
        self.last_pressure = self.last_pressure.max(Some(now));
        let before = self.tenths;
        let raised = before.saturating_add(self.rules.step.saturating_mul(weight));
        self.tenths = raised.min(self.rules.max).max(before);
        self.tenths > before
    }

    /// Notes a success, and answers whether the throttle fell.
    pub(crate) fn success(&mut self, now: Instant) -> bool {
        if self.tenths == 0 {
            return false;
        }
        let calm = self
            .last_pressure
            .is_none_or(|last| now.saturating_duration_since(last) >= self.rules.calm_after);
        let off = if calm {
            self.rules.calm_ease
        } else {
            self.successes += 1;
            if self.successes < self.rules.successes {
                return false;
            }
            self.successes = 0;
            self.rules.ease
        };
        let before = self.tenths;
        self.tenths = before.saturating_sub(off);
        if self.tenths == 0 {
            self.successes = 0;
        }
        self.tenths < before
    }
}

/// `1 + throttle` with one decimal.
struct Factor(u32);

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", 1 + self.0 / 10, self.0 % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn throttle() -> (Throttle, Instant) {
        (Throttle::new(ThrottleRules::with_step(5)), Instant::now())
    }

    #[test]
    fn pressure_adds_its_weight_in_steps_and_stops_at_nine() {
        let (mut throttle, now) = throttle();
        assert!(throttle.pressure(1, now));
        assert_eq!(throttle.tenths(), 5);
        assert!(throttle.pressure(3, now));
        assert_eq!(throttle.tenths(), 20);
        assert!(!throttle.pressure(0, now));
        assert!(throttle.pressure(u32::MAX, now));
        assert_eq!(throttle.tenths(), 90);
        assert!(throttle.is_at_max());
        assert!(!throttle.pressure(1, now), "at the maximum nothing rises");
    }

    #[test]
    fn every_third_success_takes_two_tenths_off() {
        let (mut throttle, now) = throttle();
        throttle.pressure(2, now);
        let fell: Vec<bool> = (0..7).map(|_| throttle.success(now)).collect();
        assert_eq!(fell, [false, false, true, false, false, true, false]);
        assert_eq!(throttle.tenths(), 6);
    }

    #[test]
    fn five_minutes_after_the_last_pressure_every_success_takes_five_tenths_off() {
        let (mut throttle, start) = throttle();
        throttle.pressure(4, start);
        throttle.pressure(1, start + MINUTE);
        let soon = start + 6 * MINUTE - Duration::from_nanos(1);
        assert!(!throttle.success(soon));
        assert!(throttle.success(start + 6 * MINUTE));
        assert_eq!(throttle.tenths(), 20);
    }

    #[test]
    fn a_success_at_zero_counts_nothing() {
        let (mut throttle, now) = throttle();
        for _ in 0..2 {
            assert!(!throttle.success(now));
        }
        throttle.pressure(1, now);
        assert!(!throttle.success(now), "the two before the pressure do not count");
        assert!(!throttle.success(now));
        assert!(throttle.success(now));
    }

    #[test]
    fn what_was_counted_before_the_throttle_fell_to_zero_counts_no_more() {
        let (mut throttle, start) = throttle();
        throttle.pressure(1, start);
        assert!(!throttle.success(start) && !throttle.success(start));
        let calm = start + 5 * MINUTE;
        assert!(throttle.success(calm));
        assert_eq!(throttle.tenths(), 0);
        throttle.pressure(1, calm);
        let fell: Vec<bool> = (0..3).map(|_| throttle.success(calm)).collect();
        assert_eq!(fell, [false, false, true]);
    }

    #[test]
    fn relaxing_ends_at_exactly_zero() {
        let (mut throttle, now) = throttle();
        throttle.pressure(1, now);
        let steps = std::iter::from_fn(|| (throttle.tenths() > 0).then(|| throttle.success(now)));
        assert_eq!(steps.count(), 9);
        assert_eq!(throttle.indicator(), None);
    }

    #[test]
    fn one_storm_counts_once() {
        let (mut throttle, start) = throttle();
        assert!(throttle.is_news(start));
        let failed = start + Duration::from_secs(2);
        throttle.pressure(1, failed);
        throttle.count_failure(failed);
        assert!(!throttle.is_news(failed - Duration::from_nanos(1)));
        assert!(throttle.is_news(failed));
        throttle.count_failure(start);
        assert!(!throttle.is_news(start), "an older stamp moves nothing back");
    }

    #[test]
    fn the_window_is_stretched_by_one_plus_the_throttle() {
        let (mut throttle, now) = throttle();
        assert_eq!(throttle.stretch(MINUTE), MINUTE);
        throttle.pressure(1, now);
        assert_eq!(throttle.stretch(MINUTE), Duration::from_secs(90));
        assert_eq!(throttle.indicator().as_deref(), Some("throttle:1.5x"));
        throttle.pressure(99, now);
        assert_eq!(throttle.stretch(MINUTE), 10 * MINUTE);
        assert_eq!(throttle.indicator().as_deref(), Some("throttle:10.0x"));
        assert!(throttle.stretch(Duration::MAX) > Duration::from_secs(1 << 33));
    }
}
