//! The circuit of a window, through an admission.

mod probe;

use std::sync::{Arc, Barrier};

use admit::{
    Account, AdmitError, CircuitState, Demand, ElasticWindow, RejectReason, TryAdmitError,
    UpstreamFailure,
};
use tokio::time::Instant;
use tokio_test::task::Spawn;

use super::{too_many, would_refuse};
use crate::support::*;

/// 100 a second that never stretches, and a probe given up after 10 s.
fn window() -> Arc<ElasticWindow> {
    let builder = super::window_builder(100, secs(1)).max_throttle(0.0).probe_timeout(secs(10));
    builder.build().expect("positive numbers")
}

fn one_of(window: &Arc<ElasticWindow>) -> Demand {
    Demand::new().permit(window)
}

/// Opens the circuit, by reports that no grant makes.
fn open(window: &ElasticWindow) {
    (0..3).for_each(|_| window.record_429());
    assert_eq!(window.status().circuit, CircuitState::Blocked);
}

/// A window whose cooldown is over: the next to take is the probe.
async fn served() -> Arc<ElasticWindow> {
    let window = window();
    open(&window);
    pass_time(secs(30)).await;
    assert_is_served(&window);
    window
}

#[track_caller]
fn assert_is_served(window: &ElasticWindow) {
    let status = window.status();
    assert_eq!(status.circuit, CircuitState::Blocked);
    assert_eq!(status.cooldown_remaining, secs(0));
}

/// The refusal of an outcome that must be one of this window's.
#[track_caller]
fn refusal_by(window: &ElasticWindow, error: &AdmitError) -> String {
    let AdmitError::Refused { account, .. } = error else { panic!("not refused: {error}") };
    assert_eq!(account, window.link().name());
    let text = error.to_string();
    assert!(text.contains(&**account) && text.contains("do not retry yet"), "{text}");
    text
}

#[track_caller]
fn assert_refused(window: &ElasticWindow, admit: &mut Spawn<admit::Admit>) {
    refusal_by(window, &landed(admit).expect_err("it is refused"));
}

