//! B. Order and starvation: who goes before whom.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use admit::{Account, Demand};
use tokio::task::{coop::Unconstrained, unconstrained};
use tokio::time::Instant;
use tokio_test::task::{Spawn, spawn};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn b1_small_jobs_do_not_starve_a_large_one() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let g = gate(10);
    let mut held: Vec<_> = (0..10).map(|_| admission.try_admit(permits(&g, 1)).unwrap()).collect();
    let mut large = parked(&admission, permits(&g, 10));
    let mut small: Vec<_> = (0..100).map(|_| parked(&admission, permits(&g, 1))).collect();
    while held.len() > 1 {
        drop(held.pop());
        settle().await;
        assert!(!large.is_woken());
        assert!(small.iter().all(|small| !small.is_woken()));
    }
    drop(held.pop());
    settle().await;
    let grant = granted(&mut large);
    assert!(small.iter().all(|small| !small.is_woken()));
    watch.at_rest();
    drop(grant);
    settle().await;
    // Ten at a time, in the order they came.
    let mut place = 0;
    while place < 100 {
        let ten: Vec<_> = small[place..place + 10].iter_mut().map(granted).collect();
        place += 10;
        assert!(small[place..].iter().all(|small| !small.is_woken()), "at {place}");
        drop(ten);
        settle().await;
    }
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn b2_who_needs_nothing_of_the_heads_goes_past_it() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let (a, b, c) = (gate(1), gate(3), gate(1));
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    let head_demand = permits(&a, 1).permits(&b, 2);
    let mut head = parked(&admission, head_demand.clone());
    let mut two = parked(&admission, permits(&b, 2));
    let one = spawn_ready(&admission, permits(&b, 1));
    let other = spawn_ready(&admission, permits(&c, 1));
    settle().await;
    assert!(!two.is_woken());
    watch.nobody_could_go(&[head_demand, permits(&b, 2)]);
    drop(held);
    settle().await;
    let head = granted(&mut head);
    assert!(!two.is_woken());
    drop(one);
    settle().await;
    assert!(!two.is_woken(), "the head has two of three");
    drop(head);
    settle().await;
    drop((granted(&mut two), other));
    watch.all_gone();
}

/// An admit that must be granted at its first poll.
fn spawn_ready(admission: &admit::Admission, demand: Demand) -> admit::Grant {
    match spawn(admission.admit(demand)).poll() {
        std::task::Poll::Ready(outcome) => outcome.unwrap(),
        std::task::Poll::Pending => panic!("it fits beside whoever waits"),
    }
}

