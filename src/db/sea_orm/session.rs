//! A job's connection with SeaORM's traits.

use std::fmt;
use std::pin::Pin;

use sea_orm::{
    AccessMode, ConnectionTrait, DbBackend, DbErr, ExecResult, IsolationLevel, QueryResult,
    Statement, TransactionError, TransactionOptions, TransactionTrait,
};
use sqlx::{Connection as _, Database, SqlStr};
use sqlx_core::transaction::TransactionManager as _;
use tokio::sync::{Mutex, MutexGuard};

use super::SeaOrmTransaction;
use super::statements::{Statements, Verb, is_an_answer, is_the_drivers, querying};
use crate::db::sqlx::{Owed, SqlxSession};
use crate::sync::{self, Arc};

/// A job's connection, while the job works with it, for SeaORM's queries.
///
/// It is a [`ConnectionTrait`]: `.one(&session)`, `.all(&session)`, `.exec(&session)`, and functions
/// that take `&impl ConnectionTrait`. It is a [`TransactionTrait`], too: `begin` on it opens a
/// savepoint within the job's transaction, or a transaction in a job that has none.
///
/// Statements of several futures go one after the other. There is one session at a time for each
/// handle, and what is said of a [`SqlxSession`] that is kept past its job holds here.
pub struct SeaOrmSession<DB: Database>(pub(super) Arc<Connection<DB>>);

/// What a session and the transactions within it share.
pub(super) struct Connection<DB: Database> {
    work: Mutex<Work<DB>>,
    pub(super) statements: Statements<DB>,
    pub(super) backend: DbBackend,
    /// Transactions that were dropped open while a statement of another future ran: whoever comes
    /// next rolls them back first.
    dropped: sync::Mutex<Vec<Level>>,
}

/// Which of a session's transactions one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level(u64);

/// The session, and the transactions that are open on it.
///
/// The driver keeps no more than how deep they are: an end is always the innermost one's. Futures of
/// one job may begin and end theirs in any order, so whose it is is kept here.
pub(super) struct Work<DB: Database> {
    pub(super) session: SqlxSession<DB>,
    /// From the outermost to the innermost.
    open: Vec<Level>,
    begun: u64,
    /// Of a rollback that was started the driver tells only when it is done: SQLite's, which works in a
    /// thread of its own.
    tells_late: bool,
}

impl<DB: Database> Work<DB> {
    /// Refused where a transaction was lost, and to one that is gone: what comes after would be outside
    /// it, and stay. Refused, too, where the driver would give the next one somebody else's answer, or
    /// none.
    fn ready(&mut self, of: Option<Level>) -> Result<&mut Self, DbErr> {
        if self.session.is_in_doubt() {
            return Err(DbErr::Custom(LOST.to_owned()));
        }
        match of {
            Some(level) if !self.open.contains(&level) => Err(DbErr::Custom(GONE.to_owned())),
            _ => Ok(self),
        }
    }

    /// Awaits a statement of one of the transactions, or of the session.
    pub(super) async fn run<S, T>(
        &mut self,
        of: Option<Level>,
        verb: Verb<DB, S, T>,
        statement: S,
    ) -> Result<T, DbErr> {
        let session = &mut self.ready(of)?.session;
        session.set_owed(Owed::Answer);
        let answer = verb(session, statement).await;
        let has_failed = answer.as_ref().is_err_and(is_the_drivers);
        session.set_owed(if has_failed { Owed::Unknown } else { Owed::Nothing });
        answer
    }

    /// Begins a transaction within those that are open; with `outermost`, where none is.
    ///
    /// Where that fails, the driver for PostgreSQL rolls back the one outside it, and where it is
    /// dropped half-way, nobody knows: after both, the session is of no use any more. Nor is it where
    /// what was to be set before is left for the next transaction, whoever's that will be.
    pub(super) async fn begin(
        &mut self,
        statements: &Statements<DB>,
        before: Option<String>,
        outermost: Option<SqlStr>,
    ) -> Result<Level, DbErr> {
        if self.tells_late {
            self.session.ping().await.map_err(querying)?;
        }
        let depth = self.depth();
        self.session.doubt();
        let is_set = before.is_some();
        if let Some(before) = before {
            let set = (statements.execute_unprepared)(&mut self.session, before).await;
            if let Err(error) = set {
                if is_an_answer(&error) {
                    self.session.settle_doubt();
                }
                return Err(error);
            }
        }
        let statement = outermost.filter(|_| depth == 0);
        let begun = DB::TransactionManager::begin(&mut self.session, statement).await;
        let is_in_order = match &begun {
            Ok(()) => true,
            Err(sqlx::Error::Database(_)) => !is_set && self.depth() == depth,
            Err(_) => false,
        };
        if is_in_order {
            self.session.settle_doubt();
        }
        begun.map_err(querying)?;
        self.begun += 1;
        let level = Level(self.begun);
        self.open.push(level);
        Ok(level)
    }

