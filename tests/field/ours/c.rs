//! C. Cancellation, of several at once and in places where futures are dropped in passing.

use admit::AdmitError;
use tokio_test::task::spawn;
use tokio_util::sync::CancellationToken;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn c_every_second_of_a_hundred_leaves_and_the_rest_go_in_order() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let mut held = Some(admission.try_admit(permits(&g, 1)).unwrap());
    let line: Vec<_> = (0..100).map(|_| parked(&admission, permits(&g, 1))).collect();
    let mut line: Vec<_> =
        line.into_iter().enumerate().filter_map(|(at, job)| (at % 2 == 1).then_some(job)).collect();
    assert_eq!(admission.queue_len(), 50);
    for waiter in &mut line {
        drop(held.take());
        settle().await;
        held = Some(granted(waiter));
    }
    drop(held);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn c_one_token_ends_all_who_carry_it_and_nobody_else() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let token = CancellationToken::new();
    let mut line: Vec<_> = (0..6)
        .map(|at| {
            let admit = admission.admit(permits(&g, 1));
            park(if at % 2 == 0 { admit.cancelled_by(token.child_token()) } else { admit })
        })
        .collect();
    token.cancel();
    settle().await;
    for (at, waiter) in line.iter_mut().enumerate() {
        assert_eq!(waiter.is_woken(), at % 2 == 0);
        if at % 2 == 0 {
            assert!(matches!(landed(waiter), Err(AdmitError::Cancelled)));
        }
    }
    assert_eq!(admission.queue_len(), 3);
    drop((held, line));
    settle().await;
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn c_a_grant_that_landed_in_time_and_is_seen_an_hour_late_is_a_grant() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut waiter = park(admission.admit(permits(&g, 1)).within(secs(2)));
    pass_time(secs(1)).await;
    drop(held);
    pass_time(secs(3_600)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), secs(1));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn c_a_select_that_another_branch_wins_leaves_the_line() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    for _ in 0..20 {
        tokio::select! {
            _ = admission.admit(permits(&g, 1)) => panic!("it is held"),
            () = tokio::time::sleep(millis(10)) => {}
        }
        assert_eq!(admission.queue_len(), 0);
    }
    drop(held);
    tokio::select! {
        biased;
        grant = admission.admit(permits(&g, 1)) => drop(grant.unwrap()),
        () = tokio::time::sleep(millis(10)) => panic!("it is free"),
    }
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn c_an_admit_that_moves_to_another_task_keeps_its_place() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let first = parked(&admission, permits(&g, 1));
    let mut second = parked(&admission, permits(&g, 1));
    // Another task polls it from now on, with a waker of its own.
    let moved = tokio::spawn(async move { first.into_inner().await.unwrap() });
    settle().await;
    drop(held);
    settle().await;
    assert!(moved.is_finished() && !second.is_woken());
    drop(moved.await.unwrap());
    settle().await;
    drop(granted(&mut second));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn c_a_job_cancelled_between_its_creation_and_its_first_poll_takes_nothing() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (g, b) = (gate(1), bucket(10, 100));
    let token = CancellationToken::new();
    let mut admit =
        spawn(admission.admit(permits(&g, 1).tokens(&b, 100)).cancelled_by(token.clone()));
    token.cancel();
    assert!(matches!(admit.poll(), std::task::Poll::Ready(Err(AdmitError::Cancelled))));
    assert_eq!((g.status().active, b.status().available_tokens), (0, 100));
    watch.all_gone();
}
