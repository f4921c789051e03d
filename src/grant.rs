//! What a job holds, until it is settled.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::account::{AsAccount, Charge};
use crate::demand::Demand;
use crate::error::AccountPanic;
use crate::monitor::{
    Borrowed, Hold, Keep, Landing, Limit, Owned, Settlement, Standing, Taken, panic_line,
};
use crate::sync::{Arc, Mutex};
use crate::upstream::UpstreamFailure;

/// How long one account kept a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitTime {
    /// The account's name.
    pub account: Arc<str>,
    /// From its first no to the grant.
    pub wait: Duration,
}

/// A whole demand, held.
///
/// Dropping a grant releases it: permits return, what comes back only with time does so.
/// [`rollback`](Self::rollback) says the work never happened, and returns everything. A grant
/// settles once, by whoever comes first: the methods take `&self`, so an `Arc<Grant>` can be shared
/// between a job and its watchdog.
///
/// A grant does not keep its admission running, and settles whether or not it still runs.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use admit::{Admission, Demand, Limits, TokenBucket};
///
/// let admission = Admission::builder().start()?;
/// let model = TokenBucket::new("gpt-x", Limits::per_minute(500, 30_000))?;
/// let grant = admission.admit(Demand::new().tokens(&model, 4_000)).await?;
/// // … the call used 900 tokens …
/// grant.reconcile(&model, 900); // 3,100 are back at once
/// grant.report_success(&model);
/// assert!(grant.release());
/// assert!(!grant.release());
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a grant gives it back; hold it for as long as the work runs"]
pub struct Grant<K: Keep = Owned> {
    keep: K,
    id: u64,
    /// Made only for a job that waited.
    waits: Option<Box<Landing>>,
    taken: Mutex<Taken>,
}

/// The grant of [`admit_ref`](crate::Admission::admit_ref): a [`Grant`] that borrows.
pub type GrantRef<'a> = Grant<Borrowed<'a>>;

impl<K: Keep> Grant<K> {
    #[inline]
    pub(crate) const fn at_once(keep: K, id: u64, taken: Taken) -> Self {
        Self { keep, id, waits: None, taken: Mutex::new(taken) }
    }

    pub(crate) fn landed(mut keep: K, mut landing: Box<Landing>) -> Self {
        keep.landed(std::mem::take(&mut landing.waiter.demand));
        let taken = std::mem::replace(&mut landing.taken, Taken::at(landing.at));
        Self { keep, id: landing.waiter.id, waits: Some(landing), taken: Mutex::new(taken) }
    }

    /// Returns the permits. Answers whether this was what settled the grant.
    ///
    /// What is replenished by time stays spent, as it should: the work has happened.
    pub fn release(&self) -> bool {
        self.settle(Settlement::Release)
    }

    /// Returns everything, as each account last said it holds it: the work never happened. Answers
    /// whether this was what settled the grant.
    pub fn rollback(&self) -> bool {
        self.settle(Settlement::Rollback)
    }

    fn settle(&self, how: Settlement) -> bool {
        // Lock order: a grant's own lock comes before the admission's, which never takes it.
        self.keep.shared().settle(self.id, self.keep.demand(), self.taken.lock(), how, false)
    }

    /// Returns the permits of one account now, such as an HTTP place before a long local step.
    ///
    /// Answers `false` and does nothing for an account that is not in the grant, for one that is
    /// replenished by time, a second time, and after the grant settled.
    pub fn release_one<A: AsAccount + ?Sized>(&self, account: &A) -> bool {
        let Some(index) = self.position(account) else { return false };
        self.keep.shared().release_one(self.id, self.keep.demand(), index, self.taken.lock())
    }

    /// Corrects what the job is charged on one account to what the work really used, in units.
    ///
    /// Less than reserved returns at once, more is debited, and may put the account in debt. Another
    /// call replaces the last. It may come after a release; after a rollback it does nothing, nor
    /// for a permit that is back. Answers whether the account heard of it.
    pub fn reconcile<A: AsAccount + ?Sized>(&self, account: &A, actual_units: u64) -> bool {
        let Some(index) = self.position(account) else { return false };
        let entry = &self.keep.demand().entries()[index];
        let shared = self.keep.shared();
        match shared.reconcile(self.id, self.keep.demand(), index, self.taken.lock(), actual_units)
        {
            Ok(heard) => heard,
            Err(panic) => {
                shared.log(panic_line(entry, panic));
                false
            }
        }
    }

    /// Tells one account that the work under it succeeded.
    ///
    /// Answers `false` and does nothing for an account that is not in the grant, after
    /// [`release_one`](Self::release_one) of it, and after the grant settled.
    pub fn report_success<A: AsAccount + ?Sized>(&self, account: &A) -> bool {
        self.position(account).is_some_and(|index| self.report(index, None))
    }