    /// Commits it into what is around it.
    ///
    /// Dropped half-way there, it may have been: its rollback would then be that of an earlier one as
    /// deep as it, whose savepoint has the same name. So the session is of no use after that.
    pub(super) async fn commit(&mut self, level: Level) -> Result<(), DbErr> {
        if self.open.last() != Some(&level) {
            let what = if self.open.contains(&level) { WITHIN } else { GONE };
            return Err(DbErr::Custom(what.to_owned()));
        }
        self.session.doubt();
        let committed = self.commit_innermost().await;
        if matches!(&committed, Ok(_) | Err(sqlx::Error::Database(_))) {
            self.session.settle_doubt();
        }
        if !committed.map_err(querying)? {
            return Err(DbErr::Custom(ENDED.to_owned()));
        }
        self.open.pop();
        Ok(())
    }

    /// `false` where there is nothing to commit any more.
    async fn commit_innermost(&mut self) -> sqlx::Result<bool> {
        // The database would answer the outermost's commit with success. To release a savepoint of
        // what is gone it refuses.
        if self.depth() == 1 && !self.session.can_commit().await? {
            return Ok(false);
        }
        DB::TransactionManager::commit(&mut self.session).await?;
        Ok(true)
    }

    /// Rolls it back, with those that are open within it.
    pub(super) async fn roll_back(&mut self, level: Level) -> Result<(), DbErr> {
        while self.open.contains(&level) {
            DB::TransactionManager::rollback(&mut self.session).await.map_err(querying)?;
            self.open.pop();
        }
        Ok(())
    }

    /// The same, before the next statement.
    fn start_rollback(&mut self, level: Level) {
        while self.open.contains(&level) {
            DB::TransactionManager::start_rollback(&mut self.session);
            self.open.pop();
        }
    }

    fn depth(&self) -> usize {
        DB::TransactionManager::get_transaction_depth(&self.session)
    }
}

const LOST: &str = "a begin, a commit or a statement of this session was dropped half-way or failed, and what \
                    is around it may be lost, or the next answer be another's: the session takes no more \
                    statements, and the job cannot commit";

const WITHIN: &str = "another transaction was begun within this one and is open: each must end before \
                      the one that was begun earlier on the same session";

const GONE: &str = "this transaction is rolled back: one that was begun earlier on the same session \
                    has ended before it";

const ENDED: &str = "a statement has ended this transaction before, and there is nothing to commit";

impl<DB: Database> Connection<DB> {
    pub(super) fn new(
        session: SqlxSession<DB>,
        statements: Statements<DB>,
        backend: DbBackend,
    ) -> Arc<Self> {
        let tells_late = backend == DbBackend::Sqlite;
        let work = Mutex::new(Work { session, open: Vec::new(), begun: 0, tells_late });
        Arc::new(Self { work, statements, backend, dropped: sync::Mutex::default() })
    }

