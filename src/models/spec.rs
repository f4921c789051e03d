//! A model, its limits and its prices.

use rust_decimal::Decimal;

use crate::error::ConfigError;
use crate::limits::Limits;

/// One model as a job reserves it: what its provider allows a minute, or how many calls at once.
///
/// The `id` is the entry's own name, not necessarily the model's name on the wire: two endpoints
/// that serve one model have two entries, and thereby two accounts.
///
/// # Examples
///
/// ```
/// use admit::{Limits, ModelSpec};
///
/// let hosted = ModelSpec::new("gpt-x", 30_000);
/// assert_eq!(hosted.limits(), Limits::per_minute(30, 30_000));
///
/// let local = ModelSpec::concurrent("llama-local", 2);
/// assert!(local.validate().is_ok());
/// assert!(ModelSpec::new("gpt-x", 0).validate().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct ModelSpec {
    /// The entry's name: one account each.
    pub id: String,
    /// Tokens a minute. Of no account, and may be left out, where `max_concurrent` is set.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_zero"))]
    pub tokens_per_minute: u64,
    /// Requests a minute; see [`limits`](Self::limits) for what holds without.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub requests_per_minute: Option<u32>,
    /// How many calls at once: the model is limited by a gate instead of a bucket.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub max_concurrent: Option<u32>,
    /// What tokens cost.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub prices: Option<Prices>,
}

#[cfg(feature = "serde")]
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl ModelSpec {
    /// A model limited by tokens a minute.
    pub fn new(id: impl Into<String>, tokens_per_minute: u64) -> Self {
        Self {
            id: id.into(),
            tokens_per_minute,
            requests_per_minute: None,
            max_concurrent: None,
            prices: None,
        }
    }

    /// A model limited by how many calls it serves at once.
    pub fn concurrent(id: impl Into<String>, max_concurrent: u32) -> Self {
        Self { max_concurrent: Some(max_concurrent), ..Self::new(id, 0) }
    }

    /// The same model with a limit of requests a minute.
    #[must_use]
    pub const fn with_requests_per_minute(mut self, requests: u32) -> Self {
        self.requests_per_minute = Some(requests);
        self
    }

    /// The same model with prices.
    #[must_use]
    pub const fn with_prices(mut self, prices: Prices) -> Self {
        self.prices = Some(prices);
        self
    }

    /// What its bucket allows a minute.
    ///
    /// Where no requests a minute are given, they are a thousandth of the tokens, at least 1.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let derived = || u32::try_from(self.tokens_per_minute / 1_000).unwrap_or(u32::MAX).max(1);
        let requests = self.requests_per_minute.unwrap_or_else(derived);
        Limits::per_minute(requests, self.tokens_per_minute)
    }

    /// Whether an account can be made of it.
    ///
    /// # Errors
    ///
    /// Names the first field that will not do: an empty id, a limit of zero, no limit at all, a
    /// negative price.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.id.trim().is_empty() {
            return Err(ConfigError::new("id", format!("{:?}", self.id), "must not be empty"));
        }
        let positive = "must be at least 1";
        if self.requests_per_minute == Some(0) {
            return Err(ConfigError::new("requests_per_minute", 0, positive));
        }
        match self.max_concurrent {
            Some(0) => return Err(ConfigError::new("max_concurrent", 0, positive)),
            None if self.tokens_per_minute == 0 => {
                let requirement = "must be at least 1 where max_concurrent is not set";
                return Err(ConfigError::new("tokens_per_minute", 0, requirement));
            }
            _ => {}
        }
        self.prices.as_ref().map_or(Ok(()), Prices::validate)
    }
}

/// What a model's tokens cost, in whatever currency the host counts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct Prices {
    /// Per million input tokens.
    pub input: Decimal,
    /// Per million output tokens.
    pub output: Decimal,
    /// What an input token read from the provider's cache costs, as a multiple of `input`.
    /// Default 1: no discount is assumed that was not stated.
    #[cfg_attr(feature = "serde", serde(default = "one"))]
    pub cached_read_multiplier: Decimal,
    /// What an input token written to the provider's cache costs, as a multiple of `input`.
    /// Default 1.
    #[cfg_attr(feature = "serde", serde(default = "one"))]
    pub cached_write_multiplier: Decimal,
}

#[cfg(feature = "serde")]
const fn one() -> Decimal {
    Decimal::ONE
}

impl Prices {
    /// Prices per million input and output tokens, the cache's like any other.
    #[must_use]
    pub const fn per_million(input: Decimal, output: Decimal) -> Self {
        Self {
            input,
            output,
            cached_read_multiplier: Decimal::ONE,
            cached_write_multiplier: Decimal::ONE,
        }
    }

    /// The same prices with multipliers of the input price for cached reads and writes.
    #[must_use]
    pub const fn with_cache(mut self, read: Decimal, write: Decimal) -> Self {
        self.cached_read_multiplier = read;
        self.cached_write_multiplier = write;
        self
    }

    fn validate(&self) -> Result<(), ConfigError> {
        for (field, value) in [
            ("prices.input", self.input),
            ("prices.output", self.output),
            ("prices.cached_read_multiplier", self.cached_read_multiplier),
            ("prices.cached_write_multiplier", self.cached_write_multiplier),
        ] {
            if value < Decimal::ZERO {
                return Err(ConfigError::new(field, value, "must not be negative"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_a_minute_are_a_thousandth_of_the_tokens_and_at_least_one() {
        for (tokens, requests) in [
            (30_000, 30),
            (1_999, 1),
            (999, 1),
            (1, 1),
            (u64::from(u32::MAX) * 1_000 + 999, u32::MAX),
            (u64::MAX, u32::MAX),
        ] {
            assert_eq!(ModelSpec::new("m", tokens).limits(), Limits::per_minute(requests, tokens));
        }
        let stated = ModelSpec::new("m", 30_000).with_requests_per_minute(500);
        assert_eq!(stated.limits(), Limits::per_minute(500, 30_000));
    }

    #[test]
    fn what_no_account_can_be_made_of_names_its_field() {
        let negative = Prices::per_million(Decimal::ONE, Decimal::NEGATIVE_ONE);
        for (spec, field) in [
            (ModelSpec::new(" ", 1), "id"),
            (ModelSpec::new("m", 0), "tokens_per_minute"),
            (ModelSpec::new("m", 1).with_requests_per_minute(0), "requests_per_minute"),
            (ModelSpec::concurrent("m", 0), "max_concurrent"),
            (ModelSpec::new("m", 1).with_prices(negative), "prices.output"),
        ] {
            assert_eq!(spec.validate().unwrap_err().field, field);
        }
        assert!(ModelSpec::new("m", 1).validate().is_ok());
        assert!(ModelSpec::concurrent("m", 1).validate().is_ok());
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_spec_travels_as_data_and_takes_no_unknown_field() {
        let spec = ModelSpec::new("m", 10)
            .with_prices(Prices::per_million("0.075".parse().unwrap(), Decimal::TWO));
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<ModelSpec>(&text).unwrap(), spec);
        let unknown = serde_json::from_str::<ModelSpec>(r#"{"id":"m","tpm":1}"#).unwrap_err();
        assert!(unknown.to_string().contains("tpm"), "{unknown}");
    }
}
