//! The plain walk: a list of waiters, and a look at everybody in order of arrival.
//!
//! It knows accounts and memory by their public traits only, keeps no index and remembers no
//! answer. What it grants, in which order and at which instants, is what the monitor must grant.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use admit::{
    Account, Amount, Ask, Charge, MemoryGate, Replenishment, Turn, UpstreamFailure, Valve,
};
use tokio::time::Instant;

use crate::steps::Part;

pub(crate) type Job = usize;

/// What became of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted,
    /// By one of these accounts.
    Refused(Vec<usize>),
    TimedOut,
    QueueFull,
}

/// What a job is told that asks whether it can go now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    /// Short of memory or not, and of these accounts.
    No(bool, Vec<usize>),
    Never(Vec<usize>),
}

struct Waiter {
    job: Job,
    parts: Vec<Part>,
    arrived: Instant,
    expires: Option<Instant>,
}

struct Held {
    parts: Vec<HeldPart>,
    is_settled: bool,
    is_rolled_back: bool,
}

struct HeldPart {
    account: usize,
    charge: Charge,
    is_back: bool,
    is_reported: bool,
}

pub(crate) struct Plain {
    pub(crate) accounts: Vec<Arc<dyn Account>>,
    pub(crate) memory: Option<Arc<MemoryGate>>,
    turn: Turn,
    line: Vec<Waiter>,
    max_waiting: usize,
    /// What became of a job that did not leave by itself, and how long that took.
    pub(crate) outcomes: BTreeMap<Job, (Outcome, Duration)>,
    /// Everybody granted, in order.
    pub(crate) granted: Vec<Job>,
    held: BTreeMap<Job, Held>,
    /// Timers fire at whole milliseconds from here.
    pub(crate) origin: Instant,
    pub(crate) now: Instant,
}

