//! A provider that hands the job something built on the session.

use std::fmt;
use std::time::Duration;

use super::{DbProvider, ProviderError};
use crate::limits::DatabaseGate;
use crate::sync::Arc;

/// A provider that hands the job what a function builds on another provider's session; see
/// [`DbProvider::mapped`].
///
/// # Examples
///
/// ```
/// use admit::{CountingProvider, DbProvider};
///
/// struct Orders;
///
/// let counting = CountingProvider::new("orders", 20)?;
/// let orders = counting.mapped(|()| Orders);
/// assert_eq!(orders.name(), counting.name());
/// # Ok::<(), admit::ConfigError>(())
/// ```
pub struct Mapped<P, F> {
    inner: Arc<P>,
    build: F,
}

impl<P, F> Mapped<P, F> {
    pub(super) const fn new(inner: Arc<P>, build: F) -> Self {
        Self { inner, build }
    }
}

impl<P: fmt::Debug, F> fmt::Debug for Mapped<P, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mapped").field(&self.inner).finish()
    }
}

impl<P, F, U> DbProvider for Mapped<P, F>
where
    P: DbProvider,
    F: Fn(P::Session) -> U + Send + Sync + 'static,
    U: Send + 'static,
{
    type Handle = P::Handle;
    type Session = U;

    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    fn account(&self) -> &Arc<DatabaseGate> {
        self.inner.account()
    }

    fn acquire_timeout(&self) -> Duration {
        self.inner.acquire_timeout()
    }

    async fn acquire(&self, read_only: bool) -> Result<P::Handle, ProviderError> {
        self.inner.acquire(read_only).await
    }

    fn session(&self, handle: &P::Handle) -> Result<U, ProviderError> {
        self.inner.session(handle).map(&self.build)
    }

    async fn begin(&self, handle: &P::Handle) -> Result<(), ProviderError> {
        self.inner.begin(handle).await
    }

    async fn commit(&self, handle: &P::Handle) -> Result<(), ProviderError> {
        self.inner.commit(handle).await
    }

    async fn await_completion(&self, handle: &P::Handle) -> Result<(), ProviderError> {
        self.inner.await_completion(handle).await
    }

    async fn rollback(&self, handle: &P::Handle) -> Result<(), ProviderError> {
        self.inner.rollback(handle).await
    }

    async fn close(&self, handle: &P::Handle) -> Result<(), ProviderError> {
        self.inner.close(handle).await
    }

    fn abort(&self, handle: &P::Handle) {
        self.inner.abort(handle);
    }
}
