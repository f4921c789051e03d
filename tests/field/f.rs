//! Impossible and zero amounts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use admit::{
    Account, AccountLink, Admission, AdmitError, Amount, CountingGate, Demand, Limits, TokenBucket,
    TryAdmitError, Turn, Valve,
};
use tokio::time::Instant;
use tokio_test::task::spawn;

use crate::support::*;

/// The text of a refusal at the first poll, without the name of the account it comes from.
fn refused(admission: &Admission, demand: Demand, by: &dyn Account) -> String {
    let first = spawn(admission.admit(demand)).poll();
    let Poll::Ready(Err(error)) = first else { panic!("not refused at once: {first:?}") };
    assert!(!error.is_retryable());
    let text = error.to_string();
    let AdmitError::Refused { account, .. } = error else { panic!("{error}") };
    assert_eq!(account, *by.link().name());
    assert!(text.contains(&*account), "{text}");
    text.replace(&*account, "it")
}

#[tokio::test(start_paused = true)]
async fn f1_more_than_a_minute_allows_is_refused_at_once_and_debits_nothing() {
    let admission = started();
    let observer = Observer::of(&admission);
    let (full, bucket) = (gate(1), bucket(600, 100));
    let held = admission.try_admit(permits(&full, 1)).unwrap();
    let demands = [
        tokens_of(&bucket, 101),
        tokens_of(&bucket, 101).permit(&full),
        permits(&full, 1).tokens(&bucket, 101),
    ];
    for demand in demands {
        let text = refused(&admission, demand.clone(), &*bucket);
        assert!(text.contains("101 tokens") && text.contains(" 100 tokens"), "{text}");
        let now = admission.try_admit(demand).unwrap_err();
        assert!(matches!(now, TryAdmitError::Admit(AdmitError::Refused { .. })), "{now}");
    }
    let status = bucket.status();
    assert_eq!((status.available_tokens, status.available_requests), (100, 600));
    assert_eq!(full.status().active, 1);
    assert_eq!(admission.queue_len(), 0);
    drop(held);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f1_short_now_is_not_impossible() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let bucket = drained_bucket(&admission, 600, 100);
    observer.look();
    let grant = admission.admit(tokens_of(&bucket, 100)).await.unwrap();
    assert_eq!(grant.wall_wait(), secs(60));
    drop(grant);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f2_two_that_never_fit_together_go_in_turn() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let gate = gate(10);
    let full = admission.try_admit(permits(&gate, 10)).unwrap();
    let mut head = parked(&admission, permits(&gate, 8));
    let mut next = parked(&admission, permits(&gate, 8));
    settle().await;
    observer.nobody_could_go(&[permits(&gate, 8), permits(&gate, 8)]);
    drop(full);
    settle().await;
    let first = granted(&mut head);
    assert!(!next.is_woken());
    observer.nobody_could_go(&[permits(&gate, 8)]);
    drop(first);
    settle().await;
    drop(granted(&mut next));
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f3_an_account_named_twice_is_asked_for_the_sum() {
    let admission = started();
    let observer = Observer::of(&admission);
    let (gate, bucket) = (gate(2), bucket(600, 100));
    let twice = permits(&gate, 1).permit(&gate);
    assert_eq!(twice.entries().len(), 1);
    assert_eq!(twice.entries()[0].amount(), Amount::permits(2));
    let grant = admission.admit(twice.clone()).await.unwrap();
    assert_eq!(gate.status().active, 2);
    drop(grant);

    let text = refused(&admission, twice.permit(&gate), &*gate);
    assert!(text.contains("3 permits") && text.contains("2 permits"), "{text}");

    let endless = tokens_of(&bucket, u64::MAX).tokens(&bucket, 1);
    assert_eq!(endless.entries()[0].amount().units, u64::MAX);
    refused(&admission, endless, &*bucket);
    assert_eq!(bucket.status().available_tokens, 100);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f4_nothing_of_a_full_gate_is_granted_and_debits_nothing() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let gate = gate(1);
    let nothing = Demand::new().add(&gate, Amount::NONE);
    let held = admission.try_admit(permits(&gate, 1)).unwrap();
    let Poll::Ready(Ok(grant)) = spawn(admission.admit(nothing.clone())).poll() else {
        panic!("nothing always fits")
    };
    assert_eq!(gate.status().active, 1);
    drop(grant);
    assert_eq!(gate.status().active, 1);

    let mut head = parked(&admission, permits(&gate, 1));
    let mut behind = parked(&admission, nothing.clone());
    settle().await;
    observer.nobody_could_go(&[permits(&gate, 1), nothing]);
    drop(held);
    settle().await;
    drop((granted(&mut head), granted(&mut behind)));
    observer.all_gone();
}

/// A memory gate that is told whether it is willing.
struct Scripted {
    link: AccountLink,
    willing: AtomicBool,
}

impl Valve for Scripted {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn look(&self, _: Instant) {}

    fn willing(&self, _: Turn, _: Instant) -> bool {
        self.willing.load(Ordering::Relaxed)
    }

    fn released(&self, _: Instant) {}

    fn completed(&self, _: Instant) -> bool {
        true
    }

    fn rolled_back(&self, _: Instant) {}

    fn earliest(&self, _: Turn, now: Instant) -> Option<Instant> {
        Some(now + secs(2))
    }

    fn capacity(&self) -> u64 {
        100
    }

    fn in_use(&self) -> u64 {
        96
    }

    fn summary(&self, _: Instant) -> String {
        "as told".to_owned()
    }
}

#[tokio::test(start_paused = true)]
async fn f4_nothing_of_a_gate_still_meets_memory() {
    let link = AccountLink::new("memory").unwrap();
    let valve = Arc::new(Scripted { link, willing: AtomicBool::new(false) });
    let admission = Admission::builder().memory_gate(valve.clone()).start().unwrap();
    let observer = Observer::of(&admission);
    let gate = gate(1);
    let mut waiter = parked(&admission, Demand::new().add(&gate, Amount::NONE));
    pass_time(secs(1)).await;
    valve.willing.store(true, Ordering::Relaxed);
    pass_time(secs(1)).await;
    let grant = granted(&mut waiter);
    assert_eq!(&*grant.wait_times()[0].account, "memory");
    drop(grant);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f5_a_limit_of_nothing_is_no_limit_to_configure() {
    let admission = started();
    let observer = Observer::of(&admission);
    let error = CountingGate::new("none", 0).unwrap_err();
    assert_eq!((error.field, &*error.value), ("capacity", "0"));
    assert!(error.to_string().contains("capacity"), "{error}");
    let bucket = |requests, tokens| TokenBucket::new("none", Limits::per_minute(requests, tokens));
    assert_eq!(bucket(0, 1).unwrap_err().field, "requests_per_minute");
    assert_eq!(bucket(1, 0).unwrap_err().field, "tokens_per_minute");

    let gate = gate(3);
    let held = admission.try_admit(permits(&gate, 2)).unwrap();
    assert_eq!(gate.resize(0).unwrap_err().field, "capacity");
    let status = gate.status();
    assert_eq!((status.max_concurrent, status.active), (3, 2));
    drop((held, admission.try_admit(permits(&gate, 1)).unwrap()));
    observer.all_gone();
}
