//! A database of its own on the MariaDB or MySQL server that `ADMIT_TEST_MYSQL` names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use admit::testing::ProviderFixture;
use admit::{BoxError, SqlxProvider, SqlxSession};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Executor, MySql, MySqlPool, Row};

use crate::sqlite::insert;

/// Makes a procedure that answers with a row, writes another, and fails.
pub(crate) const FAILS_LATE: &str = "CREATE PROCEDURE fails_late() BEGIN
    SELECT 1;
    INSERT INTO entries VALUES (7);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'too late';
END";

/// A database, a pool over it, and connections beside the pool.
pub(crate) struct MySqlDatabase {
    pub(crate) pool: MySqlPool,
    pub(crate) observer: MySqlPool,
    name: String,
    server: MySqlConnectOptions,
}

impl MySqlDatabase {
    /// `None`, said aloud, where there is no server; in CI there must be one.
    pub(crate) async fn open(connections: u32) -> Option<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let Ok(url) = std::env::var("ADMIT_TEST_MYSQL") else {
            let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!is_ci, "ADMIT_TEST_MYSQL must name a MariaDB server in CI");
            eprintln!("skipped: ADMIT_TEST_MYSQL names no MariaDB or MySQL server");
            return None;
        };
        let server: MySqlConnectOptions = url.parse().unwrap();
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("admit_{}_{serial}", std::process::id());
        let admin = MySqlPoolOptions::new().max_connections(1);
        let admin = admin.connect_with(server.clone()).await.unwrap();
        admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
        admin.close().await;

        let options = server.clone().database(&name);
        let observer = MySqlPoolOptions::new().max_connections(2);
        let observer = observer.connect_with(options.clone()).await.unwrap();
        observer.execute("CREATE TABLE entries (number BIGINT NOT NULL)").await.unwrap();
        let pool = MySqlPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(60))
            .connect_with(options)
            .await
            .unwrap();
        Some(Self { pool, observer, name, server })
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

    /// Transactions that are open on connections to this database and have read or written something.
    ///
    /// From the engine's report: `innodb_trx` is a copy that is not made anew while anybody reads it.
    pub(crate) async fn busy(&self) -> usize {
        let ours: Vec<u64> = sqlx::query_scalar(
            "SELECT CAST(id AS UNSIGNED) FROM information_schema.processlist
             WHERE db = database() AND id <> connection_id()",
        )
        .fetch_all(&self.observer)
        .await
        .unwrap();
        let report = self.observer.fetch_one("SHOW ENGINE INNODB STATUS").await.unwrap();
        let report: String = report.get(2);
        // ---TRANSACTION 17, ACTIVE 0 sec … MariaDB thread id 23, OS thread handle …
        let active = report.split("---TRANSACTION ").skip(1).filter(|transaction| {
            transaction.lines().next().is_some_and(|line| line.contains(", ACTIVE"))
        });
        let thread = |transaction: &str| -> Option<u64> {
            transaction.split_once("thread id ")?.1.split_once(',')?.0.parse().ok()
        };
        active.filter_map(thread).filter(|id| ours.contains(id)).count()
    }

    /// Waits until none is open: the server may not have noticed yet that a connection is closed.
    pub(crate) async fn quiet(&self) {
        while self.busy().await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends a connection, as an administrator does.
    pub(crate) async fn terminate(&self, id: u64) {
        let kill = AssertSqlSafe(format!("KILL CONNECTION {id}"));
        self.observer.execute(kill).await.unwrap();
        let gone = "SELECT count(*) FROM information_schema.processlist WHERE id = ?";
        while sqlx::query_scalar::<_, i64>(gone).bind(id).fetch_one(&self.observer).await.unwrap()
            > 0
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Drops the database, at the end of a test that went well.
    pub(crate) async fn drop(self) {
        self.pool.close().await;
        self.observer.close().await;
        let admin = MySqlPoolOptions::new().max_connections(1);
        let admin = admin.connect_with(self.server).await.unwrap();
        admin.execute(AssertSqlSafe(format!("DROP DATABASE {}", self.name))).await.unwrap();
        admin.close().await;
    }
}

/// The connection that serves a session.
pub(crate) async fn thread(session: &mut SqlxSession<MySql>) -> sqlx::Result<u64> {
    sqlx::query_scalar("SELECT connection_id()").fetch_one(&mut **session).await
}

/// The contract's fixture of [`SqlxProvider`].
pub(crate) struct SqlxOnMySql(pub(crate) MySqlDatabase);

impl ProviderFixture for SqlxOnMySql {
    type Provider = SqlxProvider<MySql>;

    fn provider(&self, name: &str, bound: u32) -> Arc<SqlxProvider<MySql>> {
        SqlxProvider::new(name, bound, self.0.pool.clone()).unwrap()
    }

    fn out(&self) -> usize {
        self.0.out()
    }

    async fn open_transactions(&self) -> Option<usize> {
        Some(self.0.busy().await)
    }

    async fn connection(&self, session: &mut SqlxSession<MySql>) -> Result<String, BoxError> {
        Ok(thread(session).await?.to_string())
    }

    async fn insert(&self, session: &mut SqlxSession<MySql>, row: u64) -> Result<(), BoxError> {
        sqlx::query(insert(row)).execute(&mut **session).await?;
        Ok(())
    }

    async fn rows(&self, row: u64) -> usize {
        self.0.rows(row).await
    }

    async fn break_connection(&self, session: &mut SqlxSession<MySql>) -> bool {
        let id = thread(session).await.unwrap();
        self.0.terminate(id).await;
        true
    }
}
