//! Accounts that break the contract, and what is said of it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use admit::{Account, Admission, AdmitError, Demand, TryAdmitError};

use crate::support::*;

/// An account that says no now, and that it would say yes at once: this moment, or the very next.
fn at_once() -> [Duration; 2] {
    [Duration::ZERO, Duration::from_nanos(1)]
}

#[tokio::test(start_paused = true)]
async fn an_account_that_says_no_at_the_instant_it_named_is_asked_less_and_less_often() {
    for soon in at_once() {
        let admission = started();
        let own = Own::new("own");
        own.set(|script| script.names = Some(soon));
        let mut waiter = parked(&admission, Demand::new().permit(&own));
        let asked = || own.asked.load(Ordering::Relaxed);
        let before = asked();
        tokio::time::sleep(millis(100)).await;
        // After 1, 2, 4, 8, 16 and 32 ms.
        assert!((5..=8).contains(&(asked() - before)), "{soon:?}: {}", asked() - before);
        tokio::time::sleep(secs(10)).await;
        let before = asked();
        tokio::time::sleep(secs(60)).await;
        assert!((50..=65).contains(&(asked() - before)), "{soon:?}: {}", asked() - before);
        own.set(|script| script.names = None);
        own.link().grew();
        settle().await;
        drop(granted(&mut waiter));
    }
}

#[tokio::test(start_paused = true)]
async fn a_breach_at_the_head_is_logged_once() {
    for soon in at_once() {
        let log = Log::start();
        let admission = started();
        let own = Own::new("own");
        own.set(|script| script.names = Some(soon));
        let head = parked(&admission, Demand::new().permit(&own));
        tokio::time::sleep(secs(60)).await;
        let lines = log.with("the account breaks its contract");
        assert_eq!(lines.len(), 1, "{soon:?}: {lines:?}");
        assert!(lines[0].starts_with("ERROR") && lines[0].contains("own"), "{lines:?}");
        drop(head);
    }
}

#[tokio::test(start_paused = true)]
async fn a_breach_behind_the_head_is_logged_once() {
    for soon in at_once() {
        let log = Log::start();
        let admission = started();
        let (a, own) = (named("a", 1), Own::new("own"));
        let held = admission.try_admit(permits(&a, 1)).unwrap();
        let head = parked(&admission, permits(&a, 1));
        own.set(|script| script.names = Some(soon));
        let line: Vec<_> = (0..3).map(|_| parked(&admission, Demand::new().permit(&own))).collect();
        let before = own.asked.load(Ordering::Relaxed);
        tokio::time::sleep(secs(60)).await;
        assert!(own.asked.load(Ordering::Relaxed) - before < 500, "{soon:?}");
        let lines = log.with("the account breaks its contract");
        assert_eq!(lines.len(), 1, "{soon:?}: {lines:?}");
        assert!(lines[0].starts_with("ERROR") && lines[0].contains("own"), "{lines:?}");
        drop((line, head, held));
    }
}

/// What the others take of it is no event here, so it may have been right.
#[tokio::test(start_paused = true)]
async fn an_account_of_several_admissions_is_asked_again_soon_and_not_suspected() {
    for is_behind in [false, true] {
        let log = Log::start();
        let (admission, other) = (started(), started());
        let (a, own) = (named("a", 1), Own::new("own"));
        drop(other.try_admit(Demand::new().permit(&own)).unwrap());
        let held = admission.try_admit(permits(&a, 1)).unwrap();
        let head = is_behind.then(|| parked(&admission, permits(&a, 1)));
        own.set(|script| script.names = Some(Duration::ZERO));
        let waiter = parked(&admission, Demand::new().permit(&own));
        tokio::time::sleep(secs(1)).await;
        let before = own.asked.load(Ordering::Relaxed);
        tokio::time::sleep(secs(1)).await;
        let asked = own.asked.load(Ordering::Relaxed) - before;
        assert!(asked >= 900, "{is_behind}: {asked}");
        assert_eq!(log.with("the account breaks its contract"), Vec::<String>::new());
        drop((waiter, head, held));
    }
}

#[tokio::test(start_paused = true)]
async fn a_give_that_credits_less_than_was_held_is_logged() {
    let log = Log::start();
    let admission = started();
    let own = Own::new("own");
    let grant = admission.admit(Demand::new().permit(&own)).await.unwrap();
    own.set(|script| script.credits_nothing = true);
    drop(grant);
    let lines = log.with("more was given back than was held");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN") && lines[0].contains("own"), "{lines:?}");
    assert!(!own.link().is_quarantined());
    drop(admission.admit(Demand::new().permit(&own)).await.unwrap());
}

