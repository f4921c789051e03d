//! A SQLite file behind a real pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use admit::testing::ProviderFixture;
use admit::{BoxError, SqlxProvider, SqlxSession};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Executor, Sqlite, SqlitePool};

/// A file, a pool over it, and a connection beside the pool.
pub(crate) struct SqliteFile {
    pub(crate) pool: SqlitePool,
    pub(crate) observer: SqlitePool,
    _folder: tempfile::TempDir,
}

impl SqliteFile {
    pub(crate) async fn open(connections: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(folder.path().join("entries.sqlite"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(60));
        let observer = SqlitePoolOptions::new().max_connections(1);
        let observer = observer.connect_with(options.clone()).await.unwrap();
        observer.execute("CREATE TABLE entries (number INTEGER NOT NULL)").await.unwrap();

        // A temporary table is its connection's own: it says which one this is.
        let serial = Arc::new(AtomicU32::new(0));
        let pool = SqlitePoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(60))
            .after_connect(move |connection, _| {
                let number = serial.fetch_add(1, Ordering::Relaxed);
                let me = format!("CREATE TEMP TABLE me AS SELECT {number} AS number");
                Box::pin(async move { connection.execute(AssertSqlSafe(me)).await.map(drop) })
            })
            .connect_with(options)
            .await
            .unwrap();
        Self { pool, observer, _folder: folder }
    }

    pub(crate) fn out(&self) -> usize {
        self.pool.size() as usize - self.pool.num_idle()
    }

    pub(crate) async fn rows(&self, number: u64) -> usize {
        let count = format!("SELECT count(*) FROM entries WHERE number = {number}");
        let count: i64 =
            sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(&self.observer).await.unwrap();
        count as usize
    }
}

pub(crate) fn insert(number: u64) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!("INSERT INTO entries (number) VALUES ({number})"))
}

/// The contract's fixture of [`SqlxProvider`].
pub(crate) struct SqlxOnSqlite(pub(crate) SqliteFile);

impl ProviderFixture for SqlxOnSqlite {
    type Provider = SqlxProvider<Sqlite>;

    fn provider(&self, name: &str, bound: u32) -> Arc<SqlxProvider<Sqlite>> {
        SqlxProvider::new(name, bound, self.0.pool.clone()).unwrap()
    }

    fn out(&self) -> usize {
        self.0.out()
    }

    async fn connection(&self, session: &mut SqlxSession<Sqlite>) -> Result<String, BoxError> {
        let number: i64 =
            sqlx::query_scalar("SELECT number FROM me").fetch_one(&mut **session).await?;
        Ok(number.to_string())
    }

    async fn insert(&self, session: &mut SqlxSession<Sqlite>, row: u64) -> Result<(), BoxError> {
        sqlx::query(insert(row)).execute(&mut **session).await?;
        Ok(())
    }

    async fn rows(&self, row: u64) -> usize {
        self.0.rows(row).await
    }
}
