//! What the events tell, held against the promises: nothing here knows the reference.

use std::collections::BTreeSet;

use admit::{EventKind, LimiterEvent};
use tokio::sync::broadcast::{Receiver, error::TryRecvError};

use crate::reference::{Job, amount_on};
use crate::steps::{ACCOUNTS, Part};

type On = (Job, usize);

pub(crate) struct Audit {
    events: Receiver<LimiterEvent>,
    sequence: u64,
    /// Every job's demand, each account once.
    demands: Vec<Vec<Part>>,
    /// Who waits, in order of arrival, as far as the events say.
    line: Vec<Job>,
    held: BTreeSet<On>,
    granted: BTreeSet<On>,
    released: BTreeSet<On>,
    /// Everybody granted, in order.
    pub(crate) order: Vec<Job>,
}

macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+));
        }
    };
}
pub(crate) use ensure;

impl Audit {
    pub(crate) fn new(events: Receiver<LimiterEvent>) -> Self {
        Self {
            events,
            sequence: 0,
            demands: Vec::new(),
            line: Vec::new(),
            held: BTreeSet::new(),
            granted: BTreeSet::new(),
            released: BTreeSet::new(),
            order: Vec::new(),
        }
    }

    /// A job is about to ask.
    pub(crate) fn expect(&mut self, parts: Vec<Part>) {
        self.demands.push(parts);
    }

    /// A job has taken its place in the line.
    pub(crate) fn parked(&mut self, job: Job) {
        self.line.push(job);
    }

    /// Reads everything told so far.
    pub(crate) fn listen(&mut self) -> Result<(), String> {
        loop {
            match self.events.try_recv() {
                Ok(event) => self.hear(&event)?,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return Ok(()),
                Err(TryRecvError::Lagged(lost)) => return Err(format!("{lost} events were lost")),
            }
        }
    }

    fn hear(&mut self, event: &LimiterEvent) -> Result<(), String> {
        self.sequence += 1;
        ensure!(event.sequence == self.sequence, "an event is missing before {event:?}");
        let job: Job = event.job.as_ref().and_then(|job| job.id.parse().ok()).unwrap_or(usize::MAX);
        let account = (0..ACCOUNTS).find(|&at| name_of(at) == *event.account);
        let Some(account) = account else { return Err(format!("whose is {event:?}")) };
        let on = (job, account);
        match event.kind {
            EventKind::Held => {
                ensure!(!self.granted.contains(&on), "held after its grant: {event:?}");
                ensure!(self.held.insert(on), "held twice: {event:?}");
            }
            EventKind::GrantedFromHold => {
                ensure!(self.held.remove(&on), "was never held: {event:?}");
                ensure!(event.wait.is_some(), "no wait: {event:?}");
                self.grant(on, event)?;
            }
            EventKind::GrantedImmediate => {
                ensure!(!self.held.contains(&on), "was held: {event:?}");
                self.grant(on, event)?;
            }
            EventKind::Rejected => {
                ensure!(!self.granted.contains(&on), "rejected after its grant: {event:?}");
                ensure!(event.reason.is_some(), "no reason: {event:?}");
                self.held.remove(&on);
                self.line.retain(|&other| other != job);
            }
            EventKind::Released => {
                ensure!(self.granted.contains(&on), "released without a grant: {event:?}");
                ensure!(self.released.insert(on), "released twice: {event:?}");
            }
            _ => return Err(format!("an unknown step: {event:?}")),
        }
        Ok(())
    }

    fn grant(&mut self, on: On, event: &LimiterEvent) -> Result<(), String> {
        let (job, account) = on;
        ensure!(self.granted.insert(on), "granted twice: {event:?}");
        if self.order.last() != Some(&job) {
            ensure!(!self.order.contains(&job), "two grants are mixed up: {event:?}");
            self.order.push(job);
            // First come first served among equals: nobody of the line, and no newcomer.
            let mine = &self.demands[job];
            let older = self.line.iter().take_while(|&&other| other != job);
            for &other in older {
                ensure!(self.demands[other] != *mine, "{job} went before its equal {other}");
            }
        }
        if let Some(&head) = self.line.first()
            && head != job
        {
            let needs = amount_on(&self.demands[head], account).units;
            let free = event.capacity.saturating_sub(event.in_use);
            ensure!(free >= needs, "{job} overtook the head {head}: {event:?}");
        }
        if self.demands[job].iter().all(|&(account, _)| self.granted.contains(&(job, account))) {
            self.line.retain(|&other| other != job);
        }
        Ok(())
    }

    /// At the end nobody is held, and what was told as granted of these accounts came back.
    pub(crate) fn end(&self, come_back: impl Fn(usize) -> bool) -> Result<(), String> {
        ensure!(self.held.is_empty(), "held and never ended: {:?}", self.held);
        ensure!(self.line.is_empty(), "still in line: {:?}", self.line);
        for on in &self.granted {
            ensure!(!come_back(on.1) || self.released.contains(on), "never released: {on:?}");
        }
        Ok(())
    }
}

pub(crate) fn name_of(account: usize) -> String {
    format!("account {account}")
}
