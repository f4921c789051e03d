//! Random runs with everything that can end them at once: their time, their token, drops at any poll,
//! panics, databases that break, gates that refuse, break or take long, circuits, memory, a stop of the
//! admission, the loss of the runtime. Counted by hand afterwards: what was begun, settled, spent, and
//! is out.
//!
//! `ADMIT_STORMS=50000 cargo test --all-features --test jobs storm` runs more of it.

use std::collections::BTreeSet;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use admit::testing::ScriptedMemory;
use admit::{
    Account, Accounts, Admission, AdmitError, Cost, CountingGate, Currency, DbProvider as _,
    DbVerb, Decimal, ElasticWindow, HttpGate, JobInfo, JobRunner, MemoryGate, ModelSpec, Money,
    Priced, Prices, Replenishment, Requirements, Reservation, Resources, RetryPolicy, RunError,
    RunStage, SpendGate, SpendLedger, SpendRefusal, UpstreamFailure, Usage,
};
use fastrand::Rng;
use futures::FutureExt;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, advance, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::secs;
use crate::listener::Listener;
use crate::support::{Fault, Log, Recording};

/// Histories in an ordinary run.
const STORMS: u64 = 300;

/// What somebody panics with, which panics in its own drop.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic_any("a bomb's own mistake");
    }
}

fn millis(random: &mut Rng, most: u64) -> Duration {
    Duration::from_millis(random.u64(0..most))
}

/// Once in so many.
fn once_in(random: &mut Rng, so_many: u32) -> bool {
    random.u32(0..so_many) == 0
}

/// What somebody does who computes for so long without an await.
fn compute_for(time: Duration) {
    // The clock moves at the first poll.
    let _ = pin!(advance(time)).poll(&mut Context::from_waker(Waker::noop()));
}

/// What a gate heard.
#[derive(Default)]
struct Heard {
    open: AtomicU64,
    settled: AtomicU64,
    cost: Mutex<Cost>,
}

/// A gate that refuses, breaks and takes long.
struct Moody {
    random: Mutex<Rng>,
    is_moody: bool,
    heard: Arc<Heard>,
}

impl SpendGate for Moody {
    fn admit(&self, _: &JobInfo, _: &[Priced]) -> Result<Reservation, SpendRefusal> {
        let mood = self.random.lock().unwrap_or_else(PoisonError::into_inner).u32(0..30);
        match mood {
            0 if self.is_moody => panic_any(Bomb),
            1 if self.is_moody => return Err(SpendRefusal::other("moody", "not now")),
            2 if self.is_moody => compute_for(Duration::from_millis(700)),
            _ => {}
        }
        let (heard, breaks) = (Arc::clone(&self.heard), self.is_moody && mood == 3);
        heard.open.fetch_add(1, Ordering::SeqCst);
        Ok(Reservation::new(move |actual| {
            heard.open.fetch_sub(1, Ordering::SeqCst);
            if let Some(cost) = actual {
                heard.settled.fetch_add(1, Ordering::SeqCst);
                heard.cost.lock().unwrap_or_else(PoisonError::into_inner).extend(cost.iter());
            }
            if breaks {
                panic_any(Bomb);
            }
        }))
    }
}

/// What the runs of a history share.
struct Stage {
    admission: Admission,
    memory: Arc<ScriptedMemory>,
    accounts: Arc<Accounts>,
    http: Arc<HttpGate>,
    own: Arc<CountingGate>,
    window: Arc<ElasticWindow>,
    time: Arc<Listener>,
    models: [ModelSpec; 2],
    databases: [Arc<Recording>; 2],
    log: Log,
    ledger: Arc<SpendLedger>,
    heard: Arc<Heard>,
    runners: [JobRunner; 2],
    /// Attempts whose work began, and those of them that call models.
    begun: AtomicU64,
    begun_with_models: AtomicU64,
    /// What the records say that the runs cost, and how many runs left none.
    recorded: Mutex<Cost>,
    unrecorded: AtomicU64,
    seen: Mutex<BTreeSet<&'static str>>,
}

