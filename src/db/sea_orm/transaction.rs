//! A transaction within a job's session.

use std::fmt;
use std::pin::Pin;

use sea_orm::{DbBackend, DbErr, TransactionError, TransactionOptions, TransactionSession};
use sqlx::{Database, SqlSafeStr as _, SqlStr};

use super::session::{Connection, Level};
use crate::sync::Arc;

/// A transaction that the job opened itself on its session: a savepoint where the job is
/// transactional.
///
/// Dropped, it is rolled back before the next statement. There is one connection, so each is within
/// the one that was begun before it and is still open, also where two futures of the job begin them:
/// a commit is an error while one is open within it, and a rollback takes those within it along: their
/// statements are errors from then on. A commit is an error, too, where a statement has ended the
/// transaction before, which PostgreSQL and MySQL answer with success. Where a begin or a commit is
/// dropped half-way the session takes nothing more, and the job cannot commit.
///
/// In a job that is read-only it is read-only, whatever access mode is asked for.
pub struct SeaOrmTransaction<DB: Database> {
    pub(super) connection: Arc<Connection<DB>>,
    /// `None` once ended.
    open: Option<Level>,
}

impl<DB: Database> SeaOrmTransaction<DB> {
    pub(super) async fn begin(
        connection: &Arc<Connection<DB>>,
        within: Option<Level>,
        mut options: TransactionOptions,
    ) -> Result<Self, DbErr> {
        let mut work = connection.turn_in_order(within).await?;
        if work.session.is_read_only() {
            // It is so already, and must not be told otherwise.
            options.access_mode = None;
        }
        let (before, after) = settings(connection.backend, options);
        // The mode is the outermost transaction's; a savepoint has none.
        let mode = mode(connection.backend, options);
        let level = work.begin(&connection.statements, before, mode).await?;
        // From here it is rolled back, unless it comes out of this in order.
        let transaction = Self { connection: Arc::clone(connection), open: Some(level) };
        if let Some(after) = after {
            let verb = connection.statements.execute_unprepared;
            work.run(Some(level), verb, after).await?;
        }
        drop(work);
        Ok(transaction)
    }

    /// Whose its statements are: once it is gone, they are refused.
    pub(super) const fn level(&self) -> Option<Level> {
        self.open
    }

    pub(super) async fn run<F, T, E>(self, callback: F) -> Result<T, TransactionError<E>>
    where
        F: for<'c> FnOnce(&'c Self) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>>
            + Send,
        E: fmt::Display + fmt::Debug,
    {
        match callback(&self).await {
            Ok(done) => {
                self.commit().await?;
                Ok(done)
            }
            Err(error) => {
                self.rollback().await?;
                Err(TransactionError::Transaction(error))
            }
        }
    }
}

#[async_trait::async_trait]
impl<DB: Database> TransactionSession for SeaOrmTransaction<DB> {
    async fn commit(mut self) -> Result<(), DbErr> {
        if let Some(level) = self.open {
            self.connection.turn_in_order(None).await?.commit(level).await?;
            self.open = None;
        }
        Ok(())
    }

    async fn rollback(mut self) -> Result<(), DbErr> {
        if let Some(level) = self.open {
            self.connection.turn_in_order(None).await?.roll_back(level).await?;
            self.open = None;
        }
        Ok(())
    }
}

impl<DB: Database> Drop for SeaOrmTransaction<DB> {
    fn drop(&mut self) {
        if let Some(level) = self.open {
            self.connection.dropped_open(level);
        }
    }
}

/// What is set before a transaction begins, and what in it.
fn settings(backend: DbBackend, options: TransactionOptions) -> (Option<String>, Option<String>) {
    let isolation = options.isolation_level.map(|level| format!("ISOLATION LEVEL {level}"));
    let access = options.access_mode.map(|mode| mode.to_string());
    let set: Vec<_> = isolation.into_iter().chain(access).collect();
    if set.is_empty() {
        return (None, None);
    }
    let statement = format!("SET TRANSACTION {}", set.join(", "));
    match backend {
        DbBackend::MySql => (Some(statement), None),
        DbBackend::Postgres => (None, Some(statement)),
        // It has neither: its transactions are serializable, as SeaORM's own connections have it.
        _ => (None, None),
    }
}

fn mode(backend: DbBackend, options: TransactionOptions) -> Option<SqlStr> {
    use sea_orm::SqliteTransactionMode::{Deferred, Exclusive, Immediate};
    let mode = options.sqlite_transaction_mode.filter(|_| backend == DbBackend::Sqlite)?;
    Some(match mode {
        Deferred => "BEGIN DEFERRED".into_sql_str(),
        Immediate => "BEGIN IMMEDIATE".into_sql_str(),
        Exclusive => "BEGIN EXCLUSIVE".into_sql_str(),
    })
}
