//! The reference: accounts as integers, the line as a list, and a walk that asks everybody.
//!
//! Time is whole milliseconds, and so is every instant at which something can happen here. Nothing
//! is shared with the crate, and nothing is clever.

use std::collections::BTreeMap;
use std::fmt;

use crate::steps::{ACCOUNTS, BUCKETS, GATES, Part, SWITCH, Setup, TURNSTILE};
use crate::switch::Position;

pub(crate) type Ms = u64;
pub(crate) type Job = usize;

const MINUTE: i128 = 60_000;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) requests: u32,
    pub(crate) units: u64,
}

/// `2` for two permits, `1r 13` for a request of thirteen tokens: a failing case is read.
impl fmt::Debug for Want {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, units } = self;
        if u64::from(*requests) == *units {
            write!(f, "{units}")
        } else {
            write!(f, "{requests}r {units}")
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    No,
    Never,
}

#[derive(Clone, Debug)]
pub(crate) enum Account {
    /// A counting gate; the own account is one that can be closed, too.
    Places { capacity: u32, in_use: u32, position: Position },
    /// Requests and tokens, in sixty-thousandths, so that a millisecond refills exactly the cap.
    Bucket { caps: [i128; 2], levels: [i128; 2] },
    /// One at a time, and so long apart.
    Turnstile { gap: Ms, stamps: Vec<Ms> },
}

impl Account {
    fn answer(&self, mine: Want, ahead: Want, now: Ms) -> Answer {
        let yes_if = |fits| if fits { Answer::Yes } else { Answer::No };
        match self {
            Self::Places { position: Position::Broken, .. } => Answer::Never,
            Self::Places { capacity, .. } if mine.requests > *capacity => Answer::Never,
            Self::Places { position: Position::Closed, .. } => Answer::No,
            Self::Places { capacity, in_use, .. } => {
                yes_if(in_use + mine.requests + ahead.requests <= *capacity)
            }
            Self::Bucket { caps, levels } => {
                if dimensions(mine).iter().zip(caps).any(|(mine, cap)| mine > cap) {
                    return Answer::Never;
                }
                let wanted = both(mine, ahead);
                yes_if(wanted.iter().zip(levels).all(|(wanted, level)| wanted * MINUTE <= *level))
            }
            Self::Turnstile { .. } if mine.requests > 1 => Answer::Never,
            Self::Turnstile { gap, stamps } => {
                let live = stamps.iter().any(|stamp| now < stamp + gap);
                let wanted = mine.requests + ahead.requests;
                yes_if(wanted == 0 || (wanted == 1 && !live))
            }
        }
    }

    fn take(&mut self, mine: Want, now: Ms) {
        match self {
            Self::Places { in_use, .. } => *in_use += mine.requests,
            Self::Bucket { levels, .. } => {
                for (level, mine) in levels.iter_mut().zip(dimensions(mine)) {
                    *level -= mine * MINUTE;
                }
            }
            Self::Turnstile { stamps, .. } => stamps.extend((mine.requests > 0).then_some(now)),
        }
    }

    fn give(&mut self, held: Want, at: Ms) {
        match self {
            Self::Places { in_use, .. } => *in_use -= held.requests,
            Self::Bucket { caps, levels } => {
                let dimensions = dimensions(held);
                for ((level, cap), held) in levels.iter_mut().zip(caps).zip(dimensions) {
                    *level = (*level + held * MINUTE).min(*cap * MINUTE);
                }
            }
            Self::Turnstile { stamps, .. } => {
                if held.requests > 0 {
                    let stamp = stamps.iter().position(|&stamp| stamp == at);
                    stamps.remove(stamp.expect("stamps are kept"));
                }
            }
        }
    }

