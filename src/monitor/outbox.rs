//! What a decision leaves to be done once the lock is free.
//!
//! Wakers, their drops, accounts whose last owner we may be, log lines and events all run code that
//! is not ours. Under the lock they are only put here.

use std::cell::Cell;
use std::task::Waker;

use smallvec::SmallVec;

use super::overdue::Overdue;
use crate::account::Account;
use crate::caught::{contain, say};
use crate::demand::Demand;
use crate::error::Defect;
use crate::events::LimiterEvent;
use crate::sync::Arc;

/// Something to say once the lock is free.
pub(crate) enum Line {
    /// An account broke the contract, said once an account.
    BrokenWord { account: Arc<str>, what: &'static str },
    /// An account panicked where that fails no job.
    Panic { account: Arc<str>, method: &'static str, message: String },
    /// An account was taken out of use.
    Quarantined { account: Arc<str>, message: String },
    /// More was given back than was held.
    Clamped { account: Arc<str>, given: u64, credited: u64 },
    /// Somebody waits and no evaluator runs.
    NotStarted,
    /// The head waits too long.
    Overdue(Box<Overdue>),
    /// The admission closed.
    Closed(Arc<Defect>),
}

/// Everything that waits for the lock to be free.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) wakers: SmallVec<[Waker; 4]>,
    /// Dropped, not woken.
    pub(crate) old_wakers: SmallVec<[Waker; 1]>,
    pub(crate) demands: SmallVec<[Demand; 1]>,
    pub(crate) accounts: Vec<Arc<dyn Account>>,
    pub(crate) lines: Vec<Line>,
    pub(crate) events: Vec<LimiterEvent>,
    /// Events were queued and wait to be sent.
    pub(crate) has_events: bool,
    /// Nobody waits and nothing is held any more.
    pub(crate) is_drained: bool,
    /// Nothing is granted any more.
    pub(crate) is_over: bool,
    /// The evaluator has something to do.
    pub(crate) wake_evaluator: bool,
    /// A release woke somebody itself.
    pub(crate) serves: bool,
}

thread_local! {
    /// Whether a release is waking those it served, on this thread.
    static SERVING: Cell<bool> = const { Cell::new(false) };
}

impl Outbox {
    /// Whether this is called by a waker that a release called.
    ///
    /// A waker may run its job then and there, and the job end: were its release to serve again, a
    /// long line would be a deep stack. So that one leaves it to the evaluator.
    pub(crate) fn is_serving() -> bool {
        SERVING.get()
    }

    /// Wakes one that a release served.
    pub(crate) fn serve_one(waker: Waker) {
        SERVING.set(true);
        contain("a waker", || waker.wake());
        SERVING.set(false);
    }

    /// Does it all, but for the events and the evaluator, which are the face's.
    ///
    /// A waker that panics must not keep the others from being woken, nor an account that panics as
    /// it is dropped: it may be the evaluator that is running here, or the drop of a grant.
    pub(crate) fn deliver(&mut self) {
        let was_serving = SERVING.get();
        if self.serves {
            SERVING.set(true);
        }
        for waker in self.wakers.drain(..) {
            contain("a waker", || waker.wake());
        }
        SERVING.set(was_serving);
        for waker in self.old_wakers.drain(..) {
            contain("a waker's drop", || drop(waker));
        }
        for demand in self.demands.drain(..) {
            contain("an account's drop", || drop(demand));
        }
        for account in self.accounts.drain(..) {
            contain("an account's drop", || drop(account));
        }
        for line in self.lines.drain(..) {
            say(|| line.log());
        }
    }
}

impl Line {
    fn log(self) {
        match self {
            Self::BrokenWord { account, what } => {
                tracing::error!(%account, "the account breaks its contract: {what}");
            }
            Self::Panic { account, method, message } => {
                tracing::error!(%account, method, "the account panicked: {message}");
            }
            Self::Quarantined { account, message } => tracing::error!(
                %account,
                "the account panicked while it was given back to and is out of use: {message}"
            ),
            Self::Clamped { account, given, credited } => tracing::warn!(
                %account,
                given,
                credited,
                "more was given back than was held; the rest is ignored"
            ),
            Self::NotStarted => tracing::warn!(
                "a job waits on an admission that is not started; call start() on it"
            ),
            Self::Overdue(overdue) => tracing::warn!("{overdue}"),
            Self::Closed(defect) => tracing::error!("admission closed after a defect: {defect}"),
        }
    }
}
