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
//! 3. Between passes, either nobody who waits could go, or the index says that a pass is wanted, or
//!    its deadline is no later than the first instant at which the clock lets somebody go. (What
//!    that rests on is 7 to 9, in [`index`](super::index).)
//! 4. `held` counts the grants that were made and not settled, those that landed and were not
//!    collected among them.
//! 5. An account's `waiting` counts the waiters that hold a [`Limit`] on it; each such hold was told
//!    once as `Held` and is ended once, by `GrantedFromHold` or `Rejected`.
//! 6. `expiries` holds exactly the waiters in the line that have a limit in time.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::asking::{self, Asking};
use super::counters::Counters;
use super::ids::Ids;
use super::index::Index;
use super::line::{Key, Landing, Limit, Line, Outcome, Waiter};
use super::outbox::{self, Outbox};
use super::overdue::Patience;
use super::tally::Tally;
use super::teller::Teller;
use crate::account::{Account, AccountId, Count, InPassage, Inbox, Marks, Turn, Valve};
use crate::demand::Demand;
use crate::error::{AdmitError, Defect, Shortage};
use crate::events::RejectReason;
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

pub(crate) struct Core {
    pub(super) admission: u64,
    pub(crate) life: Life,
    pub(crate) line: Line,
    pub(super) index: Index,
    pub(super) records: HashMap<AccountId, Record>,
    /// Only to be handed to the links of accounts; the face reads it.
    inbox: Arc<Inbox>,
    pub(super) valve: Option<Arc<dyn Valve>>,
    /// Whether the valve, if there is one, may be asked in a passage.
    is_valve_brief: bool,
    pub(super) turn: Turn,
    pub(super) max_waiting: usize,
    /// How many are looked at before the lock is let go for a moment.
    pub(super) looks_a_hold: usize,
    /// The latest instant a decision was made at.
    pub(crate) latest: Instant,
    pub(super) ids: Ids,
    pub(super) held: usize,
    pub(super) expiries: BTreeSet<(Instant, Key)>,
    pub(crate) tally: Tally,
    pub(crate) teller: Teller,
    pub(super) holders: Option<HashMap<u64, Holder>>,
    pub(super) warned_unstarted: bool,
    /// Whether and when the head is told of that waits too long.
    pub(super) patience: Option<Patience>,
    /// Evaluators started so far.
    pub(crate) generations: u64,
    /// Whether the inbox has been told that somebody waits.
    pub(crate) is_listening: bool,
    /// Counts everything but the passing of time that may change an answer.
    pub(super) changes: u64,
    /// What the evaluator sleeps until.
    pub(crate) armed: Option<Instant>,
    pub(crate) counters: Counters,
    /// A defect met on the inline path, which the next to come closes the admission with.
    pub(super) unhandled: Option<Defect>,
    /// Somebody waits for the admission to be drained.
    pub(crate) awaits_drain: bool,
    /// The entries found short by the last survey: kept to be used again.
    pub(super) short: Vec<u32>,
}

/// What an admission is built with.
pub(crate) struct Settings {
    pub(crate) valve: Option<Arc<dyn Valve>>,
    pub(crate) max_waiting: usize,
    pub(crate) looks_a_hold: usize,
    pub(crate) track_holders: bool,
    pub(crate) warn_after: Option<Duration>,
}

impl Core {
    pub(crate) fn new(inbox: Arc<Inbox>, settings: Settings, now: Instant) -> Self {
        if let Some(valve) = &settings.valve {
            valve.link().attach(&inbox);
        }
        Self {
            admission: inbox.admission(),
            life: Life::Unstarted,
            line: Line::new(),
            index: Index::default(),
            records: HashMap::new(),
            inbox,
            is_valve_brief: settings.valve.as_ref().is_none_or(|valve| is_brief(&**valve)),
            valve: settings.valve,
            turn: Turn::default(),
            max_waiting: settings.max_waiting,
            looks_a_hold: settings.looks_a_hold,
            latest: now,
            ids: Ids::default(),
            held: 0,
            expiries: BTreeSet::new(),
            tally: Tally::default(),
            teller: Teller::default(),
            holders: settings.track_holders.then(HashMap::new),
            warned_unstarted: false,
            patience: settings.warn_after.map(Patience::new),
            generations: 0,
            is_listening: false,
            changes: 0,
            armed: None,
            counters: Counters::default(),
            unhandled: None,
            awaits_drain: false,
            short: Vec::new(),
        }
    }

