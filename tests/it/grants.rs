//! Grants: what their methods answer, and what they tell of the wait.

use admit::testing::ScriptedMemory;
use admit::{
    Account, Admission, AdmitError, Amount, Charge, Demand, Grant, MemoryGate, UpstreamFailure,
};
use tokio::time::Instant;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn wait_times_run_from_each_first_no_in_the_order_of_the_entries() {
    let admission = started();
    let (a, b, c) = (named("a", 1), named("b", 1), named("c", 2));
    let d = named("d", 1);
    let held_a = admission.try_admit(permits(&a, 1)).unwrap();
    let held_b = admission.try_admit(permits(&b, 1).permit(&c)).unwrap();
    let demand = Demand::new().permit(&c).permit(&d).permit(&b).permit(&a);
    let mut waiter = parked(&admission, demand);
    pass_time(secs(3)).await;
    c.resize(1).unwrap();
    settle().await;
    pass_time(secs(1)).await;
    // It has room on this one again long before it is granted: the wait goes on all the same.
    drop(held_a);
    pass_time(secs(6)).await;
    drop(held_b);
    settle().await;
    let grant = granted(&mut waiter);
    let waits: Vec<_> = grant.wait_times().iter().map(|wait| (&*wait.account, wait.wait)).collect();
    assert_eq!(waits, [("c", secs(7)), ("b", secs(10)), ("a", secs(10))]);
    assert_eq!(grant.wall_wait(), secs(10), "they overlap");
    drop(grant);
    let grant = admission.admit(permits(&a, 1)).await.unwrap();
    assert_eq!((grant.wait_times().len(), grant.wall_wait()), (0, secs(0)));
}

#[tokio::test(start_paused = true)]
async fn a_report_answers_whether_it_did_anything() {
    let admission = started();
    let (a, b, other) = (named("a", 1), bucket(10, 100), named("other", 1));
    let failure = UpstreamFailure::status(429, "b", "slow down");
    let demand = permits(&a, 1).tokens(&b, 10);
    let grant = admission.admit(demand.clone()).await.unwrap();
    assert!(!grant.report_success(&other) && !grant.report_failure(&other, &failure));
    assert!(grant.report_success(&a) && grant.report_success(&a), "as often as there is news");
    assert!(grant.report_failure(&b, &failure) && grant.report_success(&b));
    assert!(grant.release_one(&a));
    assert!(!grant.report_success(&a) && !grant.report_failure(&a, &failure));
    assert!(grant.report_success_all() && grant.report_failure_all(&failure), "the bucket hears");
    assert!(grant.release());
    assert!(!grant.report_success(&b) && !grant.report_failure(&b, &failure));
    assert!(!grant.report_success_all() && !grant.report_failure_all(&failure));
    let grant = admission.admit(Demand::new()).await.unwrap();
    assert!(!grant.report_success_all(), "there is nobody to hear");
}

#[tokio::test(start_paused = true)]
async fn a_correction_answers_whether_the_account_heard_of_it() {
    let admission = started();
    let (a, b, other) = (named("a", 2), bucket(10, 100), named("other", 1));
    let demand = permits(&a, 1).tokens(&b, 10);
    let grant = admission.admit(demand.clone()).await.unwrap();
    assert!(!grant.reconcile(&other, 1));
    assert!(grant.reconcile(&b, 5) && grant.reconcile(&a, 5));
    assert!(grant.release());
    assert!(grant.reconcile(&b, 20), "usage may be known only later");
    assert_eq!(b.status().available_tokens, 80);
    assert!(!grant.reconcile(&a, 0), "the permit is back");
    let grant = admission.admit(demand.clone()).await.unwrap();
    assert!(grant.release_one(&a));
    assert!(!grant.reconcile(&a, 0));
    assert!(grant.rollback());
    assert!(!grant.reconcile(&b, 50));
    assert_eq!(b.status().available_tokens, 80);
}

#[tokio::test(start_paused = true)]
async fn what_an_account_holds_for_a_grant_is_told_until_it_is_back() {
    let admission = started();
    let (a, b, other) = (named("a", 2), bucket(10, 100), named("other", 1));
    let demand = permits(&a, 2).tokens(&b, 10);
    let grant = admission.admit(demand.clone()).await.unwrap();
    let told = |grant: &Grant| {
        let units = |charge: Option<Charge>| charge.map(|charge| charge.amount.units);
        (units(grant.charge(&a)), units(grant.charge(&b)))
    };
    assert_eq!(grant.charge(&a).unwrap().amount, Amount::permits(2));
    assert_eq!(grant.charge(&b).unwrap().at, Instant::now());
    assert_eq!((told(&grant), grant.charge(&other)), ((Some(2), Some(10)), None));
    grant.reconcile(&b, 4);
    assert_eq!(told(&grant), (Some(2), Some(4)));
    grant.release_one(&a);
    assert_eq!(told(&grant), (None, Some(4)));
    grant.release();
    assert_eq!(told(&grant), (None, Some(4)), "only the clock brings tokens back");
    let grant = admission.admit(demand).await.unwrap();
    grant.rollback();
    assert_eq!(told(&grant), (None, None));
}

#[tokio::test(start_paused = true)]
async fn a_grant_settles_once_whoever_comes_first() {
    let admission = started();
    let (a, b) = (named("a", 1), bucket(10, 100));
    for rolls_back in [false, true] {
        let before = b.status().available_tokens;
        let grant = admission.admit(permits(&a, 1).tokens(&b, 10)).await.unwrap();
        if rolls_back {
            assert!(grant.rollback());
        } else {
            assert!(grant.release());
        }
        assert!(!grant.release() && !grant.rollback() && !grant.release_one(&a));
        drop(grant);
        let spent = if rolls_back { 0 } else { 10 };
        assert_eq!((a.status().active, before - b.status().available_tokens), (0, spent));
    }
    assert_eq!(admission.snapshot().held, 0);
}

#[tokio::test(start_paused = true)]
async fn a_demand_of_nothing_is_granted_past_everybody() {
    let memory = ScriptedMemory::at_percent(96.0);
    let gate = MemoryGate::with_source(memory).unwrap();
    let admission = Admission::builder().memory_gate(gate).max_waiting(1).start().unwrap();
    let a = named("a", 1);
    let waiter = parked(&admission, permits(&a, 1));
    let grant = admission.admit(Demand::new()).await.unwrap();
    assert!(grant.is_empty() && grant.demand().is_empty());
    assert_eq!(admission.snapshot().held, 1);
    assert!(grant.release());
    assert!(admission.try_admit(Demand::new()).is_ok());
    admission.stop();
    assert!(matches!(admission.admit(Demand::new()).await, Err(AdmitError::ShutDown)));
    drop(waiter);
}

#[tokio::test(start_paused = true)]
async fn a_grant_still_settles_what_it_holds_of_an_account_that_was_resized() {
    let admission = started();
    let a = named("a", 3);
    let grant = admission.admit(permits(&a, 3)).await.unwrap();
    a.resize(1).unwrap();
    drop(grant);
    assert_eq!((a.status().active, a.status().available_permits), (0, 1));
    assert_eq!(a.link().waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_given_back_early_lets_those_go_who_wait_in_another_admission() {
    let (admission, elsewhere) = (started(), started());
    let a = gate(1);
    let held = elsewhere.try_admit(permits(&a, 1)).unwrap();
    let mut waiter = parked(&admission, permits(&a, 1));
    assert!(held.release_one(&a));
    settle().await;
    drop(granted(&mut waiter));
    drop(held);
}
