//! One look at one waiter: it goes, it is refused, or it stays.

use smallvec::SmallVec;
use tokio::time::Instant;

use super::asking::{self, Asking, Never, Take};
use super::core::{Core, limits};
use super::line::{Hold, Key, Landing, Limit, Outcome, Waiter};
use super::outbox::Outbox;
use super::stand::Spot;
use super::taken::Taken;
use crate::demand::Demand;
use crate::error::Defect;
use crate::events::EventKind;

/// What a look at a waiter found.
enum Verdict {
    /// Its demand is taken.
    Goes(Taken),
    /// It cannot go now, and is to stand here.
    Stays(Spot),
    /// The admission itself is broken.
    Breaks(Box<Defect>),
}

impl Core {
    /// Looks at one waiter. Answers whether it left the line.
    pub(super) fn look(
        &mut self,
        key: Key,
        ahead: Option<&Demand>,
        now: Instant,
        out: &mut Outbox,
    ) -> bool {
        let Some(waiter) = self.line.waiter(key) else { return true };
        let asking = Asking { id: waiter.id, now, head: ahead };
        self.counters.count_look(&waiter.demand);
        let open = self.is_open(now);
        let mut short = std::mem::take(&mut self.short);
        let verdict = self.judge(key, &waiter.demand, asking, open, &mut short);
        let left = match verdict {
            Ok(Verdict::Goes(taken)) => {
                self.land(key, taken, now, out);
                true
            }
            Ok(Verdict::Breaks(defect)) => {
                self.close(*defect, now, out);
                true
            }
            Ok(Verdict::Stays(spot)) => {
                self.file(key, spot, now, out);
                self.hold_on(key, open, &short, now, out);
                self.index.was_shut |= !open;
                false
            }
            Err(never) => {
                self.fail(key, never.error, &[Limit::Entry(never.index)], now, out);
                true
            }
        };
        self.short = short;
        left
    }

    /// Asks the accounts of a waiter, and takes what it wants if it can have it.
    fn judge(
        &self,
        key: Key,
        demand: &Demand,
        asking: Asking<'_>,
        open: bool,
        short: &mut Vec<u32>,
    ) -> Result<Verdict, Never> {
        // Where one gate is all there is, a take that does not fit leaves nothing to undo.
        let is_one = matches!(demand.entries(), [entry] if entry.permits().is_some());
        if open && is_one {
            short.clear();
        } else {
            asking::survey(demand, asking, short)?;
        }
        if open && short.is_empty() {
            let mut taken = Taken::at(asking.now);
            match asking::take_all(demand, asking, self.admission, &mut taken) {
                Take::All => return Ok(Verdict::Goes(taken)),
                // It is the one there is, another admission was quicker, or the account contradicts
                // itself.
                Take::Short(index) => short.push(index),
                Take::Never(never) => return Err(*never),
                Take::Defect(defect) => return Ok(Verdict::Breaks(defect)),
            }
        }
        let spot = if asking.head.is_none() {
            Spot::Head(self.head_look(key, demand, asking, open, short)?)
        } else {
            match self.watch_of(demand, asking, short)? {
                Some((index, at)) => Spot::Under(index, at),
                None => Spot::Ready,
            }
        };
        Ok(Verdict::Stays(spot))
    }

    /// A waiter's demand is taken: it leaves the line with it.
    fn land(&mut self, key: Key, taken: Taken, now: Instant, out: &mut Outbox) {
        self.part(key, out);
        let Some(mut waiter) = self.line.lift(key) else { return };
        self.left(key, &waiter);
        self.count_grant(waiter.id, &waiter.demand, now);
        self.tally.granted_after(now.saturating_duration_since(waiter.arrived));
        if self.teller.is_watched() {
            self.tell_granted(&waiter, now, out);
        }
        out.wakers.extend(waiter.waker.take());
        self.counters.count_wake();
        self.line.lay(key, Outcome::Granted(Landing::new(waiter, taken, now)));
    }

    fn tell_granted(&mut self, waiter: &Waiter, now: Instant, out: &mut Outbox) {
        let demand = &waiter.demand;
        if let Some(since) = waiter.held_since(Limit::Valve) {
            let wait = Some(now.saturating_duration_since(since));
            self.tell(Limit::Valve, demand, EventKind::GrantedFromHold, wait, None, now, out);
        }
        for index in 0..demand.entries().len() {
            let limit = Limit::Entry(index as u32);
            let wait = waiter.held_since(limit).map(|since| now.saturating_duration_since(since));
            let kind = match wait {
                Some(_) => EventKind::GrantedFromHold,
                None => EventKind::GrantedImmediate,
            };
            self.tell(limit, demand, kind, wait, None, now, out);
        }
    }

    /// A waiter stays: what it is short of is counted and told, once each.
    pub(super) fn hold_on(
        &mut self,
        key: Key,
        open: bool,
        short: &[u32],
        now: Instant,
        out: &mut Outbox,
    ) {
        if !open {
            // Memory refused a waiter: from here on the line goes one at a time.
            self.turn.draining = true;
        }
        let Some(waiter) = self.line.waiter_mut(key) else { return };
        let first = waiter.holds.len();
        for limit in limits(open, short) {
            if !waiter.holds.iter().any(|hold| hold.limit() == limit) {
                waiter.holds.push(Hold::new(limit, waiter.arrived, now));
            }
        }
        if waiter.holds.len() > first {
            let demand = waiter.demand.clone();
            let new: SmallVec<[Limit; 4]> =
                waiter.holds[first..].iter().map(|hold| hold.limit()).collect();
            for limit in new {
                self.count_hold(limit, &demand, true);
                self.tell(limit, &demand, EventKind::Held, None, None, now, out);
            }
        }
    }
}
