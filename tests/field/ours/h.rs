//! H. Token accounting: corrections of several grants, in debt, under a hold, and after the end.

use std::time::Duration;

use admit::{Amount, Demand, UpstreamFailure};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn h_a_job_that_used_nothing_gets_its_tokens_back_and_not_its_request() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let b = bucket(10, 1_000);
    let grant = admission.try_admit(tokens_of(&b, 400)).unwrap();
    assert!(grant.reconcile(&b, 0));
    watch.credited(&*b, 400);
    assert_eq!((b.status().available_tokens, b.status().available_requests), (1_000, 9));
    drop(grant);
    assert_eq!((b.status().available_tokens, b.status().available_requests), (1_000, 9));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn h_what_was_used_beyond_the_budget_is_owed_and_paid_by_the_clock() {
    let admission = started();
    let watch = Observer::of(&admission);
    let b = bucket(600, 60);
    let grant = admission.try_admit(tokens_of(&b, 60)).unwrap();
    grant.reconcile(&b, 100);
    assert_eq!((b.status().available_tokens, b.status().debt_tokens), (0, 40));
    pass_time(secs(40)).await;
    assert_eq!((b.status().available_tokens, b.status().debt_tokens), (0, 0));
    pass_time(secs(1)).await;
    assert_eq!(b.status().available_tokens, 1);
    drop(grant);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn h_a_rollback_returns_what_was_owed_as_well() {
    let admission = started();
    let watch = Observer::of(&admission);
    let b = bucket(600, 60);
    let one = admission.try_admit(tokens_of(&b, 10)).unwrap();
    let other = admission.try_admit(tokens_of(&b, 50)).unwrap();
    one.reconcile(&b, 500);
    assert_eq!(b.status().debt_tokens, 490);
    one.rollback();
    assert_eq!((b.status().available_tokens, b.status().debt_tokens), (10, 0));
    drop(other);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn h_corrections_of_two_grants_do_not_mix() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let b = bucket(10, 1_000);
    let (one, other) = (
        admission.try_admit(tokens_of(&b, 300)).unwrap(),
        admission.try_admit(tokens_of(&b, 500)).unwrap(),
    );
    assert!(one.reconcile(&b, 100) && other.reconcile(&b, 600));
    watch.credited(&*b, 200);
    assert_eq!(b.status().available_tokens, 300);
    other.rollback();
    assert_eq!(b.status().available_tokens, 900);
    one.rollback();
    assert_eq!(b.status().available_tokens, 1_000);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn h_two_models_of_one_grant_are_corrected_apart() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let (p, q) = (bucket(10, 1_000), bucket(10, 1_000));
    let grant = admission.try_admit(tokens_of(&p, 700).tokens(&q, 700)).unwrap();
    assert!(grant.reconcile(&q, 200));
    watch.credited(&*q, 500);
    assert_eq!((p.status().available_tokens, q.status().available_tokens), (300, 800));
    assert!(grant.reconcile(&p, 900));
    assert_eq!((p.status().available_tokens, q.status().available_tokens), (100, 800));
    drop(grant);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn h_usage_told_after_the_release_still_counts_and_serves_who_waits() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let b = bucket(10, 1_000);
    let grant = admission.try_admit(tokens_of(&b, 1_000)).unwrap();
    let mut waiter = parked(&admission, tokens_of(&b, 250));
    grant.release();
    settle().await;
    assert!(!waiter.is_woken());
    assert!(grant.reconcile(&b, 750));
    watch.credited(&*b, 250);
    settle().await;
    assert_eq!(granted(&mut waiter).wall_wait(), Duration::ZERO);
    drop(grant);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn h_a_correction_on_an_account_the_grant_does_not_name_does_nothing() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (b, stranger, g) = (bucket(10, 1_000), bucket(10, 1_000), gate(1));
    let grant = admission.try_admit(tokens_of(&b, 400)).unwrap();
    assert!(!grant.reconcile(&stranger, 1) && !grant.reconcile(&g, 1));
    assert_eq!((b.status().available_tokens, stranger.status().available_tokens), (600, 1_000));
    drop(grant);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn h_what_a_correction_frees_is_the_heads_first() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let b = bucket(10, 1_000);
    let grant = admission.try_admit(tokens_of(&b, 1_000)).unwrap();
    let mut head = parked(&admission, tokens_of(&b, 600));
    let mut small = parked(&admission, tokens_of(&b, 100));
    assert!(grant.reconcile(&b, 500));
    watch.credited(&*b, 500);
    settle().await;
    assert!(!head.is_woken() && !small.is_woken(), "500 are there, and they are the head's");
    assert!(grant.reconcile(&b, 300));
    watch.credited(&*b, 200);
    settle().await;
    drop((granted(&mut head), granted(&mut small)));
    assert_eq!(b.status().available_tokens, 0);
    drop(grant);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn h_what_a_correction_frees_under_a_hold_waits_for_its_end() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let b = bucket(10, 1_000);
    let grant = admission.try_admit(tokens_of(&b, 1_000)).unwrap();
    let mut waiter = parked(&admission, tokens_of(&b, 200));
    let failure = UpstreamFailure::status(500, "upstream", "").with_retry_after(secs(20));
    assert!(grant.report_failure(&b, &failure));
    assert!(grant.reconcile(&b, 0));
    watch.credited(&*b, 1_000);
    pass_time(secs(20) - millis(1)).await;
    assert!(!waiter.is_woken());
    pass_time(millis(1)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), secs(20));
    drop(grant);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn h_requests_are_spent_whatever_becomes_of_the_tokens() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let b = bucket(3, 1_000);
    for left in (0..3).rev() {
        let grant = admission.try_admit(tokens_of(&b, 100)).unwrap();
        grant.reconcile(&b, 0);
        watch.credited(&*b, 100);
        drop(grant);
        assert_eq!(b.status().available_requests, left);
    }
    assert_short_of(&would_wait(admission.try_admit(tokens_of(&b, 1))), &[&*b]);
    // Several requests of one job come back together when it never happened.
    pass_time(secs(60)).await;
    let three = Demand::new().add(&b, Amount { requests: 3, units: 10 });
    admission.try_admit(three.clone()).unwrap().rollback();
    drop(admission.try_admit(three).unwrap());
    watch.all_gone();
}
