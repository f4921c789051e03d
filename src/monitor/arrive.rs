//! Arrivals: somebody asks, and goes at once, waits, or leaves.

use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::asking::{self, Asking, Never, Take};
use super::core::{Core, Life, limits, reason_of};
use super::line::{Key, Limit, Waiter};
use super::outbox::{self, Outbox};
use super::taken::Taken;
use crate::demand::Demand;
use crate::error::{AdmitError, Defect, Shortage};
use crate::events::{EventKind, RejectReason};

/// How often a newcomer that could go lets those be looked at who want the same and came first. One
/// account that grows again and again must not hold everybody up.
const TURNS_OF_EQUALS: u32 = 4;

/// Somebody who asks to be admitted.
pub(crate) struct Asker {
    /// Zero until the first ask.
    pub(crate) id: u64,
    pub(crate) demand: Demand,
    pub(crate) want: Want,
}

/// What an asker does when it cannot go at once.
pub(crate) enum Want {
    /// Leave.
    Now,
    /// Wait, for so long at the most.
    Wait { within: Option<Duration>, waker: Option<Waker> },
}

impl Asker {
    /// One that waits if it must, after the inline path did not lead through.
    pub(crate) const fn waiting(id: u64, demand: Demand, within: Option<Duration>) -> Self {
        Self { id, demand, want: Want::Wait { within, waker: None } }
    }

    /// One that does not wait, after the inline path did not lead through.
    pub(crate) const fn passing(id: u64, demand: Demand) -> Self {
        Self { id, demand, want: Want::Now }
    }

    /// Whether it came with a waker, and so may be parked.
    pub(crate) const fn has_waker(&self) -> bool {
        matches!(self.want, Want::Wait { waker: Some(_), .. })
    }
}

/// What became of an asker.
pub(crate) enum Arrival {
    Granted(Taken),
    Parked(Key),
    /// It must wait, and has no waker with it. Nothing has happened.
    NeedsWaker,
    WouldWait(Vec<Shortage>),
    Failed(AdmitError),
}

impl Core {
    /// Whether an arrival of this demand must know the time.
    pub(crate) fn needs_clock(&self, demand: &Demand) -> bool {
        demand.list().timed
            || self.valve.is_some()
            || self.holders.is_some()
            || !self.stands_clear(demand)
    }

    /// Whether nobody who waits names any account of the demand: then there is nobody to overtake
    /// on it, nothing is set aside there, and nothing pending can concern it.
    #[inline]
    pub(super) fn stands_clear(&self, demand: &Demand) -> bool {
        self.line.is_empty()
            || (!self.turn.draining
                && !demand.entries().iter().any(|entry| entry.link().is_named()))
    }

    /// Whether a newcomer need not let what is pending be looked at first.
    ///
    /// Memory is named by everybody: who stands clear of all accounts may still take the place there
    /// of somebody who can go and was not looked at yet.
    fn goes_ahead(&self, demand: &Demand, now: Instant) -> bool {
        self.stands_clear(demand)
            && (self.valve.is_none() || self.line.is_empty() || !self.is_pending(now))
    }

    /// The inline path: a demand that fits, when there is nobody to overtake and nobody to tell. Everybody
    /// names memory, so where it is watched and somebody waits there is.
    /// Else everything is left as it was, and the long way decides, under the id answered: zero when
    /// nobody was asked.
    #[inline]
    pub(crate) fn take_inline(
        &mut self,
        demand: &Demand,
        now: Instant,
    ) -> Result<(u64, Taken), u64> {
        let list = demand.list();
        let is_inline = self.is_plain()
            && self.stands_clear(demand)
            && (self.valve.is_none() || self.line.is_empty())
            && list.fault.is_none()
            && list.saturated.is_none()
            && !asking::is_delicate(demand)
            && self.is_open(now);
        if !is_inline {
            return Err(0);
        }
        self.know(demand);
        let id = self.ids.next();
        let mut taken = Taken::at(now);
        let asking = Asking { id, now, head: None };
        match asking::take_all(demand, asking, self.admission, &mut taken) {
            Take::All => {
                self.count_grant(id, demand, now);
                self.tally.granted_at_once(1);
                Ok((id, taken))
            }
            Take::Short(_) | Take::Never(_) => Err(id),
            Take::Defect(defect) => {
                self.unhandled = Some(*defect);
                Err(id)
            }
        }
    }

