//! The job's own handles, for code that was not handed them.

use std::pin::pin;
use std::time::Duration;

use super::boxed::{AnyHandle, key_of};
use super::{DbProvider, DbVerb, ProviderError};
use crate::caught::{caught, contain, say};
use crate::error::panic_message;
use crate::one_line::OneLine;
use crate::sync::{Arc, AtomicBool, Ordering};

/// The handles a job holds, by their providers' keys.
#[derive(Clone, Default)]
pub(crate) struct Bound {
    handles: Vec<(usize, Arc<str>, AnyHandle)>,
    read_only: bool,
    /// The job has ended: from then on no session is handed out, though the handles are not closed yet.
    is_over: Arc<AtomicBool>,
}

impl Bound {
    /// Of a job that may only read, or may write too.
    pub(crate) fn of_job(read_only: bool, is_over: &Arc<AtomicBool>) -> Self {
        Self { handles: Vec::new(), read_only, is_over: Arc::clone(is_over) }
    }

    pub(crate) fn add(&mut self, key: usize, name: Arc<str>, handle: AnyHandle) {
        self.handles.push((key, name, handle));
    }

    /// The same with another handle in the place of the provider's.
    fn with<P: DbProvider>(&self, provider: &Arc<P>, handle: Arc<P::Handle>) -> Self {
        let mut bound = self.clone();
        bound.handles.retain(|(key, ..)| *key != key_of(provider));
        bound.add(key_of(provider), Arc::clone(provider.name()), handle);
        bound
    }

    /// The handle of a provider.
    fn handle<P: DbProvider>(&self, provider: &Arc<P>) -> Result<Arc<P::Handle>, ProviderError> {
        let key = key_of(provider);
        match self.handles.iter().find(|(of, ..)| *of == key) {
            Some((.., handle)) => Arc::clone(handle)
                .downcast()
                .map_err(|_| ProviderError::Foreign { provider: Arc::clone(provider.name()) }),
            None => Err(ProviderError::NotHeld {
                provider: Arc::clone(provider.name()),
                held: self.handles.iter().map(|(_, name, _)| Arc::clone(name)).collect(),
            }),
        }
    }

