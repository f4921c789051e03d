//! A sum that loses no digit.

use rust_decimal::Decimal;

/// A sum of decimals: exact, in whatever order its terms came and went.
///
/// A [`Decimal`] has 96 bits for all its digits. Its own sums panic past the maximum, and drop the
/// last places where a large and a small number meet: what is added could then not be taken away
/// again, and a figure that stood at its maximum once would stay wrong for ever. So whole and part
/// are kept apart here, and only what is shown is brought back into a decimal.
///
/// It saturates beyond two thousand million times `Decimal::MAX`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sum {
    /// The largest integer that is not above the sum.
    whole: i128,
    /// What is above it, in units of the last place a decimal can have: in `0..ONE`.
    ///
    /// Compared second, after the whole: that is what makes the derived order the sums'.
    part: i128,
}

/// `10^28`: a decimal has at most 28 places.
const ONE: i128 = 10_i128.pow(Decimal::MAX_SCALE);

impl Sum {
    /// Nothing.
    pub(crate) const ZERO: Self = Self { whole: 0, part: 0 };

    /// The sum of one number.
    pub(crate) const fn of(number: Decimal) -> Self {
        let (digits, places) = (number.mantissa(), number.scale());
        let unit = 10_i128.pow(places);
        let part = digits.rem_euclid(unit) * 10_i128.pow(Decimal::MAX_SCALE - places);
        Self { whole: digits.div_euclid(unit), part }
    }

    /// With another added.
    #[must_use]
    pub(crate) const fn plus(self, other: Self) -> Self {
        let part = self.part + other.part;
        let whole = self.whole.saturating_add(other.whole).saturating_add(part / ONE);
        Self { whole, part: part % ONE }
    }

    /// With another taken away.
    #[must_use]
    pub(crate) const fn minus(self, other: Self) -> Self {
        let part = self.part - other.part;
        let whole = self.whole.saturating_sub(other.whole).saturating_add(part.div_euclid(ONE));
        Self { whole, part: part.rem_euclid(ONE) }
    }

    /// The sum as a decimal: exact where it fits, else rounded, and at most `Decimal::MAX`.
    pub(crate) fn to_decimal(self) -> Decimal {
        let most = if self.whole < 0 { Decimal::MIN } else { Decimal::MAX };
        let Ok(whole) = Decimal::try_from_i128_with_scale(self.whole, 0) else { return most };
        // Without its trailing zeros the part takes no digit away from the whole.
        let part = Decimal::from_i128_with_scale(self.part, Decimal::MAX_SCALE).normalize();
        whole.checked_add(part).unwrap_or(most)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decimal() -> impl Strategy<Value = Decimal> {
        let bits = prop_oneof![Just(0), Just(1), any::<u32>(), Just(u32::MAX)];
        let parts = (bits.clone(), bits.clone(), bits, any::<bool>(), 0..=Decimal::MAX_SCALE);
        parts.prop_map(|(lo, mid, hi, negative, places)| {
            Decimal::from_parts(lo, mid, hi, negative, places)
        })
    }

    #[test]
    fn a_sum_past_the_maximum_shows_the_maximum_and_comes_back_down() {
        let most = Sum::of(Decimal::MAX);
        let twice = most.plus(most);
        assert_eq!(twice.to_decimal(), Decimal::MAX);
        assert!(twice > most);
        assert_eq!(twice.minus(most), most);
        assert_eq!(Sum::ZERO.minus(twice).to_decimal(), Decimal::MIN);
        let tenth = Sum::of("0.1".parse().unwrap());
        assert!(most.plus(tenth) > most);
        assert_eq!(most.plus(tenth).minus(most).to_decimal().to_string(), "0.1");
        let far = Sum { whole: i128::MAX, part: 0 };
        assert_eq!(far.plus(most).to_decimal(), Decimal::MAX);
    }

    proptest! {
        #[test]
        fn a_number_comes_back_as_it_was(number in decimal()) {
            prop_assert_eq!(Sum::of(number).to_decimal(), number);
        }

        #[test]
        fn what_was_added_can_be_taken_away_in_any_order(
            numbers in prop::collection::vec(decimal(), 1..20),
            turn in 0_usize..20,
        ) {
            let sum = numbers.iter().fold(Sum::ZERO, |sum, number| sum.plus(Sum::of(*number)));
            let turned = numbers.iter().cycle().skip(turn).take(numbers.len());
            let rest = turned.fold(sum, |sum, number| sum.minus(Sum::of(*number)));
            prop_assert_eq!(rest, Sum::ZERO);
        }

        #[test]
        fn sums_order_as_their_numbers_do(one in decimal(), other in decimal()) {
            prop_assert_eq!(Sum::of(one).cmp(&Sum::of(other)), one.cmp(&other));
        }
    }
}
