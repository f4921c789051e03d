//! How long a draining line waits between two releases.

use std::time::Duration;

use super::level::Level;

/// Where the curve starts to rise.
const FROM: Level = Level::percent(80);
/// Where it is at its highest: the latch's own threshold.
const TO: Level = Level::percent(95);
/// The delay at and above [`TO`], in milliseconds.
const HIGHEST: u128 = 30_000;
/// The delay that is never undercut, in milliseconds.
const LOWEST: u64 = 50;
/// The longest delay, whatever the penalty.
pub(super) const CAP: Duration = Duration::from_secs(3_600);

/// The delay for a level, in whole milliseconds.
///
/// 50 ms up to 80 %, then a cube up to 30 s at 95 %. Integers all the way: 89 % is three fifths of the way, whose cube is exactly 6,480 ms.
pub(super) fn delay(level: Level) -> Duration {
    let way = u128::from(level.min(TO).above(FROM));
    let whole = u128::from(TO.above(FROM));
    let millis = HIGHEST * way.pow(3) / whole.pow(3);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX).max(LOWEST))
}

/// The delay times a penalty of at least 1: whole milliseconds, at most an hour.
pub(super) fn penalized(delay: Duration, penalty: f64) -> Duration {
    // A float's cast to an integer saturates, and a product of these sizes is exact.
    let millis = (delay.as_millis() as f64 * penalty) as u64;
    Duration::from_millis(millis).clamp(delay.min(CAP), CAP)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn millis(tenths: u64) -> u128 {
        delay(Level::of(tenths, 1_000)).as_millis()
    }

    #[test]
    fn the_curve_has_the_designs_values() {
        for (tenths, expected) in [
            (0, 50),
            (800, 50),
            (820, 71),
            (850, 1_111),
            (890, 6_480),
            (900, 8_888),
            (920, 15_360),
            (940, 24_391),
            (948, 28_815),
            (950, 30_000),
            (1_000, 30_000),
            (9_000, 30_000),
        ] {
            assert_eq!(millis(tenths), expected, "{tenths} tenths of a percent");
        }
    }

    #[test]
    fn a_limit_that_hundredths_do_not_divide_gives_the_decimal_result_too() {
        let limit = 16 * 1024 * 1024 * 1024_u64;
        assert_eq!(delay(Level::of(limit / 100 * 89, limit)).as_millis(), 6_480);
        let limit = 512 * 1024 * 1024_u64;
        assert_eq!(delay(Level::of(limit * 89 / 100, limit)).as_millis(), 6_480);
        assert_eq!(delay(Level::of(limit * 92 / 100, limit)).as_millis(), 15_360);
    }

    #[test]
    fn a_penalty_multiplies_up_to_an_hour() {
        let at_86 = delay(Level::percent(86));
        assert_eq!(penalized(at_86, 1.0), Duration::from_millis(1_920));
        assert_eq!(penalized(at_86, 64.0), Duration::from_millis(122_880));
        assert_eq!(penalized(at_86, 72_000.0), CAP);
        assert_eq!(penalized(delay(Level::percent(50)), 72_000.0), CAP);
    }

    proptest! {
        #[test]
        fn the_delay_stays_within_its_bounds(used: u64, limit: u64, penalty in 1.0_f64..=72_000.0) {
            let plain = delay(Level::of(used, limit));
            prop_assert!(plain >= Duration::from_millis(50) && plain <= Duration::from_secs(30));
            let paid = penalized(plain, penalty);
            prop_assert!(paid >= plain && paid <= CAP);
        }

        #[test]
        fn more_memory_never_means_a_shorter_delay(a in 0_u64..2_000_000, b in 0_u64..2_000_000) {
            let (less, more) = (a.min(b), a.max(b));
            prop_assert!(
                delay(Level::of(less, 1_000_000)) <= delay(Level::of(more, 1_000_000))
            );
        }
    }
}
