//! Accounts that panic, and what that costs whom (D5, D6).

use std::task::Poll;

use admit::{
    Account, Admission, AdmitError, Demand, EventKind, FailureKind, TryAdmitError, UpstreamFailure,
};
use tokio_test::task::spawn;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn d5_a_panic_for_one_of_three_concerns_that_one() {
    for method in ["fits", "try_take", "earliest_fit"] {
        let admission = started();
        let mut watch = Observer::of(&admission);
        // The own account is the youngest, so that the others are debited before it.
        let (g, b) = (gate(8), bucket(10, 1_000));
        let own = Own::new(8);
        let held = admission.try_admit(Demand::new().permits(&own, 8)).unwrap();
        let demand = |n| Demand::new().permits(&own, n).permits(&g, n).tokens(&b, 100);
        let mut first = parked(&admission, demand(1));
        let mut second = parked(&admission, demand(2));
        let mut third = parked(&admission, demand(3));
        own.panic_for(2, method);
        let mut kept = None;
        if method == "earliest_fit" {
            // It is asked only of those who stay.
            drop(held);
            own.calm();
            settle().await;
            drop(granted(&mut first));
            drop(granted(&mut second));
            drop(granted(&mut third));
            settle().await;
            kept = Some(admission.try_admit(Demand::new().permits(&own, 8)).unwrap());
            first = parked(&admission, demand(1));
            own.panic_for(2, method);
            let mut admit = spawn(admission.admit(demand(2)));
            let Poll::Ready(outcome) = admit.poll() else { panic!("it is at fault") };
            assert_fault(outcome.map(drop), &*own, method);
            third = parked(&admission, demand(3));
        } else {
            drop(held);
            settle().await;
            assert_fault(landed(&mut second).map(drop), &*own, method);
            assert_eq!(watch.rejected(&*own, admit::RejectReason::Aborted), 1);
        }
        drop(kept);
        settle().await;
        let (first, third) = (granted(&mut first), granted(&mut third));
        assert_eq!((own.used(), g.status().active), (4, 4));
        drop((first, third));
        let spent = if method == "earliest_fit" { 500 } else { 200 };
        assert_eq!(b.status().available_tokens, 1_000 - spent, "{method}");
        own.calm();
        watch.all_gone();
    }
}

/// Asserts that it is the fault of this account, in this method.
#[track_caller]
fn assert_fault(outcome: Result<(), AdmitError>, account: &dyn Account, method: &str) {
    let error = outcome.expect_err("the account is broken");
    let AdmitError::AccountFault { account: name, source } = &error else { panic!("{error}") };
    assert_eq!(name, account.link().name());
    assert_eq!(source.method, method);
    assert!(std::error::Error::source(&error).is_some(), "the panic is the source");
}

