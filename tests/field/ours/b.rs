//! B. Order and starvation: what a head sets aside of limits that come back with the clock, and who
//! may pass beside it.

use admit::AdmitError;
use tokio::time::Instant;

use super::{slots, window};
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn b_the_tokens_a_head_saves_for_are_not_spent_behind_it() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let b = bucket(600, 100);
    drop(admission.try_admit(tokens_of(&b, 50)).unwrap());
    let mut head = parked(&admission, tokens_of(&b, 80));
    let mut small = parked(&admission, tokens_of(&b, 20));
    watch.nobody_could_go(&[tokens_of(&b, 80), tokens_of(&b, 20)]);
    let start = Instant::now();
    pass_time(secs(18)).await;
    drop(granted(&mut head));
    assert!(!small.is_woken(), "nothing is left");
    pass_time(secs(12)).await;
    let small = granted(&mut small);
    assert_eq!(small.wall_wait(), secs(30));
    assert_eq!(start.elapsed(), secs(30));
    drop(small);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn b_what_a_head_leaves_of_a_bucket_goes_to_whoever_fits_beside() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let (g, b) = (gate(1), bucket(600, 100));
    drop(admission.try_admit(tokens_of(&b, 50)).unwrap());
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut head = parked(&admission, tokens_of(&b, 30).permit(&g));
    drop(would_wait(admission.try_admit(tokens_of(&b, 21))));
    drop(admission.try_admit(tokens_of(&b, 20)).unwrap());
    watch.nobody_could_go(&[tokens_of(&b, 30).permit(&g)]);
    drop(held);
    settle().await;
    drop(granted(&mut head));
    assert_eq!(b.status().available_tokens, 0);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn b_the_surplus_above_what_the_head_saves_goes_at_its_instant() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (g, b) = (gate(1), drained_bucket(&admission, 600, 60));
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut head = parked(&admission, tokens_of(&b, 40).permit(&g));
    let mut small = parked(&admission, tokens_of(&b, 10));
    pass_time(secs(50) - millis(1)).await;
    assert!(!small.is_woken());
    pass_time(millis(1)).await;
    assert_eq!(granted(&mut small).wall_wait(), secs(50));
    assert!(!head.is_woken());
    drop(held);
    settle().await;
    drop(granted(&mut head));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn b_equals_keep_their_order_when_one_in_the_middle_leaves() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let mut held = Some(admission.try_admit(permits(&g, 1)).unwrap());
    let mut line: Vec<_> = (0..9).map(|_| parked(&admission, permits(&g, 1))).collect();
    drop(line.remove(4));
    drop(line.remove(0));
    for at in 0..line.len() {
        drop(held.take());
        settle().await;
        assert!(line[at + 1..].iter().all(|later| !later.is_woken()), "after {at}");
        held = Some(granted(&mut line[at]));
    }
    drop(held);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn b_the_order_of_naming_makes_no_difference_to_whose_turn_it_is() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (p, q) = (gate(1), gate(1));
    let mut held = Some(admission.try_admit(permits(&p, 1).permit(&q)).unwrap());
    let mut line: Vec<_> = (0..8)
        .map(|at| {
            let forth = permits(&p, 1).permit(&q);
            parked(&admission, if at % 3 == 0 { permits(&q, 1).permit(&p) } else { forth })
        })
        .collect();
    for waiter in &mut line {
        drop(held.take());
        settle().await;
        held = Some(granted(waiter));
    }
    drop((held, line));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn b_a_head_on_a_window_keeps_the_slots_that_leave_for_itself() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let w = window(3, secs(10));
    for _ in 0..3 {
        drop(admission.try_admit(slots(&w, 1)).unwrap());
        pass_time(secs(1)).await;
    }
    // A slot leaves at 10, 11 and 12 s; it is 3 s.
    let mut head = parked(&admission, slots(&w, 2));
    let mut small = parked(&admission, slots(&w, 1));
    pass_time(secs(7)).await;
    assert_eq!(w.status().available, 1);
    watch.nobody_could_go(&[slots(&w, 2), slots(&w, 1)]);
    pass_time(secs(1)).await;
    drop(granted(&mut head));
    assert!(!small.is_woken());
    pass_time(secs(1)).await;
    drop(granted(&mut small));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn b_a_head_whose_time_is_up_hands_over_at_that_instant() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (g, b) = (gate(4), bucket(60, 100));
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut head = park(admission.admit(permits(&g, 4).tokens(&b, 100)).within(secs(3)));
    let mut next = parked(&admission, permits(&g, 3));
    let mut last = parked(&admission, tokens_of(&b, 100));
    pass_time(secs(3)).await;
    assert!(matches!(landed(&mut head), Err(AdmitError::TimedOut { .. })));
    let (next, last) = (granted(&mut next), granted(&mut last));
    assert_eq!((next.wall_wait(), last.wall_wait()), (secs(3), secs(3)));
    drop((held, next, last));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn b_the_next_head_saves_from_the_moment_it_is_head() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (p, q) = (gate(1), gate(4));
    let held = admission.try_admit(permits(&p, 1)).unwrap();
    let mut kept: Vec<_> = (0..2).map(|_| admission.try_admit(permits(&q, 1)).unwrap()).collect();
    let mut head = parked(&admission, permits(&p, 1));
    let mut second = parked(&admission, permits(&q, 4));
    // While it is second, others take of its gate as they like.
    drop(admission.try_admit(permits(&q, 2)).unwrap());
    drop(held);
    settle().await;
    drop(granted(&mut head));
    drop(would_wait(admission.try_admit(permits(&q, 1))));
    kept.clear();
    settle().await;
    drop(granted(&mut second));
    watch.all_gone();
}
