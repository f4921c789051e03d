//! G. Changing limits: under a reservation, between two looks, in several admissions.

use std::sync::Arc;

use admit::{Admission, AdmitError, Limits};

use super::{slots, window};
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn g_shrunk_and_grown_again_before_anybody_looks_is_no_refusal() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(4);
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut waiter = parked(&admission, permits(&g, 4));
    g.resize(2).unwrap();
    g.resize(5).unwrap();
    settle().await;
    drop(granted(&mut waiter));
    drop(held);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn g_a_head_that_a_shrunk_gate_refuses_frees_what_it_saved_elsewhere() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let (p, q, b) = (gate(3), gate(2), bucket(10, 100));
    let held = admission.try_admit(permits(&p, 1)).unwrap();
    let mut head = parked(&admission, permits(&p, 3).permits(&q, 2).tokens(&b, 100));
    let mut next = parked(&admission, permits(&q, 1));
    let mut last = parked(&admission, tokens_of(&b, 1));
    p.resize(2).unwrap();
    watch.shrunk(&*p);
    settle().await;
    assert!(matches!(landed(&mut head), Err(AdmitError::Refused { .. })));
    drop((granted(&mut next), granted(&mut last), held));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn g_a_gate_shrunk_to_exactly_the_heads_amount_keeps_all_of_it_for_the_head() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let g = gate(6);
    let mut held: Vec<_> = (0..4).map(|_| admission.try_admit(permits(&g, 1)).unwrap()).collect();
    let mut head = parked(&admission, permits(&g, 3));
    let mut small = parked(&admission, permits(&g, 1));
    g.resize(3).unwrap();
    watch.shrunk(&*g);
    while let Some(grant) = held.pop() {
        assert!(!head.is_woken() && !small.is_woken());
        drop(grant);
        settle().await;
    }
    let head = granted(&mut head);
    assert!(!small.is_woken());
    drop(head);
    settle().await;
    drop(granted(&mut small));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn g_one_place_more_lets_one_go_and_the_next_not() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(2);
    let held = admission.try_admit(permits(&g, 2)).unwrap();
    let mut line: Vec<_> = (0..4).map(|_| parked(&admission, permits(&g, 1))).collect();
    let mut grants = Vec::new();
    for at in 0..4_u32 {
        g.resize(3 + at).unwrap();
        settle().await;
        grants.push(granted(&mut line[at as usize]));
        assert!(line[at as usize + 1..].iter().all(|later| !later.is_woken()));
    }
    drop((held, grants));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn g_a_bucket_lowered_below_what_somebody_waits_for_refuses_him_alone() {
    let admission = started();
    let watch = Observer::of(&admission);
    let b = drained_bucket(&admission, 600, 1_000);
    let mut large = parked(&admission, tokens_of(&b, 900));
    let mut small = parked(&admission, tokens_of(&b, 100));
    b.set_limits(Limits::per_minute(600, 500)).unwrap();
    settle().await;
    let error = landed(&mut large).unwrap_err().to_string();
    assert!(error.contains("900") && error.contains("500"), "{error}");
    assert!(!small.is_woken());
    pass_time(secs(12)).await;
    assert_eq!(granted(&mut small).wall_wait(), secs(12));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn g_a_raised_bucket_takes_what_it_refused_and_has_no_more_for_it() {
    let admission = started();
    let watch = Observer::of(&admission);
    let b = bucket(600, 100);
    drop(admission.admit(tokens_of(&b, 150)).await.unwrap_err());
    b.set_limits(Limits::per_minute(600, 200)).unwrap();
    let mut waiter = parked(&admission, tokens_of(&b, 150));
    pass_time(secs(15)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), secs(15));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn g_one_gate_of_two_that_grows_is_not_enough() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (p, q) = (gate(1), gate(1));
    let held = admission.try_admit(permits(&p, 1).permit(&q)).unwrap();
    let mut waiter = parked(&admission, permits(&p, 1).permit(&q));
    p.resize(2).unwrap();
    settle().await;
    assert!(!waiter.is_woken());
    assert_eq!(p.status().active, 1);
    q.resize(2).unwrap();
    settle().await;
    drop((granted(&mut waiter), held));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn g_every_admission_hears_of_a_gate_that_grows() {
    let admissions = [started(), started(), started()];
    let watches = admissions.each_ref().map(Observer::of);
    let g = gate(1);
    let held = admissions[0].try_admit(permits(&g, 1)).unwrap();
    let mut line = admissions.each_ref().map(|admission| parked(admission, permits(&g, 1)));
    g.resize(4).unwrap();
    settle().await;
    let grants = line.each_mut().map(granted);
    assert_eq!(g.status().active, 4);
    drop((grants, held));
    watches.into_iter().for_each(Observer::all_gone);
}

#[tokio::test(start_paused = true)]
async fn g_what_grew_before_the_start_is_found_at_the_start() {
    let admission = Admission::builder().build().unwrap();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut first = parked(&admission, permits(&g, 1));
    let mut large = parked(&admission, permits(&g, 1));
    g.resize(3).unwrap();
    settle().await;
    assert!(!first.is_woken(), "nobody is there to look");
    admission.start().unwrap();
    settle().await;
    drop((granted(&mut first), granted(&mut large), held));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn g_a_gate_resized_on_another_thread_is_heard_of() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let mut held = vec![admission.try_admit(permits(&g, 1)).unwrap()];
    for n in 2..50 {
        let waiting = tokio::spawn(admission.admit(permits(&g, 1)));
        settle().await;
        let other = Arc::clone(&g);
        tokio::task::spawn_blocking(move || other.resize(n).unwrap()).await.unwrap();
        held.push(waiting.await.unwrap().unwrap());
    }
    drop(held);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn g_a_limit_raised_beside_a_window_hastens_nobody_the_window_holds() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (b, w) = (drained_bucket(&admission, 600, 60), window(1, secs(30)));
    drop(admission.try_admit(slots(&w, 1)).unwrap());
    let mut waiter = parked(&admission, tokens_of(&b, 60).permit(&w));
    b.set_limits(Limits::per_minute(600, 6_000)).unwrap();
    pass_time(secs(30) - millis(1)).await;
    assert!(!waiter.is_woken());
    pass_time(millis(1)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), secs(30));
    watch.all_gone();
}
