//! Changing limits.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use admit::{
    Account, AccountLink, Admission, AdmitError, Amount, Ask, Category, Charge, Limits, Refusal,
    RejectReason, Replenishment, TokenBucket,
};
use tokio::task::coop::unconstrained;
use tokio::time::Instant;

use crate::support::*;

/// A waker that notes whose it is when it wakes.
struct Numbered {
    number: u32,
    woken: Arc<Mutex<Vec<u32>>>,
}

impl Wake for Numbered {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap().push(self.number);
    }
}

#[tokio::test(start_paused = true)]
async fn g1_a_gate_that_grows_lets_everybody_go_in_order() {
    const WAITERS: u32 = 100_000;
    let admission = started();
    let gate = gate(1);
    let held = admission.try_admit(permits(&gate, 1)).unwrap();
    let woken = Arc::new(Mutex::new(Vec::new()));
    let one = permits(&gate, 1);
    let mut line: Vec<_> = (0..WAITERS)
        .map(|number| {
            let waker = Waker::from(Arc::new(Numbered { number, woken: Arc::clone(&woken) }));
            let mut admit = Box::pin(admission.admit(one.clone()));
            assert!(admit.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            (admit, waker)
        })
        .collect();
    let before = Instant::now();
    gate.resize(WAITERS + 1).unwrap();
    // The evaluator lets go of the lock now and then; the clock stands still.
    for _ in 0..100 {
        settle().await;
    }
    assert_eq!(Instant::now(), before);
    assert_eq!(*woken.lock().unwrap(), (0..WAITERS).collect::<Vec<_>>());
    assert_eq!(gate.status().active, WAITERS + 1);
    assert_eq!(admission.queue_len(), 0);
    let grants = line.iter_mut().map(|(admit, waker)| {
        // Results take from a task's budget, and this one takes them all at once.
        let mut admit = std::pin::pin!(unconstrained(admit.as_mut()));
        match admit.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(grant) => grant.unwrap(),
            Poll::Pending => panic!("it was woken for nothing"),
        }
    });
    let grants: Vec<_> = grants.collect();
    drop((grants, held));
    Observer::of(&admission).all_gone();
}

#[tokio::test(start_paused = true)]
async fn g2_a_gate_that_shrinks_below_what_is_held_lets_nobody_go_until_it_is_below() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let gate = gate(10);
    let mut held: Vec<_> =
        (0..10).map(|_| admission.try_admit(permits(&gate, 1)).unwrap()).collect();
    let mut waiter = parked(&admission, permits(&gate, 1));
    gate.resize(2).unwrap();
    observer.shrunk(&*gate);
    for releases in 1..=8 {
        assert_eq!(gate.status().available_permits, 0);
        held.pop();
        settle().await;
        assert!(!waiter.is_woken(), "after {releases}");
        observer.nobody_could_go(&[permits(&gate, 1)]);
    }
    held.pop();
    settle().await;
    let grant = granted(&mut waiter);
    assert_eq!((gate.status().active, gate.status().available_permits), (2, 0));
    drop((held, grant));
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn g3_a_gate_that_shrinks_refuses_at_once_who_never_fits_any_more() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let gate = gate(10);
    let mut held: Vec<_> =
        (0..10).map(|_| admission.try_admit(permits(&gate, 1)).unwrap()).collect();
    let mut head = parked(&admission, permits(&gate, 8));
    let mut next = parked(&admission, permits(&gate, 1));
    gate.resize(4).unwrap();
    observer.shrunk(&*gate);
    settle().await;
    let error = landed(&mut head).unwrap_err();
    let text = error.to_string().replace(&**gate.link().name(), "it");
    assert!(matches!(error, AdmitError::Refused { .. }), "{text}");
    assert!(text.contains("8 permits") && text.contains("4 permits"), "{text}");
    assert_eq!(observer.rejected(&*gate, RejectReason::CircuitBlocked), 1);
    assert!(!next.is_woken());
    assert_eq!(admission.queue_len(), 1);
    observer.nobody_could_go(&[permits(&gate, 1)]);
    held.truncate(4);
    settle().await;
    assert!(!next.is_woken());
    held.pop();
    settle().await;
    drop((granted(&mut next), held));
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn g4_a_raised_budget_adds_nothing_now_and_a_lowered_one_cuts() {
    let admission = started();
    let observer = Observer::of(&admission);
    let empty = drained_bucket(&admission, 600, 60_000);
    empty.set_limits(Limits::per_minute(600, 120_000)).unwrap();
    assert_eq!(empty.status().available_tokens, 0);

    let bucket = bucket(600, 60_000);
    drop(admission.try_admit(tokens_of(&bucket, 10_000)).unwrap());
    bucket.set_limits(Limits::per_minute(600, 10_000)).unwrap();
    assert_eq!(bucket.status().available_tokens, 10_000);
    bucket.set_limits(Limits::per_minute(600, 60_000)).unwrap();
    assert_eq!(bucket.status().available_tokens, 10_000);
    observer.all_gone();
}

