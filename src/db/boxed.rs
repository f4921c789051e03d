//! The provider without its types, for requirements that hold providers of many kinds.

use std::any::Any;
use std::pin::Pin;
use std::time::Duration;

use super::{DbProvider, ProviderError};
use crate::account::Account;
use crate::sync::Arc;

/// A handle of some provider.
pub(crate) type AnyHandle = Arc<dyn Any + Send + Sync>;

/// A verb under way.
pub(crate) type Verbed<'a, T = ()> =
    Pin<Box<dyn Future<Output = Result<T, ProviderError>> + Send + 'a>>;

/// The boxed twin of [`DbProvider`], implemented for every `Arc` of one and for nothing else.
pub(crate) trait AnyProvider: Send + Sync {
    /// Which provider this is: two `Arc`s of one provider have one key.
    fn key(&self) -> usize;
    fn name(&self) -> &Arc<str>;
    fn account(&self) -> Arc<dyn Account>;
    fn limit(&self) -> Duration;
    fn acquire(&self, read_only: bool) -> Verbed<'_, AnyHandle>;
    fn begin<'a>(&'a self, handle: &'a AnyHandle) -> Verbed<'a>;
    fn commit<'a>(&'a self, handle: &'a AnyHandle) -> Verbed<'a>;
    fn await_completion<'a>(&'a self, handle: &'a AnyHandle) -> Verbed<'a>;
    fn rollback<'a>(&'a self, handle: &'a AnyHandle) -> Verbed<'a>;
    fn close<'a>(&'a self, handle: &'a AnyHandle) -> Verbed<'a>;
    fn abort(&self, handle: &AnyHandle);
}

/// The key of a provider; see [`AnyProvider::key`].
pub(super) fn key_of<P: DbProvider>(provider: &Arc<P>) -> usize {
    Arc::as_ptr(provider).addr()
}

/// The handle as its provider made it.
pub(super) fn own<'a, P: DbProvider>(
    provider: &P,
    handle: &'a AnyHandle,
) -> Result<&'a P::Handle, ProviderError> {
    handle
        .downcast_ref()
        .ok_or_else(|| ProviderError::Foreign { provider: Arc::clone(provider.name()) })
}

impl<P: DbProvider> AnyProvider for Arc<P> {
    fn key(&self) -> usize {
        key_of(self)
    }

    fn name(&self) -> &Arc<str> {
        P::name(self)
    }

    fn account(&self) -> Arc<dyn Account> {
        Arc::clone(P::account(self)) as Arc<dyn Account>
    }

    fn limit(&self) -> Duration {
        P::acquire_timeout(self)
    }

    fn acquire(&self, read_only: bool) -> Verbed<'_, AnyHandle> {
        Box::pin(async move { Ok(Arc::new(P::acquire(self, read_only).await?) as AnyHandle) })
    }

    fn begin<'a>(&'a self, handle: &'a AnyHandle) -> Verbed<'a> {
        Box::pin(async move { P::begin(self, own(&**self, handle)?).await })
    }

    fn commit<'a>(&'a self, handle: &'a AnyHandle) -> Verbed<'a> {
        Box::pin(async move { P::commit(self, own(&**self, handle)?).await })
    }

    fn await_completion<'a>(&'a self, handle: &'a AnyHandle) -> Verbed<'a> {
        Box::pin(async move { P::await_completion(self, own(&**self, handle)?).await })
    }

    fn rollback<'a>(&'a self, handle: &'a AnyHandle) -> Verbed<'a> {
        Box::pin(async move { P::rollback(self, own(&**self, handle)?).await })
    }

    fn close<'a>(&'a self, handle: &'a AnyHandle) -> Verbed<'a> {
        Box::pin(async move { P::close(self, own(&**self, handle)?).await })
    }

    fn abort(&self, handle: &AnyHandle) {
        if let Ok(handle) = own(&**self, handle) {
            P::abort(self, handle);
        }
    }
}
