//! What is particular to connections of sqlx's.

use std::cell::RefCell;
use std::pin::pin;
use std::sync::{Arc, Barrier};
use std::task::Poll;
use std::time::Duration;

use admit::{
    Account, Admission, BoxError, DbProvider, DbVerb, JobRunner, ProviderError, Requirements,
    SqlDialect, SqlxProvider, SqlxSession,
};
use sqlx::any::AnyPoolOptions;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::{PgPoolOptions, PgSslMode};
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{Connection, Database, Executor, Sqlite};
use tokio::runtime::Runtime;

use crate::mysql::MySqlDatabase;
use crate::postgres::{PostgresDatabase, backend};
use crate::sqlite::{SqliteFile, insert};

#[tokio::test]
async fn a_commit_after_a_failed_statement_says_so_instead_of_losing_the_rows() {
    let Some(database) = PostgresDatabase::open(2).await else { return };
    let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    let connection = backend(&mut provider.session(&handle).unwrap()).await.unwrap();
    provider.begin(&handle).await.unwrap();
    let mut session = provider.session(&handle).unwrap();
    session.execute(insert(1)).await.unwrap();
    // The job swallows this one. PostgreSQL would answer COMMIT with success.
    session.execute("SELECT 1 / 0").await.unwrap_err();
    drop(session);
    let error = provider.commit(&handle).await.unwrap_err();
    assert!(matches!(error, ProviderError::Failed { verb: DbVerb::Commit, .. }), "{error}");
    provider.rollback(&handle).await.unwrap();
    provider.close(&handle).await.unwrap();
    assert_eq!(database.rows(1).await, 0);

    // A statement that failed does not cost the connection.
    let handle = provider.acquire(false).await.unwrap();
    let again = backend(&mut provider.session(&handle).unwrap()).await.unwrap();
    assert_eq!(again, connection);
    provider.close(&handle).await.unwrap();
    database.drop().await;
}

#[tokio::test]
async fn a_commit_of_what_the_job_ended_itself_says_so() {
    let Some(database) = PostgresDatabase::open(2).await else { return };
    let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    provider.begin(&handle).await.unwrap();
    let mut session = provider.session(&handle).unwrap();
    session.execute("ROLLBACK").await.unwrap();
    drop(session);
    let error = provider.commit(&handle).await.unwrap_err();
    assert!(error.to_string().contains("a statement of the job's own"), "{error}");
    provider.close(&handle).await.unwrap();
    database.drop().await;
}

/// A transaction that sqlx knows nothing of, on both databases.
#[tokio::test]
async fn what_plain_sql_opened_is_rolled_back_at_close() {
    let file = SqliteFile::open(1).await;
    let provider = SqlxProvider::new("main", 1, file.pool.clone()).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    let mut session = provider.session(&handle).unwrap();
    session.execute("BEGIN").await.unwrap();
    session.execute(insert(1)).await.unwrap();
    drop(session);
    provider.close(&handle).await.unwrap();
    assert_eq!(file.rows(1).await, 0);
    file.pool.execute("BEGIN; ROLLBACK").await.expect("nothing is open on the connection");

    let Some(database) = PostgresDatabase::open(1).await else { return };
    let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    for failing in [false, true] {
        let handle = provider.acquire(false).await.unwrap();
        let mut session = provider.session(&handle).unwrap();
        let connection = backend(&mut session).await.unwrap();
        session.execute("BEGIN").await.unwrap();
        session.execute(insert(1)).await.unwrap();
        if failing {
            session.execute("SELECT 1 / 0").await.unwrap_err();
        }
        drop(session);
        provider.close(&handle).await.unwrap();
        assert_eq!((database.rows(1).await, database.busy().await), (0, 0));
        let handle = provider.acquire(false).await.unwrap();
        let again = backend(&mut provider.session(&handle).unwrap()).await.unwrap();
        assert_eq!(again, connection, "the connection is in order and stays");
        provider.close(&handle).await.unwrap();
    }
    database.drop().await;
}

