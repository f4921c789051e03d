//! The job's own handles, for code that was not handed them.

use super::boxed::{AnyHandle, key_of, own};
use super::{DbProvider, ProviderError};
use crate::sync::Arc;

/// The handles a job holds, by their providers' keys.
#[derive(Default)]
pub(crate) struct Bound {
    handles: Vec<(usize, Arc<str>, AnyHandle)>,
}

impl Bound {
    pub(crate) fn add(&mut self, key: usize, name: Arc<str>, handle: AnyHandle) {
        self.handles.push((key, name, handle));
    }

    /// The session of a provider.
    pub(crate) fn session<P: DbProvider>(
        &self,
        provider: &Arc<P>,
    ) -> Result<P::Session, ProviderError> {
        let key = key_of(provider);
        match self.handles.iter().find(|(of, ..)| *of == key) {
            Some((.., handle)) => provider.session(own(&**provider, handle)?),
            None => Err(ProviderError::NotHeld {
                provider: Arc::clone(provider.name()),
                held: self.handles.iter().map(|(_, name, _)| Arc::clone(name)).collect(),
            }),
        }
    }
}

tokio::task_local! {
    static BOUND: Arc<Bound>;
}

/// Runs a job's future with its handles bound to it.
///
/// No `async fn`: that would keep room for the job's future twice, as an argument and as what it
/// awaits.
pub(crate) fn in_scope<F: Future>(bound: Arc<Bound>, job: F) -> impl Future<Output = F::Output> {
    BOUND.scope(bound, job)
}

/// The session of the job that runs here, for code that was not handed its
/// [`Resources`](crate::Resources).
///
/// It finds the handle the job that is being polled holds of this provider. Nothing stays bound
/// after the job, and a task the job spawns does not inherit it.
///
/// # Errors
///
/// [`NotHeld`](ProviderError::NotHeld) outside a job and in a job that does not require the
/// provider; else as [`DbProvider::session`].
pub fn ambient<P: DbProvider>(provider: &Arc<P>) -> Result<P::Session, ProviderError> {
    BOUND
        .try_with(|bound| bound.session(provider))
        .unwrap_or_else(|_| Bound::default().session(provider))
}