/// An account that fits nobody and counts how often it is asked.
struct Asked {
    link: AccountLink,
    asked: AtomicUsize,
}

impl Account for Asked {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn category(&self) -> Category {
        Category::Other("asked".into())
    }

    fn capacity(&self) -> u64 {
        1
    }

    fn in_use(&self, _: Instant) -> u64 {
        0
    }

    fn summary(&self, _: Instant) -> String {
        "closed".to_owned()
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn fits(&self, _: &Ask) -> Result<bool, Refusal> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(false)
    }

    fn try_take(&self, _: &Ask) -> Result<Option<Instant>, Refusal> {
        Ok(None)
    }

    fn give(&self, _: &Charge, _: Instant) -> Amount {
        Amount::NONE
    }

    fn earliest_fit(&self, _: &Ask) -> Option<Instant> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn g4_an_unchanged_pair_of_limits_is_no_event() {
    let admission = started();
    let observer = Observer::of(&admission);
    let bucket = drained_bucket(&admission, 600, 60_000);
    let link = AccountLink::new("asked").unwrap();
    let asked = Arc::new(Asked { link, asked: AtomicUsize::new(0) });
    let waiter = parked(&admission, tokens_of(&bucket, 1).permit(&asked));
    settle().await;
    let before = asked.asked.load(Ordering::Relaxed);
    assert!(before > 0);
    for _ in 0..100_000 {
        bucket.set_limits(Limits::per_minute(600, 60_000)).unwrap();
    }
    settle().await;
    assert_eq!(asked.asked.load(Ordering::Relaxed), before);
    assert!(!waiter.is_woken());
    assert_eq!(bucket.status().available_tokens, 0);
    bucket.set_limits(Limits::per_minute(600, 60_001)).unwrap();
    settle().await;
    assert!(asked.asked.load(Ordering::Relaxed) > before, "a change is an event");
    drop(waiter);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn g5_a_raised_budget_fills_faster_for_who_waits_already() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let bucket = drained_bucket(&admission, 600, 60);
    observer.look();
    let mut waiter = parked(&admission, tokens_of(&bucket, 60));
    settle().await;
    bucket.set_limits(Limits::per_minute(600, 6_000)).unwrap();
    pass_time(millis(599)).await;
    assert!(!waiter.is_woken());
    pass_time(millis(1)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), millis(600));
    observer.all_gone();
}

/// A waiter of half the budget on a drained bucket; `slow` at ten seconds; granted at `right`.
async fn slowed(slow: impl FnOnce(&Admission, &TokenBucket), right: u64) {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let bucket = drained_bucket(&admission, 600, 60_000);
    observer.look();
    let mut waiter = parked(&admission, tokens_of(&bucket, 30_000));
    pass_time(secs(10)).await;
    slow(&admission, &bucket);
    pass_time(secs(20)).await;
    assert!(!waiter.is_woken(), "not at 30 s, which was right before");
    observer.nobody_could_go(&[tokens_of(&bucket, 30_000)]);
    pass_time(secs(right - 30) - millis(1)).await;
    assert!(!waiter.is_woken());
    pass_time(millis(1)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), secs(right));
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn g6_a_lowered_budget_makes_who_waits_already_wait_longer() {
    let lower = |_: &Admission, bucket: &TokenBucket| {
        bucket.set_limits(Limits::per_minute(600, 30_000)).unwrap();
    };
    slowed(lower, 50).await;
}

#[tokio::test(start_paused = true)]
async fn g6_backpressure_makes_who_waits_already_wait_longer() {
    slowed(|_, bucket| bucket.record_backpressure(1), 40).await;
}
