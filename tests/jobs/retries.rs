//! Retries: what is worth one, how long it waits, and that it holds nothing meanwhile.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use admit::{
    AdmitError, Amount, Demand, ElasticWindow, FailureKind, Resources, RetryPolicy, RunError,
    RunStage, TimeoutCause, UpstreamFailure, Usage,
};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::support::World;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Fails the first attempts with these, and then succeeds; notes when each began.
struct Flaky {
    failures: RefCell<Vec<UpstreamFailure>>,
    begun: RefCell<Vec<Duration>>,
    start: Instant,
}

impl Flaky {
    fn new(failures: impl IntoIterator<Item = UpstreamFailure>) -> Self {
        let mut failures: Vec<_> = failures.into_iter().collect();
        failures.reverse();
        Self { failures: RefCell::new(failures), begun: RefCell::default(), start: Instant::now() }
    }

    fn attempt(&self, resources: &Resources) -> Result<u32, UpstreamFailure> {
        self.begun.borrow_mut().push(self.start.elapsed());
        match self.failures.borrow_mut().pop() {
            Some(failure) => Err(failure),
            None => Ok(resources.attempt()),
        }
    }

    fn waits(&self) -> Vec<Duration> {
        self.begun.borrow().windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

/// A failure that names nobody here, so that no account slows the next attempt down.
fn stray() -> UpstreamFailure {
    UpstreamFailure::status(500, "elsewhere", "")
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_as_long_as_the_upstream_says_and_calls_the_job_again() {
    let world = World::new();
    let flaky = Flaky::new([stray().with_retry_after(secs(42)), stray().with_retry_after(secs(1))]);
    let run = world.runner.job(world.everything().transactional());
    let finished = run.run_recorded(async |resources| flaky.attempt(&resources)).await;
    assert_eq!(finished.result.unwrap(), 3);
    assert_eq!(finished.record.attempts, 3);
    assert_eq!(flaky.waits(), [secs(42), secs(1)]);
    world.settled().await;
    assert_eq!(world.log.text().matches("rollback").count(), 6);
    assert_eq!(world.log.text().matches("commit").count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_drawn_wait_lies_in_its_range_and_grows_with_the_attempts() {
    let world = World::new();
    let overload = || stray().with_kind(FailureKind::Overload);
    for (make, least, most) in [(stray as fn() -> _, 5, 30), (overload as fn() -> _, 15, 90)] {
        let flaky = Flaky::new([make(), make(), make()]);
        let job = async |resources| flaky.attempt(&resources);
        world.runner.run(world.everything(), job).await.unwrap();
        for (wait, attempt) in flaky.waits().into_iter().zip(1..) {
            let range = secs(least * attempt)..=secs(most * attempt) + Duration::from_millis(1);
            assert!(range.contains(&wait), "{wait:?} after attempt {attempt}");
        }
    }
}

/// Wherever the multiplied range is cut, those beyond the cut must not all wait the longest.
#[tokio::test(start_paused = true)]
async fn jobs_that_failed_together_come_back_apart_at_the_longest_wait_too() {
    let patient = RetryPolicy { max_retries: 10, ..RetryPolicy::default() };
    let world = World::with(|builder| builder.retries(patient));
    let start = Instant::now();
    let job = move |resources: Resources| async move {
        let failure = UpstreamFailure::status(529, "elsewhere", "");
        match resources.attempt() {
            // The upstream's word brings all of them to the tenth attempt at one moment.
            1..=9 => Err(failure.with_retry_after(secs(1))),
            10 => Err(failure),
            _ => Ok(start.elapsed() - secs(9)),
        }
    };
    let runs: Vec<_> =
        (0..200).map(|_| tokio::spawn(world.runner.run(admit::Requirements::new(), job))).collect();
    let mut waits = Vec::new();
    for run in runs {
        waits.push(run.await.unwrap().unwrap());
    }
    // 150 s to 900 s, cut at 300 s.
    let range = secs(150)..=secs(300) + Duration::from_millis(1);
    assert!(waits.iter().all(|wait| range.contains(wait)), "{waits:?}");
    let late = waits.iter().filter(|wait| **wait >= secs(299)).count();
    assert!(late < 10, "{late} of 200 come back within the last second");
}

#[tokio::test(start_paused = true)]
async fn the_last_failure_is_returned_with_its_budget() {
    let world = World::new();
    let flaky = Flaky::new((0..10).map(|_| stray()));
    let job = async |resources| flaky.attempt(&resources);
    let error = world.runner.run(world.everything(), job).await.unwrap_err();
    assert_eq!(error.to_string(), "HTTP 500 from elsewhere (its budget of 3 retries is used up)");
    assert!(matches!(error, RunError::Exhausted { retries: 3, .. }));
    assert_eq!(flaky.begun.borrow().len(), 4);
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_worth_a_retry_has_none() {
    let world = World::new();
    for failure in [
        UpstreamFailure::status(400, "elsewhere", ""),
        UpstreamFailure::status(402, "elsewhere", ""),
    ] {
        let flaky = Flaky::new([failure]);
        let job = async |resources| flaky.attempt(&resources);
        let error = world.runner.run(world.everything(), job).await.unwrap_err();
        assert!(matches!(error, RunError::Job(_)), "{error}");
        assert_eq!(flaky.begun.borrow().len(), 1);
    }
    let flaky = Flaky::new([stray()]);
    let none = world.runner.job(world.everything()).retries(RetryPolicy::none());
    let error = none.run(async |resources| flaky.attempt(&resources)).await.unwrap_err();
    assert!(matches!(error, RunError::Job(_)), "{error}");
    let refused = world
        .runner
        .run(admit::Requirements::new().call(&world.model, Usage::new(60_001, 0)), async |_| {
            Ok::<_, UpstreamFailure>(())
        });
    assert!(matches!(refused.await, Err(RunError::Admit(_))));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_runs_others_is_not_run_again_for_their_upstreams() {
    let world = World::new();
    let child = UpstreamFailure::status(500, "elsewhere", "").with_retry_after(secs(1));
    let calls = Cell::new(0);
    let orchestrator = async |_| {
        let job = async |_| {
            calls.set(calls.get() + 1);
            Err::<(), _>(child.clone())
        };
        world.runner.run(world.everything(), job).await
    };
    let error = world.runner.run(admit::Requirements::new(), orchestrator).await.unwrap_err();
    assert_eq!(calls.get(), 4);
    assert!(matches!(error, RunError::Job(RunError::Exhausted { retries: 3, .. })), "{error}");
}

#[tokio::test(start_paused = true)]
async fn between_attempts_nothing_is_held_and_others_go() {
    let world = World::new();
    let flaky = Flaky::new([stray().with_retry_after(secs(100))]);
    let run = world.runner.run(world.everything(), async |resources| flaky.attempt(&resources));
    let looked = Cell::new(false);
    let (ran, ()) = tokio::join!(run, async {
        sleep(secs(50)).await;
        assert_eq!((world.permits_in_use(), world.out()), (0, 0));
        let everything = Demand::new().permits(&world.own, 4).permits(&world.http, 8);
        drop(world.admission.try_admit(everything).unwrap());
        looked.set(true);
    });
    assert_eq!(ran.unwrap(), 2);
    assert!(looked.get());
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_or_a_time_out_ends_the_wait_at_once() {
    for cancel in [true, false] {
        let world = World::new();
        let flaky = Flaky::new([stray().with_retry_after(secs(100))]);
        let token = CancellationToken::new();
        let job = world.runner.job(world.everything()).cancelled_by(token.clone());
        let job = if cancel { job } else { job.within(secs(20)) };
        let run = job.run(async |resources| flaky.attempt(&resources));
        let start = Instant::now();
        let (ran, ()) = tokio::join!(run, async {
            sleep(secs(30)).await;
            token.cancel();
        });
        match ran.unwrap_err() {
            RunError::Cancelled { stage: RunStage::Retry } => assert!(cancel),
            RunError::TimedOut {
                stage: RunStage::Retry,
                cause: Some(TimeoutCause::Failure(_)),
                ..
            } => assert!(!cancel),
            other => panic!("{other}"),
        }
        assert_eq!(start.elapsed(), secs(30));
        assert_eq!(flaky.begun.borrow().len(), 1);
        world.settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_of_the_admission_ends_the_wait_at_once() {
    let world = World::new();
    let failure = stray().with_retry_after(secs(100));
    let run =
        world.runner.job(world.everything()).run_recorded(async |_| Err::<(), _>(failure.clone()));
    let start = Instant::now();
    let stop = async {
        sleep(secs(7)).await;
        world.admission.stop();
    };
    let (finished, ()) = tokio::join!(run, stop);
    assert!(matches!(finished.result, Err(RunError::Admit(AdmitError::ShutDown))));
    assert_eq!((start.elapsed(), finished.record.attempts), (secs(7), 1));
    assert_eq!(finished.record.last_failure, Some(failure));
    world.settled().await;
}

/// A service that failed until its circuit opened, and is well again when the cooldown is over.
#[tokio::test(start_paused = true)]
async fn a_job_that_an_open_circuit_refuses_comes_back_where_its_policy_says_so() {
    let patient = RetryPolicy { refusals: true, ..RetryPolicy::default() };
    for (policy, limit, expected) in [
        (RetryPolicy::default(), secs(1_000), "refused"),
        (RetryPolicy { max_retries: 0, ..patient.clone() }, secs(1_000), "refused"),
        (patient.clone(), secs(50), "out of time"),
        (patient, secs(1_000), "done"),
    ] {
        let world = World::with(|builder| builder.retries(policy));
        let window = ElasticWindow::builder("service")
            .max_throttle(1.0)
            .failures_to_open(1)
            .initial_cooldown(secs(60))
            .build()
            .unwrap();
        window.record_failure(&stray());
        let requirements = admit::Requirements::new().permit(&window);
        let start = Instant::now();
        let runs: Vec<_> = (0..20)
            .map(|_| {
                let run = world.runner.job(requirements.clone()).within(limit);
                tokio::spawn(run.run_recorded(async |_| Ok::<_, UpstreamFailure>(())))
            })
            .collect();
        for run in runs {
            let finished = run.await.unwrap();
            let came_to = match finished.result {
                Ok(()) => "done",
                Err(RunError::Admit(AdmitError::Refused { .. })) => "refused",
                Err(RunError::TimedOut {
                    stage: RunStage::Retry,
                    cause: Some(TimeoutCause::Admission(AdmitError::Refused { .. })),
                    ..
                }) => "out of time",
                Err(other) => panic!("{other}"),
            };
            assert_eq!(came_to, expected);
            assert_eq!(finished.record.attempts, if expected == "done" { 2 } else { 1 });
        }
        let spread = match expected {
            "refused" => Duration::ZERO..secs(1),
            "out of time" => secs(50)..secs(51),
            // The cooldown, the spread, and the slow window's own pace.
            _ => secs(60)..secs(120),
        };
        assert!(spread.contains(&start.elapsed()), "{expected}: {:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_a_new_arrival_at_the_end_of_the_line() {
    let world = World::new();
    let flaky = Flaky::new([stray().with_retry_after(secs(10))]);
    let order = RefCell::new(Vec::new());
    let requirements = || admit::Requirements::new().add(&world.own, admit::Amount::permits(4));
    let first = world.runner.run(requirements(), async |resources| {
        let attempt = flaky.attempt(&resources);
        order.borrow_mut().push(format!("first, attempt {}", resources.attempt()));
        attempt
    });
    let second = async {
        sleep(secs(5)).await;
        let job = async |_| {
            order.borrow_mut().push("second".to_owned());
            sleep(secs(20)).await;
            Ok::<_, UpstreamFailure>(1)
        };
        world.runner.run(requirements(), job).await
    };
    let third = async {
        sleep(secs(6)).await;
        let job = async |_| {
            order.borrow_mut().push("third".to_owned());
            Ok::<_, UpstreamFailure>(1)
        };
        world.runner.run(requirements(), job).await
    };
    let (first, second, third) = tokio::join!(first, second, third);
    assert!(first.is_ok() && second.is_ok() && third.is_ok());
    assert_eq!(order.into_inner(), ["first, attempt 1", "second", "third", "first, attempt 2"]);
}

#[tokio::test(start_paused = true)]
async fn the_record_says_what_made_a_retry_necessary_that_was_refused() {
    let world = World::new();
    let run = world.runner.job(admit::Requirements::new().add(&world.own, Amount::permits(4)));
    // The next attempt asks for what nobody can have any more.
    let finished = run
        .run_recorded(async |_| {
            world.own.resize(3).unwrap();
            Err::<(), _>(stray())
        })
        .await;
    assert!(matches!(finished.result, Err(RunError::Admit(_))), "{:?}", finished.result);
    assert_eq!(finished.record.attempts, 2);
    assert_eq!(finished.record.last_failure, Some(stray()));

    // One that fails as it is told of its time has failed, too.
    let last = UpstreamFailure::status(503, "elsewhere", "the last");
    let run = world.runner.job(admit::Requirements::new()).within(secs(60));
    let job = async |resources: Resources| {
        if resources.attempt() > 1 {
            resources.cancelled().await;
            return Err::<(), _>(last.clone());
        }
        Err(stray())
    };
    let finished = run.run_recorded(job).await;
    assert!(matches!(finished.result, Err(RunError::TimedOut { stage: RunStage::Work, .. })));
    assert_eq!(finished.record.last_failure, Some(last));

    let run = world.runner.job(admit::Requirements::new());
    let finished = run.run_recorded(async |_| Ok::<_, UpstreamFailure>(())).await;
    assert_eq!(finished.record.last_failure, None);
}

#[tokio::test(start_paused = true)]
async fn the_record_sums_the_waits_of_all_attempts() {
    let world = World::new();
    let flaky = Flaky::new([stray().with_retry_after(secs(10))]);
    let hold = async |from: u64, to: u64| {
        sleep(secs(from)).await;
        let held = world.admission.admit(Demand::new().permits(&world.own, 4)).await.unwrap();
        sleep(secs(to - from)).await;
        drop(held);
    };
    let run = async {
        sleep(secs(1)).await;
        world
            .runner
            .job(admit::Requirements::new().permit(&world.own))
            .run_recorded(async |resources| flaky.attempt(&resources))
            .await
    };
    // Waits from 1 to 3, fails, comes back at 13 and waits until 17.
    let (finished, (), ()) = tokio::join!(run, hold(0, 3), hold(12, 17));
    assert_eq!(finished.result.unwrap(), 2);
    assert_eq!(finished.record.admission_wait, secs(6));
    assert_eq!(finished.record.wait_times.len(), 1);
    assert_eq!(finished.record.wait_times[0].wait, secs(6));
}