    /// What every grant counts for, at once or from the line.
    #[inline]
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

    /// Remembers accounts seen for the first time, and lets them announce here from now on.
    ///
    /// Before anything is asked of them: an announcement between an ask and the filing of the
    /// waiter must find this admission's inbox.
    pub(super) fn know(&mut self, demand: &Demand) {
        let list = demand.list();
        if list.is_known_to(self.admission) {
            return;
        }
        for entry in &list.entries {
            let link = entry.link();
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
        if self.line.is_empty() {
            return;
        }
        if marks.has(Marks::GREW) {
            self.changed(account);
        }
        if marks.has(Marks::MAY_REFUSE) {
            self.index.suspect(account);
        }
        if self.valve.as_ref().is_some_and(|valve| valve.link().id() == account) {
            self.index.is_wanted = true;
        }
    }

    /// Something but the clock may have changed an account's answer.
    pub(super) fn changed(&mut self, account: AccountId) {
        self.changes += 1;
        if !self.line.is_empty() {
            self.index.mark(account);
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
    #[inline]
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
            summary: valve.summary(asking.now),
            retry_at: valve.earliest(self.turn, asking.now),
        });
        let entries = demand.entries();
        valve
            .into_iter()
            .chain(short.iter().map(|&at| asking::shortage(&entries[at as usize], asking)))
            .collect()
    }

    /// The job behind `key` is gone: it leaves the line, or gives back what it never saw.
    pub(crate) fn withdraw(&mut self, key: Key, now: Instant, out: &mut Outbox) {
        if let Some(Outcome::Granted(landing)) = self.line.collect(key) {
            let Landing { waiter, mut taken, .. } = *landing;
            let rollback = Settlement::Rollback;
            self.settle(waiter.id, &waiter.demand, &mut taken, rollback, now, out);
            out.demands.push(waiter.demand);
            return;
        }
        if self.line.waiter(key).is_none() {
            return;
        }
        self.part(key, out);
        let Some(mut waiter) = self.line.remove(key) else { return };
        self.left(key, &waiter);
        self.tally.left(&AdmitError::Cancelled);
        self.tell_left(&waiter, &[], RejectReason::Cancelled, now, out);
        out.old_wakers.extend(waiter.waker.take());
        out.demands.push(waiter.demand);
        self.look_if_drained(out);
    }

    /// A waiter is about to leave the line: its class goes on without it. When it is the head, it
    /// reserves nothing any more, which nothing else would tell those behind it.
    pub(super) fn part(&mut self, key: Key, out: &mut Outbox) {
        if self.line.waiter(key).is_none() {
            return;
        }
        let was_head = self.line.head() == Some(key);
        out.demands.extend(self.index.part(&mut self.line, key));
        let Some(waiter) = self.line.waiter(key).filter(|_| was_head) else { return };
        self.changes += 1;
        self.index.head = None;
        for entry in waiter.demand.entries() {
            self.index.mark(entry.id());
        }
    }

