//! Money: an exact amount of one currency.

mod cost;
mod currency;
mod sum;

use std::fmt;

use rust_decimal::Decimal;

pub use cost::Cost;
pub use currency::Currency;
pub(crate) use sum::Sum;

/// An exact amount of one currency.
///
/// Two amounts of different currencies are never equal, and nothing here converts one into the
/// other. Sums are a [`Cost`]'s.
///
/// As text it has six decimals: `0.012300 USD`. What has more is rounded away from zero, so that
/// what was spent never reads as less than it is, and nothing but zero reads as zero. The amount
/// itself keeps every digit.
///
/// # Examples
///
/// ```
/// use admit::{Currency, Decimal, Money};
///
/// let price = Money::new("0.0123".parse().unwrap(), Currency::EUR);
/// assert_eq!(price.to_string(), "0.012300 EUR");
/// assert_eq!(Money::usd("0.0000000001".parse().unwrap()).to_string(), "0.000001 USD");
/// assert_eq!(Money::usd(Decimal::ZERO).to_string(), "0.000000 USD");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Money {
    /// How much, in units of the currency. Travels as a string: a float would lose digits.
    #[cfg_attr(feature = "serde", serde(with = "rust_decimal::serde::str"))]
    pub amount: Decimal,
    /// Of what.
    pub currency: Currency,
}

impl Money {
    /// An amount of a currency.
    #[must_use]
    pub const fn new(amount: Decimal, currency: Currency) -> Self {
        Self { amount, currency }
    }

    /// An amount of US dollars.
    #[must_use]
    pub const fn usd(amount: Decimal) -> Self {
        Self::new(amount, Currency::USD)
    }

    /// None of a currency.
    #[must_use]
    pub const fn zero(currency: Currency) -> Self {
        Self::new(Decimal::ZERO, currency)
    }

    /// Whether it is nothing.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.amount.is_zero()
    }

    /// Whether it stands at [`Decimal::MAX`]: more than can be counted, and under no cap.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.amount == Decimal::MAX
    }
}

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written out here: a decimal's own text panics when it is asked for more places than its
        // 32 bytes hold.
        let (digits, places) = (self.amount.mantissa(), self.amount.scale());
        let millionths = if places > 6 {
            let unit = 10_i128.pow(places - 6);
            digits / unit + (digits % unit).signum()
        } else {
            digits * 10_i128.pow(6 - places)
        };
        let sign = if millionths < 0 { "-" } else { "" };
        let (whole, part) = (millionths.abs() / 1_000_000, millionths.abs() % 1_000_000);
        write!(f, "{sign}{whole}.{part:06} {}", self.currency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(amount: &str) -> String {
        Money::usd(amount.parse().unwrap()).to_string()
    }

    #[test]
    fn money_reads_with_six_decimals_and_nothing_but_zero_reads_as_zero() {
        for (amount, text) in [
            ("0", "0.000000 USD"),
            ("-0", "0.000000 USD"),
            ("1", "1.000000 USD"),
            ("0.0123", "0.012300 USD"),
            ("0.0000005", "0.000001 USD"),
            ("0.0000000000000000000000000001", "0.000001 USD"),
            ("-0.0000000000000000000000000001", "-0.000001 USD"),
            ("0.1234560000", "0.123456 USD"),
            ("0.12345600001", "0.123457 USD"),
            ("0.9999991", "1.000000 USD"),
            ("-2.5", "-2.500000 USD"),
            ("7922816251426433759354.3950335", "7922816251426433759354.395034 USD"),
        ] {
            assert_eq!(shown(amount), text, "{amount}");
        }
        for (most, sign) in [(Decimal::MAX, ""), (Decimal::MIN, "-")] {
            let text = format!("{sign}79228162514264337593543950335.000000 USD");
            assert_eq!(Money::usd(most).to_string(), text);
        }
    }

    #[test]
    fn amounts_of_two_currencies_are_two_things() {
        assert_ne!(Money::usd(Decimal::ONE), Money::new(Decimal::ONE, Currency::EUR));
        assert_eq!(Money::usd(Decimal::ONE), Money::usd("1.000".parse().unwrap()));
        assert!(Money::zero(Currency::EUR).is_zero() && !Money::usd(Decimal::ONE).is_zero());
        assert!(Money::usd(Decimal::MAX).is_saturated());
        assert!(!Money::usd(Decimal::MAX - Decimal::ONE).is_saturated());
    }

    #[cfg(feature = "serde")]
    #[test]
    fn money_travels_as_a_string_and_loses_no_digit() {
        let money = Money::new("0.1000000000000000000000000001".parse().unwrap(), Currency::EUR);
        let text = serde_json::to_string(&money).unwrap();
        assert_eq!(text, r#"{"amount":"0.1000000000000000000000000001","currency":"EUR"}"#);
        assert_eq!(serde_json::from_str::<Money>(&text).unwrap(), money);
        for wrong in [
            r#"{"amount":"1","currency":"eur"}"#,
            r#"{"amount":"much","currency":"EUR"}"#,
            r#"{"amount":"1","currency":"EUR","unit":1}"#,
        ] {
            assert!(serde_json::from_str::<Money>(wrong).is_err(), "{wrong}");
        }
    }
}
