//! The probe: who is it, and what its end decides.

use std::sync::Arc;

use admit::{
    Admission, AdmitError, CircuitState, Demand, ElasticWindow, EventKind, Grant, RejectReason,
};
use tokio_test::task::Spawn;
use tokio_util::sync::CancellationToken;

use super::super::{too_many, window_builder, would_refuse};
use super::{assert_is_served, assert_refused, one_of, open, refusal_by, served, window};
use crate::support::*;

/// The next may probe at once, and the cooldown is still the first: its failure makes it 60 s.
#[track_caller]
fn assert_the_next_may_probe(admission: &Admission, window: &Arc<ElasticWindow>) {
    assert_is_served(window);
    let probe = admission.try_admit(one_of(window)).unwrap();
    assert_eq!(window.status().circuit, CircuitState::Probing);
    assert!(probe.report_failure(window, &too_many()));
    assert_eq!(window.status().cooldown_remaining, secs(60));
}

#[tokio::test(start_paused = true)]
async fn j5_a_probe_that_comes_to_nothing_leaves_the_cooldown_served() {
    let ends: [fn(Grant, &ElasticWindow); 4] = [
        |probe, _| assert!(probe.rollback()),
        |probe, _| drop(probe),
        |probe, _| assert!(probe.release()),
        |probe, _| {
            let job = std::thread::spawn(move || {
                let _probe = probe;
                std::panic::resume_unwind(Box::new("the job panics"));
            });
            assert!(job.join().is_err());
        },
    ];
    for end in ends {
        let admission = started();
        let observer = Observer::of(&admission);
        let window = served().await;
        // It ends within the turn it began in, and a while after it.
        for after in [0, 3_000] {
            let probe = admission.try_admit(one_of(&window)).unwrap();
            pass_time(millis(after)).await;
            refusal_by(&window, &would_refuse(&admission, one_of(&window)));
            end(probe, &window);
            assert_is_served(&window);
        }
        assert_the_next_may_probe(&admission, &window);
        observer.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn j5_a_job_that_panics_or_is_aborted_is_a_probe_lost() {
    let admission = started();
    let observer = Observer::of(&admission);
    let window = served().await;
    let panics = tokio::spawn({
        let (admission, demand) = (admission.clone(), one_of(&window));
        async move {
            let job = async { std::panic::resume_unwind(Box::new("the job panics")) };
            let _: Result<(), _> = admission.run(demand, job).await;
        }
    });
    assert!(panics.await.is_err());
    assert_is_served(&window);
    let aborted = tokio::spawn({
        let admit = admission.admit(one_of(&window));
        async move {
            let _probe = admit.await.unwrap();
            std::future::pending::<()>().await;
        }
    });
    settle().await;
    assert_eq!(window.status().circuit, CircuitState::Probing);
    aborted.abort();
    settle().await;
    assert_the_next_may_probe(&admission, &window);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn j5_a_probe_still_held_is_given_up_after_ten_seconds() {
    let admission = started();
    let observer = Observer::of(&admission);
    let window = served().await;
    let silent = admission.try_admit(one_of(&window)).unwrap();
    pass_time(secs(10) - millis(1)).await;
    refusal_by(&window, &would_refuse(&admission, one_of(&window)));
    pass_time(millis(1)).await;
    assert_is_served(&window);
    let second = admission.try_admit(one_of(&window)).unwrap();
    // What the first says now says nothing of the second.
    assert!(silent.report_success(&window));
    drop(silent);
    assert_eq!(window.status().circuit, CircuitState::Probing);
    assert!(second.report_failure(&window, &too_many()));
    assert_eq!(window.status().cooldown_remaining, secs(60));
    drop(second);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn j5_only_the_probes_own_grant_decides() {
    let admission = started();
    let observer = Observer::of(&admission);
    let window = window();
    let older: Vec<_> = (0..4).map(|_| admission.try_admit(one_of(&window)).unwrap()).collect();
    open(&window);
    pass_time(secs(30)).await;
    let probe = admission.try_admit(one_of(&window)).unwrap();
    assert!(older[0].report_success(&window));
    assert!(older[1].report_failure(&window, &too_many()));
    assert!(older[2].rollback());
    drop(older);
    assert_eq!(window.status().circuit, CircuitState::Probing);
    refusal_by(&window, &would_refuse(&admission, one_of(&window)));
    assert!(probe.report_success(&window));
    assert_eq!(window.status().circuit, CircuitState::Healthy);
    drop((probe, admission.try_admit(one_of(&window)).unwrap()));
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn j5_an_undone_attempt_is_no_probe_and_refuses_nobody() {
    let admission = started();
    let observer = Observer::of(&admission);
    let window = served().await;
    let full = gate(1);
    let held = admission.try_admit(permits(&full, 1)).unwrap();
    // The window is the older account, so it is debited first: it must not be.
    for _ in 0..3 {
        let shortages = would_wait(admission.try_admit(one_of(&window).permit(&full)));
        assert_short_of(&shortages, &[&*full]);
        assert_is_served(&window);
    }
    drop(held);
    assert_the_next_may_probe(&admission, &window);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn j6_nobody_ahead_wants_the_window_so_the_first_newcomer_is_the_probe() {
    let admission = started();
    let observer = Observer::of(&admission);
    let (window, gate) = (served().await, gate(1));
    let held = admission.try_admit(permits(&gate, 1)).unwrap();
    let mut head = parked(&admission, permits(&gate, 1));
    let probe = admission.admit(one_of(&window)).await.unwrap();
    assert_eq!(window.status().circuit, CircuitState::Probing);
    refusal_by(&window, &admission.admit(one_of(&window)).await.unwrap_err());
    assert!(probe.report_success(&window));
    drop((probe, held));
    settle().await;
    drop(granted(&mut head));
    observer.all_gone();
}

/// A head that wants the window but waits for a gate, with followers who want the window.
struct Line {
    admission: Admission,
    observer: Observer,
    window: Arc<ElasticWindow>,
    held: Grant,
    head: Spawn<admit::Admit>,
    token: CancellationToken,
    followers: Vec<Spawn<admit::Admit>>,
}

async fn line_behind_a_probe(followers: usize) -> Line {
    let admission = started();
    let observer = Observer::of(&admission);
    let (window, gate) = (served().await, gate(1));
    let held = admission.try_admit(permits(&gate, 1)).unwrap();
    let token = CancellationToken::new();
    let head = admission.admit(permits(&gate, 1).permit(&window)).cancelled_by(token.clone());
    let head = park(head);
    let followers: Vec<_> = (0..followers)
        .map(|n| parked(&admission, Demand::new().permits(&window, n as u32 + 1)))
        .collect();
    pass_time(secs(5)).await;
    assert!(followers.iter().all(|waiter| !waiter.is_woken()));
    assert_is_served(&window);
    Line { admission, observer, window, held, head, token, followers }
}

#[tokio::test(start_paused = true)]
async fn j6_whoever_is_behind_a_head_that_wants_the_window_waits_and_is_refused_when_it_probes() {
    let mut line = line_behind_a_probe(2).await;
    line.observer.at_rest();
    drop(line.held);
    settle().await;
    let probe = granted(&mut line.head);
    assert_eq!(line.window.status().circuit, CircuitState::Probing);
    for waiter in &mut line.followers {
        assert_refused(&line.window, waiter);
    }
    assert!(probe.report_success(&line.window));
    drop(probe);
    drop(line.admission.try_admit(one_of(&line.window)).unwrap());
    let rejected = line.observer.rejected(&*line.window, RejectReason::CircuitBlocked);
    assert_eq!(rejected, 2);
    line.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn j6_a_head_that_leaves_hands_the_probe_to_the_next() {
    let mut line = line_behind_a_probe(3).await;
    drop(line.head);
    settle().await;
    let probe = granted(&mut line.followers[0]);
    assert_eq!(line.window.status().circuit, CircuitState::Probing);
    for waiter in &mut line.followers[1..] {
        assert_refused(&line.window, waiter);
    }
    assert!(probe.report_failure(&line.window, &too_many()));
    assert_eq!(line.window.status().cooldown_remaining, secs(60));
    drop((probe, line.held));
    line.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn j6_a_probe_that_landed_and_was_never_seen_is_lost_and_the_next_may_probe() {
    // Its future is dropped; its token is cancelled, which wins over the grant.
    for cancels in [false, true] {
        let mut line = line_behind_a_probe(2).await;
        drop(line.held);
        settle().await;
        assert!(line.head.is_woken());
        assert_eq!(line.admission.snapshot().unseen.count, 1);
        assert_eq!(line.window.status().circuit, CircuitState::Probing);
        for waiter in &mut line.followers {
            assert_refused(&line.window, waiter);
        }
        if cancels {
            line.token.cancel();
            assert!(matches!(landed(&mut line.head), Err(AdmitError::Cancelled)));
        }
        drop(line.head);
        assert_the_next_may_probe(&line.admission, &line.window);
        assert_eq!(line.observer.count(&*line.window, EventKind::Released), 1);
        line.observer.all_gone();
    }
}

/// The probe is claimed and lost before anybody is told of either.
#[tokio::test(start_paused = true)]
async fn j6_a_probe_lost_in_the_turn_it_was_claimed_in_refuses_nobody_for_good() {
    let admission = started();
    let observer = Observer::of(&admission);
    let (window, gate) = (served().await, gate(1));
    let held = admission.try_admit(permits(&gate, 1)).unwrap();
    // It waits for the gate only, but names the window.
    let mut waiter = parked(&admission, permits(&gate, 1).permit(&window));
    let other = started();
    let probe = other.try_admit(one_of(&window)).unwrap();
    probe.rollback();
    settle().await;
    // Nobody was told while the probe was out, so nobody is refused.
    assert!(!waiter.is_woken());
    drop(held);
    settle().await;
    let probe = granted(&mut waiter);
    assert_eq!(window.status().circuit, CircuitState::Probing);
    assert!(probe.report_success(&window));
    drop(probe);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn j6_a_probe_of_another_admission_refuses_the_head_and_its_followers() {
    let mut line = line_behind_a_probe(2).await;
    let other = started();
    let probe = other.try_admit(one_of(&line.window)).unwrap();
    settle().await;
    assert_refused(&line.window, &mut line.head);
    for waiter in &mut line.followers {
        assert_refused(&line.window, waiter);
    }
    assert!(probe.report_success(&line.window));
    drop((probe, line.held));
    line.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn j6_the_cooldown_ends_while_the_window_itself_is_full() {
    // A window longer than its cooldown: its slots are still taken when the probe is due.
    let admission = started();
    let mut observer = Observer::of(&admission);
    let builder = window_builder(2, secs(100)).max_throttle(0.0).probe_timeout(secs(10));
    let window = builder.build().unwrap();
    drop(admission.try_admit(Demand::new().permits(&window, 2)).unwrap());
    open(&window);
    pass_time(secs(40)).await;
    let mut probe = parked(&admission, one_of(&window));
    let mut behind = parked(&admission, one_of(&window));
    pass_time(secs(60) - millis(1)).await;
    observer.at_rest();
    assert!(!probe.is_woken() && !behind.is_woken());
    pass_time(millis(1)).await;
    let probe = granted(&mut probe);
    assert_eq!(probe.wall_wait(), secs(60));
    assert_refused(&window, &mut behind);
    assert!(probe.report_success(&window));
    drop(probe);
    observer.all_gone();
}
