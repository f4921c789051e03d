//! The pass: one look at who can go now.
//!
//! This is the reference: it walks the whole line and asks everybody. It is linear in the waiters
//! and obviously right. The rest of the monitor knows it by few words (mark, step over, rest,
//! deadline), so that something quicker can take its place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::asking::{self, Asking, Never, Take};
use super::core::{Core, Noted, limits};
use super::line::{Key, Landing, Limit, Line, Outcome, Waiter};
use super::outbox::{self, Outbox};
use super::taken::Taken;
use crate::demand::Demand;
use crate::error::{Defect, panic_message};
use crate::events::EventKind;
use crate::sync::Arc;

/// How many are looked at before the lock is let go for a moment.
const LOOKS_A_HOLD: usize = 4_096;
/// An account that breaks its word is asked again after this, doubling…
const FIRST_DOUBT: Duration = Duration::from_millis(1);
/// …as often as this: to about a second.
const MOST_DOUBLINGS: u8 = 10;

/// Where the walk over the line stands.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Something may have changed an answer since the walk began.
    is_marked: bool,
    /// Where an unfinished walk goes on.
    at: Option<Key>,
    /// How many looks the next hold may take. It grows while changes keep coming faster than a walk
    /// gets through, so that a walk always ends.
    looks: usize,
    /// The earliest instant at which the clock alone may let somebody go.
    deadline: Option<Instant>,
    /// The valve was willing when the walk began.
    began_open: bool,
}

impl Default for Walk {
    fn default() -> Self {
        Self { is_marked: false, at: None, looks: LOOKS_A_HOLD, deadline: None, began_open: false }
    }
}

impl Walk {
    /// Something but the clock may have changed an answer.
    pub(super) const fn mark(&mut self) {
        self.is_marked = true;
    }

