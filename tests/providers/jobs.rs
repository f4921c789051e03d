//! How jobs end, and what is then left of them on the database.

use std::sync::Arc;
use std::time::Duration;

use admit::{
    Account, Admission, BoxError, DbProvider, JobRunner, Requirements, RunError, SqlxProvider,
};
use sqlx::{Executor, Postgres};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::postgres::PostgresDatabase;
use crate::sqlite::{SqliteFile, insert};

struct World {
    database: PostgresDatabase,
    provider: Arc<SqlxProvider<Postgres>>,
    admission: Admission,
    runner: JobRunner,
}

impl World {
    async fn new() -> Option<Self> {
        let database = PostgresDatabase::open(4).await?;
        let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
        let admission = Admission::builder().start().unwrap();
        let runner = JobRunner::builder(&admission).build().unwrap();
        Some(Self { database, provider, admission, runner })
    }

    fn requirements(&self) -> Requirements {
        Requirements::new().database(&self.provider).transactional()
    }

    /// No permit, no connection, no transaction; and the row as it should be.
    async fn ends_in_order(self, rows: usize) {
        self.admission.stop();
        self.admission.drained().await;
        assert_eq!(self.provider.account().status().active, 0);
        assert_eq!(self.database.out(), 0);
        assert_eq!(self.database.busy().await, 0);
        assert_eq!(self.database.rows(1).await, rows);
        self.database.drop().await;
    }
}

#[tokio::test]
async fn a_job_that_succeeds_leaves_its_row() {
    let Some(world) = World::new().await else { return };
    let provider = &world.provider;
    world
        .runner
        .run(world.requirements(), async |resources| {
            resources.get(provider)?.execute(insert(1)).await?;
            Ok::<_, BoxError>(())
        })
        .await
        .unwrap();
    world.ends_in_order(1).await;
}

#[tokio::test]
async fn a_job_that_swallows_a_failed_statement_is_not_taken_for_done() {
    let Some(world) = World::new().await else { return };
    let provider = &world.provider;
    let error = world
        .runner
        .run(world.requirements(), async |resources| {
            let mut session = resources.get(provider)?;
            session.execute(insert(1)).await?;
            let _ = session.execute("SELECT 1 / 0").await;
            Ok::<_, BoxError>(())
        })
        .await
        .unwrap_err();
    assert!(matches!(error, RunError::Commit { .. }), "{error}");
    world.ends_in_order(0).await;
}

#[tokio::test]
async fn a_job_that_panics_leaves_nothing() {
    let Some(world) = World::new().await else { return };
    let provider = &world.provider;
    let run = world.runner.run(world.requirements(), async |resources| {
        resources.get(provider)?.execute(insert(1)).await?;
        panic!("in the job");
        #[allow(unreachable_code)]
        Ok::<_, BoxError>(())
    });
    let run = futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(run));
    assert!(run.await.is_err());
    world.ends_in_order(0).await;
}

#[tokio::test]
async fn a_job_cancelled_in_the_middle_of_a_statement_leaves_nothing() {
    let Some(world) = World::new().await else { return };
    let (token, provider) = (CancellationToken::new(), &world.provider);
    let error = world
        .runner
        .job(world.requirements())
        .cancelled_by(token.clone())
        .run(async |resources| {
            let mut session = resources.get(provider)?;
            session.execute(insert(1)).await?;
            token.cancel();
            session.execute("SELECT pg_sleep(0.2)").await?;
            Ok::<_, BoxError>(())
        })
        .await
        .unwrap_err();
    assert!(matches!(error, RunError::Cancelled { .. }), "{error}");
    world.ends_in_order(0).await;
}

#[tokio::test]
async fn a_job_that_outlives_its_time_and_grace_leaves_nothing() {
    let Some(world) = World::new().await else { return };
    let provider = &world.provider;
    let error = world
        .runner
        .job(world.requirements())
        .within(Duration::from_millis(200))
        .run(async |resources| {
            // The guard is out when the job is dropped.
            let mut session = resources.get(provider)?;
            session.execute(insert(1)).await?;
            std::future::pending::<Result<(), BoxError>>().await
        })
        .await
        .unwrap_err();
    assert!(matches!(error, RunError::TimedOut { .. }), "{error}");
    assert_eq!(world.database.out(), 0, "the connection went before the permit");
    while world.database.busy().await > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.ends_in_order(0).await;
}