    /// The first whole millisecond at which the clock alone may change the answer to this.
    fn next(&self, mine: Want, ahead: Want, now: Ms) -> Option<Ms> {
        match self {
            Self::Places { .. } => None,
            Self::Bucket { caps, levels } => both(mine, ahead)
                .iter()
                .zip(levels)
                .zip(caps)
                .map(|((wanted, level), cap)| {
                    let missing = (wanted * MINUTE - level).max(0);
                    now + Ms::try_from((missing + cap - 1) / cap).expect("soon enough")
                })
                .max(),
            Self::Turnstile { gap, stamps } => stamps.iter().map(|stamp| stamp + gap).max(),
        }
    }

    fn pass_time(&mut self, elapsed: Ms) {
        if let Self::Bucket { caps, levels } = self {
            for (level, cap) in levels.iter_mut().zip(caps) {
                *level = (*level + *cap * i128::from(elapsed)).min(*cap * MINUTE);
            }
        }
    }

    pub(crate) const fn comes_back(&self) -> bool {
        matches!(self, Self::Places { .. })
    }
}

fn dimensions(want: Want) -> [i128; 2] {
    [i128::from(want.requests), i128::from(want.units)]
}

fn both(mine: Want, ahead: Want) -> [i128; 2] {
    let ahead = dimensions(ahead);
    let mine = dimensions(mine);
    [mine[0] + ahead[0], mine[1] + ahead[1]]
}

/// What a job that is granted holds.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) parts: Vec<HeldPart>,
    pub(crate) is_settled: bool,
    pub(crate) is_rolled_back: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct HeldPart {
    pub(crate) account: usize,
    pub(crate) amount: Want,
    at: Ms,
    pub(crate) is_back: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted,
    Refused,
    TimedOut,
    QueueFull,
}

#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) job: Job,
    pub(crate) parts: Vec<Part>,
    arrived: Ms,
    expires: Option<Ms>,
}

pub(crate) struct Reference {
    pub(crate) now: Ms,
    pub(crate) accounts: Vec<Account>,
    pub(crate) line: Vec<Waiter>,
    /// What became of a job, and how long that took.
    pub(crate) outcomes: BTreeMap<Job, (Outcome, Ms)>,
    /// Everybody granted, in order.
    pub(crate) granted: Vec<Job>,
    pub(crate) held: BTreeMap<Job, Held>,
    max_waiting: usize,
}

impl Reference {
    pub(crate) fn new(setup: &Setup) -> Self {
        let places = |capacity| Account::Places { capacity, in_use: 0, position: Position::Open };
        let bucket = |(requests, tokens): (u32, u64)| {
            let caps = [i128::from(requests), i128::from(tokens)];
            Account::Bucket { caps, levels: caps.map(|cap| cap * MINUTE) }
        };
        let mut accounts = vec![places(0); ACCOUNTS];
        for at in 0..2 {
            accounts[GATES[at]] = places(setup.gates[at]);
            accounts[BUCKETS[at]] = bucket(setup.buckets[at]);
        }
        accounts[SWITCH] = places(setup.switch);
        accounts[TURNSTILE] = Account::Turnstile { gap: setup.gap, stamps: Vec::new() };
        Self {
            now: 0,
            accounts,
            line: Vec::new(),
            outcomes: BTreeMap::new(),
            granted: Vec::new(),
            held: BTreeMap::new(),
            max_waiting: setup.max_waiting,
        }
    }

    /// Every account's answer, with the head's parts set aside.
    fn answers(&self, parts: &[Part], head: &[Part]) -> Vec<(usize, Answer)> {
        parts
            .iter()
            .map(|&(account, mine)| {
                let ahead = amount_on(head, account);
                (account, self.accounts[account].answer(mine, ahead, self.now))
            })
            .collect()
    }

    fn judge(&self, parts: &[Part], head: &[Part]) -> Answer {
        let answers = self.answers(parts, head);
        let any = |wanted| answers.iter().any(|&(_, answer)| answer == wanted);
        if any(Answer::Never) {
            Answer::Never
        } else if any(Answer::No) {
            Answer::No
        } else {
            Answer::Yes
        }
    }