impl Stage {
    /// Within a runtime.
    fn new(random: &mut Rng) -> Self {
        let memory = ScriptedMemory::at_percent(10.0);
        let mut builder = Admission::builder();
        if once_in(random, 3) {
            builder = builder.memory_gate(MemoryGate::with_source(Arc::clone(&memory)).unwrap());
        }
        if once_in(random, 6) {
            builder = builder.max_waiting(random.usize(0..4));
        }
        let admission = builder.start().unwrap();
        let (ledger, heard, log) = (SpendLedger::new(), Arc::<Heard>::default(), Log::default());
        if random.bool() {
            for currency in [Currency::USD, Currency::EUR] {
                let cap = Money::new(Decimal::new(random.i64(0..20_000), 6), currency);
                ledger.set_cap("w", cap).unwrap();
            }
        }
        let moody = Arc::new(Moody {
            random: Mutex::new(random.fork()),
            is_moody: random.bool(),
            heard: Arc::clone(&heard),
        });
        let (accounts, http) =
            (Arc::new(Accounts::new()), HttpGate::new(random.u32(1..8)).unwrap());
        let runners = [true, false].map(|ledger_first| {
            let builder = JobRunner::builder(&admission).accounts(Arc::clone(&accounts));
            let builder = builder.http(&http).seed(random.u64(..));
            let builder = match ledger_first {
                true => builder.spend_gate(&ledger).spend_gate(&moody),
                false => builder.spend_gate(&moody).spend_gate(&ledger),
            };
            builder.build().unwrap()
        });
        let databases = ["a", "b"].map(|name| Recording::new(name, 2, &log));
        if once_in(random, 3) {
            let faults = [Fault::Fails, Fault::Hangs, Fault::Panics];
            let starts = [DbVerb::Acquire, DbVerb::Begin];
            let ends = [DbVerb::Commit, DbVerb::AwaitCompletion, DbVerb::Rollback, DbVerb::Close];
            let verbs = [&starts[..], &ends].concat();
            for _ in 0..random.u32(1..3) {
                let database = &databases[random.usize(0..2)];
                database.make(verbs[random.usize(0..verbs.len())], faults[random.usize(0..3)]);
            }
            if once_in(random, 4) {
                databases[0].make_abort_panic();
            }
        }
        let window = ElasticWindow::builder("window")
            .max_throttle(1.0)
            .failures_to_open(random.u32(1..3))
            .initial_cooldown(Duration::from_millis(100) + millis(random, 5_000))
            .build()
            .unwrap();
        let prices = Prices::per_million(Decimal::ONE, Decimal::ONE);
        Self {
            own: CountingGate::new("own", 2).unwrap(),
            time: Listener::new("time", Replenishment::Time, &log),
            models: [
                ModelSpec::new("m0", 100_000).with_prices(prices.clone()),
                ModelSpec::concurrent("m1", 2).with_prices(prices.in_currency(Currency::EUR)),
            ],
            begun: AtomicU64::new(0),
            begun_with_models: AtomicU64::new(0),
            recorded: Mutex::default(),
            unrecorded: AtomicU64::new(0),
            seen: Mutex::default(),
            admission,
            memory,
            accounts,
            http,
            window,
            databases,
            log,
            ledger,
            heard,
            runners,
        }
    }

    /// What a job needs, and whether it calls models.
    fn requirements(&self, random: &mut Rng) -> (Requirements, bool) {
        let job = JobInfo::new("1", "j").in_workflow("w");
        let mut all = Requirements::new().permit(&self.time).for_job(job);
        let mut calls = 0;
        for model in &self.models {
            for _ in 0..random.u32(0..3) {
                all = all.call(model, Usage::new(random.u64(0..5_000), 0));
                calls += 1;
            }
        }
        if !once_in(random, 3) {
            all = all.permit(&self.window);
        }
        all = all.permits(&self.own, random.u32(0..3));
        for database in &self.databases {
            for _ in 0..random.u32(0..3) {
                all = all.database(database);
            }
        }
        if random.bool() {
            all = all.transactional();
        }
        if once_in(random, 5) {
            all = all.read_only();
        }
        (all, calls > 0)
    }

