//! Everything one job needs at once.

use std::fmt;

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::account::{
    Account, AccountId, AccountLink, AsAccount, Ask, Charge, InPassage, Nature, Permits, Refusal,
    Replenishment,
};
use crate::amount::{Amount, JobInfo};
use crate::error::AccountPanic;
use crate::sync::{Arc, AtomicU64, Ordering};

/// Everything a job must hold at once: accounts, with how much of each.
///
/// A demand is one shared allocation. Cloning it copies a pointer, so a job type can keep one as a
/// template and label each job's copy with [`for_job`](Self::for_job).
///
/// The same account named twice is one entry with the sum; sums saturate, and a saturated amount is
/// refused. Entries keep the order in which their accounts were first named. A demand without
/// entries is an orchestrator's: it is always granted at once.
///
/// # Examples
///
/// ```
/// use admit::{CountingGate, Demand, JobInfo, Limits, TokenBucket};
///
/// let model = TokenBucket::new("gpt-x", Limits::per_minute(500, 30_000))?;
/// let http = CountingGate::new("http", 64)?;
///
/// let template = Demand::new().tokens(&model, 1_800).permit(&http);
/// let demand = template.clone().for_job(JobInfo::new("17", "summarise"));
///
/// assert_eq!(demand.entries().len(), 2);
/// assert_eq!(demand.entries()[0].account().link().name().as_ref(), "gpt-x");
/// # Ok::<(), admit::ConfigError>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "a demand does nothing until it is admitted"]
pub struct Demand {
    list: Option<Arc<Entries>>,
    job: Option<Arc<JobInfo>>,
}

impl Demand {
    /// A demand of nothing: an orchestrator's.
    pub const fn new() -> Self {
        Self { list: None, job: None }
    }

    /// The same demand with `amount` more of the account.
    pub fn add<A: AsAccount + ?Sized>(mut self, account: &A, amount: Amount) -> Self {
        let list = self.list.get_or_insert_default();
        Arc::make_mut(list).add(account, amount);
        self
    }

    /// One request of `n` tokens of a bucket.
    pub fn tokens<A: AsAccount + ?Sized>(self, account: &A, n: u64) -> Self {
        self.add(account, Amount::tokens(n))
    }

    /// One permit of a gate, or one slot of a window. Of a bucket it is one request of one token: say
    /// [`tokens`](Self::tokens) there.
    pub fn permit<A: AsAccount + ?Sized>(self, account: &A) -> Self {
        self.add(account, Amount::permits(1))
    }

    /// `n` permits of a gate, or `n` slots of a window.
    pub fn permits<A: AsAccount + ?Sized>(self, account: &A, n: u32) -> Self {
        self.add(account, Amount::permits(n))
    }

    /// The same demand for a certain job. The entries are shared, not copied.
    pub fn for_job(mut self, job: impl Into<Arc<JobInfo>>) -> Self {
        self.job = Some(job.into());
        self
    }

    /// The entries, in the order their accounts were first named.
    #[must_use]
    #[inline]
    pub fn entries(&self) -> &[Entry] {
        self.list.as_ref().map_or(&[], |list| &list.entries)
    }

    /// Whether it demands nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_none()
    }

    /// The job it is for, where that was said.
    #[must_use]
    pub const fn job(&self) -> Option<&Arc<JobInfo>> {
        self.job.as_ref()
    }

    /// What the monitor reads: the entries with what is known of them beforehand.
    #[inline]
    pub(crate) fn list(&self) -> &Entries {
        static EMPTY: Entries = Entries::new();
        self.list.as_deref().unwrap_or(&EMPTY)
    }

    /// The same entries for nobody in particular.
    pub(crate) fn unlabelled(&self) -> Self {
        Self { list: self.list.clone(), job: None }
    }

    /// Whether the two want the same, whoever they are for.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        match (&self.list, &other.list) {
            // Copies of one template, mostly.
            (Some(mine), Some(theirs)) => {
                Arc::ptr_eq(mine, theirs) || self.wants().eq(other.wants())
            }
            (mine, theirs) => mine.is_none() == theirs.is_none(),
        }
    }

    /// What it wants of whom, by account.
    pub(crate) fn wants(&self) -> impl Iterator<Item = (AccountId, Amount)> {
        let list = self.list();
        list.order.iter().map(|&at| {
            let entry = &list.entries[at as usize];
            (entry.id, entry.amount)
        })
    }

    /// The position of the entry for an account.
    #[inline]
    pub(crate) fn position(&self, account: AccountId) -> Option<usize> {
        self.entries().iter().position(|entry| entry.id == account)
    }

    /// What it wants of an account: nothing when it does not name it.
    pub(crate) fn amount_on(&self, account: AccountId) -> Amount {
        self.position(account).map_or(Amount::NONE, |index| self.entries()[index].amount)
    }
}

impl fmt::Debug for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for entry in self.entries() {
            map.entry(entry.account.link().name(), &entry.amount);
        }
        map.finish()
    }
}

/// One account of a demand, and how much of it.
#[derive(Clone)]
pub struct Entry {
    account: Arc<dyn Account>,
    amount: Amount,
    id: AccountId,
    nature: Nature,
    /// Where the monitor may count itself.
    permits: Option<Arc<Permits>>,
}

impl Entry {
    /// The account.
    #[must_use]
    #[inline]
    pub const fn account(&self) -> &Arc<dyn Account> {
        &self.account
    }

    /// How much of it.
    #[must_use]
    #[inline]
    pub const fn amount(&self) -> Amount {
        self.amount
    }

    #[inline]
    pub(crate) const fn id(&self) -> AccountId {
        self.id
    }

