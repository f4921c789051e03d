//! C. Cancellation: whoever leaves, at whatever moment, leaves nothing behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use admit::testing::Draw;
use admit::{Account, Admission, AdmitError, Demand, EventKind, RejectReason};
use tokio::task::{coop::Unconstrained, unconstrained};
use tokio::time::Instant;
use tokio_test::task::{Spawn, spawn};
use tokio_util::sync::CancellationToken;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn c1_the_next_goes_as_the_head_leaves() {
    for way in ["dropped", "cancelled", "timed out"] {
        let admission = started();
        let watch = Observer::of(&admission);
        let g = gate(3);
        let held = admission.try_admit(permits(&g, 2)).unwrap();
        let token = CancellationToken::new();
        let admit = admission.admit(permits(&g, 3)).cancelled_by(token.clone());
        let mut head = Some(park(admit.within(secs(1))));
        let mut next = parked(&admission, permits(&g, 1));
        let start = Instant::now();
        match way {
            "dropped" => head = None,
            "cancelled" => {
                token.cancel();
                // The job leaves when it is polled, as it was woken to be.
                let error = landed(head.as_mut().unwrap()).unwrap_err();
                assert!(matches!(error, AdmitError::Cancelled));
            }
            _ => {
                // The clock goes to the time-out and not beyond.
                pass_time(secs(1)).await;
                let error = landed(head.as_mut().unwrap()).unwrap_err();
                assert!(matches!(error, AdmitError::TimedOut { waited, .. } if waited == secs(1)));
            }
        }
        let moved = if way == "timed out" { secs(1) } else { secs(0) };
        settle().await;
        let next = granted(&mut next);
        assert_eq!(start.elapsed(), moved, "{way}");
        assert_eq!(g.status().active, 3);
        drop((head, next, held));
        watch.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn c2_eight_time_outs_leave_eight_permits_for_one() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let g = gate(8);
    let held: Vec<_> = (0..8).map(|_| admission.try_admit(permits(&g, 1)).unwrap()).collect();
    let start = Instant::now();
    let late: Vec<_> =
        (0..8).map(|_| tokio::spawn(admission.admit(permits(&g, 1)).within(secs(1)))).collect();
    for late in late {
        let error = late.await.unwrap().unwrap_err();
        assert!(matches!(error, AdmitError::TimedOut { waited, .. } if waited == secs(1)));
        assert_eq!(start.elapsed(), secs(1));
    }
    assert_eq!(watch.rejected(&*g, RejectReason::TimedOut), 8);
    pass_time(secs(1)).await;
    drop(held);
    assert_eq!(g.status().available_permits, 8);
    drop(admission.try_admit(permits(&g, 8)).unwrap());
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn c3_a_grant_that_nobody_saw_goes_back_whole() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let (g, b) = (gate(2), bucket(10, 1_000));
    let held = admission.try_admit(permits(&g, 2)).unwrap();
    let x = parked(&admission, permits(&g, 2).tokens(&b, 100));
    let mut y = parked(&admission, permits(&g, 2));
    let mut z = parked(&admission, permits(&g, 1));
    drop(held);
    settle().await;
    assert!(x.is_woken());
    assert_eq!((b.status().available_tokens, b.status().available_requests), (900, 9));
    assert_eq!(admission.snapshot().unseen.count, 1);
    drop(x);
    settle().await;
    assert_eq!((b.status().available_tokens, b.status().available_requests), (1_000, 10));
    let y = granted(&mut y);
    assert!(!z.is_woken());
    assert_eq!(watch.count(&*b, EventKind::Released), 1);
    drop(y);
    settle().await;
    drop(granted(&mut z));
    watch.all_gone();
}

/// Admits polled on one thread and dropped at random moments, while another takes and releases, and
/// the evaluator runs on a third. The clock stands, so every level can be told exactly.
#[tokio::test(start_paused = true)]
async fn c4_ten_thousand_leave_at_any_moment_and_nothing_is_lost() {
    let admission = Admission::builder().start().unwrap();
    let (g, h, k) = (gate(2), gate(3), gate(1));
    let (b, d) = (bucket(1_000_000, 10_000_000), bucket(3_000_000_000, 1_000_000_000_000));
    // Never more than there is, so that nobody is refused.
    let demand = |draw: &mut Draw| {
        let mut demand = permits(&g, draw.between(1..=2) as u32);
        if draw.one_in(3) {
            demand = Demand::new();
        }
        if draw.one_in(3) {
            demand = demand.permits(&h, draw.between(1..=3) as u32);
        }
        if draw.one_in(3) {
            demand = demand.permit(&k);
        }
        if draw.one_in(2) {
            demand = demand.tokens(&b, draw.between(0..=9));
        }
        demand.tokens(&d, draw.between(0..=9))
    };
    let finished = Arc::new(AtomicBool::new(false));
    // What a thread was granted and released: tokens and requests, of either bucket.
    type Spent = [(u64, u64); 2];
    let note = |spent: &mut Spent, grant: &admit::Grant, ids: [admit::AccountId; 2]| {
        for entry in grant.demand().entries() {
            if let Some(at) = ids.iter().position(|&id| id == entry.account().link().id()) {
                spent[at].0 += entry.amount().units;
                spent[at].1 += u64::from(entry.amount().requests);
            }
        }
    };
    let ids = [b.link().id(), d.link().id()];
    let releasing = {
        let (admission, finished) = (admission.clone(), Arc::clone(&finished));
        let (g, h, k) = (Arc::clone(&g), Arc::clone(&h), Arc::clone(&k));
        tokio::task::spawn_blocking(move || {
            let mut draw = Draw::new(41);
            let mut grants = 0;
            while !finished.load(Ordering::Relaxed) {
                let demand = match draw.between(0..=2) {
                    0 => permits(&g, 1),
                    1 => permits(&h, 2),
                    _ => permits(&k, 1).permit(&g),
                };
                if let Ok(grant) = admission.try_admit(demand) {
                    grants += 1;
                    std::thread::yield_now();
                    drop(grant);
                }
                // The lock is not fair: the others must get it too.
                std::thread::yield_now();
            }
            grants
        })
    };
    let polling = {
        let (admission, finished) = (admission.clone(), Arc::clone(&finished));
        let mut draw = Draw::new(42);
        let demands: Vec<_> = (0..10_000).map(|_| demand(&mut draw)).collect();
        tokio::task::spawn_blocking(move || {
            let _finished = Finished(finished);
            let mut spent: Spent = [(0, 0); 2];
            let mut line: Vec<Spawn<Unconstrained<admit::Admit>>> = Vec::new();
            let poll =
                |admit: &mut Spawn<Unconstrained<admit::Admit>>, spent: &mut Spent| match admit
                    .poll()
                {
                    std::task::Poll::Pending => false,
                    std::task::Poll::Ready(outcome) => {
                        note(spent, &outcome.unwrap(), ids);
                        true
                    }
                };
            for demand in demands {
                let mut admit = spawn(unconstrained(admission.admit(demand)));
                if draw.one_in(10) || poll(&mut admit, &mut spent) {
                    continue;
                }
                line.push(admit);
                if line.len() > 12 {
                    let at = draw.between(0..=11) as usize;
                    let mut admit = line.swap_remove(at);
                    if draw.one_in(2) && admit.is_woken() {
                        assert!(poll(&mut admit, &mut spent), "woken for its outcome");
                    }
                    drop(admit);
                }
            }
            drop(line);
            spent
        })
    };
    let spent = polling.await.unwrap();
    assert!(releasing.await.unwrap() > 0);
    settle().await;
    for (bucket, (tokens, requests)) in [(&b, spent[0]), (&d, spent[1])] {
        let status = bucket.status();
        assert_eq!(status.tokens_per_minute - status.available_tokens, tokens);
        let used = u64::from(status.requests_per_minute - status.available_requests);
        assert_eq!(used, requests);
    }
    Observer::of(&admission).all_gone();
}

/// Ends the other thread's loop, however this one ends.
struct Finished(Arc<AtomicBool>);

impl Drop for Finished {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Tasks on several threads, aborted at any moment, some by the very release that grants them.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn c4_tasks_aborted_from_another_thread_leave_nothing() {
    let admission = Admission::builder().start().unwrap();
    let gates = [gate(1), gate(2), gate(3)];
    let mut draw = Draw::new(43);
    for _ in 0..100 {
        let tasks: Vec<_> =
            (0..50)
                .map(|_| {
                    let mut demand = Demand::new();
                    for _ in 0..draw.between(1..=3) {
                        demand = demand.permit(&gates[draw.between(0..=2) as usize]);
                    }
                    if demand.entries().iter().any(|entry| {
                        u64::from(entry.amount().requests) > entry.account().capacity()
                    }) {
                        demand = permits(&gates[0], 1);
                    }
                    let admission = admission.clone();
                    tokio::spawn(async move {
                        let grant = admission.admit(demand).await.unwrap();
                        tokio::task::yield_now().await;
                        drop(grant);
                    })
                })
                .collect();
        for task in &tasks {
            if draw.one_in(2) {
                task.abort();
            }
        }
        for task in tasks {
            if let Err(error) = task.await {
                assert!(error.is_cancelled());
            }
        }
    }
    assert!(gates.iter().all(|gate| gate.status().active == 0));
    Observer::of(&admission).all_gone();
}

#[tokio::test(start_paused = true)]
async fn c5_at_the_very_instant_it_is_a_grant_or_a_time_out() {
    let admission = Admission::builder().start().unwrap();
    let b = bucket(60, 60);
    drop(admission.try_admit(tokens_of(&b, 60)).unwrap());
    for round in 0..100_000 {
        // Nothing is left and one token takes exactly a second.
        assert_eq!(b.status().available_tokens, 0, "round {round}");
        let start = Instant::now();
        let outcome = admission.admit(tokens_of(&b, 1)).within(secs(1)).await;
        assert_eq!(start.elapsed(), secs(1), "round {round}");
        match outcome {
            Ok(grant) => drop(grant),
            Err(AdmitError::TimedOut { .. }) => {
                assert_eq!(b.status().available_tokens, 1, "a time-out debits nothing");
                drop(admission.try_admit(tokens_of(&b, 1)).unwrap());
            }
            Err(error) => panic!("{error}"),
        }
    }
    Observer::of(&admission).all_gone();
}

#[tokio::test(start_paused = true)]
async fn c5_around_the_instant_too() {
    let admission = Admission::builder().start().unwrap();
    let mut draw = Draw::new(5);
    let (mut grants, mut late) = (0, 0);
    for _ in 0..2_000 {
        let b = bucket(60, 60);
        drop(admission.try_admit(tokens_of(&b, 60)).unwrap());
        let within = std::time::Duration::from_micros(draw.between(996_000..=1_004_000));
        match admission.admit(tokens_of(&b, 1)).within(within).await {
            Ok(grant) => {
                grants += 1;
                drop(grant);
            }
            Err(AdmitError::TimedOut { waited, .. }) => {
                late += 1;
                assert!(waited >= within);
                assert!(within < secs(1), "it fits at 1 s and had until {within:?}");
                assert_eq!(b.status().available_requests, 59);
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(grants > 0 && late > 0);
    Observer::of(&admission).all_gone();
}

#[tokio::test(start_paused = true)]
async fn c6_a_task_that_panics_or_is_aborted_gives_its_permit_back_once() {
    for panics in [true, false] {
        let admission = started();
        let mut watch = Observer::of(&admission);
        let (g, b) = (gate(1), bucket(10, 1_000));
        let admit = admission.admit(permits(&g, 1).tokens(&b, 100));
        let task = tokio::spawn(async move {
            let _grant = admit.await.unwrap();
            if panics {
                panic!("the job fails");
            }
            std::future::pending::<()>().await;
        });
        settle().await;
        if !panics {
            assert_eq!(g.status().active, 1);
            task.abort();
        }
        assert_eq!(task.await.unwrap_err().is_panic(), panics);
        assert_eq!(g.status().active, 0);
        assert_eq!(b.status().available_tokens, 900);
        assert_eq!(watch.count(&*g, EventKind::Released), 1);
        assert_eq!(watch.count(&*b, EventKind::Released), 0);
        watch.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn c7_release_and_rollback_race_and_one_of_them_settles() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let (g, b) = (gate(2), bucket(1_000_000, 1_000));
    let kept = admission.try_admit(permits(&g, 1)).unwrap();
    for _ in 0..1_000 {
        let left = b.status().available_tokens;
        let grant = Arc::new(admission.try_admit(permits(&g, 1).tokens(&b, 1)).unwrap());
        let barrier = Barrier::new(2);
        let (released, rolled_back) = std::thread::scope(|scope| {
            let releasing = scope.spawn(|| {
                barrier.wait();
                grant.release()
            });
            barrier.wait();
            let rolled_back = grant.rollback();
            (releasing.join().unwrap(), rolled_back)
        });
        assert!(released ^ rolled_back);
        drop(grant);
        assert_eq!(g.status().active, 1);
        assert_eq!(b.status().available_tokens, if rolled_back { left } else { left - 1 });
        if b.status().available_tokens == 0 {
            pass_time(secs(60)).await;
        }
        watch.look();
    }
    assert_eq!(watch.count(&*g, EventKind::Released), 1_000);
    drop(kept);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn c8_a_grant_bound_to_nothing_is_over_at_once() -> Result<(), AdmitError> {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let _ = admission.admit(permits(&g, 1)).await?;
    assert_eq!(g.status().active, 0);
    let _ = admission.admit(permits(&g, 1)).await?;
    watch.all_gone();
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn c9_no_place_is_taken_before_the_first_poll() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let g = gate(2);
    let unpolled = [admission.admit(permits(&g, 2)), admission.admit(permits(&g, 1))];
    let token = CancellationToken::new();
    token.cancel();
    let mut third = spawn(admission.admit(permits(&g, 1)).cancelled_by(token));
    let std::task::Poll::Ready(Err(error)) = third.poll() else { panic!("it is cancelled") };
    assert!(matches!(error, AdmitError::Cancelled));
    assert_eq!(admission.queue_len(), 0);
    drop(admission.try_admit(permits(&g, 2)).unwrap());
    assert_eq!(watch.rejected(&*g, RejectReason::Cancelled), 1);
    drop((unpolled, third));
    watch.all_gone();
}

/// The line stands: a holder, then one that is to go, then one behind it. What is done to the one in
/// the middle, and when, is the case; the last must always be able to go in the end.
#[tokio::test(start_paused = true)]
async fn c_an_admit_dropped_at_any_point_leaves_everything_as_it_was() {
    for point in ["unpolled", "parked", "landed", "held by the budget", "seen"] {
        for behind in [1, 2] {
            let admission = started();
            let watch = Observer::of(&admission);
            let (g, b) = (gate(2), bucket(10, 1_000));
            let held = admission.try_admit(permits(&g, 2)).unwrap();
            let demand = permits(&g, 2).tokens(&b, 100);
            let mut middle = spawn(admission.admit(demand));
            if point != "unpolled" {
                assert!(middle.poll().is_pending());
            }
            let mut last = parked(&admission, permits(&g, behind));
            match point {
                "unpolled" | "parked" => {
                    drop(middle);
                    settle().await;
                    assert!(!last.is_woken());
                    drop(held);
                }
                "landed" => {
                    drop(held);
                    settle().await;
                    assert!(middle.is_woken());
                    drop(middle);
                }
                "held by the budget" => {
                    drop(held);
                    settle().await;
                    spend_budget();
                    assert!(middle.poll().is_pending(), "decided, and the budget is spent");
                    assert_eq!(b.status().available_tokens, 900);
                    drop(middle);
                }
                _ => {
                    drop(held);
                    settle().await;
                    drop(granted(&mut middle));
                }
            }
            settle().await;
            drop(granted(&mut last));
            let seen = point == "seen";
            assert_eq!(b.status().available_tokens, if seen { 900 } else { 1_000 }, "{point}");
            watch.all_gone();
        }
    }
}

/// Spends what the present task may do before it must yield.
fn spend_budget() {
    for _ in 0..1_000 {
        let mut consumed = spawn(tokio::task::coop::consume_budget());
        if consumed.poll().is_pending() {
            return;
        }
    }
    panic!("there is a budget inside a runtime");
}

#[tokio::test(start_paused = true)]
async fn c_a_token_cancelled_at_any_moment_wins_over_a_grant() {
    for moment in ["before", "parked", "landed", "held by the budget", "inline by the budget"] {
        let admission = started();
        let watch = Observer::of(&admission);
        let (g, b) = (gate(1), bucket(10, 1_000));
        let token = CancellationToken::new();
        let demand = permits(&g, 1).tokens(&b, 100);
        let mut held = Some(admission.try_admit(permits(&g, 1)).unwrap());
        let mut admit = spawn(admission.admit(demand).cancelled_by(token.clone()));
        match moment {
            "before" => token.cancel(),
            "parked" => {
                assert!(admit.poll().is_pending());
                token.cancel();
                assert!(admit.is_woken());
            }
            "landed" => {
                assert!(admit.poll().is_pending());
                held = None;
                settle().await;
                token.cancel();
            }
            "held by the budget" => {
                assert!(admit.poll().is_pending());
                held = None;
                settle().await;
                spend_budget();
                assert!(admit.poll().is_pending());
                token.cancel();
                tokio::task::yield_now().await;
            }
            _ => {
                held = None;
                spend_budget();
                assert!(admit.poll().is_pending());
                assert_eq!(b.status().available_tokens, 900);
                token.cancel();
                tokio::task::yield_now().await;
            }
        }
        let std::task::Poll::Ready(outcome) = admit.poll() else { panic!("{moment}") };
        assert!(matches!(outcome.unwrap_err(), AdmitError::Cancelled), "{moment}");
        assert_eq!(b.status().available_tokens, 1_000, "{moment}");
        assert_eq!(b.status().available_requests, 10, "{moment}");
        settle().await;
        drop(held);
        drop(admission.try_admit(permits(&g, 1)).unwrap());
        watch.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn c_a_time_limit_ends_at_any_moment_without_taking_anything() {
    // A grant that landed before the limit wins over it, however late it is looked at.
    let admission = started();
    let mut watch = Observer::of(&admission);
    let g = gate(1);
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut admit = park(admission.admit(permits(&g, 1)).within(secs(1)));
    pass_time(millis(999)).await;
    drop(held);
    settle().await;
    pass_time(secs(10)).await;
    drop(granted(&mut admit));

    // Three limits at one instant, the middle one dropped before; the head's end frees the rest.
    let g = gate(3);
    let held = admission.try_admit(permits(&g, 2)).unwrap();
    let mut first = park(admission.admit(permits(&g, 3)).within(secs(1)));
    let second = park(admission.admit(permits(&g, 2)).within(secs(1)));
    let mut third = park(admission.admit(permits(&g, 1)).within(secs(1)));
    let mut fourth = parked(&admission, permits(&g, 1));
    pass_time(millis(500)).await;
    drop(second);
    pass_time(millis(500)).await;
    assert!(matches!(landed(&mut first), Err(AdmitError::TimedOut { .. })));
    // The third's time was up at the same instant, whatever the first left behind.
    assert!(matches!(landed(&mut third), Err(AdmitError::TimedOut { .. })));
    let fourth = granted(&mut fourth);
    watch.at_rest();
    drop((fourth, held));
    watch.all_gone();
}
