//! A model, its limits and its prices.

use rust_decimal::Decimal;

use super::usage::Usage;
use crate::error::ConfigError;
use crate::limits::Limits;
use crate::money::{Currency, Money, Sum};
use crate::one_line::is_one_line;

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
    /// A model limited by tokens a minute, and by a thousandth as many requests until
    /// [`with_requests_per_minute`](Self::with_requests_per_minute) says otherwise.
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
    /// Names the first field that will not do: an id that is empty or not one line, a limit of
    /// zero, no limit at all, a negative price.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.id.trim().is_empty() {
            return Err(ConfigError::new("id", format!("{:?}", self.id), "must not be empty"));
        }
        if !is_one_line(&self.id) {
            let requirement = "must be one line without control characters";
            return Err(ConfigError::new("id", format!("{:?}", self.id), requirement));
        }
        self.validate_limits().and_then(|()| self.validate_prices())
    }

    fn validate_limits(&self) -> Result<(), ConfigError> {
        let positive = "must be at least 1";
        if self.requests_per_minute == Some(0) {
            return Err(self.is_zero("requests_per_minute", positive));
        }
        match self.max_concurrent {
            Some(0) => Err(self.is_zero("max_concurrent", positive)),
            None if self.tokens_per_minute == 0 => {
                let requirement = "must be at least 1 where max_concurrent is not set";
                Err(self.is_zero("tokens_per_minute", requirement))
            }
            _ => Ok(()),
        }
    }

    fn is_zero(&self, field: &'static str, requirement: &str) -> ConfigError {
        ConfigError::new(field, 0, requirement).of(&*self.id)
    }

    /// Whether its prices are such: what a registry does not look at when it makes the account.
    pub(crate) fn validate_prices(&self) -> Result<(), ConfigError> {
        let prices = self.prices.as_ref().map_or(Ok(()), Prices::validate);
        prices.map_err(|error| error.of(&*self.id))
    }
}

/// What a model's tokens cost.
///
/// # Examples
///
/// ```
/// use admit::{Currency, Decimal, Money, Prices, Usage};
///
/// let prices = Prices::per_million(Decimal::TWO, Decimal::TEN)
///     .with_cache("0.1".parse().unwrap(), "1.25".parse().unwrap())
///     .in_currency(Currency::EUR);
/// let usage = Usage::new(1_000, 200).with_cache(5_000, 0);
/// assert_eq!(prices.cost(usage), Money::new("0.005".parse().unwrap(), Currency::EUR));
/// ```
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
    /// What all of it is in. Default USD, in which most providers publish.
    #[cfg_attr(feature = "serde", serde(default = "usd"))]
    pub currency: Currency,
}

#[cfg(feature = "serde")]
const fn one() -> Decimal {
    Decimal::ONE
}

#[cfg(feature = "serde")]
const fn usd() -> Currency {
    Currency::USD
}

impl Prices {
    /// Prices per million input and output tokens, in USD, the cache's like any other.
    #[must_use]
    pub const fn per_million(input: Decimal, output: Decimal) -> Self {
        Self {
            input,
            output,
            cached_read_multiplier: Decimal::ONE,
            cached_write_multiplier: Decimal::ONE,
            currency: Currency::USD,
        }
    }

    /// The same prices with multipliers of the input price for cached reads and writes.
    #[must_use]
    pub const fn with_cache(mut self, read: Decimal, write: Decimal) -> Self {
        self.cached_read_multiplier = read;
        self.cached_write_multiplier = write;
        self
    }

    /// The same prices in another currency. Nothing is converted.
    #[must_use]
    pub const fn in_currency(mut self, currency: Currency) -> Self {
        self.currency = currency;
        self
    }

    /// What this usage costs.
    ///
    /// Input and output at their prices, cached reads and writes at the input's price times their
    /// multipliers, each per million.
    ///
    /// Exact as far as a [`Decimal`] goes, which has 28 digits: what is beyond is rounded half to
    /// even. What is too large is [`Decimal::MAX`].
    #[must_use]
    pub fn cost(&self, usage: Usage) -> Money {
        let amount = [
            (self.input, Decimal::ONE, usage.input),
            (self.output, Decimal::ONE, usage.output),
            (self.input, self.cached_read_multiplier, usage.cache_read),
            (self.input, self.cached_write_multiplier, usage.cache_write),
        ]
        .into_iter()
        .map(|(price, multiplier, tokens)| Sum::of(millionth(price, multiplier, tokens)))
        .fold(Sum::ZERO, Sum::plus)
        .to_decimal();
        Money::new(amount, self.currency)
    }

