//! The state of one admission and its rules: plain data behind one lock.
//!
//! Nothing here locks, reads a clock, wakes, sends or logs. Time comes in as an argument; what is to
//! be done outside goes out in the [`Outbox`]. A panic of an account is contained where it is asked.
//!
//! # Invariants
//!
//! 1. A waiter holds nothing: whatever an attempt took and could not complete is given back before
//!    the attempt returns.
//! 2. `line` stands in order of arrival, and only its head has a reservation: everybody else asks
//!    with the head's amounts set aside.
//! 3. Between passes, either nobody who waits could go, or `walk` says there is something to look
//!    at, or its deadline is no later than the first instant at which the clock lets somebody go.
//! 4. `held` counts the grants that were made and not settled, those that landed and were not
//!    collected among them.
//! 5. An account's `waiting` counts the waiters that hold a [`Limit`] on it; each such hold was told
//!    once as `Held` and is ended once, by `GrantedFromHold` or `Rejected`.
//! 6. `expiries` holds exactly the waiters in the line that have a limit in time.

use std::collections::{BTreeSet, HashMap};
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::asking::{self, Asking, Never, Take};
use super::ids::Ids;
use super::line::{Key, Landing, Limit, Line, Outcome, Waiter};
use super::outbox::{self, Outbox};
use super::pass::{Doubt, Walk};
use super::taken::{Part, Taken};
use super::tally::Tally;
use super::teller::Teller;
use crate::account::{Account, AccountId, Inbox, Marks, Turn, Valve};
use crate::demand::Demand;
use crate::error::{AdmitError, Defect, Shortage};
use crate::events::{EventKind, RejectReason};
use crate::sync::{Arc, Weak};

/// The life of an admission.
///
/// ```text
///                start                 stop, last handle
///   Unstarted ──────────▶ Running ───────────────────────▶ Stopped
///       ▲                    │ │
///       └────────────────────┘ └──────────────▶ Closed
///         its runtime is gone     a defect
/// ```
///
/// `stop` and a defect end an unstarted one too. `Stopped` and `Closed` are final.
#[derive(Clone, Debug)]
pub(crate) enum Life {
    Unstarted,
    /// With the generation of the evaluator that runs, so that a lost one ends only its own.
    Running(u64),
    Stopped,
    Closed(Arc<Defect>),
}

impl Life {
    /// Why nothing is granted any more, if so.
    pub(crate) fn refusal(&self) -> Option<AdmitError> {
        match self {
            Self::Unstarted | Self::Running(_) => None,
            Self::Stopped => Some(AdmitError::ShutDown),
            Self::Closed(defect) => Some(AdmitError::Closed(Arc::clone(defect))),
        }
    }
}

/// What an admission keeps of an account it has seen.
pub(crate) struct Record {
    pub(crate) account: Weak<dyn Account>,
    /// What was logged about it already, as bits of [`Noted`].
    noted: u8,
}

/// Things that are logged once an account.
#[derive(Clone, Copy)]
pub(crate) enum Noted {
    BrokenWord = 1,
    Panicked = 2,
}

/// Who holds permits, since when: kept only when that was asked for.
pub(crate) struct Holder {
    pub(crate) demand: Demand,
    pub(crate) since: Instant,
}

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

pub(crate) struct Core {
    pub(super) admission: u64,
    pub(crate) life: Life,
    pub(crate) line: Line,
    pub(super) walk: Walk,
    pub(super) records: HashMap<AccountId, Record>,
    /// Only to be handed to the links of accounts; the face reads it.
    inbox: Arc<Inbox>,
    pub(super) valve: Option<Arc<dyn Valve>>,
    pub(super) turn: Turn,
    max_waiting: usize,
    /// The latest instant a decision was made at.
    pub(crate) latest: Instant,
    ids: Ids,
    pub(super) held: usize,
    pub(super) expiries: BTreeSet<(Instant, Key)>,
    pub(crate) tally: Tally,
    pub(crate) teller: Teller,
    pub(super) holders: Option<HashMap<u64, Holder>>,
    warned_unstarted: bool,
    /// Evaluators started so far.
    pub(crate) generations: u64,
    /// Whether the inbox has been told that somebody waits.
    pub(crate) is_listening: bool,
    /// Counts everything but the passing of time that may change an answer.
    pub(super) changes: u64,
    /// What the evaluator sleeps until.
    pub(crate) armed: Option<Instant>,
    /// The entries found short by the last survey: kept to be used again.
    pub(super) short: Vec<u32>,
}