#[tokio::test]
async fn a_begin_of_the_jobs_own_dropped_half_way_leaves_nothing_open() {
    let Some(database) = PostgresDatabase::open(1).await else { return };
    let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    let mut session = provider.session(&handle).unwrap();
    loop {
        let mut begin = Box::pin(session.begin());
        // A server may be that fast.
        let Poll::Ready(begun) = futures::poll!(begin.as_mut()) else { break };
        begun.unwrap().rollback().await.unwrap();
    }
    drop(session);
    provider.close(&handle).await.unwrap();
    assert_eq!(database.busy().await, 0);
    database.drop().await;
}

/// It is rolled back once the database has answered, whatever the answer is.
#[tokio::test]
async fn a_statement_that_was_dropped_and_fails_does_not_cost_the_connection() {
    let Some(database) = PostgresDatabase::open(1).await else { return };
    let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    let mut before = None;
    for begins_again in [true, false] {
        let handle = provider.acquire(false).await.unwrap();
        let mut session = provider.session(&handle).unwrap();
        let connection = backend(&mut session).await.unwrap();
        assert_eq!(*before.get_or_insert(connection), connection);
        if begins_again {
            let mut dropped = session.execute("SELECT 1 / 0 FROM pg_sleep(0.02)");
            let _ = futures::poll!(&mut dropped);
        }
        drop(session);
        provider.begin(&handle).await.unwrap();
        let mut session = provider.session(&handle).unwrap();
        session.execute(insert(1)).await.unwrap();
        let mut dropped = session.execute("SELECT 1 / 0 FROM pg_sleep(0.02)");
        // A server may be faster than that.
        let _ = futures::poll!(&mut dropped);
        drop(dropped);
        drop(session);
        provider.rollback(&handle).await.unwrap();
        provider.close(&handle).await.unwrap();
        assert_eq!((database.rows(1).await, database.busy().await), (0, 0));
    }
    database.drop().await;
}

#[tokio::test]
async fn a_savepoint_left_open_belongs_to_the_transaction() {
    let file = SqliteFile::open(1).await;
    let provider = SqlxProvider::new("main", 1, file.pool.clone()).unwrap();
    for commits in [true, false] {
        let number = u64::from(commits);
        let handle = provider.acquire(false).await.unwrap();
        provider.begin(&handle).await.unwrap();
        let mut session = provider.session(&handle).unwrap();
        let mut savepoint = session.begin().await.unwrap();
        savepoint.execute(insert(number)).await.unwrap();
        std::mem::forget(savepoint);
        drop(session);
        if commits {
            provider.commit(&handle).await.unwrap();
        } else {
            provider.rollback(&handle).await.unwrap();
        }
        provider.close(&handle).await.unwrap();
        assert_eq!(file.rows(number).await, usize::from(commits));
    }
}

#[tokio::test]
async fn a_connection_in_an_unknown_state_does_not_go_back_to_the_pool() {
    let Some(database) = PostgresDatabase::open(1).await else { return };
    let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    let mut seen = Vec::new();
    for way in 0..3 {
        let handle = provider.acquire(false).await.unwrap();
        seen.push(backend(&mut provider.session(&handle).unwrap()).await.unwrap());
        provider.begin(&handle).await.unwrap();
        match way {
            0 => loop {
                let mut commit = Box::pin(provider.commit(&handle));
                let Poll::Ready(committed) = futures::poll!(commit.as_mut()) else { break };
                committed.unwrap();
                provider.begin(&handle).await.unwrap();
            },
            1 => provider.abort(&handle),
            _ => drop(handle),
        }
        // With a pool of one, the next acquire waits until this one is gone.
    }
    let handle = provider.acquire(false).await.unwrap();
    seen.push(backend(&mut provider.session(&handle).unwrap()).await.unwrap());
    provider.close(&handle).await.unwrap();
    let mut distinct = seen.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 4, "{seen:?}");
    database.drop().await;
}