    /// One attempt.
    async fn attempt(
        self: Arc<Self>,
        mut random: Rng,
        resources: Resources,
    ) -> Result<(), UpstreamFailure> {
        for _ in 0..random.u32(0..3) {
            yield_now().await;
        }
        if random.bool() {
            sleep(millis(&mut random, 900)).await;
        }
        if once_in(&mut random, 12) {
            compute_for(millis(&mut random, 5_000));
        }
        // Of a model it does not call, it is an error.
        for _ in 0..random.u32(0..4) {
            let usage = Usage::new(random.u64(0..6_000), 0);
            let _ = resources.record_usage(&self.models[random.usize(0..2)], usage);
        }
        if once_in(&mut random, 5) {
            let (stage, resources) = (Arc::clone(&self), resources.clone());
            let (model, after) = (random.usize(0..2), millis(&mut random, 900));
            tokio::spawn(async move {
                sleep(after).await;
                let _ = resources.record_usage(&stage.models[model], Usage::new(1_000, 0));
            });
        }
        let aside = UpstreamFailure::status(429, "aside", "");
        match random.u32(0..14) {
            0 => _ = resources.release_one(self.databases[0].account()),
            1 => _ = resources.reconcile(self.databases[0].account(), 0),
            2 => _ = resources.release_one(&self.window),
            3 => _ = resources.report_failure(&self.window, &aside),
            4 => _ = resources.report_success(&self.window),
            5 => _ = resources.report_success(&self.time),
            _ => {}
        }
        if once_in(&mut random, 60) {
            self.admission.stop();
        }
        let failure = |status, service| UpstreamFailure::status(status, service, "");
        match random.u32(0..12) {
            0..=3 => Ok(()),
            4 => Err(failure(400, "window")),
            5 | 6 => Err(failure(429, "window")),
            7 => Err(failure(529, "m0").with_retry_after(millis(&mut random, 2_000))),
            8 => Err(failure(500, "elsewhere")),
            9 => resume_unwind(Box::new(Bomb)),
            10 => pending().await,
            _ => {
                resources.cancelled().await;
                if random.bool() { Ok(()) } else { Err(failure(503, "window")) }
            }
        }
    }

    /// A run, until it ends or is dropped.
    async fn run(self: Arc<Self>, mut random: Rng) {
        let (requirements, calls_models) = self.requirements(&mut random);
        let policy = RetryPolicy {
            max_retries: [0, 1, 3, u32::MAX][random.usize(0..4)],
            usual: Duration::ZERO..=millis(&mut random, 400),
            overload: Duration::ZERO..=millis(&mut random, 800),
            max_multiplier: random.u32(0..4),
            max_wait: millis(&mut random, 3_000),
            refusals: random.bool(),
        };
        let is_endless = policy.max_retries == u32::MAX;
        let limit = (is_endless || random.bool()).then(|| millis(&mut random, 4_000));
        sleep(millis(&mut random, 1_000)).await;
        let token = CancellationToken::new();
        let job = self.runners[random.usize(0..2)].job(requirements);
        let mut job = job.retries(policy).cancelled_by(token.clone());
        if let Some(limit) = limit {
            job = job.within(limit);
        }
        if once_in(&mut random, 5) {
            let after = millis(&mut random, 4_000);
            tokio::spawn(async move {
                sleep(after).await;
                token.cancel();
            });
        }
        let (stage, mut draws) = (Arc::clone(&self), random.fork());
        let run = job.run_recorded(move |resources| {
            stage.begun.fetch_add(1, Ordering::SeqCst);
            stage.begun_with_models.fetch_add(u64::from(calls_models), Ordering::SeqCst);
            Arc::clone(&stage).attempt(draws.fork(), resources)
        });
        // One that hangs is dropped in the end; some by then, and some after so many polls.
        let dropped_at = once_in(&mut random, 4).then(|| millis(&mut random, 4_000));
        let mut polls = if once_in(&mut random, 5) { random.u32(0..60) } else { u32::MAX };
        let begun = Instant::now();
        let ran = {
            let mut run = pin!(AssertUnwindSafe(run).catch_unwind());
            let cut = poll_fn(|cx| {
                if polls == 0 {
                    return Poll::Ready(None);
                }
                polls -= 1;
                run.as_mut().poll(cx).map(Some)
            });
            timeout(dropped_at.unwrap_or(secs(500)), cut).await.ok().flatten()
        };
        if let Some(limit) = limit {
            // Its grace, the ends of two sessions, and what others compute meanwhile.
            let most = limit + limit / 10 + secs(60);
            assert!(begun.elapsed() <= most, "{:?} of {limit:?}", begun.elapsed());
        }
        let word = match ran {
            Some(Ok(finished)) => {
                self.recorded.lock().unwrap().extend(finished.record.cost.iter());
                match finished.result {
                    Ok(()) => "done",
                    Err(RunError::Admit(AdmitError::Refused { .. })) => "refused",
                    Err(RunError::Admit(AdmitError::ShutDown)) => "shut down",
                    Err(RunError::Spend(_)) => "too dear",
                    Err(RunError::Exhausted { .. }) => "exhausted",
                    Err(RunError::Cancelled { .. }) => "cancelled",
                    Err(RunError::TimedOut { stage: RunStage::Retry, .. }) => {
                        "out of time in between"
                    }
                    Err(RunError::TimedOut { stage: RunStage::Work, .. }) => "out of time at work",
                    Err(_) => "failed",
                }
            }
            unanswered => {
                self.unrecorded.fetch_add(1, Ordering::SeqCst);
                let Some(Err(payload)) = unanswered else { return };
                std::mem::forget(catch_unwind(AssertUnwindSafe(|| drop(payload))));
                "panicked"
            }
        };
        self.seen.lock().unwrap().insert(word);
    }