    /// A job asks. `None` when it waits now.
    pub(crate) fn arrive(
        &mut self,
        job: Job,
        parts: &[Part],
        within: Option<Ms>,
    ) -> Option<Outcome> {
        let outcome = match self.ask(parts) {
            Answer::Never => Outcome::Refused,
            Answer::Yes => {
                self.grant(job, parts);
                Outcome::Granted
            }
            Answer::No if self.line.len() >= self.max_waiting => Outcome::QueueFull,
            Answer::No if within == Some(0) => Outcome::TimedOut,
            Answer::No => {
                let expires = within.map(|within| self.now + within);
                let parts = parts.to_vec();
                self.line.push(Waiter { job, parts, arrived: self.now, expires });
                return None;
            }
        };
        self.outcomes.insert(job, (outcome, 0));
        Some(outcome)
    }

    /// A job asks whether it can go now; with the accounts it is short of.
    pub(crate) fn try_arrive(&mut self, job: Job, parts: &[Part]) -> (Answer, Vec<usize>) {
        let answer = self.ask(parts);
        let short = self
            .answers(parts, &self.head())
            .into_iter()
            .filter(|&(_, answer)| answer == Answer::No)
            .map(|(account, _)| account)
            .collect();
        if answer == Answer::Yes {
            self.grant(job, parts);
        }
        (answer, short)
    }

    fn ask(&mut self, parts: &[Part]) -> Answer {
        if parts.is_empty() {
            return Answer::Yes;
        }
        // Nobody who waits names any of its accounts: there is nobody to overtake.
        let names_one = |waiter: &Waiter| {
            waiter.parts.iter().any(|part| parts.iter().any(|mine| mine.0 == part.0))
        };
        if !self.line.iter().any(names_one) {
            return self.judge(parts, &[]);
        }
        // A newcomer overtakes nobody: whoever can go, goes first.
        self.walk();
        self.judge(parts, &self.head())
    }

    pub(crate) fn head(&self) -> Vec<Part> {
        self.line.first().map(|head| head.parts.clone()).unwrap_or_default()
    }

    fn grant(&mut self, job: Job, parts: &[Part]) {
        let held = parts.iter().map(|&(account, amount)| {
            self.accounts[account].take(amount, self.now);
            HeldPart { account, amount, at: self.now, is_back: false }
        });
        let parts: Vec<_> = held.collect();
        if !parts.is_empty() {
            self.granted.push(job);
        }
        self.held.insert(job, Held { parts, is_settled: false, is_rolled_back: false });
    }

    /// The plain walk: the head, again as long as heads leave, then everybody beside it.
    pub(crate) fn walk(&mut self) {
        while !self.line.is_empty() && self.look(0, &[]) {}
        let head = self.head();
        let mut at = 1;
        while at < self.line.len() {
            if !self.look(at, &head) {
                at += 1;
            }
        }
    }

    /// Looks at one; answers whether it left.
    fn look(&mut self, at: usize, head: &[Part]) -> bool {
        let outcome = match self.judge(&self.line[at].parts, head) {
            Answer::No => return false,
            Answer::Yes => Outcome::Granted,
            Answer::Never => Outcome::Refused,
        };
        let waiter = self.line.remove(at);
        if outcome == Outcome::Granted {
            self.grant(waiter.job, &waiter.parts);
        }
        self.outcomes.insert(waiter.job, (outcome, self.now - waiter.arrived));
        true
    }

    /// Everything that can happen at this instant happens.
    pub(crate) fn rest(&mut self) {
        loop {
            self.walk();
            let late = |waiter: &Waiter| waiter.expires.is_some_and(|at| at <= self.now);
            let Some(at) = self.line.iter().position(late) else { return };
            let waiter = self.line.remove(at);
            self.outcomes.insert(waiter.job, (Outcome::TimedOut, self.now - waiter.arrived));
        }
    }