impl Plain {
    pub(crate) fn new(
        accounts: Vec<Arc<dyn Account>>,
        memory: Option<Arc<MemoryGate>>,
        max_waiting: usize,
        now: Instant,
    ) -> Self {
        Self {
            accounts,
            memory,
            turn: Turn::default(),
            line: Vec::new(),
            max_waiting,
            outcomes: BTreeMap::new(),
            granted: Vec::new(),
            held: BTreeMap::new(),
            origin: now,
            now,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.line.len()
    }

    pub(crate) fn is_waiting(&self, job: Job) -> bool {
        self.line.iter().any(|waiter| waiter.job == job)
    }

    pub(crate) const fn is_draining(&self) -> bool {
        self.turn.draining
    }

    fn is_open(&self) -> bool {
        self.memory.as_ref().is_none_or(|memory| memory.willing(self.turn, self.now))
    }

    fn look_at_memory(&self) {
        if let Some(memory) = &self.memory {
            memory.look(self.now);
        }
    }

    fn head(&self) -> Vec<Part> {
        self.line.first().map(|head| head.parts.clone()).unwrap_or_default()
    }

    /// Asks every account, with the head's parts set aside, and memory.
    fn judge(&self, job: Job, parts: &[Part], head: &[Part]) -> Answer {
        let (mut short, mut never) = (Vec::new(), Vec::new());
        for &(account, mine) in parts {
            match self.accounts[account].fits(&ask(job, account, mine, head, self.now)) {
                Ok(true) => {}
                Ok(false) => short.push(account),
                Err(_) => never.push(account),
            }
        }
        let open = self.is_open();
        if !never.is_empty() {
            Answer::Never(never)
        } else if open && short.is_empty() {
            Answer::Yes
        } else {
            Answer::No(!open, short)
        }
    }

    /// A job asks. `None` when it waits now.
    pub(crate) fn arrive(
        &mut self,
        job: Job,
        parts: &[Part],
        within: Option<Duration>,
    ) -> Option<Outcome> {
        let outcome = match self.ask_new(job, parts) {
            Answer::Yes => Outcome::Granted,
            Answer::Never(by) => Outcome::Refused(by),
            Answer::No(..) if self.line.len() >= self.max_waiting => Outcome::QueueFull,
            Answer::No(..) if within.is_some_and(|within| within.is_zero()) => Outcome::TimedOut,
            Answer::No(by_memory, _) => {
                self.turn.draining |= by_memory;
                let (arrived, parts) = (self.now, parts.to_vec());
                let expires = within.map(|within| arrived + within);
                self.line.push(Waiter { job, parts, arrived, expires });
                return None;
            }
        };
        self.outcomes.insert(job, (outcome.clone(), Duration::ZERO));
        Some(outcome)
    }

    /// A job asks whether it can go now, and leaves no trace when it cannot.
    pub(crate) fn try_arrive(&mut self, job: Job, parts: &[Part]) -> Answer {
        self.ask_new(job, parts)
    }

    fn ask_new(&mut self, job: Job, parts: &[Part]) -> Answer {
        self.look_at_memory();
        let answer = if parts.is_empty() {
            Answer::Yes
        } else if self.stands_clear(parts) {
            self.judge(job, parts, &[])
        } else {
            // A newcomer overtakes nobody: whoever can go, goes first.
            self.walk();
            self.judge(job, parts, &self.head())
        };
        if answer == Answer::Yes {
            self.grant(job, parts);
        }
        answer
    }

    /// Whether nobody who waits names any of these accounts: then there is nobody to overtake. Memory
    /// is named by everybody.
    fn stands_clear(&self, parts: &[Part]) -> bool {
        self.line.is_empty()
            || (self.memory.is_none()
                && self.line.iter().all(|waiter| {
                    waiter.parts.iter().all(|theirs| parts.iter().all(|mine| mine.0 != theirs.0))
                }))
    }

    fn grant(&mut self, job: Job, parts: &[Part]) {
        let held = parts.iter().map(|&(account, mine)| {
            // It was just asked, and nobody came between.
            let taken = self.accounts[account].try_take(&ask(job, account, mine, &[], self.now));
            let at = taken.expect("it refuses nobody").expect("it fits");
            let charge = Charge::new(id(job), mine, at);
            HeldPart { account, charge, is_back: false, is_reported: false }
        });
        let parts: Vec<_> = held.collect();
        if !parts.is_empty() {
            self.granted.push(job);
            if let Some(memory) = &self.memory {
                memory.released(self.now);
                self.turn.earned = false;
            }
        }
        self.held.insert(job, Held { parts, is_settled: false, is_rolled_back: false });
    }

    /// One pass: the head, again as long as heads leave, then everybody else beside it.
    pub(crate) fn walk(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let began_open = self.is_open();
        while !self.line.is_empty() && self.look(0, &[]) {}
        let head = self.head();
        let mut at = 1;
        while at < self.line.len() {
            if !self.look(at, &head) {
                at += 1;
            }
        }
        // A pass that finds memory willing, and at whose end it still is, ends the drain.
        if self.line.is_empty() || (began_open && self.is_open()) {
            self.turn = Turn::default();
        }
    }

    /// Looks at one; answers whether it left.
    fn look(&mut self, at: usize, head: &[Part]) -> bool {
        let Waiter { job, parts, arrived, .. } = &self.line[at];
        let (job, parts, waited) = (*job, parts.clone(), self.now - *arrived);
        let outcome = match self.judge(job, &parts, head) {
            Answer::No(by_memory, _) => {
                self.turn.draining |= by_memory;
                return false;
            }
            Answer::Yes => Outcome::Granted,
            Answer::Never(by) => Outcome::Refused(by),
        };
        if outcome == Outcome::Granted {
            self.grant(job, &parts);
        }
        self.remove(at);
        self.outcomes.insert(job, (outcome, waited));
        true
    }

    fn remove(&mut self, at: usize) {
        self.line.remove(at);
        if self.line.is_empty() {
            self.turn = Turn::default();
        }
    }

    /// Everything that can happen at this instant happens.
    pub(crate) fn rest(&mut self) {
        self.look_at_memory();
        loop {
            // What a grant changes for others, a probe that refuses everybody, may lie behind it.
            loop {
                let before = self.outcomes.len();
                self.walk();
                if self.outcomes.len() == before {
                    break;
                }
            }
            let before = self.line.len();
            while let Some(at) =
                self.line.iter().position(|waiter| waiter.expires.is_some_and(|at| at <= self.now))
            {
                let Waiter { job, arrived, .. } = self.line[at];
                self.outcomes.insert(job, (Outcome::TimedOut, self.now - arrived));
                self.remove(at);
            }
            if self.line.len() == before {
                return;
            }
        }
    }

    /// Goes from instant to instant, wherever something may happen, and rests at each.
    pub(crate) fn advance(&mut self, span: Duration) {
        self.rest();
        let end = self.now + span;
        while self.now < end {
            self.now = self.next().map_or(end, |next| next.min(end));
            self.rest();
        }
    }

    /// The next instant at which the clock alone may change an answer.
    fn next(&self) -> Option<Instant> {
        let head = self.head();
        let expiries = self.line.iter().filter_map(|waiter| waiter.expires);
        let clocks = self.line.iter().enumerate().flat_map(|(place, waiter)| {
            let head = if place == 0 { &[][..] } else { &head };
            waiter.parts.iter().filter_map(move |&(account, mine)| {
                let ask = ask(waiter.job, account, mine, head, self.now);
                self.accounts[account].earliest_fit(&ask)
            })
        });
        let memory = self.memory.as_ref().filter(|_| self.turn.draining).and_then(|memory| {
            let at = memory.earliest(self.turn, self.now)?;
            Some(at.max(self.now + Duration::from_millis(1)))
        });
        expiries
            .chain(clocks)
            .chain(memory)
            .filter(|&at| at > self.now)
            .min()
            .map(|at| self.whole(at))
    }

    /// The first whole millisecond not before an instant.
    fn whole(&self, at: Instant) -> Instant {
        let nanos = (at - self.origin).as_nanos().next_multiple_of(1_000_000);
        self.origin + Duration::from_nanos(u64::try_from(nanos).expect("within some centuries"))
    }

    /// A job gives up, in the line or with a grant it never saw.
    pub(crate) fn leave(&mut self, job: Job) {
        if let Some(at) = self.line.iter().position(|waiter| waiter.job == job) {
            self.remove(at);
        }
        if self.held.contains_key(&job) {
            self.settle(job, true);
        }
    }

    pub(crate) fn settle(&mut self, job: Job, rollback: bool) -> bool {
        let held = self.held.get_mut(&job).expect("it was granted");
        if held.is_settled {
            return false;
        }
        held.is_settled = true;
        held.is_rolled_back = rollback;
        for part in &mut held.parts {
            let account = &self.accounts[part.account];
            if !part.is_back && (rollback || comes_back(&**account)) {
                account.give(&part.charge, self.now);
                part.is_back = true;
            }
            account.settled(&part.charge, part.is_reported, self.now);
        }
        if let Some(memory) = self.memory.as_ref().filter(|_| !held.parts.is_empty()) {
            if rollback {
                memory.rolled_back(self.now);
            } else {
                self.turn.earned |= memory.completed(self.now) && self.turn.draining;
            }
        }
        true
    }

    pub(crate) fn release_one(&mut self, job: Job, account: usize) -> bool {
        let now = self.now;
        let is_held = !self.held[&job].is_settled;
        let Some((part, account)) = self.part(job, account) else { return false };
        if !is_held || part.is_back || !comes_back(&*account) {
            return false;
        }
        part.is_back = true;
        account.give(&part.charge, now);
        true
    }

    pub(crate) fn reconcile(&mut self, job: Job, account: usize, used: u64) -> bool {
        let now = self.now;
        let Held { is_settled, is_rolled_back, .. } = self.held[&job];
        let Some((part, account)) = self.part(job, account) else { return false };
        if is_rolled_back || part.is_back || (is_settled && comes_back(&*account)) {
            return false;
        }
        part.charge.amount = account.reconcile(&part.charge, used, now);
        true
    }

    pub(crate) fn report(
        &mut self,
        job: Job,
        account: usize,
        failure: Option<&UpstreamFailure>,
    ) -> bool {
        let now = self.now;
        let is_held = !self.held[&job].is_settled;
        let Some((part, account)) = self.part(job, account) else { return false };
        if !is_held || part.is_back {
            return false;
        }
        part.is_reported = true;
        match failure {
            None => account.on_success(&part.charge, now),
            Some(failure) => account.on_upstream_failure(failure, &part.charge, now),
        }
        true
    }

    fn part(&mut self, job: Job, account: usize) -> Option<(&mut HeldPart, Arc<dyn Account>)> {
        let held = self.held.get_mut(&job).expect("it was granted");
        let part = held.parts.iter_mut().find(|part| part.account == account)?;
        Some((part, Arc::clone(&self.accounts[account])))
    }

    /// The accounts a job holds something of, or held.
    pub(crate) fn accounts_of(&self, job: Job) -> Vec<usize> {
        self.held[&job].parts.iter().map(|part| part.account).collect()
    }
}

/// No two jobs have the same; an ask's id is never zero.
const fn id(job: Job) -> u64 {
    job as u64 + 1
}

fn ask(job: Job, account: usize, mine: Amount, head: &[Part], now: Instant) -> Ask {
    let ahead = head.iter().find(|part| part.0 == account);
    Ask::new(id(job), mine, now).behind(ahead.map_or(Amount::NONE, |part| part.1))
}

fn comes_back(account: &dyn Account) -> bool {
    account.replenishment() == Replenishment::Release
}
