//! What ties an account to the admissions that use it.

use std::fmt;

use smallvec::SmallVec;

use super::inbox::{Inbox, Mark, Marks};
use super::{Account, Replenishment};
use crate::error::{AccountPanic, ConfigError};
use crate::one_line::is_one_line;
use crate::sync::{
    Arc, AtomicU32, AtomicU64, AtomicUsize, Mutex, OnceLock, Ordering, StaticU64, Weak,
};

/// The identity of an account: a number never reused in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(u64);

impl AccountId {
    fn next() -> Self {
        static LAST: StaticU64 = StaticU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl fmt::Display for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// What is read of an account once and never again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nature {
    pub(crate) replenishment: Replenishment,
    pub(crate) timed: bool,
}

/// An account is out of order for good: a settlement's `give` panicked in it.
const QUARANTINED: u32 = 1;
/// More than one admission has used the account, or one left that still holds some.
const SHARED: u32 = 2;
/// A take here has an effect that giving it back would not undo for others: survey before debit.
const DELICATE: u32 = 4;
/// Somebody who is no admission takes and gives here.
const ELSEWHERE: u32 = 8;
/// Every passage that may not have seen that has ended.
const ELSEWHERE_SEEN: u32 = 16;
/// One who changes the account from outside every admission: a count, above the flags.
const ONE_ELSEWHERE: u32 = 1 << 8;

/// The part of an account that the monitor needs: embed one in every [`Account`].
///
/// It carries the account's name and identity, knows which admissions use the account, and lets
/// the account announce what only it can know ([`grew`](Self::grew),
/// [`may_refuse`](Self::may_refuse)). Announcing takes a small lock of its own and never an
/// admission's, so an account may do it while holding its own lock, from any thread.
///
/// # Examples
///
/// ```
/// use admit::AccountLink;
///
/// let link = AccountLink::new("render")?;
/// assert_eq!(&**link.name(), "render");
/// assert_eq!(link.waiting(), 0);
/// assert!(AccountLink::new("  ").is_err());
/// # Ok::<(), admit::ConfigError>(())
/// ```
// What a passage reads stands first, to be in one cache line with a gate's word.
#[repr(C)]
pub struct AccountLink {
    flags: AtomicU32,
    naming: AtomicUsize,
    name: Arc<str>,
    id: AccountId,
    waiting: AtomicUsize,
    nature: OnceLock<Result<Nature, AccountPanic>>,
    /// The admission that attached first: the common case, answered without the lock.
    first: AtomicU64,
    attached: Mutex<SmallVec<[Attachment; 1]>>,
}

struct Attachment {
    inbox: Weak<Inbox>,
    admission: u64,
    mark: Arc<Mark>,
}

impl AccountLink {
    /// A link for an account of this name.
    ///
    /// # Errors
    ///
    /// When the name is empty or only white space, or holds a line break or another control
    /// character: it is what events, errors, snapshots and log lines call the account, and it may
    /// have come from a key that somebody else chose.
    pub fn new(name: impl Into<Arc<str>>) -> Result<Self, ConfigError> {
        let name = name.into();
        if name.trim().is_empty() {
            return Err(ConfigError::new("name", format!("{name:?}"), "must not be empty"));
        }
        if !is_one_line(&name) {
            let requirement = "must be one line without control characters";
            return Err(ConfigError::new("name", format!("{name:?}"), requirement));
        }
        Ok(Self {
            name,
            id: AccountId::next(),
            waiting: AtomicUsize::new(0),
            naming: AtomicUsize::new(0),
            flags: AtomicU32::new(0),
            nature: OnceLock::new(),
            first: AtomicU64::new(0),
            attached: Mutex::new(SmallVec::new()),
        })
    }

    /// The account's name.
    #[must_use]
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The account's identity.
    #[must_use]
    pub const fn id(&self) -> AccountId {
        self.id
    }

    /// How many jobs wait on this account now, over all admissions: those it was found short for.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Announces that a no may have become a yes for a reason other than the clock.
    ///
    /// Not needed from `give` and `reconcile`: the monitor calls those and knows.
    pub fn grew(&self) {
        self.tell(Marks::GREW, None);
    }

    /// Announces that the account may now refuse outright jobs that wait on it.
    pub fn may_refuse(&self) {
        self.tell(Marks::MAY_REFUSE, None);
    }

