//! A run that ends before its time: panics, time-outs with their grace, and cancels.

use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use admit::{
    AdmitError, DbProvider, DbVerb, Demand, Resources, RunError, RunStage, TimeoutCause,
    UpstreamFailure,
};
use futures::FutureExt;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::support::{Fault, World};

const READY: &str = "a.acquire b.acquire c.acquire a.begin b.begin c.begin";

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn a_job_that_panics_is_rolled_back_before_the_panic_goes_on() {
    let world = World::new();
    let job = async |_| -> Result<(), String> { panic!("the job's own") };
    let run = world.runner.run(world.everything().transactional(), job);
    let payload = AssertUnwindSafe(run).catch_unwind().await.unwrap_err();
    assert_eq!(*payload.downcast::<&str>().unwrap(), "the job's own");
    let expected = format!("{READY} c.rollback b.rollback a.rollback c.close b.close a.close");
    assert_eq!(world.log.text(), expected);
    assert_eq!(world.permits_in_use(), 0);
    assert_eq!(world.tokens_left(), 59_000);
}

#[tokio::test(start_paused = true)]
async fn a_closure_that_panics_before_its_future_is_a_job_that_panics() {
    let world = World::new();
    let job = |_: Resources| -> std::future::Ready<Result<(), String>> { panic!("at once") };
    let run = world.runner.run(world.everything(), job);
    assert!(AssertUnwindSafe(run).catch_unwind().await.is_err());
    assert_eq!(world.log.text(), "a.acquire b.acquire c.acquire c.close b.close a.close");
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_panics_leaves_nothing_behind() {
    for verb in [DbVerb::Acquire, DbVerb::Begin, DbVerb::Commit, DbVerb::AwaitCompletion] {
        let world = World::new();
        world.databases[1].make(verb, Fault::Panics);
        let job = async |_| Ok::<_, String>(());
        let run = world.runner.run(world.everything().transactional(), job);
        let payload = AssertUnwindSafe(run).catch_unwind().await.unwrap_err();
        assert_eq!(*payload.downcast::<String>().unwrap(), format!("b told to panic at {verb}"));
        world.settled().await;
        let before_work = matches!(verb, DbVerb::Acquire | DbVerb::Begin);
        assert_eq!(world.tokens_left(), if before_work { 60_000 } else { 59_000 }, "{verb}");
    }
}

#[tokio::test(start_paused = true)]
async fn at_its_time_out_a_job_is_told_and_after_the_grace_it_is_dropped_and_aborted() {
    let world = World::new();
    let start = Instant::now();
    let told = std::cell::Cell::new(None);
    let job = async |resources: Resources| {
        resources.cancelled().await;
        told.set(Some(start.elapsed()));
        pending::<Result<(), String>>().await
    };
    let run = world.runner.job(world.everything().transactional()).within(secs(60)).run(job);
    let error = run.await.unwrap_err();
    assert_eq!(told.get(), Some(secs(60)));
    assert_eq!(start.elapsed(), secs(66));
    assert!(matches!(
        error,
        RunError::TimedOut { limit, stage: RunStage::Work, cause: None } if limit == secs(60)
    ));
    let expected = format!("{READY} c.abort b.abort a.abort c.close b.close a.close");
    assert_eq!(world.log.text(), expected);
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_job_hands_on_cannot_cancel_the_job_itself() {
    let world = World::new();
    let job = async |resources: Resources| {
        let handed_on = resources.cancellation_token();
        handed_on.cancel();
        assert!(!resources.is_cancelled());
        let handed_on = resources.cancellation_token();
        resources.cancelled().await;
        assert!(handed_on.is_cancelled());
        Ok::<_, String>(())
    };
    let run = world.runner.job(world.everything()).within(secs(1)).run(job);
    assert!(matches!(run.await, Err(RunError::TimedOut { .. })));
}

#[tokio::test(start_paused = true)]
async fn handles_are_closed_and_permits_return_even_if_an_abort_panics() {
    let world = World::new();
    world.databases[1].make_abort_panic();
    let job = async |_| pending::<Result<(), String>>().await;
    let run = world.runner.job(world.everything()).within(secs(1)).run(job);
    assert!(matches!(run.await, Err(RunError::TimedOut { stage: RunStage::Work, .. })));
    assert!(world.log.text().ends_with("c.abort b.abort a.abort c.close b.close a.close"));
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_job_answers_within_its_grace_is_rolled_back() {
    for answer in
        [Ok(()), Err(UpstreamFailure::status(429, "gpt-x", "").with_retry_after(secs(90)))]
    {
        let world = World::new();
        let start = Instant::now();
        let job = async |resources: Resources| {
            resources.cancelled().await;
            sleep(secs(2)).await;
            answer.clone()
        };
        let run = world.runner.job(world.everything().transactional()).within(secs(60)).run(job);
        let error = run.await.unwrap_err();
        assert_eq!(start.elapsed(), secs(62));
        assert_eq!(error.job_error(), answer.as_ref().err());
        let expected = format!("{READY} c.rollback b.rollback a.rollback c.close b.close a.close");
        assert_eq!(world.log.text(), expected);
        // The upstream's word counts all the same: the model is left alone for as long as it asked.
        let held_until = world.admission.try_admit(Demand::new().tokens(&world.bucket(), 1));
        assert_eq!(held_until.is_err(), answer.is_err());
        drop(held_until);
        world.settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_counts_from_the_call_and_spans_the_wait() {
    let world = World::new();
    let held = world.admission.admit(Demand::new().permits(&world.own, 4)).await.unwrap();
    let job = world.runner.job(world.everything()).within(secs(10));
    let run = job.run_recorded(async |_| Ok::<_, String>(()));
    sleep(secs(4)).await;
    let start = Instant::now();
    let finished = run.await;
    let error = finished.result.unwrap_err();
    assert_eq!(start.elapsed(), secs(6));
    assert_eq!(finished.record.admission_wait, secs(6));
    let text = error.to_string();
    assert!(text.contains("not done within 10s") && text.contains("`own` is short of"), "{text}");
    assert!(matches!(
        error,
        RunError::TimedOut {
            stage: RunStage::Admission,
            cause: Some(TimeoutCause::Admission(AdmitError::TimedOut { .. })),
            ..
        }
    ));
    drop(held);
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_time_out_or_a_cancel_before_the_work_rolls_the_grant_back() {
    for (cancel, verb) in [
        (false, DbVerb::Acquire),
        (true, DbVerb::Acquire),
        (false, DbVerb::Begin),
        (true, DbVerb::Begin),
    ] {
        let world = World::new();
        world.databases[2].make(verb, Fault::Hangs);
        let token = CancellationToken::new();
        let mut job = world.runner.job(world.everything().transactional());
        job = if cancel { job.cancelled_by(token.clone()) } else { job.within(secs(3)) };
        let run = job.run(async |_| Ok::<_, String>(()));
        let (ran, ()) = tokio::join!(run, async {
            sleep(secs(2)).await;
            token.cancel();
        });
        match ran.unwrap_err() {
            RunError::Cancelled { stage: RunStage::Databases } => assert!(cancel),
            error @ RunError::TimedOut { stage: RunStage::Databases, .. } => {
                assert!(!cancel);
                let told = format!(
                    "not done within 3s: its time ran out before its work began ({verb} on database \
                     `{}` had not answered)",
                    world.databases[2].name()
                );
                assert_eq!(error.to_string(), told);
            }
            other => panic!("{other}"),
        }
        world.settled().await;
        assert_eq!(world.tokens_left(), 60_000);
        assert!(!world.log.text().contains("job"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_token_leaves_the_line_at_once_and_an_earlier_one_takes_nothing() {
    let world = World::new();
    let held = world.admission.admit(Demand::new().permits(&world.own, 4)).await.unwrap();
    let token = CancellationToken::new();
    let run = |token: &CancellationToken| {
        world
            .runner
            .job(world.everything())
            .cancelled_by(token.clone())
            .run(async |_| Ok::<_, String>(()))
    };
    let start = Instant::now();
    let (ran, ()) = tokio::join!(run(&token), async {
        sleep(secs(1)).await;
        token.cancel();
    });
    assert_eq!(ran.unwrap_err().to_string(), "cancelled while it waited for its limits");
    assert_eq!(start.elapsed(), secs(1));
    drop(held);
    assert!(matches!(run(&token).await, Err(RunError::Cancelled { .. })));
    assert_eq!(world.log.text(), "");
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_drops_the_work_and_rolls_it_back() {
    let world = World::new();
    let token = CancellationToken::new();
    let start = Instant::now();
    let run = world
        .runner
        .job(world.everything().transactional())
        .cancelled_by(token.clone())
        .run(async |_| pending::<Result<(), String>>().await);
    let (ran, ()) = tokio::join!(run, async {
        sleep(secs(5)).await;
        token.cancel();
    });
    assert!(matches!(ran, Err(RunError::Cancelled { stage: RunStage::Work })));
    assert_eq!(start.elapsed(), secs(5));
    assert!(world.log.text().ends_with("c.rollback b.rollback a.rollback c.close b.close a.close"));
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_does_not_cut_a_commit_off() {
    let world = World::new();
    let token = CancellationToken::new();
    let run = world.runner.job(world.everything().transactional()).cancelled_by(token.clone()).run(
        async |_| {
            token.cancel();
            Ok::<_, String>("done")
        },
    );
    assert_eq!(run.await.unwrap(), "done");
    assert!(world.log.text().contains("c.commit c.await c.close"));
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_hangs_is_cut_off_after_the_grace() {
    let world = World::new();
    world.databases[1].make(DbVerb::Commit, Fault::Hangs);
    let start = Instant::now();
    let run = world
        .runner
        .job(world.everything().transactional())
        .within(secs(20))
        .run(async |_| Ok::<_, String>(()));
    let error = run.await.unwrap_err();
    assert_eq!(start.elapsed(), secs(22));
    assert!(matches!(
        &error,
        RunError::TimedOut {
            stage: RunStage::Commit,
            cause: Some(TimeoutCause::Committing { durable }),
            ..
        } if *durable == ["a".into()]
    ));
    assert!(error.to_string().contains("while it committed (durable: `a`; the next may be)"));
    assert!(world.log.text().ends_with("b.commit c.rollback b.rollback c.close b.close a.close"));
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn no_time_at_all_takes_nothing_and_all_the_time_is_no_limit() {
    let world = World::new();
    let run = |limit| {
        world.runner.job(world.everything()).within(limit).run(async |_| {
            sleep(secs(1)).await;
            Ok::<_, String>(())
        })
    };
    let none = run(Duration::ZERO).await;
    assert!(matches!(none, Err(RunError::TimedOut { .. })), "{none:?}");
    assert_eq!(world.tokens_left(), 60_000);
    run(Duration::MAX).await.unwrap();
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_within_the_grace_ends_the_job_at_once() {
    let world = World::new();
    let (start, token) = (Instant::now(), CancellationToken::new());
    let job = world.runner.job(world.everything().transactional()).within(secs(60));
    let run = job
        .cancelled_by(token.clone())
        .run(async |_| std::future::pending::<Result<(), String>>().await);
    let (ran, ()) = tokio::join!(run, async {
        sleep(secs(62)).await;
        token.cancel();
    });
    let error = ran.unwrap_err();
    assert!(matches!(error, RunError::Cancelled { stage: RunStage::Work }), "{error}");
    assert_eq!(start.elapsed(), secs(62));
    world.settled().await;
}
