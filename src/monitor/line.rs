//! The line: who waits, first come first served, and what became of those who left it.
//!
//! A slab whose slots are chained by index. A [`Key`] names a slot *and* the ticket of the waiter
//! in it; tickets are never reused, so a key kept too long finds nobody. A slot lives in one of two
//! lists: those who wait, and those whose outcome has landed but was not collected yet.

use std::task::Waker;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::taken::Taken;
use crate::demand::Demand;
use crate::error::AdmitError;

/// Names one waiter: the slot it is in, and the ticket that says it is still the one meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    ticket: u64,
    slot: u32,
}

/// Which limit held a waiter: the valve, or an entry of its demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Valve,
    Entry(u32),
}

/// One job in the line.
pub(crate) struct Waiter {
    /// The id of all its asks.
    pub(crate) id: u64,
    pub(crate) demand: Demand,
    pub(crate) waker: Option<Waker>,
    pub(crate) arrived: Instant,
    pub(crate) expires: Option<Instant>,
    /// What was found short, each with its first no; in the order found.
    pub(crate) holds: SmallVec<[(Limit, Instant); 2]>,
    /// When the clock alone lets it go, as last computed, and after how many changes that was.
    pub(crate) named: Option<(Instant, u64)>,
    /// How often in a row an account broke its word to this waiter.
    pub(crate) breaches: u8,
}

/// What became of a waiter that left the line.
pub(crate) enum Outcome {
    Granted(Box<Landing>),
    Failed(AdmitError),
}

/// A grant on its way to the job it is for.
pub(crate) struct Landing {
    pub(crate) waiter: Waiter,
    pub(crate) taken: Taken,
    pub(crate) at: Instant,
}

enum State {
    Free,
    Waiting(Waiter),
    /// Out of the line, its outcome not known yet.
    Lifted,
    Landed(Outcome),
}

struct Slot {
    ticket: u64,
    prev: u32,
    next: u32,
    state: State,
}

/// No slot.
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
    len: usize,
}

impl List {
    const EMPTY: Self = Self { first: NIL, last: NIL, len: 0 };
}

/// Everybody who waits, and every outcome not collected yet.
pub(crate) struct Line {
    slots: Vec<Slot>,
    free: List,
    waiting: List,
    landed: List,
    tickets: u64,
}

impl Line {
    /// How many slots are kept however few wait.
    const KEPT: usize = 256;

    pub(crate) const fn new() -> Self {
        let (free, waiting, landed) = (List::EMPTY, List::EMPTY, List::EMPTY);
        Self { slots: Vec::new(), free, waiting, landed, tickets: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.waiting.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.waiting.len == 0
    }

    /// Files a waiter at the end of the line.
    pub(crate) fn push(&mut self, waiter: Waiter) -> Key {
        self.tickets += 1;
        let ticket = self.tickets;
        let slot = if self.free.first == NIL {
            let slot = u32::try_from(self.slots.len()).expect("fewer than 2^32 waiters");
            assert_ne!(slot, NIL, "fewer than 2^32 waiters");
            self.slots.push(Slot { ticket, prev: NIL, next: NIL, state: State::Waiting(waiter) });
            slot
        } else {
            let slot = self.free.first;
            Self::unlink(&mut self.slots, &mut self.free, slot);
            let free = &mut self.slots[slot as usize];
            free.ticket = ticket;
            free.state = State::Waiting(waiter);
            slot
        };
        Self::append(&mut self.slots, &mut self.waiting, slot);
        Key { ticket, slot }
    }

    /// The head of the line.
    pub(crate) fn head(&self) -> Option<Key> {
        self.key(self.waiting.first)
    }

    /// Who stands behind `key`.
    pub(crate) fn next(&self, key: Key) -> Option<Key> {
        self.key(self.slots[key.slot as usize].next)
    }

    /// Everybody who waits, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        std::iter::successors(self.head(), |&key| self.next(key))
            .map(|key| self.waiter(key).expect("the waiting list holds waiters"))
    }

    pub(crate) fn waiter(&self, key: Key) -> Option<&Waiter> {
        match &self.slot(key)?.state {
            State::Waiting(waiter) => Some(waiter),
            _ => None,
        }
    }

    pub(crate) fn waiter_mut(&mut self, key: Key) -> Option<&mut Waiter> {
        match &mut self.slot_mut(key)?.state {
            State::Waiting(waiter) => Some(waiter),
            _ => None,
        }
    }