#[tokio::test(start_paused = true)]
async fn j1_three_failures_in_a_row_open_it_and_a_success_starts_over() {
    for through_grants in [false, true] {
        let admission = started();
        let observer = Observer::of(&admission);
        let window = window();
        let report = |fails: bool| {
            if !through_grants {
                return if fails { window.record_429() } else { window.record_success() };
            }
            let grant = admission.try_admit(one_of(&window)).unwrap();
            let heard = match fails {
                true => grant.report_failure(&window, &too_many()),
                false => grant.report_success(&window),
            };
            assert!(heard);
        };
        for fails in [true, true, false, true, true] {
            report(fails);
            assert_eq!(window.status().circuit, CircuitState::Healthy);
        }
        report(true);
        let status = window.status();
        assert_eq!((status.circuit, status.throttle), (CircuitState::Blocked, 0.0));
        assert_eq!(status.cooldown_remaining, secs(30));
        observer.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn j1_advice_slows_down_and_never_opens_it() {
    let admission = started();
    let observer = Observer::of(&admission);
    let window = super::window(100, secs(1));
    (0..100).for_each(|_| window.record_advisory_pressure());
    let status = window.status();
    assert_eq!((status.circuit, status.throttle), (CircuitState::Healthy, 9.0));
    drop(admission.try_admit(one_of(&window)).unwrap());
    // At maximum throttle the failures count.
    (0..2).for_each(|_| window.record_429());
    assert_eq!(window.status().circuit, CircuitState::Healthy);
    window.record_429();
    assert_eq!(window.status().circuit, CircuitState::Blocked);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn j2_a_circuit_that_opens_tells_whoever_waits_and_whoever_comes() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let window = window();
    let jobs: Vec<_> = (0..100).map(|_| admission.try_admit(one_of(&window)).unwrap()).collect();
    let mut line: Vec<_> = (0..3).map(|_| parked(&admission, one_of(&window))).collect();
    settle().await;
    for job in &jobs[..3] {
        assert!(line.iter().all(|waiter| !waiter.is_woken()));
        job.report_failure(&window, &UpstreamFailure::status(529, "maps", "over capacity"));
    }
    settle().await;
    for waiter in &mut line {
        let text = refusal_by(&window, &landed(waiter).unwrap_err());
        assert!(
            text.contains("30 s") && text.contains("HTTP 529 from maps: over capacity"),
            "{text}"
        );
    }
    assert_eq!(admission.queue_len(), 0);
    assert_eq!(observer.rejected(&*window, RejectReason::CircuitBlocked), 3);
    let opened = Instant::now();
    for (after, left) in [(0, "30 s"), (10_000, "20 s"), (10_001, "20 s"), (29_999, "1 ms")] {
        pass_time(opened + millis(after) - Instant::now()).await;
        let error = would_refuse(&admission, one_of(&window));
        let text = refusal_by(&window, &error);
        assert!(text.contains(&format!("another {left} ")), "{text}");
        assert_eq!(error.retry_at(), Some(opened + secs(30)));
        let error = admission.admit(one_of(&window)).await.unwrap_err();
        refusal_by(&window, &error);
        assert_eq!(admission.queue_len(), 0);
    }
    drop(jobs);
    observer.all_gone();
}

/// A thousand jobs of different demands name the window, many of which wait on something else, and
/// two hundred among them do not.
#[tokio::test(start_paused = true)]
async fn j2_of_a_mixed_line_exactly_those_who_name_the_window_are_refused() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let window = window();
    let (full, other) = (gate(64), gate(1_000));
    let budget = drained_bucket(&admission, 600_000, 600_000);
    let held = admission.try_admit(permits(&full, 64)).unwrap();
    let rest = admission.try_admit(permits(&other, 1_000)).unwrap();
    drop(admission.try_admit(Demand::new().permits(&window, 100)).unwrap());

    let (mut named, mut unnamed) = (Vec::new(), Vec::new());
    for n in 0..1_000_u32 {
        let (few, many) = (n % 60 + 1, u64::from(n) + 1);
        let demand = match n % 4 {
            // Short of the window alone, of a gate before it, of all, and not of the window.
            0 => Demand::new().permits(&window, few),
            1 => permits(&full, few).permits(&window, few),
            2 => permits(&full, few).permits(&window, few).tokens(&budget, many),
            _ => permits(&other, n + 1).add(&window, admit::Amount::NONE),
        };
        named.push(parked(&admission, demand));
        if n % 5 == 0 {
            let demand = if n % 2 == 0 { permits(&full, few) } else { permits(&other, few) };
            unnamed.push(parked(&admission, demand));
        }
    }
    settle().await;
    assert_eq!(admission.queue_len(), 1_200);
    open(&window);
    settle().await;
    for waiter in &mut named {
        // So many polls in one turn would spend the task's budget.
        tokio::task::yield_now().await;
        assert_refused(&window, waiter);
    }
    assert_eq!(admission.queue_len(), 200);
    assert!(unnamed.iter().all(|waiter| !waiter.is_woken()));
    observer.at_rest();
    drop((held, rest));
    for _ in 0..200 {
        settle().await;
        let mut polls = 0;
        unnamed.retain_mut(|waiter| {
            // One that goes lets the next go then and there, and so many polls in one turn would
            // spend the task's budget.
            let goes = waiter.is_woken() && polls < 64;
            if goes {
                polls += 1;
                drop(granted(waiter));
            }
            !goes
        });
    }
    assert!(unnamed.is_empty(), "{} still wait", unnamed.len());
    observer.all_gone();
}

/// So many threads at one moment, none of which moves the clock.
async fn at_once<R: Send + 'static>(
    threads: usize,
    work: impl Fn(usize) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let (barrier, work) = (Arc::new(Barrier::new(threads)), Arc::new(work));
    let threads: Vec<_> = (0..threads)
        .map(|index| {
            let (barrier, work) = (Arc::clone(&barrier), Arc::clone(&work));
            tokio::task::spawn_blocking(move || {
                barrier.wait();
                work(index)
            })
        })
        .collect();
    let mut results = Vec::new();
    for thread in threads {
        results.push(thread.await.expect("no panic"));
    }
    results
}

