//! A release whose permits go to the head as they are.

use std::task::Waker;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::core::{Core, Life};
use super::line::{Key, Landing, Limit, Outcome};
use super::taken::Taken;
use crate::account::AccountId;
use crate::demand::Demand;

/// What the next in line is short of: by account, for equals may name theirs in another order.
type Short = SmallVec<[AccountId; 4]>;

/// The head of the line and who comes next, when what is released can go from hand to hand.
pub(crate) struct HandOff {
    head: Key,
    next: Key,
    short: Short,
}

impl Core {
    /// Whether what a grant holds can go to the head as it is.
    ///
    /// The grant and the head want the same, permits only, of gates that nobody else uses. So the
    /// give and the take cancel out: no account changes. Whoever comes next is the head's equal too,
    /// so the same stays reserved, and as no account has changed, no answer has: nobody behind need
    /// be looked at. What waits to be looked at for another reason waits on.
    ///
    /// It is read off the gates themselves that the head fits (they may have shrunk meanwhile), and
    /// that the next does not (they may have grown): else a pass has to find out who goes.
    pub(crate) fn hand_off(&self, demand: &Demand, taken: &Taken) -> Option<HandOff> {
        let list = demand.list();
        let is_plain = list.is_counted()
            && taken.is_whole()
            && self.valve.is_none()
            && self.is_plain()
            && matches!(self.life, Life::Running(_));
        let head = self.index.head.as_ref().filter(|_| is_plain)?.key;
        let next = self.line.behind(head)?;
        let are_alike = self.line.head() == Some(head)
            && self.line.class_of(head) == self.line.class_of(next)
            && self.line.waiter(head)?.demand.is_like(demand);
        if !are_alike {
            return None;
        }
        let mut short = Short::new();
        for entry in &list.entries {
            let permits = entry.permits()?;
            let state = permits.state();
            if !permits.link.is_ours_alone() || state.in_use > state.capacity {
                return None;
            }
            let room = state.capacity - state.in_use;
            if entry.amount().requests > room {
                short.push(entry.id());
            }
        }
        (!short.is_empty()).then_some(HandOff { head, next, short })
    }

    /// Does it: the head has what the grant had. Answers whom to wake.
    pub(crate) fn hand_over(&mut self, hand_off: HandOff, now: Instant) -> Option<Waker> {
        let HandOff { head, next, short } = hand_off;
        let known_by = self.index.part(&mut self.line, head);
        debug_assert!(known_by.is_none(), "its equal is left in its class");
        let mut waiter = self.line.lift(head)?;
        self.left(head, &waiter);
        // One grant less, and one more.
        self.changes += 2;
        self.tally.granted_after(now.saturating_duration_since(waiter.arrived));
        let waker = waiter.waker.take();
        self.counters.count_wake();
        self.line.lay(head, Outcome::Granted(Landing::new(waiter, Taken::at(now), now)));
        if let Some(look) = &mut self.index.head {
            look.key = next;
            look.short.clone_from(&short);
        }
        if let Some(waiter) = self.line.waiter_mut(next) {
            for &account in &short {
                let Some(index) = waiter.demand.position(account) else { continue };
                let limit = Limit::Entry(index as u32);
                if waiter.held_since(limit).is_none() {
                    waiter.demand.entries()[index].link().count_waiting(true);
                    waiter.hold(limit, now);
                }
            }
        }
        waker
    }
}