    /// Takes a waiter out of the line for good.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Waiter> {
        self.waiter(key)?;
        Self::unlink(&mut self.slots, &mut self.waiting, key.slot);
        match self.release(key.slot) {
            State::Waiting(waiter) => Some(waiter),
            _ => None,
        }
    }

    /// Takes a waiter out of the line while its outcome is made; [`lay`](Self::lay) must follow.
    pub(crate) fn lift(&mut self, key: Key) -> Option<Waiter> {
        self.waiter(key)?;
        Self::unlink(&mut self.slots, &mut self.waiting, key.slot);
        let slot = &mut self.slots[key.slot as usize];
        match std::mem::replace(&mut slot.state, State::Lifted) {
            State::Waiting(waiter) => Some(waiter),
            _ => None,
        }
    }

    /// Leaves what became of a lifted waiter, to be collected.
    pub(crate) fn lay(&mut self, key: Key, outcome: Outcome) {
        self.slots[key.slot as usize].state = State::Landed(outcome);
        Self::append(&mut self.slots, &mut self.landed, key.slot);
    }

    /// Whether an outcome is there to be collected.
    pub(crate) fn has_landed(&self, key: Key) -> bool {
        self.slot(key).is_some_and(|slot| matches!(slot.state, State::Landed(_)))
    }

    /// Hands out an outcome, once.
    pub(crate) fn collect(&mut self, key: Key) -> Option<Outcome> {
        if !self.has_landed(key) {
            return None;
        }
        Self::unlink(&mut self.slots, &mut self.landed, key.slot);
        match self.release(key.slot) {
            State::Landed(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// The grants that landed and were not collected yet, oldest first.
    pub(crate) fn uncollected(&self) -> impl Iterator<Item = &Landing> {
        let mut at = self.landed.first;
        std::iter::from_fn(move || {
            while at != NIL {
                let slot = &self.slots[at as usize];
                at = slot.next;
                if let State::Landed(Outcome::Granted(landing)) = &slot.state {
                    return Some(&**landing);
                }
            }
            None
        })
    }

    fn key(&self, slot: u32) -> Option<Key> {
        (slot != NIL).then(|| Key { ticket: self.slots[slot as usize].ticket, slot })
    }

    fn slot(&self, key: Key) -> Option<&Slot> {
        self.slots.get(key.slot as usize).filter(|slot| slot.ticket == key.ticket)
    }

    fn slot_mut(&mut self, key: Key) -> Option<&mut Slot> {
        self.slots.get_mut(key.slot as usize).filter(|slot| slot.ticket == key.ticket)
    }

    /// Frees a slot that is in no list. Free slots at the end are given back, so that a line that
    /// was long once does not stay large.
    fn release(&mut self, slot: u32) -> State {
        let free = &mut self.slots[slot as usize];
        let state = std::mem::replace(&mut free.state, State::Free);
        free.ticket = 0;
        Self::append(&mut self.slots, &mut self.free, slot);
        while let Some(last) = self.slots.last()
            && matches!(last.state, State::Free)
        {
            let slot = (self.slots.len() - 1) as u32;
            Self::unlink(&mut self.slots, &mut self.free, slot);
            self.slots.pop();
        }
        if self.slots.capacity() > Self::KEPT && self.slots.len() < self.slots.capacity() / 4 {
            self.slots.shrink_to((self.slots.len() * 2).max(Self::KEPT));
        }
        state
    }

    fn append(slots: &mut [Slot], list: &mut List, slot: u32) {
        let last = std::mem::replace(&mut list.last, slot);
        slots[slot as usize].prev = last;
        slots[slot as usize].next = NIL;
        if last == NIL {
            list.first = slot;
        } else {
            slots[last as usize].next = slot;
        }
        list.len += 1;
    }

    fn unlink(slots: &mut [Slot], list: &mut List, slot: u32) {
        let Slot { prev, next, .. } = slots[slot as usize];
        if prev == NIL {
            list.first = next;
        } else {
            slots[prev as usize].next = next;
        }
        if next == NIL {
            list.last = prev;
        } else {
            slots[next as usize].prev = prev;
        }
        list.len -= 1;
    }

    /// Asserts that both lists are whole and in order.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check(&self) {
        let mut seen = 0;
        for (list, is_waiting) in [(self.waiting, true), (self.landed, false)] {
            let (mut at, mut prev, mut len, mut ticket) = (list.first, NIL, 0, 0);
            while at != NIL {
                let slot = &self.slots[at as usize];
                assert_eq!(slot.prev, prev, "a list is chained both ways");
                assert_eq!(matches!(slot.state, State::Waiting(_)), is_waiting);
                if is_waiting {
                    assert!(slot.ticket > ticket, "the line stands in order of arrival");
                    ticket = slot.ticket;
                }
                (prev, at, len) = (at, slot.next, len + 1);
            }
            assert_eq!((list.last, list.len), (prev, len), "a list knows its end and its length");
            seen += len;
        }
        let free = self.slots.iter().filter(|slot| matches!(slot.state, State::Free)).count();
        assert_eq!(free, self.free.len, "every free slot is in the free list");
        assert_eq!(seen + free, self.slots.len(), "every slot is in a list or free");
    }
}