    /// Somebody asks to be admitted, or asks again with a waker.
    pub(crate) fn arrive(&mut self, asker: &mut Asker, now: Instant, out: &mut Outbox) -> Arrival {
        if let Some(defect) = self.unhandled.take() {
            self.close(defect, now, out);
        }
        if let Some(error) = self.life.refusal() {
            return self.turn_away(asker, error, &[], now, out);
        }
        if asker.id == 0 {
            asker.id = self.ids.next();
        }
        if asker.demand.is_empty() {
            return Arrival::Granted(self.grant_at_once(asker, Taken::at(now), now, out));
        }
        if let Err(never) = asking::precheck(&asker.demand) {
            return self.refuse(asker, never, now, out);
        }
        self.know(&asker.demand);
        let goes_ahead = self.goes_ahead(&asker.demand, now);
        if !goes_ahead {
            // A newcomer overtakes nobody: what is pending is looked at first, by whoever comes.
            self.catch_up(now, out);
            if let Some(error) = self.life.refusal() {
                return self.turn_away(asker, error, &[], now, out);
            }
        }
        let mut turns = TURNS_OF_EQUALS;
        loop {
            let head = if goes_ahead { None } else { self.head_demand() };
            let asking = Asking { id: asker.id, now, head: head.as_ref() };
            let arrival = self.ask(asker, asking, turns == 0, out);
            out.demands.extend(head);
            if let Some(arrival) = arrival {
                return arrival;
            }
            turns -= 1;
            for entry in asker.demand.entries() {
                self.changed(entry.id());
            }
            self.catch_up(now, out);
            if let Some(error) = self.life.refusal() {
                return self.turn_away(asker, error, &[], now, out);
            }
        }
    }

    /// Asks for a newcomer. Answers `None` when it could go, and so perhaps could somebody who wants
    /// the same and came first, unless `at_once` says not to look at that.
    ///
    /// All that was pending has been looked at. But an account may grow in the middle of this, on
    /// another thread, and its announcement not be here yet.
    fn ask(
        &mut self,
        asker: &mut Asker,
        asking: Asking<'_>,
        at_once: bool,
        out: &mut Outbox,
    ) -> Option<Arrival> {
        let now = asking.now;
        // What stopped those before it, in this hold, stops it too: memory may be read anew at any
        // moment, by whoever else uses it.
        let open = self.index.closed.is_none() && self.is_open(now);
        let mut short = std::mem::take(&mut self.short);
        let arrival = match asking::survey(&asker.demand, asking, &mut short) {
            // Never comes before memory and before the bound of the line.
            Err(never) => self.refuse(asker, never, now, out),
            Ok(()) if open && short.is_empty() => {
                if !at_once && self.index.has_class(&asker.demand) {
                    self.short = short;
                    return None;
                }
                let mut taken = Taken::at(now);
                match asking::take_all(&asker.demand, asking, self.admission, &mut taken) {
                    Take::All => Arrival::Granted(self.grant_at_once(asker, taken, now, out)),
                    Take::Short(index) => {
                        short.push(index);
                        self.must_wait(asker, asking, open, &short, out)
                    }
                    Take::Never(never) => self.refuse(asker, *never, now, out),
                    Take::Defect(defect) => self.give_up(asker, *defect, now, out),
                }
            }
            Ok(()) => self.must_wait(asker, asking, open, &short, out),
        };
        self.short = short;
        Some(arrival)
    }

