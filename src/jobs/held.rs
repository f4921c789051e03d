//! The grant and the sessions under it, and how they end.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;

use tokio::time::timeout;

use super::run_error::overdue;
use crate::caught::{caught, say};
use crate::db::{AnyHandle, AnyProvider, Bound, DbVerb, ProviderError, Verbed};
use crate::error::panic_message;
use crate::grant::Grant;
use crate::one_line::OneLine;
use crate::sync::{Arc, AtomicBool, Ordering};

/// The grant, and the handles under it.
pub(super) struct Held {
    grant: Arc<Grant>,
    /// In the order they were acquired.
    open: Vec<OpenHandle>,
    has_started: bool,
    /// Set before the first step that ends a transaction: a task of the job's that is still there gets
    /// no session after it.
    is_over: Arc<AtomicBool>,
}

struct OpenHandle {
    provider: Arc<dyn AnyProvider>,
    handle: AnyHandle,
    /// A transaction was begun, and not committed or rolled back yet.
    in_transaction: bool,
}

impl Held {
    pub(super) fn new(grant: Grant) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        Self { grant: Arc::new(grant), open: Vec::new(), has_started: false, is_over }
    }

    pub(super) const fn has_started(&self) -> bool {
        self.has_started
    }

    /// From here on the work has happened: what only time brings back stays spent.
    pub(super) const fn start(&mut self) {
        self.has_started = true;
    }

    pub(super) const fn is_without_sessions(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) const fn grant(&self) -> &Arc<Grant> {
        &self.grant
    }

    pub(super) fn acquired(&mut self, provider: &Arc<dyn AnyProvider>, handle: AnyHandle) {
        let provider = Arc::clone(provider);
        self.open.push(OpenHandle { provider, handle, in_transaction: false });
    }

    /// The handles, for the job's use.
    pub(super) fn bound(&self, is_read_only: bool) -> Arc<Bound> {
        let mut bound = Bound::of_job(is_read_only, &self.is_over);
        for OpenHandle { provider, handle, .. } in &self.open {
            bound.add(provider.key(), Arc::clone(provider.name()), Arc::clone(handle));
        }
        Arc::new(bound)
    }

    /// Opens a transaction on each handle, in order.
    pub(super) async fn begin(&mut self) -> Result<(), ProviderError> {
        for open in &mut self.open {
            // Before it is: a begin dropped or failed half-way may have begun.
            open.in_transaction = true;
            open.bounded(DbVerb::Begin).await?;
        }
        Ok(())
    }

    /// The database whose transaction was opened last, or is being opened.
    pub(super) fn last_begun(&self) -> Option<&Arc<str>> {
        let begun = self.open.iter().rev().find(|open| open.in_transaction);
        begun.map(|open| open.provider.name())
    }

    /// Commits each transaction and waits for its completion, in order; the names of those done are
    /// added to `durable` one by one.
    pub(super) async fn commit(
        &mut self,
        durable: &mut Vec<Arc<str>>,
    ) -> Result<(), ProviderError> {
        self.is_over.store(true, Ordering::SeqCst);
        for open in &mut self.open {
            // Not bounded: a commit cut off may be durable or not, which is for the run's own time
            // to risk.
            open.verb(DbVerb::Commit).await?;
            open.verb(DbVerb::AwaitCompletion).await?;
            open.in_transaction = false;
            durable.push(Arc::clone(open.provider.name()));
        }
        Ok(())
    }

    /// Rolls back what is in a transaction, in reverse. A failure is logged: it must not hide what
    /// led here, and `close` makes an end of the session anyway.
    pub(super) async fn roll_back(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        for open in self.open.iter_mut().rev() {
            if open.in_transaction {
                open.end(DbVerb::Rollback).await;
                open.in_transaction = false;
            }
        }
    }

    pub(super) fn abort(&mut self) {
        for open in self.open.iter_mut().rev() {
            open.in_transaction = false;
            open.abort();
        }
    }

    /// Rolls back and closes, in reverse. A handle leaves the list when it is closed, so that
    /// whoever goes on after a drop in here goes on with the rest.
    pub(super) async fn close(&mut self) {
        self.roll_back().await;
        while let Some(open) = self.open.last() {
            open.end(DbVerb::Close).await;
            if let Some(closed) = self.open.pop() {
                closed.drop_contained();
            }
        }
    }

    pub(super) async fn close_and_settle(mut self) {
        self.close().await;
    }
}

