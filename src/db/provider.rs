//! The provider's contract: what an author of a data layer writes.

use std::time::Duration;

use super::{Mapped, ProviderError};
use crate::limits::DatabaseGate;
use crate::sync::Arc;

/// One database as jobs use it: a bound, and a handle under each permit of it.
///
/// The bound is an account, [`account`](Self::account), so a permit is admitted with everything else
/// a job needs; only then is [`acquire`](Self::acquire) called, which never gates. The permit is the
/// grant's. The handle holds the session and the state of its transaction, never the permit. The
/// pool behind it is the host's: no provider sizes or tunes it, and it must have room for everybody
/// else who uses it.
///
/// Handles are used through shared references, because the end of a job may overlap with what the
/// job still does: a provider keeps its session behind a lock of its own.
///
/// # Lifecycle
///
/// ```text
///            begin            commit            await_completion
///  acquire ────────► open ───────────► committed ───────────────► done
///     │               │ ▲                  │                        │
///     │      rollback │ │ begin            │ begin (another one)    │
///     │               ▼ │                  ▼                        ▼
///     └────────────► idle ◄───────────────────────────────────── idle ──► close ──► closed
///
///  abort, from anywhere, at once: the session is given up, and every later use is `Closed`
/// ```
///
/// # Laws
///
/// - **One permit, one session.** From `acquire` to `close` one connection is out, and it stays the
///   same through several transactions; after `close`, none.
/// - **Idempotent ends.** [`rollback`](Self::rollback) without an open transaction,
///   [`close`](Self::close) after a close or an abort, and [`abort`](Self::abort) again do nothing
///   and succeed.
/// - **Nothing stays open.** `close` rolls back what is open, restores what `acquire` changed on the
///   connection, and releases whoever waits in [`await_completion`](Self::await_completion).
/// - **Owned by one.** A handle of another provider is [`ProviderError::Foreign`] everywhere, and
///   stays as it is; [`abort`](Self::abort), which answers nothing, does nothing to it.
/// - **Cancel safe.** A verb's future dropped half-way leaves a handle that `rollback`, `abort` and
///   `close` can end: a connection in an unknown state is discarded, not returned to its pool.
///
/// The feature `testing` has the contract as a test to run on a provider of your own.
///
/// # Examples
///
/// [`CountingProvider`](crate::CountingProvider) is the smallest: it counts and hands out nothing.
pub trait DbProvider: Send + Sync + 'static {
    /// The session and the state of its transaction.
    type Handle: Send + Sync + 'static;

    /// What a job works with: an owned guard on the session.
    type Session: Send + 'static;

    /// The database's name, as jobs and errors call it.
    fn name(&self) -> &Arc<str>;

    /// The bound: a gate named `db:<name>`.
    fn account(&self) -> &Arc<DatabaseGate>;

    /// How long a job waits for [`acquire`](Self::acquire), for [`begin`](Self::begin), and for each
    /// step that ends a handle: shorter than a rollback takes, and sessions are given up instead of
    /// returned. A commit is bounded by the run's own time alone, but for that of a
    /// [`requires_new`](crate::requires_new), which this bounds. Default 30 s.
    fn acquire_timeout(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Takes a session, for a job that holds a permit. `read_only` refuses writes on it.
    ///
    /// # Errors
    ///
    /// When there is none to be had. The job does not run, and nothing stays taken.
    fn acquire(
        &self,
        read_only: bool,
    ) -> impl Future<Output = Result<Self::Handle, ProviderError>> + Send;

    /// What the job works with, for as long as it keeps it.
    ///
    /// # Errors
    ///
    /// [`InUse`](ProviderError::InUse) while another guard is out, [`Closed`](ProviderError::Closed)
    /// after the end. Never waits.
    fn session(&self, handle: &Self::Handle) -> Result<Self::Session, ProviderError>;

    /// Opens a transaction.
    ///
    /// # Errors
    ///
    /// When the database fails, or a transaction is open.
    fn begin(
        &self,
        handle: &Self::Handle,
    ) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// Commits the open transaction.
    ///
    /// # Errors
    ///
    /// When the database fails, or no transaction is open.
    fn commit(
        &self,
        handle: &Self::Handle,
    ) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// Waits until what was committed is complete, where that is more than the commit's own answer.
    ///
    /// Most databases have nothing to wait for: then it only tells a foreign handle.
    ///
    /// # Errors
    ///
    /// When the completion failed or cannot be confirmed.
    fn await_completion(
        &self,
        handle: &Self::Handle,
    ) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// Rolls the open transaction back. Nothing without one.
    ///
    /// # Errors
    ///
    /// When the database fails; the session is then discarded at [`close`](Self::close).
    fn rollback(
        &self,
        handle: &Self::Handle,
    ) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// Ends the handle: rolls back what is open, restores the connection, and returns it.
    ///
    /// # Errors
    ///
    /// When the connection could not be returned in order. It is gone from the handle all the same.
    fn close(
        &self,
        handle: &Self::Handle,
    ) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// Gives the session up at once, without waiting for anything: the last resort. A handle of
    /// another provider is left as it is.
    fn abort(&self, handle: &Self::Handle);

    /// The same database, handing the job something built on the session.
    ///
    /// It shares the bound and the handles' kind with this one; a job that requires both holds two.
    fn mapped<F, U>(self: &Arc<Self>, build: F) -> Arc<Mapped<Self, F>>
    where
        Self: Sized,
        F: Fn(Self::Session) -> U + Send + Sync + 'static,
        U: Send + 'static,
    {
        Arc::new(Mapped::new(Arc::clone(self), build))
    }
}
