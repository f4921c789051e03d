//! Events: what is told of each step, in which order, and on which accounts.

use std::time::SystemTime;

use admit::testing::ScriptedMemory;
use admit::{
    Account, Admission, AdmitError, Category, Demand, EventKind, JobInfo, LimiterEvent, MemoryGate,
    RejectReason, TryAdmitError,
};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;
use tokio_test::task::spawn;
use tokio_util::sync::CancellationToken;

use crate::support::*;

fn told(events: &mut Receiver<LimiterEvent>) -> Vec<LimiterEvent> {
    std::iter::from_fn(|| events.try_recv().ok()).collect()
}

/// Which account, and which step.
fn steps(events: &mut Receiver<LimiterEvent>) -> Vec<(String, EventKind)> {
    told(events).into_iter().map(|event| (event.account.to_string(), event.kind)).collect()
}

#[track_caller]
fn assert_steps(events: &mut Receiver<LimiterEvent>, expected: &[(&str, EventKind)]) {
    let expected: Vec<_> =
        expected.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect();
    assert_eq!(steps(events), expected);
}

/// Asserts that these accounts, and no other, told of this rejection, in this order; with whether
/// it had been held there.
#[track_caller]
fn assert_rejected(
    events: &mut Receiver<LimiterEvent>,
    reason: RejectReason,
    expected: &[(&str, bool)],
) {
    let rejected: Vec<_> = told(events)
        .into_iter()
        .filter(|event| event.kind == EventKind::Rejected)
        .map(|event| {
            assert_eq!(event.reason, Some(reason));
            (event.account.to_string(), event.wait.is_some())
        })
        .collect();
    let expected: Vec<_> =
        expected.iter().map(|(name, held)| ((*name).to_owned(), *held)).collect();
    assert_eq!(rejected, expected);
}

#[tokio::test(start_paused = true)]
async fn a_grant_at_once_is_told_once_an_entry_with_everything_there_is_to_know() {
    let admission = started();
    let mut events = admission.subscribe();
    let (a, b) = (named("a", 2), bucket(10, 100));
    let before = SystemTime::now();
    let job = JobInfo::new("7", "seven").in_workflow("week").with("day", "3");
    let demand = Demand::new().tokens(&b, 40).permit(&a).for_job(job.clone());
    let grant = admission.admit(demand).await.unwrap();
    let told_now = told(&mut events);
    let [first, second] = &told_now[..] else { panic!("one an entry: {told_now:?}") };
    assert_eq!((first.sequence, second.sequence), (1, 2));
    for event in &told_now {
        assert_eq!(event.job.as_deref(), Some(&job));
        assert!(event.at >= before && event.at <= SystemTime::now());
        assert_eq!(event.kind, EventKind::GrantedImmediate);
        assert_eq!((event.waiting, event.wait, event.reason), (0, None, None));
        assert_eq!(event.indicator, None);
    }
    assert_eq!(
        (&*first.account, &first.category),
        ("bucket of 10 and 100", &Category::TokenBucket)
    );
    assert_eq!((first.capacity, first.in_use, first.amount), (100, 40, 40));
    assert_eq!((&*second.account, &second.category), ("a", &Category::Semaphore));
    assert_eq!((second.capacity, second.in_use, second.amount), (2, 1, 1));
    drop(grant);
    // What comes back only with time is no event.
    let [released] = &told(&mut events)[..] else { panic!("the permit alone comes back") };
    assert_eq!((&*released.account, released.kind), ("a", EventKind::Released));
    assert_eq!((released.sequence, released.in_use, released.amount), (3, 0, 1));
    b.record_429();
    drop(admission.admit(Demand::new().tokens(&b, 1)).await.unwrap());
    assert_eq!(told(&mut events)[0].indicator.as_deref(), Some("throttle:1.5x"));
}

#[tokio::test(start_paused = true)]
async fn a_demand_of_nothing_tells_nothing() {
    let admission = started();
    let mut events = admission.subscribe();
    drop(admission.admit(Demand::new()).await.unwrap());
    assert_steps(&mut events, &[]);
}

