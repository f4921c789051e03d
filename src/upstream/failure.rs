//! A failure an upstream answered with, and how much it says about its limits.

use std::fmt;
use std::time::Duration;

use crate::one_line::OneLine;

/// What kind of failure an upstream reported.
///
/// Limits weigh failures by kind: a refusal for lack of capacity asks to slow down, a stray fault
/// does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum FailureKind {
    /// A rate limit was hit (429). Weight 1.
    RateLimit,
    /// The upstream is overloaded (529, or 503 that says when to come back). Weight 3.
    Overload,
    /// A fault that says nothing about capacity (another 5xx, no response at all). Weight 0.
    Transient,
    /// The account with the upstream is exhausted or unpaid (402, or a 429 or 403 that says so).
    /// Weight 0, and trying again is no use.
    QuotaExhausted,
    /// The request itself was wrong (another 4xx). Weight 0, and trying again is no use.
    Rejected,
}

impl FailureKind {
    /// How many backpressure increments the failure is worth on a token bucket.
    #[must_use]
    pub const fn weight(self) -> u32 {
        match self {
            Self::RateLimit => 1,
            Self::Overload => 3,
            Self::Transient | Self::QuotaExhausted | Self::Rejected => 0,
        }
    }

    /// Whether the same request may succeed later without anybody's doing.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::RateLimit | Self::Overload | Self::Transient)
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RateLimit => "rate limit",
            Self::Overload => "overload",
            Self::Transient => "transient",
            Self::QuotaExhausted => "quota exhausted",
            Self::Rejected => "rejected",
        })
    }
}

/// A failed call to an upstream service, as a limit sees it.
///
/// # Examples
///
/// ```
/// use admit::{FailureKind, UpstreamFailure};
/// use std::time::Duration;
///
/// let failure = UpstreamFailure::status(429, "test-service", "slow down")
///     .with_retry_after(Duration::from_secs(7));
/// assert_eq!(failure.kind, FailureKind::RateLimit);
/// assert_eq!(
///     failure.summary(),
///     "HTTP 429 from test-service: slow down (server asked for 7s)"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamFailure {
    /// The HTTP status; `None` when there was no response.
    pub status: Option<u16>,
    /// The service that failed: an account of this name hears of it.
    pub service: String,
    /// What the service said, shortened to [`MAX_MESSAGE`](Self::MAX_MESSAGE) characters.
    pub message: String,
    /// How long the service asked to be left alone.
    pub retry_after: Option<Duration>,
    /// What it means.
    pub kind: FailureKind,
}

impl UpstreamFailure {
    /// The most characters of a message that are kept: an answer's body is somebody else's text.
    pub const MAX_MESSAGE: usize = 500;

    /// A failure with an HTTP status, classified by the status first and the message second.
    pub fn status(status: u16, service: impl Into<String>, message: impl AsRef<str>) -> Self {
        let message = shorten(message.as_ref());
        let kind = classify(status, &message, false);
        Self { status: Some(status), service: service.into(), message, retry_after: None, kind }
    }

    /// No response at all: the connection failed, or the call timed out.
    pub fn no_response(service: impl Into<String>, message: impl AsRef<str>) -> Self {
        Self {
            status: None,
            service: service.into(),
            message: shorten(message.as_ref()),
            retry_after: None,
            kind: FailureKind::Transient,
        }
    }

    /// The same failure, from a service that said when to come back. A 503 that does is an
    /// overload rather than a stray fault; any other kind stays as it is.
    #[must_use]
    pub fn with_retry_after(mut self, retry_after: Duration) -> Self {
        self.retry_after = Some(retry_after);
        // Nothing else is judged anew: the host may have set the kind, and the whole body, of which
        // the message is the beginning, may have.
        if self.status == Some(503) && self.kind == FailureKind::Transient {
            self.kind = FailureKind::Overload;
        }
        self
    }

    /// The same failure under another kind, where the host knows better.
    #[must_use]
    pub const fn with_kind(mut self, kind: FailureKind) -> Self {
        self.kind = kind;
        self
    }

    /// Whether trying again may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }

    /// One line: status, service, message, and what the server asked for. Whatever the message
    /// holds, it stays one line.
    #[must_use]
    pub fn summary(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for UpstreamFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "HTTP {status}")?,
            None => f.write_str("no response")?,
        }
        write!(f, " from {}", OneLine(&self.service))?;
        if !self.message.is_empty() {
            write!(f, ": {}", OneLine(&self.message))?;
        }
        if let Some(after) = self.retry_after {
            write!(f, " (server asked for {after:?})")?;
        }
        if self.kind == FailureKind::QuotaExhausted {
            f.write_str(" (the quota is used up; trying again does not help)")?;
        }
        Ok(())
    }
}

impl std::error::Error for UpstreamFailure {}

