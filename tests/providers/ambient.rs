//! The ambient connection: repository functions that were handed nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use admit::{
    Admission, BoxError, CountingProvider, DbProvider, JobRunner, ProviderError, Requirements,
    SqlxProvider, ambient, requires_new,
};
use sqlx::{Database, Executor, Postgres, Sqlite};
use tokio::sync::Barrier;

use crate::postgres::{PostgresDatabase, backend};
use crate::sqlite::{SqliteFile, insert};

/// A repository: it knows its database, and nothing of jobs.
struct Entries<DB: Database>(Arc<SqlxProvider<DB>>);

impl<DB: Database> Entries<DB>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    async fn save(&self, number: u64) -> Result<(), BoxError> {
        self.0.ambient().await?.execute(insert(number)).await?;
        Ok(())
    }

    async fn has(&self, number: u64) -> Result<bool, BoxError> {
        let mut session = self.0.ambient().await?;
        let query = format!("SELECT number FROM entries WHERE number = {number}");
        Ok(session.fetch_optional(sqlx::AssertSqlSafe(query)).await?.is_some())
    }

    /// A row that stays, whatever becomes of the job.
    async fn audit(&self, number: u64) -> Result<(), BoxError> {
        self.0.requires_new(|| self.save(number)).await
    }
}

fn runner() -> JobRunner {
    JobRunner::builder(&Admission::builder().start().unwrap()).build().unwrap()
}

async fn on_sqlite(connections: u32) -> (SqliteFile, Entries<Sqlite>) {
    let file = SqliteFile::open(connections).await;
    let provider = SqlxProvider::new("main", 2, file.pool.clone()).unwrap();
    (file, Entries(provider))
}

async fn on_postgres(connections: u32) -> Option<(PostgresDatabase, Entries<Postgres>)> {
    let database = PostgresDatabase::open(connections).await?;
    let provider = SqlxProvider::new("main", 2, database.pool.clone()).unwrap();
    Some((database, Entries(provider)))
}

fn job<DB: Database>(entries: &Entries<DB>) -> Requirements {
    Requirements::new().database(&entries.0).transactional()
}

fn is_not_held<T>(result: Result<T, ProviderError>) -> bool {
    matches!(result, Err(ProviderError::NotHeld { .. }))
}

#[tokio::test]
async fn a_repository_works_on_the_jobs_connection_and_transaction() {
    let (file, entries) = on_sqlite(4).await;
    let (runner, entries, file) = (runner(), &entries, &file);
    let work = async |_| {
        entries.save(1).await?;
        assert!(entries.has(1).await?, "it sees the job's own row");
        assert_eq!(file.rows(1).await, 0, "nobody else does");
        assert_eq!(file.out(), 1);
        Ok::<_, BoxError>(())
    };
    runner.run(job(entries), work).await.unwrap();
    assert_eq!(file.rows(1).await, 1);

    let fails = async |_| {
        entries.save(2).await?;
        Err::<(), BoxError>("no".into())
    };
    runner.run(job(entries), fails).await.unwrap_err();
    assert_eq!((file.rows(2).await, file.out()), (0, 0));
}

#[tokio::test]
async fn futures_of_one_job_take_turns() {
    let (file, entries) = on_sqlite(4).await;
    let (runner, entries) = (runner(), &entries);
    let work = async |_| {
        let saves = (1..=20).map(|number| entries.save(number));
        for saved in futures::future::join_all(saves).await {
            saved?;
        }
        Ok::<_, BoxError>(())
    };
    runner.run(job(entries), work).await.unwrap();
    for number in 1..=20 {
        assert_eq!(file.rows(number).await, 1);
    }
}

#[tokio::test]
async fn code_that_waits_for_itself_is_told_so() {
    let file = SqliteFile::open(1).await;
    let provider = SqlxProvider::builder("main", 1, file.pool.clone())
        .acquire_timeout(Duration::from_millis(30))
        .build()
        .unwrap();
    let (runner, provider) = (runner(), &provider);
    let work = async |_| {
        let kept = provider.ambient().await?;
        let error = provider.ambient().await.unwrap_err();
        assert!(matches!(error, ProviderError::InUse { .. }), "{error}");
        assert!(matches!(ambient(provider), Err(ProviderError::InUse { .. })));
        drop(kept);
        drop(provider.ambient().await?);
        Ok::<_, ProviderError>(())
    };
    runner.run(Requirements::new().database(provider), work).await.unwrap();
}

