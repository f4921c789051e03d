//! Every step of one attempt, in order, and each point at which it can fail.

use admit::{DbVerb, RunError};

use crate::support::{Fault, World};

const ACQUIRED: &str = "a.acquire b.acquire c.acquire";
const BEGUN: &str = "a.begin b.begin c.begin";
const COMMITTED: &str = "a.commit a.await b.commit b.await c.commit c.await";
const ROLLED_BACK: &str = "c.rollback b.rollback a.rollback";
const CLOSED: &str = "c.close b.close a.close";

type Ran = Result<&'static str, RunError<String>>;

/// Runs one transactional job with a fault at one verb of one database; `fails` makes the job fail.
async fn run(fault: Option<(usize, DbVerb, Fault)>, fails: bool) -> (World, Ran) {
    let world = World::new();
    if let Some((at, verb, fault)) = fault {
        world.databases[at].make(verb, fault);
    }
    let job = async |resources: admit::Resources| {
        world.log.write("job");
        for database in &world.databases {
            assert_eq!(resources.get(database).unwrap(), *admit::DbProvider::name(&**database));
        }
        if fails { Err("the job's own".to_owned()) } else { Ok("done") }
    };
    let ran = world.runner.run(world.everything().transactional(), job).await;
    world.settled().await;
    (world, ran)
}

#[tokio::test(start_paused = true)]
async fn an_attempt_goes_in_order_and_closes_in_reverse() {
    let (world, ran) = run(None, false).await;
    assert_eq!(ran.unwrap(), "done");
    assert_eq!(world.log.text(), format!("{ACQUIRED} {BEGUN} job {COMMITTED} {CLOSED}"));
    assert_eq!(world.tokens_left(), 59_000);
}

#[tokio::test(start_paused = true)]
async fn without_a_transaction_nothing_is_begun_and_nothing_committed() {
    let world = World::new();
    let ran = world.runner.run(world.everything(), async |_| Ok::<_, String>(())).await;
    ran.unwrap();
    assert_eq!(world.log.text(), format!("{ACQUIRED} {CLOSED}"));
    let failed =
        world.runner.run(world.everything(), async |_| Err::<(), _>("no".to_owned())).await;
    assert!(matches!(failed, Err(RunError::Job(_))));
    assert_eq!(world.log.text(), format!("{ACQUIRED} {CLOSED} {ACQUIRED} {CLOSED}"));
    world.settled().await;
}

#[tokio::test(start_paused = true)]
async fn read_only_is_said_at_every_acquire() {
    let world = World::new();
    let requirements = world.everything().read_only();
    world.runner.run(requirements, async |_| Ok::<_, String>(())).await.unwrap();
    assert!(
        world
            .log
            .text()
            .starts_with("a.acquire(read-only) b.acquire(read-only) c.acquire(read-only) c.close")
    );
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_fails_closes_in_reverse_and_gives_the_tokens_back() {
    let (world, ran) = run(Some((2, DbVerb::Acquire, Fault::Fails)), false).await;
    assert_eq!(
        ran.unwrap_err().to_string(),
        "the job was not started: database `c`: acquire failed: told to fail"
    );
    assert_eq!(world.log.text(), format!("{ACQUIRED} b.close a.close"));
    assert_eq!(world.tokens_left(), 60_000);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_hangs_ends_at_its_providers_limit() {
    let before = tokio::time::Instant::now();
    let (world, ran) = run(Some((1, DbVerb::Acquire, Fault::Hangs)), false).await;
    assert_eq!(before.elapsed().as_secs(), 7);
    let text = ran.unwrap_err().to_string();
    assert!(text.contains("database `b`: acquire took longer than 7s"), "{text}");
    assert_eq!(world.log.text(), "a.acquire b.acquire a.close");
    assert_eq!(world.tokens_left(), 60_000);
}

#[tokio::test(start_paused = true)]
async fn a_begin_that_fails_rolls_back_what_was_begun_and_the_grant() {
    let (world, ran) = run(Some((1, DbVerb::Begin, Fault::Fails)), false).await;
    assert!(matches!(ran, Err(RunError::Provider(_))), "{ran:?}");
    let expected = format!("{ACQUIRED} a.begin b.begin b.rollback a.rollback {CLOSED}");
    assert_eq!(world.log.text(), expected);
    assert_eq!(world.tokens_left(), 60_000);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_fails_is_rolled_back_in_reverse_and_stays_spent() {
    let (world, ran) = run(None, true).await;
    assert_eq!(ran.unwrap_err().job_error().unwrap(), "the job's own");
    assert_eq!(world.log.text(), format!("{ACQUIRED} {BEGUN} job {ROLLED_BACK} {CLOSED}"));
    assert_eq!(world.tokens_left(), 59_000);
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_fails_rolls_back_the_rest_and_says_what_is_durable() {
    let (world, ran) = run(Some((1, DbVerb::Commit, Fault::Fails)), false).await;
    let error = ran.unwrap_err();
    assert_eq!(
        error.to_string(),
        "database `b`: commit failed: told to fail; durable before it: `a`"
    );
    assert!(matches!(error, RunError::Commit { durable, .. } if durable == ["a".into()]));
    let expected =
        format!("{ACQUIRED} {BEGUN} job a.commit a.await b.commit c.rollback b.rollback {CLOSED}");
    assert_eq!(world.log.text(), expected);
    assert_eq!(world.tokens_left(), 59_000);
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_fails_counts_as_not_durable() {
    let (world, ran) = run(Some((0, DbVerb::AwaitCompletion, Fault::Fails)), false).await;
    let text = ran.unwrap_err().to_string();
    assert_eq!(
        text,
        "database `a`: await_completion failed: told to fail; durable before it: none"
    );
    let expected = format!("{ACQUIRED} {BEGUN} job a.commit a.await {ROLLED_BACK} {CLOSED}");
    assert_eq!(world.log.text(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_rollback_that_fails_never_hides_the_jobs_own_error() {
    for fault in [Fault::Fails, Fault::Hangs] {
        let (world, ran) = run(Some((1, DbVerb::Rollback, fault)), true).await;
        assert!(matches!(ran, Err(RunError::Job(error)) if error == "the job's own"));
        let expected =
            format!("{ACQUIRED} {BEGUN} job c.rollback b.rollback b.abort a.rollback {CLOSED}");
        assert_eq!(world.log.text(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_close_that_fails_is_aborted_and_the_work_is_done() {
    for fault in [Fault::Fails, Fault::Hangs] {
        let (world, ran) = run(Some((1, DbVerb::Close, fault)), false).await;
        assert_eq!(ran.unwrap(), "done");
        let expected =
            format!("{ACQUIRED} {BEGUN} job {COMMITTED} c.close b.close b.abort a.close");
        assert_eq!(world.log.text(), expected);
    }
}
