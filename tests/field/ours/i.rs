//! I. 429 and Retry-After, with somebody waiting, through several admissions and accounts.

use std::time::Duration;

use admit::{AdmitError, UpstreamFailure};
use tokio::time::Instant;

use super::{slots, window};
use crate::support::*;
use crate::windows::too_many;

#[tokio::test(start_paused = true)]
async fn i_a_429_makes_whoever_waits_wait_half_as_long_again() {
    let admission = started();
    let watch = Observer::of(&admission);
    let b = bucket(600, 60);
    let grant = admission.try_admit(tokens_of(&b, 60)).unwrap();
    let mut waiter = parked(&admission, tokens_of(&b, 20));
    assert!(grant.report_failure(&b, &too_many()));
    pass_time(secs(30) - millis(1)).await;
    assert!(!waiter.is_woken());
    pass_time(millis(1)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), secs(30));
    drop(grant);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn i_the_third_success_brings_the_instant_of_who_waits_nearer() {
    let admission = started();
    let watch = Observer::of(&admission);
    let b = bucket(600, 60);
    let grant = admission.try_admit(tokens_of(&b, 60)).unwrap();
    b.record_429();
    let mut waiter = parked(&admission, tokens_of(&b, 20));
    for _ in 0..3 {
        assert!(grant.report_success(&b));
    }
    assert!((b.status().throttle - 0.3).abs() < 1e-9);
    pass_time(secs(26) - millis(1)).await;
    assert!(!waiter.is_woken());
    pass_time(millis(1)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), secs(26));
    drop(grant);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn i_a_quota_that_is_used_up_slows_nobody_down() {
    let admission = started();
    let watch = Observer::of(&admission);
    let b = bucket(600, 60_000);
    let grant = admission.try_admit(tokens_of(&b, 100)).unwrap();
    let failure = UpstreamFailure::status(429, "upstream", "insufficient_quota");
    assert!(!failure.is_retryable());
    assert!(grant.report_failure(&b, &failure));
    assert_eq!(b.status().throttle, 0.0);
    drop(admission.try_admit(tokens_of(&b, 1)).unwrap());
    drop(grant);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn i_a_hold_told_through_one_admission_holds_in_every_other() {
    let (one, other) = (started(), started());
    let (watch, second_watch) = (Observer::of(&one), Observer::of(&other));
    let b = bucket(600, 60_000);
    let grant = one.try_admit(tokens_of(&b, 100)).unwrap();
    assert!(grant.report_failure(&b, &too_many().with_retry_after(secs(5))));
    let mut line = [&one, &other].map(|admission| parked(admission, tokens_of(&b, 1)));
    pass_time(secs(5) - millis(1)).await;
    assert!(line.iter().all(|waiter| !waiter.is_woken()));
    pass_time(millis(1)).await;
    drop(line.each_mut().map(granted));
    drop(grant);
    watch.all_gone();
    second_watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn i_a_hold_told_while_somebody_waits_puts_him_off() {
    let admission = started();
    let watch = Observer::of(&admission);
    let b = drained_bucket(&admission, 600, 60);
    let mut waiter = parked(&admission, tokens_of(&b, 5));
    pass_time(secs(4)).await;
    b.record_failure(&UpstreamFailure::status(500, "upstream", "").with_retry_after(secs(10)));
    pass_time(secs(10) - millis(1)).await;
    assert!(!waiter.is_woken());
    pass_time(millis(1)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), secs(14));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn i_who_has_less_time_than_the_hold_lasts_is_told_when_it_ends() {
    let admission = started();
    let watch = Observer::of(&admission);
    let b = bucket(600, 60_000);
    let start = Instant::now();
    b.record_failure(&too_many().with_retry_after(secs(30)));
    let error = admission.admit(tokens_of(&b, 1)).within(secs(10)).await.unwrap_err();
    assert!(matches!(error, AdmitError::TimedOut { waited, .. } if waited == secs(10)), "{error}");
    assert_eq!(error.retry_at(), Some(start + secs(30)));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn i_a_report_after_the_end_is_not_heard() {
    let admission = started();
    let watch = Observer::of(&admission);
    let b = bucket(600, 60_000);
    let grant = admission.try_admit(tokens_of(&b, 100)).unwrap();
    grant.release();
    assert!(!grant.report_failure(&b, &too_many().with_retry_after(secs(30))));
    assert_eq!((b.status().throttle, b.status().held_until), (0.0, None));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn i_one_report_reaches_bucket_and_window_and_no_gate() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (g, b, w) = (gate(1), bucket(600, 60_000), window(5, secs(1)));
    let grant = admission.try_admit(tokens_of(&b, 100).permit(&g).permit(&w)).unwrap();
    assert!(grant.report_failure_all(&too_many().with_retry_after(secs(7))));
    assert_eq!((b.status().throttle, w.status().throttle), (0.5, 1.0));
    drop(grant);
    drop(admission.try_admit(permits(&g, 1)).unwrap());
    drop(admission.try_admit(slots(&w, 1)).unwrap());
    drop(would_wait(admission.try_admit(tokens_of(&b, 1))));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn i_what_is_told_directly_counts_every_time_and_stops_at_the_most() {
    let admission = started();
    let watch = Observer::of(&admission);
    let b = drained_bucket(&admission, 600, 60);
    for _ in 0..100 {
        b.record_429();
    }
    assert_eq!(b.status().throttle, 9.0);
    let mut waiter = parked(&admission, tokens_of(&b, 1));
    pass_time(secs(10) - millis(1)).await;
    assert!(!waiter.is_woken());
    pass_time(millis(1)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), secs(10));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn i_a_held_head_keeps_nobody_from_another_bucket() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (held, free, g) = (bucket(600, 60_000), bucket(600, 60_000), gate(2));
    held.record_failure(&too_many().with_retry_after(secs(60)));
    let mut head = parked(&admission, tokens_of(&held, 1).permit(&g));
    for _ in 0..10 {
        let grant = admission.try_admit(tokens_of(&free, 10).permit(&g)).unwrap();
        drop(would_wait(admission.try_admit(permits(&g, 1))));
        drop(grant);
    }
    pass_time(secs(60)).await;
    assert_eq!(granted(&mut head).wall_wait(), Duration::from_secs(60));
    watch.all_gone();
}
