//! How full memory is, as a decimal that compares and subtracts exactly.

/// A share of the limit in use, in ten-millionths.
///
/// A reading is two counts of bytes, and 89 % of 512 MiB is no whole byte. Rounded to seven
/// decimals, such a reading is the decimal percentage that was meant, so curve, floor and penalty
/// give the decimal result; what the rounding moves is less than a tenth of a millisecond of the
/// delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Level(u32);

impl Level {
    /// One, that is 100 %.
    const ONE: u32 = 10_000_000;

    /// `used` over `limit`, at most 429 times; an empty level without a limit.
    pub(super) fn of(used: u64, limit: u64) -> Self {
        if limit == 0 {
            return Self::default();
        }
        let (used, limit) = (u128::from(used), u128::from(limit));
        let rounded = (used * u128::from(Self::ONE) * 2 + limit) / (limit * 2);
        Self(u32::try_from(rounded).unwrap_or(u32::MAX))
    }

    /// So many hundredths of the limit.
    pub(super) const fn percent(percent: u32) -> Self {
        Self(percent * (Self::ONE / 100))
    }

    /// How far it is above `other`, in ten-millionths; zero when it is not.
    pub(super) const fn above(self, other: Self) -> u32 {
        self.0.saturating_sub(other.0)
    }

    /// How many points (hundredths of the limit) it is above `other`.
    ///
    /// Negative when below.
    pub(super) fn points_above(self, other: Self) -> f64 {
        (f64::from(self.0) - f64::from(other.0)) / f64::from(Self::ONE / 100)
    }

    /// The share itself: 1.0 is the whole limit.
    pub(super) fn ratio(self) -> f64 {
        f64::from(self.0) / f64::from(Self::ONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_cut_to_whole_bytes_is_still_that_percentage() {
        let limit = 512 * 1024 * 1024_u64;
        for percent in 1..=100 {
            let used = limit * u64::from(percent) / 100;
            assert_eq!(Level::of(used, limit), Level::percent(percent));
        }
    }

    #[test]
    fn no_limit_is_an_empty_level_and_a_huge_one_does_not_overflow() {
        assert_eq!(Level::of(u64::MAX, 0), Level::default());
        assert_eq!(Level::of(u64::MAX, 1), Level(u32::MAX));
        assert_eq!(Level::of(u64::MAX, u64::MAX), Level::percent(100));
        assert_eq!(Level::of(1, u64::MAX), Level::default());
    }

    #[test]
    fn points_count_both_ways() {
        assert_eq!(Level::of(86, 100).points_above(Level::of(80, 100)), 6.0);
        assert_eq!(Level::of(80, 100).points_above(Level::of(86, 100)), -6.0);
        assert_eq!(Level::of(798, 1_000).ratio(), 0.798);
    }
}
