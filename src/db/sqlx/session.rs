//! The handle of a job, and the guard on its connection.

use std::fmt;
use std::ops::{Deref, DerefMut};

use sqlx::Database;

#[cfg(feature = "sea-orm")]
use super::lease::Owed;
use super::seat::{Seat, Turn};
use crate::account::AccountId;
use crate::sync::Arc;

/// A job's connection at a [`SqlxProvider`](crate::SqlxProvider), from acquire to close.
///
/// Dropped without a close, it closes the connection, as an abort does.
pub struct SqlxHandle<DB: Database> {
    pub(super) of: AccountId,
    pub(super) seat: Arc<Seat<DB>>,
}

impl<DB: Database> Drop for SqlxHandle<DB> {
    fn drop(&mut self) {
        self.seat.give_up();
    }
}

impl<DB: Database> fmt::Debug for SqlxHandle<DB> {
    /// Without its state: to look at that is to take the connection from somebody for a moment.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlxHandle").finish_non_exhaustive()
    }
}

/// A job's connection, while the job works with it.
///
/// It derefs to the driver's connection: `sqlx::query(…).execute(&mut *session)`. There is one at a
/// time for each handle; it comes back when the guard is dropped. A guard that is kept past its job
/// keeps the connection, too, though the job's permit is free: do not carry one out of a job.
///
/// Use [`Connection::begin`](sqlx::Connection::begin) on it for a savepoint within the job's
/// transaction, or a transaction in a job that has none. On PostgreSQL sqlx rolls back the transaction
/// around it where that fails or is dropped half-way: what is written after that stays, though the
/// job's commit is an error, so do not go on. Nor in a job without a transaction: it may have begun one,
/// and what is written after that is rolled back. Await its commit to the end: dropped in the middle, a
/// savepoint may be rolled back to an earlier one, with what was written in between. In a job without a
/// transaction such a commit answers with success where PostgreSQL or MySQL has nothing left to commit.
///
/// What is still open when the job ends is rolled back, also what plain SQL opened. Other things a job
/// changes on the session, such as variables, its role, temporary tables and locks, stay with the
/// connection as they do with every user of the pool, whose `after_release` is the place to undo them;
/// one whose `autocommit` or `completion_type` is not the server's own is closed.
pub struct SqlxSession<DB: Database>(pub(super) Turn<DB>);

#[cfg(feature = "sea-orm")]
impl<DB: Database> SqlxSession<DB> {
    /// The state of the connection is unknown until the doubt is settled; else it is closed at the end.
    pub(crate) fn doubt(&mut self) {
        self.0.set_suspect(true);
    }

    /// What the doubt was about has ended in order.
    pub(crate) fn settle_doubt(&mut self) {
        self.0.set_suspect(false);
    }

    /// What its last statement has left to read: it is about to be awaited, or was to its end.
    pub(crate) fn set_owed(&mut self, owed: Owed) {
        self.0.set_owed(owed);
    }

    /// Whether a statement is not known to have been answered.
    pub(crate) fn is_owed(&self) -> bool {
        self.0.is_owed()
    }

    /// Asks, after one that was not answered, whether the next one's answer will be its own; a doubt
    /// where not.
    pub(crate) async fn count_answers(&mut self) {
        self.0.count_answers().await;
    }

    /// Whether the job may only read.
    pub(crate) fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    /// Whether a transaction is open that can be committed.
    pub(crate) async fn can_commit(&mut self) -> sqlx::Result<bool> {
        self.0.can_commit().await
    }

    /// Whether the state of the connection is unknown.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.0.is_suspect()
    }
}

impl<DB: Database> Deref for SqlxSession<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        self.0.connection()
    }
}

impl<DB: Database> DerefMut for SqlxSession<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.0.connection_mut()
    }
}

impl<DB: Database> fmt::Debug for SqlxSession<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlxSession").field("open", &self.0.is_open()).finish_non_exhaustive()
    }
}
