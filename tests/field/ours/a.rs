//! A. Atomicity, with three kinds of limits at once.

use admit::{Account, AdmitError, ConfigError, CountingGate, Router};
use tokio::time::Instant;

use super::{slots, window};
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn a_of_gate_bucket_and_window_none_is_taken_while_one_is_short() {
    for short in 0..3 {
        let admission = started();
        let watch = Observer::of(&admission);
        let (g, b, w) = (gate(1), bucket(1, 100), window(1, secs(10)));
        let held = match short {
            0 => admission.try_admit(permits(&g, 1)),
            1 => admission.try_admit(tokens_of(&b, 1)),
            _ => admission.try_admit(slots(&w, 1)),
        };
        let held = held.unwrap();
        let all: [&dyn Account; 3] = [&*g, &*b, &*w];
        let before = all.map(|account| account.in_use(Instant::now()));
        for _ in 0..3 {
            let shortages =
                would_wait(admission.try_admit(slots(&w, 1).tokens(&b, 100).permit(&g)));
            assert_short_of(&shortages, &[all[short]]);
            assert_eq!(all.map(|account| account.in_use(Instant::now())), before);
        }
        held.rollback();
        drop(admission.try_admit(slots(&w, 1).tokens(&b, 100).permit(&g)).unwrap());
        watch.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn a_a_rollback_gives_back_all_three_kinds_at_once() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (g, b, w) = (gate(1), bucket(1, 100), window(1, secs(10)));
    let all = || slots(&w, 1).tokens(&b, 100).permit(&g);
    let first = admission.try_admit(all()).unwrap();
    let mut second = parked(&admission, all());
    first.rollback();
    settle().await;
    let second = granted(&mut second);
    assert_eq!(second.wall_wait(), secs(0));
    second.rollback();
    drop(admission.try_admit(all()).unwrap());
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn a_what_a_waiter_wants_is_debited_at_one_instant_and_not_before() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (g, b) = (gate(2), drained_bucket(&admission, 60, 60));
    let held = admission.try_admit(permits(&g, 2)).unwrap();
    let mut waiter = parked(&admission, tokens_of(&b, 5).permits(&g, 2));
    // The tokens are there for a minute, and nobody takes them before the permits are.
    pass_time(secs(60)).await;
    assert_eq!(b.status().available_tokens, 60);
    held.release_one(&g);
    settle().await;
    assert_eq!((b.status().available_tokens, g.status().active), (55, 2));
    drop((granted(&mut waiter), held));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn a_a_gate_that_shrinks_under_a_waiter_takes_nothing_of_its_bucket() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let (g, b) = (gate(3), bucket(10, 100));
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut waiter = parked(&admission, tokens_of(&b, 100).permits(&g, 3));
    g.resize(2).unwrap();
    watch.shrunk(&*g);
    settle().await;
    assert!(matches!(landed(&mut waiter), Err(AdmitError::Refused { .. })));
    assert_eq!((b.status().available_tokens, b.status().available_requests), (100, 10));
    drop(held);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn a_a_lane_is_taken_with_the_rest_or_the_rest_is_not() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(2);
    let lanes: Router<u8, CountingGate> = Router::new(|key: &u8| -> Result<_, ConfigError> {
        CountingGate::new(format!("lane {key}"), 1)
    });
    let both = |key: u8| permits(&g, 1).permit(&lanes.account_for(&key).unwrap());
    let one = admission.try_admit(both(1)).unwrap();
    let lane = lanes.account_for(&1).unwrap();
    assert_short_of(&would_wait(admission.try_admit(both(1))), &[&*lane]);
    assert_eq!(g.status().active, 1);
    let other = admission.try_admit(both(2)).unwrap();
    let third = lanes.account_for(&3).unwrap();
    assert_short_of(&would_wait(admission.try_admit(both(3))), &[&*g]);
    assert_eq!(third.status().active, 0);
    drop((one, other));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn a_of_two_admissions_each_sees_whole_grants_of_the_other() {
    let (one, other) = (started(), started());
    let (watch, second_watch) = (Observer::of(&one), Observer::of(&other));
    let (p, q) = (gate(1), gate(1));
    let held = one.try_admit(permits(&q, 1)).unwrap();
    for _ in 0..100 {
        assert_short_of(&would_wait(other.try_admit(permits(&p, 1).permit(&q))), &[&*q]);
        // What the other tried left nothing behind that would be in the way here.
        drop(one.try_admit(permits(&p, 1)).unwrap());
    }
    drop(held);
    let both = other.try_admit(permits(&q, 1).permit(&p)).unwrap();
    assert_short_of(&would_wait(one.try_admit(permits(&p, 1).permit(&q))), &[&*p, &*q]);
    drop(both);
    watch.all_gone();
    second_watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn a_who_times_out_between_two_limits_leaves_both_as_they_were() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (g, b, w) = (gate(1), bucket(10, 100), window(3, secs(60)));
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    for _ in 0..50 {
        let limited = admission.admit(slots(&w, 3).tokens(&b, 100).permit(&g)).within(millis(7));
        assert!(matches!(limited.await, Err(AdmitError::TimedOut { .. })));
    }
    assert_eq!((b.status().available_tokens, w.status().available), (100, 3));
    drop(held);
    drop(admission.try_admit(slots(&w, 3).tokens(&b, 100).permit(&g)).unwrap());
    watch.all_gone();
}