    /// Whether what was taken comes back when the work ends.
    #[inline]
    pub(crate) const fn comes_back(&self) -> bool {
        matches!(self.nature.replenishment, Replenishment::Release)
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        self.link().name()
    }

    #[inline]
    pub(crate) fn link(&self) -> &AccountLink {
        match &self.permits {
            Some(permits) => &permits.link,
            None => self.account.link(),
        }
    }

    #[inline]
    pub(crate) const fn permits(&self) -> Option<&Arc<Permits>> {
        self.permits.as_ref()
    }

    // The monitor asks a gate here: called through the account, it takes the caller for a stranger.

    pub(crate) fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        match &self.permits {
            Some(permits) => permits.fits(ask),
            None => self.account.fits(ask),
        }
    }

    pub(crate) fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        match &self.permits {
            Some(permits) => permits.take(ask),
            None => self.account.try_take(ask),
        }
    }

    pub(crate) fn give(&self, charge: &Charge, now: Instant) -> Amount {
        match &self.permits {
            Some(permits) => permits.give(charge),
            None => self.account.give(charge, now),
        }
    }

    pub(crate) fn settled(&self, charge: &Charge, reported: bool, now: Instant) {
        if self.permits.is_none() {
            self.account.settled(charge, reported, now);
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("account", self.name())
            .field("amount", &self.amount)
            .finish_non_exhaustive()
    }
}

/// The shared part of a demand, with everything that can be known before anybody is asked.
pub(crate) struct Entries {
    pub(crate) entries: SmallVec<[Entry; 3]>,
    /// Positions by account id: the order of debits, so that two admissions that share accounts
    /// cannot undo each other for ever.
    pub(crate) order: SmallVec<[u32; 6]>,
    /// Whether any answer depends on the clock.
    pub(crate) timed: bool,
    /// Whether all of it may be taken in a passage: permits the monitor may count itself, asked for
    /// as such, and one account that is brief, at the most.
    pub(crate) may_pass: bool,
    /// The one that is brief.
    pub(crate) brief: Option<u32>,
    /// The first entry that can never fit because its sum overflowed.
    pub(crate) saturated: Option<u32>,
    /// An account that panicked when it was first read.
    pub(crate) fault: Option<(u32, AccountPanic)>,
    /// The admission that knows every account here already: a template is registered once. Written
    /// and read under that admission's lock; another's number, read late, only costs a look.
    known_to: AtomicU64,
}

impl Entries {
    const fn new() -> Self {
        Self {
            entries: SmallVec::new_const(),
            order: SmallVec::new_const(),
            timed: false,
            may_pass: true,
            brief: None,
            saturated: None,
            fault: None,
            known_to: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn is_known_to(&self, admission: u64) -> bool {
        self.known_to.load(Ordering::Relaxed) == admission
    }

    /// Whether the admission has attached to every account here, as far as can be said at a glance.
    #[inline]
    pub(crate) fn is_attached_to(&self, admission: u64) -> bool {
        self.is_known_to(admission)
            || self.entries.iter().all(|entry| entry.link().is_first(admission))
    }

    /// Whether all of it is permits the monitor may count itself.
    #[inline]
    pub(crate) const fn is_counted(&self) -> bool {
        self.may_pass && self.brief.is_none()
    }

    pub(crate) fn set_known_to(&self, admission: u64) {
        self.known_to.store(admission, Ordering::Relaxed);
    }

    fn add<A: AsAccount + ?Sized>(&mut self, account: &A, amount: Amount) {
        // Whoever knew these accounts may not know this one.
        *self.known_to.get_mut() = 0;
        let link = account.as_account().link();
        let id = link.id();
        let index = match self.entries.iter().position(|entry| entry.id == id) {
            Some(index) => {
                let entry = &mut self.entries[index];
                entry.amount = entry.amount.saturating_add(amount);
                index
            }
            None => {
                let nature = match link.nature(account.as_account()) {
                    Ok(nature) => *nature,
                    Err(panic) => {
                        let index = self.entries.len() as u32;
                        self.fault.get_or_insert_with(|| (index, panic.clone()));
                        Nature { replenishment: Replenishment::Release, timed: true }
                    }
                };
                self.timed |= nature.timed;
                let permits = match account.as_account().in_passage() {
                    // An account may borrow the link of a gate, and yet have rules of its own.
                    InPassage::Counted(permits) if std::ptr::eq(&raw const permits.link, link) => {
                        Some(Arc::clone(permits))
                    }
                    InPassage::Brief if self.brief.is_none() => {
                        self.brief = Some(self.entries.len() as u32);
                        None
                    }
                    _ => {
                        self.may_pass = false;
                        None
                    }
                };
                self.entries.push(Entry {
                    account: account.to_account(),
                    amount,
                    id,
                    nature,
                    permits,
                });
                let index = self.entries.len() - 1;
                let place = self.order.partition_point(|&at| self.entries[at as usize].id < id);
                self.order.insert(place, u32::try_from(index).unwrap_or(u32::MAX));
                index
            }
        };
        let Amount { requests, units } = self.entries[index].amount;
        let is_brief = self.brief == Some(index as u32);
        self.may_pass &= is_brief || u64::from(requests) == units;
        if self.entries[index].amount.is_saturated() && self.saturated.is_none() {
            self.may_pass = false;
            self.saturated = u32::try_from(index).ok();
        }
    }
}

impl Default for Entries {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Entries {
    fn clone(&self) -> Self {
        Self {
            entries: self.entries.clone(),
            order: self.order.clone(),
            timed: self.timed,
            may_pass: self.may_pass,
            brief: self.brief,
            saturated: self.saturated,
            fault: self.fault.clone(),
            // A copy is made to be changed, and what is added may be unknown.
            known_to: AtomicU64::new(0),
        }
    }
}
