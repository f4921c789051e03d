//! One connection out of the pool, and what is known of its state.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Connection as _, Database, SqlSafeStr as _, SqlStr};
use sqlx_core::transaction::TransactionManager as _;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::SqlDialect;
use super::dialect::Question;
use crate::caught::caught;
use crate::error::panic_message;

/// How long a connection may take to say goodbye at most, as sqlx's own pool has it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a statement answered with: the name of the first column of its last row, if there was a row.
pub(super) type Asked<'c> = Pin<Box<dyn Future<Output = sqlx::Result<Option<String>>> + Send + 'c>>;

/// Runs one statement of a [`SqlDialect`]. A function pointer, made where the driver is known to run
/// statements, so that nothing else has to state that bound.
pub(super) type Speak<DB> = for<'c> fn(&'c mut <DB as Database>::Connection, SqlStr) -> Asked<'c>;

/// What a job's last statement has left for the driver to read.
#[cfg(feature = "sea-orm")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owed {
    Nothing,
    /// It was dropped half-way, and is being answered. The driver may have lost count of the answers.
    Answer,
    /// The driver failed at it, and may wait for an answer that nobody will give.
    Unknown,
}

/// A connection out of the pool. Dropped, it is closed: only [`give_back`](Self::give_back) returns
/// it, after its state is known.
pub(super) struct Lease<DB: Database> {
    /// `None` only on the way out.
    connection: Option<PoolConnection<DB>>,
    speak: Speak<DB>,
    dialect: SqlDialect,
    /// Where the pool's own tasks run: it must have one to close a connection in, and the last
    /// guard may be dropped on any thread.
    runtime: Handle,
    /// A step of ours was dropped half-way, or failed without an answer of the database's: what
    /// state the connection is in is unknown, and it must not go back.
    suspect: bool,
    /// What the driver may still have to read, where we know of it.
    #[cfg(feature = "sea-orm")]
    owed: Owed,
    /// How long to wait for what may never come.
    limit: Duration,
    /// Writes are refused.
    read_only: bool,
    /// Writes were allowed before and must be again.
    restore: bool,
}

/// What came of reading what was left to read.
struct Flushed {
    /// The driver is ready for the next statement.
    is_done: bool,
    /// The first error that a statement was answered with.
    error: Option<sqlx::Error>,
}

impl<DB: Database> Lease<DB> {
    pub(super) fn new(
        connection: PoolConnection<DB>,
        speak: Speak<DB>,
        dialect: SqlDialect,
        limit: Duration,
    ) -> Self {
        let runtime = Handle::current();
        let connection = Some(connection);
        Self {
            connection,
            speak,
            dialect,
            runtime,
            suspect: false,
            #[cfg(feature = "sea-orm")]
            owed: Owed::Nothing,
            limit,
            read_only: false,
            restore: false,
        }
    }

    pub(super) fn connection(&self) -> &DB::Connection {
        self.connection.as_ref().expect("a lease has its connection until it ends")
    }

    pub(super) fn connection_mut(&mut self) -> &mut DB::Connection {
        self.connection.as_mut().expect("a lease has its connection until it ends")
    }

    /// Whether sqlx knows of an open transaction.
    pub(super) fn is_open(&self) -> bool {
        self.connection().is_in_transaction()
    }

    /// Whether the state of the connection is unknown.
    pub(super) const fn is_suspect(&self) -> bool {
        self.suspect
    }

    /// What the job's last statement has left to read: it is about to be awaited, or was to its end.
    #[cfg(feature = "sea-orm")]
    pub(super) const fn set_owed(&mut self, owed: Owed) {
        self.owed = owed;
    }

    /// Whether a statement of the job's is not known to have been answered.
    #[cfg(feature = "sea-orm")]
    pub(super) fn is_owed(&self) -> bool {
        self.owed != Owed::Nothing
    }

    /// Sees to it that the next answer is to the next statement, or makes the connection suspect.
    ///
    /// Dropped half-way, it leaves as much to read as a statement that is dropped, and so as much to
    /// count.
    #[cfg(feature = "sea-orm")]
    pub(super) async fn count_answers(&mut self) {
        if self.suspect || self.owed == Owed::Nothing {
            return;
        }
        let is_in_order = if self.dialect == SqlDialect::Postgres && self.owed == Owed::Answer {
            // It comes, and takes as long as the database does.
            self.read_what_is_owed().await
        } else {
            let limit = self.limit;
            tokio::time::timeout(limit, self.read_what_is_owed()).await.unwrap_or(false)
        };
        self.suspect |= !is_in_order;
        self.owed = Owed::Nothing;
    }

