//! Time.

use std::time::Duration;

use admit::{AdmitError, Amount, Demand, RejectReason};
use tokio::time::Instant;
use tokio_test::task::spawn;

use crate::support::*;

const TEN_YEARS: Duration = secs(10 * 365 * 86_400);

#[tokio::test(start_paused = true)]
async fn e1_ten_idle_hours_fill_a_bucket_once() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let bucket = bucket(60, 60);
    drop(admission.admit(tokens_of(&bucket, 60)).await.unwrap());
    pass_time(secs(36_000)).await;
    observer.look();
    let start = Instant::now();
    for _ in 0..60 {
        drop(admission.try_admit(tokens_of(&bucket, 1)).unwrap());
    }
    let waiting: Vec<_> = (60..100).map(|_| parked(&admission, tokens_of(&bucket, 1))).collect();
    for (k, mut waiter) in (1..).zip(waiting) {
        observer.look();
        pass_time(secs(1)).await;
        assert_eq!(granted(&mut waiter).wall_wait(), secs(k));
    }
    assert_eq!(start.elapsed(), secs(40));
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e1_ten_idle_years_fill_the_largest_bucket_and_no_more() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let bucket = bucket(u32::MAX, u64::MAX - 1);
    drop(admission.try_admit(tokens_of(&bucket, 1)).unwrap());
    observer.look();
    tokio::time::advance(TEN_YEARS).await;
    observer.look();
    drop(admission.try_admit(tokens_of(&bucket, u64::MAX - 1)).unwrap());
    let status = bucket.status();
    assert_eq!((status.available_tokens, status.debt_tokens), (0, 0));
    assert_eq!(status.available_requests, u32::MAX - 1);
    assert_short_of(&would_wait(admission.try_admit(tokens_of(&bucket, 1))), &[&*bucket]);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e2_only_the_missing_token_is_waited_for() {
    for (cap, left, wants, millis) in [(60, 2, 3, 1_000), (60, 2, 60, 58_000), (6_000, 5, 6, 10)] {
        let admission = started();
        let mut observer = Observer::of(&admission);
        let bucket = bucket(60, cap);
        drop(admission.try_admit(tokens_of(&bucket, cap - left)).unwrap());
        observer.look();
        let mut waiter = parked(&admission, tokens_of(&bucket, wants));
        observer.nobody_could_go(&[tokens_of(&bucket, wants)]);
        let wait = Duration::from_millis(millis);
        pass_time(wait - Duration::from_millis(1)).await;
        assert!(!waiter.is_woken());
        pass_time(Duration::from_millis(1)).await;
        assert_eq!(granted(&mut waiter).wall_wait(), wait);
        observer.all_gone();
    }
}

/// An hour of a line on a bucket, of which `read` is spent reading it: who waited how long.
async fn an_hour(read: Duration) {
    const WAITERS: u64 = 2_000;
    let admission = started();
    let bucket = bucket(20, 20_000);
    let mut at_once = 0;
    let mut line = Vec::new();
    for _ in 0..WAITERS {
        let mut admit = spawn(admission.admit(tokens_of(&bucket, 1)));
        match admit.poll() {
            std::task::Poll::Ready(grant) => {
                drop(grant.unwrap());
                at_once += 1;
            }
            std::task::Poll::Pending => line.push(admit),
        }
    }
    assert_eq!(at_once, 20);
    let start = Instant::now();
    while start.elapsed() < read {
        tokio::time::sleep(millis(1)).await;
        assert!(bucket.status().available_requests <= 1);
    }
    tokio::time::sleep_until(start + secs(3_600)).await;
    settle().await;
    for (k, waiter) in (1..).zip(&mut line[..1_200]) {
        if k % 64 == 0 {
            // Each result takes from this task's budget.
            settle().await;
        }
        assert_eq!(granted(waiter).wall_wait(), secs(3 * k));
    }
    assert_eq!(admission.queue_len(), 780);
    assert!(line[1_200..].iter().all(|waiter| !waiter.is_woken()));
    drop(line);
    Observer::of(&admission).all_gone();
}

