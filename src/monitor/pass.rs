//! The pass: one look at who can go now.
//!
//! A pass grants exactly what a walk over the whole line would, asking everybody in order of
//! arrival, the head first and everybody else with the head's amounts set aside. It looks at fewer:
//! at the head, again as long as heads leave; then, in order of arrival, at the fronts that the
//! changed accounts say yes to. Accounts the head is short of are passed over whole: one that cannot
//! cover the reservation alone says yes to nobody on top of it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::asking::{self, Asking, Never, Take};
use super::core::{Core, Noted, limits};
use super::index::{HeadLook, Place};
use super::line::{Key, Landing, Limit, Outcome, Waiter};
use super::outbox::{self, Outbox};
use super::taken::Taken;
use crate::account::{AccountId, Ask};
use crate::amount::Amount;
use crate::demand::{Demand, Entry};
use crate::error::{AccountPanic, Defect, panic_message};
use crate::events::EventKind;
use crate::sync::Arc;

/// How many are looked at before the lock is let go for a moment.
const LOOKS_A_HOLD: usize = 4_096;
/// An account that breaks its word is asked again after this, doubling…
const FIRST_DOUBT: Duration = Duration::from_millis(1);
/// …as often as this: to about a second.
const MOST_DOUBLINGS: u8 = 10;

/// Where the next to be looked at comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Ready,
    Account(AccountId),
}

/// A front to be looked at in its turn: the earliest of its source, when that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    ticket: u64,
    class: u32,
    source: Source,
    /// After how many changes. While nothing was taken since, the answer stands.
    asked_after: u64,
}

