//! The future of a grant.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::arrive::{Arrival, Asker, Want};
use super::face::NeedsWaker;
use super::handle::Handle;
use super::line::{Key, Outcome};
use crate::demand::Demand;
use crate::error::AdmitError;
use crate::grant::Grant;
use crate::sync::Arc;

/// Waits for a whole demand: see [`admit`](crate::Admission::admit).
///
/// It takes its place in the line when first polled, not when created. Any executor may poll it; on
/// Tokio it takes part in the cooperative budget, as Tokio's own primitives do. It counts as a
/// handle of its admission.
///
/// # Errors
///
/// It resolves to an [`AdmitError`] when the demand can never be granted, an account refuses or is
/// broken, the token is cancelled, time runs out, the line is full, or the admission ends.
///
/// # Cancel safety
///
/// Cancel safe. Dropping it leaves the line in O(log n); a grant that landed and was never seen is
/// rolled back, amounts that would come back only with time included.
///
/// # Panics
///
/// When polled again after it resolved.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use admit::{Admission, AdmitError, CountingGate, Demand};
/// use std::time::Duration;
///
/// let admission = Admission::builder().start()?;
/// let gate = CountingGate::new("render", 1)?;
/// let held = admission.admit(Demand::new().permit(&gate)).await?;
///
/// let late = admission.admit(Demand::new().permit(&gate)).within(Duration::from_millis(5)).await;
/// assert!(matches!(late, Err(AdmitError::TimedOut { .. })));
/// # Ok(())
/// # }
/// ```
#[must_use = "a demand is admitted only when this is polled: `.await` it"]
pub struct Admit {
    /// Handed on to the grant.
    handle: Option<Arc<Handle>>,
    state: State,
    within: Option<Duration>,
    token: Option<Token>,
}

struct Token {
    token: CancellationToken,
    /// Made at the first poll that has to wait for it.
    cancelled: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

enum State {
    /// Not polled yet.
    New(Demand),
    /// In the line, or landed and not collected.
    Parked(Key),
    /// Decided, and held back only by the cooperative budget.
    Decided(Result<Grant, AdmitError>),
    Over,
}

impl Admit {
    #[inline]
    pub(super) const fn new(handle: Arc<Handle>, demand: Demand) -> Self {
        Self { handle: Some(handle), state: State::New(demand), within: None, token: None }
    }

    /// Leaves the line with [`Cancelled`](AdmitError::Cancelled) when the token is cancelled.
    ///
    /// A cancelled token wins over a grant that just landed: the grant is rolled back. To be said
    /// before the first poll; a second token replaces the first.
    pub fn cancelled_by(mut self, token: CancellationToken) -> Self {
        self.token = Some(Token { token, cancelled: None });
        self
    }

    /// Leaves the line with [`TimedOut`](AdmitError::TimedOut) when it has waited this long.
    ///
    /// Counted from the first poll. A grant that landed wins over a time-out. Zero means: now or
    /// not at all. A duration too long to be added to the clock is no limit. To be said before the
    /// first poll, and it needs a started admission.
    pub const fn within(mut self, limit: Duration) -> Self {
        self.within = Some(limit);
        self
    }

    /// Whether the token is cancelled; if not, the task hears when it is.
    fn is_cancelled(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(Token { token, cancelled }) = &mut self.token else { return false };
        if token.is_cancelled() {
            return true;
        }
        match &self.state {
            // Whether there is anything to wait for is not known yet.
            State::New(_) => false,
            _ => cancelled
                .get_or_insert_with(|| Box::pin(token.clone().cancelled_owned()))
                .as_mut()
                .poll(cx)
                .is_ready(),
        }
    }

    /// Leaves, whatever the state: the line, or a grant nobody has seen.
    fn leave(&mut self) {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Parked(key) => {
                if let Some(handle) = &self.handle {
                    handle.shared().withdraw(key);
                }
            }
            State::Decided(Ok(grant)) => {
                grant.rollback();
            }
            State::New(_) | State::Decided(Err(_)) | State::Over => {}
        }
    }