    /// Declares that a take has an effect giving it back does not undo for others, such as
    /// claiming the one probe of a circuit. While it is set, a demand that names this account is
    /// surveyed before anything is debited.
    pub fn set_survey_first(&self, on: bool) {
        if on {
            self.flags.fetch_or(DELICATE, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!DELICATE, Ordering::Relaxed);
        }
    }

    /// Whether a settlement's `give` once panicked: nobody is granted anything of it any more.
    #[must_use]
    #[inline]
    pub fn is_quarantined(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & QUARANTINED != 0
    }

    #[inline]
    pub(crate) fn is_delicate(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & DELICATE != 0
    }

    /// Whether more than one admission uses it.
    ///
    /// Relaxed is enough: an admission attaches before it first asks, and both its ask and the
    /// give that precedes this look go through the account's own lock. A give that the other
    /// admission's ask did not see therefore comes after its attaching.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & SHARED != 0
    }

    /// Whether a [passage](super::Door) of the one admission that uses the account may change it:
    /// nobody else does, and nobody who waits names it.
    ///
    /// Sequentially consistent for [`Door::wait`](super::Door::wait).
    #[inline]
    pub(crate) fn may_be_passed(&self) -> bool {
        self.flags.load(Ordering::SeqCst) == 0 && !self.is_named()
    }

    /// Whether an account that looks after itself may be taken in a passage: nobody in any line names
    /// it, and it is in order.
    #[inline]
    pub(crate) fn may_be_taken_in_passage(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & (QUARANTINED | DELICATE) == 0 && !self.is_named()
    }

    /// Whether only this admission takes and gives here: nobody need be told of what it does.
    ///
    /// Weaker would do: who asks is in a hold, and what it then does changes no account, so that what
    /// it did not see is as if it came afterwards.
    #[inline]
    pub(crate) fn is_ours_alone(&self) -> bool {
        self.flags.load(Ordering::SeqCst) == 0
    }

