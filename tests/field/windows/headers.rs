//! What the headers of a response say, from the response to the limit.

use std::time::{Duration, SystemTime};

use admit::{Demand, FailureKind, RateLimitInfo, UpstreamFailure};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use crate::support::*;

fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    fields
        .iter()
        .map(|&(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a header's text"))
        })
        .collect()
}

/// Appends, where `collect` would keep the last.
fn twice(name: &'static str, value: &str) -> HeaderMap {
    let mut fields = headers(&[(name, value)]);
    fields.append(name, HeaderValue::from_str(value).expect("a header's text"));
    fields
}

fn date(at: SystemTime) -> String {
    httpdate::fmt_http_date(at)
}

/// A wall clock of whole seconds, as dates in headers are.
fn wall() -> SystemTime {
    SystemTime::UNIX_EPOCH + secs(1_800_000_000)
}

/// Reports the answer to a job through its grant, and tells how long the bucket is held for it.
async fn held_for(fields: HeaderMap) -> Duration {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let (bucket, gate) = (bucket(600, 60_000), gate(1));
    let job = admission.try_admit(Demand::new().tokens(&bucket, 100).permit(&gate)).unwrap();
    let mut fields = fields;
    fields.insert("x-ratelimit-limit-requests", HeaderValue::from_static("500"));
    let failure = UpstreamFailure::from_response(429, "upstream", &fields, "slow down", wall());
    assert_eq!(failure.kind, FailureKind::RateLimit);
    assert!(job.report_failure(&bucket, &failure));
    assert!(job.report_failure(&gate, &failure));
    assert_eq!(bucket.status().throttle, 0.5, "the throttle rises whatever is asked for");
    drop(job);
    // Whatever became of the one header, the others are read.
    let info = RateLimitInfo::from_response(429, &fields, "slow down", wall());
    assert_eq!(info.requests_per_minute(), 500);
    assert!(info.was_rate_limited);
    assert_eq!(info.retry_after, failure.retry_after);

    // The gate is not held by what its upstream says of the bucket.
    drop(admission.try_admit(permits(&gate, 1)).unwrap());
    let start = Instant::now();
    let grant = admission.admit(tokens_of(&bucket, 1)).await.unwrap();
    let waited = start.elapsed();
    assert_eq!(bucket.status().held_until, None);
    drop(grant);
    observer.look();
    observer.all_gone();
    waited
}

#[tokio::test(start_paused = true)]
async fn i5_what_a_retry_after_says_is_how_long_the_bucket_is_held() {
    let text = |value: &str| headers(&[("retry-after", value)]);
    let long = "9".repeat(30);
    for (fields, right) in [
        (text("0"), 0),
        (text("7"), 7_000),
        (text("1.5"), 1_500),
        (text("299.997"), 299_997),
        (text("600"), 600_000),
        (text("999999"), 0),
        (text("-1"), 0),
        (text(""), 0),
        (text("abc"), 0),
        (text(&long), 0),
        (twice("retry-after", "5"), 0),
        (text(&date(wall() + secs(30))), 30_000),
        (text(&date(wall() - secs(30))), 0),
        (headers(&[("retry-after-ms", "2500"), ("retry-after", "9")]), 2_500),
        (headers(&[]), 0),
    ] {
        let shown = format!("{fields:?}");
        let held = held_for(fields).await;
        let right = millis(right);
        // A fraction may be read as the next whole second.
        let up_to = if right == millis(299_997) { secs(300) } else { right };
        assert!(held >= right && held <= up_to, "{shown}: held for {held:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn i5_a_hold_longer_than_the_bucket_takes_is_capped() {
    // Ten minutes, by default; what the header says may be up to a day.
    let held = held_for(headers(&[("retry-after", "86400")])).await;
    assert_eq!(held, secs(600));
}

#[tokio::test(start_paused = true)]
async fn i5_nothing_is_held_before_the_failure_is_reported() {
    let admission = started();
    let observer = Observer::of(&admission);
    let bucket = bucket(600, 60_000);
    let job = admission.try_admit(tokens_of(&bucket, 100)).unwrap();
    let fields = headers(&[("retry-after", "20")]);
    let failure = UpstreamFailure::from_response(503, "upstream", &fields, "busy", wall());
    assert_eq!(failure.kind, FailureKind::Overload);
    drop(admission.try_admit(tokens_of(&bucket, 1)).unwrap());
    pass_time(secs(5)).await;
    assert!(job.report_failure(&bucket, &failure));
    drop(job);
    assert_eq!(bucket.status().throttle, 1.5, "an overload weighs three");
    let mut waiter = parked(&admission, tokens_of(&bucket, 1));
    pass_time(secs(20) - millis(1)).await;
    assert!(!waiter.is_woken());
    pass_time(millis(1)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), secs(20));
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn i6_resets_of_tokens_and_requests_and_a_retry_after_are_three_values() {
    for (text, right) in [("6m0s", 360_000), ("1s", 1_000), ("1.5s", 1_500), ("20ms", 20)] {
        let fields = headers(&[
            ("x-ratelimit-reset-tokens", text),
            ("retry-after", "2"),
            ("x-ratelimit-reset-requests", "45s"),
            ("x-ratelimit-remaining-tokens", "0"),
        ]);
        let info = RateLimitInfo::from_response(429, &fields, "", wall());
        assert_eq!(info.tokens.reset, Some(millis(right)), "{text}");
        assert_eq!(info.requests.reset, Some(secs(45)));
        assert_eq!(info.retry_after, Some(secs(2)));
        assert_eq!(info.tokens.remaining, Some(0));
        // Only the retry-after holds the bucket.
        assert_eq!(held_for(fields).await, secs(2), "{text}");
    }
}
