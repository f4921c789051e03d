//! The arithmetic of one dimension of a bucket: a level that refills with the clock.

use std::time::Duration;

use tokio::time::Instant;

/// One unit of the budget, scaled: the nanoseconds of a minute. Unthrottled, a nanosecond refills
/// exactly `cap` scaled units, so nothing is ever rounded.
const UNIT: i128 = 60_000_000_000;

/// A budget of `cap` units a minute, refilled continuously, never above `cap`, perhaps below zero.
///
/// The level is a function of the clock: what it was at some instant plus the refill since. A
/// reading moves neither, so reading often changes nothing. The instant moves only when the level
/// stands at its cap (what it was before is then forgotten) and when the rate changes; there a
/// fraction of a scaled unit may be lost, so a billion changes lose less than a unit.
///
/// This is the generic cell rate algorithm of ITU-T I.371, kept as a level rather than as a
/// theoretical arrival time, so that it can be in debt and be credited.
#[derive(Clone, Debug)]
pub(super) struct Level {
    cap: u64,
    /// The window in tenths of a minute: ten plus the throttle's tenths.
    stretch: u32,
    /// The scaled level at `since`, not capped.
    base: i128,
    since: Instant,
}

impl Level {
    /// A full one.
    pub(super) fn full(cap: u64, now: Instant) -> Self {
        Self { cap, stretch: 10, base: scaled(u128::from(cap)), since: now }
    }

    pub(super) const fn cap(&self) -> u64 {
        self.cap
    }

    /// The whole units there are; none in debt.
    pub(super) fn available(&self, now: Instant) -> u64 {
        u64::try_from(self.at(now).max(0) / UNIT).unwrap_or(u64::MAX)
    }

    /// The units missing to zero, rounded up.
    pub(super) fn debt(&self, now: Instant) -> u64 {
        let below = self.at(now).min(0).unsigned_abs();
        u64::try_from(below.div_ceil(UNIT.unsigned_abs())).unwrap_or(u64::MAX)
    }

    pub(super) fn is_full(&self, now: Instant) -> bool {
        self.at(now) == self.full_level()
    }

    /// Nanoseconds since the instant it is kept by.
    pub(super) fn since(&self, now: Instant) -> u128 {
        now.saturating_duration_since(self.since).as_nanos()
    }

    /// Whether it is kept by the same instant as another.
    pub(super) fn is_as_old_as(&self, other: &Self) -> bool {
        self.since == other.since
    }

    /// The scaled level so many nanoseconds after the instant it is kept by, when `wanted` units are
    /// there: the sum of two amounts, hence wider than one.
    pub(super) fn covering(&self, wanted: u128, since: u128) -> Option<i128> {
        let level = self.after(since);
        (level >= scaled(wanted)).then_some(level)
    }

    /// Whether `wanted` units are there.
    #[cfg(test)]
    pub(super) fn covers(&self, wanted: u128, now: Instant) -> bool {
        self.covering(wanted, self.since(now)).is_some()
    }

    /// The first nanosecond at which [`covers`](Self::covers) is true, from the clock alone.
    ///
    /// It is computed from the stored instant and not from now, so it is the same whenever it is
    /// asked. `None` when the cap is smaller than what is wanted, or the instant is beyond what a
    /// clock can show.
    pub(super) fn covers_at(&self, wanted: u128) -> Option<Instant> {
        if wanted > u128::from(self.cap) {
            return None;
        }
        let missing = scaled(wanted).saturating_sub(self.base);
        if missing <= 0 {
            return Some(self.since);
        }
        let scaled_time = missing.checked_mul(i128::from(self.stretch))?.unsigned_abs();
        // The refill is rounded down, so the wait is rounded up: at that nanosecond it is there.
        let nanos = scaled_time.div_ceil(u128::from(self.cap) * 10);
        let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
        self.since.checked_add(Duration::new(seconds, (nanos % 1_000_000_000) as u32))
    }

    /// Takes `units`, below zero if need be.
    pub(super) fn debit(&mut self, units: u64, now: Instant) {
        self.debit_from(self.at(now), units, now);
    }

