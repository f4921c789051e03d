//! Where announcements land: the leaf of the lock order.
//!
//! An account may announce on any thread, holding its own lock, between the monitor's question and
//! the waiter being filed. So announcing takes no admission lock: it sets bits on a [`Mark`], puts
//! the mark into the admission's [`Inbox`], and wakes the evaluator if anybody waits there.

use super::{AccountId, Door};
use crate::sync::{Arc, AtomicBool, AtomicU8, Mutex, Notify, Ordering};

/// What an account announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks(u8);

impl Marks {
    pub(crate) const GREW: Self = Self(1);
    pub(crate) const MAY_REFUSE: Self = Self(2);
    pub(crate) const GONE: Self = Self(4);

    #[inline]
    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// One account's standing with one admission: the announcements not yet looked at.
#[derive(Debug)]
pub(crate) struct Mark {
    account: AccountId,
    bits: AtomicU8,
}

impl Mark {
    pub(crate) const fn new(account: AccountId) -> Self {
        Self { account, bits: AtomicU8::new(0) }
    }
}

/// The announcements one admission has not looked at yet.
#[derive(Debug)]
pub(crate) struct Inbox {
    admission: u64,
    /// Here because the links of accounts reach it, and beside the flag that a passage looks at.
    pub(crate) door: Door,
    /// Whether `marks` has anything, readable without the lock. Set and cleared under it.
    pending: AtomicBool,
    state: Mutex<State>,
    /// Wakes the evaluator.
    pub(crate) notify: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Somebody waits in the admission's line, so an announcement must wake the evaluator.
    listening: bool,
    /// Each mark at most once, so the list is bounded by the accounts there are.
    marks: Vec<Arc<Mark>>,
}

impl Inbox {
    pub(crate) fn new(admission: u64) -> Self {
        Self {
            admission,
            door: Door::shut_from_the_start(),
            pending: AtomicBool::new(false),
            state: Mutex::new(State::default()),
            notify: Notify::new(),
        }
    }

    pub(crate) const fn admission(&self) -> u64 {
        self.admission
    }

    /// Files an announcement.
    ///
    /// Who finds bits already set need not push: whoever set the first of them has pushed the mark
    /// or is about to, and the monitor takes all bits at once, after the push and before it asks.
    pub(crate) fn push(&self, mark: &Arc<Mark>, marks: Marks) {
        if mark.bits.fetch_or(marks.0, Ordering::AcqRel) != 0 {
            return;
        }
        let mut state = self.state.lock();
        state.marks.push(Arc::clone(mark));
        self.pending.store(true, Ordering::Release);
        let listening = state.listening;
        drop(state);
        if listening {
            self.notify.notify_one();
        }
    }

    /// Whether there is anything to take.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Takes everything announced so far.
    ///
    /// The bits are cleared before the monitor asks anybody: an announcement that comes after is
    /// filed again, one that came before is about a state the coming question will see.
    pub(crate) fn take(&self, mut each: impl FnMut(AccountId, Marks)) {
        let marks = {
            let mut state = self.state.lock();
            self.pending.store(false, Ordering::Release);
            std::mem::take(&mut state.marks)
        };
        for mark in marks {
            each(mark.account, Marks(mark.bits.swap(0, Ordering::AcqRel)));
        }
    }

    /// Says whether anybody waits, and answers whether something was announced meanwhile.
    ///
    /// The two go under one lock, so an announcement either finds `listening` set and wakes the
    /// evaluator, or is there to be seen by the caller, who has not yet let go of the line.
    pub(crate) fn listen(&self, listening: bool) -> bool {
        let mut state = self.state.lock();
        state.listening = listening;
        !state.marks.is_empty()
    }
}
