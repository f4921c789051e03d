//! A counter of permits that the monitor may change without asking its account.

use std::fmt;

use tokio::time::Instant;

use super::{AccountLink, Ask, Charge, Refusal};
use crate::amount::Amount;
use crate::sync::{Arc, AtomicU64, Ordering};

/// The permits of a gate: its link, and capacity and use in one word.
///
/// There are three ways to change the word:
///
/// - **in a hold** of an admission that uses the gate, by a read-modify-write;
/// - **in a passage** of the one admission that uses the gate ([`Door`](super::Door)), by a load and
///   a store: nobody else writes it then;
/// - **from elsewhere**: a resize, or a call that comes from no admission. Such a call first says
///   that it is there, which the link shows to whoever passes, and waits for the passage that did
///   not see it.
///
/// When a second admission attaches, the link says so for good, and nobody passes any more.
pub struct Permits {
    /// First, and what a passage reads of the link beside it: one cache line.
    word: AtomicU64,
    pub(crate) link: AccountLink,
}

/// Capacity and permits in use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) capacity: u32,
    pub(crate) in_use: u32,
}

impl State {
    pub(crate) const fn pack(self) -> u64 {
        ((self.capacity as u64) << 32) | self.in_use as u64
    }

    pub(crate) const fn unpack(word: u64) -> Self {
        Self { capacity: (word >> 32) as u32, in_use: word as u32 }
    }

    fn answer(self, ask: &Ask) -> Result<bool, Refusal> {
        let Amount { requests, units } = ask.mine;
        if u64::from(requests) != units && !ask.mine.is_saturated() {
            return Err(Refusal::new(format!(
                "{} asked of a gate, which counts permits: tokens asked of a gate are a mistake; \
                 ask for permits",
                ask.mine
            )));
        }
        if requests > self.capacity || ask.mine.is_saturated() {
            return Err(Refusal::never_fits(ask.mine, Amount::permits(self.capacity)));
        }
        let reserved = u64::from(ask.reserved_ahead.requests);
        if ask.reserved_ahead.is_saturated() {
            return Ok(false);
        }
        Ok(u64::from(self.in_use) + u64::from(requests) + reserved <= u64::from(self.capacity))
    }
}

impl Permits {
    pub(crate) fn new(link: AccountLink, capacity: u32) -> Arc<Self> {
        let word = AtomicU64::new(State { capacity, in_use: 0 }.pack());
        Arc::new(Self { word, link })
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        State::unpack(self.word.load(Ordering::Acquire))
    }