#[tokio::test(start_paused = true)]
async fn b3_only_the_head_reserves() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let (a, b) = (gate(1), gate(3));
    let held_a = admission.try_admit(permits(&a, 1)).unwrap();
    let held_b = admission.try_admit(permits(&b, 2)).unwrap();
    let mut head = parked(&admission, permits(&a, 1));
    let mut second = parked(&admission, permits(&b, 3));
    let newcomer = spawn_ready(&admission, permits(&b, 1));
    drop(newcomer);
    drop(held_a);
    settle().await;
    let head = granted(&mut head);
    // The second is head now: nobody takes of B before it.
    let mut late = parked(&admission, permits(&b, 1));
    assert_short_of(&would_wait(admission.try_admit(permits(&b, 1))), &[&*b]);
    watch.nobody_could_go(&[permits(&b, 3), permits(&b, 1)]);
    drop(held_b);
    settle().await;
    let second = granted(&mut second);
    assert!(!late.is_woken());
    drop((head, second));
    settle().await;
    drop(granted(&mut late));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn b4_a_waiter_is_not_overtaken_by_those_who_come_again_and_again() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let grants: Arc<Mutex<Vec<usize>>> = Arc::default();
    let arrivals = Arc::new(AtomicUsize::new(0));
    let looping = |rounds: usize| {
        let (admission, demand) = (admission.clone(), permits(&g, 1));
        let (grants, arrivals) = (Arc::clone(&grants), Arc::clone(&arrivals));
        tokio::spawn(async move {
            for _ in 0..rounds {
                // The place is taken at the first poll, with no other task in between.
                let ticket = arrivals.fetch_add(1, Ordering::SeqCst);
                let grant = admission.admit(demand.clone()).await.unwrap();
                grants.lock().unwrap().push(ticket);
                tokio::task::yield_now().await;
                drop(grant);
            }
        })
    };
    let tasks = [looping(1_000), looping(1_000), looping(1), looping(300)];
    for task in tasks {
        task.await.unwrap();
    }
    let grants = std::mem::take(&mut *grants.lock().unwrap());
    assert_eq!(grants.len(), 2_301);
    assert!(grants.is_sorted(), "granted in order of arrival");
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn b5_what_is_free_is_the_heads() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let g = gate(2);
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let head = parked(&admission, permits(&g, 2));
    assert_eq!(g.status().available_permits, 1);
    let short = would_wait(admission.try_admit(permits(&g, 1)));
    assert_short_of(&short, &[&*g]);
    assert_eq!(short[0].reserved_ahead, admit::Amount::permits(2));
    watch.nobody_could_go(&[permits(&g, 2)]);
    drop(head);
    drop(admission.try_admit(permits(&g, 1)).unwrap());
    drop(held);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn b6_a_drained_bucket_serves_its_line_at_its_rate() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let b = bucket(300, 60_000);
    for _ in 0..300 {
        drop(admission.try_admit(tokens_of(&b, 1)).unwrap());
    }
    let start = Instant::now();
    let times: Arc<Mutex<Vec<(usize, u128)>>> = Arc::default();
    let tasks: Vec<_> = (1..=100)
        .map(|k| {
            let (admit, times) = (admission.admit(tokens_of(&b, 1)), Arc::clone(&times));
            tokio::spawn(async move {
                drop(admit.await.unwrap());
                times.lock().unwrap().push((k, start.elapsed().as_millis()));
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
        watch.look();
    }
    let expected: Vec<_> = (1..=100).map(|k| (k, k as u128 * 200)).collect();
    assert_eq!(*times.lock().unwrap(), expected);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn b7_one_head_sets_aside_what_one_head_needs() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let (s, a, b) = (bucket(10, 10_000), gate(1), gate(20));
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    let tenant = permits(&a, 1).tokens(&s, 10);
    let waiting: Vec<_> = (0..20).map(|_| parked(&admission, tenant.clone())).collect();
    let start = Instant::now();
    let other = permits(&b, 1).tokens(&s, 10);
    let nine: Vec<_> = (0..9).map(|_| spawn_ready(&admission, other.clone())).collect();
    assert_eq!(s.status().available_requests, 1);
    let mut tenth = parked(&admission, other.clone());
    let mut demands = vec![tenant; 20];
    demands.push(other);
    watch.nobody_could_go(&demands);
    pass_time(millis(5_999)).await;
    assert!(!tenth.is_woken());
    pass_time(millis(1)).await;
    let tenth = granted(&mut tenth);
    assert_eq!(start.elapsed(), secs(6));
    assert_eq!(s.status().available_requests, 1, "the head's request is still there");
    watch.at_rest();
    drop((waiting, nine, tenth, held));
    settle().await;
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn b8_gives_on_an_unrelated_gate_move_nobody() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let (own, g) = (Own::new(1), gate(1));
    let held = admission.try_admit(Demand::new().permit(&own)).unwrap();
    let mut line: Vec<_> =
        (0..10_000).map(|_| parked(&admission, Demand::new().permit(&own))).collect();
    let asked = own.asked.load(Ordering::Relaxed);
    for _ in 0..1_000 {
        drop(admission.try_admit(permits(&g, 1)).unwrap());
        settle().await;
    }
    let asked = own.asked.load(Ordering::Relaxed) - asked;
    assert!(asked <= 2_000, "the head is looked at, the others are not: {asked}");
    assert!(line.iter().all(|waiter| !waiter.is_woken()));
    assert_eq!(own.link().waiting(), 10_000);
    watch.nobody_could_go(&vec![Demand::new().permit(&own); 10_000]);
    drop(held);
    for waiter in &mut line {
        settle().await;
        drop(granted(waiter));
    }
    watch.all_gone();
}

/// One hold of the lock looks at some thousands. Whoever stands behind those that went in the first
/// holds must be looked at in the last, though the places they stood at are gone.
#[tokio::test(start_paused = true)]
async fn b_followers_are_looked_at_behind_thousands_of_heads_that_went() {
    for heads in [4_095, 4_096, 4_097, 5_000, 9_000] {
        for collect in [false, true] {
            let admission = quiet();
            let (g, h) = (gate(1), gate(1));
            let held = admission.try_admit(permits(&g, 1).permit(&h)).unwrap();
            let mut line: Vec<_> = (0..heads).map(|_| waiting(&admission, &g)).collect();
            let mut stays = parked(&admission, permits(&h, 1));
            let mut follows = parked(&admission, permits(&g, 1));
            g.resize(heads + 2).unwrap();
            for _ in 0..10 {
                tokio::task::yield_now().await;
                if collect {
                    // Their slots are free again while the walk still stands in the line.
                    line.retain_mut(|admit| !(admit.is_woken() && admit.poll().is_ready()));
                }
            }
            settle().await;
            assert!(!stays.is_woken());
            drop(granted(&mut follows));
            admission.check();
            drop((line, held));
            settle().await;
            drop(granted(&mut stays));
            Observer::of(&admission).all_gone();
        }
    }
}

/// A head that fails in the middle of an unfinished walk sets nothing aside any more, also for those
/// the walk has passed already.
#[tokio::test(start_paused = true)]
async fn b_a_head_that_fails_between_two_holds_frees_those_walked_past() {
    let admission = quiet();
    let (own, b, c) = (Own::new(1), gate(3), gate(1));
    let held = admission.try_admit(Demand::new().permit(&own).permit(&c)).unwrap();
    let mut head = parked(&admission, Demand::new().permits(&own, 1).permits(&b, 2));
    let stays = parked(&admission, permits(&c, 1));
    let mut second = parked(&admission, permits(&b, 2));
    let line: Vec<_> = (0..6_000).map(|_| waiting(&admission, &c)).collect();
    // Something to look at: the evaluator walks past the second and stops in the line.
    drop(admission.admit(Demand::new()).await.unwrap());
    own.link().grew();
    tokio::task::yield_now().await;
    // The next hold finds the head broken; where one hold was enough, the next look does.
    own.panic_in("fits");
    settle().await;
    if !head.is_woken() {
        own.link().grew();
        settle().await;
    }
    assert!(matches!(landed(&mut head), Err(admit::AdmitError::AccountFault { .. })));
    own.calm();
    settle().await;
    drop(granted(&mut second));
    drop((stays, line, held));
    settle().await;
    Observer::of(&admission).all_gone();
}

/// An admission nobody subscribed to.
fn quiet() -> admit::Admission {
    admit::Admission::builder().start().unwrap()
}

/// One that waits for a permit and, unlike others polled by hand, heeds no budget.
fn waiting(
    admission: &admit::Admission,
    gate: &Arc<admit::CountingGate>,
) -> Spawn<Unconstrained<admit::Admit>> {
    let mut admit = spawn(unconstrained(admission.admit(permits(gate, 1))));
    assert!(admit.poll().is_pending());
    admit
}