/// Its `fits` says yes and its `try_take` no: the job waits, and nobody is granted by halves.
#[tokio::test(start_paused = true)]
async fn an_account_that_contradicts_itself_keeps_its_job_waiting_and_nothing_of_it() {
    let admission = started();
    let (a, own) = (named("a", 1), Own::new("own"));
    own.set(|script| script.takes_nothing = true);
    let both = permits(&a, 1).permit(&own);
    let error = admission.try_admit(both.clone()).unwrap_err();
    let TryAdmitError::WouldWait { shortages } = error else { panic!("{error}") };
    assert_eq!(&*shortages[0].account, "own");
    let mut waiter = parked(&admission, both);
    own.link().grew();
    settle().await;
    assert!(!waiter.is_woken());
    assert_eq!(a.status().active, 0);
    own.set(|script| script.takes_nothing = false);
    own.link().grew();
    settle().await;
    drop(granted(&mut waiter));
    assert_eq!(a.status().active, 0);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_reading_is_logged_once_and_one_in_feedback_each_time() {
    let log = Log::start();
    let admission = started();
    let own = Own::new("own");
    let grant = admission.admit(Demand::new().permit(&own)).await.unwrap();
    own.set(|script| script.panics = Some("in_use"));
    for _ in 0..3 {
        assert_eq!(admission.snapshot().account("own").unwrap().in_use, 0);
    }
    assert_eq!(log.with("in_use").len(), 1);
    own.set(|script| script.panics = Some("on_success"));
    for _ in 0..3 {
        assert!(grant.report_success(&own));
    }
    assert_eq!(log.with("on_success").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_unstarted_admission_on_which_somebody_waits_is_warned_of_once() {
    let log = Log::start();
    let admission = Admission::builder().build().unwrap();
    let a = named("a", 1);
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    let line = [parked(&admission, permits(&a, 1)), parked(&admission, permits(&a, 1))];
    let lines = log.with("not started");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN"), "{lines:?}");
    drop((line, held));
}

/// However many wait on it for amounts of their own.
#[tokio::test(start_paused = true)]
async fn an_account_that_contradicts_itself_to_thousands_holds_nobody_else_up() {
    let admission = started();
    let (a, b, own) = (named("a", 1), named("b", 1), Own::new("own"));
    own.set(|script| script.takes_nothing = true);
    let held = [&a, &b].map(|gate| admission.try_admit(permits(gate, 1)).unwrap());
    let head = parked(&admission, permits(&a, 1));
    let line: Vec<_> =
        (1..5_000).map(|n| parked(&admission, Demand::new().permits(&own, n))).collect();
    let mut last = parked(&admission, permits(&b, 1));
    own.link().grew();
    let [held, other] = held;
    drop(other);
    settle().await;
    drop(granted(&mut last));
    // Nor whoever comes, who looks at what is pending first.
    own.link().grew();
    drop(admission.try_admit(permits(&b, 1)).unwrap());
    assert!(admission.try_admit(permits(&a, 1)).is_err());
    drop((head, line, held));
}

/// However many must be asked whether it does, and asked anew in every hold.
#[tokio::test(start_paused = true)]
async fn an_account_that_says_again_and_again_that_it_may_refuse_holds_nobody_else_up() {
    let admission = started();
    let (a, b, own) = (named("a", 1), named("b", 1), Own::new("own"));
    own.set(|script| script.names = Some(secs(3_600)));
    let held = [&a, &b].map(|gate| admission.try_admit(permits(gate, 1)).unwrap());
    let head = parked(&admission, permits(&a, 1));
    let line: Vec<_> =
        (1..5_000).map(|n| parked(&admission, Demand::new().permits(&own, n))).collect();
    let mut last = parked(&admission, permits(&b, 1));
    own.set(|script| script.warns = true);
    own.link().may_refuse();
    let [held, other] = held;
    drop(other);
    settle().await;
    drop(granted(&mut last));
    drop((line, head, held));
}

/// Each newcomer could go, and so could its equal before it, again and again: neither can.
#[tokio::test(start_paused = true)]
async fn an_account_that_contradicts_itself_to_equals_lets_a_newcomer_wait_in_the_end() {
    let admission = started();
    let own = Own::new("own");
    own.set(|script| script.takes_nothing = true);
    let mut waiters: Vec<_> =
        (0..3).map(|_| parked(&admission, Demand::new().permit(&own))).collect();
    assert!(admission.try_admit(Demand::new().permit(&own)).is_err());
    assert!(own.asked.load(Ordering::Relaxed) < 200, "asked again and again");
    own.set(|script| script.takes_nothing = false);
    own.link().grew();
    settle().await;
    drop(waiters.iter_mut().map(granted).collect::<Vec<_>>());
}

/// It was well when its job was found short of it.
#[tokio::test(start_paused = true)]
async fn an_account_that_begins_to_panic_fails_who_waits_on_it_behind_the_head() {
    for method in ["fits", "earliest_fit"] {
        let admission = started();
        let (a, own) = (named("a", 1), Own::new("own"));
        let held = admission.try_admit(permits(&a, 1)).unwrap();
        let head = parked(&admission, permits(&a, 1));
        own.set(|script| script.names = Some(secs(60)));
        let mut waiter = parked(&admission, Demand::new().permit(&own));
        settle().await;
        own.set(|script| script.panics = Some(method));
        own.link().grew();
        settle().await;
        let error = landed(&mut waiter).unwrap_err();
        assert!(matches!(error, AdmitError::AccountFault { .. }), "{method}: {error}");
        assert!(!head.is_woken());
        drop(held);
    }
}