    /// Refuses a price that would pay for being used.
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

/// `price * multiplier * tokens / 1,000,000`, saturating.
fn millionth(price: Decimal, multiplier: Decimal, tokens: u64) -> Decimal {
    const MILLIONTH: Decimal = Decimal::from_parts(1, 0, 0, false, 6);
    let product = |factors: [Decimal; 4]| {
        factors.into_iter().try_fold(Decimal::ONE, |product, factor| product.checked_mul(factor))
    };
    let tokens = Decimal::from(tokens);
    if price.is_zero() || multiplier.is_zero() || tokens.is_zero() {
        return Decimal::ZERO;
    }
    // The tokens early and the millionth last, no digit is lost that the result has; the millionth
    // first makes room where the product would overflow.
    product([price, tokens, multiplier, MILLIONTH])
        .or_else(|| product([MILLIONTH, price, multiplier, tokens]))
        .unwrap_or_else(|| {
            let negative = price.is_sign_negative() != multiplier.is_sign_negative();
            if negative { Decimal::MIN } else { Decimal::MAX }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        text.parse().unwrap()
    }

    #[test]
    fn a_cost_is_exact_and_counts_every_token_once() {
        let prices = Prices::per_million(decimal("2.50"), decimal("10"));
        assert_eq!(prices.cost(Usage::default()), Money::usd(Decimal::ZERO));
        assert_eq!(prices.cost(Usage::new(1_000_000, 0)), Money::usd(decimal("2.5")));
        assert_eq!(prices.cost(Usage::new(1, 1)), Money::usd(decimal("0.0000125")));
        let cached = prices.with_cache(decimal("0.1"), decimal("1.25")).in_currency(Currency::EUR);
        // 100 * 2.5 + 10 * 10 + 1000 * 0.25 + 40 * 3.125, in millionths.
        let usage = Usage::new(100, 10).with_cache(1_000, 40);
        assert_eq!(cached.cost(usage), Money::new(decimal("0.000725"), Currency::EUR));
        let long = Prices::per_million(decimal("0.1234567890123456789"), Decimal::ZERO);
        let exact = decimal("0.0000001234567890123456789");
        assert_eq!(long.cost(Usage::new(1, 9)), Money::usd(exact));
    }

    #[test]
    fn a_cost_that_has_few_places_is_exact_whatever_it_is_made_of() {
        // A million tokens cost their price, to its last digit.
        let long = decimal("0.1234567890123456789012345678");
        let prices = Prices::per_million(long, Decimal::ZERO);
        assert_eq!(prices.cost(Usage::new(1_000_000, 0)).amount, long);
        // A price times its multiplier may have more places than a decimal has.
        let prices = Prices::per_million(decimal("0.0000000000000000001"), Decimal::ZERO)
            .with_cache(decimal("0.0000000001"), decimal("0.0000000003"));
        let cost = prices.cost(Usage::default().with_cache(10_000_000_000, 10_000_000_000));
        assert_eq!(cost.amount, decimal("0.0000000000000000000000004"));
    }

    #[test]
    fn a_cost_too_large_stops_at_the_maximum() {
        let most = Usage::new(u64::MAX, u64::MAX).with_cache(u64::MAX, u64::MAX);
        let dear = Prices::per_million(Decimal::MAX, Decimal::MAX);
        assert_eq!(dear.cost(most), Money::usd(Decimal::MAX));
        assert_eq!(dear.cost(Usage::new(1_000_000, 1)), Money::usd(Decimal::MAX));
        // A price below zero is none, but its cost has a sign.
        let odd = Prices::per_million(Decimal::MIN, Decimal::ZERO);
        assert_eq!(odd.cost(most), Money::usd(Decimal::MIN));
        // What fits in the end is not lost on the way.
        assert_eq!(dear.cost(Usage::new(500_000, 0)).amount, Decimal::MAX / Decimal::TWO);
        let free_reads = Prices::per_million(Decimal::MAX, Decimal::ONE)
            .with_cache(Decimal::ZERO, Decimal::ZERO);
        assert!(free_reads.cost(Usage::default().with_cache(u64::MAX, u64::MAX)).is_zero());
        let all = Prices::per_million(Decimal::ONE, Decimal::ONE).cost(most);
        assert_eq!(all.amount, decimal("73786976294838.20646"));
    }

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
        let (one, below) = (Decimal::ONE, Decimal::NEGATIVE_ONE);
        let negative = Prices::per_million(one, below);
        let read = Prices::per_million(one, one).with_cache(below, one);
        let write = Prices::per_million(one, one).with_cache(one, below);
        for (spec, field) in [
            (ModelSpec::new(" ", 1), "id"),
            (ModelSpec::new("a\nb", 1), "id"),
            (ModelSpec::new("m", 0), "tokens_per_minute"),
            (ModelSpec::new("m", 1).with_requests_per_minute(0), "requests_per_minute"),
            (ModelSpec::concurrent("m", 0), "max_concurrent"),
            (ModelSpec::new("m", 1).with_prices(negative), "prices.output"),
            (ModelSpec::new("m", 1).with_prices(read), "prices.cached_read_multiplier"),
            (ModelSpec::new("m", 1).with_prices(write), "prices.cached_write_multiplier"),
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
        let prices = serde_json::from_str::<Prices>(r#"{"input":"1","output":"2"}"#).unwrap();
        assert_eq!(prices, Prices::per_million(Decimal::ONE, Decimal::TWO));
        let unknown = serde_json::from_str::<ModelSpec>(r#"{"id":"m","tpm":1}"#).unwrap_err();
        assert!(unknown.to_string().contains("tpm"), "{unknown}");
    }
}
