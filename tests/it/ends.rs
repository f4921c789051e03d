//! Starts and ends: what runs an admission, what ends it, and who hears of it.

use std::sync::Arc;
use std::task::Poll;

use admit::{Admission, AdmitError, BuildError, Demand, StartError, TryAdmitError};
use tokio_test::task::spawn;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn run_settles_when_its_future_ends_however_it_ends() {
    let admission = started();
    let (a, b) = (named("a", 1), bucket(10, 100));
    let demand = permits(&a, 1).tokens(&b, 10);
    let status = Arc::clone(&a);
    let output = admission.run(demand.clone(), async move { status.status().active }).await;
    assert_eq!(output.unwrap(), 1);
    assert_eq!((a.status().active, b.status().available_tokens), (0, 90));

    let panics = {
        let (admission, demand) = (admission.clone(), demand.clone());
        tokio::spawn(async move { admission.run(demand, async { panic!("the job's own") }).await })
    };
    let _: tokio::task::JoinError = panics.await.map(|_: Result<(), _>| ()).unwrap_err();
    assert_eq!(a.status().active, 0);

    let mut dropped = spawn(admission.run(demand.clone(), std::future::pending::<()>()));
    assert!(dropped.poll().is_pending());
    assert_eq!(a.status().active, 1);
    drop(dropped);
    assert_eq!(a.status().active, 0);

    let refused = admission.run(permits(&a, 2), async { panic!("it never runs") }).await;
    assert!(matches!(refused, Err::<(), _>(AdmitError::Refused { .. })));
    assert_eq!(admission.snapshot().held, 0);
}

#[tokio::test(start_paused = true)]
async fn drained_resolves_when_nobody_waits_and_nothing_is_held() {
    let admission = started();
    let a = named("a", 1);
    admission.drained().await;
    let held = admission.admit(permits(&a, 1)).await.unwrap();
    let waiter = parked(&admission, permits(&a, 1));
    let (mut one, mut other) = (spawn(admission.drained()), spawn(admission.drained()));
    assert!(one.poll().is_pending() && other.poll().is_pending());
    drop(spawn(admission.drained()));
    drop(held);
    settle().await;
    // The waiter's grant has landed: held, though nobody has seen it.
    assert!(one.poll().is_pending());
    drop(waiter);
    assert!(one.is_woken() && one.poll().is_ready());
    assert!(other.is_woken() && other.poll().is_ready());

    let held = admission.admit(permits(&a, 1)).await.unwrap();
    let mut late = spawn(admission.drained());
    assert!(late.poll().is_pending());
    admission.stop();
    assert!(late.poll().is_pending(), "a stop settles nothing");
    assert!(held.release());
    assert!(late.is_woken() && late.poll().is_ready());
}

/// A panic while a failed attempt is undone, in a pass: nothing that follows can be trusted.
#[tokio::test(start_paused = true)]
async fn a_defect_in_a_pass_closes_the_admission_for_everybody() {
    let log = Log::start();
    let admission = started();
    let (a, b, own, liar) = (named("a", 1), named("b", 2), Own::new("own"), Own::new("liar"));
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    let other = admission.try_admit(permits(&b, 2)).unwrap();
    let mut landed_before = parked(&admission, permits(&b, 1));
    drop(other);
    settle().await;
    let demand = permits(&a, 1).permit(&own).permit(&liar);
    let mut line = [
        parked(&admission, demand),
        parked(&admission, permits(&a, 1)),
        parked(&admission, permits(&b, 2)),
    ];
    own.set(|script| script.panics = Some("give"));
    liar.set(|script| script.takes_nothing = true);
    drop(held);
    settle().await;
    for waiter in &mut line {
        let Err(error) = landed(waiter) else { panic!("it is closed") };
        assert!(
            matches!(&error, AdmitError::Closed(defect) if defect.what.contains("own")),
            "{error}"
        );
        assert!(!error.is_retryable());
    }
    let late = admission.admit(permits(&b, 1)).await;
    assert!(matches!(late, Err(AdmitError::Closed(_))));
    let late = admission.try_admit(Demand::new());
    assert!(matches!(late, Err(TryAdmitError::Admit(AdmitError::Closed(_)))));
    assert_eq!(admission.start(), Err(StartError::Stopped));
    admission.stop();
    let late = admission.admit(permits(&b, 1)).await;
    assert!(matches!(late, Err(AdmitError::Closed(_))), "a stop does not hide the defect");
    assert_eq!(log.with("ERROR admission closed after a defect").len(), 1);
    // What was taken in the attempt is back, and what landed before is delivered.
    assert_eq!(a.status().active, 0);
    let grant = granted(&mut landed_before);
    assert_eq!(b.status().active, 1);
    drop(grant);
    assert_eq!(b.status().active, 0);
    admission.drained().await;
}