#[tokio::test(start_paused = true)]
async fn d5_a_newcomer_meets_the_panic_alone() {
    for method in ["fits", "try_take"] {
        for own_first in [false, true] {
            let admission = started();
            let watch = Observer::of(&admission);
            let (own, g) = if own_first {
                let own = Own::new(1);
                (own, gate(1))
            } else {
                let g = gate(1);
                (Own::new(1), g)
            };
            let demand = Demand::new().permit(&own).permit(&g);
            // `fits` is asked only once something does not fit.
            let held = (method == "fits").then(|| admission.try_admit(permits(&g, 1)).unwrap());
            own.panic_in(method);
            let Err(TryAdmitError::Admit(error)) = admission.try_admit(demand.clone()) else {
                panic!("it is at fault")
            };
            assert_fault(Err(error), &*own, method);
            drop(held);
            assert_eq!((own.used(), g.status().active), (0, 0));
            own.calm();
            drop(admission.try_admit(demand).unwrap());
            watch.all_gone();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn d5_a_panic_as_an_account_is_first_read_is_its_fault() {
    for method in ["replenishment", "reads_clock"] {
        let admission = started();
        let watch = Observer::of(&admission);
        let (own, g) = (Own::new(1), gate(1));
        own.panic_in(method);
        let demand = permits(&g, 1).permit(&own);
        let outcome = admission.admit(demand.clone()).await;
        assert_fault(outcome.map(drop), &*own, method);
        own.calm();
        // It was read once, and is never read again.
        let outcome = admission.admit(demand).await;
        assert_fault(outcome.map(drop), &*own, method);
        assert_eq!(g.status().active, 0);
        watch.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn d5_a_panic_in_a_reading_leaves_the_field_empty() {
    for method in ["category", "capacity", "in_use", "indicator", "summary"] {
        let admission = started();
        let mut watch = Observer::of(&admission);
        let own = Own::new(1);
        own.panic_in(method);
        let held = admission.try_admit(Demand::new().permit(&own)).unwrap();
        let mut waiter = parked(&admission, Demand::new().permit(&own));
        let snapshot = admission.snapshot();
        let account = snapshot.account(own.link().name()).expect("it is still told of");
        assert_eq!(account.waiting, 1);
        match method {
            "capacity" => assert_eq!(account.capacity, 0),
            "in_use" => assert_eq!(account.in_use, 0),
            _ => assert_eq!((account.in_use, account.capacity), (1, 1)),
        }
        own.calm();
        drop(held);
        settle().await;
        drop(granted(&mut waiter));
        assert_eq!(watch_count(&admission), 0);
        // An empty field would confuse the observer's own sums; the counts must be right.
        assert!(admission.queue_len() == 0 && own.used() == 0);
        admission.check();
        drop(watch_events(&mut watch, method));
    }
}

fn watch_count(admission: &Admission) -> usize {
    admission.snapshot().held
}

/// Events are built whatever a reading does.
fn watch_events(watch: &mut Observer, method: &str) -> Vec<EventKind> {
    if matches!(method, "capacity" | "category") {
        return Vec::new();
    }
    watch.events().iter().map(|event| event.kind).collect()
}

#[tokio::test(start_paused = true)]
async fn d5_a_panic_in_feedback_costs_nothing() {
    for method in ["on_success", "on_upstream_failure", "settled", "reconcile"] {
        let admission = started();
        let watch = Observer::of(&admission);
        let (own, g) = (Own::new(1), gate(1));
        own.panic_in(method);
        let grant = admission.try_admit(Demand::new().permit(&own).permit(&g)).unwrap();
        let failure = UpstreamFailure::status(429, "somebody", "slow down");
        grant.report_success_all();
        grant.report_failure_all(&failure);
        assert_eq!(grant.reconcile(&own, 5), method != "reconcile");
        let mut waiter = parked(&admission, permits(&g, 1));
        drop(grant);
        // What came back has gone on to the one who waited for it.
        assert_eq!((own.used(), g.status().active), (0, 1));
        drop(granted(&mut waiter));
        assert_eq!(g.status().active, 0);
        settle().await;
        own.calm();
        drop(admission.try_admit(Demand::new().permit(&own)).unwrap());
        assert_eq!(failure.kind, FailureKind::RateLimit);
        watch.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn d6_a_panicking_give_at_settlement_costs_one_account() {
    for (own_first, way) in
        [(false, "drop"), (true, "drop"), (true, "rollback"), (false, "release one")]
    {
        let admission = started();
        let mut watch = Observer::of(&admission);
        let (own, g) = if own_first {
            let own = Own::new(2);
            (own, gate(1))
        } else {
            let g = gate(1);
            (Own::new(2), g)
        };
        let demand = if own_first {
            Demand::new().permit(&own).permit(&g)
        } else {
            permits(&g, 1).permit(&own)
        };
        let grant = admission.try_admit(demand.clone()).unwrap();
        let mut both = parked(&admission, demand.clone());
        let mut one = parked(&admission, permits(&g, 1));
        own.panic_in("give");
        match way {
            "drop" => drop(grant),
            "rollback" => assert!(grant.rollback()),
            _ => {
                assert!(grant.release_one(&own));
                assert!(!grant.release_one(&own));
                settle().await;
                assert_fault(landed(&mut both).map(drop), &*own, "give");
                assert!(!one.is_woken(), "the gate is still held");
                drop(grant);
            }
        }
        settle().await;
        let one = granted(&mut one);
        if way != "release one" {
            assert_fault(landed(&mut both).map(drop), &*own, "give");
        }
        assert!(own.link().is_quarantined());
        own.calm();
        let late = admission.admit(Demand::new().permit(&own)).await;
        assert_fault(late.map(drop), &*own, "give");
        drop(one);
        settle().await;
        drop(admission.try_admit(permits(&g, 1)).unwrap());
        assert_eq!(g.status().active, 0);
        assert_eq!(watch.count(&*g, EventKind::Released), 3);
        watch.all_gone();
    }
}

/// A quarantine is every admission's: whoever waits on the account elsewhere hears of it too.
#[tokio::test(start_paused = true)]
async fn d6_a_quarantine_reaches_whoever_waits_in_another_admission() {
    let (one, other) = (started(), started());
    let watch = Observer::of(&one);
    let own = Own::new(1);
    let grant = one.try_admit(Demand::new().permit(&own)).unwrap();
    let mut waiter = parked(&other, Demand::new().permit(&own));
    own.panic_in("give");
    drop(grant);
    settle().await;
    assert_fault(landed(&mut waiter).map(drop), &*own, "give");
    own.calm();
    watch.all_gone();
    Observer::of(&other).all_gone();
}

/// A grant that landed and was dropped unseen is given back like any other.
#[tokio::test(start_paused = true)]
async fn d6_a_panicking_give_of_an_unseen_grant_does_not_panic_either() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (own, g) = (Own::new(1), gate(1));
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let unseen = parked(&admission, permits(&g, 1).permit(&own));
    let mut next = parked(&admission, permits(&g, 1));
    drop(held);
    settle().await;
    own.panic_in("give");
    drop(unseen);
    settle().await;
    drop(granted(&mut next));
    own.calm();
    watch.all_gone();
}

/// A panic while a failed attempt is undone is a defect. What the attempt had taken elsewhere comes
/// back all the same: other admissions may use it.
#[tokio::test(start_paused = true)]
async fn d6_a_panic_while_an_attempt_is_undone_closes_and_leaks_nothing() {
    for parked_ahead in [false, true] {
        let (admission, other) = (started(), started());
        let (g, h) = (gate(1), gate(1));
        let own = Own::new(1);
        let full = gate(1);
        let held = other.try_admit(permits(&full, 1)).unwrap();
        let mine = admission.try_admit(permits(&h, 1)).unwrap();
        let mut elsewhere = None;
        let waiter = parked_ahead.then(|| parked(&admission, permits(&h, 1).permit(&full)));
        own.panic_in("give");
        let demand = permits(&g, 1).permit(&own).permit(&full);
        if parked_ahead {
            // Behind one that wants the same it is surveyed first, and nothing is taken.
            drop(would_wait(admission.try_admit(demand.clone())));
            drop(waiter);
        }
        let Err(TryAdmitError::Admit(AdmitError::Closed(defect))) = admission.try_admit(demand)
        else {
            panic!("it closes")
        };
        assert!(defect.to_string().contains(&**own.link().name()), "{defect}");
        assert_eq!(g.status().active, 0, "the gate has its permit back");
        elsewhere.replace(other.try_admit(permits(&g, 1)).unwrap());
        let late = admission.admit(permits(&g, 1)).await;
        assert!(matches!(late, Err(AdmitError::Closed(_))));
        // A grant held then settles as ever.
        drop(mine);
        assert_eq!(h.status().active, 0);
        drop((elsewhere, held));
        admission.check();
        Observer::of(&other).all_gone();
    }
}