    /// The same when the scaled level at `now` is known.
    pub(super) fn debit_from(&mut self, level: i128, units: u64, now: Instant) {
        if level == self.full_level() {
            self.base = level;
            self.since = self.since.max(now);
        }
        self.base = self.base.saturating_sub(scaled(u128::from(units)));
    }

    /// Puts `units` back as far as there is room, and answers how many whole ones that was.
    pub(super) fn credit(&mut self, units: u64, now: Instant) -> u64 {
        let room = self.full_level() - self.at(now);
        let credit = scaled(u128::from(units));
        if credit < room {
            self.base += credit;
            return units;
        }
        self.base = self.full_level();
        self.since = now;
        u64::try_from(room / UNIT).unwrap_or(u64::MAX).min(units)
    }

    /// Goes on under another cap; what is above it is gone.
    pub(super) fn set_cap(&mut self, cap: u64, now: Instant) {
        self.rebase(now);
        self.cap = cap;
        self.base = self.base.min(self.full_level());
    }

    /// Goes on at another rate: a minute's budget in `(10 + tenths) / 10` minutes.
    pub(super) fn set_throttle(&mut self, tenths: u32, now: Instant) {
        self.rebase(now);
        self.stretch = 10 + tenths;
    }

    fn rebase(&mut self, now: Instant) {
        self.base = self.at(now);
        self.since = self.since.max(now);
    }

    fn full_level(&self) -> i128 {
        scaled(u128::from(self.cap))
    }

    /// The scaled level at `now`.
    fn at(&self, now: Instant) -> i128 {
        self.after(self.since(now))
    }

    fn after(&self, nanos: u128) -> i128 {
        // Up to centuries, the product of two words, which cannot overflow and costs little. Beyond,
        // saturating is exact enough: a refill that large fills any level, or repays a debt of more
        // than a million times the largest amount there is.
        let mut refill = match i64::try_from(nanos) {
            Ok(nanos) => i128::from(self.cap) * i128::from(nanos),
            Err(_) => {
                i128::from(self.cap).saturating_mul(i128::try_from(nanos).unwrap_or(i128::MAX))
            }
        };
        if self.stretch != 10 {
            refill = refill.saturating_mul(10) / i128::from(self.stretch);
        }
        self.base.saturating_add(refill).min(self.full_level())
    }
}