    /// It cannot go now: it waits, if it wants to and may.
    fn must_wait(
        &mut self,
        asker: &mut Asker,
        asking: Asking<'_>,
        open: bool,
        short: &[u32],
        out: &mut Outbox,
    ) -> Arrival {
        let now = asking.now;
        let within = match &asker.want {
            // Turned away by memory, it begins no drain.
            Want::Now => {
                return Arrival::WouldWait(self.shortages(&asker.demand, asking, open, short));
            }
            Want::Wait { within, .. } => *within,
        };
        if self.line.len() >= self.max_waiting {
            let (waiting, limit) = (self.line.len(), self.max_waiting);
            let limits: SmallVec<[Limit; 4]> = limits(open, short).collect();
            let full = AdmitError::QueueFull { waiting, limit };
            return self.turn_away(asker, full, &limits, now, out);
        }
        if within.is_some_and(|within| within.is_zero()) {
            let shortages = self.shortages(&asker.demand, asking, open, short);
            let limits: SmallVec<[Limit; 4]> = limits(open, short).collect();
            let late = AdmitError::TimedOut { waited: Duration::ZERO, shortages };
            return self.turn_away(asker, late, &limits, now, out);
        }
        if !asker.has_waker() {
            return Arrival::NeedsWaker;
        }
        let spot = match self.spot(&asker.demand, asking, open, short) {
            Ok(spot) => spot,
            Err(never) => return self.refuse(asker, never, now, out),
        };
        // Taken only now: on every way out before, the waker stays with the asker, whose owner drops
        // it outside the lock. What a waker does as it drops is not ours.
        let waker = match &mut asker.want {
            Want::Now => None,
            Want::Wait { waker, .. } => waker.take(),
        };
        // A limit too far ahead to be told is no limit.
        let expires = within.and_then(|within| now.checked_add(within));
        for entry in asker.demand.entries() {
            entry.link().count_naming(true);
        }
        let key = self.line.push(Waiter {
            id: asker.id,
            demand: std::mem::take(&mut asker.demand),
            waker,
            arrived: now,
            expires,
            holds: SmallVec::new(),
        });
        self.expiries.extend(expires.map(|at| (at, key)));
        self.hold_on(key, open, short, now, out);
        self.file_newcomer(key, spot, open, now, out);
        if matches!(self.life, Life::Unstarted) && !self.warned_unstarted {
            self.warned_unstarted = true;
            out.lines.push(outbox::Line::NotStarted);
        }
        Arrival::Parked(key)
    }

    /// A grant to somebody who never waited.
    fn grant_at_once(
        &mut self,
        asker: &Asker,
        taken: Taken,
        now: Instant,
        out: &mut Outbox,
    ) -> Taken {
        self.count_grant(asker.id, &asker.demand, now);
        self.tally.granted_at_once(1);
        self.look_if_shut_behind(now);
        if self.teller.is_watched() {
            for index in 0..asker.demand.entries().len() {
                let limit = Limit::Entry(index as u32);
                self.tell(limit, &asker.demand, EventKind::GrantedImmediate, None, None, now, out);
            }
        }
        taken
    }

    /// Memory that let a newcomer go may let nobody follow, as where it was its one job in spite of the
    /// latch: then it is what keeps those who wait, too, and they drain. The end of this hold finds that
    /// there is something to look at, and wakes the evaluator.
    fn look_if_shut_behind(&mut self, now: Instant) {
        if self.valve.is_some()
            && !self.line.is_empty()
            && !self.turn.draining
            && !self.is_open(now)
        {
            self.index.is_wanted = true;
        }
    }

    /// Refuses a newcomer for the reason one of its accounts gave.
    fn refuse(&mut self, asker: &Asker, never: Never, now: Instant, out: &mut Outbox) -> Arrival {
        self.turn_away(asker, never.error, &[Limit::Entry(never.index)], now, out)
    }

    /// The admission itself is broken: it closes, and the newcomer hears it like everybody else.
    fn give_up(
        &mut self,
        asker: &Asker,
        defect: Defect,
        now: Instant,
        out: &mut Outbox,
    ) -> Arrival {
        let defect = self.close(defect, now, out);
        self.turn_away(asker, AdmitError::Closed(defect), &[], now, out)
    }

    /// A newcomer leaves without a grant. `on` is what it was short of or refused by; when that is
    /// nothing, every entry hears of it.
    fn turn_away(
        &mut self,
        asker: &Asker,
        error: AdmitError,
        on: &[Limit],
        now: Instant,
        out: &mut Outbox,
    ) -> Arrival {
        self.tally.left(&error);
        self.tell_rejected(&asker.demand, on, reason_of(&error), now, out);
        Arrival::Failed(error)
    }

    /// A newcomer whose token was cancelled before it asked.
    pub(crate) fn cancelled_unasked(&mut self, demand: &Demand, now: Instant, out: &mut Outbox) {
        self.tally.left(&AdmitError::Cancelled);
        self.tell_rejected(demand, &[], RejectReason::Cancelled, now, out);
    }
}
