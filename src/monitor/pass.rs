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

use tokio::time::Instant;

use super::asking::{self, Asking};
use super::core::{Core, Life};
use super::index::HeadLook;
use super::line::{Key, Limit};
use super::outbox::Outbox;
use crate::account::{AccountId, Ask};
use crate::amount::Amount;
use crate::demand::{Demand, Entry};
use crate::error::{AccountPanic, Defect, panic_message};

/// How many are looked at before the lock is let go for a moment, unless a test says otherwise.
pub(super) const LOOKS_A_HOLD: usize = 4_096;

/// How many are looked at by a release that serves: the evaluator does the rest.
const LOOKS_A_RELEASE: usize = 32;

/// How many were looked at in this hold, and may be.
struct Looks {
    made: usize,
    most: usize,
}

impl Looks {
    const fn is_over(&self) -> bool {
        self.made >= self.most
    }

    /// Counts one more, if there may be.
    const fn one_more(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        self.made += 1;
        true
    }
}

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

impl Core {
    /// The evaluator's part: what is pending is looked at and who is late leaves. Answers whether
    /// it got through.
    pub(crate) fn turn(&mut self, now: Instant, out: &mut Outbox) -> bool {
        loop {
            if self.is_pending(now) && !self.long_pass(now, out) {
                return false;
            }
            if !self.expire(now, out) {
                return false;
            }
            if !self.wants_pass() {
                return true;
            }
        }
    }

    /// Whether a release of this demand may let the head go, and so had better look itself than wake
    /// the evaluator for it: the head was short of something that comes back, and nothing else is to
    /// be known first.
    pub(crate) fn may_serve(&self, demand: &Demand) -> bool {
        let Some(head) = &self.index.head else { return false };
        matches!(self.life, Life::Running(_))
            && self.valve.is_none()
            && self.index.refusing.is_empty()
            && demand.entries().iter().any(|entry| head.short.contains(&entry.id()))
    }

    /// The part of a release that serves: a short pass. What it does not get through is left to the
    /// evaluator.
    pub(crate) fn serve(&mut self, now: Instant, out: &mut Outbox) {
        if self.wants_pass() {
            self.pass(now, LOOKS_A_RELEASE.min(self.looks_a_hold), out);
        }
    }

    /// Looks at whatever is pending, to the end.
    pub(super) fn catch_up(&mut self, now: Instant, out: &mut Outbox) {
        while self.is_pending(now) && !self.long_pass(now, out) {}
    }

    /// Whether there is something to look at, the clock aside.
    pub(super) fn wants_pass(&self) -> bool {
        !self.line.is_empty()
            && (self.index.is_wanted
                || !self.index.refusing.is_empty()
                || self.index.head.as_ref().map(|head| head.key) != self.line.head())
    }

