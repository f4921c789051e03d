//! What an upstream said about its limits, as values.

use std::time::Duration;

/// Which kind of limit a reading speaks of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum RateLimitKind {
    /// The ordinary budget: so many requests, so many tokens.
    Capacity,
    /// Use grew too quickly: there is room left, and the way to it is to ramp up more slowly.
    Acceleration,
    /// Nothing is known but that a limit was hit.
    #[default]
    Unknown,
}

/// One dimension of a limit, as far as the upstream told it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LimitReading {
    /// The most there can be, in the dimension's unit.
    pub limit: Option<u64>,
    /// What is left of it now.
    pub remaining: Option<u64>,
    /// How long until it is whole again. At most a day.
    pub reset: Option<Duration>,
}

impl LimitReading {
    /// Whether the upstream said nothing about this dimension.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.limit.is_none() && self.remaining.is_none() && self.reset.is_none()
    }
}

/// One policy of the `RateLimit-Policy` field with what the `RateLimit` field says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct QuotaPolicy {
    /// The policy's name; empty in the forms of the older drafts, which named none.
    pub name: String,
    /// What is counted: `requests` unless the policy says otherwise.
    pub unit: String,
    /// The length of time the quota is for. At most a day.
    pub window: Option<Duration>,
    /// The quota, what is left of it, and when it is whole again.
    pub reading: LimitReading,
}

impl QuotaPolicy {
    /// The unit of a policy that names none.
    pub const REQUESTS: &'static str = "requests";

    fn is_per_minute_of(&self, unit: &str) -> bool {
        self.unit == unit && self.window == Some(Duration::from_secs(60))
    }
}

/// What an upstream said about its limits in the headers of one response.
///
/// Every value is optional and each stands for itself: requests and tokens never overwrite each
/// other, nor does the time to a reset stand in for the time after which to retry.
///
/// # Examples
///
/// ```
/// use admit::{RateLimitInfo, RateLimitKind};
/// use std::time::Duration;
///
/// let info = RateLimitInfo::rate_limited("gpt-x");
/// assert_eq!(info.kind, RateLimitKind::Unknown);
/// assert_eq!(info.retry_after, Some(Duration::from_secs(60)));
/// assert_eq!(info.tokens.remaining, Some(0));
/// assert_eq!(info.tokens_per_minute(), 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimitInfo {
    /// The model it is about, where the caller said so.
    pub model: Option<String>,
    /// Requests per minute, as OpenAI and Anthropic count them.
    pub requests: LimitReading,
    /// Tokens per minute, in and out together.
    pub tokens: LimitReading,
    /// Input tokens per minute.
    pub input_tokens: LimitReading,
    /// Output tokens per minute.
    pub output_tokens: LimitReading,
    /// The policies of the IETF fields, in the order they were named.
    pub policies: Vec<QuotaPolicy>,
    /// How long to leave the upstream alone. At most a day; zero is "at once".
    pub retry_after: Option<Duration>,
    /// Whether a limit was hit.
    pub was_rate_limited: bool,
    /// Which kind of limit.
    pub kind: RateLimitKind,
}

impl RateLimitInfo {
    /// The retry-after of a limit that was hit without a word about when to come back.
    pub const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(60);

    /// A limit was hit and nothing more is known: nothing is left, come back in a minute.
    pub fn rate_limited(model: impl Into<String>) -> Self {
        let nothing = LimitReading { remaining: Some(0), ..LimitReading::default() };
        Self {
            model: Some(model.into()),
            requests: nothing,
            tokens: nothing,
            input_tokens: nothing,
            output_tokens: nothing,
            policies: Vec::new(),
            retry_after: Some(Self::DEFAULT_RETRY_AFTER),
            was_rate_limited: true,
            kind: RateLimitKind::Unknown,
        }
    }

    /// The same reading, about this model.
    #[must_use]
    pub fn about(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// The limit of requests per minute; zero when the upstream named none.
    ///
    /// Where no provider's own header names it, the tightest IETF policy over 60 s that counts
    /// requests does. Saturates.
    #[must_use]
    pub fn requests_per_minute(&self) -> u32 {
        let limit = self.requests.limit.or_else(|| self.policy_per_minute(QuotaPolicy::REQUESTS));
        u32::try_from(limit.unwrap_or(0)).unwrap_or(u32::MAX)
    }

    /// The limit of tokens per minute; zero when the upstream named none.
    ///
    /// Where no provider's own header names it, the tightest IETF policy over 60 s that counts
    /// `tokens` does.
    #[must_use]
    pub fn tokens_per_minute(&self) -> u64 {
        self.tokens.limit.or_else(|| self.policy_per_minute("tokens")).unwrap_or(0)
    }

    fn policy_per_minute(&self, unit: &str) -> Option<u64> {
        self.policies
            .iter()
            .filter(|policy| policy.is_per_minute_of(unit))
            .filter_map(|policy| policy.reading.limit)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_was_hit_is_known_to_have_nothing_left_and_nothing_else() {
        let info = RateLimitInfo::rate_limited("m");
        assert!(info.was_rate_limited);
        assert_eq!(info.model.as_deref(), Some("m"));
        for reading in [info.requests, info.tokens, info.input_tokens, info.output_tokens] {
            assert_eq!(reading, LimitReading { limit: None, remaining: Some(0), reset: None });
        }
        assert_eq!((info.requests_per_minute(), info.tokens_per_minute()), (0, 0));
        assert_eq!(info.retry_after, Some(Duration::from_secs(60)));
        assert_eq!(info.kind, RateLimitKind::Unknown);
    }

    #[test]
    fn per_minute_fields_mirror_the_limits_and_saturate() {
        let mut info = RateLimitInfo::default();
        info.requests.limit = Some(u64::MAX);
        info.tokens.limit = Some(9);
        assert_eq!((info.requests_per_minute(), info.tokens_per_minute()), (u32::MAX, 9));
    }

    #[test]
    fn only_a_policy_over_a_minute_speaks_for_a_minute() {
        let policy = |unit: &str, seconds, limit| QuotaPolicy {
            unit: unit.into(),
            window: Some(Duration::from_secs(seconds)),
            reading: LimitReading { limit: Some(limit), ..LimitReading::default() },
            ..QuotaPolicy::default()
        };
        let info = RateLimitInfo {
            policies: vec![
                policy("requests", 60, 100),
                policy("requests", 60, 50),
                policy("requests", 1, 2),
                policy("content-bytes", 60, 7),
            ],
            ..RateLimitInfo::default()
        };
        assert_eq!((info.requests_per_minute(), info.tokens_per_minute()), (50, 0));
    }
}
