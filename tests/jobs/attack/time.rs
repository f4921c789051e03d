//! Jobs that never wait, and times of nothing and of ever.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use admit::{
    Admission, Demand, JobRunner, Requirements, Resources, RunError, RunStage, UpstreamFailure,
};
use tokio::task::{consume_budget, yield_now};
use tokio::time::{Instant, advance, timeout};
use tokio_util::sync::CancellationToken;

use super::guarded::Guarded;
use super::secs;
use crate::support::World;

/// A job that is ready at every poll: it spends its task's whole budget each time, and gives up
/// after so many rounds.
async fn busy(resources: Resources) -> Result<(), String> {
    for _ in 0..200_000 {
        consume_budget().await;
        if resources.is_cancelled() {
            return Err("told".into());
        }
    }
    Err("never told".into())
}

#[tokio::test(start_paused = true)]
async fn a_job_that_never_waits_is_told_of_its_time_and_dropped_after_the_grace() {
    let world = World::new();
    let run = world.runner.job(Requirements::new()).within(secs(10));
    let (ran, ()) = tokio::join!(tokio::spawn(run.run(busy)), async {
        yield_now().await;
        advance(secs(10)).await;
    });
    let error = ran.unwrap().unwrap_err();
    assert_eq!(error.job_error().map(String::as_str), Some("told"), "{error}");

    let deaf = async |_| {
        for _ in 0..200_000 {
            consume_budget().await;
        }
        Err::<(), _>("never dropped".to_owned())
    };
    let run = world.runner.job(Requirements::new()).within(secs(10));
    let (ran, ()) = tokio::join!(tokio::spawn(run.run(deaf)), async {
        yield_now().await;
        advance(secs(10)).await;
        yield_now().await;
        advance(secs(1)).await;
    });
    let error = ran.unwrap().unwrap_err();
    assert!(matches!(error, RunError::TimedOut { cause: None, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_never_waits_is_cancelled_by_its_token() {
    let world = World::new();
    let token = CancellationToken::new();
    let run = world.runner.job(world.everything()).cancelled_by(token.clone());
    let (ran, ()) = tokio::join!(tokio::spawn(run.run(busy)), async {
        while !world.log.text().ends_with("c.acquire") {
            yield_now().await;
        }
        for _ in 0..9 {
            yield_now().await;
        }
        token.cancel();
    });
    assert!(matches!(ran.unwrap(), Err(RunError::Cancelled { stage: RunStage::Work })));
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_with_the_runs_time_keeps_the_last_failure() {
    let world = World::new();
    let failure = UpstreamFailure::status(500, "elsewhere", "").with_retry_after(secs(10));
    let job = world.runner.job(world.everything()).within(secs(10));
    let finished = job.run_recorded(async |_| Err::<(), _>(failure.clone())).await;
    let error = finished.result.unwrap_err();
    assert!(matches!(error, RunError::TimedOut { stage: RunStage::Retry, .. }), "{error}");
    assert_eq!(error.job_error(), Some(&failure));
    assert_eq!(finished.record.attempts, 1);
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_nothing_and_one_of_all_time_both_let_a_ready_provider_through() {
    let world = World::new();
    for limit in [Duration::ZERO, Duration::MAX] {
        let database = Arc::new(Guarded { limit, ..Guarded::new("ready", 1) });
        let requirements = Requirements::new().database(&database).transactional();
        world.runner.run(requirements, async |_| Ok::<_, String>(())).await.unwrap();
        assert_eq!(database.in_use(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_in_the_middle_lets_the_job_end_and_refuses_its_retry() {
    let world = World::new();
    let job = async |_| {
        world.admission.stop();
        Ok::<_, String>("done")
    };
    let ran = world.runner.run(world.everything().transactional(), job).await;
    assert_eq!(ran.unwrap(), "done");
    world.settled().await;

    let world = World::new();
    let ran = world.runner.run(world.everything(), async |_| {
        world.admission.stop();
        Err::<(), _>(UpstreamFailure::status(500, "elsewhere", ""))
    });
    assert!(matches!(ran.await, Err(RunError::Admit(admit::AdmitError::ShutDown))));
    world.settled().await;
}

/// What a job does that computes for so long without an await.
fn compute_for(time: Duration) {
    // The clock moves at the first poll.
    let _ = pin!(advance(time)).poll(&mut Context::from_waker(Waker::noop()));
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_not_begun_when_there_is_no_time_left_to_end_it() {
    let world = World::new();
    // Its time and its grace, and not a moment less.
    let late = async |_| {
        compute_for(secs(11));
        Ok::<_, String>("late")
    };
    let run = world.runner.job(world.everything().transactional()).within(secs(10)).run(late);
    let error = run.await.unwrap_err();
    assert!(
        matches!(error, RunError::TimedOut { stage: RunStage::Work, cause: None, .. }),
        "{error}"
    );
    assert!(error.is_retryable());
    let text = world.log.text();
    assert!(
        text.contains("c.rollback b.rollback a.rollback") && !text.contains("commit"),
        "{text}"
    );
    // Within the grace there is time for it: it was not told, and is not to know.
    let hardly = async |_| {
        compute_for(secs(10) + Duration::from_millis(900));
        Ok::<_, String>("hardly")
    };
    let run = world.runner.job(world.everything().transactional()).within(secs(10)).run(hardly);
    assert_eq!(run.await.unwrap(), "hardly");
    // Where there is nothing to commit, what it did is done.
    let run = world.runner.job(world.everything()).within(secs(10)).run(late);
    assert_eq!(run.await.unwrap(), "late");
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_runs_time_ends_also_where_no_evaluator_keeps_it() {
    let admission = Admission::builder().build().unwrap();
    let world = World::new();
    let runner = JobRunner::builder(&admission).build().unwrap();
    let all = admission.try_admit(Demand::new().permits(&world.own, 4)).unwrap();
    let job = runner.job(Requirements::new().permit(&world.own)).within(secs(10));
    let start = Instant::now();
    let ran = timeout(secs(60), job.run(async |_| Ok::<_, String>(()))).await;
    let error = ran.expect("it has ten seconds").unwrap_err();
    assert!(
        matches!(error, RunError::TimedOut { stage: RunStage::Admission, cause: None, .. }),
        "{error}"
    );
    assert_eq!(start.elapsed(), secs(11));
    assert_eq!(admission.queue_len(), 0);
    drop(all);
}
