//! The line: who waits, first come first served, and what became of those who left it.
//!
//! A slab whose slots are chained by index. A [`Key`] names a slot *and* the ticket of the waiter
//! in it; tickets are never reused, so a key kept too long finds nobody. A slot lives in one of
//! three lists: those who wait, those whose outcome has landed but was not collected yet, and the
//! free ones. Who waits is chained a second time, with those whose demand is equal: its class.
//!
//! The slab grows and shrinks by blocks, so that neither copies a long line under the lock.

use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::taken::Taken;
use crate::demand::Demand;
use crate::error::AdmitError;
use crate::grant::WaitTime;
use crate::sync::OnceLock;

/// Names one waiter: the slot it is in, and the ticket that says it is still the one meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    ticket: u64,
    slot: u32,
}

impl Key {
    /// A key of nobody.
    pub(super) const NOBODY: Self = Self { ticket: 0, slot: NIL };

    /// Its place in the order of arrival.
    pub(super) const fn ticket(self) -> u64 {
        self.ticket
    }
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
    pub(crate) holds: SmallVec<[Hold; 3]>,
}

impl Waiter {
    /// It is found short of a limit for the first time.
    pub(super) fn hold(&mut self, limit: Limit, now: Instant) {
        self.holds.push(Hold::new(limit, self.arrived, now));
    }

    /// When it was first found short of a limit, if it was.
    pub(crate) fn held_since(&self, limit: Limit) -> Option<Instant> {
        let hold = self.holds.iter().find(|hold| hold.limit() == limit)?;
        Some(hold.since(self.arrived))
    }
}

/// A limit that holds a waiter, and since when: small, because a long line has many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    /// Nanoseconds after its arrival.
    after: u64,
    /// The position of the entry; `NIL` for the valve.
    entry: u32,
}

impl Hold {
    pub(crate) fn new(limit: Limit, arrived: Instant, now: Instant) -> Self {
        let after = now.saturating_duration_since(arrived).as_nanos();
        let after = u64::try_from(after).unwrap_or(u64::MAX);
        let entry = match limit {
            Limit::Valve => NIL,
            Limit::Entry(index) => index,
        };
        Self { after, entry }
    }

    pub(crate) const fn limit(self) -> Limit {
        if self.entry == NIL { Limit::Valve } else { Limit::Entry(self.entry) }
    }

    pub(crate) fn since(self, arrived: Instant) -> Instant {
        arrived + Duration::from_nanos(self.after)
    }
}

/// What became of a waiter that left the line.
pub(crate) enum Outcome {
    Granted(Box<Landing>),
    Failed(AdmitError),
}

/// A grant on its way to the job it is for, and then what the grant keeps of the wait.
pub(crate) struct Landing {
    pub(crate) waiter: Waiter,
    pub(crate) taken: Taken,
    pub(crate) at: Instant,
    /// Made when somebody asks for them.
    pub(crate) times: OnceLock<Box<[WaitTime]>>,
}

impl Landing {
    pub(super) fn new(waiter: Waiter, taken: Taken, at: Instant) -> Box<Self> {
        Box::new(Self { waiter, taken, at, times: OnceLock::new() })
    }
}

enum State {
    Free,
    Waiting(Waiter),
    /// Out of the line, its outcome not known yet.
    Lifted,
    /// Emptied as it is collected: moving the whole state costs.
    Landed(Option<Outcome>),
}

struct Slot {
    ticket: u64,
    /// Where it stands in the line, and where in its class.
    links: [Link; 2],
    class: u32,
    state: State,
}

#[derive(Clone, Copy)]
struct Link {
    prev: u32,
    next: u32,
}

impl Link {
    const NONE: Self = Self { prev: NIL, next: NIL };
}

/// The chains a slot is in.
#[derive(Clone, Copy)]
enum By {
    Line = 0,
    Class = 1,
}

/// No slot.
const NIL: u32 = u32::MAX;

/// The ends of a chain of slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    first: u32,
    last: u32,
    len: u32,
}

impl Chain {
    pub(super) const EMPTY: Self = Self { first: NIL, last: NIL, len: 0 };

    #[inline]
    pub(super) const fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// Slots in blocks that never move.
struct Slab {
    blocks: Vec<Vec<Slot>>,
    len: u32,
}

impl Slab {
    const BITS: u32 = 9;
    const BLOCK: usize = 1 << Self::BITS;

    fn push(&mut self, slot: Slot) -> u32 {
        let index = self.len;
        assert_ne!(index, NIL, "fewer than 2^32 waiters");
        if (index as usize) >> Self::BITS == self.blocks.len() {
            self.blocks.push(Vec::with_capacity(Self::BLOCK));
        }
        self.blocks[(index >> Self::BITS) as usize].push(slot);
        self.len += 1;
        index
    }