    /// Shows whoever passes that somebody changes the account from elsewhere, and waits for the
    /// passage that did not see it. Until what it answers is dropped, nobody passes.
    ///
    /// An admission that attaches later sees it too: it attaches under the lock that is taken here
    /// afterwards.
    pub(crate) fn show_elsewhere(&self) -> Elsewhere<'_> {
        self.flags.fetch_add(ONE_ELSEWHERE, Ordering::SeqCst);
        self.wait_for_passages();
        Elsewhere(self)
    }

    /// The same for good.
    ///
    /// Whoever finds it said already need not find that it was waited for, too: that is said apart,
    /// and until then everybody waits.
    pub(crate) fn stay_elsewhere(&self) {
        // Acquire, and release where it is said: what was waited for there has happened before what
        // comes here. An interpreter, and a machine, that make every read-modify-write of what is
        // newest show no difference; the language does not promise that they do.
        if self.flags.load(Ordering::Acquire) & ELSEWHERE_SEEN == 0 {
            self.flags.fetch_or(ELSEWHERE, Ordering::SeqCst);
            self.wait_for_passages();
            self.flags.fetch_or(ELSEWHERE_SEEN, Ordering::Release);
        }
    }

    fn wait_for_passages(&self) {
        for attachment in self.attached.lock().iter() {
            if let Some(inbox) = attachment.inbox.upgrade() {
                inbox.door.wait();
            }
        }
    }

    /// Takes the account out of use, in every admission.
    pub(crate) fn quarantine(&self) {
        // Weaker would do: those who pass do so after this hold, or in one of the others that are told.
        self.flags.fetch_or(QUARANTINED, Ordering::SeqCst);
        self.tell(Marks::MAY_REFUSE, None);
    }

    /// Tells every admission but `except` that something came back here.
    ///
    /// One that stopped is not on the list any more, and whoever came after it may be alone there,
    /// and yet be told: a grant outlives its admission, and may be corrected even after it settled.
    #[inline]
    pub(crate) fn tell_others(&self, except: u64) {
        if self.is_shared() || !self.is_first(except) {
            self.tell(Marks::GREW, Some(except));
        }
    }

    fn tell(&self, marks: Marks, except: Option<u64>) {
        let mut attached = self.attached.lock();
        attached.retain(|attachment| match attachment.inbox.upgrade() {
            Some(inbox) => {
                if Some(attachment.admission) != except {
                    inbox.push(&attachment.mark, marks);
                }
                true
            }
            None => false,
        });
    }

    /// Counts one more, or one less, job that waits here.
    pub(crate) fn count_waiting(&self, more: bool) -> usize {
        if more {
            self.waiting.fetch_add(1, Ordering::Relaxed) + 1
        } else {
            self.waiting.fetch_sub(1, Ordering::Relaxed).saturating_sub(1)
        }
    }

    /// Whether anybody who waits, in any admission, names this account.
    ///
    /// An admission changes its own part under its lock, so it sees its own waiters exactly; what
    /// others add only makes it look more closely.
    #[inline]
    pub(crate) fn is_named(&self) -> bool {
        self.naming.load(Ordering::Relaxed) != 0
    }

    /// Counts one more, or one less, waiter that names this account.
    pub(crate) fn count_naming(&self, more: bool) {
        if more {
            self.naming.fetch_add(1, Ordering::Relaxed);
        } else {
            self.naming.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// What is read once, from the account this link belongs to.
    pub(crate) fn nature(&self, account: &dyn Account) -> &Result<Nature, AccountPanic> {
        self.nature.get_or_init(|| {
            let replenishment = AccountPanic::catch("replenishment", || account.replenishment())?;
            let timed = AccountPanic::catch("reads_clock", || account.reads_clock())?;
            Ok(Nature { replenishment, timed })
        })
    }

    /// Whether the admission has attached already: one load in the common case.
    pub(crate) fn is_attached(&self, admission: u64) -> bool {
        self.is_first(admission)
            || (self.is_shared()
                && self.attached.lock().iter().any(|other| other.admission == admission))
    }

    /// Whether the admission is the one that attached first.
    #[inline]
    pub(crate) fn is_first(&self, admission: u64) -> bool {
        self.first.load(Ordering::Relaxed) == admission
    }

    /// Attaches an admission, whose inbox hears of this account from now on.
    pub(crate) fn attach(&self, inbox: &Arc<Inbox>) -> Arc<Mark> {
        let mark = Arc::new(Mark::new(self.id));
        let mut attached = self.attached.lock();
        let admission = inbox.admission();
        attached.retain(|other| other.inbox.strong_count() > 0 && other.admission != admission);
        attached.push(Attachment {
            inbox: Arc::downgrade(inbox),
            admission,
            mark: Arc::clone(&mark),
        });
        if attached.len() == 1 {
            self.first.store(admission, Ordering::Relaxed);
        } else {
            self.flags.fetch_or(SHARED, Ordering::SeqCst);
            // From here on nobody passes, and the newcomer asks after the last who did.
            for inbox in attached.iter().filter_map(|other| other.inbox.upgrade()) {
                inbox.door.wait();
            }
        }
        drop(attached);
        mark
    }

    /// Takes an admission off the list. `holds` says that it may still give something back: then
    /// the next that comes is not alone here, and is to be told of what comes back.
    pub(crate) fn detach(&self, admission: u64, holds: bool) {
        if holds {
            // Weaker would do: whoever comes next attaches under the lock that is taken below.
            self.flags.fetch_or(SHARED, Ordering::SeqCst);
        }
        let mut attached = self.attached.lock();
        attached.retain(|other| other.admission != admission);
        // `first` must not go on answering for one that left.
        let first = attached.first().map_or(0, |other| other.admission);
        self.first.store(first, Ordering::Relaxed);
        drop(attached);
    }
}

/// Somebody changes an account from elsewhere, for as long as this is there.
pub(crate) struct Elsewhere<'a>(&'a AccountLink);

impl Drop for Elsewhere<'_> {
    fn drop(&mut self) {
        // Releases the change to whoever passes next.
        self.0.flags.fetch_sub(ONE_ELSEWHERE, Ordering::SeqCst);
    }
}

/// The account is gone: whoever keeps a record of it may forget.
impl Drop for AccountLink {
    fn drop(&mut self) {
        self.tell(Marks::GONE, None);
    }
}

impl fmt::Debug for AccountLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccountLink")
            .field("name", &self.name)
            .field("id", &self.id)
            .field("waiting", &self.waiting())
            .field("quarantined", &self.is_quarantined())
            .finish_non_exhaustive()
    }
}
