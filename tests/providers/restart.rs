//! A server that dies while jobs run, and comes back.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admit::{Admission, BoxError, DbProvider, JobRunner, Requirements, RunError, SqlxProvider};
use sqlx::Executor;
use tokio::task::JoinSet;

use crate::postgres::PostgresDatabase;
use crate::sqlite::insert;

/// A server that may be killed: the script of `ADMIT_TEST_POSTGRES_CONTROL`, which takes `start` and
/// `kill`, and its URL.
fn mortal_server() -> Option<(String, String)> {
    let control = std::env::var("ADMIT_TEST_POSTGRES_CONTROL").ok();
    let url = std::env::var("ADMIT_TEST_POSTGRES_MORTAL").ok();
    let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    if let (Some(control), Some(url)) = (control, url) {
        return Some((control, url));
    }
    assert!(!is_ci, "ADMIT_TEST_POSTGRES_CONTROL and ADMIT_TEST_POSTGRES_MORTAL must be set in CI");
    eprintln!("skipped: there is no PostgreSQL server that may be killed");
    None
}

async fn control(script: &str, word: &'static str) {
    let script = script.to_owned();
    let ran = tokio::task::spawn_blocking(move || Command::new(script).arg(word).status());
    assert!(ran.await.unwrap().unwrap().success(), "`{word}` of the control script failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_and_comes_back_costs_no_permit_and_no_connection() {
    let Some((script, url)) = mortal_server() else { return };
    control(&script, "start").await;
    let database = PostgresDatabase::on(url.parse().unwrap(), 6).await;
    let provider = SqlxProvider::new("main", 3, database.pool.clone()).unwrap();
    let admission = Admission::builder().start().unwrap();
    let runner = JobRunner::builder(&admission).build().unwrap();

    let entered = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for job in 0..150_u64 {
        let requirements = Requirements::new().database(&provider).transactional();
        let (ours, entered) = (Arc::clone(&provider), Arc::clone(&entered));
        let run = runner.run(requirements, move |resources| {
            let (ours, entered) = (Arc::clone(&ours), Arc::clone(&entered));
            async move {
                entered.fetch_add(1, Ordering::SeqCst);
                let mut session = resources.get(&ours)?;
                session.execute(insert(job)).await?;
                session.execute("SELECT pg_sleep(0.01)").await?;
                Ok::<_, BoxError>(())
            }
        });
        tasks.spawn(async move { (job, run.await) });
    }
    while entered.load(Ordering::SeqCst) < 30 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    control(&script, "kill").await;
    control(&script, "start").await;

    let (mut finished, mut failed, mut unclear) = (Vec::new(), Vec::new(), 0);
    while let Some(ended) = tasks.join_next().await {
        match ended.unwrap() {
            (job, Ok(())) => finished.push(job),
            (job, Err(RunError::Job(_) | RunError::Provider(_))) => failed.push(job),
            // Cut off while it committed: the row may be there.
            (_, Err(RunError::Commit { .. })) => unclear += 1,
            (job, Err(error)) => panic!("job {job}: {error}"),
        }
    }
    assert!(failed.len() + unclear > 0, "somebody was at work when it died");
    assert!(finished.len() >= 30, "only {} finished", finished.len());
    assert_eq!(provider.account().status().active, 0);
    assert_eq!(database.out(), 0);
    for job in finished {
        assert_eq!(database.rows(job).await, 1, "job {job}");
    }
    for job in failed {
        assert_eq!(database.rows(job).await, 0, "job {job}");
    }

    // All the permits and all the connections are there.
    let requirements = Requirements::new().database(&provider).transactional();
    let (ours, barrier) = (&provider, &tokio::sync::Barrier::new(3));
    let again = futures::future::join_all((1_000..1_003).map(|job| {
        runner.run(requirements.clone(), move |resources| async move {
            resources.get(ours)?.execute(insert(job)).await?;
            barrier.wait().await;
            Ok::<_, BoxError>(())
        })
    }));
    assert!(again.await.into_iter().all(|done| done.is_ok()));
    admission.stop();
    admission.drained().await;
    assert_eq!((database.out(), database.busy().await), (0, 0));
    database.drop().await;
    control(&script, "kill").await;
}
