//! A database of its own on the PostgreSQL server that `ADMIT_TEST_POSTGRES` names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use admit::testing::ProviderFixture;
use admit::{BoxError, SqlxProvider, SqlxSession};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor, PgPool, Postgres};

use crate::sqlite::insert;

/// What the pool's connections call themselves, and whoever watches them does not.
const JOBS: &str = "admit-jobs";

/// A database, a pool over it, and connections beside the pool.
pub(crate) struct PostgresDatabase {
    pub(crate) pool: PgPool,
    pub(crate) observer: PgPool,
    name: String,
    server: PgConnectOptions,
}

impl PostgresDatabase {
    /// `None`, said aloud, where there is no server; in CI there must be one.
    pub(crate) async fn open(connections: u32) -> Option<Self> {
        let Ok(url) = std::env::var("ADMIT_TEST_POSTGRES") else {
            let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!is_ci, "ADMIT_TEST_POSTGRES must name a PostgreSQL server in CI");
            eprintln!("skipped: ADMIT_TEST_POSTGRES names no PostgreSQL server");
            return None;
        };
        Some(Self::on(url.parse().unwrap(), connections).await)
    }

    /// A new database on a server.
    pub(crate) async fn on(server: PgConnectOptions, connections: u32) -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("admit_{}_{serial}", std::process::id());
        let admin = PgPoolOptions::new().max_connections(1);
        let admin = admin.connect_with(server.clone()).await.unwrap();
        admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
        admin.close().await;

        let options = server.clone().database(&name);
        let observer = PgPoolOptions::new()
            .max_connections(2)
            .connect_with(options.clone().application_name("observer"))
            .await
            .unwrap();
        observer.execute("CREATE TABLE entries (number BIGINT NOT NULL)").await.unwrap();
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(60))
            .connect_with(options.application_name(JOBS))
            .await
            .unwrap();
        Self { pool, observer, name, server }
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

    /// Connections of the pool on which something is open or running.
    pub(crate) async fn busy(&self) -> usize {
        let count: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = $1
               AND xact_start IS NOT NULL",
        )
        .bind(JOBS)
        .fetch_one(&self.observer)
        .await
        .unwrap();
        count as usize
    }

    /// Ends the backend of a connection, as an administrator does.
    pub(crate) async fn terminate(&self, pid: i32) {
        sqlx::query("SELECT pg_terminate_backend($1)")
            .bind(pid)
            .execute(&self.observer)
            .await
            .unwrap();
        let gone = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1";
        while sqlx::query_scalar::<_, i64>(gone).bind(pid).fetch_one(&self.observer).await.unwrap()
            > 0
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Ends whoever still sleeps on the server.
    pub(crate) async fn terminate_sleepers(&self) {
        let sleepers = "SELECT pid FROM pg_stat_activity
             WHERE datname = current_database() AND query LIKE 'SELECT pg_sleep%'";
        let pids: Vec<i32> = sqlx::query_scalar(sleepers).fetch_all(&self.observer).await.unwrap();
        for pid in pids {
            self.terminate(pid).await;
        }
    }

    /// Drops the database, at the end of a test that went well.
    pub(crate) async fn drop(self) {
        self.pool.close().await;
        self.observer.close().await;
        let admin = PgPoolOptions::new().max_connections(1);
        let admin = admin.connect_with(self.server).await.unwrap();
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        admin.execute(AssertSqlSafe(drop)).await.unwrap();
        admin.close().await;
    }
}

/// The process that serves a session.
pub(crate) async fn backend(session: &mut SqlxSession<Postgres>) -> sqlx::Result<i32> {
    sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut **session).await
}

/// The contract's fixture of [`SqlxProvider`].
pub(crate) struct SqlxOnPostgres(pub(crate) PostgresDatabase);

impl ProviderFixture for SqlxOnPostgres {
    type Provider = SqlxProvider<Postgres>;

    fn provider(&self, name: &str, bound: u32) -> Arc<SqlxProvider<Postgres>> {
        SqlxProvider::new(name, bound, self.0.pool.clone()).unwrap()
    }

    fn out(&self) -> usize {
        self.0.out()
    }

    async fn open_transactions(&self) -> Option<usize> {
        Some(self.0.busy().await)
    }

    async fn connection(&self, session: &mut SqlxSession<Postgres>) -> Result<String, BoxError> {
        Ok(backend(session).await?.to_string())
    }

    async fn insert(&self, session: &mut SqlxSession<Postgres>, row: u64) -> Result<(), BoxError> {
        sqlx::query(insert(row)).execute(&mut **session).await?;
        Ok(())
    }

    async fn rows(&self, row: u64) -> usize {
        self.0.rows(row).await
    }

    async fn break_connection(&self, session: &mut SqlxSession<Postgres>) -> bool {
        let pid = backend(session).await.unwrap();
        self.0.terminate(pid).await;
        true
    }
}