/// What an admission is built with.
pub(crate) struct Settings {
    pub(crate) valve: Option<Arc<dyn Valve>>,
    pub(crate) max_waiting: usize,
    pub(crate) track_holders: bool,
}

impl Core {
    pub(crate) fn new(inbox: Arc<Inbox>, settings: Settings, now: Instant) -> Self {
        Self {
            admission: inbox.admission(),
            life: Life::Unstarted,
            line: Line::new(),
            walk: Walk::default(),
            records: HashMap::new(),
            inbox,
            valve: settings.valve,
            turn: Turn::default(),
            max_waiting: settings.max_waiting,
            latest: now,
            ids: Ids::default(),
            held: 0,
            expiries: BTreeSet::new(),
            tally: Tally::default(),
            teller: Teller::default(),
            holders: settings.track_holders.then(HashMap::new),
            warned_unstarted: false,
            generations: 0,
            is_listening: false,
            changes: 0,
            armed: None,
            short: Vec::new(),
        }
    }

    /// Whether an arrival of this demand must know the time.
    pub(crate) fn needs_clock(&self, demand: &Demand) -> bool {
        demand.list().timed
            || self.valve.is_some()
            || !self.line.is_empty()
            || self.holders.is_some()
    }

    /// Somebody asks to be admitted, or asks again with a waker.
    pub(crate) fn arrive(&mut self, asker: &mut Asker, now: Instant, out: &mut Outbox) -> Arrival {
        if let Some(error) = self.life.refusal() {
            return self.turn_away(asker, error, &[], now, out);
        }
        if asker.id == 0 {
            asker.id = self.ids.next();
        }
        if asker.demand.is_empty() {
            return Arrival::Granted(self.grant_at_once(asker, SmallVec::new(), now, out));
        }
        if let Err(never) = asking::precheck(&asker.demand) {
            return self.refuse(asker, never, now, out);
        }
        self.know(&asker.demand);
        if !self.line.is_empty() {
            // A newcomer overtakes nobody: what is pending is looked at first, by whoever comes.
            self.catch_up(now, out);
            if let Some(error) = self.life.refusal() {
                return self.turn_away(asker, error, &[], now, out);
            }
        }
        let head = self.head_demand();
        let asking = Asking { id: asker.id, now, head: head.as_ref() };
        let arrival = self.ask(asker, asking, out);
        out.demands.extend(head);
        arrival
    }