#[tokio::test]
async fn close_after_an_abort_waits_until_the_connection_is_gone() {
    let Some(database) = PostgresDatabase::open(4).await else { return };
    let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    for _ in 0..20 {
        let handle = provider.acquire(false).await.unwrap();
        provider.begin(&handle).await.unwrap();
        provider.abort(&handle);
        provider.close(&handle).await.unwrap();
        assert_eq!(database.out(), 0);
    }
    database.drop().await;
}

/// As a run does that is dropped while it ends: a task goes on with a close of its own.
#[tokio::test]
async fn close_after_half_a_close_waits_until_the_connection_is_gone() {
    let file = SqliteFile::open(4).await;
    let provider = SqlxProvider::new("main", 1, file.pool.clone()).unwrap();
    half_closed(&provider, || file.out()).await;
    let Some(database) = PostgresDatabase::open(4).await else { return };
    let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    half_closed(&provider, || database.out()).await;
    database.drop().await;
}

/// There is no handle yet, so nobody to wait for it: a run that is dropped returns its permit at once.
#[tokio::test]
async fn an_acquire_dropped_half_way_leaves_no_connection_out() {
    let file = SqliteFile::open(4).await;
    let provider = SqlxProvider::new("main", 1, file.pool.clone()).unwrap();
    half_acquired(&provider, || file.out()).await;
    let Some(database) = PostgresDatabase::open(4).await else { return };
    let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    half_acquired(&provider, || database.out()).await;
    database.drop().await;
}

