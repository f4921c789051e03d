//! M. Bounds, shutdown, events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use admit::{
    Account, Admission, AdmitError, Demand, EventKind, RejectReason, StartError, TryAdmitError,
};
use tokio::sync::broadcast::error::TryRecvError;
use tokio_test::task::spawn;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn m1_the_line_is_bounded_and_a_place_is_free_as_soon_as_it_is_left() {
    let admission = Admission::builder().max_waiting(5).event_capacity(1 << 14).start().unwrap();
    let mut watch = Observer::of(&admission);
    let (g, free) = (gate(3), gate(1));
    let mut held = Vec::new();
    let mut line = Vec::new();
    let mut full = 0;
    for _ in 0..10 {
        let mut admit = spawn(admission.admit(permits(&g, 1)));
        match admit.poll() {
            Poll::Pending => line.push(admit),
            Poll::Ready(Ok(grant)) => held.push(grant),
            Poll::Ready(Err(AdmitError::QueueFull { waiting: 5, limit: 5 })) => full += 1,
            Poll::Ready(Err(error)) => panic!("{error}"),
        }
    }
    assert_eq!((held.len(), line.len(), full), (3, 5, 2));
    assert_eq!(watch.rejected(&*g, RejectReason::QueueFull), 2);
    drop(line.remove(2));
    line.push(parked(&admission, permits(&g, 1)));
    // Full again: what fits goes, what does not is turned away or told it would wait.
    drop(admission.admit(permits(&free, 1)).await.unwrap());
    let late = admission.admit(permits(&g, 1)).within(secs(0)).await;
    assert!(matches!(late, Err(AdmitError::QueueFull { .. })));
    drop(would_wait(admission.try_admit(permits(&g, 1))));
    // A time-out and a grant free a place as well.
    drop(line.pop());
    let mut late = park(admission.admit(permits(&g, 1)).within(secs(1)));
    pass_time(secs(1)).await;
    assert!(matches!(landed(&mut late), Err(AdmitError::TimedOut { .. })));
    line.push(parked(&admission, permits(&g, 1)));
    drop(held.pop());
    settle().await;
    held.push(granted(&mut line[0]));
    line.push(parked(&admission, permits(&g, 1)));
    assert_eq!(admission.queue_len(), 5);
    drop((line, held));
    settle().await;
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn m1_a_line_of_none_never_lets_anyone_wait() {
    let admission = Admission::builder().max_waiting(0).start().unwrap();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let held = admission.admit(permits(&g, 1)).await.unwrap();
    let late = admission.admit(permits(&g, 1)).await;
    assert!(matches!(late, Err(AdmitError::QueueFull { waiting: 0, limit: 0 })));
    // Never comes before the bound.
    let never = admission.admit(permits(&g, 2)).await;
    assert!(matches!(never, Err(AdmitError::Refused { .. })));
    drop(held);
    drop(admission.admit(permits(&g, 1)).await.unwrap());
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn m2_stop_turns_everybody_away_and_grants_still_settle() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let (g, b) = (gate(1), bucket(10, 100));
    let held = admission.try_admit(permits(&g, 1).tokens(&b, 100)).unwrap();
    let mut line = [
        parked(&admission, permits(&g, 1)),
        parked(&admission, tokens_of(&b, 50)),
        park(admission.admit(permits(&g, 1)).within(secs(10))),
    ];
    let mut unpolled = spawn(admission.admit(permits(&g, 1)));
    admission.stop();
    for waiter in &mut line {
        assert!(matches!(landed(waiter), Err(AdmitError::ShutDown)));
    }
    assert!(matches!(unpolled.poll(), Poll::Ready(Err(AdmitError::ShutDown))));
    let late = admission.admit(Demand::new()).await;
    assert!(matches!(late, Err(AdmitError::ShutDown)));
    let late = admission.try_admit(permits(&gate(1), 1));
    assert!(matches!(late, Err(TryAdmitError::Admit(AdmitError::ShutDown))));
    assert!(matches!(admission.start(), Err(StartError::Stopped)));
    assert_eq!(watch.rejected(&*g, RejectReason::Shutdown), 3);
    admission.stop();
    assert!(held.rollback());
    assert_eq!((g.status().active, b.status().available_tokens), (0, 100));
    drop((held, line, unpolled));
    admission.drained().await;
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn m2_a_grant_that_landed_before_stop_is_delivered() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(2);
    let held = admission.try_admit(permits(&g, 2)).unwrap();
    let (mut seen, unseen) =
        (parked(&admission, permits(&g, 1)), parked(&admission, permits(&g, 1)));
    drop(held);
    settle().await;
    admission.stop();
    let grant = granted(&mut seen);
    assert_eq!(g.status().active, 2);
    drop((grant, unseen));
    assert_eq!(g.status().active, 0);
    watch.all_gone();
}

/// Waiting in another admission is nothing to the one that stops: a give through a grant of the
/// stopped one must still be heard there.
#[tokio::test(start_paused = true)]
async fn m2_a_grant_of_a_stopped_admission_frees_a_place_in_another() {
    for drops_handle in [false, true] {
        let (one, other) = (started(), started());
        let g = gate(1);
        let held = one.try_admit(permits(&g, 1)).unwrap();
        let mut waiter = parked(&other, permits(&g, 1));
        if drops_handle {
            drop(one);
        } else {
            one.stop();
        }
        settle().await;
        drop(held);
        settle().await;
        drop(granted(&mut waiter));
        Observer::of(&other).all_gone();
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn m3_a_lost_runtime_fails_whoever_waits_and_another_may_be_started() {
    let waiting = runtime();
    let g = gate(1);
    let admission = Admission::builder().build().unwrap();
    let mut watch = Observer::of(&admission);
    for round in 1..=3 {
        let evaluator = runtime();
        evaluator.block_on(async { admission.start().unwrap() });
        assert_eq!(
            evaluator.block_on(async { admission.start() }),
            Err(StartError::AlreadyStarted)
        );
        let held = admission.try_admit(permits(&g, 1)).unwrap();
        let tasks: Vec<_> =
            (0..3).map(|_| waiting.spawn(admission.admit(permits(&g, 1)))).collect();
        waiting.block_on(async {
            while admission.queue_len() < 3 {
                tokio::task::yield_now().await;
            }
        });
        if round == 2 {
            // The evaluator has slept and is gone all the same.
            evaluator.block_on(settle());
        }
        drop(evaluator);
        assert_eq!(admission.queue_len(), 0);
        for task in tasks {
            let outcome = waiting.block_on(task).unwrap();
            assert!(matches!(outcome, Err(AdmitError::ShutDown)));
        }
        // As before a start: what fits goes, what does not waits for the next one.
        watch.at_rest();
        drop(held);
        drop(admission.try_admit(permits(&g, 1)).unwrap());
    }
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut waiter = parked(&admission, permits(&g, 1));
    drop(held);
    assert!(!waiter.is_woken());
    waiting.block_on(async {
        admission.start().unwrap();
        settle().await;
        drop(granted(&mut waiter));
    });
    watch.all_gone();
}

#[test]
fn m3_what_landed_before_the_runtime_was_lost_is_delivered() {
    let evaluator = runtime();
    let g = gate(1);
    let admission = Admission::builder().build().unwrap();
    let watch = Observer::of(&admission);
    evaluator.block_on(async { admission.start().unwrap() });
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut waiter = parked(&admission, permits(&g, 1));
    drop(held);
    evaluator.block_on(settle());
    drop(evaluator);
    assert_eq!(g.status().active, 1);
    drop(granted(&mut waiter));
    watch.all_gone();
}

#[test]
fn m3_a_start_that_cannot_be_is_a_clear_error() {
    let admission = Admission::builder().build().unwrap();
    assert_eq!(admission.start(), Err(StartError::NoRuntime));
    let timeless = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(timeless.block_on(async { admission.start() }), Err(StartError::NoTimer));
    runtime().block_on(async { admission.start().unwrap() });
    Observer::of(&admission).all_gone();
}

#[tokio::test(start_paused = true)]
async fn m3_the_evaluator_ends_with_the_last_handle() {
    let metrics = tokio::runtime::Handle::current().metrics();
    for waits in [false, true] {
        let g = gate(1);
        let admission = Admission::builder().start().unwrap();
        let clone = admission.clone();
        let held = admission.try_admit(permits(&g, 1)).unwrap();
        // A waiter is a handle, until it has what it came for; a grant is none.
        let mut waiter = waits.then(|| parked(&admission, permits(&g, 1)));
        settle().await;
        assert_eq!(metrics.num_alive_tasks(), 1);
        drop((admission, clone));
        settle().await;
        assert_eq!(metrics.num_alive_tasks(), usize::from(waits));
        drop(held);
        settle().await;
        if let Some(waiter) = &mut waiter {
            drop(granted(waiter));
        }
        drop(waiter);
        settle().await;
        assert_eq!(metrics.num_alive_tasks(), 0);
        assert_eq!(g.status().active, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn m3_a_grant_outlives_every_handle() {
    let (g, b) = (gate(1), bucket(10, 100));
    let admission = Admission::builder().start().unwrap();
    let grant = admission.admit(permits(&g, 1).tokens(&b, 60)).await.unwrap();
    drop(admission);
    settle().await;
    assert!(grant.reconcile(&b, 10));
    assert!(grant.report_success(&b));
    assert_eq!(b.status().available_tokens, 90);
    assert!(grant.rollback());
    assert!(!grant.reconcile(&b, 20));
    assert_eq!((g.status().active, b.status().available_tokens), (0, 100));
}

#[tokio::test(start_paused = true)]
async fn m4_before_its_start_an_admission_grants_what_fits_and_keeps_the_rest() {
    let admission = Admission::builder().event_capacity(1 << 14).build().unwrap();
    let mut watch = Observer::of(&admission);
    let g = gate(1);
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut first = parked(&admission, permits(&g, 1));
    let mut second = park(admission.admit(permits(&g, 1)).within(secs(5)));
    let mut third = parked(&admission, permits(&g, 1));
    settle().await;
    drop(held);
    settle().await;
    assert!(!first.is_woken(), "nobody is there to look");
    assert_eq!(admission.queue_len(), 3);
    admission.start().unwrap();
    assert_eq!(admission.start(), Err(StartError::AlreadyStarted));
    settle().await;
    let held = granted(&mut first);
    watch.at_rest();
    pass_time(secs(5)).await;
    assert!(matches!(landed(&mut second), Err(AdmitError::TimedOut { .. })));
    drop(held);
    settle().await;
    drop(granted(&mut third));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn m4_a_newcomer_serves_an_unstarted_line_before_itself() {
    let admission = Admission::builder().build().unwrap();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut first = parked(&admission, permits(&g, 1));
    drop(held);
    drop(would_wait(admission.try_admit(permits(&g, 1))));
    drop(granted(&mut first));
    drop(admission.try_admit(permits(&g, 1)).unwrap());
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn m5_every_wait_is_told_once_at_its_start_and_once_at_its_end() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let (g, unrelated) = (gate(1), gate(1));
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut line: Vec<_> = (0..1_000).map(|_| parked(&admission, permits(&g, 1))).collect();
    let mut held = Some(held);
    for (place, waiter) in line.iter_mut().enumerate() {
        if place % 10 == 0 {
            // Passes that grant nobody.
            drop(admission.try_admit(permits(&unrelated, 1)).unwrap());
            g.link().grew();
            settle().await;
            watch.look();
        }
        drop(held.take());
        settle().await;
        held = Some(granted(waiter));
    }
    drop(held);
    settle().await;
    assert_eq!(watch.count(&*g, EventKind::Held), 1_000);
    assert_eq!(watch.count(&*g, EventKind::GrantedFromHold), 1_000);
    let name = g.link().name();
    let last = watch
        .events()
        .iter()
        .rfind(|event| event.account == *name && event.kind == EventKind::GrantedFromHold)
        .unwrap();
    assert_eq!(last.waiting, 0);
    let waits: Vec<_> = watch
        .events()
        .iter()
        .filter(|event| event.account == *name && event.kind == EventKind::GrantedFromHold)
        .map(|event| event.waiting)
        .collect();
    assert_eq!(waits, (0..1_000).rev().collect::<Vec<_>>());
    watch.all_gone();
}

/// Of several accounts, a waiter is told held only where it was short, and counted there only.
#[tokio::test(start_paused = true)]
async fn m5_a_wait_that_ends_badly_is_told_as_well() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let (g, h) = (gate(1), gate(1));
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let both = permits(&g, 1).permit(&h);
    let dropped = parked(&admission, both.clone());
    let mut late = park(admission.admit(both.clone()).within(secs(1)));
    let mut goes = parked(&admission, both);
    // The first is short of the gate alone; those behind it are short of what it sets aside too.
    assert_eq!((g.link().waiting(), h.link().waiting()), (3, 2));
    drop(dropped);
    settle().await;
    assert_eq!((g.link().waiting(), h.link().waiting()), (2, 2));
    pass_time(secs(1)).await;
    assert!(matches!(landed(&mut late), Err(AdmitError::TimedOut { .. })));
    assert_eq!((g.link().waiting(), h.link().waiting()), (1, 1));
    drop(held);
    settle().await;
    drop(granted(&mut goes));
    assert_eq!((g.link().waiting(), h.link().waiting()), (0, 0));
    assert_eq!(watch.rejected(&*g, RejectReason::Cancelled), 1);
    assert_eq!(watch.rejected(&*h, RejectReason::Cancelled), 0);
    assert_eq!(watch.rejected(&*g, RejectReason::TimedOut), 1);
    assert_eq!(watch.rejected(&*h, RejectReason::TimedOut), 1);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn m6_a_subscriber_that_does_not_read_delays_nobody() {
    let admission = Admission::builder().event_capacity(4).start().unwrap();
    let mut events = admission.subscribe();
    let (g, b) = (gate(1), bucket(u32::MAX, u64::MAX - 1));
    let start = tokio::time::Instant::now();
    // Three events a round: two grants and a release. Every tenth round a wait besides.
    let mut told = 0_u64;
    while told < 100_000 {
        let grant = admission.try_admit(permits(&g, 1).tokens(&b, 3)).unwrap();
        told += 3;
        if told.is_multiple_of(10) {
            let mut waiter = parked(&admission, permits(&g, 1));
            drop(grant);
            settle().await;
            drop(granted(&mut waiter));
            told += 3;
        } else {
            drop(grant);
        }
    }
    assert_eq!(start.elapsed(), secs(0), "no grant is late");
    let Err(TryRecvError::Lagged(lost)) = events.try_recv() else { panic!("it lost some") };
    let mut read = 0;
    let mut last = 0;
    while let Ok(event) = events.try_recv() {
        read += 1;
        assert!(last == 0 || event.sequence == last + 1);
        last = event.sequence;
    }
    assert_eq!((lost + read, last), (told, told));
    assert!(read >= 4, "what is kept is the newest");
    let snapshot = admission.snapshot();
    assert_eq!(snapshot.events_dropped, 0);
    let account = |account: &dyn Account| snapshot.account(account.link().name()).unwrap().in_use;
    let now = tokio::time::Instant::now();
    assert_eq!((account(&*g), account(&*b)), (0, b.in_use(now)));
    assert_eq!(u64::from(g.status().active), account(&*g));
    drop(events);
    Observer::of(&admission).all_gone();
}

/// Everything at once on several threads and several admissions: waits, time-outs, tokens, drops,
/// stops. At the end nothing is anywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn m_a_stop_in_the_middle_of_everything_leaves_nothing_behind() {
    for round in 0..30_u64 {
        let admissions = [
            Admission::builder().start().unwrap(),
            Admission::builder().max_waiting(8).start().unwrap(),
            Admission::builder().track_holders(true).start().unwrap(),
        ];
        let gates = [gate(2), gate(1), gate(3)];
        let stopped = Arc::new(AtomicBool::new(false));
        let tasks: Vec<_> = (0..24_u64)
            .map(|task| {
                let admission = admissions[task as usize % 3].clone();
                let stopped = Arc::clone(&stopped);
                let gates = gates.clone();
                tokio::spawn(async move {
                    let mut draw = admit::testing::Draw::new(round << 8 | task);
                    for _ in 0..60 {
                        let mut demand = Demand::new();
                        for gate in &gates {
                            if draw.one_in(2) {
                                demand = demand.permit(gate);
                            }
                        }
                        let token = tokio_util::sync::CancellationToken::new();
                        let mut admit = admission.admit(demand).cancelled_by(token.clone());
                        if draw.one_in(3) {
                            admit = admit.within(millis(draw.between(0..=2)));
                        }
                        if draw.one_in(4) {
                            // Given up at once, or after a turn.
                            let turn = tokio::task::yield_now();
                            tokio::select! {
                                biased;
                                outcome = admit => drop(outcome),
                                () = turn => {}
                            }
                            continue;
                        }
                        if draw.one_in(4) {
                            tokio::spawn(async move { token.cancel() });
                        }
                        match admit.await {
                            Ok(grant) => {
                                tokio::task::yield_now().await;
                                if draw.one_in(2) {
                                    grant.rollback();
                                }
                            }
                            Err(AdmitError::ShutDown) => {
                                assert!(stopped.load(Ordering::SeqCst));
                                return;
                            }
                            Err(
                                AdmitError::Cancelled
                                | AdmitError::TimedOut { .. }
                                | AdmitError::QueueFull { .. },
                            ) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        stopped.store(true, Ordering::SeqCst);
        admissions[round as usize % 3].stop();
        for task in tasks {
            task.await.unwrap();
        }
        assert!(gates.iter().all(|gate| gate.status().active == 0));
        for admission in &admissions {
            Observer::of(admission).all_gone();
        }
    }
}