    fn ask(&mut self, asker: &mut Asker, asking: Asking<'_>, out: &mut Outbox) -> Arrival {
        let now = asking.now;
        let open = self.is_open(now);
        if open && asking.head.is_none() && !asking::is_delicate(&asker.demand) {
            // The inline path: debit first, survey only on failure.
            match asking::take_all(&asker.demand, asking, self.admission) {
                Take::All(parts) => {
                    return Arrival::Granted(self.grant_at_once(asker, parts, now, out));
                }
                Take::Short(_) => {}
                Take::Never(never) => return self.refuse(asker, never, now, out),
                Take::Defect(defect) => return self.give_up(asker, defect, now, out),
            }
        }
        let mut short = std::mem::take(&mut self.short);
        let arrival = match asking::survey(&asker.demand, asking, &mut short) {
            // Never comes before memory and before the bound of the line.
            Err(never) => self.refuse(asker, never, now, out),
            Ok(()) if open && short.is_empty() => {
                match asking::take_all(&asker.demand, asking, self.admission) {
                    Take::All(parts) => {
                        Arrival::Granted(self.grant_at_once(asker, parts, now, out))
                    }
                    Take::Short(index) => {
                        short.push(index);
                        self.must_wait(asker, asking, open, &short, out)
                    }
                    Take::Never(never) => self.refuse(asker, never, now, out),
                    Take::Defect(defect) => self.give_up(asker, defect, now, out),
                }
            }
            Ok(()) => self.must_wait(asker, asking, open, &short, out),
        };
        self.short = short;
        arrival
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
        let (within, waker) = match &mut asker.want {
            // Turned away by memory, it begins no drain.
            Want::Now => {
                return Arrival::WouldWait(self.shortages(&asker.demand, asking, open, short));
            }
            Want::Wait { within, waker } => (*within, waker.take()),
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
        if waker.is_none() {
            return Arrival::NeedsWaker;
        }
        let when = match self.when(&asker.demand, asking, open, short, Doubt::default()) {
            Ok(when) => when,
            Err(never) => return self.refuse(asker, never, now, out),
        };
        // A limit too far ahead to be told is no limit.
        let expires = within.and_then(|within| now.checked_add(within));
        let key = self.line.push(Waiter {
            id: asker.id,
            demand: std::mem::take(&mut asker.demand),
            waker,
            arrived: now,
            expires,
            holds: SmallVec::new(),
            named: None,
            breaches: 0,
        });
        self.expiries.extend(expires.map(|at| (at, key)));
        self.stay(key, open, short, when, now, out);
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
        parts: SmallVec<[Part; 3]>,
        now: Instant,
        out: &mut Outbox,
    ) -> Taken {
        self.count_grant(asker.id, &asker.demand, now);
        self.tally.granted_at_once();
        if self.teller.is_watched() {
            for index in 0..asker.demand.entries().len() {
                let limit = Limit::Entry(index as u32);
                self.tell(limit, &asker.demand, EventKind::GrantedImmediate, None, None, now, out);
            }
        }
        Taken::new(parts)
    }

    /// What every grant counts for, at once or from the line.
    pub(super) fn count_grant(&mut self, id: u64, demand: &Demand, now: Instant) {
        self.held += 1;
        self.changes += 1;
        if let Some(holders) = &mut self.holders {
            holders.insert(id, Holder { demand: demand.clone(), since: now });
        }
        if !demand.is_empty()
            && let Some(valve) = &self.valve
        {
            valve.released(now);
            self.turn.earned = false;
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
        if matches!(asker.want, Want::Wait { .. }) {
            self.tally.left(&error);
            self.tell_rejected(&asker.demand, &[], on, reason_of(&error), now, out);
        }
        Arrival::Failed(error)
    }

    /// A newcomer whose token was cancelled before it asked.
    pub(crate) fn cancelled_unasked(&mut self, demand: &Demand, now: Instant, out: &mut Outbox) {
        self.tally.left(&AdmitError::Cancelled);
        self.tell_rejected(demand, &[], &[], RejectReason::Cancelled, now, out);
    }

    /// Remembers accounts seen for the first time, and lets them announce here from now on.
    ///
    /// Before anything is asked of them: an announcement between an ask and the filing of the
    /// waiter must find this admission's inbox.
    fn know(&mut self, demand: &Demand) {
        let list = demand.list();
        if list.is_known_to(self.admission) {
            return;
        }
        for entry in &list.entries {
            let link = entry.account().link();
            if !link.is_attached(self.admission) {
                link.attach(&self.inbox);
                let account = Arc::downgrade(entry.account());
                self.records.insert(entry.id(), Record { account, noted: 0 });
            }
        }
        list.set_known_to(self.admission);
    }

    /// An account announced something.
    pub(crate) fn hear(&mut self, account: AccountId, marks: Marks) {
        if marks.has(Marks::GONE) {
            self.records.remove(&account);
        }
        self.changed();
    }

    /// Something but the clock may have changed an answer.
    pub(super) fn changed(&mut self) {
        self.changes += 1;
        if !self.line.is_empty() {
            self.walk.mark();
        }
    }

    /// Whether the account was not logged about in this respect before.
    pub(super) fn note(&mut self, account: AccountId, what: Noted) -> bool {
        self.records.get_mut(&account).is_some_and(|record| {
            let bit = what as u8;
            let is_new = record.noted & bit == 0;
            record.noted |= bit;
            is_new
        })
    }

    /// Whether the valve lets one more job with entries go.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        self.valve.as_ref().is_none_or(|valve| valve.willing(self.turn, now))
    }

    /// The demand of the head: what is set aside from everybody else.
    pub(super) fn head_demand(&self) -> Option<Demand> {
        let head = self.line.head()?;
        self.line.waiter(head).map(|waiter| waiter.demand.clone())
    }

    /// Everything a demand is short of, the valve first.
    pub(super) fn shortages(
        &self,
        demand: &Demand,
        asking: Asking<'_>,
        open: bool,
        short: &[u32],
    ) -> Vec<Shortage> {
        let valve = self.valve.as_ref().filter(|_| !open).map(|valve| Shortage {
            account: Arc::clone(valve.link().name()),
            wanted: crate::Amount::NONE,
            reserved_ahead: crate::Amount::NONE,
            in_use: valve.in_use(),
            capacity: valve.capacity(),
            retry_at: valve.earliest(self.turn, asking.now),
        });
        let entries = demand.entries();
        valve
            .into_iter()
            .chain(short.iter().map(|&at| asking::shortage(&entries[at as usize], asking)))
            .collect()
    }

    /// A waiter that was granted collects it, or one that failed its reason.
    pub(crate) fn collect(&mut self, key: Key) -> Option<Outcome> {
        self.line.collect(key)
    }

    /// The job behind `key` is gone: it leaves the line, or gives back what it never saw.
    pub(crate) fn withdraw(&mut self, key: Key, now: Instant, out: &mut Outbox) {
        if let Some(Outcome::Granted(landing)) = self.line.collect(key) {
            let Landing { waiter, mut taken, .. } = *landing;
            self.settle(waiter.id, &waiter.demand, &mut taken, Settlement::Rollback, now, out);
            out.demands.push(waiter.demand);
            return;
        }
        let was_head = self.line.head() == Some(key);
        self.walk.step_over(&self.line, key);
        let Some(mut waiter) = self.line.remove(key) else { return };
        self.left(key, &waiter);
        self.tally.left(&AdmitError::Cancelled);
        self.tell_rejected(&waiter.demand, &waiter.holds, &[], RejectReason::Cancelled, now, out);
        out.old_wakers.extend(waiter.waker.take());
        out.demands.push(waiter.demand);
        if was_head {
            // It reserves nothing any more, which nothing else would tell those behind it.
            self.changed();
        }
        self.look_if_drained(out);
    }

    /// A waiter is out of the line: what the line kept about it goes too.
    pub(super) fn left(&mut self, key: Key, waiter: &Waiter) {
        if let Some(at) = waiter.expires {
            self.expiries.remove(&(at, key));
        }
        for &(limit, _) in &waiter.holds {
            self.count_hold(limit, &waiter.demand, false);
        }
        if self.line.is_empty() {
            self.walk.rest();
            self.turn = Turn::default();
        }
    }

    pub(super) fn count_hold(&self, limit: Limit, demand: &Demand, more: bool) {
        match limit {
            Limit::Valve => {
                if let Some(valve) = &self.valve {
                    valve.link().count_waiting(more);
                }
            }
            Limit::Entry(index) => {
                demand.entries()[index as usize].account().link().count_waiting(more);
            }
        }
    }

    /// A waiter leaves the line without a grant; its future will collect why.
    pub(super) fn fail(
        &mut self,
        key: Key,
        error: AdmitError,
        on: &[Limit],
        now: Instant,
        out: &mut Outbox,
    ) {
        self.walk.step_over(&self.line, key);
        let Some(mut waiter) = self.line.lift(key) else { return };
        self.left(key, &waiter);
        self.tally.left(&error);
        self.tell_rejected(&waiter.demand, &waiter.holds, on, reason_of(&error), now, out);
        out.wakers.extend(waiter.waker.take());
        out.demands.push(waiter.demand);
        self.line.lay(key, Outcome::Failed(error));
        self.look_if_drained(out);
    }

    /// Every waiter whose time is up leaves.
    pub(crate) fn expire(&mut self, now: Instant, out: &mut Outbox) {
        while let Some(&(at, key)) = self.expiries.first()
            && at <= now
        {
            let head = self.line.head();
            let was_head = head == Some(key);
            let ahead = if was_head { None } else { self.head_demand() };
            let Some(waiter) = self.line.waiter(key) else {
                self.expiries.pop_first();
                continue;
            };
            let asking = Asking { id: waiter.id, now, head: ahead.as_ref() };
            let mut short = std::mem::take(&mut self.short);
            // Whoever refuses it now lets it time out all the same: its time was up first.
            if asking::survey(&waiter.demand, asking, &mut short).is_err() {
                short.clear();
            }
            let shortages = self.shortages(&waiter.demand, asking, self.is_open(now), &short);
            let waited = now.saturating_duration_since(waiter.arrived);
            self.short = short;
            out.demands.extend(ahead);
            self.fail(key, AdmitError::TimedOut { waited, shortages }, &[], now, out);
            if was_head {
                self.changed();
            }
        }
    }

    /// Everybody in the line leaves for one reason.
    pub(super) fn fail_all(&mut self, error: &AdmitError, now: Instant, out: &mut Outbox) {
        while let Some(key) = self.line.head() {
            self.fail(key, error.clone(), &[], now, out);
        }
    }

    /// The end: everybody is refused, and no account knows this admission any more.
    pub(crate) fn stop(&mut self, now: Instant, out: &mut Outbox) {
        if !matches!(self.life, Life::Closed(_)) {
            self.life = Life::Stopped;
        }
        self.fail_all(&AdmitError::ShutDown, now, out);
        self.detach(out);
        out.wake_evaluator = true;
    }

    /// A defect: nothing is granted by this admission any more.
    pub(super) fn close(&mut self, defect: Defect, now: Instant, out: &mut Outbox) -> Arc<Defect> {
        let defect = Arc::new(defect);
        self.life = Life::Closed(Arc::clone(&defect));
        self.fail_all(&AdmitError::Closed(Arc::clone(&defect)), now, out);
        self.detach(out);
        out.lines.push(outbox::Line::Closed(Arc::clone(&defect)));
        out.wake_evaluator = true;
        defect
    }

    /// The runtime under the evaluator of this generation is gone.
    pub(crate) fn lose_runtime(&mut self, generation: u64, now: Instant, out: &mut Outbox) {
        if matches!(self.life, Life::Running(running) if running == generation) {
            self.life = Life::Unstarted;
            self.fail_all(&AdmitError::ShutDown, now, out);
        }
    }

    fn detach(&mut self, out: &mut Outbox) {
        for (_, record) in self.records.drain() {
            if let Some(account) = record.account.upgrade() {
                account.link().detach(self.admission);
                // We may be its last owner, and its drop is not ours to run under the lock.
                out.accounts.push(account);
            }
        }
    }

    /// Whether nobody waits and nothing is held.
    pub(crate) fn is_drained(&self) -> bool {
        self.line.is_empty() && self.held == 0
    }

    pub(super) fn look_if_drained(&self, out: &mut Outbox) {
        out.is_drained |= self.is_drained();
    }

    /// When the evaluator has something to do from the clock alone.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let expiry = self.expiries.first().map(|&(at, _)| at);
        [self.walk.deadline(), expiry].into_iter().flatten().min()
    }

