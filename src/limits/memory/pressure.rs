//! What the readings come to: level, latch, floor and penalty together.

use std::time::Duration;

use tokio::time::Instant;

use super::MemoryReading;
use super::curve;
use super::floor::Floor;
use super::latch::{Edge, Latch};
use super::level::Level;
use super::penalty::Penalty;

/// The state behind the gate's lock: no clock and no lock of its own.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    reading: MemoryReading,
    level: Level,
    latch: Latch,
    floor: Floor,
    penalty: Penalty,
    /// The latest instant the gate was told.
    latest: Option<Instant>,
}

impl Pressure {
    /// Takes in one reading; answers what it did to the latch.
    pub(super) fn observe(&mut self, reading: MemoryReading, now: Instant) -> Option<Edge> {
        let now = self.latest(now);
        self.latest = Some(now);
        self.reading = reading;
        self.level = Level::of(reading.used, reading.limit);
        if reading.limit == 0 {
            // No limit is no share either: a floor of zero would make the first real reading after
            // it look like growth from nothing.
            self.floor = Floor::default();
            self.penalty = Penalty::default();
        } else {
            self.floor.observe(self.level);
        }
        self.latch.observe(reading, now)
    }

    /// One release, at the floor as it is.
    ///
    /// Without a reading there is no floor to remember, so such a release leaves no trace.
    pub(super) fn commit(&mut self) {
        if let Some(floor) = self.floor.level() {
            self.penalty.commit(floor);
        }
    }

    /// Whether a release now would change nothing.
    pub(super) fn is_settled(&self) -> bool {
        self.floor.level().is_none_or(|floor| self.penalty.is_settled(floor))
    }

    /// The penalty a release now would commit.
    pub(super) fn penalty(&self) -> f64 {
        self.floor.level().map_or(1.0, |floor| self.penalty.at(floor))
    }

    /// What a draining line waits from one release to the next.
    ///
    /// An idle line is not penalized: nothing that runs could be what grows, and nothing will
    /// complete to let the next one go.
    pub(super) fn delay(&self, idle: bool) -> Duration {
        let plain = curve::delay(self.level);
        if idle { plain } else { curve::penalized(plain, self.penalty()) }
    }

    /// The instant itself, or the latest the gate was told if that is later.
    pub(super) fn latest(&self, now: Instant) -> Instant {
        self.latest.map_or(now, |latest| latest.max(now))
    }

    /// Since when the latch is set; `None` while it is clear.
    pub(super) const fn latched_since(&self) -> Option<Instant> {
        self.latch.since()
    }

    /// The last reading; all zero before the first.
    pub(super) const fn reading(&self) -> MemoryReading {
        self.reading
    }

    /// The floor as a share of the limit; zero before the first reading.
    pub(super) fn floor_ratio(&self) -> f64 {
        self.floor.level().map_or(0.0, Level::ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(pressure: &mut Pressure, percent: u64) {
        pressure.observe(MemoryReading::new(percent, 100), Instant::now());
    }

    /// Lets the reading fall to each floor, then releases.
    fn release_at(pressure: &mut Pressure, floor: u64) {
        at(pressure, 94);
        at(pressure, floor);
        pressure.commit();
    }

    #[test]
    fn the_level_drives_the_curve_and_the_floor_the_penalty() {
        let mut pressure = Pressure::default();
        at(&mut pressure, 80);
        pressure.commit();
        release_at(&mut pressure, 83);
        at(&mut pressure, 94);
        at(&mut pressure, 86);
        assert_eq!(pressure.penalty(), 64.0);
        assert_eq!(pressure.delay(false), Duration::from_millis(1_920 * 64));
        // Garbage on top of the same floor: the curve follows, the penalty does not.
        at(&mut pressure, 89);
        assert_eq!(pressure.penalty(), 64.0);
        assert_eq!(pressure.delay(false), Duration::from_millis(6_480 * 64));
    }

    #[test]
    fn an_idle_line_pays_only_the_curve() {
        let mut pressure = Pressure::default();
        for floor in [80, 83, 86, 89] {
            release_at(&mut pressure, floor);
        }
        assert_eq!(pressure.delay(false), curve::CAP);
        assert_eq!(pressure.delay(true), Duration::from_millis(6_480));
    }

    #[test]
    fn a_release_before_any_reading_is_no_growth_from_nothing() {
        let mut pressure = Pressure::default();
        assert!(pressure.is_settled());
        pressure.commit();
        pressure.commit();
        at(&mut pressure, 85);
        assert_eq!(pressure.penalty(), 1.0);
        assert!(!pressure.is_settled());
    }

    #[test]
    fn a_limit_that_comes_back_is_no_growth_from_nothing() {
        let mut pressure = Pressure::default();
        release_at(&mut pressure, 85);
        release_at(&mut pressure, 85);
        pressure.observe(MemoryReading::new(500, 0), Instant::now());
        assert_eq!(pressure.delay(false), Duration::from_millis(50));
        assert_eq!(pressure.penalty(), 1.0);
        release_at(&mut pressure, 85);
        release_at(&mut pressure, 84);
        assert_eq!(pressure.penalty(), 1.0);
    }

    #[test]
    fn what_is_released_without_a_limit_remembers_no_floor() {
        let mut pressure = Pressure::default();
        release_at(&mut pressure, 85);
        for _ in 0..2 {
            pressure.observe(MemoryReading::new(500, 0), Instant::now());
            pressure.commit();
        }
        at(&mut pressure, 94);
        at(&mut pressure, 85);
        assert_eq!(pressure.penalty(), 1.0);
        assert_eq!(pressure.floor_ratio(), 0.85);
    }

    #[test]
    fn an_older_now_counts_as_the_latest() {
        let now = Instant::now();
        let earlier = now - Duration::from_millis(5);
        let mut pressure = Pressure::default();
        pressure.observe(MemoryReading::new(50, 100), now);
        pressure.observe(MemoryReading::new(96, 100), earlier);
        assert_eq!(pressure.latched_since(), Some(now));
    }
}