async fn j3(through_grants: bool, admissions: usize) {
    let admissions: Vec<_> = (0..admissions).map(|_| started()).collect();
    let observers: Vec<_> = admissions.iter().map(Observer::of).collect();
    let window = window();
    let jobs: Vec<_> = (0..64).map(|_| admissions[0].try_admit(one_of(&window)).unwrap()).collect();
    let jobs = Arc::new(jobs);
    at_once(64, {
        let (window, jobs) = (Arc::clone(&window), Arc::clone(&jobs));
        move |index| match through_grants {
            true => assert!(jobs[index].report_failure(&window, &too_many())),
            false => window.record_429(),
        }
    })
    .await;
    drop(Arc::into_inner(jobs).expect("the threads are done"));
    let status = window.status();
    assert_eq!((status.circuit, status.cooldown_remaining), (CircuitState::Blocked, secs(30)));

    pass_time(secs(30)).await;
    let outcomes = at_once(64, {
        let (window, admissions) = (Arc::clone(&window), admissions.clone());
        move |index| admissions[index % admissions.len()].try_admit(one_of(&window))
    })
    .await;
    assert_eq!(window.status().circuit, CircuitState::Probing);
    let (probes, refused): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
    assert_eq!((probes.len(), refused.len()), (1, 63));
    for outcome in refused {
        let Err(TryAdmitError::Admit(error)) = outcome else { panic!("{outcome:?}") };
        refusal_by(&window, &error);
    }
    for probe in probes {
        assert!(probe.unwrap().report_success(&window));
    }
    assert_eq!(window.status().circuit, CircuitState::Healthy);
    settle().await;
    observers.into_iter().for_each(Observer::all_gone);
}

#[tokio::test(start_paused = true)]
async fn j3_64_failures_at_once_open_it_once_and_one_of_64_is_the_probe() {
    j3(false, 1).await;
}

#[tokio::test(start_paused = true)]
async fn j3_64_failures_through_their_grants_open_it_once_too() {
    j3(true, 1).await;
}

#[tokio::test(start_paused = true)]
async fn j3_one_of_64_is_the_probe_over_two_admissions() {
    j3(true, 2).await;
}

#[tokio::test(start_paused = true)]
async fn j4_every_failed_probe_doubles_the_cooldown_up_to_an_hour() {
    for directly in [false, true] {
        let admission = started();
        let observer = Observer::of(&admission);
        let window = served().await;
        for cooldown in [60, 120, 240, 480, 960, 1_920, 3_600, 3_600, 3_600] {
            let probe = admission.try_admit(one_of(&window)).unwrap();
            assert_eq!(window.status().circuit, CircuitState::Probing);
            match directly {
                true => window.record_429(),
                false => assert!(probe.report_failure(&window, &too_many())),
            }
            drop(probe);
            assert_eq!(window.status().cooldown_remaining, secs(cooldown));
            pass_time(secs(cooldown) - millis(1)).await;
            refusal_by(&window, &would_refuse(&admission, one_of(&window)));
            pass_time(millis(1)).await;
        }
        observer.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn j7_what_the_model_answers_is_nothing_to_the_window() {
    let admission = started();
    let observer = Observer::of(&admission);
    let (bucket, window) = (bucket(600, 60_000), window());
    let demand = tokens_of(&bucket, 100).permit(&window);
    let grant = admission.try_admit(demand.clone()).unwrap();
    let fault = UpstreamFailure::status(500, "upstream", "internal error");
    for _ in 0..4 {
        assert!(grant.report_failure(&bucket, &fault));
    }
    for _ in 0..4 {
        assert!(admission.try_admit(demand.clone()).unwrap().report_failure(&bucket, &too_many()));
    }
    let status = window.status();
    assert_eq!((status.throttle, status.circuit), (0.0, CircuitState::Healthy));
    assert!(bucket.status().throttle > 0.0);
    drop(grant);
    observer.all_gone();
}
