//! The account contract: what an author writes, and the laws the monitor relies on.

use tokio::time::Instant;

use super::{AccountLink, Ask, Charge, InPassage, Refusal, Replenishment};
use crate::amount::Amount;
use crate::events::Category;
use crate::sync::Arc;
use crate::upstream::UpstreamFailure;

/// One limit: a counter that can say "would this fit now?" and be debited.
///
/// An account never makes anyone wait; the monitor does. It changes its own state only under its
/// own lock (or by an acquire-release read-modify-write of one word), and its methods are called
/// under the admission's lock: they are short, they do not block, and they **must not call an
/// [`Admission`](crate::Admission) or settle a [`Grant`](crate::Grant)**.
///
/// # Laws
///
/// - **Monotone.** An account that says no to an ask says no to every larger one in the same
///   state, and one that cannot cover the reservation alone never says yes on top of it.
/// - **Announced.** A change of the account's own that may turn a no into a yes, other than the
///   clock, is announced with [`AccountLink::grew`]; one after which it may refuse outright with
///   [`AccountLink::may_refuse`]. [`give`](Self::give) and [`reconcile`](Self::reconcile) never
///   announce: the monitor calls them and knows.
/// - **Punctual.** With no event, a no stays a no until the instant
///   [`earliest_fit`](Self::earliest_fit) named, and then it is a yes.
///
/// The feature `testing` has a contract test that checks the three on an account of your own, and
/// that what it says with [`reads_clock`](Self::reads_clock), [`is_fresh`](Self::is_fresh) and
/// [`reconcile`](Self::reconcile) is so.
///
/// # Panics
///
/// A panic in a method is contained: in `fits`, `try_take` or `earliest_fit` it fails the one job
/// that was asked about, as [`AdmitError::AccountFault`](crate::AdmitError::AccountFault); in
/// `give` at settlement it quarantines the account; in feedback it is logged; in a reading the
/// field stays empty. None of this holds under `panic = "abort"`.
///
/// # Examples
///
/// The smallest honest account: a gate of a fixed size.
///
/// ```
/// use admit::{Account, AccountLink, Amount, Ask, Category, Charge, Refusal, Replenishment};
/// use std::sync::Mutex;
/// use tokio::time::Instant;
///
/// struct Renderers { link: AccountLink, busy: Mutex<u32> }
///
/// impl Account for Renderers {
///     fn link(&self) -> &AccountLink { &self.link }
///     fn category(&self) -> Category { Category::Other("renderers".into()) }
///     fn capacity(&self) -> u64 { 4 }
///     fn in_use(&self, _: Instant) -> u64 { u64::from(*self.busy.lock().unwrap()) }
///     fn summary(&self, now: Instant) -> String { format!("{} of 4 busy", self.in_use(now)) }
///     fn replenishment(&self) -> Replenishment { Replenishment::Release }
///     fn reads_clock(&self) -> bool { false }
///     fn earliest_fit(&self, _: &Ask) -> Option<Instant> { None }
///
///     fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
///         if ask.mine.requests > 4 || ask.mine.is_saturated() {
///             return Err(Refusal::never_fits(ask.mine, "4 permits"));
///         }
///         let busy = *self.busy.lock().unwrap();
///         Ok(busy.saturating_add(ask.total().requests) <= 4)
///     }
///
///     fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
///         let fits = self.fits(ask)?; // nobody else takes in between: this gate has one admission
///         if fits {
///             *self.busy.lock().unwrap() += ask.mine.requests;
///         }
///         Ok(fits.then_some(ask.now))
///     }
///
///     fn give(&self, charge: &Charge, _: Instant) -> Amount {
///         *self.busy.lock().unwrap() -= charge.amount.requests;
///         charge.amount
///     }
/// }
/// ```
pub trait Account: Send + Sync + 'static {
    /// The embedded link: name, identity, announcements.
    ///
    /// The link is the identity: an account that wraps another and answers with the other's link is,
    /// to every admission, that account. One demand then names one of the two, not both, or the first
    /// named is asked for the sum; a snapshot shows the one that was seen first. A wrapper that is a
    /// limit of its own has a link of its own.
    fn link(&self) -> &AccountLink;

    /// What kind of limit this is, for events and snapshots.
    fn category(&self) -> Category;

    /// The most that can be in use, in the units [`in_use`](Self::in_use) counts.
    fn capacity(&self) -> u64;

    /// How much is in use now.
    fn in_use(&self, now: Instant) -> u64;

    /// A word about an unusual state (`blocked`, `throttle:1.5x`); `None` when nominal.
    fn indicator(&self, now: Instant) -> Option<String> {
        let _ = now;
        None
    }

    /// One line naming the account's numbers.
    fn summary(&self, now: Instant) -> String;

    /// How what was taken comes back. Read once.
    ///
    /// There is no default: a wrong guess leaks permits one way and disables the limit the other.
    fn replenishment(&self) -> Replenishment;

    /// Would `mine` fit now with `reserved_ahead` set aside? Changes nothing.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when `mine` alone can never fit the configuration, or when the account refuses
    /// everyone. Not fitting now, or not beside the reservation, is `Ok(false)`.
    fn fits(&self, ask: &Ask) -> Result<bool, Refusal>;

    /// The same check and the debit in one step, under the account's own lock.
    ///
    /// Answers the instant the take was filed at, `None` when it does not fit.
    ///
    /// # Errors
    ///
    /// As for [`fits`](Self::fits).
    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal>;

    /// Credits a charge back and answers what was credited.
    ///
    /// Called at release for an account of [`Replenishment::Release`], and at rollback and as
    /// compensation inside a failed attempt for all. A give of more than is held is clamped.
    fn give(&self, charge: &Charge, now: Instant) -> Amount;

    /// When [`fits`](Self::fits) becomes true from the clock alone; `None` when only an event can
    /// change the answer. An instant in the past means now.
    fn earliest_fit(&self, ask: &Ask) -> Option<Instant>;

    /// Corrects a charge to what the work really used, and answers what the charge now holds: that
    /// is what a [`give`](Self::give) puts back later.
    ///
    /// The default leaves the charge as it is.
    fn reconcile(&self, charge: &Charge, actual_units: u64, now: Instant) -> Amount {
        let _ = (actual_units, now);
        charge.amount
    }

    /// The work under this charge succeeded.
    fn on_success(&self, charge: &Charge, now: Instant) {
        let _ = (charge, now);
    }

    /// The upstream behind this account failed the work under this charge.
    fn on_upstream_failure(&self, failure: &UpstreamFailure, charge: &Charge, now: Instant) {
        let _ = (failure, charge, now);
    }

    /// The grant of this charge has settled; `reported` says whether anything was reported on it.
    fn settled(&self, charge: &Charge, reported: bool, now: Instant) {
        let _ = (charge, reported, now);
    }

    /// Whether any answer depends on the clock. Read once. Where it says no, `now` may be any
    /// earlier instant, and a demand of only such accounts is decided without reading the clock.
    fn reads_clock(&self) -> bool {
        true
    }

    /// Whether a job that names this account also takes a place in the HTTP pool. The monitor
    /// ignores it; it is for whoever assembles demands.
    fn needs_http(&self) -> bool {
        false
    }

    /// Whether forgetting the account now would forgive nothing and double no limit: one built
    /// anew would grant no more, now or later, but for what the host changed.
    fn is_fresh(&self, now: Instant) -> bool {
        self.in_use(now) == 0
    }

    /// Whether and how it is taken in a passage. For this crate's own accounts: nobody else can name
    /// what it answers.
    #[doc(hidden)]
    fn in_passage(&self) -> InPassage<'_> {
        InPassage::Never
    }
}

impl std::fmt::Debug for dyn Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("link", self.link()).finish_non_exhaustive()
    }
}

/// A reference to an account, of a type known or not: `&Arc<T>` or `&Arc<dyn Account>`.
///
/// Implemented for both and for nothing else.
pub trait AsAccount: sealed::Sealed {
    /// One more owner of the account.
    fn to_account(&self) -> Arc<dyn Account>;

    /// The account itself.
    fn as_account(&self) -> &dyn Account;
}

impl<T: Account> AsAccount for Arc<T> {
    fn to_account(&self) -> Arc<dyn Account> {
        Self::clone(self)
    }

    fn as_account(&self) -> &dyn Account {
        &**self
    }
}

impl AsAccount for Arc<dyn Account> {
    fn to_account(&self) -> Self {
        Self::clone(self)
    }

    fn as_account(&self) -> &dyn Account {
        &**self
    }
}

mod sealed {
    use super::{Account, Arc};

    pub trait Sealed {}
    impl<T: Account> Sealed for Arc<T> {}
    impl Sealed for Arc<dyn Account> {}
}
