//! What a floor that grows from release to release costs.

use super::level::Level;

/// The growth penalty: a factor on the delay.
///
/// It doubles with every point the floor has risen since the last release but one.
///
/// With `F(n)` the floor at release `n` and `P` what release `n` committed, a look at floor `f`
/// finds `P · 2^(100·(f − F(n−1)))`, within 1 and 72,000, and 1 until there were two releases. A
/// release commits what a look at that moment finds. So growth compounds, a rise is paid by two
/// releases, and a fall divides over two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Penalty {
    committed: f64,
    /// `F(n)`.
    last: Option<Level>,
    /// `F(n−1)`.
    last_but_one: Option<Level>,
}

impl Default for Penalty {
    fn default() -> Self {
        Self { committed: 1.0, last: None, last_but_one: None }
    }
}

impl Penalty {
    /// The largest penalty: with it the shortest delay is an hour.
    pub(super) const MOST: f64 = 72_000.0;

    /// The penalty a release at this floor would commit. Changes nothing.
    pub(super) fn at(&self, floor: Level) -> f64 {
        self.last_but_one.map_or(1.0, |before| {
            (self.committed * floor.points_above(before).exp2()).clamp(1.0, Self::MOST)
        })
    }

    /// One release at this floor.
    pub(super) fn commit(&mut self, floor: Level) {
        self.committed = self.at(floor);
        self.last_but_one = self.last.replace(floor);
    }

    /// Whether a release at this floor would change nothing at all.
    pub(super) fn is_settled(&self, floor: Level) -> bool {
        self.last == Some(floor) && self.last_but_one == Some(floor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What each release at these floors (in percent) commits.
    fn committed(floors: &[u64]) -> Vec<f64> {
        let mut penalty = Penalty::default();
        floors
            .iter()
            .map(|&floor| {
                penalty.commit(Level::of(floor, 100));
                penalty.committed
            })
            .collect()
    }

    #[test]
    fn the_worked_example_goes_64_then_4096_then_32768_and_keeps() {
        assert_eq!(
            committed(&[80, 83, 86, 89, 89, 89, 89]),
            [1.0, 1.0, 64.0, 4_096.0, 32_768.0, 32_768.0, 32_768.0]
        );
    }

    #[test]
    fn a_look_commits_nothing() {
        let mut penalty = Penalty::default();
        penalty.commit(Level::of(80, 100));
        penalty.commit(Level::of(83, 100));
        assert_eq!(penalty.at(Level::of(86, 100)), 64.0);
        assert_eq!(penalty.at(Level::of(86, 100)), 64.0);
        assert_eq!(penalty.at(Level::of(81, 100)), 2.0);
    }

    #[test]
    fn there_is_no_penalty_before_the_second_release() {
        let mut penalty = Penalty::default();
        assert_eq!(penalty.at(Level::of(99, 100)), 1.0);
        penalty.commit(Level::of(10, 100));
        assert_eq!(penalty.at(Level::of(99, 100)), 1.0);
    }

    #[test]
    fn a_fall_divides_over_two_releases() {
        // Built up to 4,096 and held; then three points down: 2^3 off at each of two releases.
        let found = committed(&[80, 80, 86, 86, 86, 83, 83, 83]);
        assert_eq!(found, [1.0, 1.0, 64.0, 4_096.0, 4_096.0, 512.0, 64.0, 64.0]);
    }

    #[test]
    fn memory_that_empties_clears_the_penalty_at_the_next_look() {
        let mut penalty = Penalty::default();
        for floor in [80, 83, 86, 89, 89] {
            penalty.commit(Level::of(floor, 100));
        }
        assert_eq!(penalty.at(Level::of(89, 100)), 32_768.0);
        assert_eq!(penalty.at(Level::of(30, 100)), 1.0);
        assert_eq!(penalty.at(Level::of(89, 100)), 32_768.0);
    }

    #[test]
    fn the_penalty_stops_at_72000_and_comes_down_from_there() {
        assert_eq!(committed(&[10, 10, 90, 90, 90]), [1.0, 1.0, 72_000.0, 72_000.0, 72_000.0]);
        assert_eq!(committed(&[10, 10, 90, 90, 90, 89])[5], 36_000.0);
    }

    #[test]
    fn it_is_settled_after_two_releases_at_one_floor() {
        let (floor, other) = (Level::of(80, 100), Level::of(81, 100));
        let mut penalty = Penalty::default();
        assert!(!penalty.is_settled(floor));
        penalty.commit(floor);
        assert!(!penalty.is_settled(floor));
        penalty.commit(floor);
        assert!(penalty.is_settled(floor) && !penalty.is_settled(other));
    }

    proptest! {
        #[test]
        fn the_penalty_stays_within_its_bounds(
            floors in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..60)
        ) {
            let mut penalty = Penalty::default();
            for (used, limit) in floors {
                let floor = Level::of(used, limit);
                let found = penalty.at(floor);
                prop_assert!((1.0..=Penalty::MOST).contains(&found), "{found}");
                let settled = penalty.is_settled(floor);
                let before = penalty;
                penalty.commit(floor);
                prop_assert_eq!(penalty.committed, found);
                if settled {
                    prop_assert_eq!(before.committed, penalty.committed);
                    prop_assert!(penalty.is_settled(floor));
                }
            }
        }
    }
}