#[tokio::test]
async fn nothing_is_bound_outside_the_job_and_a_task_of_its_own_inherits_nothing() {
    let (file, entries) = on_sqlite(4).await;
    let (runner, provider) = (runner(), &entries.0);
    assert!(is_not_held(provider.ambient().await));
    let carried = runner
        .run(job(&entries), async |_| {
            provider.ambient().await?;
            let theirs = Arc::clone(provider);
            let task = tokio::spawn(async move {
                let is_bound = theirs.ambient().await.is_ok() || ambient(&theirs).is_ok();
                let second = requires_new(&theirs, async || Ok::<_, ProviderError>(())).await;
                is_bound || second.is_ok()
            });
            assert!(!task.await.unwrap(), "the task was handed nothing");
            // A future that is carried out of the job and polled elsewhere is not in it either.
            let later = Arc::clone(provider);
            Ok::<_, ProviderError>(Box::pin(async move { later.ambient().await.map(drop) }))
        })
        .await
        .unwrap();
    assert!(is_not_held(carried.await));
    assert!(is_not_held(provider.ambient().await));
    assert!(is_not_held(ambient(provider)));
    assert_eq!(file.out(), 0);
}

#[tokio::test]
async fn a_session_of_an_ended_job_is_closed_to_its_tasks() {
    let (file, entries) = on_sqlite(4).await;
    let (runner, provider) = (runner(), &entries.0);
    let resources = runner
        .run(job(&entries), async |resources| Ok::<_, ProviderError>(resources))
        .await
        .unwrap();
    let error = resources.get(provider).unwrap_err();
    assert!(matches!(error, ProviderError::Closed { .. }), "{error}");
    assert_eq!(file.out(), 0);
}

#[tokio::test]
async fn a_database_the_job_does_not_require_is_named_with_those_it_holds() {
    let (file, entries) = on_sqlite(4).await;
    let other = CountingProvider::new("other", 1).unwrap();
    let provider = &entries.0;
    let error = runner()
        .run(Requirements::new().database(&other), async |_| {
            let taken = provider.requires_new(async || Ok::<_, ProviderError>(())).await;
            assert!(is_not_held(taken));
            provider.ambient().await.map(drop)
        })
        .await
        .unwrap_err();
    assert!(error.to_string().contains("`main` is not among"), "{error}");
    assert!(error.to_string().contains("(`other`)"), "{error}");
    assert_eq!(file.pool.num_idle(), file.pool.size() as usize);
}

#[tokio::test]
async fn the_ambient_of_a_mapped_provider_is_what_it_builds() {
    let (_file, entries) = on_sqlite(4).await;
    let mapped = entries.0.mapped(|session| ("built on", session));
    let work = async |_| {
        let (built, mut session) = ambient(&mapped)?;
        session.execute(insert(1)).await?;
        Ok::<_, BoxError>(built)
    };
    let requirements = Requirements::new().database(&mapped);
    assert_eq!(runner().run(requirements, work).await.unwrap(), "built on");
}

/// On SQLite, which has one writer: the second connection writes before the job's own does.
#[tokio::test]
async fn an_audit_row_survives_the_jobs_rollback() {
    let (file, entries) = on_sqlite(4).await;
    let (runner, entries, file) = (runner(), &entries, &file);
    let fails = async |_| {
        entries.audit(1).await?;
        assert_eq!(file.rows(1).await, 1, "it is committed on its own");
        assert_eq!(file.out(), 1, "the second connection is back");
        entries.save(2).await?;
        Err::<(), BoxError>("no".into())
    };
    runner.run(job(entries), fails).await.unwrap_err();
    assert_eq!((file.rows(1).await, file.rows(2).await), (1, 0));
    assert_eq!(file.out(), 0);
}

#[tokio::test]
async fn requires_new_is_a_second_connection_that_sees_nothing_of_the_first() {
    let Some((database, entries)) = on_postgres(4).await else { return };
    let (runner, entries, database) = (runner(), &entries, &database);
    let provider = &entries.0;
    let fails = async |_| {
        entries.save(1).await?;
        let outer = backend(&mut provider.ambient().await?).await?;
        provider
            .requires_new(async || {
                let inner = backend(&mut provider.ambient().await?).await?;
                assert_ne!(inner, outer);
                assert_eq!(database.out(), 2);
                assert!(!entries.has(1).await?, "the first one's row is not committed");
                entries.save(2).await
            })
            .await?;
        assert_eq!(backend(&mut provider.ambient().await?).await?, outer, "bound again");
        // One that fails takes its own row with it, and nobody else's.
        let failed = provider
            .requires_new(async || {
                entries.save(3).await?;
                Err::<(), BoxError>("not this one".into())
            })
            .await;
        assert_eq!(failed.unwrap_err().to_string(), "not this one");
        assert!(entries.has(1).await?);
        // And one within another is a third.
        provider
            .requires_new(async || {
                entries.audit(4).await?;
                entries.save(5).await
            })
            .await?;
        Err::<(), BoxError>("no".into())
    };
    runner.run(job(entries), fails).await.unwrap_err();
    for (number, rows) in [(1, 0), (2, 1), (3, 0), (4, 1), (5, 1)] {
        assert_eq!(database.rows(number).await, rows, "row {number}");
    }
    assert_eq!((database.out(), database.busy().await), (0, 0));
}

