//! The provider that only counts.

use std::fmt;
use std::time::Duration;

use super::{DbProvider, DbVerb, ProviderError};
use crate::account::{Account, AccountId};
use crate::error::ConfigError;
use crate::limits::DatabaseGate;
use crate::sync::{Arc, AtomicU8, Ordering};

/// So many jobs at a database at once, and nothing handed to them.
///
/// The job takes its connections as the application always does. Its transaction verbs keep no
/// transaction. A job whose stack takes two connections at once counts once and holds two: the pool
/// must have room for the second, or the job requires the database twice.
///
/// # Examples
///
/// ```
/// use admit::{Account, CountingProvider, DbProvider};
///
/// let orders = CountingProvider::new("orders", 20)?;
/// assert_eq!(&**orders.account().link().name(), "db:orders");
/// # Ok::<(), admit::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct CountingProvider {
    name: Arc<str>,
    account: Arc<DatabaseGate>,
}

impl CountingProvider {
    /// The provider `name` with `max_concurrent` permits.
    ///
    /// # Errors
    ///
    /// When the name is empty or there are no permits.
    pub fn new(name: impl Into<Arc<str>>, max_concurrent: u32) -> Result<Arc<Self>, ConfigError> {
        let name = name.into();
        let account = DatabaseGate::new(&name, max_concurrent)?;
        Ok(Arc::new(Self { name, account }))
    }

    fn check(&self, handle: &CountingHandle) -> Result<(), ProviderError> {
        if handle.of != self.account.link().id() {
            return Err(ProviderError::Foreign { provider: Arc::clone(&self.name) });
        }
        Ok(())
    }

    /// Goes from one state to the next, or says what stands against it.
    fn step(
        &self,
        handle: &CountingHandle,
        verb: DbVerb,
        from: u8,
        to: u8,
    ) -> Result<(), ProviderError> {
        self.check(handle)?;
        let provider = || Arc::clone(&self.name);
        match handle.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(CLOSED) => Err(ProviderError::Closed { provider: provider() }),
            Err(OPEN) => Err(ProviderError::OutOfOrder {
                provider: provider(),
                verb,
                state: "a transaction open",
            }),
            Err(_) => Err(ProviderError::OutOfOrder {
                provider: provider(),
                verb,
                state: "no transaction open",
            }),
        }
    }
}

const IDLE: u8 = 0;
const OPEN: u8 = 1;
const CLOSED: u8 = 2;

/// A job's place at a [`CountingProvider`].
pub struct CountingHandle {
    of: AccountId,
    state: AtomicU8,
}

impl fmt::Debug for CountingHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state.load(Ordering::Acquire) {
            IDLE => "idle",
            OPEN => "open",
            _ => "closed",
        };
        f.debug_struct("CountingHandle").field("state", &state).finish_non_exhaustive()
    }
}

impl DbProvider for CountingProvider {
    type Handle = CountingHandle;
    type Session = ();

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn account(&self) -> &Arc<DatabaseGate> {
        &self.account
    }

    /// Never used: nothing here waits.
    fn acquire_timeout(&self) -> Duration {
        Duration::from_secs(30)
    }

    async fn acquire(&self, _read_only: bool) -> Result<CountingHandle, ProviderError> {
        Ok(CountingHandle { of: self.account.link().id(), state: AtomicU8::new(IDLE) })
    }

    fn session(&self, handle: &CountingHandle) -> Result<(), ProviderError> {
        self.check(handle)?;
        if handle.state.load(Ordering::Acquire) == CLOSED {
            return Err(ProviderError::Closed { provider: Arc::clone(&self.name) });
        }
        Ok(())
    }

    async fn begin(&self, handle: &CountingHandle) -> Result<(), ProviderError> {
        self.step(handle, DbVerb::Begin, IDLE, OPEN)
    }

    async fn commit(&self, handle: &CountingHandle) -> Result<(), ProviderError> {
        self.step(handle, DbVerb::Commit, OPEN, IDLE)
    }

    async fn await_completion(&self, handle: &CountingHandle) -> Result<(), ProviderError> {
        self.check(handle)
    }

    async fn rollback(&self, handle: &CountingHandle) -> Result<(), ProviderError> {
        self.check(handle)?;
        let _ = handle.state.compare_exchange(OPEN, IDLE, Ordering::AcqRel, Ordering::Acquire);
        Ok(())
    }

    async fn close(&self, handle: &CountingHandle) -> Result<(), ProviderError> {
        self.check(handle)?;
        handle.state.store(CLOSED, Ordering::Release);
        Ok(())
    }

    fn abort(&self, handle: &CountingHandle) {
        if self.check(handle).is_ok() {
            handle.state.store(CLOSED, Ordering::Release);
        }
    }
}
