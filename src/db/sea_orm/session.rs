//! A job's connection with SeaORM's traits.

use std::fmt;
use std::pin::Pin;

use sea_orm::{
    AccessMode, ConnectionTrait, DbBackend, DbErr, ExecResult, IsolationLevel, QueryResult,
    Statement, TransactionError, TransactionOptions, TransactionTrait,
};
use sqlx::Database;
use sqlx_core::transaction::TransactionManager as _;
use tokio::sync::{Mutex, MutexGuard};

use super::SeaOrmTransaction;
use super::statements::Statements;
use crate::db::sqlx::SqlxSession;
use crate::sync::{Arc, AtomicUsize, Ordering};

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
    session: Mutex<SqlxSession<DB>>,
    pub(super) statements: Statements<DB>,
    pub(super) backend: DbBackend,
    /// Transactions that were dropped open while a statement of another future ran: whoever comes
    /// next rolls them back first.
    dropped: AtomicUsize,
}

impl<DB: Database> Connection<DB> {
    pub(super) fn new(
        session: SqlxSession<DB>,
        statements: Statements<DB>,
        backend: DbBackend,
    ) -> Arc<Self> {
        let session = Mutex::new(session);
        Arc::new(Self { session, statements, backend, dropped: AtomicUsize::new(0) })
    }

    pub(super) async fn turn(&self) -> MutexGuard<'_, SqlxSession<DB>> {
        let mut session = self.session.lock().await;
        self.roll_back_dropped(&mut session);
        session
    }

    /// A transaction on it was dropped open.
    pub(super) fn dropped_open(&self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
        if let Ok(mut session) = self.session.try_lock() {
            self.roll_back_dropped(&mut session);
        }
    }

    fn roll_back_dropped(&self, session: &mut SqlxSession<DB>) {
        for _ in 0..self.dropped.swap(0, Ordering::SeqCst) {
            DB::TransactionManager::start_rollback(session);
        }
    }

    pub(super) async fn execute(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        (self.statements.execute)(&mut *self.turn().await, statement).await
    }

    pub(super) async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        (self.statements.execute_unprepared)(&mut *self.turn().await, sql.to_owned()).await
    }

    pub(super) async fn query_one(
        &self,
        statement: Statement,
    ) -> Result<Option<QueryResult>, DbErr> {
        (self.statements.query_one)(&mut *self.turn().await, statement).await
    }

    pub(super) async fn query_all(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        (self.statements.query_all)(&mut *self.turn().await, statement).await
    }
}

impl<DB: Database> Drop for Connection<DB> {
    fn drop(&mut self) {
        for _ in 0..self.dropped.swap(0, Ordering::SeqCst) {
            DB::TransactionManager::start_rollback(self.session.get_mut());
        }
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
                self.$connection.execute(statement).await
            }

            async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
                self.$connection.execute_unprepared(sql).await
            }

            async fn query_one_raw(
                &self,
                statement: Statement,
            ) -> Result<Option<QueryResult>, DbErr> {
                self.$connection.query_one(statement).await
            }

            async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
                self.$connection.query_all(statement).await
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
                SeaOrmTransaction::begin(&self.$connection, options).await
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