/// At most two amounts' worth of units, which always fits.
fn scaled(units: u128) -> i128 {
    match u64::try_from(units) {
        Ok(units) => i128::from(units) * UNIT,
        Err(_) => i128::try_from(units).unwrap_or(i128::MAX).saturating_mul(UNIT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NANO: Duration = Duration::from_nanos(1);

    fn drained(cap: u64) -> (Level, Instant) {
        let now = Instant::now();
        let mut level = Level::full(cap, now);
        level.debit(cap, now);
        (level, now)
    }

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn only_the_missing_units_are_waited_for() {
        let now = Instant::now();
        let mut level = Level::full(60, now);
        level.debit(58, now);
        assert!(!level.covers(3, now));
        assert_eq!(level.covers_at(3), Some(now + secs(1)));
        assert!(level.covers(3, now + secs(1)));
        assert!(!level.covers(3, now + secs(1) - NANO));
    }

    #[test]
    fn the_named_instant_is_the_first_that_covers_at_any_cap_and_throttle() {
        let mut draw = crate::testing::Draw::new(11);
        for _ in 0..20_000 {
            let most = [10, 1_000, u64::MAX - 1][draw.between(0..=2) as usize];
            let cap = draw.between(1..=most);
            let (mut level, start) = drained(cap);
            let earlier = start + Duration::from_nanos(draw.between(0..=1_000_000));
            level.set_throttle(draw.between(0..=90) as u32, earlier);
            level.debit(draw.between(0..=cap), earlier);
            let wanted = u128::from(draw.between(1..=cap));
            let at = level.covers_at(wanted).unwrap();
            assert!(level.covers(wanted, at), "{level:?} {wanted}");
            assert!(!level.covers(wanted, at - NANO), "{level:?} {wanted}");
        }
    }

    #[test]
    fn more_than_the_cap_has_no_instant() {
        let (level, _) = drained(60);
        assert_eq!(level.covers_at(61), None);
    }

    /// Ten million steps of 1,000,003 ns, taking one of 60,000 a minute at each.
    #[test]
    fn ten_million_takes_drift_by_less_than_one_unit() {
        let (mut level, start) = drained(60_000);
        let mut now = start;
        for _ in 0..10_000_000 {
            now += Duration::from_nanos(1_000_003);
            assert!(level.covers(1, now));
            level.debit(1, now);
        }
        assert_eq!(level.available(now), 30);
        // Exactly: 30 ns more than a millisecond a step, at 60,000 units a minute.
        assert_eq!(level.at(now), 60_000 * 3 * 10_000_000);
    }

    #[test]
    fn throttle_changes_lose_less_than_a_unit_in_millions() {
        let (mut level, start) = drained(60_000);
        let mut now = start;
        for round in 0..1_000_000 {
            now += Duration::from_nanos(7);
            level.set_throttle(round % 2 * 5, now);
        }
        // Half the time at full rate, half of it stretched by 1.5.
        let exact = 60_000 * 7 * 500_000 + 60_000 * 7 * 500_000 * 10 / 15;
        assert!((exact - level.at(now)).abs() < UNIT / 1_000);
    }

    #[test]
    fn a_reading_moves_nothing() {
        let (mut level, start) = drained(7);
        level.set_throttle(3, start);
        let unread = level.clone();
        for millis in 0..60_000 {
            level.available(start + Duration::from_millis(millis));
        }
        assert_eq!(level.at(start + secs(61)), unread.at(start + secs(61)));
        assert_eq!(level.covers_at(5), unread.covers_at(5));
    }

    #[test]
    fn idling_ten_years_at_the_largest_caps_fills_and_no_more() {
        let ten_years = secs(10 * 365 * 86_400);
        for cap in [u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let (mut level, start) = drained(cap);
            level.set_throttle(90, start);
            let later = start + ten_years;
            assert!(level.covers(u128::from(cap), later));
            level.debit(cap, later);
            assert_eq!(level.available(later), 0);
            assert_eq!(level.debt(later), 0);
            assert!(!level.covers(1, later));
        }
    }

    #[test]
    fn a_huge_debt_is_returned_exactly() {
        let (mut level, start) = drained(60_000);
        level.credit(123, start);
        for _ in 0..100 {
            level.debit(u64::MAX, start);
        }
        assert_eq!(level.available(start), 0);
        assert_eq!(level.debt(start), u64::MAX, "a debt that large is shown as the most there is");
        assert!(level.covers_at(1).is_some());
        for _ in 0..100 {
            assert_eq!(level.credit(u64::MAX, start), u64::MAX);
        }
        assert_eq!(level.available(start), 123);
        let (mut slow, start) = drained(1);
        for _ in 0..3 {
            slow.debit(u64::MAX, start);
        }
        assert_eq!(slow.covers_at(1), None, "no clock reaches that far");
    }

    #[test]
    fn a_credit_is_bounded_by_the_cap_and_answers_whole_units() {
        let (mut level, start) = drained(60);
        level.debit(5, start);
        assert_eq!(level.debt(start + Duration::from_millis(500)), 5);
        assert_eq!(level.credit(10, start), 10);
        assert_eq!(level.available(start), 5);
        let later = start + Duration::from_millis(500);
        assert_eq!(level.credit(60, later), 54, "54.5 is the room there is");
        assert!(level.is_full(later));
        assert_eq!(level.credit(7, later), 0);
    }

    #[test]
    fn a_cap_clamps_the_level_down_and_a_rise_adds_none() {
        let now = Instant::now();
        let mut level = Level::full(60_000, now);
        level.debit(10_000, now);
        level.set_cap(10_000, now);
        assert_eq!(level.available(now), 10_000);
        level.set_cap(60_000, now);
        assert_eq!(level.available(now), 10_000);
        assert_eq!(level.cap(), 60_000);
    }

    #[test]
    fn an_older_instant_refills_nothing() {
        let (level, start) = drained(60);
        assert_eq!(level.available(start - secs(1)), 0);
    }
}
