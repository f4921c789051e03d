//! The name of a currency.

use std::fmt;
use std::str::FromStr;

use crate::error::ConfigError;

/// A currency, by a code of three upper-case ASCII letters as in ISO 4217.
///
/// Codes are not looked up in any list: a host may count in credits of its own. They order by the
/// alphabet.
///
/// # Examples
///
/// ```
/// use admit::Currency;
///
/// let francs: Currency = "CHF".parse()?;
/// assert_eq!(francs.to_string(), "CHF");
/// assert_ne!(francs, Currency::EUR);
/// # Ok::<(), admit::ConfigError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Currency([u8; 3]);

impl Currency {
    /// The US dollar.
    pub const USD: Self = Self(*b"USD");
    /// The euro.
    pub const EUR: Self = Self(*b"EUR");

    /// The code.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0)
            .expect("a code is three ASCII letters, seen to when it was made")
    }
}

impl FromStr for Currency {
    type Err = ConfigError;

    /// Reads a code.
    ///
    /// # Errors
    ///
    /// When it is not three upper-case ASCII letters. Nothing is trimmed and no case is changed: two
    /// ways to write a currency would be two caps for it.
    fn from_str(code: &str) -> Result<Self, ConfigError> {
        match <[u8; 3]>::try_from(code.as_bytes()) {
            Ok(letters) if letters.iter().all(u8::is_ascii_uppercase) => Ok(Self(letters)),
            _ => {
                let requirement = "must be three upper-case ASCII letters, such as USD";
                Err(ConfigError::new("currency", format_args!("{code:?}"), requirement))
            }
        }
    }
}

impl TryFrom<&str> for Currency {
    type Error = ConfigError;

    fn try_from(code: &str) -> Result<Self, ConfigError> {
        code.parse()
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Currency {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Currency {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_three_upper_case_letters_and_anything_else_is_named() {
        assert_eq!("USD".parse(), Ok(Currency::USD));
        assert_eq!(Currency::try_from("EUR"), Ok(Currency::EUR));
        for wrong in ["", "US", "USDT", "usd", "Usd", "U5D", " USD", "€", "ÉÀ", "EU\u{200b}"] {
            let error = wrong.parse::<Currency>().unwrap_err();
            assert_eq!(error.field, "currency", "{wrong:?}");
            assert!(error.to_string().contains(&format!("{wrong:?}")), "{error}");
            assert!(error.to_string().contains("such as USD"), "{error}");
        }
    }

    #[test]
    fn currencies_read_as_their_code_and_order_by_it() {
        assert!(Currency::EUR < Currency::USD);
        assert_eq!(
            format!("{} {:?} {:>5}", Currency::EUR, Currency::USD, Currency::EUR),
            "EUR USD   EUR"
        );
    }
}