#[tokio::test]
async fn requires_new_dropped_half_way_leaves_nothing() {
    let Some((database, entries)) = on_postgres(4).await else { return };
    let (runner, entries, database) = (runner(), &entries, &database);
    let provider = &entries.0;
    let reached = AtomicUsize::new(0);
    let work = async |_| {
        entries.save(1).await?;
        for polls in 0..200 {
            let mut second = Box::pin(provider.requires_new(async || {
                reached.fetch_add(1, Ordering::Relaxed);
                entries.save(2).await?;
                reached.fetch_add(1, Ordering::Relaxed);
                std::future::pending::<Result<(), BoxError>>().await
            }));
            for _ in 0..polls {
                assert!(futures::poll!(second.as_mut()).is_pending());
                tokio::task::yield_now().await;
            }
        }
        // At least one of them got as far as its row, which then has to be gone.
        let mut second = Box::pin(provider.requires_new(async || {
            entries.save(2).await?;
            reached.fetch_add(1_000, Ordering::Relaxed);
            std::future::pending::<Result<(), BoxError>>().await
        }));
        while reached.load(Ordering::Relaxed) < 1_000 {
            assert!(futures::poll!(second.as_mut()).is_pending());
            tokio::task::yield_now().await;
        }
        drop(second);
        entries.save(3).await
    };
    runner.run(job(entries), work).await.unwrap();
    while (database.out(), database.busy().await) != (0, 0) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for (number, rows) in [(1, 1), (2, 0), (3, 1)] {
        assert_eq!(database.rows(number).await, rows, "row {number}");
    }
}

#[tokio::test]
async fn a_panic_in_requires_new_takes_its_rows_with_it() {
    let (file, entries) = on_sqlite(4).await;
    let entries = &entries;
    let work = async |_| {
        entries
            .0
            .requires_new(async || {
                entries.save(1).await?;
                panic!("in the second transaction");
                #[allow(unreachable_code)]
                Ok::<_, BoxError>(())
            })
            .await
    };
    let run = runner().run(job(entries), work);
    let run = futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(run));
    assert!(run.await.is_err());
    while file.out() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(file.rows(1).await, 0);
}

#[tokio::test]
async fn a_read_only_jobs_second_connection_is_read_only_too() {
    let (file, entries) = on_sqlite(4).await;
    let (entries, requirements) = (&entries, Requirements::new().database(&entries.0).read_only());
    let work = async |_| {
        entries.audit(1).await.expect_err("it may only read");
        entries.save(2).await
    };
    runner().run(requirements, work).await.unwrap_err();
    assert_eq!((file.rows(1).await, file.rows(2).await), (0, 0));
    runner().run(job(entries), async |_| entries.audit(1).await).await.unwrap();
    assert_eq!(file.rows(1).await, 1, "the connections can write again");
}

#[tokio::test]
async fn a_pool_without_room_for_the_second_is_an_error_and_the_first_goes_on() {
    let file = SqliteFile::open(1).await;
    let provider = SqlxProvider::builder("main", 1, file.pool.clone())
        .acquire_timeout(Duration::from_millis(50))
        .build()
        .unwrap();
    let entries = &Entries(provider);
    let work = async |_| {
        let error = entries.audit(1).await.unwrap_err();
        assert!(error.to_string().contains("the pool needs room"), "{error}");
        entries.save(2).await
    };
    runner().run(job(entries), work).await.unwrap();
    assert_eq!((file.rows(1).await, file.rows(2).await), (0, 1));
}

#[tokio::test]
async fn two_jobs_in_one_task_each_have_their_own() {
    let Some((database, entries)) = on_postgres(4).await else { return };
    let (runner, entries) = (runner(), &entries);
    let both = Barrier::new(2);
    let work = |number| {
        let both = &both;
        move |_| async move {
            let mine = backend(&mut entries.0.ambient().await?).await?;
            entries.save(number).await?;
            both.wait().await;
            assert_eq!(backend(&mut entries.0.ambient().await?).await?, mine);
            Ok::<_, BoxError>(mine)
        }
    };
    let (one, other) =
        tokio::join!(runner.run(job(entries), work(1)), runner.run(job(entries), work(2)));
    assert_ne!(one.unwrap(), other.unwrap());
    database.drop().await;
}

#[tokio::test]
async fn any_provider_has_requires_new() {
    let counting = CountingProvider::new("main", 1).unwrap();
    let provider = &counting;
    let requirements = Requirements::new().database(provider).transactional();
    let work = async |_| requires_new(provider, async || Ok::<_, ProviderError>(7)).await;
    assert_eq!(runner().run(requirements, work).await.unwrap(), 7);
}
