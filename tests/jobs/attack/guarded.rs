//! A database whose session is a real guard.

use std::sync::Arc;
use std::time::Duration;

use admit::{Account, BoxError, DatabaseGate, DbProvider, DbVerb, ProviderError};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::coop;
use tokio::time::Instant;

use super::secs;

/// A database whose session is a real guard: commit and close wait until it is back.
pub(super) struct Guarded {
    pub(super) name: Arc<str>,
    pub(super) account: Arc<DatabaseGate>,
    pub(super) limit: Duration,
    pub(super) drop_panics: bool,
    /// Its acquire spends all that the task may do in one poll.
    pub(super) acquire_exhausts: bool,
    pub(super) abort_panics_with: fn(),
    /// Its rollback and its close fail with this.
    pub(super) ends_with: Option<fn() -> BoxError>,
}

pub(super) struct GuardedHandle {
    name: Arc<str>,
    session: Arc<Mutex<()>>,
    panics: bool,
}

impl Drop for GuardedHandle {
    fn drop(&mut self) {
        assert!(!self.panics, "the handle of {} panics when it is dropped", self.name);
    }
}

impl Guarded {
    pub(super) fn new(name: &str, permits: u32) -> Self {
        Self {
            name: name.into(),
            account: DatabaseGate::new(name, permits).unwrap(),
            limit: secs(5),
            drop_panics: false,
            acquire_exhausts: false,
            abort_panics_with: || {},
            ends_with: None,
        }
    }

    async fn end(&self, verb: DbVerb, handle: &GuardedHandle) -> Result<(), ProviderError> {
        drop(handle.session.lock().await);
        match self.ends_with {
            Some(error) => Err(ProviderError::failed(&*self.name, verb, error())),
            None => Ok(()),
        }
    }

    pub(super) fn in_use(&self) -> u64 {
        self.account.in_use(Instant::now())
    }
}

impl DbProvider for Guarded {
    type Handle = GuardedHandle;
    type Session = OwnedMutexGuard<()>;

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn account(&self) -> &Arc<DatabaseGate> {
        &self.account
    }

    fn acquire_timeout(&self) -> Duration {
        self.limit
    }

    async fn acquire(&self, _: bool) -> Result<GuardedHandle, ProviderError> {
        while self.acquire_exhausts && coop::has_budget_remaining() {
            coop::consume_budget().await;
        }
        let name = Arc::clone(&self.name);
        Ok(GuardedHandle { name, session: Arc::default(), panics: self.drop_panics })
    }

    fn session(&self, handle: &GuardedHandle) -> Result<OwnedMutexGuard<()>, ProviderError> {
        let session = Arc::clone(&handle.session).try_lock_owned();
        session.map_err(|_| ProviderError::InUse { provider: Arc::clone(&self.name) })
    }

    async fn begin(&self, _: &GuardedHandle) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn commit(&self, handle: &GuardedHandle) -> Result<(), ProviderError> {
        drop(handle.session.lock().await);
        Ok(())
    }

    async fn await_completion(&self, _: &GuardedHandle) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn rollback(&self, handle: &GuardedHandle) -> Result<(), ProviderError> {
        self.end(DbVerb::Rollback, handle).await
    }

    async fn close(&self, handle: &GuardedHandle) -> Result<(), ProviderError> {
        self.end(DbVerb::Close, handle).await
    }

    fn abort(&self, _: &GuardedHandle) {
        (self.abort_panics_with)();
    }
}
