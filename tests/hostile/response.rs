//! A response as an outsider writes it: a status, lines of headers, an empty line, a body.
//!
//! `fuzz/fuzz_targets/headers.rs` reads the same.

use std::time::{Duration, UNIX_EPOCH};

use admit::{ElasticWindow, Limits, RateLimitInfo, TokenBucket, UpstreamFailure, WindowConfig};
use http::{HeaderMap, HeaderName, HeaderValue};

const DAY: Duration = Duration::from_secs(86_400);
/// Sixty-four members a field, of two fields, and one policy without a name.
const MOST_POLICIES: usize = 64 + 64 + 1;

/// The parts of a response; a line that is no header is not there.
fn read(input: &[u8]) -> (u16, HeaderMap, String) {
    let mut lines = input.split(|byte| *byte == b'\n');
    let status = lines.next().and_then(|line| std::str::from_utf8(line).ok());
    let status = status.and_then(|line| line.trim().parse().ok()).unwrap_or(429);
    let mut headers = HeaderMap::new();
    for line in lines.by_ref().take_while(|line| !line.is_empty()) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            headers.append(name, value);
        }
    }
    let body = lines.collect::<Vec<_>>().join(&b'\n');
    (status, headers, String::from_utf8_lossy(&body).into_owned())
}

/// Whatever it says: nothing panics, every number is within its bounds, a failure is one line, and
/// no limit is moved further than limits may be.
///
/// # Panics
///
/// When that does not hold.
pub(crate) fn hold(input: &[u8]) {
    let (status, headers, body) = read(input);
    let now = UNIX_EPOCH + Duration::from_secs(1_717_243_200);
    for now in [now, UNIX_EPOCH, UNIX_EPOCH - DAY, now + 100_000 * DAY] {
        is_bounded(&RateLimitInfo::from_response(status, &headers, &body, now), &headers);
        let failure = UpstreamFailure::from_response(status, "a service", &headers, &body, now);
        is_one_line(&failure);
    }
    let failure = UpstreamFailure::from_response(status, "a service", &headers, &body, now);
    moves_limits_within_bounds(&failure);
}

fn is_bounded(info: &RateLimitInfo, headers: &HeaderMap) {
    let readings = [info.requests, info.tokens, info.input_tokens, info.output_tokens];
    let policies = &info.policies;
    let readings = readings.into_iter().chain(policies.iter().map(|policy| policy.reading));
    let resets = readings.map(|reading| reading.reset);
    let windows = policies.iter().map(|policy| policy.window);
    for span in resets.chain(windows).chain([info.retry_after]) {
        assert!(span.is_none_or(|span| span <= DAY), "longer than a day: {info:?}");
    }
    assert!(policies.len() <= MOST_POLICIES, "{} policies", policies.len());
    // Names and units are the header's own text, never more of it.
    let kept: usize = policies.iter().map(|policy| policy.name.len()).sum();
    let sent: usize = headers.values().map(HeaderValue::len).sum();
    assert!(kept <= sent, "{kept} bytes of names from {sent} of headers");
    let _ = (info.requests_per_minute(), info.tokens_per_minute());
}

fn is_one_line(failure: &UpstreamFailure) {
    assert!(failure.message.chars().count() <= UpstreamFailure::MAX_MESSAGE);
    let summary = failure.summary();
    assert!(!summary.chars().any(char::is_control), "not one line: {summary:?}");
}

fn moves_limits_within_bounds(failure: &UpstreamFailure) {
    let bucket =
        TokenBucket::new("a service", Limits::per_minute(10, 100)).expect("positive limits");
    let window = ElasticWindow::new("a service", WindowConfig::default()).expect("a valid window");
    for _ in 0..20 {
        bucket.record_failure(failure);
        window.record_failure(failure);
    }
    let status = bucket.status();
    assert!(status.throttle <= TokenBucket::MAX_THROTTLE, "{status:?}");
    let held = status.held_until.map(|until| until.saturating_duration_since(status.read_at));
    assert!(held.is_none_or(|held| held <= TokenBucket::MAX_HOLD), "{status:?}");
    assert!(window.status().throttle <= WindowConfig::default().max_throttle);
}