    pub(super) fn is_pending(&self, now: Instant) -> bool {
        // While the line drains, or since it stopped a pass, memory may have changed its mind, and
        // tells nobody.
        self.wants_pass()
            || (!self.line.is_empty() && (self.turn.draining || self.index.closed.is_some()))
            || self.index.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// One pass, or as much of it as one hold of the lock may take. Answers whether it ended.
    ///
    /// What goes on in another begins anew, and passes over those who were found short. So whoever
    /// stays is looked at twice at the most: whether he is refused, and whether he can go. More looks
    /// come only of an account that says yes and then no, again and again, or that it may refuse, in
    /// every hold. Whoever stands behind those whom that keeps must not wait with them: such a pass is
    /// made to its end.
    fn long_pass(&mut self, now: Instant, out: &mut Outbox) -> bool {
        let (waiting, in_vain) = (self.line.len(), self.index.looks_in_vain);
        let is_honest = in_vain <= 2 * self.index.classes();
        let ended = self.pass(now, if is_honest { self.looks_a_hold } else { usize::MAX }, out);
        // Behind each who leaves another comes to the front of a class.
        let of_use = 2 * (waiting - self.line.len());
        self.index.looks_in_vain =
            if ended { 0 } else { (in_vain + self.looks_a_hold).saturating_sub(of_use) };
        ended
    }

    /// A pass of so many looks. Answers whether it ended.
    fn pass(&mut self, now: Instant, most: usize, out: &mut Outbox) -> bool {
        self.counters.count_pass();
        match catch_unwind(AssertUnwindSafe(|| self.pass_once(now, most, out))) {
            Ok(ended) => {
                // Deadlines that came are marks by now, and nothing else would say that it goes on.
                self.index.is_wanted |= !ended;
                ended
            }
            Err(payload) => {
                let message = panic_message(payload);
                self.close(Defect::new("a pass panicked", message), now, out);
                true
            }
        }
    }

    fn pass_once(&mut self, now: Instant, most: usize, out: &mut Outbox) -> bool {
        let began_open = self.is_open(now);
        self.index.was_shut = false;
        self.index.mark_due(now);
        let mut looks = Looks { made: 0, most };
        if !self.refuse_some(now, &mut looks, out) {
            return false;
        }
        let ahead = loop {
            let Some(head) = self.line.head() else { return true };
            if !looks.one_more() {
                return false;
            }
            self.index.seat(&self.line, head);
            if !self.look(head, None, now, out) {
                break head;
            }
        };
        // What asks for a pass from here on asks for another one.
        self.index.is_wanted = false;
        if self.valve.is_none() && self.index.is_quiet() {
            self.index.closed = None;
            return true;
        }
        let Some(demand) = self.line.waiter(ahead).map(|waiter| waiter.demand.clone()) else {
            return true;
        };
        let ended = self.look_behind(&demand, looks, now, out);
        if ended && self.index.closed.is_none() && !self.line.is_empty() {
            self.end_pass(&demand, now, out);
            // Memory was willing and still is: whoever waits, waits on something else.
            if began_open && self.is_open(now) {
                self.turn = crate::account::Turn::default();
            }
        }
        out.demands.push(demand);
        ended
    }

    /// Looks, in order of arrival, at the fronts behind the head that changed accounts say yes to.
    /// Answers whether it got through, or was stopped by memory, which keeps every mark.
    fn look_behind(
        &mut self,
        ahead: &Demand,
        mut looks: Looks,
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
            if !looks.one_more() {
                return false;
            }
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
    ///
    /// Once it stopped somebody in this pass it stops all who come later. Its reading may be refreshed
    /// in between, by whoever else uses it, and then whoever is asked next would go past the head.
    fn stop_at_memory(&mut self, now: Instant) -> bool {
        if !self.index.was_shut && self.is_open(now) {
            return false;
        }
        self.index.closed = Some(self.memory_instant(now));
        true
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
                        AccountPanic::catch("fits", || entry.fits(ask))
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
    pub(super) fn ask_for<R>(
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

    /// Asks everybody who names an account that may refuse outright, class by class, and lets those
    /// go that it refuses. Answers whether it got through.
    fn refuse_some(&mut self, now: Instant, looks: &mut Looks, out: &mut Outbox) -> bool {
        if self.index.refusing.is_empty() {
            return true;
        }
        self.forget_unnamed(out);
        let head = self.line.head();
        let ahead = self.head_demand();
        while !self.index.refusing.is_empty() && self.index.asked_up_to < self.index.classes() {
            let class = self.index.asked_up_to as u32;
            while let Some(front) = self.index.front(&self.line, class) {
                if looks.is_over() {
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

    /// What nobody who waits names, refuses nobody. Where the account that was seen first is gone, another
    /// may have its link.
    fn forget_unnamed(&mut self, out: &mut Outbox) {
        let records = &self.records;
        self.index.refusing.retain(|id| {
            let Some(record) = records.get(id) else { return false };
            let known = record.account.upgrade();
            let is_named = known.as_ref().is_none_or(|account| account.link().is_named());
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
        looks: &mut Looks,
        out: &mut Outbox,
    ) -> bool {
        let Some(waiter) = self.line.waiter(key) else { return false };
        let is_suspect = |entry: &Entry| self.index.refusing.contains(&entry.id());
        if !waiter.demand.entries().iter().any(is_suspect) {
            return false;
        }
        looks.made += 1;
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
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::LOOKS_A_HOLD;
    use crate::testing::ScriptedMemory;
    use crate::{Account, Admission, CountingGate, Demand, Limits, MemoryGate, TokenBucket};
    use tokio_test::task::spawn;

    #[tokio::test(start_paused = true)]
    async fn who_is_due_is_granted_though_those_that_may_be_refused_take_all_the_looks_of_a_hold() {
        for spare in 0..3 {
            let admission = Admission::builder().start().unwrap();
            let one = CountingGate::new("one", 1).unwrap();
            let many = CountingGate::new("many", 10_000).unwrap();
            let bucket = TokenBucket::new("bucket", Limits::per_minute(60, 60)).unwrap();
            let full = Demand::new().permit(&one).permits(&many, 10_000).tokens(&bucket, 60);
            let held = admission.try_admit(full).unwrap();
            let mut head = spawn(admission.admit(Demand::new().permit(&one)));
            assert!(head.poll().is_pending());
            let mut due = spawn(admission.admit(Demand::new().tokens(&bucket, 1)));
            assert!(due.poll().is_pending());
            let mut suspects: Vec<_> = (1..LOOKS_A_HOLD as u32 + 2 - spare)
                .map(|n| spawn(admission.admit(Demand::new().permits(&many, n))))
                .collect();
            assert!(suspects.iter_mut().all(|suspect| suspect.poll().is_pending()));
            many.resize(9_999).unwrap();
            // It shrinks and the tokens are there at one moment, before anybody looks.
            tokio::time::advance(Duration::from_secs(1)).await;
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            assert!(due.poll().is_ready(), "{spare}: nobody looked at it");
            drop(held);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_asked_already_is_asked_again_when_the_account_may_refuse_once_more() {
        let admission = Admission::builder().start().unwrap();
        let many = CountingGate::new("many", 10_000).unwrap();
        let held = admission.try_admit(Demand::new().permits(&many, 10_000)).unwrap();
        let mut line: Vec<_> = (1..=LOOKS_A_HOLD as u32 + 100)
            .map(|n| spawn(admission.admit(Demand::new().permits(&many, n))))
            .collect();
        assert!(line.iter_mut().all(|waiter| waiter.poll().is_pending()));
        many.resize(9_999).unwrap();
        // One hold is not enough to ask them all; before the next it shrinks further.
        tokio::task::yield_now().await;
        many.resize(100).unwrap();
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        let told = line.iter().filter(|waiter| waiter.is_woken()).count();
        assert_eq!(told, LOOKS_A_HOLD, "whoever wants more than 100 never fits");
        drop(held);
    }

    #[tokio::test(start_paused = true)]
    async fn marks_that_are_kept_while_memory_is_shut_do_not_add_up() {
        let memory = ScriptedMemory::at_percent(1.0);
        let valve = MemoryGate::with_source(memory.clone()).unwrap();
        let admission = Admission::builder().memory_gate(valve).start().unwrap();
        let gate = CountingGate::new("gate", 1).unwrap();
        let held = admission.try_admit(Demand::new().permit(&gate)).unwrap();
        memory.set_percent(99.0);
        tokio::time::advance(Duration::from_secs(10)).await;
        let other = CountingGate::new("other", 1).unwrap();
        let mut head = spawn(admission.admit(Demand::new().permit(&other)));
        assert!(head.poll().is_pending(), "memory is shut");
        for _ in 0..10_000 {
            let mut waiter = spawn(admission.admit(Demand::new().permit(&gate)));
            assert!(waiter.poll().is_pending());
            gate.link().grew();
            tokio::task::yield_now().await;
        }
        let marked = admission.shared().hold(|core, _| core.index.marked.len());
        assert!(marked < 200, "{marked} marks of one account");
        drop((head, held));
    }
}
