//! 429 and Retry-After.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use admit::{Amount, Demand, TokenBucket, UpstreamFailure};
use tokio::time::Instant;

use crate::support::*;

fn too_many(retry_after: Option<Duration>) -> UpstreamFailure {
    let failure = UpstreamFailure::status(429, "upstream", "slow down");
    match retry_after {
        Some(after) => failure.with_retry_after(after),
        None => failure,
    }
}

#[tokio::test(start_paused = true)]
async fn i1_a_retry_after_holds_the_bucket_it_was_told_to_and_nothing_else() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let (gate, bucket) = (gate(1), bucket(600, 60_000));
    let start = Instant::now();
    let grant = admission.try_admit(tokens_of(&bucket, 100).permit(&gate)).unwrap();
    assert!(grant.report_failure(&bucket, &too_many(Some(secs(10)))));
    drop(grant);
    drop(admission.try_admit(permits(&gate, 1)).unwrap());

    let (waiter, polls) = counted(admission.admit(tokens_of(&bucket, 1)));
    let waiter = tokio::spawn(waiter);
    pass_time(secs(10) - millis(1)).await;
    assert_eq!(polls.load(Ordering::Relaxed), 1, "it is not polled while it waits");
    assert!(!waiter.is_finished());
    observer.nobody_could_go(&[tokens_of(&bucket, 1)]);
    drop(admission.try_admit(permits(&gate, 1)).unwrap());
    let grant = waiter.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), secs(10));
    assert_eq!(polls.load(Ordering::Relaxed), 2);
    drop(grant);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn i2_a_hold_is_only_ever_extended() {
    let admission = started();
    let observer = Observer::of(&admission);
    let bucket = bucket(600, 60_000);
    let start = Instant::now();
    for after in [5, 10, 3] {
        bucket.record_failure(&too_many(Some(secs(after))));
    }
    assert_eq!(bucket.status().held_until, Some(start + secs(10)));
    let mut waiter = parked(&admission, tokens_of(&bucket, 1));
    pass_time(secs(1)).await;
    bucket.record_failure(&too_many(Some(secs(2))));
    assert_eq!(bucket.status().held_until, Some(start + secs(10)));
    assert_eq!(bucket.status().throttle, 2.0);
    pass_time(secs(9) - millis(1)).await;
    assert!(!waiter.is_woken());
    pass_time(millis(1)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), secs(10));
    assert_eq!(bucket.status().held_until, None);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn i3_after_a_hold_no_more_go_than_came_in_meanwhile() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let bucket = bucket(600, 60_000);
    let requests = Amount { requests: 600, units: 0 };
    drop(admission.try_admit(Demand::new().add(&bucket, requests)).unwrap());
    bucket.record_failure(&too_many(Some(secs(10))));
    let mut line: Vec<_> = (0..100).map(|_| parked(&admission, tokens_of(&bucket, 1))).collect();
    pass_time(secs(10) - millis(1)).await;
    assert!(line.iter().all(|waiter| !waiter.is_woken()));
    observer.nobody_could_go(&vec![tokens_of(&bucket, 1); 100]);
    pass_time(millis(1)).await;
    let went = line.iter().filter(|waiter| waiter.is_woken()).count();
    assert_eq!(went, 66, "a throttled minute has 400 requests");
    pass_time(secs(5)).await;
    for (k, waiter) in (1..).zip(&mut line) {
        // One for 150 ms, in order, from the refusal on.
        let right = millis(150 * k).max(secs(10));
        assert_eq!(granted(waiter).wall_wait(), right, "{k}");
    }
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn i4_a_failure_weighs_by_its_status_whatever_it_says() {
    let says_when = Some(secs(1));
    let cases = [
        (Some(429), None, 0.5),
        (Some(429), says_when, 0.5),
        (Some(529), None, 1.5),
        (Some(529), says_when, 1.5),
        (Some(503), says_when, 1.5),
        (Some(503), None, 0.0),
        (Some(500), None, 0.0),
        (Some(500), says_when, 0.0),
        (Some(502), None, 0.0),
        (None, None, 0.0),
    ];
    let long = "é".repeat(10_000);
    for (status, retry_after, right) in cases {
        for message in ["", "overloaded", "rate limit exceeded: 429", "HTTP 529", "\u{0}\n", &long]
        {
            let admission = started();
            let observer = Observer::of(&admission);
            let failure = match status {
                Some(status) => UpstreamFailure::status(status, "upstream", message),
                None => UpstreamFailure::no_response("upstream", message),
            };
            let failure = match retry_after {
                Some(after) => failure.with_retry_after(after),
                None => failure,
            };
            let bucket: Arc<TokenBucket> = bucket(600, 60_000);
            let grant = admission.try_admit(tokens_of(&bucket, 1)).unwrap();
            assert!(grant.report_failure(&bucket, &failure));
            assert_eq!(bucket.status().throttle, right, "{failure}");
            drop(grant);
            observer.all_gone();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn i7_one_storm_of_refusals_counts_once() {
    let admission = started();
    let observer = Observer::of(&admission);
    let bucket = bucket(600, 60_000);
    let mut jobs = Vec::new();
    for _ in 0..50 {
        jobs.push(admission.try_admit(tokens_of(&bucket, 10)).unwrap());
        pass_time(millis(20)).await;
    }
    pass_time(secs(1)).await;
    for job in jobs {
        assert!(job.report_failure(&bucket, &too_many(None)));
        assert_eq!(bucket.status().throttle, 0.5);
        pass_time(millis(2)).await;
    }
    pass_time(millis(900)).await;
    let later = admission.try_admit(tokens_of(&bucket, 10)).unwrap();
    pass_time(secs(2)).await;
    assert!(later.report_failure(&bucket, &too_many(None)));
    assert_eq!(bucket.status().throttle, 1.0);
    drop(later);
    observer.all_gone();
}