    /// Whether the evaluator must be woken: there is something to look at, or its timer is late.
    pub(crate) fn needs_evaluator(&self) -> bool {
        if self.line.is_empty() {
            return false;
        }
        self.walk.is_marked()
            || self
                .next_deadline()
                .is_some_and(|deadline| self.armed.is_none_or(|armed| deadline < armed))
    }
}

/// How a grant ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settlement {
    Release,
    Rollback,
}

/// What a demand is short of, the valve first.
pub(super) fn limits(open: bool, short: &[u32]) -> impl Iterator<Item = Limit> {
    let valve = (!open).then_some(Limit::Valve);
    valve.into_iter().chain(short.iter().map(|&index| Limit::Entry(index)))
}

/// What an error is called in events.
pub(super) fn reason_of(error: &AdmitError) -> RejectReason {
    match error {
        AdmitError::Refused { .. } => RejectReason::CircuitBlocked,
        AdmitError::AccountFault { .. } | AdmitError::Closed(_) => RejectReason::Aborted,
        AdmitError::Cancelled => RejectReason::Cancelled,
        AdmitError::TimedOut { .. } => RejectReason::TimedOut,
        AdmitError::QueueFull { .. } => RejectReason::QueueFull,
        AdmitError::ShutDown => RejectReason::Shutdown,
    }
}
