//! What an attempt holds from its grant to its end, and how all of it comes back.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::runtime::Handle;
use tokio::time::timeout;
use tracing::Instrument;

use super::bill::Bill;
use super::meter::{Meter, Unrecorded};
use super::plan::Plan;
use super::run_error::overdue;
use crate::db::{AnyHandle, AnyProvider, Bound, DbVerb, ProviderError, Verbed};
use crate::error::panic_message;
use crate::grant::Grant;
use crate::money::Cost;
use crate::sync::Arc;

/// Everything an attempt holds.
///
/// An attempt that comes to its end closes its tenure itself. One that is dropped on the way, at
/// whatever await, or unwinds, leaves the same steps to a task on the runtime it was first polled
/// on; that task owns the grant, so [`drained`](crate::Admission::drained) waits for it. Where there
/// is no task to do it (the runtime is gone too), the handles are aborted on the spot.
///
/// ```text
///                 start()                 end() / abandon() / undo()
///  granted ─────────────────► working ─────────────────────────────► settled
///     │ dropped: close, roll     │ dropped: roll back, close,
///     ▼ the grant back           ▼ release the grant
///   a task                     a task
/// ```
///
/// Held throughout, in this order: connections go back before the permits that stand for them.
pub(super) struct Tenure {
    /// `None` once ended.
    held: Option<Held>,
    bill: Option<Bill>,
    plan: Arc<Plan>,
    meter: Arc<Meter>,
    runtime: Handle,
}

impl Tenure {
    pub(super) fn new(grant: Grant, bill: Bill, plan: &Arc<Plan>, runtime: &Handle) -> Self {
        let held = Held { grant: Arc::new(grant), open: Vec::new(), has_started: false };
        Self {
            held: Some(held),
            bill: Some(bill),
            plan: Arc::clone(plan),
            meter: Arc::new(Meter::new(plan)),
            runtime: runtime.clone(),
        }
    }

    pub(super) const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    pub(super) fn held(&mut self) -> &mut Held {
        self.held.as_mut().expect("a tenure is not used after its end")
    }

    /// From here on the work has happened: what only time brings back stays spent.
    pub(super) fn start(&mut self) {
        self.held().has_started = true;
    }

    /// The attempt's cost is known: tells the gates, and answers it. Later calls cost nothing.
    pub(super) fn settle_bill(&mut self, unrecorded: Unrecorded) -> Cost {
        let cost = self.meter.end(&self.plan, unrecorded);
        if let Some(bill) = self.bill.take() {
            bill.settle(&cost);
        }
        cost
    }

    /// Ends an attempt whose work did not start: closes what was taken, and rolls the grant back.
    pub(super) async fn undo(mut self) {
        // Un-commits: nothing was called.
        self.bill = None;
        self.finish().await;
    }

    /// Ends an attempt in order: what is still in a transaction is rolled back, the handles are
    /// closed in reverse, then the permits return.
    pub(super) async fn end(mut self) {
        self.finish().await;
    }

    async fn finish(&mut self) {
        // Through the tenure, and not taken out of it: dropped at an await in here, the rest is still
        // the task's to do.
        self.held().close().await;
        self.held = None;
    }

    /// Ends an attempt whose future had to be dropped: nothing is asked of its sessions but to be
    /// gone.
    pub(super) async fn abandon(mut self) {
        self.held().abort();
        self.finish().await;
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        // A session's drop may want the runtime it lives on, and we may be anywhere.
        let _inside = self.runtime.enter();
        if held.has_started {
            self.settle_bill(Unrecorded::AsReserved);
        }
        if !held.open.is_empty() {
            // On a runtime that has shut down the task is dropped here and now, which aborts.
            self.runtime.spawn(held.close_and_settle().in_current_span());
        }
    }
}

/// The grant, and the handles under it.
pub(super) struct Held {
    grant: Arc<Grant>,
    /// In the order they were acquired.
    open: Vec<OpenHandle>,
    has_started: bool,
}

struct OpenHandle {
    provider: Arc<dyn AnyProvider>,
    handle: AnyHandle,
    /// A transaction was begun, and not committed or rolled back yet.
    in_transaction: bool,
}

impl Held {
    pub(super) const fn grant(&self) -> &Arc<Grant> {
        &self.grant
    }

    pub(super) fn acquired(&mut self, provider: &Arc<dyn AnyProvider>, handle: AnyHandle) {
        let provider = Arc::clone(provider);
        self.open.push(OpenHandle { provider, handle, in_transaction: false });
    }

    /// The handles, for the job's use.
    pub(super) fn bound(&self, is_read_only: bool) -> Arc<Bound> {
        let mut bound = Bound::of_job(is_read_only);
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

    /// Commits each transaction and waits for its completion, in order; the names of those done are
    /// added to `durable` one by one.
    pub(super) async fn commit(
        &mut self,
        durable: &mut Vec<Arc<str>>,
    ) -> Result<(), ProviderError> {
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
        for open in self.open.iter_mut().rev() {
            if open.in_transaction {
                let rolled_back = open.bounded(DbVerb::Rollback).await;
                open.in_transaction = false;
                if let Err(error) = rolled_back {
                    tracing::warn!(%error, "a rollback failed; its session is given up");
                    open.abort();
                }
            }
        }
    }

    fn abort(&mut self) {
        for open in self.open.iter_mut().rev() {
            open.in_transaction = false;
            open.abort();
        }
    }

    /// Rolls back and closes, in reverse. A handle leaves the list when it is closed, so that
    /// whoever goes on after a drop in here goes on with the rest.
    async fn close(&mut self) {
        self.roll_back().await;
        while let Some(open) = self.open.last() {
            if let Err(error) = open.bounded(DbVerb::Close).await {
                tracing::warn!(%error, "a session could not be closed in order; it is given up");
                open.abort();
            }
            self.open.pop();
        }
    }

    async fn close_and_settle(mut self) {
        self.close().await;
    }
}

/// The last resort and the end of every tenure: what is still open is aborted, then the permits
/// return.
impl Drop for Held {
    fn drop(&mut self) {
        self.abort();
        // The sessions go before the permits that stand for them.
        drop(mem::take(&mut self.open));
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

    /// A panic in it is contained: it runs where others' permits are at stake.
    fn abort(&self) {
        let aborted = catch_unwind(AssertUnwindSafe(|| self.provider.abort(&self.handle)));
        if let Err(payload) = aborted {
            let (provider, message) = (self.provider.name(), panic_message(&*payload));
            tracing::error!(%provider, %message, "a provider's abort panicked");
        }
    }
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
