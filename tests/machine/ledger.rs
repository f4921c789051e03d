//! What the events tell, kept as a ledger and held against the promises. Nothing here asks the
//! monitor, and what is counted is counted anew.

use std::collections::{BTreeMap, BTreeSet};

use admit::{Amount, EventKind, LimiterEvent, RejectReason};
use tokio::time::Instant;

use crate::flow::{Flow, Span};
use crate::setup::{
    ACCOUNTS, BUCKETS, GATES, Kind, LANES, MEMORY, NAMES, OWN, Part, Setup, comes_back, kind,
};
use crate::transition::Job;

macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+));
        }
    };
}
pub(crate) use ensure;

/// How far a job has come on one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Held,
    Granted,
    Released,
    Rejected,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    pub(crate) granted: u64,
    pub(crate) refused: u64,
    pub(crate) cancelled: u64,
    pub(crate) timed_out: u64,
}

pub(crate) struct Ledger {
    sequence: u64,
    /// Every job's demand, each account once.
    demands: BTreeMap<Job, Vec<Part>>,
    /// Who waits, in order of arrival, as far as the events say.
    pub(crate) line: Vec<Job>,
    stages: BTreeMap<(Job, usize), Stage>,
    /// How many are held on an account.
    held: [usize; ACCOUNTS + 1],
    /// Units of a release account that were granted and did not come back.
    used: [u64; ACCOUNTS],
    /// How many places it has.
    places: [u64; ACCOUNTS],
    flows: BTreeMap<usize, Flow>,
    span: Span,
    begun: BTreeSet<Job>,
    pub(crate) ends: Ends,
    ended: BTreeSet<Job>,
    pub(crate) from_hold: u64,
    pub(crate) reasons: BTreeMap<&'static str, u64>,
}

impl Ledger {
    pub(crate) fn new(setup: &Setup, now: Instant) -> Self {
        let mut places = [u64::from(setup.lane_places); ACCOUNTS];
        for at in 0..2 {
            places[GATES[at]] = u64::from(setup.gates[at]);
        }
        places[OWN] = u64::from(setup.own);
        let limits = [setup.buckets[0], setup.buckets[1], setup.lane_limits];
        let buckets = [BUCKETS[0], BUCKETS[1], LANES[2]].into_iter().zip(limits);
        Self {
            sequence: 0,
            demands: BTreeMap::new(),
            line: Vec::new(),
            stages: BTreeMap::new(),
            held: [0; ACCOUNTS + 1],
            used: [0; ACCOUNTS],
            places,
            flows: buckets.map(|(at, limits)| (at, Flow::full(limits, now))).collect(),
            span: Span::new(setup.window),
            begun: BTreeSet::new(),
            ends: Ends::default(),
            ended: BTreeSet::new(),
            from_hold: 0,
            reasons: BTreeMap::new(),
        }
    }

    /// A job is about to ask.
    pub(crate) fn expect(&mut self, job: Job, parts: Vec<Part>) {
        self.demands.insert(job, parts);
    }

    /// A job has taken its place in the line.
    pub(crate) fn parked(&mut self, job: Job) {
        self.line.push(job);
    }

    /// A gate has so many places from now on.
    pub(crate) const fn resized(&mut self, account: usize, places: u32) {
        self.places[account] = places as u64;
    }

    pub(crate) fn limited(&mut self, account: usize, limits: (u32, u64), now: Instant) {
        self.flow(account).limit(limits, now);
    }

    /// A job used so much more or less of a bucket than it held.
    pub(crate) fn corrected(&mut self, account: usize, held: u64, used: u64, now: Instant) {
        let flow = self.flow(account);
        flow.give(0, held.saturating_sub(used), now);
        flow.owe(used.saturating_sub(held));
    }

    fn flow(&mut self, account: usize) -> &mut Flow {
        self.flows.get_mut(&account).expect("a bucket")
    }

