//! The short way in and out of an admission: one word, beside the lock.
//!
//! Most jobs find room and concern nobody but themselves. They need not see the admission's state,
//! only keep out while somebody changes it; and the admission need not see them, only their count.
//! So they pass a door:
//!
//! ```text
//!            a hold begins                  somebody passes
//!   Shut ◀───────────────────── Open ─────────────────────────▶ Passing
//!     │                          ▲ ▲                               │
//!     └──────────────────────────┘ └───────────────────────────────┘
//!       a hold, when it may stay open         it is through
//! ```
//!
//! Whoever holds the admission's lock shuts the door first, and only they open it. So a passage and
//! a hold exclude each other as two holds do, and a passage costs one read-modify-write where a lock
//! costs two. A passage touches only atomics, and at most one short lock of this crate's, a bucket's;
//! it calls nothing that is not ours and is over in no time, which is why others may spin.

use std::fmt;
use std::thread;
use std::time::Duration;

use super::Permits;
use crate::sync::{Arc, AtomicU64, Ordering, spin};

/// The word: how it stands in the lowest two bits, then how many came in since it was opened, then
/// how many are inside altogether.
#[derive(Debug)]
pub(crate) struct Door(AtomicU64);

const SHUT: u64 = 0;
const OPEN: u64 = 1;
const PASSING: u64 = 2;
const STANDS: u64 = 3;

const CAME: u64 = 1 << 2;
const INSIDE: u64 = 1 << 32;
/// From here on the door stays shut until somebody has counted: both counts stay far from their ends.
const MANY_CAME: u64 = INSIDE >> 1;
const MANY_INSIDE: u64 = 1 << 63;

/// How often somebody who wants to pass looks again while another does.
const SPINS: u32 = 64;
/// How often whoever waits for one to end yields after that, before it sleeps.
const YIELDS: u32 = 192;

/// Whether and how an account is taken in a passage.
pub enum InPassage<'a> {
    /// Its methods may be anybody's, and take any time.
    Never,
    /// By its permits: what is counted needs no asking.
    Counted(&'a Arc<Permits>),
    /// By its own `try_take`: that takes a lock held for some tens of instructions only, calls
    /// nothing that is not ours and goes by no id; nothing comes back as the work ends, and nothing
    /// is to be told of that.
    Brief,
}

impl fmt::Debug for InPassage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Never => "Never",
            Self::Counted(_) => "Counted",
            Self::Brief => "Brief",
        })
    }
}

/// Who came and who is inside, as counted at the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) came: u64,
    pub(crate) inside: usize,
}

impl Door {
    pub(crate) const fn shut_from_the_start() -> Self {
        Self(AtomicU64::new(SHUT))
    }

    /// Whether it stands open, at a glance.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) & STANDS != SHUT
    }

    /// Begins a passage, when the door is open.
    ///
    /// The exchange is sequentially consistent for [`wait`](Self::wait).
    #[inline]
    pub(crate) fn pass(&self) -> Option<Passage<'_>> {
        let mut spins = 0;
        loop {
            let word = self.0.load(Ordering::Relaxed);
            match word & STANDS {
                OPEN if word & (MANY_INSIDE | MANY_CAME) == 0 => {
                    let passing = word ^ OPEN ^ PASSING;
                    let order = Ordering::SeqCst;
                    if self.0.compare_exchange_weak(word, passing, order, Ordering::Relaxed).is_ok()
                    {
                        return Some(Passage { door: self, leaves: word });
                    }
                }
                PASSING if spins < SPINS => {}
                _ => return None,
            }
            spins += 1;
            if spins > SPINS {
                return None;
            }
            spin();
        }
    }

    /// Shuts the door, for whoever holds the admission's lock. Answers what was counted, unless it
    /// was shut already.
    #[inline]
    pub(crate) fn shut(&self) -> Option<Count> {
        // Nobody but the holder of the lock opens it, so shut is shut.
        if self.0.load(Ordering::Relaxed) & STANDS == SHUT {
            return None;
        }
        Some(self.shut_open())
    }

    #[inline(never)]
    fn shut_open(&self) -> Count {
        let mut rest = Rest::default();
        loop {
            let word = self.0.load(Ordering::Relaxed);
            if word & STANDS == OPEN
                && self
                    .0
                    .compare_exchange_weak(word, SHUT, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                let came = (word % INSIDE) / CAME;
                return Count { came, inside: (word / INSIDE) as usize };
            }
            rest.a_while();
        }
    }

    /// Opens the door, for whoever holds the admission's lock, with so many inside.
    #[inline]
    pub(crate) fn open(&self, inside: usize) {
        if let Some(inside) = (inside as u64).checked_mul(INSIDE)
            && inside < MANY_INSIDE
        {
            self.0.store(inside | OPEN, Ordering::Release);
        }
    }

    /// Waits until a passage that is under way, if one is, has ended.
    ///
    /// For whoever changed, before this, something that those who pass read in their passage: every
    /// passage that this does not wait for sees the change. Both sides write one word and then read
    /// the other's, all four sequentially consistent, so they cannot miss each other both: either
    /// the read here comes after the passage's exchange, and then it waits, or before, and then the
    /// change comes before the passage's read.
    ///
    /// It never waits for a hold, so it may be called under any lock, an admission's included.
    pub(crate) fn wait(&self) {
        let mut rest = Rest::default();
        while self.0.load(Ordering::SeqCst) & STANDS == PASSING {
            rest.a_while();
        }
    }
}

