//! Sessions and guards: what is out, and what waits for it.

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use admit::{
    Account, Admission, CountingGate, DbProvider, DbVerb, Demand, Requirements, Resources,
    RunError, RunStage, UpstreamFailure,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::guarded::Guarded;
use super::secs;
use crate::support::{Fault, World};

#[tokio::test(start_paused = true)]
async fn a_task_of_the_jobs_lets_go_of_its_guard_before_the_commit_waits_for_it() {
    let world = World::new();
    let database = Arc::new(Guarded::new("guarded", 1));
    let requirements = Requirements::new().database(&database).transactional();
    let job = async |resources: Resources| {
        let guard = resources.get(&database).map_err(|error| error.to_string())?;
        tokio::spawn(async move {
            resources.cancelled().await;
            drop(guard);
        });
        Ok::<_, String>("committed")
    };
    let start = Instant::now();
    let ran = world.runner.job(requirements).within(secs(60)).run(job).await;
    assert_eq!(ran.unwrap(), "committed");
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_never_let_go_costs_the_session_and_not_the_permit() {
    let world = World::new();
    let database = Arc::new(Guarded::new("guarded", 1));
    let job = async |resources: Resources| {
        let guard = resources.get(&database).map_err(|error| error.to_string())?;
        tokio::spawn(async move {
            pending::<()>().await;
            drop(guard);
        });
        Ok::<_, String>(())
    };
    let start = Instant::now();
    world.runner.run(Requirements::new().database(&database), job).await.unwrap();
    assert_eq!(start.elapsed(), secs(5));
    let run = world.runner.job(Requirements::new().database(&database).transactional());
    let error = run.within(secs(20)).run(job).await.unwrap_err();
    assert!(matches!(error, RunError::TimedOut { stage: RunStage::Commit, .. }), "{error}");
    world.settled().await;
    assert_eq!(database.in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_permit_of_a_database_stays_while_its_connection_is_out() {
    let world = World::new();
    let database = &world.databases[0];
    let job = async |resources: Resources| {
        assert!(!resources.release_one(database.account()));
        assert_eq!(database.account().in_use(Instant::now()), 1);
        assert!(resources.release_one(&world.http) && resources.release_one(&world.own));
        Ok::<_, String>(())
    };
    world.runner.run(world.everything(), job).await.unwrap();
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn an_old_attempts_future_is_gone_before_its_handles_and_before_the_next_attempt() {
    struct Says<'a>(&'a World);
    impl Drop for Says<'_> {
        fn drop(&mut self) {
            assert_eq!(&*admit::ambient(&self.0.databases[0]).unwrap(), "a");
            self.0.log.write("gone");
        }
    }
    let world = World::new();
    let attempts = Cell::new(0);
    let run = world.runner.job(Requirements::new().database(&world.databases[0]).transactional());
    let ran = run.within(secs(100)).run(async |_| {
        let _says = Says(&world);
        world.log.write("job");
        attempts.set(attempts.get() + 1);
        if attempts.get() == 2 {
            pending::<()>().await;
        }
        Err::<(), _>(UpstreamFailure::status(500, "elsewhere", ""))
    });
    assert!(matches!(ran.await, Err(RunError::TimedOut { stage: RunStage::Work, .. })));
    assert_eq!(
        world.log.text(),
        "a.acquire a.begin job gone a.rollback a.close a.acquire a.begin job gone a.abort a.close"
    );
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_whose_destructor_asks_the_admission_finds_everything_back() {
    struct Asks(Admission, Arc<CountingGate>, Arc<AtomicUsize>);
    impl Drop for Asks {
        fn drop(&mut self) {
            let all = Demand::new().permits(&self.1, 4);
            let found = usize::from(self.0.try_admit(all).is_ok());
            self.2.fetch_add(found, Ordering::AcqRel);
        }
    }
    let world = World::new();
    world.databases[0].make(DbVerb::Commit, Fault::Fails);
    let found = Arc::new(AtomicUsize::new(0));
    let asks = || Asks(world.admission.clone(), Arc::clone(&world.own), Arc::clone(&found));
    let run =
        world.runner.run(world.everything().transactional(), async |_| Ok::<_, String>(asks()));
    assert!(run.await.is_err());
    assert_eq!(found.load(Ordering::Acquire), 1);
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_comes_with_the_cancel_is_closed_and_the_grant_rolled_back() {
    for cut in 0..12 {
        let world = World::new();
        let token = CancellationToken::new();
        let run = world.runner.job(world.everything()).cancelled_by(token.clone());
        let mut run = pin!(run.run(async |_| Ok::<_, String>(())));
        for _ in 0..cut {
            if poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx).is_ready())).await {
                break;
            }
        }
        let acquired = world.out();
        token.cancel();
        if world.log.text().contains("close") {
            continue;
        }
        let error = run.await.unwrap_err();
        assert!(matches!(error, RunError::Cancelled { .. }), "cut at {cut}: {error}");
        let text = world.log.text();
        assert!(text.matches("close").count() as i64 >= acquired, "cut at {cut}: {text}");
        assert_eq!(world.tokens_left(), 60_000, "cut at {cut}: {text}");
        world.settled().await;
    }
}
