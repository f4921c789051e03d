//! Drives the monitor and the plain walk side by side.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use admit::testing::ScriptedMemory;
use admit::{
    Account, Admission, Admit, AdmitError, Demand, Grant, JobInfo, LimiterEvent, MemoryGate,
    TryAdmitError, UpstreamFailure, Valve,
};
use tokio::sync::broadcast::Receiver;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::compare::ensure;
use crate::plain::{Answer, Job, Outcome, Plain};
use crate::seen::Seen;
use crate::steps::{Memory, Op, Part, Setup, Step, Want};
use crate::twin::Made;

#[derive(Default)]
pub(crate) struct Wakes(pub(crate) AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A job whose outcome it has not got yet.
pub(crate) struct Waiting {
    pub(crate) job: Job,
    admit: Pin<Box<Admit>>,
    token: Option<CancellationToken>,
    pub(crate) wakes: Arc<Wakes>,
}

pub(crate) struct Holding {
    job: Job,
    grant: Grant,
}

pub(crate) struct World {
    pub(crate) admission: Admission,
    /// The monitor's, and the walk's.
    pub(crate) made: [Vec<Made>; 2],
    pub(crate) accounts: Vec<Arc<dyn Account>>,
    pub(crate) memory: Option<(Arc<MemoryGate>, [Arc<ScriptedMemory>; 2])>,
    pub(crate) templates: Vec<(Demand, Vec<Part>)>,
    pub(crate) plain: Plain,
    pub(crate) events: Receiver<LimiterEvent>,
    /// Everybody granted, in order, as the events tell it.
    pub(crate) granted: Vec<Job>,
    pub(crate) seen: BTreeSet<Job>,
    pub(crate) waiting: Vec<Waiting>,
    pub(crate) holding: Vec<Holding>,
    pub(crate) jobs: usize,
    /// How often the evaluator may go on in a rest.
    pub(crate) yields: u32,
    pub(crate) saw: Seen,
}

/// Runs a case. The error tells which step failed.
pub(crate) async fn run(setup: &Setup, steps: &[Step]) -> Result<Seen, String> {
    let mut world = World::new(setup);
    for (at, step) in steps.iter().enumerate() {
        world.step(step).await.map_err(|error| {
            let ms = (world.plain.now - world.origin()).as_millis();
            format!("at {ms} ms, after step {at}, {step:?}: {error}")
        })?;
    }
    world.end().await.map_err(|error| format!("at the end: {error}"))
}

fn name_of(account: usize) -> String {
    format!("account {account}")
}

fn memory_gate(memory: &Memory) -> (Arc<MemoryGate>, Arc<ScriptedMemory>) {
    let source = ScriptedMemory::new(memory.tenths, 1_000);
    // Every look reads, so that both see a reading at the same instant.
    let mut builder = MemoryGate::builder().source(source.clone()).reading_age(Duration::ZERO);
    if let Some(after) = memory.progress_after {
        builder = builder.progress_after(after);
    }
    (builder.build().expect("a valid gate"), source)
}

impl World {
    fn new(setup: &Setup) -> Self {
        let make = || -> Vec<Made> {
            let kinds = setup.kinds.iter().enumerate();
            kinds.map(|(at, kind)| Made::new(&name_of(at), kind)).collect()
        };
        let made = [make(), make()];
        let [accounts, twins]: [Vec<_>; 2] =
            [&made[0], &made[1]].map(|made| made.iter().map(Made::account).collect());
        let memory = setup.memory.as_ref().map(|memory| [memory_gate(memory), memory_gate(memory)]);
        let (memory, twin) = match memory {
            Some([(gate, source), (twin, its)]) => (Some((gate, [source, its])), Some(twin)),
            None => (None, None),
        };
        let mut builder =
            Admission::builder().max_waiting(setup.max_waiting).event_capacity(1 << 14);
        if let Some(looks) = setup.looks {
            builder = builder.looks_a_hold(looks);
        }
        if let Some((gate, _)) = &memory {
            builder = builder.memory_gate(gate.clone());
        }
        let admission = builder.start().expect("inside a runtime with a timer");
        let templates =
            setup.templates.iter().map(|parts| (demand(&accounts, parts), parts.clone()));
        Self {
            templates: templates.collect(),
            events: admission.subscribe(),
            admission,
            // A look that is cut short goes on after a yield.
            yields: if setup.looks.is_some() { 400 } else { 10 },
            plain: Plain::new(twins, twin, setup.max_waiting, Instant::now()),
            made,
            accounts,
            memory,
            granted: Vec::new(),
            seen: BTreeSet::new(),
            waiting: Vec::new(),
            holding: Vec::new(),
            jobs: 0,
            saw: Seen::default(),
        }
    }

    fn origin(&self) -> Instant {
        self.plain.origin
    }

    async fn step(&mut self, step: &Step) -> Result<(), String> {
        let was_unwell = self.is_unwell();
        self.act(&step.op).await?;
        self.listen()?;
        self.compare_grants()?;
        // A probe that was claimed refuses those in the line at the monitor's next look, not in the
        // same breath.
        if step.rests || was_unwell || self.is_unwell() {
            self.rest().await?;
        }
        Ok(())
    }

    fn is_unwell(&self) -> bool {
        self.made[1].iter().any(Made::is_unwell)
    }

    /// Lets the evaluator do all it can without the clock.
    async fn rest(&mut self) -> Result<(), String> {
        for _ in 0..self.yields {
            tokio::task::yield_now().await;
        }
        self.plain.rest();
        self.saw.longest_line = self.saw.longest_line.max(self.plain.len());
        self.saw.rests_drained += u64::from(self.plain.is_draining());
        self.saw.rests_unwell += u64::from(self.is_unwell());
        self.listen()?;
        self.compare_grants()?;
        self.compare_all()
    }

    async fn act(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Admit { parts, within, with_token } => self.admit(parts, *within, *with_token),
            Op::TryAdmit { parts } => self.try_admit(parts),
            Op::Collect => self.collect(),
            Op::Leave(at) => {
                if let Some(at) = nth(&self.waiting, *at) {
                    let waiting = self.waiting.remove(at);
                    self.plain.leave(waiting.job);
                    drop(waiting);
                    self.remind();
                }
                Ok(())
            }
            Op::Cancel(at) => self.cancel(*at),
            Op::Release(at) => {
                let waited = self.admission.queue_len();
                self.settle(*at, false)?;
                self.follow_release(waited).await
            }
            Op::Rollback(at) => self.settle(*at, true),
            Op::DropGrant(at) => {
                if let Some(at) = nth(&self.holding, *at) {
                    let waited = self.admission.queue_len();
                    let Holding { job, grant } = self.holding.remove(at);
                    drop(grant);
                    self.plain.settle(job, false);
                    self.remind();
                    return self.follow_release(waited).await;
                }
                Ok(())
            }
            Op::ReleaseOne(at, part) => {
                self.with_part(*at, *part, |grant, account, plain, job, at| {
                    (grant.release_one(account), plain.release_one(job, at))
                })
            }
            Op::Reconcile(at, part, used) => {
                self.with_part(*at, *part, |grant, account, plain, job, at| {
                    (grant.reconcile(account, *used), plain.reconcile(job, at, *used))
                })
            }
            Op::Report(at, part, None) => {
                self.with_part(*at, *part, |grant, account, plain, job, at| {
                    (grant.report_success(account), plain.report(job, at, None))
                })
            }
            Op::Report(at, part, Some(failure)) => {
                self.with_part(*at, *part, |grant, account, plain, job, at| {
                    (grant.report_failure(account, failure), plain.report(job, at, Some(failure)))
                })
            }
            Op::ReportAll(at, failure) => self.report_all(*at, failure.as_ref()),
            Op::Change(account, change) => {
                for made in &self.made {
                    made[*account].change(change);
                }
                Ok(())
            }
            Op::Memory(tenths) => {
                if let Some((gate, sources)) = &self.memory {
                    for source in sources {
                        source.set(*tenths, 1_000);
                    }
                    let now = Instant::now();
                    gate.look(now);
                    self.plain.memory.as_ref().expect("a twin").look(now);
                    self.remind();
                }
                Ok(())
            }
            Op::Advance(ms) => {
                let span = Duration::from_millis(*ms);
                tokio::time::sleep(span).await;
                self.plain.advance(span);
                self.rest().await
            }
        }
    }

    /// Memory announces nothing: when the monitor looks at it is its own affair, within bounds. The
    /// walk looks at every rest, so the monitor is told to look there, too, after whatever may have
    /// changed memory's mind.
    fn remind(&self) {
        if let Some((gate, _)) = &self.memory {
            gate.link().grew();
        }
    }

    /// A new job's number, its demand and the parts of it.
    fn job(&mut self, want: &Want) -> (Job, Demand, Vec<Part>) {
        let job = self.jobs;
        self.jobs += 1;
        let (demand, parts) = match want {
            Want::Template(at) => self.templates[*at].clone(),
            Want::Own(parts) => (demand(&self.accounts, parts), parts.clone()),
        };
        (job, demand.for_job(JobInfo::new(job.to_string(), "job")), parts)
    }

    fn admit(&mut self, want: &Want, within: Option<u64>, with_token: bool) -> Result<(), String> {
        let (job, demand, parts) = self.job(want);
        let within = within.map(Duration::from_millis);
        let mut admit = self.admission.admit(demand);
        if let Some(within) = within {
            admit = admit.within(within);
        }
        let token = with_token.then(CancellationToken::new);
        if let Some(token) = &token {
            admit = admit.cancelled_by(token.clone());
        }
        let mut waiting = Waiting { job, admit: Box::pin(admit), token, wakes: Arc::default() };
        let polled = waiting.poll();
        match (polled, self.plain.arrive(job, &parts, within)) {
            (Poll::Pending, None) => self.waiting.push(waiting),
            (Poll::Ready(outcome), Some(right)) => {
                self.take_outcome(job, outcome, &right, Duration::ZERO)?;
            }
            (polled, right) => return Err(format!("job {job}: {polled:?}, should be {right:?}")),
        }
        Ok(())
    }

    fn try_admit(&mut self, want: &Want) -> Result<(), String> {
        let (job, demand, parts) = self.job(want);
        match (self.admission.try_admit(demand), self.plain.try_arrive(job, &parts)) {
            (Ok(grant), Answer::Yes) => self.holding.push(Holding { job, grant }),
            (Err(TryAdmitError::WouldWait { shortages }), Answer::No(by_memory, short)) => {
                let is: Vec<_> = shortages.iter().map(|short| short.account.to_string()).collect();
                let memory = by_memory.then(|| "memory".to_owned());
                let right: Vec<_> =
                    memory.into_iter().chain(short.into_iter().map(name_of)).collect();
                ensure!(is == right, "job {job} is short of {is:?}, should be of {right:?}");
            }
            (Err(TryAdmitError::Admit(AdmitError::Refused { account, .. })), Answer::Never(by)) => {
                let is_right = by.iter().any(|&by| name_of(by) == *account);
                ensure!(is_right, "job {job} is refused by {account}, should be by {by:?}");
            }
            (outcome, right) => return Err(format!("job {job}: {outcome:?}, should be {right:?}")),
        }
        Ok(())
    }

    /// Whoever was woken takes its outcome.
    fn collect(&mut self) -> Result<(), String> {
        let waiting = std::mem::take(&mut self.waiting);
        for mut waiting in waiting {
            if waiting.wakes.0.load(Ordering::Relaxed) == 0 {
                self.waiting.push(waiting);
                continue;
            }
            let job = waiting.job;
            match (waiting.poll(), self.plain.outcomes.get(&job).cloned()) {
                (Poll::Ready(outcome), Some((right, waited))) => {
                    self.take_outcome(job, outcome, &right, waited)?;
                }
                (polled, right) => {
                    return Err(format!("job {job}: {polled:?}, should be {right:?}"));
                }
            }
        }
        Ok(())
    }

    fn take_outcome(
        &mut self,
        job: Job,
        outcome: Result<Grant, AdmitError>,
        right: &Outcome,
        waited: Duration,
    ) -> Result<(), String> {
        self.saw.outcome(right, waited);
        match (outcome, right) {
            (Ok(grant), Outcome::Granted) => {
                let is = grant.wall_wait();
                ensure!(is == waited, "job {job} waited {is:?}, should have {waited:?}");
                self.holding.push(Holding { job, grant });
            }
            (Err(AdmitError::Refused { account, .. }), Outcome::Refused(by)) => {
                let is_right = by.iter().any(|&by| name_of(by) == *account);
                ensure!(is_right, "job {job} is refused by {account}, should be by {by:?}");
            }
            (Err(AdmitError::TimedOut { waited: is, .. }), Outcome::TimedOut) => {
                ensure!(is == waited, "job {job} timed out after {is:?}, not {waited:?}");
            }
            (Err(AdmitError::QueueFull { .. }), Outcome::QueueFull) => {}
            (outcome, right) => return Err(format!("job {job}: {outcome:?}, should be {right:?}")),
        }
        Ok(())
    }

    fn cancel(&mut self, at: usize) -> Result<(), String> {
        let Some(at) = nth(&self.waiting, at) else { return Ok(()) };
        let Some(token) = &self.waiting[at].token else { return Ok(()) };
        token.cancel();
        let mut waiting = self.waiting.remove(at);
        let polled = waiting.poll();
        let is_right = matches!(polled, Poll::Ready(Err(AdmitError::Cancelled)));
        ensure!(is_right, "job {} was cancelled: {polled:?}", waiting.job);
        self.plain.leave(waiting.job);
        self.remind();
        Ok(())
    }

    fn settle(&mut self, at: usize, rollback: bool) -> Result<(), String> {
        let Some(at) = nth(&self.holding, at) else { return Ok(()) };
        let Holding { job, grant } = &self.holding[at];
        let did = if rollback { grant.rollback() } else { grant.release() };
        let right = self.plain.settle(*job, rollback);
        ensure!(did == right, "job {job}: settling answered {did}");
        self.remind();
        Ok(())
    }

    /// A release lets the head go itself when the head was short of what came back, with whoever can
    /// go then, up to a bound; the evaluator does the rest. So the reference walks when the line has
    /// become shorter, and both rest when the bound was met.
    async fn follow_release(&mut self, waited: usize) -> Result<(), String> {
        if self.admission.queue_len() < waited {
            self.plain.walk();
            if self.admission.queue_len() != self.plain.len() {
                return self.rest().await;
            }
        }
        Ok(())
    }

    fn with_part(
        &mut self,
        at: usize,
        part: usize,
        act: impl FnOnce(&Grant, &Arc<dyn Account>, &mut Plain, Job, usize) -> (bool, bool),
    ) -> Result<(), String> {
        let Some(at) = nth(&self.holding, at) else { return Ok(()) };
        let Holding { job, grant } = &self.holding[at];
        let accounts = self.plain.accounts_of(*job);
        let Some(part) = nth(&accounts, part) else { return Ok(()) };
        let account = accounts[part];
        let (did, right) = act(grant, &self.accounts[account], &mut self.plain, *job, account);
        ensure!(did == right, "job {job} answered {did} on {account}");
        Ok(())
    }

    fn report_all(&mut self, at: usize, failure: Option<&UpstreamFailure>) -> Result<(), String> {
        let Some(at) = nth(&self.holding, at) else { return Ok(()) };
        let Holding { job, grant } = &self.holding[at];
        let did = match failure {
            None => grant.report_success_all(),
            Some(failure) => grant.report_failure_all(failure),
        };
        let mut right = false;
        for account in self.plain.accounts_of(*job) {
            right |= self.plain.report(*job, account, failure);
        }
        ensure!(did == right, "job {job}: reporting answered {did}");
        Ok(())
    }

    /// Everything is settled and waited for: nobody is left, and nothing is in use.
    async fn end(mut self) -> Result<Seen, String> {
        self.rest().await?;
        while let Some(Waiting { job, .. }) = self.waiting.pop() {
            self.plain.leave(job);
        }
        while let Some(Holding { job, .. }) = self.holding.pop() {
            self.plain.settle(job, false);
        }
        self.remind();
        self.rest().await?;
        ensure!(self.admission.queue_len() == 0, "somebody is left in the line");
        self.admission.drained().await;
        Ok(self.saw)
    }
}

impl Waiting {
    fn poll(&mut self) -> Poll<Result<Grant, AdmitError>> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.admit.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

fn demand(accounts: &[Arc<dyn Account>], parts: &[Part]) -> Demand {
    parts
        .iter()
        .fold(Demand::new(), |demand, &(account, amount)| demand.add(&accounts[account], amount))
}

fn nth<T>(all: &[T], at: usize) -> Option<usize> {
    (!all.is_empty()).then(|| at % all.len())
}