/// A pass over thousands lets go of the lock in between. Whoever comes then ends it first.
#[tokio::test(start_paused = true)]
async fn a_newcomer_ends_an_unfinished_pass_before_it_is_asked() {
    let admission = started();
    let a = named("a", 1);
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    let line: Vec<_> = (0..9_000).map(|_| parked(&admission, permits(&a, 1))).collect();
    a.resize(9_001).unwrap();
    tokio::task::yield_now().await;
    let woken = || line.iter().filter(|waiter| waiter.is_woken()).count();
    assert!((1..9_000).contains(&woken()), "{} went in the first hold", woken());
    // As many permits as there are waiters: none is left for who comes last.
    let late = admission.try_admit(permits(&a, 1));
    assert!(matches!(late, Err(TryAdmitError::WouldWait { .. })));
    assert_eq!(woken(), 9_000);
    drop((line, held));
}

#[tokio::test(start_paused = true)]
async fn a_limit_in_time_is_told_by_one_timer_that_is_never_set_further_than_a_day() {
    let admission = started();
    let a = named("a", 1);
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    let start = tokio::time::Instant::now();
    let error = admission.admit(permits(&a, 1)).within(secs(3 * 86_400)).await.unwrap_err();
    assert!(matches!(error, AdmitError::TimedOut { .. }));
    assert_eq!(start.elapsed(), secs(3 * 86_400));
    assert_eq!(admission.counters().timers, 3);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn an_admit_that_has_resolved_panics_when_it_is_polled_again() {
    let admission = started();
    let a = named("a", 1);
    let mut admit = Box::pin(admission.admit(permits(&a, 1)));
    let Poll::Ready(outcome) = spawn(&mut admit).poll() else { panic!("it fits") };
    drop(outcome.unwrap());
    let again = tokio::spawn(admit);
    let error = again.await.unwrap_err();
    assert!(error.is_panic());
    assert_eq!(a.status().active, 0);
    drop(admission.admit(permits(&a, 1)).await.unwrap());
}

#[test]
fn what_cannot_be_built_or_started_says_why() {
    for events in [0, usize::MAX] {
        let Err(error) = Admission::builder().event_capacity(events).build() else {
            panic!("no channel has {events} places")
        };
        assert_eq!((error.field, &*error.value), ("event_capacity", &*events.to_string()));
    }
    let Err(error) = Admission::builder().start() else { panic!("there is no runtime here") };
    assert_eq!(error, BuildError::Start(StartError::NoRuntime));
    let Err(error) = Admission::builder().event_capacity(0).start() else { panic!("none") };
    assert!(matches!(error, BuildError::Config(_)));
}

#[tokio::test(start_paused = true)]
async fn an_error_says_whether_and_when_it_is_worth_trying_again() {
    let admission = Admission::builder().max_waiting(1).start().unwrap();
    let (a, b) = (named("a", 1), bucket(60, 60));
    let now = tokio::time::Instant::now();
    let held = admission.try_admit(permits(&a, 1).tokens(&b, 60)).unwrap();
    let late = admission.admit(Demand::new().tokens(&b, 30)).within(secs(0)).await.unwrap_err();
    assert!(late.is_retryable());
    assert_eq!(late.retry_at(), Some(now + secs(30)));
    let late = admission.try_admit(Demand::new().tokens(&b, 30)).unwrap_err();
    assert_eq!(late.retry_at(), Some(now + secs(30)));
    // A permit comes back at no time that could be told.
    let both = permits(&a, 1).tokens(&b, 30);
    assert_eq!(admission.try_admit(both).unwrap_err().retry_at(), None);
    let never = admission.admit(permits(&a, 2)).await.unwrap_err();
    assert!(!never.is_retryable() && never.retry_at().is_none());
    let waiter = parked(&admission, permits(&a, 1));
    let full = admission.admit(permits(&a, 1)).await.unwrap_err();
    assert!(matches!(full, AdmitError::QueueFull { .. }) && full.is_retryable());
    drop((waiter, held));
    admission.stop();
    let over = admission.admit(permits(&a, 1)).await.unwrap_err();
    assert!(!over.is_retryable() && over.retry_at().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_cancelled_at_the_first_poll_comes_before_everything_else() {
    let admission = started();
    let a = named("a", 1);
    let token = tokio_util::sync::CancellationToken::new();
    token.cancel();
    for demand in [permits(&a, 1), permits(&a, 2), Demand::new()] {
        let outcome = admission.admit(demand).cancelled_by(token.clone()).await;
        assert!(matches!(outcome, Err(AdmitError::Cancelled)));
    }
    admission.stop();
    let outcome = admission.admit(permits(&a, 1)).cancelled_by(token).await;
    assert!(matches!(outcome, Err(AdmitError::Cancelled)));
}

#[tokio::test(start_paused = true)]
async fn drained_resolves_as_the_last_who_waits_gives_up() {
    let (admission, elsewhere) = (started(), started());
    let a = gate(1);
    let held = elsewhere.try_admit(permits(&a, 1)).unwrap();
    let waiter = parked(&admission, permits(&a, 1));
    let mut drained = spawn(admission.drained());
    assert!(drained.poll().is_pending());
    drop(waiter);
    assert!(drained.is_woken() && drained.poll().is_ready());
    drop(held);
}