    /// Goes from instant to instant, wherever something may happen, and rests at each.
    pub(crate) fn advance(&mut self, span: Ms) {
        self.rest();
        let end = self.now + span;
        while self.now < end {
            let next = self.next().map_or(end, |next| next.min(end));
            for account in &mut self.accounts {
                account.pass_time(next - self.now);
            }
            self.now = next;
            self.rest();
        }
    }

    fn next(&self) -> Option<Ms> {
        let head = self.head();
        let expiries = self.line.iter().filter_map(|waiter| waiter.expires);
        let clocks = self.line.iter().enumerate().flat_map(|(place, waiter)| {
            let head = if place == 0 { &[][..] } else { &head };
            waiter.parts.iter().filter_map(move |&(account, mine)| {
                self.accounts[account].next(mine, amount_on(head, account), self.now)
            })
        });
        expiries.chain(clocks).filter(|&at| at > self.now).min()
    }

    /// A job gives up, in the line or with a grant it never saw.
    pub(crate) fn leave(&mut self, job: Job) {
        self.line.retain(|waiter| waiter.job != job);
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
            let account = &mut self.accounts[part.account];
            if !part.is_back && (rollback || account.comes_back()) {
                part.is_back = true;
                account.give(part.amount, part.at);
            }
        }
        true
    }

    pub(crate) fn release_one(&mut self, job: Job, account: usize) -> bool {
        let held = self.held.get_mut(&job).expect("it was granted");
        let part = held.parts.iter_mut().find(|part| part.account == account);
        let Some(part) = part.filter(|part| !part.is_back) else { return false };
        if held.is_settled || !self.accounts[account].comes_back() {
            return false;
        }
        part.is_back = true;
        self.accounts[account].give(part.amount, part.at);
        true
    }

    pub(crate) fn reconcile(&mut self, job: Job, account: usize, used: u64) -> bool {
        let held = self.held.get_mut(&job).expect("it was granted");
        let part = held.parts.iter_mut().find(|part| part.account == account);
        let Some(part) = part.filter(|part| !part.is_back) else { return false };
        if held.is_rolled_back || (held.is_settled && self.accounts[account].comes_back()) {
            return false;
        }
        if let Account::Bucket { caps, levels } = &mut self.accounts[account] {
            let back = i128::from(part.amount.units) - i128::from(used);
            levels[1] = (levels[1] + back * MINUTE).min(caps[1] * MINUTE);
            part.amount.units = used;
        }
        true
    }

    pub(crate) fn resize(&mut self, account: usize, to: u32) {
        if let Account::Places { capacity, .. } = &mut self.accounts[account] {
            *capacity = to;
        }
    }

    pub(crate) fn turn(&mut self, to: Position) {
        if let Account::Places { position, .. } = &mut self.accounts[SWITCH] {
            *position = to;
        }
    }

    pub(crate) fn set_limits(&mut self, account: usize, requests: u32, tokens: u64) {
        if let Account::Bucket { caps, levels } = &mut self.accounts[account] {
            *caps = [i128::from(requests), i128::from(tokens)];
            for (level, cap) in levels.iter_mut().zip(caps) {
                *level = (*level).min(*cap * MINUTE);
            }
        }
    }

    /// How many grants are made and not settled.
    pub(crate) fn holding(&self) -> usize {
        self.held.values().filter(|held| !held.is_settled).count()
    }
}

/// What a list of parts, each account once, wants of an account.
pub(crate) fn amount_on(parts: &[Part], account: usize) -> Want {
    parts.iter().find(|part| part.0 == account).map(|part| part.1).unwrap_or_default()
}

/// The same parts with each account once, in the order first named.
pub(crate) fn merged(parts: &[Part]) -> Vec<Part> {
    let mut merged: Vec<Part> = Vec::new();
    for &(account, want) in parts {
        match merged.iter_mut().find(|part| part.0 == account) {
            Some((_, sum)) => {
                sum.requests += want.requests;
                sum.units += want.units;
            }
            None => merged.push((account, want)),
        }
    }
    merged
}