    /// The session of a provider.
    pub(crate) fn session<P: DbProvider>(
        &self,
        provider: &Arc<P>,
    ) -> Result<P::Session, ProviderError> {
        let session = provider.session(&*self.handle(provider)?)?;
        // Asked last: for a session that was taken before the end, the end waits. One that was
        // taken later would write beside the transaction that was committed or rolled back.
        if self.is_over.load(Ordering::SeqCst) {
            return Err(ProviderError::Closed { provider: Arc::clone(provider.name()) });
        }
        Ok(session)
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

/// What the job that runs here holds; outside a job, nothing.
fn bound() -> Arc<Bound> {
    BOUND.try_with(Arc::clone).unwrap_or_default()
}

/// The handle that the job that runs here holds of a provider.
#[cfg(feature = "sqlx")]
pub(super) fn held<P: DbProvider>(provider: &Arc<P>) -> Result<Arc<P::Handle>, ProviderError> {
    bound().handle(provider)
}

/// The session of the job that runs here, for code that was not handed its
/// [`Resources`](crate::Resources).
///
/// It finds the handle the job that is being polled holds of this provider. Nothing stays bound
/// after the job, and a task the job spawns does not inherit it: such a task outlives the job's
/// permit, so hand it results, not the connection.
///
/// # Errors
///
/// [`NotHeld`](ProviderError::NotHeld) outside a job and in a job that does not require the
/// provider; else as [`DbProvider::session`]. It never waits; providers of this crate that have a
/// connection have a method `ambient` that does.
pub fn ambient<P: DbProvider>(provider: &Arc<P>) -> Result<P::Session, ProviderError> {
    bound().session(provider)
}

/// Runs `work` with a second session of a provider and a transaction of its own.
///
/// What `work` does is committed when it succeeds, and stays when the job's own transaction is rolled
/// back: an audit row, a counter. When it fails, only its own is rolled back. Whatever asks for the
/// [`ambient`] session while `work` runs gets the second one; the job's own is untouched.
///
/// The second session is taken from the pool beside the job's permit, which counts one. It is a
/// session like the job's: where the job is read-only, it is, too. The pool must have room for it,
/// and a row that the job's own transaction has locked is locked for the second one as well. Await it
/// within the job: carried out of it half-way, it keeps a session that no permit stands beside.
///
/// # Errors
///
/// [`NotHeld`](ProviderError::NotHeld) outside a job and in a job that does not require the provider.
/// What the provider says when there is no session to be had, or the commit fails;
/// [`TimedOut`](ProviderError::TimedOut) when a step takes longer than
/// [`acquire_timeout`](DbProvider::acquire_timeout). Else the error of `work`.
///
/// After an error of the commit it may be done all the same, as where its time or the connection ended
/// before the database had answered: look before writing again.
///
/// # Cancel safety
///
/// Dropped half-way, it aborts the second session, and nothing of it is committed, unless it was
/// committing: a commit that is dropped is done or not, as with every database.
pub async fn requires_new<P, T, E, F>(provider: &Arc<P>, work: impl FnOnce() -> F) -> Result<T, E>
where
    P: DbProvider,
    F: Future<Output = Result<T, E>>,
    E: From<ProviderError>,
{
    let outer = bound();
    // To run beside a permit, one must be held.
    outer.handle(provider)?;
    // Boxed, here and below: what it takes to get and end a connection is large, and this is part of
    // the job's own future.
    let second = Box::pin(Second::open(provider, outer.read_only)).await?;
    let inner = Arc::new(outer.with(provider, Arc::clone(second.handle())));
    let done = in_scope(inner, async { work().await }).await;
    match done {
        Ok(done) => {
            Box::pin(second.commit()).await?;
            Ok(done)
        }
        Err(error) => {
            Box::pin(second.roll_back()).await;
            Err(error)
        }
    }
}

/// A session beside the job's own. Dropped, it is aborted.
struct Second<P: DbProvider> {
    provider: Arc<P>,
    /// `None` only on the way out.
    handle: Option<Arc<P::Handle>>,
}

impl<P: DbProvider> Second<P> {
    const fn handle(&self) -> &Arc<P::Handle> {
        self.handle.as_ref().expect("it has its handle until it is dropped")
    }

    async fn open(provider: &Arc<P>, read_only: bool) -> Result<Self, ProviderError> {
        let acquired = within(&**provider, DbVerb::Acquire, provider.acquire(read_only)).await?;
        let second = Self { provider: Arc::clone(provider), handle: Some(Arc::new(acquired)) };
        within(&**provider, DbVerb::Begin, provider.begin(second.handle())).await?;
        Ok(second)
    }

    async fn commit(self) -> Result<(), ProviderError> {
        let (provider, handle) = (&*self.provider, &**self.handle());
        let committed = async {
            within(provider, DbVerb::Commit, provider.commit(handle)).await?;
            within(provider, DbVerb::AwaitCompletion, provider.await_completion(handle)).await
        };
        if let Err(error) = committed.await {
            self.roll_back().await;
            return Err(error);
        }
        self.close().await;
        Ok(())
    }

    async fn roll_back(self) {
        let (provider, handle) = (&*self.provider, &**self.handle());
        // What cannot be rolled back is not committed either.
        if self.ends(DbVerb::Rollback, async { provider.rollback(handle).await }).await {
            self.close().await;
        }
    }

    async fn close(self) {
        let (provider, handle) = (&*self.provider, &**self.handle());
        // A session that does not close is aborted on drop.
        self.ends(DbVerb::Close, async { provider.close(handle).await }).await;
    }

    /// A verb that ends something; answers whether it did. Where it fails or panics, that must not hide
    /// what led here: the work is committed by now, or failed with an error of its own.
    async fn ends(
        &self,
        verb: DbVerb,
        step: impl Future<Output = Result<(), ProviderError>>,
    ) -> bool {
        match caught(pin!(within(&*self.provider, verb, step))).await {
            Ok(Ok(())) => return true,
            // The text of it and its drop are not ours either, and each may panic.
            Ok(Err(error)) => {
                contain("the text of a provider's error", || {
                    tracing::debug!(%error, "a second session was not returned in order");
                });
                contain("the drop of a provider's error", || drop(error));
            }
            Err(payload) => {
                let message = panic_message(payload.into_inner());
                let provider = OneLine(self.provider.name());
                say(|| tracing::error!(%provider, %message, "a provider's {verb} panicked"));
            }
        }
        false
    }
}

impl<P: DbProvider> Drop for Second<P> {
    fn drop(&mut self) {
        // Neither is ours, and we may be unwinding. After a close the abort does nothing.
        if let Some(handle) = self.handle.take() {
            contain("a provider's abort", || self.provider.abort(&handle));
            contain("a provider's handle's drop", || drop(handle));
        }
    }
}

/// A step and the time it has.
async fn within<T>(
    provider: &impl DbProvider,
    verb: DbVerb,
    step: impl Future<Output = Result<T, ProviderError>>,
) -> Result<T, ProviderError> {
    let limit: Duration = provider.acquire_timeout();
    match tokio::time::timeout(limit, step).await {
        Ok(done) => done,
        Err(_) => {
            Err(ProviderError::TimedOut { provider: Arc::clone(provider.name()), verb, limit })
        }
    }
}
