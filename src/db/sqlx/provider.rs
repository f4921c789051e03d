//! The provider over a pool of sqlx's.

use std::fmt;
use std::time::Duration;

use sqlx::{Database, Executor, Pool};

use super::lease::{Lease, Speak};
use super::seat::{Seat, Taken, Turn};
use super::{SqlDialect, SqlxHandle, SqlxProviderBuilder, SqlxSession};
use crate::account::Account as _;
use crate::db::ambient::{held, requires_new};
use crate::db::{DbProvider, DbVerb, ProviderError};
use crate::error::{BoxError, ConfigError};
use crate::limits::DatabaseGate;
use crate::sync::Arc;

/// One connection of a sqlx pool for each job, from when it is admitted to its end.
///
/// The job works with a [`SqlxSession`]. With `transactional` a transaction is open on it, with
/// `read_only` it refuses writes. The pool, its size and its drivers are the host's.
///
/// A connection goes back to the pool when its state is known, with nothing open on it, before the
/// job's permit is free. One that is not known to be in order is closed instead: when a step was
/// dropped half-way, when the driver failed, or when the job was aborted.
///
/// A database finds out about a closed connection when it next talks to it. A statement that runs on
/// the server when its job is aborted runs on there, so give statements a limit (`statement_timeout`
/// in PostgreSQL, or `client_connection_check_interval`).
///
/// # Two connections
///
/// A job whose stack takes a second connection counts once and holds two. The pool must have room for
/// the permits and for every second connection; else all wait for a second one while each holds its
/// first, until [`acquire_timeout`](SqlxProviderBuilder::acquire_timeout) ends it. This holds for
/// [`requires_new`](Self::requires_new) too. A job that always needs two should require the database
/// twice: that is two permits.
///
/// # Examples
///
/// ```
/// use admit::{Account, DbProvider, SqlxProvider};
/// use sqlx::sqlite::SqlitePoolOptions;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = SqlitePoolOptions::new().max_connections(6).connect("sqlite::memory:").await?;
/// // Four jobs at once; two connections are left for everybody else.
/// let orders = SqlxProvider::new("orders", 4, pool)?;
/// assert_eq!(&**orders.account().link().name(), "db:orders");
/// # Ok(())
/// # }
/// ```
pub struct SqlxProvider<DB: Database> {
    pub(super) name: Arc<str>,
    pub(super) account: Arc<DatabaseGate>,
    pub(super) pool: Pool<DB>,
    pub(super) speak: Speak<DB>,
    pub(super) dialect: SqlDialect,
    pub(super) begin: Option<&'static str>,
    pub(super) acquire_timeout: Duration,
}

impl<DB: Database> SqlxProvider<DB> {
    /// The provider `name` with `max_concurrent` permits over a pool.
    ///
    /// # Errors
    ///
    /// When the name is empty, there are no permits, or the driver is one whose
    /// [dialect](SqlDialect) must be stated.
    pub fn new(
        name: impl Into<Arc<str>>,
        max_concurrent: u32,
        pool: Pool<DB>,
    ) -> Result<Arc<Self>, ConfigError>
    where
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    {
        Self::builder(name, max_concurrent, pool).build()
    }

    /// The same with more to say.
    pub fn builder(
        name: impl Into<Arc<str>>,
        max_concurrent: u32,
        pool: Pool<DB>,
    ) -> SqlxProviderBuilder<DB>
    where
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    {
        SqlxProviderBuilder::new(name.into(), max_concurrent, pool)
    }

    /// The pool it takes its connections from.
    #[must_use]
    pub const fn pool(&self) -> &Pool<DB> {
        &self.pool
    }

    /// What the database speaks.
    #[must_use]
    pub const fn dialect(&self) -> SqlDialect {
        self.dialect
    }

    /// The connection of the job that runs here, with its transaction, for code that was not handed
    /// it.
    ///
    /// It waits its turn while another future of the same job has it. Code that keeps one guard and
    /// asks for another waits for itself: drop the guard before you call what may ask for it. After
    /// [`acquire_timeout`](SqlxProviderBuilder::acquire_timeout) that ends in an error.
    ///
    /// # Errors
    ///
    /// [`NotHeld`](ProviderError::NotHeld) outside a job and in a job that does not require this
    /// provider, [`InUse`](ProviderError::InUse) when the turn does not come,
    /// [`Closed`](ProviderError::Closed) after the end.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it leaves the line for the connection.
    pub async fn ambient(self: &Arc<Self>) -> Result<SqlxSession<DB>, ProviderError> {
        let handle = held(self)?;
        self.wait_for(&handle).await
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

    /// The session of a handle, when it is its turn.
    pub(crate) async fn wait_for(
        &self,
        handle: &SqlxHandle<DB>,
    ) -> Result<SqlxSession<DB>, ProviderError> {
        self.turn(handle).await.map(SqlxSession)
    }

    fn check(&self, handle: &SqlxHandle<DB>) -> Result<(), ProviderError> {
        if handle.of != self.account.link().id() {
            return Err(ProviderError::Foreign { provider: Arc::clone(&self.name) });
        }
        Ok(())
    }

    /// The connection when it is our turn; [`Closed`](ProviderError::Closed) after the end.
    async fn turn(&self, handle: &SqlxHandle<DB>) -> Result<Turn<DB>, ProviderError> {
        self.turn_before_the_end(handle).await?.ok_or_else(|| self.closed())
    }

    /// The same; `None` after the end. Nobody waits forever: a guard that was carried out of its job
    /// would keep the job's permit, too.
    async fn turn_before_the_end(
        &self,
        handle: &SqlxHandle<DB>,
    ) -> Result<Option<Turn<DB>>, ProviderError> {
        self.check(handle)?;
        tokio::time::timeout(self.acquire_timeout, handle.seat.turn())
            .await
            .map_err(|_| self.in_use())
    }

    fn in_use(&self) -> ProviderError {
        ProviderError::InUse { provider: Arc::clone(&self.name) }
    }

    fn closed(&self) -> ProviderError {
        ProviderError::Closed { provider: Arc::clone(&self.name) }
    }

    fn failed(&self, verb: DbVerb, source: impl Into<BoxError>) -> ProviderError {
        ProviderError::failed(Arc::clone(&self.name), verb, source)
    }

    fn out_of_order(&self, verb: DbVerb, state: &'static str) -> ProviderError {
        ProviderError::OutOfOrder { provider: Arc::clone(&self.name), verb, state }
    }
}

impl<DB: Database> DbProvider for SqlxProvider<DB> {
    type Handle = SqlxHandle<DB>;
    type Session = SqlxSession<DB>;

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn account(&self) -> &Arc<DatabaseGate> {
        &self.account
    }

