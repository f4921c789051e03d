//! What the limits hear of a job, and when.

use std::sync::{Arc, Mutex};

use admit::{Account, Limits, Replenishment, RunError, TokenBucket, UpstreamFailure, Usage};
use tokio::time::Instant;

use crate::listener::Listener;
use crate::support::World;

/// Runs a transactional job on one database, a permit and a time account, and answers what was heard.
async fn heard(outcome: Result<(), UpstreamFailure>) -> String {
    heard_of(async |_| outcome.clone().map_err(admit::BoxError::from)).await
}

async fn heard_of<F, Fut>(job: F) -> String
where
    F: FnMut(admit::Resources) -> Fut,
    Fut: Future<Output = Result<(), admit::BoxError>>,
{
    let world = World::with(|builder| builder.retries(admit::RetryPolicy::none()));
    let permit = Listener::new("permit", Replenishment::Release, &world.log);
    let time = Listener::new("time", Replenishment::Time, &world.log);
    let requirements = admit::Requirements::new()
        .permit(&permit)
        .permit(&time)
        .database(&world.databases[0])
        .transactional();
    let _: Result<(), RunError<admit::BoxError>> = world.runner.run(requirements, job).await;
    world.settled().await;
    let text = world.log.text();
    text.strip_prefix("a.acquire a.begin ").expect("it began").to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_success_reaches_every_account_before_the_handles_close_and_the_permits_return() {
    assert_eq!(
        heard(Ok(())).await,
        "a.commit a.await permit.success time.success a.close permit.give permit.settled \
         time.settled"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failure_reaches_the_account_it_names_and_no_other() {
    let failure = UpstreamFailure::status(429, "permit", "");
    assert_eq!(
        heard(Err(failure)).await,
        "permit.failure(permit) a.rollback a.close permit.give permit.settled \
         time.settled(unreported)"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_names_none_reaches_every_time_account() {
    let failure = UpstreamFailure::status(529, "somebody", "");
    assert_eq!(
        heard(Err(failure)).await,
        "time.failure(somebody) a.rollback a.close permit.give permit.settled(unreported) \
         time.settled"
    );
}

#[tokio::test(start_paused = true)]
async fn a_jobs_own_error_a_failed_commit_and_a_cancel_report_nothing() {
    let own = heard_of(async |_| Err("its own".into())).await;
    assert_eq!(
        own,
        "a.rollback a.close permit.give permit.settled(unreported) time.settled(unreported)"
    );
    let world = World::new();
    world.databases[0].make(admit::DbVerb::Commit, crate::support::Fault::Fails);
    let time = Listener::new("time", Replenishment::Time, &world.log);
    let requirements =
        admit::Requirements::new().permit(&time).database(&world.databases[0]).transactional();
    let ran = world.runner.run(requirements, async |_| Ok::<_, String>(())).await;
    assert!(matches!(ran, Err(RunError::Commit { .. })));
    assert!(world.log.text().ends_with("a.commit a.rollback a.close time.settled(unreported)"));
}

/// A model that fails, and another to turn to.
#[tokio::test(start_paused = true)]
async fn what_the_job_reported_itself_is_all_that_account_hears() {
    let first = UpstreamFailure::status(429, "permit", "");
    for (outcome, time_hears) in [
        (Ok(()), "time.success"),
        (Err(UpstreamFailure::status(529, "permit", "")), ""),
        (Err(UpstreamFailure::status(529, "somebody", "")), "time.failure(somebody)"),
    ] {
        let world = World::with(|builder| builder.retries(admit::RetryPolicy::none()));
        let permit = Listener::new("permit", Replenishment::Release, &world.log);
        let time = Listener::new("time", Replenishment::Time, &world.log);
        let other = Listener::new("other", Replenishment::Time, &world.log);
        let job = async |resources: admit::Resources| {
            assert!(resources.report_failure(&permit, &first));
            assert!(!resources.report_failure(&other, &first), "it is not in the grant");
            outcome.clone()
        };
        let requirements = admit::Requirements::new().permit(&permit).permit(&time);
        let _ = world.runner.run(requirements, job).await;
        let text = world.log.text();
        let expected = format!("permit.failure(permit) {time_hears} permit.give permit.settled");
        assert!(text.starts_with(&expected.replace("  ", " ")), "{text}");
    }
}

/// A service that answers "not found": it is well, and the job fails with an error of its own.
#[tokio::test(start_paused = true)]
async fn a_success_the_job_reported_itself_stands_whatever_the_job_comes_to() {
    let failure = UpstreamFailure::status(500, "somebody", "");
    for outcome in [Ok(()), Err(admit::BoxError::from("not found")), Err(failure.into())] {
        let world = World::with(|builder| builder.retries(admit::RetryPolicy::none()));
        let time = Listener::new("time", Replenishment::Time, &world.log);
        let other = Listener::new("other", Replenishment::Time, &world.log);
        let outcome = Mutex::new(Some(outcome));
        let job = async |resources: admit::Resources| {
            assert!(resources.report_success(&time));
            assert!(!resources.report_success(&other), "it is not in the grant");
            outcome.lock().unwrap().take().unwrap()
        };
        let ran = world.runner.run(admit::Requirements::new().permit(&time), job).await;
        assert_eq!(world.log.text(), "time.success time.settled", "{ran:?}");
    }
}

/// What is no model's and corrected to what was used, as a job's own quota is.
#[tokio::test(start_paused = true)]
async fn a_job_corrects_its_own_accounts_and_not_its_models() {
    let world = World::new();
    let bucket = TokenBucket::new("own", Limits::per_minute(60, 6_000)).unwrap();
    let requirements = admit::Requirements::new()
        .tokens(&bucket, 5_000)
        .permits(&world.own, 2)
        .call(&world.model, Usage::new(100, 0));
    let job = async |resources: admit::Resources| {
        assert!(resources.reconcile(&bucket, 2_000));
        assert_eq!(bucket.in_use(Instant::now()), 2_000);
        assert!(!resources.reconcile(&world.bucket(), 7), "its usages say what it used");
        assert_eq!(world.own.in_use(Instant::now()), 2);
        Ok::<_, String>(resources)
    };
    let resources = world.runner.run(requirements, job).await.unwrap();
    assert_eq!((bucket.in_use(Instant::now()), world.tokens_left()), (2_000, 59_900));
    // What it used may be known only later.
    assert!(resources.reconcile(&bucket, 3_000));
    assert_eq!(bucket.in_use(Instant::now()), 3_000);
}

#[tokio::test(start_paused = true)]
async fn what_was_killed_between_grant_and_start_is_given_back_whole() {
    let world = World::new();
    world.databases[0].make(admit::DbVerb::Acquire, crate::support::Fault::Fails);
    let time = Listener::new("time", Replenishment::Time, &world.log);
    let requirements = admit::Requirements::new().permit(&time).database(&world.databases[0]);
    let ran = world.runner.run(requirements, async |_| Ok::<_, String>(())).await;
    assert!(matches!(ran, Err(RunError::Provider(_))));
    assert_eq!(world.log.text(), "a.acquire time.give time.settled(unreported)");
    assert_eq!(time.in_use(Instant::now()), 0);
}

/// A task of the job's that outlives it, and reports while the runner ends the attempt.
#[tokio::test(start_paused = true)]
async fn a_report_that_comes_after_the_ends_own_is_not_heard() {
    let late = UpstreamFailure::status(429, "time", "");
    for (outcome, comes_at, expected) in [
        (Ok(()), "a.close", "time.success"),
        (Err(late.clone()), "a.rollback", "time.failure(time)"),
    ] {
        let world = World::with(|builder| builder.retries(admit::RetryPolicy::none()));
        let time = Listener::new("time", Replenishment::Time, &world.log);
        let other = Listener::new("other", Replenishment::Time, &world.log);
        let (heard, ended) = tokio::sync::oneshot::channel();
        let heard = Mutex::new(Some(heard));
        let job = async |resources: admit::Resources| {
            let (heard, log) = (heard.lock().unwrap().take().unwrap(), world.log.clone());
            let (late, time, other) = (late.clone(), Arc::clone(&time), Arc::clone(&other));
            tokio::spawn(async move {
                while !log.text().ends_with(comes_at) {
                    tokio::task::yield_now().await;
                }
                let told = [&time, &other].map(|account| resources.report_failure(account, &late));
                heard.send(told).unwrap();
            });
            outcome.clone()
        };
        let requirements = admit::Requirements::new()
            .permit(&time)
            .permit(&other)
            .database(&world.databases[0])
            .transactional();
        let _ = world.runner.run(requirements, job).await;
        assert_eq!(ended.await.unwrap(), [false, false], "after {expected}");
        let text = world.log.text();
        let reports: Vec<_> = text
            .split(' ')
            .filter(|line| line.starts_with("time.s") || line.starts_with("time.f"))
            .collect();
        assert_eq!(reports, [expected, "time.settled"], "{text}");
    }
}
