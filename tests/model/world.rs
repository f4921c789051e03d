//! Drives the monitor and the reference side by side.

use std::fmt::Write as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use admit::{
    Account, Admission, Admit, AdmitError, Amount, Ask, CountingGate, Demand, Grant, JobInfo,
    Limits, TokenBucket, TryAdmitError,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::accounts::Turnstile;
use crate::audit::{Audit, ensure, name_of};
use crate::reference::{self, Answer, Job, Ms, Outcome, Reference, Want, amount_on, merged};
use crate::steps::{BUCKETS, GATES, Of, Op, Part, SWITCH, Setup, Step, TURNSTILE};
use crate::switch::{Position, Switch};

/// Counts how often the task of a job is woken.
#[derive(Default)]
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A job whose outcome it has not got yet.
struct Waiting {
    job: Job,
    admit: Pin<Box<Admit>>,
    token: CancellationToken,
    wakes: Arc<Wakes>,
}

struct Holding {
    job: Job,
    grant: Grant,
}

struct World {
    admission: Admission,
    gates: [Arc<CountingGate>; 2],
    buckets: [Arc<TokenBucket>; 2],
    switch: Arc<Switch>,
    accounts: Vec<Arc<dyn Account>>,
    reference: Reference,
    audit: Audit,
    waiting: Vec<Waiting>,
    holding: Vec<Holding>,
    jobs: usize,
}

/// Runs a case. The error tells the steps up to the one that failed.
pub(crate) async fn run(setup: Setup, steps: &[Step]) -> Result<(), String> {
    let mut world = World::new(&setup);
    let mut told = format!("{setup:?}\n");
    for step in steps {
        let ms = world.reference.now;
        let rest = if step.rest { ", rest" } else { "" };
        writeln!(told, "{ms:>9} ms  {:?}{rest}", step.op).expect("a string grows");
        world.step(step).await.map_err(|error| format!("{error}\nafter\n{told}"))?;
    }
    world.end().await.map_err(|error| format!("at the end: {error}\nafter\n{told}"))
}

impl World {
    fn new(setup: &Setup) -> Self {
        let admission = Admission::builder()
            .max_waiting(setup.max_waiting)
            .event_capacity(4_096)
            .start()
            .expect("inside a runtime with a timer");
        let gates = [0, 1].map(|at| {
            CountingGate::new(name_of(GATES[at]), setup.gates[at]).expect("a positive capacity")
        });
        let buckets = [0, 1].map(|at| {
            let (requests, tokens) = setup.buckets[at];
            TokenBucket::new(name_of(BUCKETS[at]), Limits::per_minute(requests, tokens))
                .expect("positive limits")
        });
        let switch = Arc::new(Switch::new(&name_of(SWITCH), setup.switch));
        let gap = Duration::from_millis(setup.gap);
        let turnstile = Arc::new(Turnstile::new(&name_of(TURNSTILE), gap));
        Self {
            accounts: vec![
                gates[0].clone(),
                gates[1].clone(),
                buckets[0].clone(),
                buckets[1].clone(),
                switch.clone(),
                turnstile,
            ],
            audit: Audit::new(admission.subscribe()),
            admission,
            gates,
            buckets,
            switch,
            reference: Reference::new(setup),
            waiting: Vec::new(),
            holding: Vec::new(),
            jobs: 0,
        }
    }

    async fn step(&mut self, step: &Step) -> Result<(), String> {
        self.act(&step.op).await?;
        self.audit.listen()?;
        self.compare()?;
        if step.rest {
            self.rest().await?;
        }
        Ok(())
    }

    /// Lets the evaluator do all it can without the clock.
    async fn rest(&mut self) -> Result<(), String> {
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        self.reference.rest();
        self.audit.listen()?;
        self.compare()?;
        self.nobody_could_go()
    }

    async fn act(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Admit { parts, within } => return self.admit(parts, *within),
            Op::TryAdmit { parts } => return self.try_admit(parts),
            Op::Poll(at) => {
                if let Some(at) = nth(&self.waiting, *at) {
                    return self.poll(at);
                }
            }
            Op::Leave(at) => {
                if let Some(at) = nth(&self.waiting, *at) {
                    let waiting = self.waiting.remove(at);
                    self.reference.leave(waiting.job);
                }
            }
            Op::Cancel(at) => {
                if let Some(at) = nth(&self.waiting, *at) {
                    self.waiting[at].token.cancel();
                }
            }
            Op::Release(at) => {
                let waited = self.admission.queue_len();
                self.settle(*at, false)?;
                return self.follow_release(waited).await;
            }
            Op::Rollback(at) => return self.settle(*at, true),
            Op::DropGrant(at) => {
                if let Some(at) = nth(&self.holding, *at) {
                    let waited = self.admission.queue_len();
                    let Holding { job, grant } = self.holding.remove(at);
                    drop(grant);
                    self.reference.settle(job, false);
                    return self.follow_release(waited).await;
                }
            }
            Op::ReleaseOne(at, of) => {
                if let Some(at) = nth(&self.holding, *at) {
                    let Holding { job, grant } = &self.holding[at];
                    let account = self.account(grant, *of);
                    let did = grant.release_one(&self.accounts[account]);
                    let right = self.reference.release_one(*job, account);
                    ensure!(did == right, "release_one answered {did}");
                }
            }
            Op::Reconcile(at, of, used) => {
                if let Some(at) = nth(&self.holding, *at) {
                    let Holding { job, grant } = &self.holding[at];
                    let account = self.account(grant, *of);
                    let did = grant.reconcile(&self.accounts[account], *used);
                    let right = self.reference.reconcile(*job, account, *used);
                    ensure!(did == right, "reconcile answered {did}");
                }
            }
            Op::Resize(account, n) => {
                self.gates[*account - GATES[0]].resize(*n).expect("a positive capacity");
                self.reference.resize(*account, *n);
            }
            Op::SetLimits(account, requests, tokens) => {
                let limits = Limits::per_minute(*requests, *tokens);
                self.buckets[*account - BUCKETS[0]].set_limits(limits).expect("positive limits");
                self.reference.set_limits(*account, *requests, *tokens);
            }
            Op::Turn(to) => {
                self.switch.turn(*to);
                self.reference.turn(*to);
            }
            Op::Advance(ms) => {
                tokio::time::sleep(Duration::from_millis(*ms)).await;
                self.reference.advance(*ms);
                return self.rest().await;
            }
        }
        Ok(())
    }

    fn account(&self, grant: &Grant, of: Of) -> usize {
        let entries = grant.demand().entries();
        match of {
            Of::Entry(at) if !entries.is_empty() => {
                let id = entries[at % entries.len()].account().link().id();
                let is_it = |account: &Arc<dyn Account>| account.link().id() == id;
                self.accounts.iter().position(is_it).expect("an account of the case")
            }
            Of::Entry(at) | Of::Account(at) => at,
        }
    }

    /// A new job's number and demand; what it wants is known to the audit from here on.
    fn job(&mut self, parts: &[Part]) -> (Job, Demand, Vec<Part>) {
        let job = self.jobs;
        self.jobs += 1;
        let demand = parts.iter().fold(Demand::new(), |demand, &(account, want)| {
            demand.add(&self.accounts[account], amount(want))
        });
        let demand = demand.for_job(JobInfo::new(job.to_string(), "job"));
        let parts = merged(parts);
        self.audit.expect(parts.clone());
        (job, demand, parts)
    }

    fn admit(&mut self, parts: &[Part], within: Option<Ms>) -> Result<(), String> {
        let (job, demand, parts) = self.job(parts);
        let token = CancellationToken::new();
        let mut admit = self.admission.admit(demand).cancelled_by(token.clone());
        if let Some(within) = within {
            admit = admit.within(Duration::from_millis(within));
        }
        let wakes = Arc::new(Wakes::default());
        let mut waiting = Waiting { job, admit: Box::pin(admit), token, wakes };
        let polled = waiting.poll();
        let right = self.reference.arrive(job, &parts, within);
        // Whoever went in the same breath went before it took its place.
        self.audit.listen()?;
        match polled {
            Poll::Pending => {
                ensure!(right.is_none(), "job {job} waits, but should be {right:?}");
                self.audit.parked(job);
                self.waiting.push(waiting);
            }
            Poll::Ready(outcome) => {
                let Some(right) = right else {
                    return Err(format!("job {job} should wait, and got {outcome:?}"));
                };
                self.take_outcome(job, outcome, right, 0)?;
            }
        }
        Ok(())
    }

    fn try_admit(&mut self, parts: &[Part]) -> Result<(), String> {
        let (job, demand, parts) = self.job(parts);
        let outcome = self.admission.try_admit(demand);
        let (right, short) = self.reference.try_arrive(job, &parts);
        match (outcome, right) {
            (Ok(grant), Answer::Yes) => self.holding.push(Holding { job, grant }),
            (Err(TryAdmitError::Admit(AdmitError::Refused { .. })), Answer::Never) => {}
            (Err(TryAdmitError::WouldWait { shortages }), Answer::No) => {
                let named: Vec<_> = shortages.iter().map(|short| &*short.account).collect();
                let right: Vec<_> = short.iter().map(|&account| name_of(account)).collect();
                ensure!(named == right, "short of {named:?}, should be {right:?}");
            }
            (outcome, right) => return Err(format!("{outcome:?}, should be {right:?}")),
        }
        Ok(())
    }

    fn poll(&mut self, at: usize) -> Result<(), String> {
        let waiting = &mut self.waiting[at];
        let (job, is_cancelled) = (waiting.job, waiting.token.is_cancelled());
        match (waiting.poll(), self.reference.outcomes.get(&job).copied()) {
            // A cancelled token wins, whatever has landed.
            (Poll::Ready(Err(AdmitError::Cancelled)), _) if is_cancelled => {
                self.waiting.remove(at);
                self.reference.leave(job);
            }
            (Poll::Ready(outcome), Some((right, waited))) if !is_cancelled => {
                self.waiting.remove(at);
                self.take_outcome(job, outcome, right, waited)?;
            }
            (Poll::Pending, None) if !is_cancelled => {}
            (polled, right) => {
                return Err(format!("job {job}: {polled:?}, should be {right:?}"));
            }
        }
        Ok(())
    }

    fn take_outcome(
        &mut self,
        job: Job,
        outcome: Result<Grant, AdmitError>,
        right: Outcome,
        waited: Ms,
    ) -> Result<(), String> {
        let waited = Duration::from_millis(waited);
        match (outcome, right) {
            (Ok(grant), Outcome::Granted) => {
                let wall_wait = grant.wall_wait();
                ensure!(wall_wait == waited, "job {job} waited {wall_wait:?}, not {waited:?}");
                let longest = grant.wait_times().iter().map(|wait| wait.wait).max();
                ensure!(longest.unwrap_or_default() <= waited, "an account kept it too long");
                self.holding.push(Holding { job, grant });
                Ok(())
            }
            (Err(AdmitError::TimedOut { waited: after, .. }), Outcome::TimedOut) => {
                ensure!(after == waited, "job {job} timed out after {after:?}, not {waited:?}");
                Ok(())
            }
            (Err(AdmitError::Refused { .. }), Outcome::Refused)
            | (Err(AdmitError::QueueFull { .. }), Outcome::QueueFull) => Ok(()),
            (outcome, right) => Err(format!("job {job}: {outcome:?}, should be {right:?}")),
        }
    }

    fn settle(&mut self, at: usize, rollback: bool) -> Result<(), String> {
        let Some(at) = nth(&self.holding, at) else { return Ok(()) };
        let Holding { job, grant } = &self.holding[at];
        let did = if rollback { grant.rollback() } else { grant.release() };
        let right = self.reference.settle(*job, rollback);
        ensure!(did == right, "settling answered {did}");
        Ok(())
    }

    /// A release lets the head go itself when the head was short of what came back, with whoever can
    /// go then, up to a bound; the evaluator does the rest. So the reference walks when the line has
    /// become shorter, and both rest when the bound was met.
    async fn follow_release(&mut self, waited: usize) -> Result<(), String> {
        if self.admission.queue_len() < waited {
            self.reference.walk();
            if self.admission.queue_len() != self.reference.line.len() {
                return self.rest().await;
            }
        }
        Ok(())
    }

    /// Accounts, line, order, wakes: everything that can be seen from outside.
    fn compare(&self) -> Result<(), String> {
        self.admission.check();
        let now = Instant::now();
        for (account, right) in self.reference.accounts.iter().enumerate() {
            let in_use = self.accounts[account].in_use(now);
            match right {
                reference::Account::Places { in_use: right, .. } => {
                    ensure!(in_use == u64::from(*right), "{account}: {in_use} in use, not {right}");
                }
                reference::Account::Bucket { levels, .. } => {
                    let status = self.buckets[account - BUCKETS[0]].status();
                    let (requests, tokens) = (levels[0] / 60_000, levels[1].max(0) / 60_000);
                    let debt = (59_999 - levels[1].min(0)) / 60_000;
                    let is =
                        (status.available_requests, status.available_tokens, status.debt_tokens);
                    let is = (i128::from(is.0), i128::from(is.1), i128::from(is.2));
                    let right = (requests, tokens, debt);
                    ensure!(
                        is == right,
                        "{account}: (requests, tokens, debt) {is:?}, not {right:?}"
                    );
                }
                reference::Account::Turnstile { gap, stamps } => {
                    let live = stamps.iter().any(|stamp| self.reference.now < stamp + gap);
                    ensure!(in_use == u64::from(live), "{account}: {in_use} in use");
                }
            }
        }
        let (is, right) = (&self.audit.order, &self.reference.granted);
        ensure!(is == right, "granted in this order: {is:?}, should be {right:?}");
        let snapshot = self.admission.snapshot();
        let (is, right) = (snapshot.waiting, self.reference.line.len());
        ensure!(is == right, "{is} wait, should be {right}");
        let (is, right) = (snapshot.held, self.reference.holding());
        ensure!(is == right, "{is} are held, should be {right}");
        for waiting in &self.waiting {
            let job = waiting.job;
            let landed = u32::from(self.reference.outcomes.contains_key(&job));
            let right = landed + u32::from(waiting.token.is_cancelled());
            let is = waiting.wakes.0.load(Ordering::Relaxed);
            ensure!(is == right, "job {job} was woken {is} times, should be {right}");
        }
        Ok(())
    }

    /// Asks the real accounts: at rest nobody waits who could go, and nobody who is refused.
    fn nobody_could_go(&self) -> Result<(), String> {
        let head = self.reference.head();
        for (place, waiter) in self.reference.line.iter().enumerate() {
            let mut fits = true;
            for &(account, mine) in &waiter.parts {
                let ask = Ask::new(0, amount(mine), Instant::now());
                let ahead = if place == 0 { Want::default() } else { amount_on(&head, account) };
                match self.accounts[account].fits(&ask.behind(amount(ahead))) {
                    Ok(answer) => fits &= answer,
                    Err(refusal) => return Err(format!("{} waits for: {refusal}", waiter.job)),
                }
            }
            ensure!(!fits, "job {} waits and could go", waiter.job);
        }
        Ok(())
    }

    /// Everything is opened, released and waited for: then nobody is left, and nothing is in use.
    async fn end(mut self) -> Result<(), String> {
        self.rest().await?;
        self.act(&Op::Turn(Position::Open)).await?;
        for _ in 0..self.jobs + 1 {
            let (waiting, holding) = (self.waiting.len(), self.holding.len());
            for at in (0..waiting).rev() {
                self.poll(at)?;
            }
            for at in 0..holding.max(self.holding.len()) {
                self.act(&Op::Release(at)).await?;
            }
            self.holding.clear();
            self.rest().await?;
            if self.waiting.is_empty() {
                break;
            }
            // Long enough for the deepest debt there can be to be repaid, and a budget on top.
            self.act(&Op::Advance(3_600_000)).await?;
        }
        ensure!(self.waiting.is_empty(), "{} can fit, and wait for ever", self.waiting.len());
        ensure!(self.admission.queue_len() == 0, "somebody is left in the line");
        self.audit.end(|account| self.reference.accounts[account].comes_back())?;
        self.admission.drained().await;
        self.act(&Op::Advance(3_600_000)).await?;
        let snapshot = self.admission.snapshot();
        for account in &snapshot.accounts {
            ensure!(account.in_use == 0, "{} of {} in use", account.in_use, account.name);
            ensure!(account.waiting == 0, "{} wait for {}", account.waiting, account.name);
        }
        ensure!(snapshot.held == 0 && snapshot.unseen.count == 0, "something is held");
        Ok(())
    }
}

impl Waiting {
    fn poll(&mut self) -> Poll<Result<Grant, AdmitError>> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.admit.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

fn amount(want: Want) -> Amount {
    Amount { requests: want.requests, units: want.units }
}

fn nth<T>(all: &[T], at: usize) -> Option<usize> {
    (!all.is_empty()).then(|| at % all.len())
}