/// Status first, body second.
pub(super) fn classify(status: u16, message: &str, says_when: bool) -> FailureKind {
    match status {
        429 | 402 | 403 if speaks_of_quota(message) => FailureKind::QuotaExhausted,
        402 => FailureKind::QuotaExhausted,
        429 => FailureKind::RateLimit,
        529 => FailureKind::Overload,
        503 if says_when => FailureKind::Overload,
        408 => FailureKind::Transient,
        400..=499 => FailureKind::Rejected,
        _ => FailureKind::Transient,
    }
}

fn speaks_of_quota(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    // An ordinary rate limit may point to the page where a higher one is sold.
    says(&["insufficient_quota", "insufficient quota", "credit balance"])
        || (says(&["billing"]) && !says(&["rate limit", "rate_limit", "try again in", "retry in"]))
}

fn shorten(message: &str) -> String {
    message.trim().chars().take(UpstreamFailure::MAX_MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(status: u16, message: &str) -> FailureKind {
        UpstreamFailure::status(status, "s", message).kind
    }

    #[test]
    fn the_status_decides_before_the_body() {
        assert_eq!(kind(429, "slow down"), FailureKind::RateLimit);
        assert_eq!(kind(529, ""), FailureKind::Overload);
        assert_eq!(kind(503, "rate limit exceeded"), FailureKind::Transient);
        assert_eq!(kind(500, "insufficient_quota"), FailureKind::Transient);
        assert_eq!(kind(404, "rate limit"), FailureKind::Rejected);
        assert_eq!(UpstreamFailure::no_response("s", "reset").kind, FailureKind::Transient);
    }

    #[test]
    fn a_503_that_says_when_is_an_overload() {
        let failure =
            UpstreamFailure::status(503, "s", "").with_retry_after(Duration::from_secs(1));
        assert_eq!(failure.kind, FailureKind::Overload);
        assert_eq!(failure.kind.weight(), 3);
        let again = failure.with_retry_after(Duration::from_secs(9));
        assert_eq!(again.retry_after, Some(Duration::from_secs(9)), "the last word counts");
    }

    #[test]
    fn an_exhausted_quota_is_terminal_and_says_so() {
        let failure = UpstreamFailure::status(429, "s", r#"{"code":"insufficient_quota"}"#);
        assert_eq!(failure.kind, FailureKind::QuotaExhausted);
        assert_eq!(failure.kind.weight(), 0);
        assert!(!failure.is_retryable());
        assert!(failure.summary().contains("does not help"));
    }

    #[test]
    fn a_kind_that_was_set_stays_when_the_wait_is_told_later() {
        let second = Duration::from_secs(1);
        for own in [FailureKind::QuotaExhausted, FailureKind::Rejected, FailureKind::Overload] {
            let failure = UpstreamFailure::status(429, "s", "").with_kind(own);
            assert_eq!(failure.with_retry_after(second).kind, own);
        }
        let first = UpstreamFailure::status(503, "s", "").with_retry_after(second);
        assert_eq!(first.with_kind(FailureKind::Rejected).kind, FailureKind::Rejected);
    }

    #[test]
    fn a_rate_limit_that_points_to_a_billing_page_is_a_rate_limit() {
        for message in [
            "Rate limit reached for gpt-x on requests per min. Limit: 3 / min. Please add a payment \
             method to increase your rate limit. Visit https://api.example/account/billing.",
            "You have been rate limited. Go to https://api.example/settings/billing to upgrade.",
            "You exceeded your current quota, please check your plan and billing details. Please \
             retry in 36.6s.",
            "Too many requests: try again in 20s, or see billing",
            r#"{"code": "rate_limit_exceeded", "see": "https://api.example/billing"}"#,
        ] {
            assert_eq!(kind(429, message), FailureKind::RateLimit, "{message}");
        }
        for message in [
            "You exceeded your current quota, please check your plan and billing details.",
            "Your account is not active, please check your billing details on our website.",
            "Billing hard limit has been reached",
            "Your credit balance is too low to raise the rate limit",
            r#"insufficient_quota; see docs/rate-limits"#,
        ] {
            assert_eq!(kind(429, message), FailureKind::QuotaExhausted, "{message}");
            assert_eq!(kind(403, message), FailureKind::QuotaExhausted, "{message}");
        }
    }

    #[test]
    fn a_summary_without_a_response_says_so() {
        let failure = UpstreamFailure::no_response("maps", "");
        assert_eq!(failure.summary(), "no response from maps");
    }

    #[test]
    fn a_message_of_many_lines_is_told_on_one() {
        let said = "slow down\r\n2026-01-01 ERROR forged line\u{1b}[2J";
        let failure = UpstreamFailure::status(429, "s", said);
        assert_eq!(failure.message, said, "the message itself is as it was");
        assert_eq!(
            failure.summary(),
            "HTTP 429 from s: slow down  2026-01-01 ERROR forged line [2J"
        );
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let failure = UpstreamFailure::status(500, "s", "é".repeat(2_000));
        assert_eq!(failure.message.chars().count(), UpstreamFailure::MAX_MESSAGE);
    }
}
