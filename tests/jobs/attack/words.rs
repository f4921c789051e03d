//! What an error says, and whether another run is worth it.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use admit::{
    Accounts, BoxError, CountingGate, DbProvider, DbVerb, ElasticWindow, ModelSpec, Money,
    ProviderError, Requirements, Resources, RetryPolicy, RunError, RunStage, Singleton,
    SpendRefusal, TimeoutCause, UpstreamFailure, Usage,
};

use super::secs;
use crate::support::{Fault, World};

#[tokio::test(start_paused = true)]
async fn a_commit_that_may_be_durable_is_not_worth_another_run() {
    let world = World::new();
    world.databases[1].make(DbVerb::Commit, Fault::Hangs);
    let run = world.runner.job(world.everything().transactional()).within(secs(20));
    let error = run.run(async |_| Ok::<_, String>(())).await.unwrap_err();
    assert!(matches!(
        error,
        RunError::TimedOut { cause: Some(TimeoutCause::Committing { .. }), .. }
    ));
    assert!(!error.is_retryable(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_is_worth_another_run_is_said_of_failures_and_refusals_alike() {
    let world = World::with(|builder| builder.retries(RetryPolicy::none()));
    for (status, expected) in [(429, true), (400, false)] {
        let failure = UpstreamFailure::status(status, "elsewhere", "");
        let ran = world.runner.run(world.everything(), async |_| Err::<(), _>(failure.clone()));
        assert_eq!(ran.await.unwrap_err().is_retryable(), expected, "{status}");
    }
    let usd = |text: &str| Money::usd(text.parse().unwrap());
    for (committed, expected) in [("1", true), ("0", false)] {
        let refusal = SpendRefusal::OverCap {
            workflow: "w".into(),
            spent: usd("0"),
            committed: usd(committed),
            cap: usd("1"),
            reservation: usd(if expected { "1" } else { "2" }),
        };
        assert_eq!(RunError::<String>::Spend(refusal).is_retryable(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_namesake_is_told_from_the_provider_that_was_required() {
    let world = World::new();
    let database = &world.databases[0];
    let job = async |resources: Resources| {
        let anew = database.mapped(|name: Arc<str>| name.len());
        Ok::<_, String>(resources.get(&anew).unwrap_err().to_string())
    };
    let text = world.runner.run(world.everything(), job).await.unwrap();
    assert_eq!(
        text,
        "database `a` is held by this job through another provider; ask with the one it required"
    );
}

#[tokio::test(start_paused = true)]
async fn only_an_acquire_that_takes_too_long_speaks_of_the_pool() {
    for (verb, has_pool) in [(DbVerb::Acquire, true), (DbVerb::Begin, false)] {
        let world = World::new();
        world.databases[0].make(verb, Fault::Hangs);
        let requirements = world.everything().transactional();
        let ran = world.runner.run(requirements, async |_| Ok::<_, String>(())).await;
        let text = ran.unwrap_err().to_string();
        assert_eq!(text.contains("the pool needs room"), has_pool, "{text}");
        assert!(text.contains(&format!("{verb} took longer than 7s")), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_out_of_time_without_databases_does_not_speak_of_any() {
    let world = World::new();
    let run = world.runner.job(Requirements::new()).within(Duration::ZERO);
    let text = run.run(async |_| Ok::<_, String>(())).await.unwrap_err().to_string();
    assert_eq!(text, "not done within 0ns: its time ran out before its work began");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_not_granted_says_when_it_would_be() {
    let world = World::new();
    let start = tokio::time::Instant::now();
    let all = || Requirements::new().call(&world.model, Usage::new(60_000, 0));
    world.runner.run(all(), async |_| Ok::<_, String>(())).await.unwrap();
    let late = world.runner.job(all()).within(secs(20)).run(async |_| Ok::<_, String>(())).await;
    assert_eq!(late.unwrap_err().retry_at(), Some(start + secs(60)));

    let window = ElasticWindow::builder("maps").max(10).per(secs(1)).max_throttle(0.0);
    let window = window.build().unwrap();
    for _ in 0..3 {
        window.record_429();
    }
    let blocked = Requirements::new().permit(&window);
    let error = world.runner.run(blocked, async |_| Ok::<_, String>(())).await.unwrap_err();
    assert!(matches!(error, RunError::Admit(_)) && error.is_retryable(), "{error}");
    assert_eq!(error.retry_at(), Some(start + secs(20 + 30)));
    let own = world.runner.run(world.everything(), async |_| Err::<(), _>("own".to_owned()));
    assert_eq!(own.await.unwrap_err().retry_at(), None);
}

#[tokio::test(start_paused = true)]
async fn what_a_driver_a_constructor_or_a_models_id_says_is_told_on_one_line() {
    let said = "no\n2026-01-01T00:00:00Z ERROR forged\u{1b}[2K";
    let failed = ProviderError::failed("orders", DbVerb::Rollback, said);
    let told = "no 2026-01-01T00:00:00Z ERROR forged [2K";
    assert_eq!(failed.to_string(), format!("database `orders`: rollback failed: {told}"));

    struct Broken;
    impl Singleton for Broken {
        type Account = CountingGate;
        fn build() -> Result<Arc<CountingGate>, BoxError> {
            Err("no\n2026-01-01T00:00:00Z ERROR forged\u{1b}[2K".into())
        }
    }
    let text = Accounts::new().get::<Broken>().unwrap_err().to_string();
    assert!(text.ends_with(told), "{text}");

    let world = World::new();
    let job = async |resources: Resources| {
        let other = ModelSpec::new(said, 1_000);
        Ok::<_, String>(resources.record_usage(&other, Usage::new(1, 1)).unwrap_err().to_string())
    };
    let text = world.runner.run(world.everything(), job).await.unwrap();
    assert_eq!(
        text,
        format!("model `{told}` is not among what this job calls (`gpt-x`); require it first")
    );
}

#[test]
fn each_way_to_fail_says_whether_to_run_it_again_what_the_job_said_and_where_it_came_from() {
    let provider = || ProviderError::failed("orders", DbVerb::Commit, "disk full");
    let failure = || UpstreamFailure::status(500, "gpt-x", "");
    let exhausted = |retries| RunError::Exhausted { retries, failure: failure() };
    let timed_out = |cause| {
        let (limit, stage) = (secs(1), RunStage::Work);
        RunError::TimedOut { limit, stage, cause }
    };
    for (error, is_retryable, has_job_error, has_source) in [
        (RunError::Provider(provider()), true, false, true),
        (RunError::Commit { source: provider(), durable: Vec::new() }, false, false, true),
        (RunError::Job(failure()), true, true, false),
        (exhausted(3), true, true, false),
        (RunError::Cancelled { stage: RunStage::Retry }, false, false, false),
        (timed_out(None), true, false, false),
        (timed_out(Some(TimeoutCause::Failure(failure()))), true, true, false),
        (timed_out(Some(TimeoutCause::Committing { durable: Vec::new() })), false, false, false),
        (RunError::NoRuntime, false, false, false),
    ] {
        let said = (error.is_retryable(), error.job_error().is_some(), error.source().is_some());
        assert_eq!(said, (is_retryable, has_job_error, has_source), "{error}");
    }
    assert!(exhausted(1).to_string().ends_with("(its budget of 1 retry is used up)"));
    assert!(exhausted(2).to_string().ends_with("(its budget of 2 retries is used up)"));
}