    pub(crate) fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        self.ordered().answer(ask)
    }

    /// Check and debit in one step, for whoever holds an admission that uses the gate.
    pub(crate) fn take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        let taken = self.update(|state| {
            let fits = matches!(state.answer(ask), Ok(true));
            fits.then(|| State { in_use: state.in_use + ask.mine.requests, ..state })
        });
        match taken {
            Ok(_) => Ok(Some(ask.now)),
            Err(state) => state.answer(ask).map(|_| None),
        }
    }

    /// Credits a charge, for whoever holds an admission that uses the gate.
    pub(crate) fn give(&self, charge: &Charge) -> Amount {
        let mine = charge.amount.requests;
        let before = self
            .update(|state| Some(State { in_use: state.in_use.saturating_sub(mine), ..state }))
            .unwrap_or_else(|state| state);
        Amount::permits(mine.min(before.in_use))
    }

    /// Changes the capacity, from anywhere. Answers what it was.
    pub(crate) fn resize(&self, capacity: u32) -> u32 {
        let _shown = self.link.show_elsewhere();
        let before = self.update(|state| Some(State { capacity, ..state }));
        before.unwrap_or_else(|state| state).capacity
    }

    /// The state as an answer may be based on it.
    ///
    /// A waiter is parked because of a no, and the thread that then gives a permit back must see
    /// that somebody waits. The asker publishes that before it asks, the giver looks for it after
    /// it gave. Were the ask a plain load, both could miss each other: the load may be answered
    /// with the state before the give while the giver's look, too, is answered with the state
    /// before the publishing. An acquire-release read-modify-write has a place in the one order of
    /// all changes of this word: a give that the ask did not see comes after it there, reads the
    /// asker's write from it, and so sees what the asker published before. (A give in a passage is
    /// none. It excludes every ask of its own admission, and there is no other.)
    fn ordered(&self) -> State {
        State::unpack(self.word.fetch_add(0, Ordering::AcqRel))
    }

    /// Changes the state in one step; answers what it was, as `Err` when it is to stay so.
    ///
    /// `change` sees whatever is current, perhaps a stale value first; it is not final until an
    /// exchange succeeded, nor is its `None` until an ordered read confirmed it.
    fn update(&self, mut change: impl FnMut(State) -> Option<State>) -> Result<State, State> {
        let mut current = self.word.load(Ordering::Relaxed);
        loop {
            let state = State::unpack(current);
            let Some(next) = change(state) else {
                let confirmed = self.ordered();
                if confirmed == state {
                    return Err(state);
                }
                current = confirmed.pack();
                continue;
            };
            match self.word.compare_exchange_weak(
                current,
                next.pack(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(state),
                Err(actual) => current = actual,
            }
        }
    }

    /// Whether so many may be taken in the passage under way.
    #[inline]
    pub(crate) fn has_in_passage(&self, amount: Amount) -> bool {
        // The link first: a resize that it does not show any more has been then, and is seen, and
        // one that it does not show yet waits. The other way round, one that comes and goes between
        // the two looks would have had us judge by the capacity before it.
        self.link.may_be_passed() && {
            let State { capacity, in_use } = State::unpack(self.word.load(Ordering::Relaxed));
            u64::from(in_use) + u64::from(amount.requests) <= u64::from(capacity)
        }
    }

    /// Takes so many, which were [there](Self::has_in_passage) in this very passage.
    #[inline]
    pub(crate) fn take_in_passage(&self, amount: Amount) {
        let word = self.word.load(Ordering::Relaxed);
        self.word.store(word.wrapping_add(u64::from(amount.requests)), Ordering::Relaxed);
    }

    /// Whether so many may be given back in the passage under way.
    #[inline]
    pub(crate) fn holds_in_passage(&self, amount: Amount) -> bool {
        self.link.may_be_passed()
            && State::unpack(self.word.load(Ordering::Relaxed)).in_use >= amount.requests
    }

    /// Gives back so many, which were [held](Self::holds_in_passage) in this very passage.
    #[inline]
    pub(crate) fn give_in_passage(&self, amount: Amount) {
        let word = self.word.load(Ordering::Relaxed);
        self.word.store(word.wrapping_sub(u64::from(amount.requests)), Ordering::Relaxed);
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let State { capacity, in_use } = self.state();
        f.debug_struct("Permits")
            .field("link", &self.link)
            .field("capacity", &capacity)
            .field("in_use", &in_use)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::Inbox;
    use super::*;

    const TIMES: u32 = if cfg!(miri) { 8 } else { 2_000 };

    #[test]
    fn strangers_and_resizes_beside_passages_lose_no_permit() {
        let permits = Permits::new(AccountLink::new("gate").unwrap(), u32::MAX);
        let inbox = Arc::new(Inbox::new(1));
        permits.link.attach(&inbox);
        inbox.door.open(0);
        let one = Amount::permits(1);
        let ask = Ask::new(1, one, Instant::now());
        let (passed, taken) = thread::scope(|scope| {
            let passing = scope.spawn(|| {
                let mut passed = 0;
                for _ in 0..TIMES {
                    let Some(mut passage) = inbox.door.pass() else { continue };
                    if permits.has_in_passage(one) {
                        permits.take_in_passage(one);
                        passage.came_in();
                        passed += 1;
                    }
                }
                passed
            });
            let resizing = scope.spawn(|| {
                for less in 0..TIMES / 2 {
                    permits.resize(u32::MAX - less);
                }
            });
            let strangers = [(); 2].map(|()| {
                scope.spawn(|| {
                    (0..TIMES)
                        .filter(|_| {
                            permits.link.stay_elsewhere();
                            permits.take(&ask).unwrap().is_some()
                        })
                        .count()
                })
            });
            resizing.join().unwrap();
            let taken: usize = strangers.into_iter().map(|thread| thread.join().unwrap()).sum();
            (passing.join().unwrap(), taken)
        });
        assert_eq!(inbox.door.shut().map(|count| count.inside), Some(passed));
        assert_eq!(permits.state().in_use as usize, passed + taken);
    }
}
