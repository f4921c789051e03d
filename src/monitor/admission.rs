//! The handle users hold.

use std::future::Future;
use std::panic::catch_unwind;

use tokio::runtime::Handle as Runtime;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::arrive::{Arrival, Asker};
use super::core::Life;
use super::face::{Shared, tick};
use super::handle::Handle;
use super::keep::{Borrowed, Owned};
use super::passage::Passed;
use super::taken::Taken;
use super::{AdmissionBuilder, Admit, AdmitRef, evaluator};
use crate::demand::Demand;
use crate::error::{AdmitError, StartError, TryAdmitError};
use crate::events::LimiterEvent;
use crate::grant::Grant;
use crate::snapshot::Snapshot;
use crate::sync::{Arc, spawn};

/// Grants whole demands, or lets jobs wait holding nothing.
///
/// A cheap handle: clones share one line, one lock and one evaluator, which ends with the last
/// handle. A future of [`admit`](Self::admit) is a handle, so what waits goes on waiting; a grant is
/// none, and can be settled after.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use admit::{Admission, CountingGate, Demand, Limits, TokenBucket};
///
/// let admission = Admission::builder().start()?;
/// let model = TokenBucket::new("gpt-x", Limits::per_minute(500, 30_000))?;
/// let http = CountingGate::new("http", 64)?;
///
/// let grant = admission.admit(Demand::new().tokens(&model, 1_800).permit(&http)).await?;
/// // … call the model …
/// drop(grant); // the place is free again; the tokens come back with time
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Admission {
    /// Taken out only as this drops.
    handle: Option<Arc<Handle>>,
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            Handle::let_go(handle);
        }
    }
}

impl Admission {
    /// A builder with nothing configured: no memory gate, no bound on the line.
    pub fn builder() -> AdmissionBuilder {
        AdmissionBuilder::default()
    }

    pub(super) fn of(shared: Shared) -> Self {
        Self { handle: Some(Arc::new(Handle { shared: Arc::new(shared) })) }
    }

    #[inline]
    const fn handle(&self) -> &Arc<Handle> {
        self.handle.as_ref().expect("taken out only as this drops")
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        self.handle().shared()
    }

    /// Starts the evaluator on the Tokio runtime of the caller.
    ///
    /// If that runtime goes away, everybody who waits fails with
    /// [`ShutDown`](AdmitError::ShutDown), and the admission may be started again on another.
    ///
    /// # Errors
    ///
    /// When it runs already, was stopped, or when there is no runtime or no timer here.
    pub fn start(&self) -> Result<(), StartError> {
        let check = |life: &Life| match life {
            Life::Unstarted => Ok(()),
            Life::Running(_) => Err(StartError::AlreadyStarted),
            Life::Stopped | Life::Closed(_) => Err(StartError::Stopped),
        };
        self.shared().hold(|core, _| check(&core.life))?;
        let runtime = Runtime::try_current().map_err(|_| StartError::NoRuntime)?;
        // Tokio has no question for this; a sleep on a runtime without a timer panics as it is made.
        catch_unwind(|| drop(tokio::time::sleep_until(Instant::now())))
            .map_err(|_| StartError::NoTimer)?;
        let generation = self.shared().hold(|core, out| {
            check(&core.life)?;
            core.generations += 1;
            core.life = Life::Running(core.generations);
            core.armed = None;
            out.wake_evaluator = true;
            Ok(core.generations)
        })?;
        // Outside the lock: a runtime that shuts down drops the task here and now.
        let watch = evaluator::Watch::new(Arc::clone(self.shared()), generation);
        spawn(&runtime, evaluator::run(watch));
        Ok(())
    }

    /// Stops for good: everybody who waits fails with [`ShutDown`](AdmitError::ShutDown), and so
    /// does every later admit.
    ///
    /// Grants held, and grants that landed before and were not seen yet, settle as ever. A second
    /// stop does nothing.
    pub fn stop(&self) {
        self.shared().hold(|core, out| {
            let now = tick(core, None);
            core.stop(now, out);
        });
    }

    /// Resolves when nobody waits and nothing is held.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only watches.
    pub async fn drained(&self) {
        loop {
            let mut changed = std::pin::pin!(self.shared().drained.notified());
            // Registered before the look, so that a drain between the two is not missed.
            changed.as_mut().enable();
            let is_drained = self.shared().hold(|core, _| {
                core.awaits_drain = true;
                core.is_drained()
            });
            if is_drained {
                return;
            }
            changed.await;
        }
    }

    /// Resolves when nothing is granted any more, with the reason.
    pub(crate) async fn over(&self) -> AdmitError {
        loop {
            let mut changed = std::pin::pin!(self.shared().over.notified());
            // Registered before the look, as above.
            changed.as_mut().enable();
            if let Some(error) = self.shared().hold(|core, _| core.life.refusal()) {
                return error;
            }
            changed.await;
        }
    }