    fn wanted(&self, job: Job, account: usize) -> Amount {
        let parts = self.demands[&job].iter();
        parts.filter(|part| part.0 == account).map(|part| part.1).next().unwrap_or(Amount::NONE)
    }

    pub(crate) fn demand(&self, job: Job) -> &[Part] {
        &self.demands[&job]
    }

    /// Whether any of it was told as granted.
    pub(crate) fn has_begun(&self, job: Job) -> bool {
        self.begun.contains(&job)
    }

    /// Whether all of it came back.
    pub(crate) fn is_back(&self, job: Job) -> bool {
        let stage = |part: &Part| self.stages.get(&(job, part.0)).copied();
        self.demands[&job].iter().all(|part| stage(part) == Some(Stage::Released))
    }

    /// Units that were granted and did not come back.
    pub(crate) const fn used(&self, account: usize) -> u64 {
        self.used[account]
    }

    pub(crate) fn hear(&mut self, event: &LimiterEvent, now: Instant) -> Result<(), String> {
        self.sequence += 1;
        ensure!(event.sequence == self.sequence, "an event is missing before {event:?}");
        let job = event.job.as_ref().and_then(|job| job.id.parse().ok());
        let account = NAMES.iter().position(|name| *name == &*event.account);
        let (Some(job), Some(account)) = (job, account) else {
            return Err(format!("whose is {event:?}"));
        };
        let before = self.stages.get(&(job, account)).copied();
        let (stage, may_follow) = match event.kind {
            EventKind::Held => (Stage::Held, before.is_none()),
            EventKind::GrantedFromHold => (Stage::Granted, before == Some(Stage::Held)),
            EventKind::GrantedImmediate => (Stage::Granted, before.is_none() && account != MEMORY),
            EventKind::Rejected => {
                (Stage::Rejected, before.is_none() || before == Some(Stage::Held))
            }
            EventKind::Released => {
                (Stage::Released, before == Some(Stage::Granted) && account != MEMORY)
            }
            _ => return Err(format!("an unknown step: {event:?}")),
        };
        ensure!(may_follow, "after {before:?} cannot come {event:?}");
        ensure!(
            event.wait.is_some() == (before == Some(Stage::Held)),
            "a wait is told of who was held, and of nobody else: {event:?}"
        );
        self.stages.insert((job, account), stage);
        self.held[account] -= usize::from(before == Some(Stage::Held));
        self.held[account] += usize::from(stage == Stage::Held);
        let right = self.held[account];
        ensure!(event.waiting == right, "{right} wait there, by what was told: {event:?}");
        match stage {
            Stage::Held => Ok(()),
            Stage::Granted => self.grant(job, account, event, now),
            Stage::Rejected => self.reject(job, event),
            Stage::Released => self.release(job, account, event, now),
        }
    }

    fn grant(
        &mut self,
        job: Job,
        account: usize,
        event: &LimiterEvent,
        now: Instant,
    ) -> Result<(), String> {
        if self.begun.insert(job) {
            self.first_come(job)?;
            self.from_hold += u64::from(self.line.contains(&job));
        }
        self.debit(job, account, event, now)?;
        let is_granted = |part: &Part| self.stages.get(&(job, part.0)) == Some(&Stage::Granted);
        if self.demands[&job].iter().all(is_granted) {
            self.line.retain(|&other| other != job);
            self.ends.granted += 1;
            ensure!(self.ended.insert(job), "{job} ends twice: {event:?}");
        }
        Ok(())
    }

    /// First come first served among equals: nobody of the line, and no newcomer.
    fn first_come(&self, job: Job) -> Result<(), String> {
        let sorted = |job: Job| {
            let mut parts = self.demands[&job].clone();
            parts.sort_by_key(|part| part.0);
            parts
        };
        let mine = sorted(job);
        for &other in self.line.iter().take_while(|&&other| other != job) {
            ensure!(sorted(other) != mine, "{job} went before its equal {other}");
        }
        Ok(())
    }

