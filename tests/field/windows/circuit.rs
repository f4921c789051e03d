//! The circuit of a window, through an admission.

use std::sync::{Arc, Barrier};

use admit::{
    Account, Admission, AdmitError, CircuitState, Demand, ElasticWindow, EventKind, Grant,
    RejectReason, TryAdmitError, UpstreamFailure,
};
use tokio::time::Instant;
use tokio_test::task::Spawn;
use tokio_util::sync::CancellationToken;

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
        unnamed.retain_mut(|waiter| {
            let goes = waiter.is_woken();
            if goes {
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
    let builder = super::window_builder(2, secs(100)).max_throttle(0.0).probe_timeout(secs(10));
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