    /// Reads it, and asks whether the next answer will be the next statement's own where the driver may
    /// have lost count; in a transaction also whether that is still there, which the answer might have
    /// said.
    #[cfg(feature = "sea-orm")]
    async fn read_what_is_owed(&mut self) -> bool {
        if !self.flush().await.is_done {
            return false;
        }
        if self.dialect != SqlDialect::MySql {
            return true;
        }
        let is_open = self.is_open();
        let question = if is_open { self.dialect.can_commit() } else { self.dialect.can_go_back() };
        let Some(question) = question else { return true };
        self.put(&question).await.is_ok_and(|is_yes| is_yes || !is_open)
    }

    /// Reads the answers to statements that were dropped half-way, past their errors, and answers the
    /// first of these. Both drivers that are spoken to over a wire take it for the answer to what is asked
    /// next, and PostgreSQL's has sent a `BEGIN` by then that it does not know of.
    async fn drain(&mut self) -> Option<sqlx::Error> {
        let before = self.suspect;
        // Dropped half-way, this may leave half of an answer with MySQL's driver, and with no other.
        self.suspect |= self.dialect == SqlDialect::MySql;
        let Flushed { is_done, error } = self.flush().await;
        self.suspect = before || !is_done;
        error
    }

    async fn flush(&mut self) -> Flushed {
        let mut error = None;
        loop {
            // Hidden in sqlx's documentation, public otherwise; it asks nothing.
            let flushed = {
                let mut flush = pin!(self.connection_mut().flush());
                caught(flush.as_mut()).await
            };
            match flushed {
                // Each is read once, and a connection that is gone says something else after it.
                Ok(Err(met @ sqlx::Error::Database(_))) => {
                    error.get_or_insert(met);
                }
                Ok(flushed) => break Flushed { is_done: flushed.is_ok(), error },
                Err(_) => break Flushed { is_done: false, error },
            }
        }
    }

    #[cfg(feature = "sea-orm")]
    pub(super) const fn is_read_only(&self) -> bool {
        self.read_only
    }

    #[cfg(feature = "sea-orm")]
    pub(super) const fn set_suspect(&mut self, suspect: bool) {
        self.suspect = suspect;
    }

    /// Whether the statement answered with a row.
    async fn ask(&mut self, statement: &'static str) -> sqlx::Result<bool> {
        self.question(&Question::row(statement)).await
    }

    async fn question(&mut self, question: &Question) -> sqlx::Result<bool> {
        let before = self.step();
        let answer = self.put(question).await;
        self.stepped(before, answer)
    }

    async fn put(&mut self, question: &Question) -> sqlx::Result<bool> {
        let speak = self.speak;
        let answer = {
            let mut asked = speak(self.connection_mut(), question.statement());
            caught(asked.as_mut()).await
        };
        // A driver that takes the answer to another statement for this one may fall over it.
        let answer = answer.unwrap_or_else(|payload| {
            Err(sqlx::Error::Protocol(format!(
                "the driver panicked: {}",
                panic_message(payload.into_inner())
            )))
        });
        question.read(answer)
    }

    /// What is about to be awaited may be dropped half-way.
    const fn step(&mut self) -> bool {
        std::mem::replace(&mut self.suspect, true)
    }

    /// It was not. An error the database itself answered with leaves the connection in order.
    fn stepped<T>(&mut self, before: bool, result: sqlx::Result<T>) -> sqlx::Result<T> {
        let answered = matches!(&result, Ok(_) | Err(sqlx::Error::Database(_)));
        self.suspect = before || !answered;
        result
    }

    /// Refuses writes, unless they are refused already.
    pub(super) async fn refuse_writes(&mut self) -> sqlx::Result<()> {
        self.read_only = true;
        if !self.ask(self.dialect.refuses_writes()).await? {
            self.restore = true;
            self.ask(self.dialect.refuse_writes()).await?;
        }
        Ok(())
    }

    /// Begins with `statement`, where writes are allowed: it may ask for a lock to write with.
    pub(super) async fn begin(&mut self, statement: Option<&'static str>) -> sqlx::Result<()> {
        let _ = self.drain().await;
        let before = self.step();
        let statement =
            statement.filter(|_| !self.read_only).map(|statement| statement.into_sql_str());
        let begun = DB::TransactionManager::begin(self.connection_mut(), statement).await;
        self.stepped(before, begun)
    }

