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
use super::keep::{Borrowed, Keep, Owned};
use super::line::{Key, Outcome};
use super::passage::Passed;
use super::taken::Taken;
use crate::error::AdmitError;
use crate::grant::Grant;

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
pub struct Admit<K: Keep = Owned> {
    state: State<K>,
    within: Option<Duration>,
    token: Option<Token>,
}

struct Token {
    token: CancellationToken,
    /// Made at the first poll that has to wait for it.
    cancelled: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

/// What it keeps is handed on to the grant.
enum State<K: Keep> {
    /// Not polled yet. What it keeps is taken out as it is decided: moving the whole state costs.
    New(Option<K>),
    /// In the line, or landed and not collected.
    Parked(K, Key),
    /// Decided, and held back only by the cooperative budget. One that failed keeps nothing.
    Decided(Result<Grant<K>, AdmitError>),
    Over,
}

/// The future of [`admit_ref`](crate::Admission::admit_ref): an [`Admit`] that borrows.
pub type AdmitRef<'a> = Admit<Borrowed<'a>>;

impl<K: Keep> Admit<K> {
    #[inline]
    pub(super) const fn new(keep: K) -> Self {
        Self { state: State::New(Some(keep)), within: None, token: None }
    }

    /// Leaves the line with [`Cancelled`](AdmitError::Cancelled) when the token is cancelled. What is
    /// done under the grant is not ended by it.
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
            State::New(Some(keep)) => keep.let_go(),
            State::Parked(keep, key) => {
                keep.shared().withdraw(key);
                keep.let_go();
            }
            State::Decided(Ok(grant)) => {
                grant.rollback();
            }
            State::New(None) | State::Decided(Err(_)) | State::Over => {}
        }
    }

    /// The long way of the first poll: goes at once, or takes a place in the line.
    #[inline(never)]
    fn arrive(&self, mut keep: K, id: u64, early: Option<Instant>, cx: &Context<'_>) -> State<K> {
        let mut asker = Asker::waiting(id, keep.lend(), self.within);
        loop {
            let (arrival, grants) = keep.shared().arrive(&mut asker, early, K::OWNS);
            match arrival {
                Arrival::Granted(taken) => {
                    keep.has_become_grant(grants);
                    keep.landed(asker.demand);
                    return State::Decided(Ok(Grant::at_once(keep, asker.id, taken)));
                }
                Arrival::Parked(key) => return State::Parked(keep, key),
                Arrival::Failed(error) => {
                    keep.let_go();
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

    fn collect(&mut self, cx: &Context<'_>) -> Option<Result<Grant<K>, AdmitError>> {
        let State::Parked(keep, key) = &self.state else { return None };
        let (shared, key) = (keep.shared(), *key);
        let outcome = match shared.collect(key, cx.waker(), None, K::OWNS) {
            Ok(outcome) => outcome,
            Err(NeedsWaker) => shared
                .collect(key, cx.waker(), Some(cx.waker().clone()), K::OWNS)
                .expect("a fresh waker is taken as it is"),
        };
        let (outcome, grants) = outcome?;
        let State::Parked(keep, _) = std::mem::replace(&mut self.state, State::Over) else {
            unreachable!("it was parked just now")
        };
        match outcome {
            Outcome::Granted(landing) => {
                keep.has_become_grant(grants);
                Some(Ok(Grant::landed(keep, landing)))
            }
            Outcome::Failed(error) => {
                keep.let_go();
                Some(Err(error))
            }
        }
    }
}

impl<K: Keep> Future for Admit<K> {
    type Output = Result<Grant<K>, AdmitError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let State::New(new) = &mut this.state
            && this.token.is_none()
            && let Some(keep) = new
            && let Some(grants) = keep.shared().pass_in(keep.demand(), K::OWNS)
            && let Some(keep) = new.take()
        {
            this.state = State::Over;
            // The common end: the grant is made where it is handed over, and not stored first.
            keep.has_become_grant(grants);
            let taken = Taken::at(keep.shared().born);
            if let Poll::Ready(progress) = tokio::task::coop::poll_proceed(cx) {
                progress.made_progress();
                return Poll::Ready(Ok(Grant::at_once(keep, 0, taken)));
            }
            this.state = State::Decided(Ok(Grant::at_once(keep, 0, taken)));
            return Poll::Pending;
        }
        this.poll_on(cx)
    }
}

impl<K: Keep> Admit<K> {
    /// The rest of a poll, after the short way in did not lead through.
    #[inline(never)]
    fn poll_on(&mut self, cx: &mut Context<'_>) -> Poll<Result<Grant<K>, AdmitError>> {
        let this = self;
        if this.is_cancelled(cx) {
            if let State::New(Some(keep)) = &this.state {
                keep.shared().cancelled_unasked(keep.demand());
            }
            if matches!(this.state, State::Over) {
                panic!("`Admit` polled after it resolved");
            }
            this.leave();
            this.state = State::Decided(Err(AdmitError::Cancelled));
        }
        if let State::New(new) = &mut this.state
            && let Some(keep) = new.take()
        {
            this.state = State::Over;
            // With a token it has not been tried yet.
            let at = keep.shared().born;
            let passed = keep.shared().pass_in(keep.demand(), K::OWNS);
            let passed = match passed {
                Some(grants) => Some(Passed { at, grants }),
                None => keep.shared().pass_in_timed(keep.demand(), K::OWNS),
            };
            if let Some(Passed { at, grants }) = passed {
                keep.has_become_grant(grants);
                let taken = Taken::at(at);
                if let Poll::Ready(progress) = tokio::task::coop::poll_proceed(cx) {
                    progress.made_progress();
                    return Poll::Ready(Ok(Grant::at_once(keep, 0, taken)));
                }
                this.state = State::Decided(Ok(Grant::at_once(keep, 0, taken)));
                return Poll::Pending;
            }
            let early = keep.shared().look_at_memory();
            let id = match keep.shared().arrive_inline(keep.demand(), early, K::OWNS) {
                Ok(inline) => {
                    keep.has_become_grant(inline.grants);
                    if let Poll::Ready(progress) = tokio::task::coop::poll_proceed(cx) {
                        progress.made_progress();
                        return Poll::Ready(Ok(Grant::at_once(keep, inline.id, inline.taken)));
                    }
                    let grant = Grant::at_once(keep, inline.id, inline.taken);
                    this.state = State::Decided(Ok(grant));
                    return Poll::Pending;
                }
                Err(id) => id,
            };
            this.state = this.arrive(keep, id, early, cx);
            if matches!(this.state, State::Parked(..)) {
                // In the line now; the token may have been cancelled since it was looked at.
                if this.is_cancelled(cx) {
                    this.leave();
                    this.state = State::Decided(Err(AdmitError::Cancelled));
                } else {
                    return Poll::Pending;
                }
            }
        }
        if matches!(this.state, State::Parked(..)) {
            let Some(decided) = this.collect(cx) else { return Poll::Pending };
            if let Poll::Ready(progress) = tokio::task::coop::poll_proceed(cx) {
                progress.made_progress();
                return Poll::Ready(decided);
            }
            this.state = State::Decided(decided);
            return Poll::Pending;
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

impl<K: Keep> Drop for Admit<K> {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.state, State::Over) {
            self.leave();
        }
    }
}

impl<K: Keep> fmt::Debug for Admit<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::New(_) => "not polled yet",
            State::Parked(..) => "waiting",
            State::Decided(_) => "decided",
            State::Over => "over",
        };
        f.debug_struct("Admit").field("state", &state).finish_non_exhaustive()
    }
}