#[tokio::test(start_paused = true)]
async fn e3_a_bucket_lets_one_go_every_three_seconds() {
    an_hour(Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn e3_a_bucket_that_is_read_all_the_time_does_the_same() {
    an_hour(secs(3_600)).await;
}

#[tokio::test(start_paused = true)]
async fn e4_ten_million_takes_drift_by_less_than_one_token() {
    const TAKES: u32 = 10_000_000;
    let admission = started();
    let bucket = bucket(60_000, 60_000);
    let all = Amount { requests: 60_000, units: 60_000 };
    drop(admission.try_admit(Demand::new().add(&bucket, all)).unwrap());
    let one = tokens_of(&bucket, 1);
    for _ in 0..TAKES {
        tokio::time::advance(Duration::from_nanos(1_000_003)).await;
        drop(admission.try_admit(one.clone()).expect("every take succeeds"));
    }
    let status = bucket.status();
    assert!((29..=31).contains(&status.available_tokens), "{status}");
    assert!((29..=31).contains(&status.available_requests), "{status}");
    Observer::of(&admission).all_gone();
}

#[tokio::test(start_paused = true)]
async fn e6_a_debt_of_ages_times_out_and_is_forgotten_by_a_rollback() {
    let admission = started();
    let observer = Observer::of(&admission);
    let bucket = bucket(600, 60_000);
    let start = Instant::now();
    drop(admission.try_admit(tokens_of(&bucket, 30_000)).unwrap());
    let absurd = admission.try_admit(tokens_of(&bucket, 4_000)).unwrap();
    assert!(absurd.reconcile(&bucket, u64::MAX / 2));
    assert_eq!(bucket.status().available_tokens, 0);
    let (late, polls) = counted(admission.admit(tokens_of(&bucket, 1)).within(secs(1)));
    let error = late.await.unwrap_err();
    assert!(matches!(error, AdmitError::TimedOut { waited, .. } if waited == secs(1)), "{error}");
    assert_eq!(start.elapsed(), secs(1));
    let polls = polls.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(polls, 2, "it was polled once to wait and once for its outcome");
    assert!(absurd.rollback());
    let status = bucket.status();
    assert_eq!((status.available_tokens, status.debt_tokens), (31_000, 0));
    assert_eq!(status.available_requests, 600);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e7_passes_neither_shorten_nor_restart_a_time_limit() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let (other, bucket) = (gate(1), drained_bucket(&admission, 600, 60_000));
    let limited = admission.admit(tokens_of(&bucket, 60_000)).within(secs(5));
    pass_time(secs(1)).await;
    // Counted from here, where it is polled first.
    let mut limited = spawn(limited);
    assert!(limited.poll().is_pending());
    for _ in 0..1_000 {
        drop(admission.try_admit(permits(&other, 1)).unwrap());
        pass_time(millis(5)).await;
    }
    let error = landed(&mut limited).unwrap_err();
    assert!(matches!(error, AdmitError::TimedOut { waited, .. } if waited == secs(5)), "{error}");
    assert_eq!(observer.rejected(&*bucket, RejectReason::TimedOut), 1);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e7_a_rollback_in_time_grants_at_once() {
    let admission = started();
    let observer = Observer::of(&admission);
    let (other, bucket) = (gate(1), bucket(600, 60_000));
    let all = admission.try_admit(tokens_of(&bucket, 60_000)).unwrap();
    let mut limited = park(admission.admit(tokens_of(&bucket, 60_000)).within(secs(5)));
    for _ in 0..1_000 {
        drop(admission.try_admit(permits(&other, 1)).unwrap());
        pass_time(millis(3)).await;
    }
    assert!(!limited.is_woken());
    all.rollback();
    settle().await;
    assert_eq!(granted(&mut limited).wall_wait(), secs(3));
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e8_no_time_at_all_means_now_or_not_at_all() {
    let admission = started();
    let observer = Observer::of(&admission);
    let gate = gate(1);
    let now = |demand| spawn(admission.admit(demand).within(Duration::ZERO)).poll();
    let std::task::Poll::Ready(Ok(held)) = now(permits(&gate, 1)) else { panic!("it fits") };
    let std::task::Poll::Ready(Err(error)) = now(permits(&gate, 1)) else { panic!("at once") };
    let AdmitError::TimedOut { waited, shortages } = error else { panic!("{error}") };
    assert_eq!(waited, Duration::ZERO);
    assert_short_of(&shortages, &[&*gate]);
    assert_eq!(admission.queue_len(), 0);
    drop(held);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e8_the_longest_time_there_is_is_no_limit() {
    let admission = started();
    let observer = Observer::of(&admission);
    let gate = gate(1);
    let held = admission.admit(permits(&gate, 1)).within(Duration::MAX).await.unwrap();
    let mut waiter = park(admission.admit(permits(&gate, 1)).within(Duration::MAX));
    pass_time(secs(400 * 86_400)).await;
    assert!(!waiter.is_woken());
    drop(held);
    settle().await;
    assert_eq!(granted(&mut waiter).wall_wait(), secs(400 * 86_400));
    observer.all_gone();
}
