//! One line: order, reservation, and who goes past whom.

use std::sync::Arc;

use admit::testing::ScriptedMemory;
use admit::{Admission, AdmitError, Amount, Demand, MemoryGate, TryAdmitError};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn a_demand_that_fits_an_empty_line_is_granted_at_its_first_poll() {
    let admission = started();
    let (a, b) = (gate(2), bucket(10, 100));
    let demand = Demand::new().permit(&a).tokens(&b, 40);
    let grant = tokio_test::task::spawn(admission.admit(demand)).poll();
    assert!(grant.is_ready());
    drop(grant);
    assert_eq!(a.status().available_permits, 2);
    assert_eq!(b.status().available_tokens, 60);
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn a_release_grants_in_order_of_arrival() {
    let admission = started();
    let a = gate(1);
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    let mut first = parked(&admission, permits(&a, 1));
    let mut second = parked(&admission, permits(&a, 1));
    assert_eq!(admission.queue_len(), 2);
    drop(held);
    settle().await;
    let grant = granted(&mut first);
    assert!(!second.is_woken());
    drop(grant);
    settle().await;
    drop(granted(&mut second));
    assert_eq!(a.status().active, 0);
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn the_head_keeps_what_it_needs_and_others_pass_it_on_the_rest() {
    let admission = started();
    let (a, b, c) = (gate(1), gate(3), gate(1));
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    let mut head = parked(&admission, permits(&a, 1).permits(&b, 2));
    let wants_two = parked(&admission, permits(&b, 2));
    let one = admission.try_admit(permits(&b, 1)).unwrap();
    let other = admission.try_admit(permits(&c, 1)).unwrap();
    let more = admission.try_admit(permits(&b, 1)).unwrap_err();
    assert!(matches!(more, TryAdmitError::WouldWait { shortages } if shortages.len() == 1));
    drop((held, wants_two));
    settle().await;
    drop((granted(&mut head), one, other));
    assert!(admission.snapshot().accounts.iter().all(|account| account.in_use == 0));
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn a_bucket_wakes_its_waiter_at_the_instant_it_has_refilled() {
    let admission = started();
    let b = bucket(600, 60_000);
    let start = tokio::time::Instant::now();
    drop(admission.admit(Demand::new().tokens(&b, 60_000)).await.unwrap());
    drop(admission.admit(Demand::new().tokens(&b, 30_000)).await.unwrap());
    assert_eq!(start.elapsed(), std::time::Duration::from_secs(30));
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn a_time_out_names_what_was_missing() {
    let admission = started();
    let a = gate(1);
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    let within = std::time::Duration::from_secs(1);
    let error = admission.admit(permits(&a, 1)).within(within).await.unwrap_err();
    let AdmitError::TimedOut { waited, shortages } = &error else { panic!("{error}") };
    assert_eq!(*waited, within);
    assert_eq!(shortages.len(), 1);
    drop(held);
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn a_time_out_names_no_account_while_one_would_refuse_it() {
    let admission = started();
    let (a, own) = (gate(1), Own::new("own"));
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    let late = admission.admit(permits(&a, 1).permit(&own)).within(secs(1));
    let late = tokio::spawn(late);
    settle().await;
    own.set(|script| script.refuses = true);
    let error = late.await.unwrap().unwrap_err();
    let AdmitError::TimedOut { shortages, .. } = &error else { panic!("{error}") };
    assert!(shortages.is_empty(), "{error}");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn the_next_of_its_kind_goes_when_the_front_that_timed_out_would_have() {
    let admission = started();
    let (a, b) = (gate(1), bucket(60, 60));
    let held = admission.try_admit(permits(&a, 1).tokens(&b, 60)).unwrap();
    let _head = parked(&admission, permits(&a, 1));
    let start = tokio::time::Instant::now();
    let within = std::time::Duration::from_secs(1);
    let late = tokio::spawn(admission.admit(Demand::new().tokens(&b, 30)).within(within));
    settle().await;
    // Nobody but these two waits on the bucket, and only the clock will announce it.
    let within = std::time::Duration::from_secs(60);
    let next = admission.admit(Demand::new().tokens(&b, 30)).within(within).await.unwrap();
    assert_eq!(start.elapsed(), std::time::Duration::from_secs(30));
    assert!(late.await.unwrap().is_err());
    drop((next, held));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_who_wait_for_tokens_hold_no_place_elsewhere() {
    let admission = started();
    let (b, places) = (bucket(100_000, 60_000), gate(1_000));
    drop(admission.try_admit(Demand::new().tokens(&b, 60_000)).unwrap());
    let demand = Demand::new().permit(&places).tokens(&b, 60);
    let waiting: Vec<_> = (0..1_000).map(|_| parked(&admission, demand.clone())).collect();
    assert_eq!((admission.queue_len(), places.status().active), (1_000, 0));
    // Who needs no tokens has all the places but the one that is set aside for the head.
    drop(admission.try_admit(permits(&places, 999)).unwrap());
    assert!(admission.try_admit(permits(&places, 1_000)).is_err());
    drop(waiting);
    assert_eq!((admission.queue_len(), places.status().active), (0, 0));
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_are_all_granted_in_order_of_arrival() {
    let admission = started();
    let a = gate(1);
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let jobs: Vec<_> = (0..10_000)
        .map(|job| {
            let (admission, demand, order) = (admission.clone(), permits(&a, 1), order.clone());
            tokio::spawn(async move {
                let grant = admission.admit(demand).await.unwrap();
                order.lock().unwrap().push(job);
                drop(grant);
            })
        })
        .collect();
    while admission.queue_len() < 10_000 {
        tokio::task::yield_now().await;
    }
    drop(held);
    for job in jobs {
        job.await.unwrap();
    }
    assert!(order.lock().unwrap().iter().copied().eq(0..10_000));
    assert_eq!(a.status().active, 0);
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn a_job_that_moves_to_another_task_while_it_waits_is_woken_there() {
    let admission = started();
    let x = gate(1);
    let held = admission.try_admit(permits(&x, 1)).unwrap();
    let waiting = parked(&admission, permits(&x, 1));
    let mut moved = tokio_test::task::spawn(waiting.into_inner());
    assert!(moved.poll().is_pending());
    drop(held);
    drop(granted(&mut moved));
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn whoever_meets_full_memory_on_an_admission_at_rest_is_looked_at_again_in_time() {
    let (place, memory) = (gate(1), ScriptedMemory::at_percent(50.0));
    let gate = MemoryGate::builder().source(Arc::clone(&memory)).build().unwrap();
    let admission = Admission::builder().memory_gate(gate).start().unwrap();
    // The evaluator has looked, and sleeps.
    pass_time(secs(1)).await;
    memory.set_percent(99.0);
    pass_time(secs(1)).await;
    let mut waiter = parked(&admission, permits(&place, 1));
    pass_time(secs(1)).await;
    memory.set_percent(50.0);
    pass_time(secs(2)).await;
    drop(granted(&mut waiter));
}

#[tokio::test(start_paused = true)]
async fn whom_a_release_had_no_look_left_for_goes_all_the_same() {
    let admission = started();
    let (a, b) = (gate(1), gate(1_000));
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    let all = admission.try_admit(permits(&b, 1_000)).unwrap();
    let head = parked(&admission, permits(&a, 1).permit(&b));
    let mut line: Vec<_> = (1..=40).map(|n| parked(&admission, permits(&b, n))).collect();
    settle().await;
    drop(all);
    assert!(!line[39].is_woken(), "a release looks at 32 at the most");
    settle().await;
    line.iter_mut().for_each(|waiter| drop(granted(waiter)));
    drop((held, head));
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn whose_hour_came_goes_before_a_newcomer_that_reads_no_clock() {
    let admission = Admission::builder().build().unwrap();
    let (a, g, b) = (gate(1), gate(1), bucket(60, 60));
    let held = admission.try_admit(permits(&a, 1).tokens(&b, 60)).unwrap();
    let head = parked(&admission, permits(&a, 1));
    let mut due = parked(&admission, permits(&g, 1).tokens(&b, 10));
    tokio::time::advance(secs(10)).await;
    assert!(admission.try_admit(permits(&g, 1)).is_err(), "it went past who could go");
    drop(granted(&mut due));
    drop((held, head));
}

#[tokio::test(start_paused = true)]
async fn a_time_out_behind_the_head_says_what_is_set_aside() {
    let admission = started();
    let a = gate(2);
    let held = admission.try_admit(permits(&a, 1)).unwrap();
    let head = parked(&admission, permits(&a, 2));
    let error = admission.admit(permits(&a, 1)).within(secs(1)).await.unwrap_err();
    let AdmitError::TimedOut { shortages, .. } = &error else { panic!("{error}") };
    assert_eq!(shortages[0].reserved_ahead, Amount::permits(2));
    drop((held, head));
}
