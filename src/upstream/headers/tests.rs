use http::{HeaderName, HeaderValue};
use proptest::prelude::*;
use std::time::UNIX_EPOCH;

use super::*;
use crate::upstream::FailureKind;

/// 2024-06-01T12:00:00Z.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_717_243_200)
}

fn secs(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

fn map(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let value = HeaderValue::from_bytes(value.as_bytes()).expect(value);
        headers.append(HeaderName::from_bytes(name.as_bytes()).expect(name), value);
    }
    headers
}

fn read(pairs: &[(&str, &str)]) -> RateLimitInfo {
    RateLimitInfo::from_headers(&map(pairs), now())
}

fn limit(limit: u64, remaining: u64, seconds: u64) -> LimitReading {
    LimitReading { limit: Some(limit), remaining: Some(remaining), reset: secs(seconds) }
}

/// Headers, and the reading that is expected of them: whatever a row does not set is absent.
type Case = (&'static [(&'static str, &'static str)], fn(&mut RateLimitInfo));

const NOTHING: fn(&mut RateLimitInfo) = |_| ();

const FORMS: &[Case] = &[
    (&[], NOTHING),
    // What the providers send.
    (
        &[
            ("x-ratelimit-limit-requests", "5000"),
            ("x-ratelimit-remaining-requests", "4999"),
            ("x-ratelimit-reset-requests", "12s"),
            ("x-ratelimit-limit-tokens", "160000"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ],
        |info| {
            info.requests = limit(5_000, 4_999, 12);
            info.tokens = limit(160_000, 0, 360);
        },
    ),
    (
        &[
            ("anthropic-ratelimit-requests-limit", "50"),
            ("anthropic-ratelimit-requests-remaining", "49"),
            ("anthropic-ratelimit-requests-reset", "2024-06-01T12:00:01Z"),
            ("anthropic-ratelimit-tokens-limit", "40000"),
            ("anthropic-ratelimit-tokens-remaining", "30000"),
            ("anthropic-ratelimit-tokens-reset", "2024-06-01T12:00:02Z"),
            ("anthropic-ratelimit-input-tokens-limit", "32000"),
            ("anthropic-ratelimit-input-tokens-remaining", "31000"),
            ("anthropic-ratelimit-input-tokens-reset", "2024-06-01T12:00:03Z"),
            ("anthropic-ratelimit-output-tokens-limit", "8000"),
            ("anthropic-ratelimit-output-tokens-remaining", "7000"),
            ("anthropic-ratelimit-output-tokens-reset", "2024-06-01T14:00:04+02:00"),
        ],
        |info| {
            info.requests = limit(50, 49, 1);
            info.tokens = limit(40_000, 30_000, 2);
            info.input_tokens = limit(32_000, 31_000, 3);
            info.output_tokens = limit(8_000, 7_000, 4);
        },
    ),
    (
        &[
            ("ratelimit-limit", "100, 100;w=60"),
            ("ratelimit-remaining", "9"),
            ("ratelimit-reset", "50"),
        ],
        |info| info.requests = limit(100, 9, 50),
    ),
    // The early form says the window of its limit in the list behind it, and only a minute's is ours.
    (&[("ratelimit-limit", "100, 1000;w=3600, 100;w=60")], |info| info.requests.limit = Some(100)),
    (&[("ratelimit-limit", "100")], |info| info.requests.limit = Some(100)),
    (&[("ratelimit-limit", "5000, 5000;w=3600"), ("ratelimit-remaining", "9")], |info| {
        info.requests.remaining = Some(9)
    }),
    (&[("ratelimit-limit", "10;w=1")], NOTHING),
    (&[("ratelimit-limit", "100, 100;w=1, 100;w=60")], NOTHING),
    (&[("X-RateLimit-Limit-Requests", "7")], |info| info.requests.limit = Some(7)),
    // Resets.
    (&[("x-ratelimit-reset-tokens", "1s")], |info| info.tokens.reset = secs(1)),
    (&[("x-ratelimit-reset-tokens", "1.5s")], |info| {
        info.tokens.reset = Some(Duration::from_millis(1_500));
    }),
    (&[("x-ratelimit-reset-tokens", "20ms")], |info| {
        info.tokens.reset = Some(Duration::from_millis(20));
    }),
    (&[("x-ratelimit-reset-tokens", "59")], |info| info.tokens.reset = secs(59)),
    (&[("x-ratelimit-reset-tokens", "1717243260")], NOTHING),
    (&[("x-ratelimit-reset-tokens", "25h0m0s")], NOTHING),
    (&[("x-ratelimit-reset-tokens", "soon")], NOTHING),
    (&[("x-ratelimit-reset-tokens", "-1s")], NOTHING),
    (&[("anthropic-ratelimit-tokens-reset", "2024-06-01T11:59:59Z")], NOTHING),
    (&[("anthropic-ratelimit-tokens-reset", "2024-06-02T12:00:01Z")], NOTHING),
    (&[("anthropic-ratelimit-tokens-reset", "2024-06-02T12:00:00Z")], |info| {
        info.tokens.reset = secs(86_400);
    }),
    (&[("anthropic-ratelimit-tokens-reset", "yesterday")], NOTHING),
    // Numbers.
    (&[("x-ratelimit-limit-tokens", "  42  ")], |info| info.tokens.limit = Some(42)),
    (&[("x-ratelimit-limit-tokens", "0")], |info| info.tokens.limit = Some(0)),
    (&[("x-ratelimit-limit-tokens", "-1")], NOTHING),
    (&[("x-ratelimit-limit-tokens", "+1")], NOTHING),
    (&[("x-ratelimit-limit-tokens", "1e6")], NOTHING),
    (&[("x-ratelimit-limit-tokens", "150,000")], NOTHING),
    (&[("x-ratelimit-limit-tokens", "unlimited")], NOTHING),
    (&[("x-ratelimit-limit-tokens", "")], NOTHING),
    (&[("x-ratelimit-limit-tokens", "99999999999999999999")], NOTHING),
    (&[("x-ratelimit-limit-tokens", "18446744073709551615")], |info| {
        info.tokens.limit = Some(u64::MAX);
    }),
    (&[("x-ratelimit-limit-tokens", "５０")], NOTHING),
    (
        &[
            ("x-ratelimit-limit-tokens", "1"),
            ("x-ratelimit-limit-tokens", "2"),
            ("x-ratelimit-remaining-tokens", "3"),
        ],
        |info| info.tokens.remaining = Some(3),
    ),
    // When to come back.
    (&[("retry-after", "0")], |info| info.retry_after = Some(Duration::ZERO)),
    (&[("retry-after", "299.997")], |info| {
        info.retry_after = Some(Duration::from_millis(299_997));
    }),
    (&[("retry-after", "Sat, 01 Jun 2024 12:00:30 GMT")], |info| info.retry_after = secs(30)),
    (&[("retry-after", "Sat, 01 Jun 2024 12:00:00 GMT")], |info| {
        info.retry_after = Some(Duration::ZERO);
    }),
    (&[("retry-after", "Sat, 01 Jun 2024 11:59:30 GMT")], NOTHING),
    (&[("retry-after", "Mon, 01 Jun 2024 12:00:30 GMT")], NOTHING),
    (&[("retry-after", "999999")], NOTHING),
    (&[("retry-after", "-1")], NOTHING),
    (&[("retry-after", "")], NOTHING),
    (&[("retry-after", "abc")], NOTHING),
    (&[("retry-after", "111111111111111111111111111111")], NOTHING),
    (&[("retry-after", "5"), ("retry-after", "5")], NOTHING),
    (&[("retry-after", "5, 5")], NOTHING),
    (&[("retry-after-ms", "1500")], |info| info.retry_after = Some(Duration::from_millis(1_500))),
    (&[("retry-after-ms", "200"), ("retry-after", "1")], |info| {
        info.retry_after = Some(Duration::from_millis(200));
    }),
    (&[("retry-after-ms", "abc"), ("retry-after", "1")], |info| info.retry_after = secs(1)),
    (&[("retry-after-ms", "86400001"), ("retry-after", "2")], |info| info.retry_after = secs(2)),
    // Two families at once: the first is taken whole, the second fills no gap in it.
    (
        &[
            ("x-ratelimit-limit-tokens", "10"),
            ("anthropic-ratelimit-tokens-limit", "20"),
            ("anthropic-ratelimit-tokens-remaining", "19"),
            ("anthropic-ratelimit-requests-limit", "30"),
        ],
        |info| {
            info.tokens.limit = Some(10);
            info.requests.limit = Some(30);
        },
    ),
];

#[test]
fn every_form_is_read_as_it_says() {
    const { assert!(FORMS.len() >= 40) }
    for (headers, expected) in FORMS {
        let mut info = RateLimitInfo { kind: RateLimitKind::Capacity, ..RateLimitInfo::default() };
        expected(&mut info);
        assert_eq!(read(headers), info, "{headers:?}");
    }
}

#[test]
fn the_ietf_fields_are_policies_and_overwrite_no_dimension() {
    let info = read(&[
        ("ratelimit-policy", r#""burst";q=100;w=60"#),
        ("ratelimit-policy", r#""tokens";q=9000;w=60;qu="tokens""#),
        ("ratelimit", r#""tokens";r=10;t=7"#),
        ("x-ratelimit-limit-requests", "5"),
    ]);
    assert_eq!(info.policies.len(), 2);
    assert_eq!(info.policies[1].reading, limit(9_000, 10, 7));
    assert_eq!(info.tokens, LimitReading::default());
    assert_eq!((info.requests_per_minute(), info.tokens_per_minute()), (5, 9_000));
}

#[test]
fn a_malformed_ietf_field_hides_nothing_else() {
    let info = read(&[
        ("ratelimit", r#""a";r="#),
        ("ratelimit-policy", "\u{1F980}"),
        ("retry-after", "3"),
    ]);
    assert_eq!((info.policies.len(), info.retry_after), (0, secs(3)));
}

#[test]
fn i5_a_retry_after_that_says_nothing_is_absent_and_other_headers_are_still_read() {
    let thirty = Duration::from_secs(30);
    let ahead = httpdate::fmt_http_date(now() + thirty);
    let past = httpdate::fmt_http_date(now() - thirty);
    let cases: [(&[&str], Option<Duration>); 9] = [
        (&["0"], Some(Duration::ZERO)),
        (&["299.997"], Some(Duration::from_millis(299_997))),
        (&["999999"], None),
        (&["-1"], None),
        (&[""], None),
        (&["abc"], None),
        (&["123456789012345678901234567890"], None),
        (&["7", "7"], None),
        (&[&ahead], secs(30)),
    ];
    for (values, expected) in cases.into_iter().chain([(&[past.as_str()][..], None)]) {
        let mut pairs = vec![("x-ratelimit-remaining-tokens", "11")];
        pairs.extend(values.iter().map(|value| ("retry-after", *value)));
        let info = read(&pairs);
        assert_eq!(info.retry_after, expected, "{values:?}");
        assert_eq!(info.tokens.remaining, Some(11), "{values:?}");
        let failure = UpstreamFailure::from_response(429, "s", &map(&pairs), "", now());
        assert_eq!((failure.retry_after, failure.kind), (expected, FailureKind::RateLimit));
    }
}

#[test]
fn i6_token_reset_request_reset_and_retry_after_are_three_values() {
    for (text, reset) in [
        ("6m0s", Duration::from_secs(360)),
        ("1s", Duration::from_secs(1)),
        ("1.5s", Duration::from_millis(1_500)),
        ("20ms", Duration::from_millis(20)),
    ] {
        let info = read(&[
            ("retry-after", "2"),
            ("x-ratelimit-reset-tokens", text),
            ("x-ratelimit-reset-requests", "8.64s"),
        ]);
        assert_eq!(info.tokens.reset, Some(reset));
        assert_eq!(info.requests.reset, Some(Duration::from_millis(8_640)));
        assert_eq!(info.retry_after, secs(2));
    }
}

#[test]
fn a_response_is_classified_by_its_status_first_and_its_body_second() {
    let back = map(&[("retry-after", "7")]);
    let none = HeaderMap::new();
    let buried = format!("{} insufficient_quota", "x".repeat(2_000));
    for (status, headers, body, kind) in [
        (429, &back, "slow down", FailureKind::RateLimit),
        (429, &none, buried.as_str(), FailureKind::QuotaExhausted),
        (529, &none, "", FailureKind::Overload),
        (503, &back, "", FailureKind::Overload),
        (503, &none, "rate limit", FailureKind::Transient),
        (500, &back, "insufficient_quota", FailureKind::Transient),
        (400, &none, "rate limit", FailureKind::Rejected),
    ] {
        let failure = UpstreamFailure::from_response(status, "s", headers, body, now());
        assert_eq!(failure.kind, kind, "{status} {body:.20}");
        assert!(failure.message.chars().count() <= UpstreamFailure::MAX_MESSAGE);
    }
    let failure = UpstreamFailure::from_response(429, "test-service", &back, "slow down", now());
    assert_eq!(failure.summary(), "HTTP 429 from test-service: slow down (server asked for 7s)");
    // The body is judged once, whole: what is told of it later is not judged by what was kept.
    let told_later = UpstreamFailure::from_response(429, "s", &none, &buried, now());
    let told_later = told_later.with_retry_after(Duration::from_secs(1));
    assert_eq!(told_later.kind, FailureKind::QuotaExhausted);
}

#[test]
fn a_429_says_whether_it_is_of_growth_or_of_capacity() {
    let kind = |status, pairs: &[(&str, &str)], body: &str| {
        let info = RateLimitInfo::from_response(status, &map(pairs), body, now());
        assert_eq!(info.was_rate_limited, status == 429);
        info.kind
    };
    let growth = r#"{"error":{"type":"rate_limit_error","message":"This request would exceed your
        organization's maximum usage increase rate for input tokens per minute."}}"#;
    assert_eq!(kind(429, &[], growth), RateLimitKind::Acceleration);
    assert_eq!(kind(429, &[], "Acceleration limit reached"), RateLimitKind::Acceleration);
    let empty = [("anthropic-ratelimit-input-tokens-remaining", "0")];
    assert_eq!(kind(429, &empty, ""), RateLimitKind::Capacity);
    assert_eq!(kind(429, &[("ratelimit", "a;r=0")], ""), RateLimitKind::Capacity);
    assert_eq!(kind(429, &[], ""), RateLimitKind::Unknown);
    assert_eq!(kind(200, &[], growth), RateLimitKind::Capacity);
}

#[test]
fn a_long_body_is_cut_at_a_character() {
    let body = "é".repeat(BODY_LOOKED_AT);
    assert!(looked_at(&body).len() <= BODY_LOOKED_AT);
    assert_eq!(looked_at(&format!("x{body}")).len(), BODY_LOOKED_AT - 1);
}

/// Every header that is read.
fn names() -> Vec<String> {
    let mut names: Vec<String> =
        ["retry-after", "retry-after-ms", "ratelimit", "ratelimit-policy"].map(String::from).into();
    for what in ["limit", "remaining", "reset"] {
        names.push(format!("ratelimit-{what}"));
        for unit in ["requests", "tokens", "input-tokens", "output-tokens"] {
            names.push(format!("x-ratelimit-{what}-{unit}"));
            names.push(format!("anthropic-ratelimit-{unit}-{what}"));
        }
    }
    names
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        "[0-9hms.:TZ+-]{0,30}".prop_map(String::into_bytes),
        r#"[a-z"\\;=,:0-9 .-]{0,40}"#.prop_map(String::into_bytes),
    ]
}

proptest! {
    #[test]
    fn arbitrary_header_bytes_never_panic_and_never_say_more_than_a_day(
        headers in prop::collection::vec((prop::sample::select(names()), value()), 0..12),
        status in any::<u16>(),
        body in "\\PC*",
        now in any::<i64>(),
    ) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value);
            }
        }
        let span = Duration::from_secs(now.unsigned_abs() / 2);
        let now = if now < 0 { UNIX_EPOCH.checked_sub(span) } else { UNIX_EPOCH.checked_add(span) };
        let now = now.unwrap_or(UNIX_EPOCH);
        let info = RateLimitInfo::from_response(status, &map, &body, now);
        let failure = UpstreamFailure::from_response(status, "s", &map, &body, now);
        prop_assert_eq!(failure.retry_after, info.retry_after);
        let readings = [info.requests, info.tokens, info.input_tokens, info.output_tokens];
        let resets = readings.iter().chain(info.policies.iter().map(|policy| &policy.reading));
        for said in resets.map(|reading| reading.reset).chain([info.retry_after]) {
            prop_assert!(said.is_none_or(|said| said <= retry_after::LONGEST));
        }
    }
}