    /// Whether there is something to look at, the clock aside.
    pub(super) const fn is_marked(&self) -> bool {
        self.is_marked || self.at.is_some()
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// A waiter leaves: the walk goes on behind it.
    pub(super) fn step_over(&mut self, line: &Line, key: Key) {
        if self.at == Some(key) {
            self.at = line.next(key);
        }
    }

    /// Nobody waits.
    pub(super) fn rest(&mut self) {
        *self = Self::default();
    }

    fn is_due(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Begins anew, or goes on where the last hold left off.
    fn begin(&mut self, open: bool) {
        if self.is_marked || self.at.is_none() {
            if self.at.take().is_some() {
                self.looks = self.looks.saturating_mul(2);
            }
            self.is_marked = false;
            self.deadline = None;
            self.began_open = open;
        }
    }

    fn arm(&mut self, at: Instant) {
        self.deadline = Some(self.deadline.map_or(at, |deadline| deadline.min(at)));
    }
}

impl Core {
    /// The evaluator's part: what is pending is looked at and who is late leaves. Answers whether
    /// it got through.
    pub(crate) fn turn(&mut self, now: Instant, out: &mut Outbox) -> bool {
        loop {
            if self.is_pending(now) && !self.pass(now, out) {
                return false;
            }
            self.expire(now, out);
            if !self.walk.is_marked() {
                return true;
            }
        }
    }

    /// Looks at whatever is pending, to the end.
    pub(super) fn catch_up(&mut self, now: Instant, out: &mut Outbox) {
        while self.is_pending(now) && !self.pass(now, out) {}
    }

    fn is_pending(&self, now: Instant) -> bool {
        // While the line drains, memory may have changed its mind, and tells nobody.
        !self.line.is_empty()
            && (self.walk.is_marked() || self.walk.is_due(now) || self.turn.draining)
    }

    /// One pass, or as much of it as one hold of the lock may take. Answers whether it ended.
    fn pass(&mut self, now: Instant, out: &mut Outbox) -> bool {
        match catch_unwind(AssertUnwindSafe(|| self.walk_on(now, out))) {
            Ok(ended) => ended,
            Err(payload) => {
                let message = panic_message(&*payload);
                self.close(Defect::new("a pass panicked", message), now, out);
                true
            }
        }
    }

    fn walk_on(&mut self, now: Instant, out: &mut Outbox) -> bool {
        self.walk.begin(self.is_open(now));
        let mut looks = 0;
        // Every hold begins at the head, again as long as heads leave.
        let head = loop {
            let Some(head) = self.line.head() else { return true };
            looks += 1;
            if !self.look(head, None, now, out) {
                break head;
            }
            if looks >= self.walk.looks {
                self.walk.at = self.walk.at.or_else(|| self.line.head());
                return self.walk.at.is_none();
            }
        };
        let Some(ahead) = self.head_demand() else { return true };
        let mut next = match self.walk.at.take() {
            Some(key) if key != head => Some(key),
            _ => self.line.next(head),
        };
        let mut ended = true;
        while let Some(key) = next {
            if looks >= self.walk.looks {
                self.walk.at = Some(key);
                ended = false;
                break;
            }
            looks += 1;
            next = self.line.next(key);
            self.look(key, Some(&ahead), now, out);
            if self.line.is_empty() {
                break;
            }
        }
        out.demands.push(ahead);
        if ended {
            self.walk.looks = LOOKS_A_HOLD;
            // Memory was willing and still is: whoever waits, waits on something else.
            if self.walk.began_open && self.is_open(now) {
                self.turn = crate::account::Turn::default();
            }
        }
        ended
    }

    /// Looks at one waiter. Answers whether it left the line.
    fn look(&mut self, key: Key, ahead: Option<&Demand>, now: Instant, out: &mut Outbox) -> bool {
        let Some(waiter) = self.line.waiter(key) else { return true };
        // Never the last owner: the waiter's own goes to its landing, or to the outbox.
        let demand = waiter.demand.clone();
        let asking = Asking { id: waiter.id, now, head: ahead };
        let mut short = std::mem::take(&mut self.short);
        let left = self.decide(key, &demand, asking, &mut short, out);
        self.short = short;
        left
    }

    fn decide(
        &mut self,
        key: Key,
        demand: &Demand,
        asking: Asking<'_>,
        short: &mut Vec<u32>,
        out: &mut Outbox,
    ) -> bool {
        let now = asking.now;
        let open = self.is_open(now);
        if let Err(never) = asking::survey(demand, asking, short) {
            self.fail(key, never.error, &[Limit::Entry(never.index)], now, out);
            return true;
        }
        if open && short.is_empty() {
            match asking::take_all(demand, asking, self.admission) {
                Take::All(parts) => {
                    self.land(key, Taken::new(parts), now, out);
                    return true;
                }
                // Another admission was quicker, or the account contradicts itself.
                Take::Short(index) => short.push(index),
                Take::Never(never) => {
                    self.fail(key, never.error, &[Limit::Entry(never.index)], now, out);
                    return true;
                }
                Take::Defect(defect) => {
                    self.close(defect, now, out);
                    return true;
                }
            }
        }
        let Some(waiter) = self.line.waiter(key) else { return true };
        let doubt = Doubt { named: waiter.named, breaches: waiter.breaches };
        match self.when(demand, asking, open, short, doubt) {
            Ok(when) => {
                self.stay(key, open, short, when, now, out);
                false
            }
            Err(never) => {
                self.fail(key, never.error, &[Limit::Entry(never.index)], now, out);
                true
            }
        }
    }

    /// A waiter's demand is taken: it leaves the line with it.
    fn land(&mut self, key: Key, taken: Taken, now: Instant, out: &mut Outbox) {
        let Some(mut waiter) = self.line.lift(key) else { return };
        self.left(key, &waiter);
        self.count_grant(waiter.id, &waiter.demand, now);
        self.tally.granted_after(now.saturating_duration_since(waiter.arrived));
        if self.teller.is_watched() {
            self.tell_granted(&waiter, now, out);
        }
        out.wakers.extend(waiter.waker.take());
        let landing = Landing { waiter, taken, at: now };
        self.line.lay(key, Outcome::Granted(Box::new(landing)));
    }

    fn tell_granted(&mut self, waiter: &Waiter, now: Instant, out: &mut Outbox) {
        let held = |limit| waiter.holds.iter().find(|hold| hold.0 == limit).map(|hold| hold.1);
        if let Some(since) = held(Limit::Valve) {
            let wait = Some(now.saturating_duration_since(since));
            self.tell(
                Limit::Valve,
                &waiter.demand,
                EventKind::GrantedFromHold,
                wait,
                None,
                now,
                out,
            );
        }
        for index in 0..waiter.demand.entries().len() {
            let limit = Limit::Entry(index as u32);
            let wait = held(limit).map(|since| now.saturating_duration_since(since));
            let kind = match wait {
                Some(_) => EventKind::GrantedFromHold,
                None => EventKind::GrantedImmediate,
            };
            self.tell(limit, &waiter.demand, kind, wait, None, now, out);
        }
    }

    /// A waiter stays: what it is short of is counted and told, once each, and its hour is set.
    pub(super) fn stay(
        &mut self,
        key: Key,
        open: bool,
        short: &[u32],
        when: When,
        now: Instant,
        out: &mut Outbox,
    ) {
        if !open {
            // Memory refused a waiter: from here on the line goes one at a time.
            self.turn.draining = true;
        }
        let stamp = self.changes;
        let Some(waiter) = self.line.waiter_mut(key) else { return };
        waiter.named = when.named.map(|at| (at, stamp));
        waiter.breaches = when.breaches;
        let first = waiter.holds.len();
        for limit in limits(open, short) {
            if !waiter.holds.iter().any(|&(held, _)| held == limit) {
                waiter.holds.push((limit, now));
            }
        }
        if waiter.holds.len() > first {
            let demand = waiter.demand.clone();
            let new: SmallVec<[Limit; 4]> =
                waiter.holds[first..].iter().map(|&(limit, _)| limit).collect();
            for limit in new {
                self.count_hold(limit, &demand, true);
                self.tell(limit, &demand, EventKind::Held, None, None, now, out);
            }
        }
        if let Some(at) = when.at {
            self.walk.arm(at);
        }
        if let Some(index) = when.broken
            && let Some(waiter) = self.line.waiter(key)
        {
            let entry = &waiter.demand.entries()[index as usize];
            let (id, account) = (entry.id(), Arc::clone(entry.name()));
            if self.note(id, Noted::BrokenWord) {
                let what =
                    "it says no at the instant it named itself; it is asked less and less often";
                out.lines.push(outbox::Line::BrokenWord { account, what });
            }
        }
    }

    /// When the clock alone lets a waiter go that now stays.
    pub(super) fn when(
        &self,
        demand: &Demand,
        asking: Asking<'_>,
        open: bool,
        short: &[u32],
        doubt: Doubt,
    ) -> Result<When, Never> {
        let now = asking.now;
        if !open {
            // Whatever else it is short of, memory's instant comes first.
            let at = self.valve.as_ref().and_then(|valve| valve.earliest(self.turn, now));
            let at = at.map(|at| at.max(now + FIRST_DOUBT));
            return Ok(When { at, ..When::default() });
        }
        let mut latest = now;
        let mut broken = None;
        let mut shared = false;
        for &index in short {
            let entry = &demand.entries()[index as usize];
            match asking::earliest(entry, index, asking)? {
                None => return Ok(When::default()),
                Some(at) => {
                    latest = latest.max(at);
                    shared |= entry.account().link().is_shared();
                    if at <= now && broken.is_none() {
                        broken = Some(index);
                    }
                }
            }
        }
        // A limit that tightened meanwhile (a 429) announces nothing and names a later instant: that
        // is no breach. One that goes on naming the very next moment is, and would have us spin.
        let due = doubt.named.is_some_and(|(at, stamp)| at <= now && stamp == self.changes);
        if broken.is_none() && due && latest < now + FIRST_DOUBT {
            broken = short.first().copied();
        }
        let Some(index) = broken else {
            return Ok(When { at: Some(latest), named: Some(latest), breaches: 0, broken: None });
        };
        // What another admission takes or gives is no event here, so a shared account is asked
        // again soon, and not suspected.
        let breaches = if shared { 0 } else { doubt.breaches };
        let pause = FIRST_DOUBT * (1 << breaches.min(MOST_DOUBLINGS));
        let at = latest.max(now + pause);
        Ok(When {
            at: Some(at),
            named: Some(at),
            breaches: (breaches + 1).min(MOST_DOUBLINGS),
            // Once or twice may be chance.
            broken: (breaches >= 2).then_some(index),
        })
    }
}

/// What is remembered of the word an account gave for a waiter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Doubt {
    named: Option<(Instant, u64)>,
    breaches: u8,
}

/// When a waiter is worth looking at again, from the clock alone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct When {
    at: Option<Instant>,
    /// The same, where accounts named it.
    named: Option<Instant>,
    breaches: u8,
    /// An account to be complained of.
    broken: Option<u32>,
}
