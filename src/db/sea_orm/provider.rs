//! The provider for SeaORM.

use std::fmt;
use std::time::Duration;

use sea_orm::{DbBackend, ExecResult, QueryResult};
use sea_query_sqlx::SqlxValues;
use sqlx::{Database, Executor, IntoArguments, Pool};

use super::SeaOrmSession;
use super::session::Connection;
use super::statements::Statements;
use crate::db::ambient::{held, requires_new};
use crate::db::sqlx::{SqlDialect, SqlxHandle, SqlxProvider, SqlxSession};
use crate::db::{DbProvider, ProviderError};
use crate::error::ConfigError;
use crate::limits::DatabaseGate;
use crate::sync::Arc;

/// One connection of a SeaORM `DatabaseConnection`'s pool for each job, from when it is admitted to
/// its end.
///
/// The job works with a [`SeaOrmSession`], which is what SeaORM's queries take.
///
/// SeaORM's own transaction begins when it takes a connection and gives it up when it commits, and it
/// has no connection without one. So this takes the connection from the sqlx pool that the
/// `DatabaseConnection` is made of, and keeps it: everything that [`SqlxProvider`] promises of a
/// connection holds, and what it says of a second one. A metric callback set on the
/// `DatabaseConnection` does not see a job's statements.
///
/// # Examples
///
/// ```
/// use admit::{Account, DbProvider, SeaOrmProvider};
/// use sea_orm::{ConnectOptions, Database};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut options = ConnectOptions::new("sqlite::memory:");
/// options.max_connections(6);
/// let database = Database::connect(options).await?;
/// // Four jobs at once; two connections are left for everybody else.
/// let orders = SeaOrmProvider::new("orders", 4, database.get_sqlite_connection_pool().clone())?;
/// assert_eq!(&**orders.account().link().name(), "db:orders");
/// # Ok(())
/// # }
/// ```
pub struct SeaOrmProvider<DB: Database> {
    inner: Arc<SqlxProvider<DB>>,
    statements: Statements<DB>,
    backend: DbBackend,
}

impl<DB: Database> SeaOrmProvider<DB> {
    /// The provider `name` with `max_concurrent` permits over the pool of a `DatabaseConnection`:
    /// `get_postgres_connection_pool()` and its like.
    ///
    /// # Errors
    ///
    /// When the name is empty or there are no permits.
    pub fn new(
        name: impl Into<Arc<str>>,
        max_concurrent: u32,
        pool: Pool<DB>,
    ) -> Result<Arc<Self>, ConfigError>
    where
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
        DB::Row: Into<QueryResult>,
        DB::QueryResult: Into<ExecResult>,
        SqlxValues: IntoArguments<DB>,
    {
        SqlxProvider::new(name, max_concurrent, pool).map(|inner| Self::over(&inner))
    }

    /// The same over a provider with settings of its own, and with its account: they share one
    /// bound.
    pub fn over(inner: &Arc<SqlxProvider<DB>>) -> Arc<Self>
    where
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
        DB::Row: Into<QueryResult>,
        DB::QueryResult: Into<ExecResult>,
        SqlxValues: IntoArguments<DB>,
    {
        let backend = match inner.dialect() {
            SqlDialect::Postgres => DbBackend::Postgres,
            SqlDialect::Sqlite => DbBackend::Sqlite,
            SqlDialect::MySql => DbBackend::MySql,
        };
        Arc::new(Self { inner: Arc::clone(inner), statements: Statements::new(), backend })
    }

    /// The connection of the job that runs here, with its transaction, as
    /// [`SqlxProvider::ambient`].
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Cancel safety
    ///
    /// As there.
    pub async fn ambient(self: &Arc<Self>) -> Result<SeaOrmSession<DB>, ProviderError> {
        let handle = held(self)?;
        self.inner.wait_for(&handle).await.map(|session| self.seen(session))
    }

    /// Runs `work` with a second connection and a transaction of its own; see
    /// [`requires_new`](crate::requires_new).
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Cancel safety
    ///
    /// As there.
    pub async fn requires_new<T, E, F>(self: &Arc<Self>, work: impl FnOnce() -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<ProviderError>,
    {
        requires_new(self, work).await
    }

    fn seen(&self, session: SqlxSession<DB>) -> SeaOrmSession<DB> {
        SeaOrmSession(Connection::new(session, self.statements, self.backend))
    }
}

impl<DB: Database> DbProvider for SeaOrmProvider<DB> {
    type Handle = SqlxHandle<DB>;
    type Session = SeaOrmSession<DB>;

    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    fn account(&self) -> &Arc<DatabaseGate> {
        self.inner.account()
    }

    fn acquire_timeout(&self) -> Duration {
        self.inner.acquire_timeout()
    }

    async fn acquire(&self, read_only: bool) -> Result<SqlxHandle<DB>, ProviderError> {
        self.inner.acquire(read_only).await
    }

    fn session(&self, handle: &SqlxHandle<DB>) -> Result<SeaOrmSession<DB>, ProviderError> {
        self.inner.session(handle).map(|session| self.seen(session))
    }

    async fn begin(&self, handle: &SqlxHandle<DB>) -> Result<(), ProviderError> {
        self.inner.begin(handle).await
    }

    async fn commit(&self, handle: &SqlxHandle<DB>) -> Result<(), ProviderError> {
        self.inner.commit(handle).await
    }

    async fn await_completion(&self, handle: &SqlxHandle<DB>) -> Result<(), ProviderError> {
        self.inner.await_completion(handle).await
    }

    async fn rollback(&self, handle: &SqlxHandle<DB>) -> Result<(), ProviderError> {
        self.inner.rollback(handle).await
    }

    async fn close(&self, handle: &SqlxHandle<DB>) -> Result<(), ProviderError> {
        self.inner.close(handle).await
    }

    fn abort(&self, handle: &SqlxHandle<DB>) {
        self.inner.abort(handle);
    }
}

impl<DB: Database> fmt::Debug for SeaOrmProvider<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SeaOrmProvider").field(&self.inner).finish()
    }
}