    /// The long way of the first poll: goes at once, or takes a place in the line.
    #[inline(never)]
    fn arrive(
        &mut self,
        handle: Arc<Handle>,
        mut asker: Asker,
        early: Option<Instant>,
        cx: &Context<'_>,
    ) -> State {
        loop {
            let (arrival, grants) = handle.shared().arrive(&mut asker, early);
            match arrival {
                Arrival::Granted(taken) => {
                    handle.has_become_grant(grants);
                    let grant = Grant::at_once(handle, asker.id, asker.demand, taken);
                    return State::Decided(Ok(grant));
                }
                Arrival::Parked(key) => {
                    self.handle = Some(handle);
                    return State::Parked(key);
                }
                Arrival::Failed(error) => {
                    self.handle = Some(handle);
                    return State::Decided(Err(error));
                }
                Arrival::NeedsWaker => {
                    // Cloned outside the lock, then asked again: it has taken no place yet.
                    let waker = Some(cx.waker().clone());
                    asker.want = Want::Wait { within: self.within, waker };
                }
                Arrival::WouldWait(_) => unreachable!("an asker that may wait is parked"),
            }
        }
    }

    fn collect(&mut self, key: Key, cx: &Context<'_>) -> Option<Result<Grant, AdmitError>> {
        let handle = self.handle.as_ref()?;
        let outcome = match handle.shared().collect(key, cx.waker(), None) {
            Ok(outcome) => outcome,
            Err(NeedsWaker) => handle
                .shared()
                .collect(key, cx.waker(), Some(cx.waker().clone()))
                .expect("a fresh waker is taken as it is"),
        };
        let (outcome, grants) = outcome?;
        match outcome {
            Outcome::Granted(landing) => {
                let handle = self.handle.take()?;
                handle.has_become_grant(grants);
                Some(Ok(Grant::landed(handle, *landing)))
            }
            Outcome::Failed(error) => Some(Err(error)),
        }
    }
}

impl Future for Admit {
    type Output = Result<Grant, AdmitError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.is_cancelled(cx) {
            if let (State::New(demand), Some(handle)) = (&this.state, &this.handle) {
                handle.shared().cancelled_unasked(demand);
            }
            if matches!(this.state, State::Over) {
                panic!("`Admit` polled after it resolved");
            }
            this.leave();
            this.state = State::Decided(Err(AdmitError::Cancelled));
        }
        if let State::New(demand) = &mut this.state
            && let Some(handle) = this.handle.take()
        {
            let demand = std::mem::take(demand);
            this.state = State::Over;
            let early = handle.shared().look_at_memory();
            let id = match handle.shared().arrive_inline(&demand, early) {
                Ok(inline) => {
                    handle.has_become_grant(inline.grants);
                    // The common end: the grant is made where it is handed over, and not stored
                    // first.
                    if let Poll::Ready(progress) = tokio::task::coop::poll_proceed(cx) {
                        progress.made_progress();
                        let grant = Grant::at_once(handle, inline.id, demand, inline.taken);
                        return Poll::Ready(Ok(grant));
                    }
                    let grant = Grant::at_once(handle, inline.id, demand, inline.taken);
                    this.state = State::Decided(Ok(grant));
                    return Poll::Pending;
                }
                Err(id) => id,
            };
            this.state = this.arrive(handle, Asker::waiting(id, demand, this.within), early, cx);
            if matches!(this.state, State::Parked(_)) {
                // In the line now; the token may have been cancelled since it was looked at.
                if this.is_cancelled(cx) {
                    this.leave();
                    this.state = State::Decided(Err(AdmitError::Cancelled));
                } else {
                    return Poll::Pending;
                }
            }
        }
        if let State::Parked(key) = this.state {
            match this.collect(key, cx) {
                Some(decided) => this.state = State::Decided(decided),
                None => return Poll::Pending,
            }
        }
        // Only the handing over takes from the task's budget. When that is spent, the result waits
        // here, where a drop or a cancelled token still finds it.
        let progress = ready!(tokio::task::coop::poll_proceed(cx));
        match std::mem::replace(&mut this.state, State::Over) {
            State::Decided(result) => {
                progress.made_progress();
                Poll::Ready(result)
            }
            _ => panic!("`Admit` polled after it resolved"),
        }
    }
}

impl Drop for Admit {
    fn drop(&mut self) {
        if !matches!(self.state, State::Over) {
            self.leave();
        }
        if let Some(handle) = self.handle.take() {
            Handle::let_go(handle);
        }
    }
}

impl fmt::Debug for Admit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::New(_) => "not polled yet",
            State::Parked(_) => "waiting",
            State::Decided(_) => "decided",
            State::Over => "over",
        };
        f.debug_struct("Admit").field("state", &state).finish_non_exhaustive()
    }
}