    /// Takes a whole demand, or waits for it holding nothing.
    ///
    /// The future takes its place in the line when it is first polled. See [`Admit`] for its
    /// errors and its cancel safety.
    #[inline]
    pub fn admit(&self, demand: Demand) -> Admit {
        Admit::new(Owned::new(Arc::clone(self.handle()), demand))
    }

    /// The same for a job that ends before this handle and its demand do: both are borrowed.
    ///
    /// What [`admit`](Self::admit) counts for every job, one handle more and one copy of the demand,
    /// is not counted here, so this is the faster of the two; the rules are the same. Neither the
    /// future nor the grant is a handle.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use admit::{Admission, CountingGate, Demand};
    ///
    /// let admission = Admission::builder().start()?;
    /// let (http, render) = (CountingGate::new("http", 64)?, CountingGate::new("render", 4)?);
    /// let page = Demand::new().permit(&http).permit(&render);
    ///
    /// for _ in 0..1_000 {
    ///     let grant = admission.admit_ref(&page).await?;
    ///     // … fetch and render …
    ///     drop(grant);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn admit_ref<'a>(&'a self, demand: &'a Demand) -> AdmitRef<'a> {
        Admit::new(Borrowed::new(self.shared(), demand))
    }

    /// Takes a whole demand if that can be done now, by the same rules as a newcomer that would
    /// wait: it overtakes nobody.
    ///
    /// # Errors
    ///
    /// [`WouldWait`](TryAdmitError::WouldWait) names everything it is short on and leaves no trace.
    pub fn try_admit(&self, demand: Demand) -> Result<Grant, TryAdmitError> {
        // The grant's own, and there before the grant is counted: were it made after, a handle that
        // goes in between, on another thread or in a waker called on the way, would take the one
        // owner it sees for the one grant there is, and stop an admission that is in use.
        let handle = Arc::clone(self.handle());
        let shared = self.shared();
        if shared.pass_in(&demand, true).is_some() {
            return Ok(Grant::at_once(Owned::new(handle, demand), 0, Taken::at(shared.born)));
        }
        if let Some(Passed { at, .. }) = shared.pass_in_timed(&demand, true) {
            return Ok(Grant::at_once(Owned::new(handle, demand), 0, Taken::at(at)));
        }
        let early = self.shared().look_at_memory();
        let id = match self.shared().arrive_inline(&demand, early, true) {
            Ok(inline) => {
                return Ok(Grant::at_once(Owned::new(handle, demand), inline.id, inline.taken));
            }
            Err(id) => id,
        };
        let mut asker = Asker::passing(id, demand);
        match self.shared().arrive(&mut asker, early, true).0 {
            Arrival::Granted(taken) => {
                Ok(Grant::at_once(Owned::new(handle, asker.demand), asker.id, taken))
            }
            Arrival::WouldWait(shortages) => Err(TryAdmitError::WouldWait { shortages }),
            Arrival::Failed(error) => Err(TryAdmitError::Admit(error)),
            Arrival::Parked(_) | Arrival::NeedsWaker => {
                unreachable!("an asker that wants to go now never waits")
            }
        }
    }

    /// Admits, runs the future, and settles: the permits return when it ends, however it ends.
    ///
    /// It has no time limit and no token of its own. `tokio::time::timeout` around it spans the wait
    /// and the work; to bound the wait alone, use [`admit`](Self::admit).
    ///
    /// # Errors
    ///
    /// As [`Admit`]; the future's own output is handed back as it is.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves the line, or drops the future and then returns what it held.
    pub async fn run<F: Future>(&self, demand: Demand, future: F) -> Result<F::Output, AdmitError> {
        let grant = self.admit(demand).await?;
        let output = future.await;
        drop(grant);
        Ok(output)
    }

    /// How many jobs wait.
    #[must_use]
    pub fn queue_len(&self) -> usize {
        self.shared().hold(|core, _| core.line.len())
    }

    /// Every step of every job from now on.
    ///
    /// Admission never waits for a subscriber: a slow one loses the oldest events and is told how
    /// many ([`RecvError::Lagged`](broadcast::error::RecvError::Lagged)). Once somebody subscribed,
    /// events are built for good; before, they cost nothing.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<LimiterEvent> {
        let receiver = self.shared().publisher.subscribe();
        self.shared().hold(|core, _| core.teller.watch());
        receiver
    }

    /// How everything stands at this instant.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.shared().hold(|core, out| {
            let now = tick(core, None);
            core.snapshot(now, out)
        });
        snapshot.events_dropped = self.shared().publisher.dropped();
        snapshot
    }

    /// How much work the monitor has done.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn counters(&self) -> super::Counters {
        self.shared().hold(|core, _| core.counters)
    }

    /// Asserts the monitor's invariants.
    ///
    /// # Panics
    ///
    /// When one does not hold, which is a defect of this crate, or of an account.
    #[cfg(any(test, feature = "testing"))]
    pub fn check(&self) {
        self.shared().hold(|core, _| core.check());
    }
}
