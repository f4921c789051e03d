//! Pseudo-random choices that a seed repeats.

use std::ops::RangeInclusive;

/// A sequence of choices, the same for the same seed on every machine.
///
/// # Examples
///
/// ```
/// use admit::testing::Draw;
///
/// let (mut one, mut other) = (Draw::new(7), Draw::new(7));
/// assert_eq!(one.between(1..=6), other.between(1..=6));
/// ```
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// The choices of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number: Vigna's splitmix64, from memory.
    pub const fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number of the range; its start when the range is empty.
    pub fn between(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = range.into_inner();
        let span = u128::from(high.saturating_sub(low)) + 1;
        low + (u128::from(self.any()) % span) as u64
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.between(1..=n.max(1)) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_met_whole_and_never_left() {
        let mut draw = Draw::new(1);
        let mut met = [false; 6];
        for _ in 0..200 {
            met[draw.between(1..=6) as usize - 1] = true;
        }
        assert_eq!(met, [true; 6]);
        draw.between(0..=u64::MAX);
        assert_eq!(draw.between(3..=3), 3);
    }
}
