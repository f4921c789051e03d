//! E. Time: several clocks at once, waits of days, and fractions of a millisecond.

use admit::AdmitError;
use tokio::time::Instant;

use super::{slots, window};
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn e_of_two_clocks_the_later_one_counts() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (fast, slow) = (drained_bucket(&admission, 60, 60), drained_bucket(&admission, 60, 12));
    let mut waiter = parked(&admission, tokens_of(&fast, 2).tokens(&slow, 1));
    pass_time(secs(5) - millis(1)).await;
    assert!(!waiter.is_woken());
    pass_time(millis(1)).await;
    let grant = granted(&mut waiter);
    assert_eq!(grant.wall_wait(), secs(5));
    drop(grant);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e_a_bucket_and_a_window_are_waited_for_together() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (b, w) = (drained_bucket(&admission, 60, 60), window(1, secs(1)));
    drop(admission.try_admit(slots(&w, 1)).unwrap());
    let mut waiter = parked(&admission, slots(&w, 1).tokens(&b, 3));
    // The slot is free for two seconds, and nobody else wants it.
    pass_time(secs(3)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), secs(3));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e_a_debt_of_days_is_paid_to_the_millisecond() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let b = bucket(600, 60);
    // 60 are there; it used as many again as come in within 36 hours, and one more.
    let grant = admission.try_admit(tokens_of(&b, 60)).unwrap();
    grant.reconcile(&b, 60 + 36 * 3_600);
    let start = Instant::now();
    let mut waiter = parked(&admission, tokens_of(&b, 1));
    pass_time(secs(36 * 3_600 + 1) - millis(1)).await;
    assert!(!waiter.is_woken());
    watch.look();
    pass_time(millis(1)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), start.elapsed());
    drop(grant);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e_a_fraction_of_a_millisecond_is_waited_out_and_not_rounded_away() {
    let admission = started();
    let watch = Observer::of(&admission);
    // Seven a minute: one each 8,571.43 ms.
    let b = drained_bucket(&admission, 600, 7);
    for waited in [8_572, 8_571, 8_572, 8_571] {
        let mut waiter = parked(&admission, tokens_of(&b, 1));
        pass_time(millis(waited - 1)).await;
        assert!(!waiter.is_woken());
        // What the last waited too long was not lost.
        pass_time(millis(1)).await;
        drop(granted(&mut waiter));
    }
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e_one_long_step_of_the_clock_grants_as_many_short_ones_do() {
    let mut told = Vec::new();
    for steps in [1_u64, 7, 600] {
        let admission = started();
        let watch = Observer::of(&admission);
        let b = drained_bucket(&admission, 20, 20_000);
        let mut line: Vec<_> =
            (0..40).map(|n| parked(&admission, tokens_of(&b, 100 + n * 7))).collect();
        for _ in 0..steps {
            pass_time(millis(42_000 / steps)).await;
        }
        let gone = line.iter().filter(|waiter| waiter.is_woken()).count();
        let waits: Vec<_> = line[..gone].iter_mut().map(|job| granted(job).wall_wait()).collect();
        told.push(waits);
        drop(line);
        watch.all_gone();
    }
    // 19 requests were left at first, and one comes in every three seconds.
    assert_eq!(told[0].len(), 19 + 14, "{told:?}");
    assert!(told.iter().all(|waits| *waits == told[0]), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn e_who_comes_later_neither_hastens_nor_delays_who_waits() {
    let admission = started();
    let watch = Observer::of(&admission);
    let b = drained_bucket(&admission, 600, 60);
    let mut first = parked(&admission, tokens_of(&b, 10));
    let mut later = Vec::new();
    for n in 1..10 {
        pass_time(secs(1)).await;
        later.push(parked(&admission, tokens_of(&b, n)));
        assert!(!first.is_woken());
    }
    pass_time(secs(1)).await;
    assert_eq!(granted(&mut first).wall_wait(), secs(10));
    drop(later);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e_a_rollback_brings_the_instant_nearer_by_what_it_returns() {
    let admission = started();
    let watch = Observer::of(&admission);
    let b = bucket(600, 60);
    let (one, other) = (
        admission.try_admit(tokens_of(&b, 20)).unwrap(),
        admission.try_admit(tokens_of(&b, 40)).unwrap(),
    );
    let mut waiter = parked(&admission, tokens_of(&b, 50));
    pass_time(secs(10)).await;
    one.rollback();
    pass_time(secs(20) - millis(1)).await;
    assert!(!waiter.is_woken());
    pass_time(millis(1)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), secs(30));
    drop(other);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e_three_limits_in_time_end_in_their_own_order() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut line: Vec<_> = [9, 3, 6]
        .map(|limit| park(admission.admit(permits(&g, 1)).within(secs(limit))))
        .into_iter()
        .collect();
    for (after, at) in [(3, 1), (6, 2), (9, 0)] {
        pass_time(secs(3)).await;
        let outcome = landed(&mut line[at]);
        assert!(
            matches!(outcome, Err(AdmitError::TimedOut { waited, .. }) if waited == secs(after))
        );
    }
    drop(held);
    watch.all_gone();
}