async fn half_acquired<DB: Database>(provider: &Arc<SqlxProvider<DB>>, out: impl Fn() -> usize) {
    for polls in 1..20 {
        let mut acquire = Box::pin(provider.acquire(true));
        for _ in 0..polls {
            if let Poll::Ready(acquired) = futures::poll!(acquire.as_mut()) {
                return provider.close(&acquired.unwrap()).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(acquire);
        assert_eq!(out(), 0);
    }
}

async fn half_closed<DB: Database>(provider: &Arc<SqlxProvider<DB>>, out: impl Fn() -> usize) {
    for _ in 0..20 {
        let handle = provider.acquire(false).await.unwrap();
        provider.begin(&handle).await.unwrap();
        let mut close = Box::pin(provider.close(&handle));
        // A database may be that fast.
        let _ = futures::poll!(close.as_mut());
        drop(close);
        provider.close(&handle).await.unwrap();
        assert_eq!(out(), 0);
    }
}

#[tokio::test]
async fn the_last_guard_may_be_dropped_on_a_thread_without_a_runtime() {
    let file = SqliteFile::open(1).await;
    let provider = SqlxProvider::new("main", 1, file.pool.clone()).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    let session = provider.session(&handle).unwrap();
    provider.abort(&handle);
    drop(handle);
    std::thread::spawn(move || drop(session)).join().unwrap();
    // The pool has one connection: this comes only when the old one is gone.
    let handle = provider.acquire(false).await.unwrap();
    provider.close(&handle).await.unwrap();
}

#[tokio::test]
async fn a_guard_carried_off_delays_the_end_and_does_not_hang_it() {
    let file = SqliteFile::open(1).await;
    let provider = SqlxProvider::builder("main", 1, file.pool.clone())
        .acquire_timeout(Duration::from_millis(50))
        .build()
        .unwrap();
    let handle = provider.acquire(false).await.unwrap();
    provider.begin(&handle).await.unwrap();
    let session = provider.session(&handle).unwrap();
    for result in [
        provider.commit(&handle).await,
        provider.rollback(&handle).await,
        provider.close(&handle).await,
    ] {
        assert!(matches!(result, Err(ProviderError::InUse { .. })), "{result:?}");
    }
    provider.abort(&handle);
    provider.close(&handle).await.unwrap();
    assert_eq!(file.out(), 1, "whoever has it still has it");
    drop(session);
    // Comes only when the old one is gone.
    drop(file.pool.acquire().await.unwrap());
}

#[tokio::test]
async fn writes_that_the_host_refuses_stay_refused() {
    let file = SqliteFile::open(1).await;
    let provider = SqlxProvider::new("main", 1, file.pool.clone()).unwrap();
    file.pool.execute("PRAGMA query_only = ON").await.unwrap();
    for read_only in [true, false] {
        let handle = provider.acquire(read_only).await.unwrap();
        let mut session = provider.session(&handle).unwrap();
        session.execute(insert(1)).await.unwrap_err();
        drop(session);
        provider.close(&handle).await.unwrap();
    }

    let Some(database) = PostgresDatabase::open(1).await else { return };
    let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    database.pool.execute("SET default_transaction_read_only = on").await.unwrap();
    for read_only in [true, false] {
        let handle = provider.acquire(read_only).await.unwrap();
        let mut session = provider.session(&handle).unwrap();
        session.execute(insert(1)).await.unwrap_err();
        drop(session);
        provider.close(&handle).await.unwrap();
    }
    database.drop().await;
}

#[tokio::test]
async fn a_transaction_begins_as_it_is_told() {
    let file = SqliteFile::open(2).await;
    let provider = SqlxProvider::builder("main", 2, file.pool.clone())
        .begin_with("BEGIN IMMEDIATE")
        .build()
        .unwrap();
    for read_only in [false, true] {
        let handle = provider.acquire(read_only).await.unwrap();
        provider.begin(&handle).await.unwrap();
        let mut other = file.pool.acquire().await.unwrap();
        other.execute("PRAGMA busy_timeout = 0").await.unwrap();
        let locked = other.execute("BEGIN IMMEDIATE; ROLLBACK").await.is_err();
        assert_eq!(locked, !read_only, "only who may write takes the lock to write with");
        other.execute("PRAGMA busy_timeout = 60000").await.unwrap();
        drop(other);
        provider.commit(&handle).await.unwrap();
        provider.close(&handle).await.unwrap();
    }
}

#[tokio::test]
async fn settings_that_will_not_do_are_refused() {
    let pool = SqlitePoolOptions::new().connect_lazy("sqlite::memory:").unwrap();
    assert!(SqlxProvider::new("", 1, pool.clone()).is_err());
    assert!(SqlxProvider::new("main", 0, pool.clone()).is_err());
    let no_time = SqlxProvider::builder("main", 1, pool.clone()).acquire_timeout(Duration::ZERO);
    assert_eq!(no_time.build().unwrap_err().field, "acquire_timeout");
    let provider = SqlxProvider::builder("main", 7, pool)
        .acquire_timeout(Duration::from_secs(3))
        .build()
        .unwrap();
    assert_eq!(provider.dialect(), SqlDialect::Sqlite);
    assert_eq!(provider.acquire_timeout(), Duration::from_secs(3));
    assert_eq!(provider.account().capacity(), 7);
}

#[tokio::test]
async fn a_driver_that_does_not_say_what_it_speaks_must_be_told() {
    sqlx::any::install_default_drivers();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}?mode=rwc", folder.path().join("any.sqlite").display());
    let pool = AnyPoolOptions::new().max_connections(1).connect(&url).await.unwrap();
    let error = SqlxProvider::new("main", 1, pool.clone()).unwrap_err();
    assert_eq!(error.field, "dialect");
    let provider =
        SqlxProvider::builder("main", 1, pool).dialect(SqlDialect::Sqlite).build().unwrap();
    for read_only in [true, false] {
        let handle = provider.acquire(read_only).await.unwrap();
        provider.begin(&handle).await.unwrap();
        let created = provider.session(&handle).unwrap().execute("CREATE TABLE t (x)").await;
        assert_eq!(created.is_err(), read_only);
        provider.rollback(&handle).await.unwrap();
        provider.close(&handle).await.unwrap();
    }
}

#[tokio::test]
async fn no_error_tells_how_to_connect() {
    let secret = "s3cret-word";
    let mut texts = Vec::new();
    // Nobody listens there.
    let nobody = format!("postgres://teller:{secret}@127.0.0.1:9/vault");
    let pool = PgPoolOptions::new()
        .acquire_timeout(Duration::from_millis(100))
        .connect_lazy(&nobody)
        .unwrap();
    let provider = SqlxProvider::new("main", 1, pool).unwrap();
    texts.push(format!("{provider:?}"));
    let error = provider.acquire(false).await.unwrap_err();
    texts.extend([error.to_string(), format!("{error:?}")]);

    if let Some(database) = PostgresDatabase::open(1).await {
        let wrong = database.pool.connect_options().as_ref().clone();
        let wrong = wrong.password(secret);
        for wrong in [
            wrong.clone().username("nobody_of_that_name"),
            wrong.clone().database("none_of_that_name"),
            wrong.ssl_mode(PgSslMode::VerifyFull).ssl_root_cert("none"),
        ] {
            let pool = PgPoolOptions::new().connect_lazy_with(wrong);
            let provider = SqlxProvider::new("main", 1, pool).unwrap();
            let error = provider.acquire(false).await.unwrap_err();
            texts.extend([error.to_string(), format!("{error:?}")]);
        }
        database.drop().await;
    }
    if let Some(database) = MySqlDatabase::open(1).await {
        let wrong = database.pool.connect_options().as_ref().clone();
        let wrong = wrong.password(secret);
        for wrong in [wrong.clone().username("nobody_of_that_name"), wrong.port(9)] {
            let options = MySqlPoolOptions::new().acquire_timeout(Duration::from_millis(500));
            let pool = options.connect_lazy_with(wrong);
            let provider = SqlxProvider::new("main", 1, pool).unwrap();
            let error = provider.acquire(false).await.unwrap_err();
            texts.extend([error.to_string(), format!("{error:?}")]);
        }
        database.drop().await;
    }
    for text in texts {
        assert!(!text.contains(secret) && !text.contains("://"), "{text}");
        assert!(text.contains("main"), "{text}");
    }
}

#[tokio::test]
async fn a_pool_without_room_is_an_error_and_not_a_hang() {
    let file = SqliteFile::open(1).await;
    let options = (*file.pool.connect_options()).clone();
    let small = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_millis(20))
        .connect_with(options)
        .await
        .unwrap();
    let provider = SqlxProvider::new("main", 2, small).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    let error = provider.acquire(false).await.unwrap_err();
    assert!(matches!(error, ProviderError::Failed { verb: DbVerb::Acquire, .. }), "{error}");
    provider.close(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_that_meets_the_drop_of_a_guard_leaves_nothing() {
    let file = SqliteFile::open(1).await;
    let provider = SqlxProvider::new("main", 1, file.pool.clone()).unwrap();
    for _ in 0..300 {
        // The pool has one connection: each time this comes only when the last is gone.
        let handle = provider.acquire(false).await.unwrap();
        let session = provider.session(&handle).unwrap();
        let both = Arc::new(Barrier::new(2));
        let dropper = std::thread::spawn({
            let both = Arc::clone(&both);
            move || {
                both.wait();
                drop(session);
            }
        });
        both.wait();
        provider.abort(&handle);
        dropper.join().unwrap();
        assert!(provider.session(&handle).is_err());
    }
}

#[tokio::test]
async fn a_connection_handed_to_a_waiter_who_is_gone_is_given_up_all_the_same() {
    let file = SqliteFile::open(1).await;
    let provider = SqlxProvider::new("main", 1, file.pool.clone()).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    let session = provider.session(&handle).unwrap();
    let mut waiter = Box::pin(provider.begin(&handle));
    assert!(futures::poll!(waiter.as_mut()).is_pending());
    provider.abort(&handle);
    // The lock goes to the waiter, who never looks.
    drop(session);
    drop(waiter);
    provider.close(&handle).await.unwrap();
    assert_eq!(file.out(), 0);
}

#[tokio::test]
async fn sessions_and_what_waits_for_them_can_be_sent() {
    const fn sent<T: Send>(_: &T) {}
    let file = SqliteFile::open(1).await;
    let provider = SqlxProvider::new("main", 1, file.pool.clone()).unwrap();
    sent(&provider.acquire(true));
    sent(&provider.ambient());
    let second = provider.requires_new(async || Ok::<_, ProviderError>(()));
    sent(&second);
    assert!(
        size_of_val(&second) <= 1_024,
        "it is {} bytes of a job's future",
        size_of_val(&second)
    );
    drop(second);
    let handle = provider.acquire(false).await.unwrap();
    sent(&provider.begin(&handle));
    sent(&provider.close(&handle));
    sent(&provider.session(&handle).unwrap());
    provider.close(&handle).await.unwrap();
}

async fn keeps_a_minimum(minimum: u32) -> (SqliteFile, Arc<SqlxProvider<Sqlite>>) {
    let file = SqliteFile::open(2).await;
    let options = file.pool.connect_options().as_ref().clone();
    let pool = SqlitePoolOptions::new().min_connections(minimum).max_connections(2);
    let pool = pool.connect_with(options).await.unwrap();
    (file, SqlxProvider::new("main", 1, pool).unwrap())
}

/// As a run that is dropped outside its runtime. sqlx's connection wants one where the pool keeps a
/// minimum.
#[test]
fn a_close_dropped_half_way_outside_its_runtime_does_not_panic() {
    for minimum in [0, 1] {
        let runtime = Runtime::new().unwrap();
        let (file, close) = runtime.block_on(async {
            let (file, provider) = keeps_a_minimum(minimum).await;
            let handle = provider.acquire(false).await.unwrap();
            loop {
                // A database may be that fast.
                let mut begin = pin!(tokio::task::unconstrained(provider.begin(&handle)));
                let Poll::Ready(begun) = futures::poll!(begin.as_mut()) else { break };
                begun.unwrap();
                provider.rollback(&handle).await.unwrap();
            }
            let mut close = Box::pin(async move { provider.close(&handle).await });
            let _ = futures::poll!(close.as_mut());
            (file, close)
        });
        drop(close);
        runtime.block_on(async { drop(file) });
    }
}

thread_local! {
    /// Goes after the runtime's own of this thread, if it is used before it.
    static LEFT: RefCell<Option<SqlxSession<Sqlite>>> = const { RefCell::new(None) };
}

#[test]
fn a_guard_that_goes_with_its_thread_after_its_runtime_ends_no_process() {
    for minimum in [0, 1] {
        let runtime = Runtime::new().unwrap();
        let (file, provider) = runtime.block_on(keeps_a_minimum(minimum));
        let (owned, pool) = (runtime.handle().clone(), provider.pool().clone());
        let (left, has_left) = std::sync::mpsc::channel();
        let (ends, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            LEFT.with_borrow_mut(|left| assert!(left.is_none()));
            let session = owned.block_on(async {
                let handle = provider.acquire(false).await.unwrap();
                provider.session(&handle).unwrap()
            });
            LEFT.set(Some(session));
            left.send(()).unwrap();
            let _ = ended.recv();
        });
        has_left.recv().unwrap();
        // For the connection, the file must outlast the runtime.
        drop(runtime);
        drop(ends);
        thread.join().unwrap();
        while pool.num_idle() < pool.size() as usize {
            std::thread::sleep(Duration::from_millis(1));
        }
        Runtime::new().unwrap().block_on(async { drop(file) });
    }
}

/// SQLite's driver says goodbye when the statement that runs has ended. A provider that waits less than
/// sqlx's own pool does gives the connection up in time.
#[tokio::test]
async fn a_connection_that_is_slow_to_close_is_gone_before_its_permit_is_free() {
    let database = SqliteFile::open(1).await;
    let provider = SqlxProvider::builder("main", 1, database.pool.clone());
    let provider = &provider.acquire_timeout(Duration::from_millis(400)).build().unwrap();
    let admission = Admission::builder().start().unwrap();
    let runner = JobRunner::builder(&admission).build().unwrap();
    let counts =
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000000)
                  SELECT max(i) FROM n";
    let work = async |resources: admit::Resources| {
        let mut session = resources.get(provider)?;
        session.execute(counts).await?;
        Ok::<_, BoxError>(())
    };
    let run = runner.job(Requirements::new().database(provider)).within(Duration::from_millis(40));
    run.run(work).await.unwrap_err();
    assert_eq!((provider.account().status().active, database.out()), (0, 0));
}
