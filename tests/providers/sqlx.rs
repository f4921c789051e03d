//! What is particular to connections of sqlx's.

mod closing;

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use admit::{
    Account, Admission, DbProvider, DbVerb, ProviderError, Requirements, SqlDialect, SqlxProvider,
};
use sqlx::any::AnyPoolOptions;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::{PgPoolOptions, PgSslMode};
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{Connection, Executor, Sqlite};

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