/// Where a waiter that stays is to stand.
#[derive(Debug)]
pub(super) enum Spot {
    /// At the head of the line.
    Head(HeadLook),
    /// Under the account at this position of its demand, which may say yes at an instant.
    Under(u32, Option<Instant>),
    /// No account refuses it.
    Ready,
    /// Behind an equal demand.
    Behind,
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
            if !self.wants_pass() {
                return true;
            }
        }
    }

    /// Looks at whatever is pending, to the end.
    pub(super) fn catch_up(&mut self, now: Instant, out: &mut Outbox) {
        while self.is_pending(now) && !self.pass(now, out) {}
    }

    /// Whether there is something to look at, the clock aside.
    pub(super) fn wants_pass(&self) -> bool {
        !self.line.is_empty()
            && (self.index.is_wanted
                || !self.index.refusing.is_empty()
                || self.index.head.as_ref().map(|head| head.key) != self.line.head())
    }

    pub(super) fn is_pending(&self, now: Instant) -> bool {
        // While the line drains, memory may have changed its mind, and tells nobody.
        self.wants_pass()
            || (!self.line.is_empty() && self.turn.draining)
            || self.index.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// One pass, or as much of it as one hold of the lock may take. Answers whether it ended.
    fn pass(&mut self, now: Instant, out: &mut Outbox) -> bool {
        self.counters.count_pass();
        match catch_unwind(AssertUnwindSafe(|| self.pass_once(now, out))) {
            Ok(ended) => ended,
            Err(payload) => {
                let message = panic_message(&*payload);
                self.close(Defect::new("a pass panicked", message), now, out);
                true
            }
        }
    }

    fn pass_once(&mut self, now: Instant, out: &mut Outbox) -> bool {
        let began_open = self.is_open(now);
        self.index.was_shut = false;
        self.index.mark_due(now);
        let mut looks = 0;
        if !self.refuse_some(now, &mut looks, out) {
            return false;
        }
        let ahead = loop {
            let Some(head) = self.line.head() else { return true };
            if looks >= LOOKS_A_HOLD {
                return false;
            }
            self.index.seat(&self.line, head);
            looks += 1;
            if !self.look(head, None, now, out) {
                break head;
            }
        };
        // What asks for a pass from here on asks for another one.
        self.index.is_wanted = false;
        let Some(demand) = self.line.waiter(ahead).map(|waiter| waiter.demand.clone()) else {
            return true;
        };
        let ended = self.look_behind(&demand, looks, now, out);
        if ended && self.index.was_shut && self.index.closed.is_none() {
            // Memory stopped somebody and is willing now: its reading was refreshed in between, by
            // whoever else uses it, who need not come here next. So it is asked again, soon.
            self.index.closed = Some(Some(now + FIRST_DOUBT));
        }
        if ended && self.index.closed.is_none() && !self.line.is_empty() {
            self.end_pass(&demand, now, out);
            // Memory was willing and still is: whoever waits, waits on something else.
            if began_open && self.is_open(now) {
                self.turn = crate::account::Turn::default();
            }
        }
        out.demands.push(demand);
        self.index.is_wanted |= !ended;
        ended
    }

    /// Looks, in order of arrival, at the fronts behind the head that changed accounts say yes to.
    /// Answers whether it got through, or was stopped by memory, which keeps every mark.
    fn look_behind(
        &mut self,
        ahead: &Demand,
        mut looks: usize,
        now: Instant,
        out: &mut Outbox,
    ) -> bool {
        self.index.closed = None;
        if self.stop_at_memory(now) {
            return true;
        }
        self.index.tidy();
        let mut queue: BinaryHeap<Reverse<Candidate>> = BinaryHeap::new();
        queue.extend(self.next_of(Source::Ready, ahead, 0, now).map(Reverse));
        for at in 0..self.index.marked.len() {
            let account = self.index.marked[at];
            let is_short = |head: &HeadLook| head.short.contains(&account);
            if !self.index.head.as_ref().is_some_and(is_short) {
                let source = Source::Account(account);
                queue.extend(self.next_of(source, ahead, 0, now).map(Reverse));
            }
        }
        while let Some(Reverse(candidate)) = queue.pop() {
            let Candidate { ticket, class, source, asked_after } = candidate;
            if asked_after != self.changes {
                // Something was taken since. Only the earliest of its source may have changed, and
                // only to a later one: a take makes no no into a yes.
                let again = self.next_of(source, ahead, ticket - 1, now);
                if again.is_none_or(|again| again.ticket != ticket) {
                    queue.extend(again.map(Reverse));
                    continue;
                }
            }
            if looks >= LOOKS_A_HOLD {
                return false;
            }
            looks += 1;
            if let Some(front) = self.index.front(&self.line, class) {
                self.look(front, Some(ahead), now, out);
            }
            if self.line.is_empty() || self.stop_at_memory(now) {
                return true;
            }
            queue.extend(self.next_of(source, ahead, ticket, now).map(Reverse));
        }
        true
    }

    /// Whether memory lets nobody go now; then its instant is the only one that counts.
    fn stop_at_memory(&mut self, now: Instant) -> bool {
        if self.is_open(now) {
            return false;
        }
        self.index.closed = Some(self.memory_instant(now));
        true
    }

    /// When memory is worth asking again.
    fn memory_instant(&self, now: Instant) -> Option<Instant> {
        let at = self.valve.as_ref().and_then(|valve| valve.earliest(self.turn, now));
        at.map(|at| at.max(now + FIRST_DOUBT))
    }

    /// The earliest front of a source after a ticket.
    fn next_of(
        &mut self,
        source: Source,
        ahead: &Demand,
        after: u64,
        now: Instant,
    ) -> Option<Candidate> {
        let found = match source {
            Source::Ready => self.index.first_ready(after),
            Source::Account(account) => {
                let tree = self.index.watch(account)?.tree;
                let mut asked = 0;
                let found = self.index.forest().first_fitting(tree, after, &mut |class, amount| {
                    asked += 1;
                    // A refusal or a panic is a reason to look: the look finds whose it is.
                    self.ask_for(account, class, amount, ahead, now, |entry, ask| {
                        AccountPanic::catch("fits", || entry.account().fits(ask))
                            .map_or(true, |answer| answer.unwrap_or(true))
                    })
                    .unwrap_or(true)
                });
                self.counters.count_asked(asked);
                found
            }
        };
        let (ticket, class) = found?;
        Some(Candidate { ticket, class, source, asked_after: self.changes })
    }

    /// Puts a question to an account on behalf of a class, for an amount that may be less than the
    /// class's own.
    fn ask_for<R>(
        &self,
        account: AccountId,
        class: u32,
        amount: Amount,
        ahead: &Demand,
        now: Instant,
        question: impl FnOnce(&Entry, &Ask) -> R,
    ) -> Option<R> {
        let front = self.line.waiter(self.index.front(&self.line, class)?)?;
        let entry = &front.demand.entries()[front.demand.position(account)?];
        let ask = Ask::new(front.id, amount, now).behind(ahead.amount_on(account));
        Some(question(entry, &ask))
    }

    /// The end of a pass that got through: marks are done with, and deadlines set anew.
    fn end_pass(&mut self, ahead: &Demand, now: Instant, out: &mut Outbox) {
        for account in std::mem::take(&mut self.index.marked) {
            self.set_deadline(account, ahead, now, out);
        }
    }

    /// Sets the instant at which the clock alone may change an account's answer.
    ///
    /// Also for an account the head is short of: the head may stop being short there while it still
    /// waits elsewhere, and only the clock would say so.
    fn set_deadline(&mut self, account: AccountId, ahead: &Demand, now: Instant, out: &mut Outbox) {
        let Some(watch) = self.index.watch(account) else { return };
        let tree = watch.tree;
        let mut asked = 0;
        let (mut shared, mut panicked) = (false, false);
        let soonest = self.index.forest().soonest(tree, &mut |class, amount| {
            asked += 1;
            self.ask_for(account, class, amount, ahead, now, |entry, ask| {
                shared |= entry.account().link().is_shared();
                // Whose fault it is, is found by asking everybody.
                AccountPanic::catch("earliest_fit", || entry.account().earliest_fit(ask))
                    .unwrap_or_else(|_| {
                        panicked = true;
                        Some(now)
                    })
            })
            .flatten()
        });
        self.counters.count_asked(asked);
        let changes = self.changes;
        let Some(watch) = self.index.watch_mut(account) else { return };
        watch.is_marked = false;
        let was_due = std::mem::take(&mut watch.was_due) && watch.named_after == changes;
        let is_late = soonest.is_some_and(|at| at <= now || (was_due && at < now + FIRST_DOUBT));
        // What another admission takes or gives is no event here, so a shared account is asked
        // again soon, and not suspected.
        let breaches = if shared { 0 } else { watch.breaches };
        let at = soonest.map(|at| if is_late { at.max(now + pause(breaches)) } else { at });
        watch.breaches = if is_late { (breaches + 1).min(MOST_DOUBLINGS) } else { 0 };
        watch.named_after = changes;
        let is_suspect = is_late && breaches >= 2;
        self.index.set_deadline(account, at);
        if panicked {
            self.index.suspect(account);
        }
        if is_suspect {
            self.complain(account, out);
        }
    }

    fn complain(&mut self, account: AccountId, out: &mut Outbox) {
        if !self.note(account, Noted::BrokenWord) {
            return;
        }
        let known = self.records.get(&account).and_then(|record| record.account.upgrade());
        if let Some(known) = known {
            let what = "it says no at the instant it named itself; it is asked less and less often";
            let account = Arc::clone(known.link().name());
            out.lines.push(outbox::Line::BrokenWord { account, what });
            out.accounts.push(known);
        }
    }

    /// Asks everybody who names an account that may refuse outright, class by class, and lets those
    /// go that it refuses. Answers whether it got through.
    fn refuse_some(&mut self, now: Instant, looks: &mut usize, out: &mut Outbox) -> bool {
        if self.index.refusing.is_empty() {
            return true;
        }
        self.forget_unnamed(out);
        let head = self.line.head();
        let ahead = self.head_demand();
        while !self.index.refusing.is_empty() && self.index.asked_up_to < self.index.classes() {
            let class = self.index.asked_up_to as u32;
            while let Some(front) = self.index.front(&self.line, class) {
                if *looks >= LOOKS_A_HOLD {
                    out.demands.extend(ahead);
                    return false;
                }
                let ahead = if head == Some(front) { None } else { ahead.as_ref() };
                if !self.refuse_front(front, ahead, now, looks, out) {
                    break;
                }
                if self.line.is_empty() {
                    break;
                }
            }
            self.index.asked_up_to += 1;
        }
        self.index.refusing.clear();
        self.index.asked_up_to = 0;
        out.demands.extend(ahead);
        true
    }

    /// What nobody who waits names, refuses nobody.
    fn forget_unnamed(&mut self, out: &mut Outbox) {
        let records = &self.records;
        self.index.refusing.retain(|id| {
            let known = records.get(id).and_then(|record| record.account.upgrade());
            let is_named = known.as_ref().is_some_and(|account| account.link().is_named());
            out.accounts.extend(known);
            is_named
        });
    }

    /// Lets a waiter go that an account refuses. Answers whether one did.
    fn refuse_front(
        &mut self,
        key: Key,
        ahead: Option<&Demand>,
        now: Instant,
        looks: &mut usize,
        out: &mut Outbox,
    ) -> bool {
        let Some(waiter) = self.line.waiter(key) else { return false };
        let is_suspect = |entry: &Entry| self.index.refusing.contains(&entry.id());
        if !waiter.demand.entries().iter().any(is_suspect) {
            return false;
        }
        *looks += 1;
        let (id, demand) = (waiter.id, waiter.demand.clone());
        let asking = Asking { id, now, head: ahead };
        let mut short = std::mem::take(&mut self.short);
        self.counters.count_look(&demand);
        let answer = asking::survey(&demand, asking, &mut short)
            .and_then(|()| self.watch_of(&demand, asking, &short).map(|_| ()));
        self.short = short;
        match answer {
            Ok(()) => false,
            Err(never) => {
                self.fail(key, never.error, &[Limit::Entry(never.index)], now, out);
                true
            }
        }
    }

    /// Looks at one waiter. Answers whether it left the line.
    fn look(&mut self, key: Key, ahead: Option<&Demand>, now: Instant, out: &mut Outbox) -> bool {
        let Some(waiter) = self.line.waiter(key) else { return true };
        // Never the last owner: the waiter's own goes to its landing, or to the outbox.
        let demand = waiter.demand.clone();
        let asking = Asking { id: waiter.id, now, head: ahead };
        self.counters.count_look(&demand);
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
                Take::All(taken) => {
                    self.land(key, taken, now, out);
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
        let spot = if asking.head.is_none() {
            self.head_look(key, demand, asking, open, short).map(Spot::Head)
        } else {
            self.watch_of(demand, asking, short).map(|watch| match watch {
                Some((index, at)) => Spot::Under(index, at),
                None => Spot::Ready,
            })
        };
        match spot {
            Ok(spot) => {
                self.file(key, demand, spot, now);
                self.hold_on(key, open, short, now, out);
                self.index.was_shut |= !open;
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
        let landing = Landing { waiter, taken, at: now };
        self.line.lay(key, Outcome::Granted(Box::new(landing)));
    }

    fn tell_granted(&mut self, waiter: &Waiter, now: Instant, out: &mut Outbox) {
        let demand = &waiter.demand;
        let held = |limit| waiter.holds.iter().find(|hold| hold.0 == limit).map(|hold| hold.1);
        if let Some(since) = held(Limit::Valve) {
            let wait = Some(now.saturating_duration_since(since));
            self.tell(Limit::Valve, demand, EventKind::GrantedFromHold, wait, None, now, out);
        }
        for index in 0..demand.entries().len() {
            let limit = Limit::Entry(index as u32);
            let wait = held(limit).map(|since| now.saturating_duration_since(since));
            let kind = match wait {
                Some(_) => EventKind::GrantedFromHold,
                None => EventKind::GrantedImmediate,
            };
            self.tell(limit, demand, kind, wait, None, now, out);
        }
    }

    /// Where a newcomer that must wait is to stand.
    pub(super) fn spot(
        &self,
        demand: &Demand,
        asking: Asking<'_>,
        open: bool,
        short: &[u32],
    ) -> Result<Spot, Never> {
        if self.line.is_empty() {
            // The key is the newcomer's, and known when it is filed.
            return self.head_look(Key::NOBODY, demand, asking, open, short).map(Spot::Head);
        }
        if self.index.has_class(demand) {
            return Ok(Spot::Behind);
        }
        Ok(match self.watch_of(demand, asking, short)? {
            Some((index, at)) => Spot::Under(index, at),
            None => Spot::Ready,
        })
    }

    /// Files a newcomer, which is in the line by now.
    pub(super) fn file_newcomer(&mut self, key: Key, spot: Spot, open: bool, now: Instant) {
        let Some(demand) = self.line.waiter(key).map(|waiter| waiter.demand.clone()) else {
            return;
        };
        let is_new = self.index.join(&mut self.line, key, &demand);
        match spot {
            Spot::Behind => {}
            Spot::Head(look) => self.file(key, &demand, Spot::Head(HeadLook { key, ..look }), now),
            spot if is_new => self.file(key, &demand, spot, now),
            _ => {}
        }
        if !open {
            // Memory refused a waiter: from here on the line goes one at a time.
            self.turn.draining = true;
            self.index.closed = Some(self.memory_instant(now));
        }
    }

    /// Puts the class of a front that stays into its place.
    fn file(&mut self, key: Key, demand: &Demand, spot: Spot, now: Instant) {
        let class = self.line.class_of(key);
        match spot {
            Spot::Head(look) => {
                self.index.seat(&self.line, key);
                self.index.head = Some(look);
            }
            Spot::Under(index, at) => {
                let entry = &demand.entries()[index as usize];
                let account = entry.id();
                self.index.shift(class, key, Place::Filed(account), entry.amount());
                let Some(watch) = self.index.watch_mut(account) else { return };
                let changes = self.changes;
                let breaches = watch.breaches;
                if let Some(at) = at
                    && watch.deadline.is_none_or(|deadline| at < deadline)
                {
                    watch.named_after = changes;
                    let at = if at <= now { now + pause(breaches) } else { at };
                    self.index.set_deadline(account, Some(at));
                }
            }
            Spot::Ready => self.index.shift(class, key, Place::Ready, Amount::NONE),
            Spot::Behind => {}
        }
    }

    /// The account a front is to be filed under: one of those it is short of, preferably one that
    /// only an event can change, else the one whose instant comes last. None when memory alone
    /// stands in its way.
    fn watch_of(
        &self,
        demand: &Demand,
        asking: Asking<'_>,
        short: &[u32],
    ) -> Result<Option<(u32, Option<Instant>)>, Never> {
        let mut last: Option<(u32, Instant)> = None;
        for &index in short {
            match asking::earliest(&demand.entries()[index as usize], index, asking)? {
                None => return Ok(Some((index, None))),
                Some(at) if last.is_none_or(|(_, last)| last < at) => last = Some((index, at)),
                Some(_) => {}
            }
        }
        Ok(last.map(|(index, at)| (index, Some(at))))
    }

    /// What is to be remembered of a look at the head.
    fn head_look(
        &self,
        key: Key,
        demand: &Demand,
        asking: Asking<'_>,
        open: bool,
        short: &[u32],
    ) -> Result<HeadLook, Never> {
        let now = asking.now;
        let entries = demand.entries();
        let short_ids: SmallVec<[AccountId; 4]> =
            short.iter().map(|&index| entries[index as usize].id()).collect();
        let mut look = HeadLook { key, short: short_ids, at: None, named: None, breaches: 0 };
        if !open {
            return Ok(look);
        }
        let mut latest = now;
        let mut broken = None;
        let mut shared = false;
        for &index in short {
            let entry = &entries[index as usize];
            match asking::earliest(entry, index, asking)? {
                None => return Ok(look),
                Some(at) => {
                    latest = latest.max(at);
                    shared |= entry.account().link().is_shared();
                    broken = broken.or((at <= now).then_some(index));
                }
            }
        }
        let before = self.index.head.as_ref().filter(|head| head.key == key);
        let named = before.and_then(|head| head.named);
        // A limit that tightened meanwhile (a 429) announces nothing and names a later instant: that
        // is no breach. One that goes on naming the very next moment is, and would have us spin.
        let due = named.is_some_and(|(at, stamp)| at <= now && stamp == self.changes);
        if broken.is_none() && due && latest < now + FIRST_DOUBT {
            broken = short.first().copied();
        }
        if broken.is_some() {
            let breaches = before.filter(|_| !shared).map_or(0, |head| head.breaches);
            look.breaches = (breaches + 1).min(MOST_DOUBLINGS);
            latest = latest.max(now + pause(breaches));
        }
        look.at = Some(latest);
        look.named = Some((latest, self.changes));
        Ok(look)
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
    }
}

/// How long an account is left alone that broke its word so often in a row.
fn pause(breaches: u8) -> Duration {
    FIRST_DOUBT * (1 << breaches.min(MOST_DOUBLINGS))
}