    /// What is granted was there, and the head's is there still.
    fn debit(
        &mut self,
        job: Job,
        account: usize,
        event: &LimiterEvent,
        now: Instant,
    ) -> Result<(), String> {
        if account == MEMORY {
            return Ok(());
        }
        let mine = self.wanted(job, account);
        ensure!(event.amount == mine.units, "it wanted {mine}: {event:?}");
        let heads = match self.line.first() {
            Some(&head) if head != job => self.wanted(head, account),
            _ => Amount::NONE,
        };
        match kind(account) {
            Kind::Gate | Kind::Own => {
                self.used[account] += event.amount;
                // Who wants nothing of a gate that was made smaller is no debit.
                let used = if mine.is_none() { 0 } else { self.used[account] };
                let places = self.places[account];
                ensure!(used <= places, "overdrawn, {used} of {places}: {event:?}");
                let wanted = used + heads.units;
                ensure!(
                    mine.is_none() || wanted <= places,
                    "{job} overtook the head, who needs {heads}: {event:?}"
                );
            }
            Kind::Bucket => {
                self.flow(account)
                    .take(mine, now)
                    .map_err(|error| format!("{error}: {event:?}"))?;
                let free = event.capacity.saturating_sub(event.in_use);
                ensure!(
                    free >= heads.units,
                    "{job} overtook the head, who needs {heads}: {event:?}"
                );
            }
            Kind::Window => {
                self.span.take(job, mine.requests, now).map_err(|e| format!("{e}: {event:?}"))?;
                let free = event.capacity.saturating_sub(event.in_use);
                ensure!(
                    mine.is_none() || free >= u64::from(heads.requests),
                    "{job} overtook the head, who needs {heads}: {event:?}"
                );
            }
        }
        Ok(())
    }

    fn reject(&mut self, job: Job, event: &LimiterEvent) -> Result<(), String> {
        ensure!(!self.begun.contains(&job), "it was granted: {event:?}");
        self.line.retain(|&other| other != job);
        let counter = match event.reason {
            Some(RejectReason::Cancelled) => &mut self.ends.cancelled,
            Some(RejectReason::TimedOut) => &mut self.ends.timed_out,
            Some(_) => &mut self.ends.refused,
            None => return Err(format!("no reason: {event:?}")),
        };
        if self.ended.insert(job) {
            *counter += 1;
            let reason = match event.reason {
                Some(RejectReason::CircuitBlocked) => "refused",
                Some(RejectReason::Aborted) => "aborted",
                Some(RejectReason::Shutdown) => "shut down",
                Some(RejectReason::QueueFull) => "queue full",
                Some(RejectReason::TimedOut) => "timed out",
                _ => "cancelled",
            };
            *self.reasons.entry(reason).or_default() += 1;
        }
        Ok(())
    }

    fn release(
        &mut self,
        job: Job,
        account: usize,
        event: &LimiterEvent,
        now: Instant,
    ) -> Result<(), String> {
        match kind(account) {
            Kind::Gate | Kind::Own => {
                let wanted = self.wanted(job, account);
                ensure!(event.amount == wanted.units, "it was granted {wanted}: {event:?}");
                self.used[account] -= event.amount;
            }
            Kind::Bucket => {
                let requests = self.wanted(job, account).requests;
                self.flow(account).give(requests, event.amount, now);
            }
            Kind::Window => self.span.give(job),
        }
        Ok(())
    }

    /// At the end nobody is held, and what was granted of release accounts came back.
    pub(crate) fn end(&self, spoilt: bool) -> Result<(), String> {
        for (&(job, account), stage) in &self.stages {
            let name = NAMES[account];
            ensure!(*stage != Stage::Held, "{job} is held on {name} and nothing ends it");
            let is_lost = *stage == Stage::Granted && account != MEMORY && comes_back(account);
            ensure!(!is_lost || (spoilt && account == OWN), "{job} never gave back {name}");
        }
        Ok(())
    }
}