/// The last resort and the end of every tenure: what is still open is aborted, then the permits
/// return.
impl Drop for Held {
    fn drop(&mut self) {
        self.abort();
        // The sessions go before the permits that stand for them.
        while let Some(aborted) = self.open.pop() {
            aborted.drop_contained();
        }
        if self.has_started {
            self.grant.release();
        } else {
            self.grant.rollback();
        }
    }
}

impl OpenHandle {
    fn verb(&self, verb: DbVerb) -> Verbed<'_> {
        let Self { provider, handle, .. } = self;
        match verb {
            DbVerb::Begin => provider.begin(handle),
            DbVerb::Commit => provider.commit(handle),
            DbVerb::AwaitCompletion => provider.await_completion(handle),
            DbVerb::Rollback => provider.rollback(handle),
            DbVerb::Close => provider.close(handle),
            DbVerb::Acquire => unreachable!("a handle was acquired"),
        }
    }

    async fn bounded(&self, verb: DbVerb) -> Result<(), ProviderError> {
        bounded(&*self.provider, verb, self.verb(verb)).await
    }

    /// A verb that ends something. Where it fails or panics the session is given up, and the rest
    /// goes on: others' sessions and permits are at stake, and what led here must not be hidden.
    async fn end(&self, verb: DbVerb) {
        match caught(pin!(self.bounded(verb))).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => self.log_failure(verb, error),
            Err(payload) => self.log_panic(format_args!("{verb}"), payload.into_inner()),
        }
        self.abort();
    }

    fn abort(&self) {
        let aborted = catch_unwind(AssertUnwindSafe(|| self.provider.abort(&self.handle)));
        if let Err(payload) = aborted {
            self.log_panic(format_args!("abort"), payload);
        }
    }

    /// Drops the handle, and the session in it where the job has left no clone of its resources.
    fn drop_contained(self) {
        let Self { provider, handle, .. } = self;
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(handle))) {
            log_panic(&*provider, format_args!("handle's drop"), payload);
        }
    }

    /// Says what the provider failed with. The text of it and its drop are not ours either.
    fn log_failure(&self, verb: DbVerb, error: ProviderError) {
        let logged = catch_unwind(AssertUnwindSafe(|| {
            tracing::warn!(%error, "{verb} failed; the session is given up");
        }));
        // Apart: where a listener panics it would be dropped as that unwinds.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(error)));
        for payload in [logged, dropped].into_iter().filter_map(Result::err) {
            self.log_panic(format_args!("error of a {verb}"), payload);
        }
    }

    fn log_panic(&self, what: fmt::Arguments<'_>, payload: Box<dyn Any + Send>) {
        log_panic(&*self.provider, what, payload);
    }
}

/// Says that a provider panicked where a panic must not go on.
fn log_panic(provider: &dyn AnyProvider, what: fmt::Arguments<'_>, payload: Box<dyn Any + Send>) {
    say(|| {
        let (provider, message) = (OneLine(provider.name()), panic_message(payload));
        tracing::error!(%provider, %message, "a provider's {what} panicked");
    });
}

/// A verb, for as long as its provider allows.
pub(super) async fn bounded<T>(
    provider: &dyn AnyProvider,
    verb: DbVerb,
    work: Verbed<'_, T>,
) -> Result<T, ProviderError> {
    let limit = provider.limit();
    match timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(overdue(provider.name(), verb, limit)),
    }
}
