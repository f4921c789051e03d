//! The monitor with its accounts, its runtime and whoever asks: what happens, happens to it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use admit::testing::ScriptedMemory;
use admit::{
    Account, Admission, Admit, AdmitError, ConfigError, CountingGate, Demand, ElasticWindow, Grant,
    JobInfo, LimiterEvent, MemoryGate, Router, TokenBucket, TryAdmitError, UpstreamFailure,
};
use tokio::runtime::Runtime;
use tokio::sync::broadcast::{Receiver, error::TryRecvError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::lawful::Asked;
use crate::ledger::{Ledger, ensure};
use crate::model::{Life, Model};
use crate::own::Own;
use crate::setup::{
    ACCOUNTS, BUCKETS, GATES, Kind, LANES, NAMES, OWN, Part, Setup, WINDOW, comes_back, kind,
    limits,
};
use crate::transition::{Job, Transition};

/// Counts how often the task of a job is woken.
#[derive(Default)]
pub(crate) struct Wakes(pub(crate) AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A job whose outcome it has not got yet.
pub(crate) struct Waiting {
    admit: Pin<Box<Admit>>,
    pub(crate) token: CancellationToken,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) asked: Asked,
}

pub(crate) struct Holding {
    grant: Grant,
    pub(crate) is_settled: bool,
    is_rolled_back: bool,
    /// What it holds of buckets, as last reconciled.
    tokens: BTreeMap<usize, u64>,
    /// What it holds of release accounts.
    pub(crate) places: BTreeMap<usize, u64>,
}

type Lanes = Router<usize, dyn Account>;

/// The accounts of a case.
pub(crate) struct Limits {
    pub(crate) gates: [Arc<CountingGate>; 2],
    pub(crate) buckets: [Arc<TokenBucket>; 2],
    pub(crate) window: Arc<ElasticWindow>,
    pub(crate) own: Arc<Own>,
    pub(crate) lanes: Lanes,
    pub(crate) memory: Option<(Arc<MemoryGate>, Arc<ScriptedMemory>)>,
}

pub(crate) struct World {
    /// Gone for the moment in which another is made.
    pub(crate) runtime: Option<Runtime>,
    pub(crate) admission: Admission,
    pub(crate) limits: Limits,
    pub(crate) waiting: BTreeMap<Job, Waiting>,
    pub(crate) holding: BTreeMap<Job, Holding>,
    pub(crate) ledger: Ledger,
    /// Nobody listens in some cases: then the inline path is taken, and nothing is told.
    events: Option<Receiver<LimiterEvent>>,
    /// Jobs that named nothing tell nothing.
    pub(crate) empty_granted: u64,
    pub(crate) empty_refused: u64,
    /// A defect closed the admission.
    pub(crate) is_closed: bool,
    /// The evaluator did all it can.
    pub(crate) is_at_rest: bool,
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime of one thread")
}

impl Limits {
    fn new(setup: &Setup) -> Self {
        let (places, lane_limits) = (setup.lane_places, setup.lane_limits);
        let lane = move |&at: &usize| -> Result<Arc<dyn Account>, ConfigError> {
            Ok(if at == LANES[2] {
                TokenBucket::new(NAMES[at], limits(lane_limits))?
            } else {
                CountingGate::new(NAMES[at], places)?
            })
        };
        let memory = setup.memory.map(|tenths| {
            let source = ScriptedMemory::new(tenths, 1_000);
            let builder = MemoryGate::builder().source(source.clone());
            (builder.reading_age(Duration::ZERO).build().expect("a valid gate"), source)
        });
        Self {
            // Made first, so debited first: what it is asked to take back is the other's fault.
            own: Own::named(NAMES[OWN], setup.own),
            gates: [0, 1].map(|at| {
                CountingGate::new(NAMES[GATES[at]], setup.gates[at]).expect("a positive capacity")
            }),
            buckets: [0, 1].map(|at| {
                TokenBucket::new(NAMES[BUCKETS[at]], limits(setup.buckets[at]))
                    .expect("positive limits")
            }),
            window: ElasticWindow::new(NAMES[WINDOW], setup.window.config()).expect("a window"),
            lanes: Router::new(lane),
            memory,
        }
    }

    /// Lanes are made, and forgotten, as they are asked for.
    pub(crate) fn account(&self, at: usize) -> Arc<dyn Account> {
        match at {
            0 | 1 => self.gates[at].clone(),
            2 | 3 => self.buckets[at - BUCKETS[0]].clone(),
            WINDOW => self.window.clone(),
            OWN => self.own.clone(),
            _ => self.lanes.account_for(&at).expect("a valid lane"),
        }
    }

    pub(crate) fn weak(&self) -> Vec<Weak<dyn Account>> {
        (0..ACCOUNTS).map(|at| Arc::downgrade(&self.account(at))).collect()
    }
}

impl World {
    pub(crate) fn new(setup: &Setup) -> Self {
        let runtime = runtime();
        let inside = runtime.enter();
        let limits = Limits::new(setup);
        let mut builder = Admission::builder()
            .max_waiting(setup.max_waiting)
            .event_capacity(1 << 14)
            .track_holders(setup.is_tracked);
        if let Some((gate, _)) = &limits.memory {
            builder = builder.memory_gate(gate.clone());
        }
        let admission = builder.start().expect("inside a runtime with a timer");
        let events = setup.is_watched.then(|| admission.subscribe());
        let ledger = Ledger::new(setup, Instant::now());
        drop(inside);
        Self {
            runtime: Some(runtime),
            events,
            admission,
            limits,
            waiting: BTreeMap::new(),
            holding: BTreeMap::new(),
            ledger,
            empty_granted: 0,
            empty_refused: 0,
            is_closed: false,
            is_at_rest: false,
        }
    }

    /// Does something inside the runtime, on its clock.
    pub(crate) fn inside<R>(
        &mut self,
        act: impl AsyncFnOnce(&mut Self) -> Result<R, String>,
    ) -> Result<R, String> {
        let runtime = self.runtime.take().expect("it is there between two steps");
        let result = runtime.block_on(act(self));
        self.runtime = Some(runtime);
        result
    }

    pub(crate) fn apply(&mut self, model: &Model, transition: &Transition) -> Result<(), String> {
        self.is_at_rest = false;
        match transition {
            Transition::LoseRuntime => self.lose_runtime()?,
            _ => self.inside(async |world| world.act(model, transition).await)?,
        }
        self.inside(async |world| world.listen())?;
        if matches!(transition, Transition::LoseRuntime | Transition::Stop) {
            ensure!(self.line().is_empty(), "{:?} wait, and nobody will look", self.line());
        }
        Ok(())
    }

    /// Another runtime, whose clock goes on where the last stood.
    pub(crate) fn lose_runtime(&mut self) -> Result<(), String> {
        let old = self.runtime.take().expect("it is there between two steps");
        let then = old.block_on(async { Instant::now() });
        drop(old);
        self.runtime = Some(runtime());
        self.inside(async |_| {
            tokio::time::advance(then.saturating_duration_since(Instant::now())).await;
            ensure!(Instant::now() >= then, "the clock went back");
            Ok(())
        })
    }

    pub(crate) fn listen(&mut self) -> Result<(), String> {
        let Some(events) = &mut self.events else { return Ok(()) };
        loop {
            match events.try_recv() {
                Ok(event) => self.ledger.hear(&event, Instant::now())?,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return Ok(()),
                Err(TryRecvError::Lagged(lost)) => return Err(format!("{lost} events were lost")),
            }
        }
    }

    /// Lets the evaluator do all it can without the clock.
    pub(crate) async fn rest(&mut self) -> Result<(), String> {
        for _ in 0..16 {
            tokio::task::yield_now().await;
        }
        self.is_at_rest = true;
        self.listen()
    }

    /// Passes time, and hears of everything at the instant it happens.
    pub(crate) async fn pass_time(&mut self, ms: u64) -> Result<(), String> {
        let until = Instant::now() + Duration::from_millis(ms);
        if let Some(events) = &mut self.events {
            loop {
                tokio::select! {
                    biased;
                    event = events.recv() => {
                        let event = event.map_err(|error| error.to_string())?;
                        self.ledger.hear(&event, Instant::now())?;
                    }
                    () = tokio::time::sleep_until(until) => break,
                }
            }
        }
        tokio::time::sleep_until(until).await;
        self.rest().await
    }

    pub(crate) async fn act(
        &mut self,
        model: &Model,
        transition: &Transition,
    ) -> Result<(), String> {
        let now = Instant::now();
        match *transition {
            Transition::Admit { job, ref parts, within } => {
                self.admit(model, job, parts, within)?
            }
            Transition::TryAdmit { job, ref parts } => self.try_admit(model, job, parts)?,
            Transition::Collect => self.collect(model)?,
            Transition::Poll(job) => {
                if self.waiting.contains_key(&job) {
                    self.poll(model, job)?;
                }
            }
            Transition::Leave(job) => {
                let unseen = self.waiting.remove(&job);
                let is_unseen = unseen.is_some() && self.ledger.has_begun(job);
                drop((unseen, self.holding.remove(&job)));
                self.listen()?;
                let is_back = !is_unseen || self.ledger.is_back(job);
                ensure!(is_back, "job {job} never saw its grant, and it did not come back");
            }
            Transition::Cancel(job) => {
                if let Some(waiting) = self.waiting.get(&job) {
                    waiting.token.cancel();
                }
            }
            Transition::Release(job) => self.settle(job, false)?,
            Transition::Rollback(job) => self.settle(job, true)?,
            Transition::ReleaseOne(job, at) => {
                if let Some(Holding { grant, places, .. }) = self.holding.get_mut(&job) {
                    let did = grant.release_one(&self.limits.account(at));
                    let right = places.remove(&at).is_some();
                    ensure!(did == right, "release_one answered {did}");
                }
            }
            Transition::Reconcile(job, at, used) => self.reconcile(job, at, used)?,
            Transition::Report(job, at, status) => {
                if let Some(Holding { grant, is_settled, .. }) = self.holding.get(&job) {
                    let account = self.limits.account(at);
                    let did = match status {
                        None => grant.report_success(&account),
                        Some(status) => grant.report_failure(&account, &failure(status)),
                    };
                    ensure!(!did || !is_settled, "a settled grant's report answered {did}");
                }
            }
            Transition::Record(at, status) => self.record(at, status),
            Transition::Resize(at, n) => {
                self.ledger.resized(at, n);
                self.limits.gates[at - GATES[0]].resize(n).expect("a positive capacity");
            }
            Transition::SetLimits(at, requests, tokens) => {
                self.ledger.limited(at, (requests, tokens), now);
                let limits = limits((requests, tokens));
                self.limits.buckets[at - BUCKETS[0]].set_limits(limits).expect("positive limits");
            }
            Transition::ResizeOwn(n) => {
                self.ledger.resized(OWN, n);
                self.limits.own.set_capacity(n);
                self.limits.own.link().grew();
            }
            Transition::Panic(method, None) => self.limits.own.panic_in(method),
            Transition::Panic(method, Some(n)) => self.limits.own.panic_for(n, method),
            Transition::Calm => {
                self.limits.own.calm();
                self.limits.own.link().grew();
            }
            Transition::Memory(tenths) => {
                if let Some((_, source)) = &self.limits.memory {
                    source.set(tenths, 1_000);
                }
            }
            Transition::Stop => self.admission.stop(),
            Transition::LoseRuntime => unreachable!("done outside of it"),
            Transition::Start => {
                let did = self.admission.start();
                ensure!(did.is_ok() || model.spoilt, "it cannot be started: {did:?}");
            }
            Transition::Rest => self.rest().await?,
            Transition::Advance(ms) => self.pass_time(ms).await?,
        }
        Ok(())
    }

    fn demand(&mut self, job: Job, parts: &[Part]) -> Demand {
        let demand = parts.iter().fold(Demand::new(), |demand, &(at, amount)| {
            demand.add(&self.limits.account(at), amount)
        });
        self.ledger.expect(job, merged(parts));
        demand.for_job(JobInfo::new(job.to_string(), "job"))
    }

    fn admit(
        &mut self,
        model: &Model,
        job: Job,
        parts: &[Part],
        within: Option<u64>,
    ) -> Result<(), String> {
        let demand = self.demand(job, parts);
        let token = CancellationToken::new();
        let within = within.map(Duration::from_millis);
        let mut admit = self.admission.admit(demand).cancelled_by(token.clone());
        if let Some(within) = within {
            admit = admit.within(within);
        }
        let asked = Asked { within, at: Instant::now() };
        let waiting = Waiting { admit: Box::pin(admit), token, wakes: Arc::default(), asked };
        self.waiting.insert(job, waiting);
        self.poll_new(model, job)
    }

    /// The first poll, at which it takes its place.
    fn poll_new(&mut self, model: &Model, job: Job) -> Result<(), String> {
        let polled = self.waiting.get_mut(&job).expect("it was just made").poll();
        // Whoever went in the same breath went before it took its place.
        self.listen()?;
        match polled {
            Poll::Pending => {
                let parts = self.ledger.demand(job);
                ensure!(!parts.is_empty(), "a demand of nothing waits");
                ensure!(!model.can_never_fit(parts), "job {job} waits for what can never be");
                ensure!(self.is_alive(model), "job {job} waits after the end");
                ensure!(self.line().len() <= model.setup.max_waiting, "the line is too long");
                self.ledger.parked(job);
                Ok(())
            }
            Poll::Ready(outcome) => {
                if let Err(error) = &outcome {
                    self.is_lawful_at_once(model, job, error)?;
                }
                self.take_outcome(model, job, outcome)
            }
        }
    }

    fn try_admit(&mut self, model: &Model, job: Job, parts: &[Part]) -> Result<(), String> {
        let demand = self.demand(job, parts);
        let outcome = self.admission.try_admit(demand);
        self.listen()?;
        match outcome {
            Ok(grant) => {
                ensure!(self.is_alive(model), "job {job} was granted after the end");
                self.keep(job, grant);
                Ok(())
            }
            Err(TryAdmitError::WouldWait { shortages }) => {
                let parts = self.ledger.demand(job);
                ensure!(!parts.is_empty(), "a demand of nothing would wait");
                ensure!(!model.can_never_fit(parts), "job {job} would wait for ever");
                let is_named =
                    |name: &str| name == "memory" || parts.iter().any(|part| NAMES[part.0] == name);
                let all_named = shortages.iter().all(|short| is_named(&short.account));
                ensure!(!shortages.is_empty() && all_named, "short of {shortages:?}");
                Ok(())
            }
            Err(TryAdmitError::Admit(error)) => self.is_lawful_at_once(model, job, &error),
            Err(other) => Err(format!("job {job}: {other:?}")),
        }
    }

    /// Whoever was woken takes its outcome.
    pub(crate) fn collect(&mut self, model: &Model) -> Result<(), String> {
        let woken = |(&job, waiting): (&Job, &Waiting)| {
            (waiting.wakes.0.load(Ordering::Relaxed) > 0).then_some(job)
        };
        let woken: Vec<_> = self.waiting.iter().filter_map(woken).collect();
        woken.into_iter().try_for_each(|job| self.poll(model, job))
    }

    fn poll(&mut self, model: &Model, job: Job) -> Result<(), String> {
        let waiting = self.waiting.get_mut(&job).expect("it waits");
        let was_woken = waiting.wakes.0.load(Ordering::Relaxed) > 0;
        match waiting.poll() {
            Poll::Pending => {
                ensure!(!was_woken, "job {job} was woken for nothing");
                Ok(())
            }
            Poll::Ready(outcome) => {
                ensure!(was_woken, "job {job} was not woken for {outcome:?}");
                self.listen()?;
                self.take_outcome(model, job, outcome)
            }
        }
    }

    fn take_outcome(
        &mut self,
        model: &Model,
        job: Job,
        outcome: Result<Grant, AdmitError>,
    ) -> Result<(), String> {
        let waiting = self.waiting.remove(&job).expect("it waits");
        match outcome {
            Ok(grant) => {
                ensure!(!waiting.token.is_cancelled(), "job {job} is cancelled, and granted");
                let wall_wait = grant.wall_wait();
                let waited = waiting.asked.at.elapsed();
                ensure!(wall_wait <= waited, "job {job} waited {wall_wait:?} of {waited:?}");
                let longest = grant.wait_times().iter().map(|wait| wait.wait).max();
                ensure!(longest.unwrap_or_default() <= wall_wait, "an account kept it too long");
                self.keep(job, grant);
                Ok(())
            }
            Err(error) => self.is_lawful(model, job, &waiting, &error),
        }
    }

    fn keep(&mut self, job: Job, grant: Grant) {
        let parts = self.ledger.demand(job).iter().map(|&(at, amount)| (at, amount.units));
        let tokens = parts.clone().filter(|part| kind(part.0) == Kind::Bucket).collect();
        let places = parts.filter(|part| comes_back(part.0)).collect();
        self.empty_granted += u64::from(grant.is_empty());
        let (is_settled, is_rolled_back) = (false, false);
        let holding = Holding { grant, is_settled, is_rolled_back, tokens, places };
        self.holding.insert(job, holding);
    }

    fn settle(&mut self, job: Job, rollback: bool) -> Result<(), String> {
        let Some(holding) = self.holding.get_mut(&job) else { return Ok(()) };
        let did = if rollback { holding.grant.rollback() } else { holding.grant.release() };
        let right = !std::mem::replace(&mut holding.is_settled, true);
        ensure!(did == right, "settling job {job} answered {did}");
        holding.is_rolled_back |= did && rollback;
        holding.places.clear();
        Ok(())
    }

    fn reconcile(&mut self, job: Job, at: usize, used: u64) -> Result<(), String> {
        let Some(holding) = self.holding.get_mut(&job) else { return Ok(()) };
        let did = holding.grant.reconcile(&self.limits.account(at), used);
        ensure!(!did || !holding.is_rolled_back, "a correction after a rollback answered {did}");
        if let Some(held) = holding.tokens.get_mut(&at)
            && did
        {
            self.ledger.corrected(at, *held, used, Instant::now());
            *held = used;
        }
        Ok(())
    }

    fn record(&self, at: usize, status: Option<u16>) {
        let failure = status.map(failure);
        match (kind(at), failure) {
            (Kind::Window, None) => self.limits.window.record_success(),
            (Kind::Window, Some(failure)) => self.limits.window.record_failure(&failure),
            (Kind::Bucket, None) => self.limits.buckets[at - BUCKETS[0]].record_success(),
            (Kind::Bucket, Some(failure)) => {
                self.limits.buckets[at - BUCKETS[0]].record_failure(&failure);
            }
            _ => {}
        }
    }

    pub(crate) const fn is_watched(&self) -> bool {
        self.events.is_some()
    }

    /// Who waits, in order of arrival, as far as their wakers say.
    pub(crate) fn line(&self) -> Vec<Job> {
        let waits = |(&job, waiting): (&Job, &Waiting)| (!waiting.has_landed()).then_some(job);
        self.waiting.iter().filter_map(waits).collect()
    }

    pub(crate) fn is_alive(&self, model: &Model) -> bool {
        model.life != Life::Stopped && !self.is_closed
    }
}

impl Waiting {
    /// It was woken, and not for its token only.
    pub(crate) fn has_landed(&self) -> bool {
        self.wakes.0.load(Ordering::Relaxed) > u32::from(self.token.is_cancelled())
    }

    fn poll(&mut self) -> Poll<Result<Grant, AdmitError>> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.admit.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

fn failure(status: u16) -> UpstreamFailure {
    let failure = UpstreamFailure::status(status, "a service", "not now");
    if status == 529 { failure.with_retry_after(Duration::from_millis(1_500)) } else { failure }
}

/// The same parts with each account once, in the order first named.
fn merged(parts: &[Part]) -> Vec<Part> {
    let mut merged: Vec<Part> = Vec::new();
    for &(account, amount) in parts {
        match merged.iter_mut().find(|part| part.0 == account) {
            Some((_, sum)) => *sum = sum.saturating_add(amount),
            None => merged.push((account, amount)),
        }
    }
    merged
}
