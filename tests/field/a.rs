//! A. Atomicity: a demand is taken whole, or nothing of it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

use admit::testing::Draw;
use admit::{Account, Admission, CountingGate, Demand, TokenBucket};
use tokio_test::task::spawn;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn a1_what_a_full_gate_refuses_costs_the_bucket_nothing() {
    // Debits go in order of account id, so both ages are tried, and both orders of naming.
    for (gate_first, named_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let admission = started();
        let watch = Observer::of(&admission);
        let (g, b) = if gate_first {
            let g = gate(1);
            (g, bucket(2, 1_000))
        } else {
            let b = bucket(2, 1_000);
            (gate(1), b)
        };
        drop(admission.try_admit(tokens_of(&b, 0)).unwrap());
        assert_eq!(b.status().available_requests, 1);
        let held = admission.try_admit(permits(&g, 1)).unwrap();
        let demand =
            if named_first { permits(&g, 1).tokens(&b, 10) } else { tokens_of(&b, 10).permit(&g) };
        for _ in 0..3 {
            assert_short_of(&would_wait(admission.try_admit(demand.clone())), &[&*g]);
            assert_eq!(b.status().available_requests, 1);
            assert_eq!(b.status().available_tokens, 1_000);
        }
        drop(held);
        let grant = admission.try_admit(demand).unwrap();
        assert_eq!(b.status().available_requests, 0);
        assert_eq!(b.status().available_tokens, 990);
        drop(grant);
        watch.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn a2_two_buckets_are_debited_together_or_not_at_all() {
    for swap in [false, true] {
        let admission = started();
        let watch = Observer::of(&admission);
        let (p, q) = (bucket(100, 1_000), bucket(100, 1_000));
        drop(admission.try_admit(tokens_of(&p, 500)).unwrap());
        drop(admission.try_admit(tokens_of(&q, 1_000)).unwrap());
        let demand = if swap {
            tokens_of(&q, 500).tokens(&p, 500)
        } else {
            tokens_of(&p, 500).tokens(&q, 500)
        };
        assert_short_of(&would_wait(admission.try_admit(demand)), &[&*q]);
        assert_eq!(p.status().available_tokens, 500);
        assert_eq!(p.status().available_requests, 99);
        assert_eq!(q.status().available_tokens, 0);
        watch.all_gone();
    }
}

/// What is read of the accounts, down to the last scaled unit.
fn levels(gates: &[Arc<CountingGate>], buckets: &[Arc<TokenBucket>]) -> Vec<String> {
    let gates = gates.iter().map(|gate| format!("{gate:?}"));
    gates.chain(buckets.iter().map(|bucket| format!("{bucket:?}"))).collect()
}

#[tokio::test(start_paused = true)]
async fn a4_whoever_is_refused_or_leaves_was_never_there() {
    let admission = Admission::builder().start().unwrap();
    let watch = Observer::of(&admission);
    let gates = [gate(1), gate(3), gate(8)];
    let buckets = [bucket(5, 100), bucket(600, 60_000), bucket(1_000, 7)];
    // Some of everything is in use, and one gate is full: whoever names it cannot go.
    let full = gate(2);
    let held =
        admission.try_admit(permits(&full, 2).permits(&gates[1], 1).permits(&gates[2], 5)).unwrap();
    drop(admission.try_admit(tokens_of(&buckets[0], 37).tokens(&buckets[2], 3)).unwrap());
    let before = levels(&gates, &buckets);
    let mut draw = Draw::new(4);
    let mut line: Vec<_> = Vec::new();
    for round in 0..100_000 {
        let mut demand = Demand::new();
        // The full gate stands anywhere among the others.
        let others = draw.between(0..=5);
        let place = draw.between(0..=others);
        for at in 0..=others {
            if at == place {
                demand = demand.permits(&full, draw.between(1..=2) as u32);
                continue;
            }
            demand = match draw.between(0..=5) as usize {
                at @ 0..=2 => demand.permits(&gates[at], draw.between(1..=4) as u32),
                at => demand.tokens(&buckets[at - 3], draw.between(0..=70)),
            };
        }
        match draw.between(0..=3) {
            0 => drop(admission.try_admit(demand).unwrap_err()),
            // Never polled.
            1 => drop(admission.admit(demand)),
            _ => {
                let mut admit = spawn(admission.admit(demand));
                if admit.poll().is_pending() {
                    line.push(admit);
                }
                if line.len() > 5 {
                    drop(line.swap_remove(draw.between(0..=5) as usize));
                }
            }
        }
        if round % 64 == 0 {
            settle().await;
        }
    }
    line.clear();
    settle().await;
    assert_eq!(levels(&gates, &buckets), before);
    drop(held);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn a4_what_was_granted_and_rolled_back_was_never_there_either() {
    let admission = Admission::builder().start().unwrap();
    let watch = Observer::of(&admission);
    let gates = [gate(4), gate(3), gate(8)];
    let buckets = [bucket(5, 100), bucket(600, 60_000), bucket(1_000, 7)];
    drop(admission.try_admit(tokens_of(&buckets[0], 37).tokens(&buckets[2], 3)).unwrap());
    let before = levels(&gates, &buckets);
    let mut draw = Draw::new(5);
    let mut granted = Vec::new();
    for _ in 0..100_000 {
        let mut demand = Demand::new();
        for _ in 0..draw.between(1..=6) {
            demand = match draw.between(0..=5) as usize {
                at @ 0..=2 => demand.permit(&gates[at]),
                at => demand.tokens(&buckets[at - 3], draw.between(0..=3)),
            };
        }
        if let Ok(grant) = admission.try_admit(demand) {
            granted.push(grant);
        }
        if granted.len() > 3 {
            let at = draw.between(0..=3) as usize;
            assert!(granted.swap_remove(at).rollback());
        }
    }
    for grant in granted {
        assert!(grant.rollback());
    }
    assert_eq!(levels(&gates, &buckets), before);
    watch.all_gone();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a5_one_of_three_threads_gets_the_last_permit() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let g = gate(10);
    let held = admission.try_admit(permits(&g, 9)).unwrap();
    for _ in 0..300 {
        let barrier = Barrier::new(3);
        let grants = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    barrier.wait();
                    grants.lock().unwrap().extend(admission.try_admit(permits(&g, 1)));
                });
            }
        });
        assert_eq!(grants.lock().unwrap().len(), 1);
        assert_eq!(g.status().active, 10);
        watch.look();
    }
    drop(held);
    watch.all_gone();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a5_sixty_four_handles_share_one_permit() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let (inside, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (admission, demand) = (admission.clone(), permits(&g, 1));
            let (inside, peak) = (Arc::clone(&inside), Arc::clone(&peak));
            tokio::spawn(async move {
                for _ in 0..50 {
                    let grant = admission.admit(demand.clone()).await.unwrap();
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    peak.fetch_max(now, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(grant);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(peak.load(Ordering::SeqCst), 1);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn a6_a_waiting_head_holds_nothing_and_still_comes_first() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let (a, b) = (gate(1), gate(1));
    let held = admission.try_admit(permits(&b, 1)).unwrap();
    let both = permits(&a, 1).permit(&b);
    let mut head = parked(&admission, both.clone());
    assert_eq!(admission.snapshot().account(a.link().name()).unwrap().in_use, 0);
    let newcomer = parked(&admission, permits(&a, 1));
    assert_short_of(&would_wait(admission.try_admit(permits(&a, 1))), &[&*a]);
    watch.nobody_could_go(&[both, permits(&a, 1)]);
    drop(held);
    settle().await;
    let grant = granted(&mut head);
    assert!(!{ newcomer }.is_woken());
    drop(grant);
    settle().await;
    watch.all_gone();
}

/// Tasks that want two gates in either order, with random pauses between the steps.
async fn loops_over_two_gates(admission: Admission, tasks: u64, rounds: usize) {
    let (a, b) = (gate(1), gate(1));
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let admission = admission.clone();
            let demand =
                if task % 2 == 0 { permits(&a, 1).permit(&b) } else { permits(&b, 1).permit(&a) };
            tokio::spawn(async move {
                let mut draw = Draw::new(task);
                for _ in 0..rounds {
                    let grant = admission.admit(demand.clone()).await.unwrap();
                    for _ in 0..draw.between(0..=2) {
                        tokio::task::yield_now().await;
                    }
                    drop(grant);
                    for _ in 0..draw.between(0..=2) {
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a6_two_gates_in_either_order_never_lock_each_other_out() {
    let admission = started();
    let watch = Observer::of(&admission);
    loops_over_two_gates(admission, 8, 1_250).await;
    watch.all_gone();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a6_nor_do_they_across_threads_and_admissions() {
    let one = started();
    let watch = Observer::of(&one);
    loops_over_two_gates(one.clone(), 8, 500).await;
    watch.all_gone();
}

/// Three admissions that share three gates and take them in every order, each task through another.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a6_three_admissions_that_share_three_gates_all_get_through() {
    let admissions = [started(), started(), started()];
    let gates = [gate(1), gate(2), gate(1)];
    let tasks: Vec<_> = (0..9_usize)
        .map(|task| {
            let admission = admissions[task % 3].clone();
            let order = [[0, 1, 2], [2, 1, 0], [1, 0, 2]][task / 3];
            let demand = order.iter().fold(Demand::new(), |demand, &at| demand.permit(&gates[at]));
            tokio::spawn(async move {
                for round in 0..300 {
                    let grant = admission.admit(demand.clone()).await.unwrap();
                    if round % 3 == 0 {
                        tokio::task::yield_now().await;
                    }
                    drop(grant);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for admission in &admissions {
        Observer::of(admission).all_gone();
    }
    assert!(gates.iter().all(|gate| gate.status().active == 0));
}