    /// Takes the last slot away, and its block when it was the last of it but for one to spare.
    fn pop(&mut self) {
        self.len -= 1;
        self.blocks[(self.len >> Self::BITS) as usize].pop();
        let needed = (self.len as usize).div_ceil(Self::BLOCK) + 1;
        self.blocks.truncate(needed);
    }

    fn get(&self, index: u32) -> Option<&Slot> {
        self.blocks.get((index >> Self::BITS) as usize)?.get(index as usize & (Self::BLOCK - 1))
    }

    fn get_mut(&mut self, index: u32) -> Option<&mut Slot> {
        self.blocks
            .get_mut((index >> Self::BITS) as usize)?
            .get_mut(index as usize & (Self::BLOCK - 1))
    }

    fn append(&mut self, chain: &mut Chain, index: u32, by: By) {
        let last = std::mem::replace(&mut chain.last, index);
        self[index].links[by as usize] = Link { prev: last, next: NIL };
        if last == NIL {
            chain.first = index;
        } else {
            self[last].links[by as usize].next = index;
        }
        chain.len += 1;
    }

    fn unlink(&mut self, chain: &mut Chain, index: u32, by: By) {
        let Link { prev, next } = self[index].links[by as usize];
        if prev == NIL {
            chain.first = next;
        } else {
            self[prev].links[by as usize].next = next;
        }
        if next == NIL {
            chain.last = prev;
        } else {
            self[next].links[by as usize].prev = prev;
        }
        chain.len -= 1;
    }
}

impl std::ops::Index<u32> for Slab {
    type Output = Slot;

    fn index(&self, index: u32) -> &Slot {
        &self.blocks[(index >> Self::BITS) as usize][index as usize & (Self::BLOCK - 1)]
    }
}

impl std::ops::IndexMut<u32> for Slab {
    fn index_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.blocks[(index >> Self::BITS) as usize][index as usize & (Self::BLOCK - 1)]
    }
}

/// Everybody who waits, and every outcome not collected yet.
pub(crate) struct Line {
    slots: Slab,
    free: Chain,
    waiting: Chain,
    landed: Chain,
    tickets: u64,
}

impl Line {
    pub(crate) const fn new() -> Self {
        let slots = Slab { blocks: Vec::new(), len: 0 };
        let (free, waiting, landed) = (Chain::EMPTY, Chain::EMPTY, Chain::EMPTY);
        Self { slots, free, waiting, landed, tickets: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.waiting.len as usize
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.waiting.len == 0
    }

    /// Files a waiter at the end of the line.
    pub(crate) fn push(&mut self, waiter: Waiter) -> Key {
        self.tickets += 1;
        let ticket = self.tickets;
        let state = State::Waiting(waiter);
        let slot = if self.free.is_empty() {
            self.slots.push(Slot { ticket, links: [Link::NONE; 2], class: NIL, state })
        } else {
            let slot = self.free.first;
            self.slots.unlink(&mut self.free, slot, By::Line);
            let free = &mut self.slots[slot];
            free.ticket = ticket;
            free.state = state;
            slot
        };
        self.slots.append(&mut self.waiting, slot, By::Line);
        Key { ticket, slot }
    }

    /// The head of the line.
    pub(crate) fn head(&self) -> Option<Key> {
        self.key(self.waiting.first)
    }

    /// Who stands behind somebody in the line.
    pub(super) fn behind(&self, key: Key) -> Option<Key> {
        self.key(self.next(key.slot, By::Line))
    }

    /// Everybody who waits, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        std::iter::successors(self.head(), |key| self.key(self.next(key.slot, By::Line)))
            .map(|key| self.waiter(key).expect("the waiting list holds waiters"))
    }

    pub(crate) fn waiter(&self, key: Key) -> Option<&Waiter> {
        match &self.slot(key)?.state {
            State::Waiting(waiter) => Some(waiter),
            _ => None,
        }
    }

    pub(crate) fn waiter_mut(&mut self, key: Key) -> Option<&mut Waiter> {
        let slot = self.slots.get_mut(key.slot).filter(|slot| slot.ticket == key.ticket)?;
        match &mut slot.state {
            State::Waiting(waiter) => Some(waiter),
            _ => None,
        }
    }

    /// Puts a waiter at the end of its class.
    pub(super) fn join(&mut self, key: Key, class: u32, chain: &mut Chain) {
        self.slots[key.slot].class = class;
        self.slots.append(chain, key.slot, By::Class);
    }

    /// Takes a waiter out of its class. Answers whether it was the front.
    pub(super) fn part(&mut self, key: Key, chain: &mut Chain) -> bool {
        let was_front = chain.first == key.slot;
        self.slots.unlink(chain, key.slot, By::Class);
        was_front
    }

