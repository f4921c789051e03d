//! What an attempt holds from its grant to its end, and how all of it comes back.

use std::pin::pin;

use tokio::runtime::Handle;
use tracing::Span;

use super::bill::Bill;
use super::held::Held;
use super::meter::{Meter, Unrecorded};
use super::plan::Plan;
use super::reports::Reports;
use crate::grant::Grant;
use crate::money::Cost;
use crate::spanned::{Quiet, Spanned};
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
    reports: Arc<Reports>,
    runtime: Handle,
}

impl Tenure {
    pub(super) fn new(grant: Grant, bill: Bill, plan: &Arc<Plan>, runtime: &Handle) -> Self {
        Self {
            held: Some(Held::new(grant)),
            bill: Some(bill),
            plan: Arc::clone(plan),
            meter: Arc::new(Meter::new(plan)),
            reports: Arc::default(),
            runtime: runtime.clone(),
        }
    }

    pub(super) const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    pub(super) const fn reports(&self) -> &Arc<Reports> {
        &self.reports
    }

    pub(super) fn held(&mut self) -> &mut Held {
        self.held.as_mut().expect("a tenure is not used after its end")
    }

    /// From here on the work has happened: what only time brings back stays spent.
    pub(super) fn start(&mut self) {
        self.held().start();
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
        if held.has_started() {
            self.settle_bill(Unrecorded::AsReserved);
        }
        // A session's drop may want the runtime it lives on, and we may be anywhere: even where a
        // thread ends, and has none to enter any more.
        let has_gone = Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed());
        let _inside = (!has_gone).then(|| self.runtime.enter());
        if !held.is_without_sessions() {
            // On a runtime that has shut down the task is dropped here and now, which aborts.
            let span = Quiet::new(Span::current);
            self.runtime.spawn(async move {
                let closing = pin!(Some(held.close_and_settle()));
                Spanned::new(&span, closing).await;
            });
        }
    }
}