#[tokio::test(start_paused = true)]
async fn events_are_counted_from_the_first_subscription_on_and_go_on_without_one() {
    let admission = started();
    let a = named("a", 1);
    for _ in 0..5 {
        drop(admission.admit(permits(&a, 1)).await.unwrap());
    }
    let mut events = admission.subscribe();
    drop(admission.admit(permits(&a, 1)).await.unwrap());
    let numbers: Vec<_> = told(&mut events).iter().map(|event| event.sequence).collect();
    assert_eq!(numbers, [1, 2]);
    drop(events);
    drop(admission.admit(permits(&a, 1)).await.unwrap());
    let mut events = admission.subscribe();
    drop(admission.admit(permits(&a, 1)).await.unwrap());
    let numbers: Vec<_> = told(&mut events).iter().map(|event| event.sequence).collect();
    assert_eq!(numbers, [5, 6], "those in between were built, for nobody");
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_told_where_it_was_short_once_and_its_end_on_every_entry() {
    let admission = started();
    let mut events = admission.subscribe();
    let (a, b, c, d) = (named("a", 1), named("b", 1), named("c", 2), named("d", 1));
    let held_a = admission.try_admit(permits(&a, 1)).unwrap();
    let held_b = admission.try_admit(permits(&b, 1)).unwrap();
    let held_c = admission.try_admit(permits(&c, 1)).unwrap();
    told(&mut events);
    let demand = Demand::new().permit(&c).permit(&b).permit(&d).permit(&a);
    let mut waiter = parked(&admission, demand);
    assert_steps(&mut events, &[("b", EventKind::Held), ("a", EventKind::Held)]);
    pass_time(secs(3)).await;
    // It is looked at again, and found short of one more.
    c.resize(1).unwrap();
    settle().await;
    assert_steps(&mut events, &[("c", EventKind::Held)]);
    pass_time(secs(2)).await;
    drop((held_a, held_c));
    settle().await;
    assert_steps(&mut events, &[("a", EventKind::Released), ("c", EventKind::Released)]);
    drop(held_b);
    settle().await;
    let told_now = told(&mut events);
    assert_eq!(told_now[0].kind, EventKind::Released);
    let ends: Vec<_> =
        told_now[1..].iter().map(|event| (&*event.account, event.kind, event.wait)).collect();
    assert_eq!(
        ends,
        [
            ("c", EventKind::GrantedFromHold, Some(secs(2))),
            ("b", EventKind::GrantedFromHold, Some(secs(5))),
            ("d", EventKind::GrantedImmediate, None),
            ("a", EventKind::GrantedFromHold, Some(secs(5))),
        ]
    );
    assert_eq!(told_now[0].waiting, 1);
    assert!(told_now[1..].iter().all(|event| event.waiting == 0));
    drop(granted(&mut waiter));
}

#[tokio::test(start_paused = true)]
async fn memory_is_told_as_if_it_were_the_first_entry() {
    let memory = ScriptedMemory::at_percent(50.0);
    let gate = MemoryGate::with_source(memory.clone()).unwrap();
    let admission = Admission::builder().memory_gate(gate).start().unwrap();
    let mut events = admission.subscribe();
    let (a, b) = (named("a", 1), named("b", 1));
    let held = admission.admit(permits(&a, 1)).await.unwrap();
    memory.set_percent(96.0);
    pass_time(millis(20)).await;
    assert_steps(&mut events, &[("a", EventKind::GrantedImmediate)]);
    let mut waiter = parked(&admission, permits(&b, 1).permit(&a));
    let told_now = told(&mut events);
    let [first, second] = &told_now[..] else { panic!("memory, and the gate: {told_now:?}") };
    assert_eq!((&*first.account, &first.category), ("memory", &Category::Memory));
    assert_eq!((first.kind, first.amount, first.waiting), (EventKind::Held, 0, 1));
    assert_eq!((first.capacity, first.in_use), (1_000_000_000, 960_000_000));
    assert_eq!(first.indicator.as_deref(), Some("blocked"));
    assert_eq!((&*second.account, second.kind), ("a", EventKind::Held));
    let error = admission.try_admit(permits(&a, 1)).unwrap_err();
    let TryAdmitError::WouldWait { shortages } = error else { panic!("{error}") };
    let names: Vec<_> = shortages.iter().map(|shortage| &*shortage.account).collect();
    assert_eq!(names, ["memory", "a"]);
    drop(held);
    memory.set_percent(50.0);
    pass_time(secs(2)).await;
    assert_steps(
        &mut events,
        &[
            ("a", EventKind::Released),
            ("memory", EventKind::GrantedFromHold),
            ("b", EventKind::GrantedImmediate),
            ("a", EventKind::GrantedFromHold),
        ],
    );
    let grant = granted(&mut waiter);
    let waits: Vec<_> = grant.wait_times().iter().map(|wait| &*wait.account).collect();
    assert_eq!(waits, ["memory", "a"]);
    drop(grant);
    // Nothing of memory is released: nothing of it was taken.
    assert_steps(&mut events, &[("b", EventKind::Released), ("a", EventKind::Released)]);
    memory.set_percent(96.0);
    pass_time(millis(20)).await;
    drop(parked(&admission, permits(&b, 1)));
    assert_rejected(&mut events, RejectReason::Cancelled, &[("memory", true)]);
}

#[tokio::test(start_paused = true)]
async fn who_waited_is_rejected_where_it_was_held_and_by_whom_it_was_refused() {
    let own = Own::new("own");
    for way in ["drop", "token", "time", "refusal", "panic", "stop"] {
        let admission = started();
        let mut events = admission.subscribe();
        let (a, b) = (named("a", 1), named("b", 1));
        let _held = admission.try_admit(permits(&a, 1)).unwrap();
        let token = CancellationToken::new();
        let demand = Demand::new().permit(&own).permit(&a).permit(&b);
        let mut waiter = spawn(admission.admit(demand).within(secs(9)).cancelled_by(token.clone()));
        assert!(waiter.poll().is_pending());
        let held_only: &[(&str, bool)] = &[("a", true)];
        let refused_too: &[(&str, bool)] = &[("a", true), ("own", false)];
        let (reason, expected) = match way {
            "drop" => (RejectReason::Cancelled, held_only),
            "token" => {
                token.cancel();
                assert!(matches!(landed(&mut waiter), Err(AdmitError::Cancelled)));
                (RejectReason::Cancelled, held_only)
            }
            "time" => {
                pass_time(secs(9)).await;
                (RejectReason::TimedOut, held_only)
            }
            "refusal" => {
                own.set(|script| script.refuses = true);
                own.link().may_refuse();
                settle().await;
                assert!(matches!(landed(&mut waiter), Err(AdmitError::Refused { .. })));
                (RejectReason::CircuitBlocked, refused_too)
            }
            "panic" => {
                own.set(|script| script.panics = Some("fits"));
                own.link().may_refuse();
                settle().await;
                assert!(matches!(landed(&mut waiter), Err(AdmitError::AccountFault { .. })));
                (RejectReason::Aborted, refused_too)
            }
            _ => {
                admission.stop();
                (RejectReason::Shutdown, held_only)
            }
        };
        drop(waiter);
        own.set(|script| *script = Script::default());
        assert_rejected(&mut events, reason, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn who_never_waited_is_rejected_where_it_was_short_or_refused_else_on_every_entry() {
    let admission = Admission::builder().max_waiting(0).start().unwrap();
    let mut events = admission.subscribe();
    let (a, b, own) = (named("a", 1), named("b", 1), Own::new("own"));
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    let both = || permits(&b, 1).permit(&a);

    let full = admission.admit(both()).await;
    assert!(matches!(full, Err(AdmitError::QueueFull { .. })));
    assert_rejected(&mut events, RejectReason::QueueFull, &[("a", false)]);

    let never = admission.admit(both().permit(&a)).await;
    assert!(matches!(never, Err(AdmitError::Refused { .. })));
    assert_rejected(&mut events, RejectReason::CircuitBlocked, &[("a", false)]);

    own.set(|script| script.panics = Some("try_take"));
    let fault = admission.admit(permits(&b, 1).permit(&own)).await;
    assert!(matches!(fault, Err(AdmitError::AccountFault { .. })));
    assert_rejected(&mut events, RejectReason::Aborted, &[("own", false)]);

    let token = CancellationToken::new();
    token.cancel();
    let cancelled = admission.admit(both()).cancelled_by(token).await;
    assert!(matches!(cancelled, Err(AdmitError::Cancelled)));
    assert_rejected(&mut events, RejectReason::Cancelled, &[("b", false), ("a", false)]);

    drop(held);
    admission.stop();
    let late = admission.admit(both()).await;
    assert!(matches!(late, Err(AdmitError::ShutDown)));
    assert_rejected(&mut events, RejectReason::Shutdown, &[("b", false), ("a", false)]);
}

#[tokio::test(start_paused = true)]
async fn no_time_at_all_is_rejected_where_it_was_short() {
    let admission = started();
    let mut events = admission.subscribe();
    let (a, b) = (named("a", 1), named("b", 1));
    let _held = admission.try_admit(permits(&a, 1)).unwrap();
    let late = admission.admit(permits(&b, 1).permit(&a)).within(secs(0)).await;
    assert!(matches!(late, Err(AdmitError::TimedOut { .. })));
    assert_rejected(&mut events, RejectReason::TimedOut, &[("a", false)]);
}

#[tokio::test(start_paused = true)]
async fn an_admission_that_closes_has_aborted_whoever_waits_and_whoever_comes() {
    let admission = started();
    let mut events = admission.subscribe();
    let (a, own, liar) = (named("a", 1), Own::new("own"), Own::new("liar"));
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    let mut waiter = parked(&admission, permits(&a, 1).permit(&own).permit(&liar));
    own.set(|script| script.panics = Some("give"));
    liar.set(|script| script.takes_nothing = true);
    drop(held);
    settle().await;
    assert!(matches!(landed(&mut waiter), Err(AdmitError::Closed(_))));
    assert_rejected(&mut events, RejectReason::Aborted, &[("a", true)]);
    let late = admission.admit(permits(&a, 1)).await;
    assert!(matches!(late, Err(AdmitError::Closed(_))));
    assert_rejected(&mut events, RejectReason::Aborted, &[("a", false)]);
}

#[tokio::test(start_paused = true)]
async fn a_try_that_would_wait_tells_nothing_and_one_that_is_refused_does() {
    let admission = started();
    let mut events = admission.subscribe();
    let a = named("a", 1);
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    told(&mut events);
    drop(admission.try_admit(permits(&a, 1)).unwrap_err());
    assert_steps(&mut events, &[]);
    drop(admission.try_admit(permits(&a, 2)).unwrap_err());
    assert_steps(&mut events, &[("a", EventKind::Rejected)]);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_rollback_releases_everything_as_it_is_held_and_nothing_twice() {
    let admission = started();
    let mut events = admission.subscribe();
    let (a, b, c) = (named("a", 1), bucket(10, 100), named("c", 3));
    let grant = admission.admit(permits(&a, 1).tokens(&b, 40).permits(&c, 3)).await.unwrap();
    told(&mut events);
    assert!(grant.reconcile(&b, 10));
    assert_steps(&mut events, &[]);
    assert!(grant.release_one(&c));
    assert_steps(&mut events, &[("c", EventKind::Released)]);
    assert!(grant.rollback());
    let told_now = told(&mut events);
    let back: Vec<_> = told_now.iter().map(|event| (&*event.account, event.amount)).collect();
    assert_eq!(back, [("a", 1), ("bucket of 10 and 100", 10)]);
    drop(grant);
    assert_steps(&mut events, &[]);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_saw_is_released_and_not_rejected() {
    for by_token in [false, true] {
        let admission = started();
        let mut events = admission.subscribe();
        let (a, b) = (named("a", 1), bucket(10, 100));
        let held = admission.try_admit(permits(&a, 1)).unwrap();
        let token = CancellationToken::new();
        let admit = admission.admit(permits(&a, 1).tokens(&b, 40)).cancelled_by(token.clone());
        let mut waiter = spawn(admit);
        assert!(waiter.poll().is_pending());
        drop(held);
        settle().await;
        told(&mut events);
        if by_token {
            token.cancel();
            assert!(matches!(landed(&mut waiter), Err(AdmitError::Cancelled)));
        }
        drop(waiter);
        let name = "bucket of 10 and 100";
        assert_steps(&mut events, &[("a", EventKind::Released), (name, EventKind::Released)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cascade_is_told_in_the_order_it_was_decided() {
    let admission = started();
    let mut events = admission.subscribe();
    let a = named("a", 3);
    let held = admission.try_admit(permits(&a, 3)).unwrap();
    let line: Vec<_> = (0..6)
        .map(|n: u32| {
            let job = JobInfo::new(n.to_string(), "job");
            parked(&admission, permits(&a, 1).for_job(job))
        })
        .collect();
    told(&mut events);
    drop(held);
    settle().await;
    let told_now = told(&mut events);
    let numbers: Vec<_> = told_now.iter().map(|event| event.sequence).collect();
    let first = numbers[0];
    assert_eq!(numbers, (first..first + 4).collect::<Vec<_>>());
    let steps: Vec<_> = told_now
        .iter()
        .map(|event| (event.kind, event.job.as_ref().map(|job| job.id.to_string()), event.waiting))
        .collect();
    let goes = |n: u32, waiting| (EventKind::GrantedFromHold, Some(n.to_string()), waiting);
    assert_eq!(steps, [(EventKind::Released, None, 6), goes(0, 5), goes(1, 4), goes(2, 3)]);
    drop(line);
}

#[tokio::test(start_paused = true)]
async fn the_events_end_with_the_last_handle_and_the_last_grant() {
    let admission = started();
    let mut events = admission.subscribe();
    let gate = gate(1);
    let grant = admission.admit(permits(&gate, 1)).await.unwrap();
    drop(admission);
    settle().await;
    assert_steps(&mut events, &[("gate of 1", EventKind::GrantedImmediate)]);
    assert_eq!(events.try_recv(), Err(TryRecvError::Empty), "the grant will have more to tell");
    drop(grant);
    assert_steps(&mut events, &[("gate of 1", EventKind::Released)]);
    assert_eq!(events.try_recv(), Err(TryRecvError::Closed));
}