/// Somebody on the way in or out. The door is open again when this goes.
#[derive(Debug)]
pub(crate) struct Passage<'a> {
    door: &'a Door,
    /// The word to be left behind.
    leaves: u64,
}

impl Passage<'_> {
    /// One more has come in.
    #[inline]
    pub(crate) const fn came_in(&mut self) {
        // Neither overflows: the bits above were clear.
        self.leaves = self.leaves.wrapping_add(INSIDE + CAME);
    }

    /// One has gone out.
    #[inline]
    pub(crate) const fn went_out(&mut self) {
        self.leaves = self.leaves.wrapping_sub(INSIDE);
    }
}

impl Drop for Passage<'_> {
    #[inline]
    fn drop(&mut self) {
        // A plain store: nobody else writes the word while somebody passes.
        self.door.0.store(self.leaves, Ordering::Release);
    }
}

/// How to wait for a passage: it is over in no time, unless its thread was interrupted in it.
#[derive(Default)]
struct Rest {
    turns: u32,
}

impl Rest {
    fn a_while(&mut self) {
        self.turns = self.turns.saturating_add(1);
        match self.turns {
            _ if cfg!(admit_shuttle) => spin(),
            0..=SPINS => spin(),
            turns if turns <= SPINS + YIELDS => thread::yield_now(),
            // Whoever passes may be of a lower priority than we, and yielding not enough.
            _ => thread::sleep(Duration::from_micros(50)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicBool;

    #[test]
    fn a_door_counts_who_came_and_who_is_inside() {
        let door = Door::shut_from_the_start();
        assert!(door.pass().is_none());
        assert_eq!(door.shut(), None);
        door.open(5);
        door.pass().unwrap().came_in();
        door.pass().unwrap().came_in();
        door.pass().unwrap().went_out();
        drop(door.pass().unwrap());
        assert_eq!(door.shut(), Some(Count { came: 2, inside: 6 }));
        assert!(door.pass().is_none());
        door.open(usize::MAX);
        assert!(door.pass().is_none(), "more than can be counted pass no door");
    }

    #[test]
    fn a_door_that_has_counted_as_many_as_it_can_lets_nobody_pass_before_it_is_shut() {
        let (most_came, most_inside) = (MANY_CAME / CAME, MANY_INSIDE / INSIDE);
        for (came, inside) in [(most_came - 1, 0), (0, most_inside - 1)] {
            let door = Door(AtomicU64::new(inside * INSIDE + came * CAME + OPEN));
            door.pass().unwrap().came_in();
            assert!(door.pass().is_none());
            let (came, inside) = (came + 1, inside as usize + 1);
            assert_eq!(door.shut(), Some(Count { came, inside }));
        }
    }

    #[test]
    fn one_passes_at_a_time_and_nobody_during_a_hold() {
        let door = Arc::new(Door::shut_from_the_start());
        let busy = Arc::new(AtomicBool::new(false));
        door.open(0);
        let (passages, holds) = if cfg!(miri) { (100, 20) } else { (20_000, 2_000) };
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (door, busy) = (Arc::clone(&door), Arc::clone(&busy));
                thread::spawn(move || {
                    let mut passed = 0_u64;
                    for _ in 0..passages {
                        if let Some(mut passage) = door.pass() {
                            assert!(!busy.swap(true, Ordering::Relaxed));
                            passage.came_in();
                            passed += 1;
                            busy.store(false, Ordering::Relaxed);
                        }
                    }
                    passed
                })
            })
            .collect();
        let mut counted = 0;
        for _ in 0..holds {
            let count = door.shut().expect("it was open");
            assert!(!busy.load(Ordering::Relaxed));
            counted += count.came;
            door.open(count.inside);
            thread::yield_now();
        }
        let passed: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        let count = door.shut().expect("it was open");
        assert_eq!(counted + count.came, passed);
        assert_eq!(count.inside as u64, passed);
    }
}