    /// Whether a transaction is open that can be committed; `false` when the job's own statements
    /// ended it before. Changes nothing, so it may be dropped half-way.
    ///
    /// sqlx's driver for MySQL reads no further than the first row where one is asked for. What fails
    /// behind it was awaited by the job, which was told nothing yet; and where that cannot be told from a
    /// statement that was dropped, a commit that fails is the lesser evil.
    pub(super) async fn can_commit(&mut self) -> sqlx::Result<bool> {
        #[cfg(feature = "sea-orm")]
        let was_dropped = self.is_owed();
        #[cfg(not(feature = "sea-orm"))]
        let was_dropped = false;
        if let Some(error) = self.drain().await
            && self.dialect == SqlDialect::MySql
            && !was_dropped
        {
            return Err(error);
        }
        match self.dialect.can_commit() {
            Some(question) => self.question(&question).await,
            None => Ok(true),
        }
    }

    pub(super) async fn commit(&mut self) -> sqlx::Result<()> {
        // A savepoint that was left open is part of what is committed.
        while self.is_open() {
            let before = self.step();
            let committed = DB::TransactionManager::commit(self.connection_mut()).await;
            self.stepped(before, committed)?;
        }
        Ok(())
    }

    pub(super) async fn rollback(&mut self) -> sqlx::Result<()> {
        let _ = self.drain().await;
        while self.is_open() {
            let before = self.step();
            let rolled_back = DB::TransactionManager::rollback(self.connection_mut()).await;
            self.stepped(before, rolled_back)?;
        }
        Ok(())
    }

    /// Leaves the connection as it was found; an error where it must not go back.
    pub(super) async fn clear(&mut self) -> sqlx::Result<()> {
        self.rollback().await?;
        if self.ask(self.dialect.finds_stray()).await.unwrap_or(true) {
            self.ask("ROLLBACK").await?;
        }
        if self.restore {
            self.ask(self.dialect.allow_writes()).await?;
            self.restore = false;
        }
        // Last: what was asked before may have had the answer to something else.
        match self.dialect.can_go_back() {
            Some(question) if !self.question(&question).await? => {
                let what = "a statement of the job's own has changed autocommit or completion_type";
                Err(sqlx::Error::Protocol(what.to_owned()))
            }
            _ if self.suspect => {
                let what = "what the driver has left to read is not known";
                Err(sqlx::Error::Protocol(what.to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the connection to its pool, and is done only when it is there: dropping it would leave
    /// that to a task, and the permit that stands for it would be free before.
    pub(super) async fn give_back(mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        // Hidden in sqlx's documentation, public otherwise; nothing else tells when it is back.
        let returning = connection.return_to_pool();
        {
            let _runtime = self.runtime.enter();
            drop(connection);
        }
        returning.await;
    }

    /// Closes the connection, and is done when its place in the pool is free.
    pub(super) async fn discard(mut self) {
        if let Some(connection) = self.connection.take() {
            // There is nobody to whom it would matter why a connection given up does not close, and
            // one that cannot is closed by being dropped.
            let future = Some(Box::pin(connection.close()));
            let closing = DroppedInside { future, runtime: self.runtime.clone() };
            // A close of the handle that waits for this has the whole limit, and then the permit goes.
            let limit = CLOSE_TIMEOUT.min(self.limit / 2);
            let _ = tokio::time::timeout(limit, closing).await;
        }
    }

    /// The same in a task, from any thread.
    pub(super) fn discard_later(self, discarded: CancellationToken) {
        let runtime = self.runtime.clone();
        // Cancelled also where the task is only dropped.
        let discarded = discarded.drop_guard();
        runtime.spawn(async move {
            self.discard().await;
            drop(discarded);
        });
    }
}

impl<DB: Database> Drop for Lease<DB> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            // On the spot and without a goodbye: nobody waits for it, such as after an acquire that was
            // dropped half-way, and the permit that stands for it is free in a moment.
            inside(&self.runtime, || drop(connection.detach()));
        }
    }
}

/// Does something within a runtime, wherever we are. Where a thread ends there is none to enter any
/// more, and a panic would end the process: there another thread does it.
fn inside(runtime: &Handle, work: impl FnOnce() + Send + 'static) {
    if Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed()) {
        let runtime = runtime.clone();
        std::thread::spawn(move || {
            let _runtime = runtime.enter();
            work();
        });
    } else {
        let _runtime = runtime.enter();
        work();
    }
}

/// A future that is dropped within its runtime: a connection of a pool that keeps a minimum starts a
/// task as it goes.
struct DroppedInside<F: Send + 'static> {
    /// `None` only on the way out.
    future: Option<Pin<Box<F>>>,
    runtime: Handle,
}

impl<F: Future + Send> Future for DroppedInside<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let future = self.future.as_mut().expect("it is there until it is dropped");
        future.as_mut().poll(cx)
    }
}

impl<F: Send + 'static> Drop for DroppedInside<F> {
    fn drop(&mut self) {
        let future = self.future.take();
        inside(&self.runtime, || drop(future));
    }
}
