//! Seeded chance, the same on every run and in any order of the calls.

use std::hash::{DefaultHasher, Hash, Hasher as _};

/// A sequence of random numbers that depends on its seed alone (SplitMix64, Steele et al. 2014).
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// The sequence that belongs to `seed` and `what` it is thrown for.
    pub(crate) fn new(seed: u64, what: impl Hash) -> Self {
        Self(fingerprint((seed, what)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// At least 0 and below 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Between `low` and `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high.saturating_sub(low) + 1)
    }
}

/// A number that stands for `what`, the same in every run.
pub(crate) fn fingerprint(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_and_occasion_throw_the_same() {
        let throws = |seed, what: &str| {
            let mut dice = Dice::new(seed, what);
            [dice.between(0, 999), dice.between(0, 999), dice.between(0, 999)]
        };
        assert_eq!(throws(1, "a"), throws(1, "a"));
        assert_ne!(throws(1, "a"), throws(2, "a"));
        assert_ne!(throws(1, "a"), throws(1, "b"));
    }

    #[test]
    fn throws_stay_within_their_bounds() {
        let mut dice = Dice::new(3, ());
        for _ in 0..10_000 {
            assert!((5..=7).contains(&dice.between(5, 7)));
            assert!((0.0..1.0).contains(&dice.fraction()));
        }
        assert_eq!(dice.between(4, 4), 4);
    }
}