    /// Tells one account that the upstream behind it failed. Answers as
    /// [`report_success`](Self::report_success).
    pub fn report_failure<A: AsAccount + ?Sized>(
        &self,
        account: &A,
        failure: &UpstreamFailure,
    ) -> bool {
        self.position(account).is_some_and(|index| self.report(index, Some(failure)))
    }

    /// Tells every account that the work succeeded: for a grant with one upstream. Answers whether
    /// any heard of it.
    pub fn report_success_all(&self) -> bool {
        self.report_all(None)
    }

    /// Tells every account that the upstream failed: for a grant with one upstream. Answers whether
    /// any heard of it.
    pub fn report_failure_all(&self, failure: &UpstreamFailure) -> bool {
        self.report_all(Some(failure))
    }

    fn report_all(&self, failure: Option<&UpstreamFailure>) -> bool {
        let mut heard = false;
        for index in 0..self.keep.demand().entries().len() {
            heard |= self.report(index, failure);
        }
        heard
    }

    /// Reports under the grant's lock, so that a settlement on another thread comes before or
    /// after, never between: an account hears no report on a charge it was told has settled.
    fn report(&self, index: usize, failure: Option<&UpstreamFailure>) -> bool {
        let entry = &self.keep.demand().entries()[index];
        let mut taken = self.taken.lock();
        if taken.standing != Standing::Held || taken.part(index, self.keep.demand()).is_back {
            return false;
        }
        let part = taken.part_mut(index, self.keep.demand());
        part.is_reported = true;
        let (charge, now) = (part.charge(self.id), Instant::now());
        let account = entry.account();
        let told = match failure {
            None => AccountPanic::catch("on_success", || account.on_success(&charge, now)),
            Some(failure) => AccountPanic::catch("on_upstream_failure", || {
                account.on_upstream_failure(failure, &charge, now);
            }),
        };
        drop(taken);
        if let Err(panic) = told {
            self.keep.shared().log(panic_line(entry, panic));
        }
        true
    }

    /// What one account holds for this grant: as it said last, and under the id it was asked with.
    ///
    /// For an account of your own that gives out more than a number, such as one of some cards or
    /// keys: it notes under [`Ask::id`](crate::Ask::id) what it gives to whom, and the job asks it with
    /// the id of its charge. This crate's own accounts have no use for ids, and theirs may be zero.
    ///
    /// `None` for an account that is not in the grant, and once what it held is back; what is replenished
    /// by time is still charged after a release.
    #[must_use]
    pub fn charge<A: AsAccount + ?Sized>(&self, account: &A) -> Option<Charge> {
        let index = self.position(account)?;
        let part = self.taken.lock().holding(index, self.keep.demand())?;
        Some(part.charge(self.id))
    }

    /// From the first poll to the grant; zero for a job granted at once.
    #[must_use]
    pub fn wall_wait(&self) -> Duration {
        self.waits.as_ref().map_or(Duration::ZERO, |waits| {
            waits.at.saturating_duration_since(waits.waiter.arrived)
        })
    }

    /// How long each account kept the job, from its first no to the grant, in the demand's order
    /// (memory first).
    ///
    /// Only accounts that refused the job at some point; empty for a job granted at once. The
    /// accounts overlap in time, so the values do not add up to [`wall_wait`](Self::wall_wait).
    #[must_use]
    pub fn wait_times(&self) -> &[WaitTime] {
        let Some(Landing { waiter, at, times, .. }) = self.waits.as_deref() else { return &[] };
        times.get_or_init(|| {
            let mut holds = waiter.holds.clone();
            holds.sort_by_key(|hold| match hold.limit() {
                Limit::Valve => 0,
                Limit::Entry(index) => u64::from(index) + 1,
            });
            let time = |hold: Hold| WaitTime {
                account: self.keep.shared().name_of(hold.limit(), self.demand()),
                wait: at.saturating_duration_since(hold.since(waiter.arrived)),
            };
            holds.into_iter().map(time).collect()
        })
    }

    /// Whether it is an orchestrator's grant, of nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keep.demand().is_empty()
    }

    /// The demand that was granted.
    pub fn demand(&self) -> &Demand {
        self.keep.demand()
    }

    fn position<A: AsAccount + ?Sized>(&self, account: &A) -> Option<usize> {
        self.keep.demand().position(account.as_account().link().id())
    }
}

impl<K: Keep> Drop for Grant<K> {
    #[inline]
    fn drop(&mut self) {
        let taken = self.taken.get_mut();
        let shared = self.keep.shared();
        if taken.standing == Standing::Held {
            shared.settle(self.id, self.keep.demand(), taken, Settlement::Release, K::OWNS);
        } else if K::OWNS {
            shared.forget_owner();
        }
    }
}

impl<K: Keep> fmt::Debug for Grant<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Grant");
        debug.field("demand", self.keep.demand());
        if let Some(taken) = self.taken.try_lock() {
            debug.field("standing", &taken.standing);
        }
        debug.finish_non_exhaustive()
    }
}