    /// The class a waiter is in.
    pub(super) fn class_of(&self, key: Key) -> u32 {
        self.slots[key.slot].class
    }

    /// The front of a class.
    pub(super) fn front(&self, chain: &Chain) -> Option<Key> {
        self.key(chain.first)
    }

    /// Takes a waiter out of the line for good.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Waiter> {
        self.waiter(key)?;
        self.slots.unlink(&mut self.waiting, key.slot, By::Line);
        let state = std::mem::replace(&mut self.slots[key.slot].state, State::Lifted);
        self.release(key.slot);
        match state {
            State::Waiting(waiter) => Some(waiter),
            _ => None,
        }
    }

    /// Takes a waiter out of the line while its outcome is made; [`lay`](Self::lay) must follow.
    pub(crate) fn lift(&mut self, key: Key) -> Option<Waiter> {
        self.waiter(key)?;
        self.slots.unlink(&mut self.waiting, key.slot, By::Line);
        match std::mem::replace(&mut self.slots[key.slot].state, State::Lifted) {
            State::Waiting(waiter) => Some(waiter),
            _ => None,
        }
    }

    /// Leaves what became of a lifted waiter, to be collected.
    pub(crate) fn lay(&mut self, key: Key, outcome: Outcome) {
        self.slots[key.slot].state = State::Landed(Some(outcome));
        self.slots.append(&mut self.landed, key.slot, By::Line);
    }

    /// Hands out an outcome, once.
    pub(crate) fn collect(&mut self, key: Key) -> Option<Outcome> {
        let slot = self.slots.get_mut(key.slot).filter(|slot| slot.ticket == key.ticket)?;
        let State::Landed(outcome) = &mut slot.state else { return None };
        let outcome = outcome.take();
        self.slots.unlink(&mut self.landed, key.slot, By::Line);
        self.release(key.slot);
        outcome
    }

    /// The grants that landed and were not collected yet, oldest first.
    pub(crate) fn uncollected(&self) -> impl Iterator<Item = &Landing> {
        let mut at = self.landed.first;
        std::iter::from_fn(move || {
            while at != NIL {
                let slot = &self.slots[at];
                at = slot.links[By::Line as usize].next;
                if let State::Landed(Some(Outcome::Granted(landing))) = &slot.state {
                    return Some(&**landing);
                }
            }
            None
        })
    }

    fn next(&self, slot: u32, by: By) -> u32 {
        self.slots[slot].links[by as usize].next
    }

    fn key(&self, slot: u32) -> Option<Key> {
        (slot != NIL).then(|| Key { ticket: self.slots[slot].ticket, slot })
    }

    fn slot(&self, key: Key) -> Option<&Slot> {
        self.slots.get(key.slot).filter(|slot| slot.ticket == key.ticket)
    }

    /// Frees a slot that is in no list. Free slots at the end are given back, so that a line that
    /// was long once does not stay large.
    fn release(&mut self, slot: u32) {
        let free = &mut self.slots[slot];
        free.state = State::Free;
        free.ticket = 0;
        self.slots.append(&mut self.free, slot, By::Line);
        while let Some(last) = self.slots.len.checked_sub(1)
            && matches!(self.slots[last].state, State::Free)
        {
            self.slots.unlink(&mut self.free, last, By::Line);
            self.slots.pop();
        }
    }

    /// Asserts that the lists are whole and in order.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check(&self) {
        let mut seen = 0;
        for (list, is_waiting) in [(self.waiting, true), (self.landed, false)] {
            let (mut at, mut prev, mut len, mut ticket) = (list.first, NIL, 0, 0);
            while at != NIL {
                let slot = &self.slots[at];
                let link = slot.links[By::Line as usize];
                assert_eq!(link.prev, prev, "a list is chained both ways");
                assert_eq!(matches!(slot.state, State::Waiting(_)), is_waiting);
                if is_waiting {
                    assert!(slot.ticket > ticket, "the line stands in order of arrival");
                    ticket = slot.ticket;
                }
                (prev, at, len) = (at, link.next, len + 1);
            }
            assert_eq!((list.last, list.len), (prev, len), "a list knows its end and its length");
            seen += len;
        }
        let slots = (0..self.slots.len).map(|slot| &self.slots[slot].state);
        let free = slots.filter(|state| matches!(state, State::Free)).count();
        assert_eq!(free, self.free.len as usize, "every free slot is in the free list");
        assert_eq!(seen + self.free.len, self.slots.len, "every slot is in a list");
    }

    /// Everybody in a class, the front first.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn members(&self, chain: &Chain) -> impl Iterator<Item = Key> {
        std::iter::successors(self.key(chain.first), |key| self.key(self.next(key.slot, By::Class)))
    }
}