    /// A waiter is out of the line: what the line kept about it goes too.
    pub(super) fn left(&mut self, key: Key, waiter: &Waiter) {
        if let Some(at) = waiter.expires {
            self.expiries.remove(&(at, key));
        }
        for hold in &waiter.holds {
            self.count_hold(hold.limit(), &waiter.demand, false);
        }
        for entry in waiter.demand.entries() {
            entry.link().count_naming(false);
        }
        if self.line.is_empty() {
            self.index.rest();
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
                demand.entries()[index as usize].link().count_waiting(more);
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
        self.part(key, out);
        let Some(mut waiter) = self.line.lift(key) else { return };
        self.left(key, &waiter);
        self.tally.left(&error);
        self.tell_left(&waiter, on, reason_of(&error), now, out);
        out.wakers.extend(waiter.waker.take());
        self.counters.count_wake();
        out.demands.push(waiter.demand);
        self.line.lay(key, Outcome::Failed(error));
        self.look_if_drained(out);
    }

    /// Those whose time is up leave, as many as one hold may take. Answers whether that was all.
    pub(crate) fn expire(&mut self, now: Instant, out: &mut Outbox) -> bool {
        let mut looks = 0;
        while let Some(&(at, key)) = self.expiries.first()
            && at <= now
        {
            if looks == self.looks_a_hold {
                return false;
            }
            looks += 1;
            let is_head = self.line.head() == Some(key);
            let ahead = if is_head { None } else { self.head_demand() };
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
        }
        true
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
        out.is_over = true;
        out.wake_evaluator = true;
    }

    /// A defect: nothing is granted by this admission any more.
    pub(super) fn close(&mut self, defect: Defect, now: Instant, out: &mut Outbox) -> Arc<Defect> {
        let defect = Arc::new(defect);
        self.life = Life::Closed(Arc::clone(&defect));
        self.fail_all(&AdmitError::Closed(Arc::clone(&defect)), now, out);
        self.detach(out);
        out.lines.push(outbox::Line::Closed(Arc::clone(&defect)));
        out.is_over = true;
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
        if let Some(valve) = &self.valve {
            valve.link().detach(self.admission, false);
        }
        for (_, record) in self.records.drain() {
            if let Some(account) = record.account.upgrade() {
                account.link().detach(self.admission, self.held > 0);
                // We may be its last owner, and its drop is not ours to run under the lock.
                out.accounts.push(account);
            }
        }
    }

    /// So many came and went by the door since it was opened.
    #[inline(never)]
    pub(crate) fn count_passages(&mut self, count: Count) {
        self.held = count.inside;
        self.changes += 1;
        self.tally.granted_at_once(count.came);
    }

    /// Whether grants of permits need not come here, and may pass by the door: they concern nobody
    /// but who asks for them, and nobody is to be told of any.
    #[inline]
    pub(crate) const fn may_be_passed(&self) -> bool {
        self.is_plain()
            && !self.awaits_drain
            // Everybody names memory, so with a valve everybody stands in one line.
            && (self.valve.is_none() || (self.is_valve_brief && self.line.is_empty()))
    }

    /// Whether nobody waits and nothing is held.
    pub(crate) fn is_drained(&self) -> bool {
        self.line.is_empty() && self.held == 0
    }

    pub(crate) fn look_if_drained(&mut self, out: &mut Outbox) {
        if self.awaits_drain && self.is_drained() {
            // Whoever waits for it looks again, and says so again if that was not the end.
            self.awaits_drain = false;
            out.is_drained = true;
        }
    }

    /// Whether a grant concerns nobody but who asks for it: nobody listens, nothing is tracked.
    #[inline]
    pub(super) const fn is_plain(&self) -> bool {
        matches!(self.life, Life::Unstarted | Life::Running(_))
            && self.unhandled.is_none()
            && self.holders.is_none()
            && !self.teller.is_watched()
    }

    /// When the evaluator has something to do from the clock alone.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let expiry = self.expiries.first().map(|&(at, _)| at);
        [self.index.deadline(), expiry, self.next_overdue()].into_iter().flatten().min()
    }

    /// Whether the evaluator must be woken: there is something to look at, or its timer is late.
    pub(crate) fn needs_evaluator(&self) -> bool {
        if self.line.is_empty() {
            return false;
        }
        self.wants_pass()
            || self
                .next_deadline()
                .is_some_and(|deadline| self.armed.is_none_or(|armed| deadline < armed))
    }
}

fn is_brief(valve: &dyn Valve) -> bool {
    matches!(valve.in_passage(), InPassage::Brief)
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
