//! Reading the headers of a response, whichever provider wrote them.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use super::failure::{UpstreamFailure, classify};
use super::info::{LimitReading, RateLimitInfo, RateLimitKind};
use super::{quota, retry_after};

/// How much of a body is looked at to classify a failure, in bytes.
const BODY_LOOKED_AT: usize = 64 * 1024;

impl RateLimitInfo {
    /// What the headers of a response say about the upstream's limits.
    ///
    /// `now` is the wall clock when the response arrived: providers write instants as dates, so
    /// this is a [`SystemTime`], not the monotonic clock the limits run on. Everything read is a
    /// duration from then.
    ///
    /// Read are OpenAI's `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, Anthropic's
    /// `anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}`,
    /// the IETF's `RateLimit` and `RateLimit-Policy` with their early form
    /// `RateLimit-{Limit,Remaining,Reset}` (a limit that says a window must say a minute),
    /// `retry-after`, and `retry-after-ms`, which is the more exact of the two and goes before the
    /// other. Where several families speak of one dimension, the first of them, in this order, is
    /// taken whole.
    ///
    /// A value that is missing, malformed, negative, sent twice, over a day, or a date that has
    /// passed is absent; the others are read all the same. The reading has kind
    /// [`Capacity`](RateLimitKind::Capacity) and was not rate limited: headers alone do not say
    /// so, [`from_response`](Self::from_response) looks at the status too.
    ///
    /// # Examples
    ///
    /// ```
    /// use admit::RateLimitInfo;
    /// use std::time::{Duration, SystemTime};
    ///
    /// let mut headers = http::HeaderMap::new();
    /// headers.insert("x-ratelimit-limit-tokens", "150000".parse()?);
    /// headers.insert("x-ratelimit-reset-tokens", "6m0s".parse()?);
    /// headers.insert("retry-after", "2".parse()?);
    ///
    /// let info = RateLimitInfo::from_headers(&headers, SystemTime::now());
    /// assert_eq!(info.tokens_per_minute(), 150_000);
    /// assert_eq!(info.tokens.reset, Some(Duration::from_secs(360)));
    /// assert_eq!(info.retry_after, Some(Duration::from_secs(2)));
    /// # Ok::<(), http::header::InvalidHeaderValue>(())
    /// ```
    #[must_use]
    pub fn from_headers(headers: &HeaderMap, now: SystemTime) -> Self {
        let openai =
            |unit: &str| reading(headers, now, |what| format!("x-ratelimit-{what}-{unit}"));
        let anthropic =
            |unit: &str| reading(headers, now, |what| format!("anthropic-ratelimit-{unit}-{what}"));
        Self {
            model: None,
            requests: first([openai("requests"), anthropic("requests"), early_draft(headers, now)]),
            tokens: first([openai("tokens"), anthropic("tokens")]),
            input_tokens: anthropic("input-tokens"),
            output_tokens: anthropic("output-tokens"),
            policies: quota::policies(
                joined(headers, "ratelimit-policy").as_deref(),
                joined(headers, "ratelimit").as_deref(),
            ),
            retry_after: wait(headers, now),
            was_rate_limited: false,
            kind: RateLimitKind::Capacity,
        }
    }

    /// What a whole response says about the upstream's limits.
    ///
    /// As [`from_headers`](Self::from_headers), and a 429 was rate limited. Its kind is
    /// [`Acceleration`](RateLimitKind::Acceleration) when the body says that use grew too quickly,
    /// [`Capacity`](RateLimitKind::Capacity) when a dimension has nothing remaining, else
    /// [`Unknown`](RateLimitKind::Unknown).
    #[must_use]
    pub fn from_response(status: u16, headers: &HeaderMap, body: &str, now: SystemTime) -> Self {
        let mut info = Self::from_headers(headers, now);
        if status == 429 {
            info.was_rate_limited = true;
            info.kind = if speaks_of_acceleration(looked_at(body)) {
                RateLimitKind::Acceleration
            } else if info.is_used_up() {
                RateLimitKind::Capacity
            } else {
                RateLimitKind::Unknown
            };
        }
        info
    }

