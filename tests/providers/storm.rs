//! Two hundred jobs over a pool of four with a bound of two, a tenth of them cancelled wherever they
//! are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use admit::testing::Draw;
use admit::{Admission, BoxError, DbProvider, JobRunner, Requirements, RunError, SqlxProvider};
use futures::FutureExt;
use futures::future::BoxFuture;
use sqlx::{Database, Executor};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::mysql::MySqlDatabase;
use crate::postgres::PostgresDatabase;
use crate::sqlite::{SqliteFile, insert};

const JOBS: u64 = 200;
const BOUND: usize = 2;

/// How a job is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    /// By its own error.
    Failed,
    /// By its token.
    Cancelled,
    /// With the future that ran it.
    Dropped,
}

impl End {
    /// A tenth is cancelled, half of them by being dropped; another twentieth fails.
    const fn of(job: u64) -> Self {
        match job % 20 {
            3 => Self::Cancelled,
            13 => Self::Dropped,
            17 => Self::Failed,
            _ => Self::Done,
        }
    }
}

/// What a job does on its connection: rows, and a pause in which the statement is on its way.
type Steps<DB> =
    for<'c> fn(&'c mut <DB as Database>::Connection, u64) -> BoxFuture<'c, Result<(), BoxError>>;

/// Runs them all, and answers for each whether it was done.
///
/// Meanwhile the pool is watched from each job and from beside them.
async fn storm<DB: Database>(
    provider: &Arc<SqlxProvider<DB>>,
    steps: Steps<DB>,
) -> (Vec<(u64, bool)>, usize) {
    let pool = provider.pool().clone();
    let out = move || pool.size() as usize - pool.num_idle();
    let most = Arc::new(AtomicUsize::new(0));
    let admission = Admission::builder().start().unwrap();
    let runner = JobRunner::builder(&admission).build().unwrap();
    let mut draw = Draw::new(7);
    let mut tasks = JoinSet::new();
    for job in 0..JOBS {
        let end = End::of(job);
        let after = Duration::from_micros(draw.between(0..=300_000));
        let token = CancellationToken::new();
        if end == End::Cancelled {
            let token = token.clone();
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                token.cancel();
            });
        }
        let (provider, most, out) = (Arc::clone(provider), Arc::clone(&most), out.clone());
        let requirements = Requirements::new().database(&provider).transactional();
        let run = runner.job(requirements).cancelled_by(token).run(move |resources| {
            let (provider, most, out) = (Arc::clone(&provider), Arc::clone(&most), out.clone());
            async move {
                most.fetch_max(out(), Ordering::SeqCst);
                let mut session = resources.get(&provider)?;
                steps(&mut session, job).await?;
                most.fetch_max(out(), Ordering::SeqCst);
                if end == End::Failed { Err(BoxError::from("as it should")) } else { Ok(()) }
            }
        });
        tasks.spawn(async move {
            let ended = match end {
                End::Dropped => match tokio::time::timeout(after, run).await {
                    Ok(ended) => ended,
                    Err(_) => return (job, None),
                },
                _ => run.await,
            };
            match (end, ended) {
                (End::Done | End::Cancelled | End::Dropped, Ok(())) => (job, Some(true)),
                (End::Failed, Err(RunError::Job(_)))
                | (End::Cancelled, Err(RunError::Cancelled { .. })) => (job, Some(false)),
                (_, ended) => panic!("job {job}, {end:?}: {ended:?}"),
            }
        });
    }
    let mut done = Vec::new();
    loop {
        most.fetch_max(out(), Ordering::SeqCst);
        match tokio::time::timeout(Duration::from_millis(1), tasks.join_next()).await {
            Ok(Some(ended)) => {
                let (job, is_done) = ended.unwrap();
                done.extend(is_done.map(|is_done| (job, is_done)));
            }
            Ok(None) => break,
            Err(_) => {}
        }
    }
    admission.stop();
    admission.drained().await;
    assert_eq!(provider.account().status().active, 0, "every permit is back");
    assert_eq!(out(), 0, "every connection is back");
    (done, most.load(Ordering::SeqCst))
}

/// Those that were not cancelled before they ran.
fn enough(done: &[(u64, bool)]) -> bool {
    done.iter().filter(|(_, is_done)| *is_done).count() as u64 >= JOBS * 3 / 4
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_jobs_stay_within_the_bound_on_sqlite() {
    let file = SqliteFile::open(4).await;
    let provider = SqlxProvider::builder("main", BOUND as u32, file.pool.clone())
        .begin_with("BEGIN IMMEDIATE")
        .build()
        .unwrap();
    let (done, most) = storm(&provider, |connection, job| {
        async move {
            connection.execute(insert(job)).await?;
            tokio::task::yield_now().await;
            connection.execute(insert(job)).await?;
            Ok(())
        }
        .boxed()
    })
    .await;
    assert!(most > 0 && most <= BOUND, "{most} connections were out");
    assert!(enough(&done), "{done:?}");
    for (job, is_done) in done {
        assert_eq!(file.rows(job).await, if is_done { 2 } else { 0 }, "job {job}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_jobs_stay_within_the_bound_on_postgres() {
    let Some(database) = PostgresDatabase::open(4).await else { return };
    let provider = SqlxProvider::new("main", BOUND as u32, database.pool.clone()).unwrap();
    let database = Arc::new(database);
    let over = Arc::new(AtomicBool::new(false));
    let watch = tokio::spawn({
        let (database, over) = (Arc::clone(&database), Arc::clone(&over));
        async move {
            let (mut most, mut looks) = (0, 0_u32);
            while !over.load(Ordering::SeqCst) {
                most = most.max(database.busy().await);
                looks += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            (most, looks)
        }
    });
    let (done, most) = storm(&provider, |connection, job| {
        async move {
            connection.execute(insert(job)).await?;
            // Most cancels come while the server is at work.
            connection.execute("SELECT pg_sleep(0.002)").await?;
            connection.execute(insert(job)).await?;
            Ok(())
        }
        .boxed()
    })
    .await;
    over.store(true, Ordering::SeqCst);
    let (most_busy, looks) = watch.await.unwrap();
    assert!(most > 0 && most <= BOUND, "{most} connections were out");
    assert!(
        most_busy > 0 && most_busy <= BOUND,
        "the server saw {most_busy}, looking {looks} times"
    );
    assert!(enough(&done), "{done:?}");
    assert_eq!(database.busy().await, 0, "no transaction is left open");
    for (job, is_done) in done {
        assert_eq!(database.rows(job).await, if is_done { 2 } else { 0 }, "job {job}");
    }
    Arc::into_inner(database).unwrap().drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_jobs_stay_within_the_bound_on_mysql() {
    let Some(database) = MySqlDatabase::open(4).await else { return };
    let provider = SqlxProvider::new("main", BOUND as u32, database.pool.clone()).unwrap();
    let (done, most) = storm(&provider, |connection, job| {
        async move {
            connection.execute(insert(job)).await?;
            connection.execute("SELECT sleep(0.002)").await?;
            connection.execute(insert(job)).await?;
            Ok(())
        }
        .boxed()
    })
    .await;
    assert!(most > 0 && most <= BOUND, "{most} connections were out");
    assert!(enough(&done), "{done:?}");
    database.quiet().await;
    for (job, is_done) in done {
        assert_eq!(database.rows(job).await, if is_done { 2 } else { 0 }, "job {job}");
    }
    database.drop().await;
}