    /// Everything is back, and was counted once.
    fn check(&self, is_whole: bool) {
        let (now, text) = (Instant::now(), self.log.text());
        let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        for database in &self.databases {
            assert_eq!(database.out.load(Ordering::SeqCst), 0, "{text}");
            assert_eq!(database.account().in_use(now), 0, "{text}");
        }
        assert!(!text.contains("without a permit"), "{text}");
        let gate = self.accounts.gate(&self.models[1]).unwrap();
        assert_eq!((self.own.in_use(now), self.http.in_use(now), gate.in_use(now)), (0, 0, 0));
        assert_eq!(self.admission.queue_len(), 0);
        self.admission.check();
        // Spent where the work began, and rolled back where it did not.
        assert_eq!(self.time.in_use(now), count(&self.begun));
        assert_eq!(
            (count(&self.heard.open), count(&self.heard.settled)),
            (0, count(&self.begun_with_models))
        );
        assert!(self.ledger.committed("w").is_zero());
        assert_eq!(self.ledger.spent("w"), *self.heard.cost.lock().unwrap());
        if is_whole && count(&self.unrecorded) == 0 {
            assert_eq!(self.ledger.spent("w"), *self.recorded.lock().unwrap());
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

/// One history; adds what was seen of it.
fn history(seed: u64, seen: &mut BTreeSet<&'static str>) {
    let mut random = Rng::with_seed(seed);
    let first = runtime();
    let stage = {
        let _inside = first.enter();
        Arc::new(Stage::new(&mut random))
    };
    let stopped_at = once_in(&mut random, 6).then(|| millis(&mut random, 4_000));
    let lost_at = once_in(&mut random, 5).then(|| millis(&mut random, 4_000));
    let runs: Vec<_> = (0..random.u32(1..9)).map(|_| random.fork()).collect();
    let whole = async {
        let shared = Arc::clone(&stage);
        tokio::spawn(async move {
            for percent in [97.0, 20.0, 92.0, 10.0] {
                sleep(Duration::from_millis(900)).await;
                shared.memory.set_percent(percent);
            }
        });
        if let Some(after) = stopped_at {
            let admission = stage.admission.clone();
            tokio::spawn(async move {
                sleep(after).await;
                admission.stop();
            });
        }
        let mut all: JoinSet<_> =
            runs.into_iter().map(|random| Arc::clone(&stage).run(random)).collect();
        while let Some(ran) = all.join_next().await {
            ran.unwrap();
        }
        stage.admission.drained().await;
    };
    let most = lost_at.unwrap_or(secs(2_000));
    let is_whole = first.block_on(async { timeout(most, whole).await.is_ok() });
    assert!(is_whole || lost_at.is_some(), "it hangs");
    drop(first);
    if !is_whole {
        seen.insert("runtime lost");
        runtime().block_on(async {
            // It may have been stopped.
            let _ = stage.admission.start();
            timeout(secs(500), stage.admission.drained()).await.expect("it hangs");
        });
    }
    stage.check(is_whole);
    seen.append(&mut stage.seen.lock().unwrap());
}

#[test]
fn whatever_ends_a_run_everything_is_back_and_counted_once() {
    let storms = std::env::var("ADMIT_STORMS").map_or(STORMS, |text| text.parse().unwrap());
    let mut seen = BTreeSet::new();
    for seed in 0..storms {
        let played = catch_unwind(AssertUnwindSafe(|| history(seed, &mut seen)));
        assert!(played.is_ok(), "seed {seed}");
    }
    for word in [
        "cancelled",
        "done",
        "exhausted",
        "failed",
        "out of time at work",
        "out of time in between",
        "panicked",
        "refused",
        "runtime lost",
        "shut down",
        "too dear",
    ] {
        assert!(seen.contains(word), "{word} was not seen among {seen:?}");
    }
}