    fn is_used_up(&self) -> bool {
        let policies = self.policies.iter().map(|policy| policy.reading);
        [self.requests, self.tokens, self.input_tokens, self.output_tokens]
            .into_iter()
            .chain(policies)
            .any(|reading| reading.remaining == Some(0))
    }
}

impl UpstreamFailure {
    /// A failure as the whole response tells it.
    ///
    /// `body` is the response's text; it becomes the message, shortened. `now` is the wall clock
    /// when the response arrived. The kind follows from the status first and the body second: a
    /// 503 that says when to come back is an overload, a 429 that speaks of billing is an
    /// exhausted quota.
    ///
    /// # Examples
    ///
    /// ```
    /// use admit::{FailureKind, UpstreamFailure};
    /// use std::time::SystemTime;
    ///
    /// let mut headers = http::HeaderMap::new();
    /// headers.insert("retry-after", "7".parse()?);
    /// let now = SystemTime::now();
    /// let failure = UpstreamFailure::from_response(503, "test-service", &headers, "busy", now);
    /// assert_eq!(failure.kind, FailureKind::Overload);
    /// assert_eq!(failure.summary(), "HTTP 503 from test-service: busy (server asked for 7s)");
    /// # Ok::<(), http::header::InvalidHeaderValue>(())
    /// ```
    pub fn from_response(
        status: u16,
        service: impl Into<String>,
        headers: &HeaderMap,
        body: &str,
        now: SystemTime,
    ) -> Self {
        let body = looked_at(body);
        let mut failure = Self::status(status, service, body);
        failure.retry_after = wait(headers, now);
        // Again, from the whole body: the word that decides may be past the shortened message.
        failure.kind = classify(status, body, failure.retry_after.is_some());
        failure
    }
}

/// How long the response asks to be left alone.
fn wait(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    one(headers, "retry-after-ms").and_then(retry_after::retry_after_ms).or_else(|| {
        one(headers, "retry-after").and_then(|text| retry_after::retry_after(text, now))
    })
}

/// One family's limit, remaining and reset of one dimension.
fn reading(headers: &HeaderMap, now: SystemTime, name: impl Fn(&str) -> String) -> LimitReading {
    let value = |what: &str| one(headers, &name(what));
    LimitReading {
        limit: value("limit").and_then(retry_after::count),
        remaining: value("remaining").and_then(retry_after::count),
        reset: value("reset").and_then(|text| retry_after::reset(text, now)),
    }
}

/// Before its seventh draft the IETF's limit had three fields, the first of them a list.
fn early_draft(headers: &HeaderMap, now: SystemTime) -> LimitReading {
    LimitReading {
        limit: one(headers, "ratelimit-limit").and_then(quota::count_per_minute),
        ..reading(headers, now, |what| format!("ratelimit-{what}"))
    }
}

/// The first family that says anything at all: a limit of one beside what remains of another
/// would be nobody's reading.
fn first<const N: usize>(readings: [LimitReading; N]) -> LimitReading {
    readings.into_iter().find(|reading| !reading.is_empty()).unwrap_or_default()
}

/// A header that is there once, and is text.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    Some(value.to_str().ok()?.trim())
}

/// A list field: its lines are one list.
fn joined(headers: &HeaderMap, name: &str) -> Option<String> {
    let lines: Result<Vec<&str>, _> =
        headers.get_all(name).iter().map(|value| value.to_str()).collect();
    lines.ok().filter(|lines| !lines.is_empty()).map(|lines| lines.join(","))
}

/// The beginning of the body, cut at a character.
fn looked_at(body: &str) -> &str {
    &body[..body.floor_char_boundary(BODY_LOOKED_AT)]
}

fn speaks_of_acceleration(body: &str) -> bool {
    let body = body.to_ascii_lowercase();
    ["usage increase rate", "acceleration limit"].iter().any(|words| body.contains(words))
}

#[cfg(test)]
mod tests;