    pub(super) async fn turn(&self) -> MutexGuard<'_, Work<DB>> {
        let mut work = self.work.lock().await;
        // First: an answer that is still to come is not the rollback's.
        work.session.count_answers().await;
        self.roll_back_dropped(&mut work);
        work
    }

    /// A transaction on it was dropped open.
    pub(super) fn dropped_open(&self, level: Level) {
        self.dropped.lock().push(level);
        if let Ok(mut work) = self.work.try_lock()
            && !work.session.is_owed()
        {
            self.roll_back_dropped(&mut work);
        }
    }

    fn roll_back_dropped(&self, work: &mut Work<DB>) {
        let dropped = std::mem::take(&mut *self.dropped.lock());
        for level in dropped {
            work.start_rollback(level);
        }
    }

    pub(super) async fn execute(
        &self,
        of: Option<Level>,
        statement: Statement,
    ) -> Result<ExecResult, DbErr> {
        self.turn().await.run(of, self.statements.execute, statement).await
    }

    pub(super) async fn execute_unprepared(
        &self,
        of: Option<Level>,
        sql: &str,
    ) -> Result<ExecResult, DbErr> {
        self.turn().await.run(of, self.statements.execute_unprepared, sql.to_owned()).await
    }

    pub(super) async fn query_one(
        &self,
        of: Option<Level>,
        statement: Statement,
    ) -> Result<Option<QueryResult>, DbErr> {
        self.turn().await.run(of, self.statements.query_one, statement).await
    }

    pub(super) async fn query_all(
        &self,
        of: Option<Level>,
        statement: Statement,
    ) -> Result<Vec<QueryResult>, DbErr> {
        self.turn().await.run(of, self.statements.query_all, statement).await
    }

    /// A turn to begin, commit or roll back in.
    pub(super) async fn turn_in_order(
        &self,
        of: Option<Level>,
    ) -> Result<MutexGuard<'_, Work<DB>>, DbErr> {
        let mut work = self.turn().await;
        work.ready(of)?;
        Ok(work)
    }
}

impl<DB: Database> Drop for Connection<DB> {
    fn drop(&mut self) {
        let dropped = std::mem::take(&mut *self.dropped.lock());
        for level in dropped {
            self.work.get_mut().start_rollback(level);
        }
    }
}

impl<DB: Database> SeaOrmSession<DB> {
    /// Its statements are of whatever is open.
    const fn level(&self) -> Option<Level> {
        None
    }
}

/// SeaORM's traits, for the session and for a transaction within it: they are the same connection.
macro_rules! connection_traits {
    ($kind:ident, $connection:tt) => {
        #[async_trait::async_trait]
        impl<DB: Database> ConnectionTrait for $kind<DB> {
            fn get_database_backend(&self) -> DbBackend {
                self.$connection.backend
            }

            async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
                self.$connection.execute(self.level(), statement).await
            }

            async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
                self.$connection.execute_unprepared(self.level(), sql).await
            }

            async fn query_one_raw(
                &self,
                statement: Statement,
            ) -> Result<Option<QueryResult>, DbErr> {
                self.$connection.query_one(self.level(), statement).await
            }

            async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
                self.$connection.query_all(self.level(), statement).await
            }
        }

        #[async_trait::async_trait]
        impl<DB: Database> TransactionTrait for $kind<DB> {
            type Transaction = SeaOrmTransaction<DB>;

            async fn begin(&self) -> Result<SeaOrmTransaction<DB>, DbErr> {
                self.begin_with_options(TransactionOptions::default()).await
            }

            async fn begin_with_config(
                &self,
                isolation_level: Option<IsolationLevel>,
                access_mode: Option<AccessMode>,
            ) -> Result<SeaOrmTransaction<DB>, DbErr> {
                let options =
                    TransactionOptions { isolation_level, access_mode, ..Default::default() };
                self.begin_with_options(options).await
            }

            async fn begin_with_options(
                &self,
                options: TransactionOptions,
            ) -> Result<SeaOrmTransaction<DB>, DbErr> {
                SeaOrmTransaction::begin(&self.$connection, self.level(), options).await
            }

            async fn transaction<F, T, E>(&self, callback: F) -> Result<T, TransactionError<E>>
            where
                F: for<'c> FnOnce(
                        &'c SeaOrmTransaction<DB>,
                    )
                        -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>>
                    + Send,
                T: Send,
                E: fmt::Display + fmt::Debug + Send,
            {
                self.transaction_with_config(callback, None, None).await
            }

            async fn transaction_with_config<F, T, E>(
                &self,
                callback: F,
                isolation_level: Option<IsolationLevel>,
                access_mode: Option<AccessMode>,
            ) -> Result<T, TransactionError<E>>
            where
                F: for<'c> FnOnce(
                        &'c SeaOrmTransaction<DB>,
                    )
                        -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>>
                    + Send,
                T: Send,
                E: fmt::Display + fmt::Debug + Send,
            {
                let transaction = self.begin_with_config(isolation_level, access_mode).await?;
                transaction.run(callback).await
            }
        }

        impl<DB: Database> fmt::Debug for $kind<DB> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($kind))
                    .field("backend", &self.$connection.backend)
                    .finish_non_exhaustive()
            }
        }
    };
}

connection_traits!(SeaOrmSession, 0);
connection_traits!(SeaOrmTransaction, connection);