    fn acquire_timeout(&self) -> Duration {
        self.acquire_timeout
    }

    async fn acquire(&self, read_only: bool) -> Result<SqlxHandle<DB>, ProviderError> {
        let failed = |source: sqlx::Error| self.failed(DbVerb::Acquire, source);
        let connection = self.pool.acquire().await.map_err(failed)?;
        let mut lease = Lease::new(connection, self.speak, self.dialect, self.acquire_timeout);
        if read_only {
            lease.refuse_writes().await.map_err(failed)?;
        }
        Ok(SqlxHandle { of: self.account.link().id(), seat: Seat::new(lease) })
    }

    fn session(&self, handle: &SqlxHandle<DB>) -> Result<SqlxSession<DB>, ProviderError> {
        self.check(handle)?;
        match handle.seat.try_turn() {
            Ok(turn) => turn.map(SqlxSession).ok_or_else(|| self.closed()),
            Err(Taken) => Err(self.in_use()),
        }
    }

    async fn begin(&self, handle: &SqlxHandle<DB>) -> Result<(), ProviderError> {
        let mut lease = self.turn(handle).await?;
        if lease.is_open() {
            return Err(self.out_of_order(DbVerb::Begin, "a transaction open"));
        }
        lease.begin(self.begin).await.map_err(|source| self.failed(DbVerb::Begin, source))
    }

    async fn commit(&self, handle: &SqlxHandle<DB>) -> Result<(), ProviderError> {
        let mut lease = self.turn(handle).await?;
        if !lease.is_open() {
            return Err(self.out_of_order(DbVerb::Commit, "no transaction open"));
        }
        if lease.is_suspect() {
            let source = "a step was dropped half-way or failed, and what is in the transaction is not \
                          known";
            return Err(self.failed(DbVerb::Commit, source));
        }
        let failed = |source: sqlx::Error| self.failed(DbVerb::Commit, source);
        // A connection that answers nothing any more must not look like a commit that takes long:
        // nobody cuts that off, and up to here nothing is committed.
        let limit = self.acquire_timeout;
        let can_commit = tokio::time::timeout(limit, lease.can_commit()).await.map_err(|_| {
            let provider = Arc::clone(&self.name);
            ProviderError::TimedOut { provider, verb: DbVerb::Commit, limit }
        })?;
        if !can_commit.map_err(failed)? {
            let source = "a statement of the job's own has ended its transaction";
            return Err(self.failed(DbVerb::Commit, source));
        }
        lease.commit().await.map_err(failed)
    }

    /// A commit is complete when the database answers it.
    async fn await_completion(&self, handle: &SqlxHandle<DB>) -> Result<(), ProviderError> {
        self.check(handle)
    }

    async fn rollback(&self, handle: &SqlxHandle<DB>) -> Result<(), ProviderError> {
        let Some(mut lease) = self.turn_before_the_end(handle).await? else { return Ok(()) };
        lease.rollback().await.map_err(|source| self.failed(DbVerb::Rollback, source))
    }

    async fn close(&self, handle: &SqlxHandle<DB>) -> Result<(), ProviderError> {
        let taken = self.turn_before_the_end(handle).await?.and_then(Turn::take);
        // From here it is ours alone: dropped half-way, it is closed on the spot, since nobody closes
        // the handle again before the permit is free.
        let Some(mut lease) = taken else {
            // So that after an abort the permit does not return before the connection either.
            handle.seat.discarded().await;
            return Ok(());
        };
        if lease.is_suspect() {
            lease.discard().await;
            return Ok(());
        }
        match lease.clear().await {
            Ok(()) => lease.give_back().await,
            Err(source) => {
                lease.discard().await;
                return Err(self.failed(DbVerb::Close, source));
            }
        }
        Ok(())
    }

    fn abort(&self, handle: &SqlxHandle<DB>) {
        if self.check(handle).is_ok() {
            handle.seat.give_up();
        }
    }
}

impl<DB: Database> fmt::Debug for SqlxProvider<DB> {
    /// Without the pool: how to connect is nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlxProvider")
            .field("name", &self.name)
            .field("account", &self.account)
            .field("dialect", &self.dialect)
            .finish_non_exhaustive()
    }
}