#[tokio::test]
async fn a_job_aborted_in_a_statement_without_end_returns_its_permit() {
    let Some(world) = World::new().await else { return };
    let provider = &world.provider;
    let error = world
        .runner
        .job(world.requirements())
        .within(Duration::from_millis(200))
        .run(async |resources| {
            resources.get(provider)?.execute("SELECT pg_sleep(86400)").await?;
            Ok::<_, BoxError>(())
        })
        .await
        .unwrap_err();
    assert!(matches!(error, RunError::TimedOut { .. }), "{error}");
    assert_eq!((provider.account().status().active, world.database.out()), (0, 0));
    // The next one has the permit and a connection, while the server still sleeps for the first.
    let work = async |_| Ok::<_, BoxError>(provider.ambient().await?.execute(insert(1)).await?);
    world.runner.run(world.requirements(), work).await.unwrap();
    assert_eq!(world.database.busy().await, 1, "what is said of statements without a limit");
    world.database.terminate_sleepers().await;
    world.ends_in_order(1).await;
}

#[tokio::test]
async fn a_run_that_is_dropped_leaves_nothing() {
    let Some(world) = World::new().await else { return };
    let (inserted, provider) = (Notify::new(), &world.provider);
    let run = world.runner.run(world.requirements(), async |resources| {
        let mut session = resources.get(provider)?;
        session.execute(insert(1)).await?;
        inserted.notify_one();
        session.execute("SELECT pg_sleep(0.2)").await?;
        Ok::<_, BoxError>(())
    });
    tokio::select! {
        _ = run => panic!("it was to be dropped"),
        () = inserted.notified() => {}
    }
    world.ends_in_order(0).await;
}

#[tokio::test]
async fn a_job_whose_task_kept_its_session_ends_all_the_same() {
    let file = SqliteFile::open(2).await;
    let provider = SqlxProvider::builder("main", 1, file.pool.clone())
        .acquire_timeout(Duration::from_millis(50))
        .build()
        .unwrap();
    let admission = Admission::builder().start().unwrap();
    let runner = JobRunner::builder(&admission).build().unwrap();
    let (ours, go) = (&provider, Arc::new(Notify::new()));
    let error = runner
        .run(Requirements::new().database(ours).transactional(), async |resources| {
            let mut session = resources.get(ours)?;
            let go = Arc::clone(&go);
            tokio::spawn(async move {
                session.execute(insert(1)).await.unwrap();
                go.notified().await;
            });
            Ok::<_, BoxError>(())
        })
        .await
        .unwrap_err();
    assert!(matches!(error, RunError::Commit { .. }), "{error}");
    assert_eq!(provider.account().status().active, 0);
    go.notify_one();
    while file.out() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(file.rows(1).await, 0);
}

#[tokio::test]
async fn a_job_that_waits_holds_no_connection() {
    let file = SqliteFile::open(4).await;
    let provider = SqlxProvider::new("main", 1, file.pool.clone()).unwrap();
    let admission = Admission::builder().start().unwrap();
    let runner = JobRunner::builder(&admission).build().unwrap();
    let (started, go) = (Notify::new(), Notify::new());
    let requirements = Requirements::new().database(&provider);
    let first = runner.run(requirements.clone(), async |_| {
        started.notify_one();
        go.notified().await;
        Ok::<_, BoxError>(())
    });
    let others = futures::future::join_all((0..10).map(|_| {
        runner.run(requirements.clone(), async |_| {
            assert_eq!(file.out(), 1);
            Ok::<_, BoxError>(())
        })
    }));
    let watch = async {
        started.notified().await;
        while admission.snapshot().waiting < 10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(file.out(), 1, "ten wait, and hold nothing");
        assert_eq!(provider.account().capacity(), 1);
        go.notify_one();
    };
    let (first, others, ()) = tokio::join!(first, others, watch);
    first.unwrap();
    assert!(others.into_iter().all(|done| done.is_ok()));
    assert_eq!(file.out(), 0);
}
