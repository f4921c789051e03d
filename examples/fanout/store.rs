//! The summaries, as rows of a SQLite file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use admit::Usage;
use sqlx::sqlite::{
    Sqlite, SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{Executor, Row as _};

use crate::error::{Fatal, root_cause};

/// How long a writer waits for another one: SQLite has one at a time.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

const TABLE: &str = "\
CREATE TABLE IF NOT EXISTS summaries (
    folder TEXT NOT NULL,
    path TEXT NOT NULL,
    model TEXT NOT NULL,
    summary TEXT NOT NULL,
    prompt_tokens INTEGER,
    completion_tokens INTEGER,
    attempts INTEGER NOT NULL,
    finished_at TEXT NOT NULL,
    PRIMARY KEY (folder, path)
)";

const INSERT: &str = "\
INSERT OR REPLACE INTO summaries
    (folder, path, model, summary, prompt_tokens, completion_tokens, attempts, finished_at)
VALUES (?, ?, ?, ?, ?, ?, ?, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))";

/// An open database for the summaries of one folder.
#[derive(Debug)]
pub(crate) struct Store {
    pool: SqlitePool,
    folder: String,
    path: PathBuf,
}

/// The summary of one file.
#[derive(Clone, Debug)]
pub(crate) struct Summary<'a> {
    /// The file's path below the folder.
    pub(crate) path: &'a str,
    /// Who wrote the summary.
    pub(crate) model: &'a str,
    /// The summary.
    pub(crate) text: &'a str,
    /// What it cost, if that is known.
    pub(crate) usage: Option<Usage>,
    /// Calls made for it.
    pub(crate) attempts: u32,
}

impl Store {
    /// Opens the file at `path`, makes it and its table if they are not there, and writes a row
    /// that it takes back: what cannot be written is known before anything is paid for.
    ///
    /// # Errors
    ///
    /// When any of that fails.
    pub(crate) async fn open(path: &Path, folder: &Path, connections: u32) -> Result<Self, Fatal> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            // Readers and the one writer do not shut each other out, and a row is on disk, for
            // all but a power cut, when its insert returns.
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(BUSY_TIMEOUT);
        let opened = async {
            let pool = SqlitePoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(BUSY_TIMEOUT)
                .connect_with(options)
                .await?;
            pool.execute(TABLE).await?;
            let folder = folder.to_string_lossy().into_owned();
            let store = Self { pool, folder, path: path.to_owned() };
            store.try_out().await?;
            Ok::<_, sqlx::Error>(store)
        };
        opened
            .await
            .map_err(|error| Fatal::Database { path: path.to_owned(), reason: reason(&error) })
    }

    async fn try_out(&self) -> Result<(), sqlx::Error> {
        let mut transaction = self.pool.begin().await?;
        let nothing = Summary { path: "", model: "", text: "", usage: None, attempts: 0 };
        self.insert(&mut *transaction, &nothing).await?;
        transaction.rollback().await
    }

    /// Where its connections come from.
    pub(crate) const fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    /// Stores one summary in place of an older one of the same file, on whatever connection.
    ///
    /// # Errors
    ///
    /// What the database says.
    pub(crate) async fn keep<'e, E>(&self, on: E, summary: &Summary<'_>) -> Result<(), String>
    where
        E: Executor<'e, Database = Sqlite>,
    {
        self.insert(on, summary).await.map_err(|error| reason(&error))
    }

    async fn insert<'e, E>(&self, on: E, summary: &Summary<'_>) -> Result<(), sqlx::Error>
    where
        E: Executor<'e, Database = Sqlite>,
    {
        let tokens = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        sqlx::query(INSERT)
            .bind(&self.folder)
            .bind(summary.path)
            .bind(summary.model)
            .bind(summary.text)
            .bind(summary.usage.map(|usage| tokens(usage.total() - usage.output)))
            .bind(summary.usage.map(|usage| tokens(usage.output)))
            .bind(summary.attempts)
            .execute(on)
            .await
            .map(|_| ())
    }

    /// How many rows there are of this folder.
    ///
    /// # Errors
    ///
    /// What the database says.
    pub(crate) async fn rows(&self) -> Result<u64, String> {
        let count = sqlx::query("SELECT count(*) FROM summaries WHERE folder = ?")
            .bind(&self.folder)
            .fetch_one(&self.pool)
            .await
            .and_then(|row| row.try_get::<i64, _>(0));
        count.map(i64::unsigned_abs).map_err(|error| reason(&error))
    }

    /// Where the file is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Closes every connection, which also brings the write-ahead log home.
    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }
}

fn reason(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => error.message().to_owned(),
        other => root_cause(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary<'a>(path: &'a str, text: &'a str) -> Summary<'a> {
        let usage = Some(Usage::new(8, 5).with_cache(2, 0));
        Summary { path, model: "m", text, usage, attempts: 2 }
    }

    #[tokio::test]
    async fn a_row_for_each_file_and_the_newest_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.sqlite");
        let store = Store::open(&path, Path::new("/a"), 4).await.unwrap();
        assert_eq!(store.rows().await, Ok(0), "the row of the trial was taken back");
        store.keep(store.pool(), &summary("x", "old")).await.unwrap();
        store.keep(store.pool(), &summary("x", "new")).await.unwrap();
        store.keep(store.pool(), &summary("y", "other")).await.unwrap();
        assert_eq!(store.rows().await, Ok(2));
        store.close().await;

        let other = Store::open(&path, Path::new("/b"), 1).await.unwrap();
        assert_eq!(other.rows().await, Ok(0), "another folder's rows are its own");
        let row = sqlx::query(
            "SELECT summary, attempts, finished_at, prompt_tokens FROM summaries WHERE path = 'x'",
        )
        .fetch_one(&other.pool)
        .await
        .unwrap();
        assert_eq!(row.get::<String, _>(0), "new");
        assert_eq!(row.get::<u32, _>(1), 2);
        assert!(row.get::<String, _>(2).starts_with("20"));
        assert_eq!(row.get::<u32, _>(3), 10, "what came from the cache was asked as well");
    }

    #[tokio::test]
    async fn a_path_that_cannot_be_written_is_named_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("text");
        std::fs::write(&text, "this is no database, and long enough to be seen not to be one")
            .unwrap();
        for path in [folder.path().join("none/rows.sqlite"), folder.path().to_owned(), text] {
            let error = Store::open(&path, folder.path(), 2).await.unwrap_err().to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[tokio::test]
    async fn another_programs_table_is_refused_before_anything_is_paid_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.sqlite");
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        pool.execute("CREATE TABLE summaries (something INTEGER)").await.unwrap();
        pool.close().await;
        let error = Store::open(&path, folder.path(), 2).await.unwrap_err().to_string();
        assert!(error.contains("summaries"), "{error}");
    }

    #[tokio::test]
    async fn many_writers_lose_no_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.sqlite");
        let store = std::sync::Arc::new(Store::open(&path, folder.path(), 8).await.unwrap());
        let mut writers = tokio::task::JoinSet::new();
        for number in 0..200 {
            let store = std::sync::Arc::clone(&store);
            writers.spawn(async move {
                store.keep(store.pool(), &summary(&number.to_string(), "s")).await
            });
        }
        for written in writers.join_all().await {
            written.unwrap();
        }
        assert_eq!(store.rows().await, Ok(200));
    }
}
