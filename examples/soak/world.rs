//! The limits of the soak, and the admissions that share them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use admit::testing::{Draw, ScriptedMemory};
use admit::{
    Account, Admission, BuildError, ConfigError, CountingGate, Demand, ElasticWindow, LimiterEvent,
    Limits, MemoryGate, Router, StartError, TokenBucket,
};
use tokio::sync::broadcast::Receiver;

/// Jobs that share one gate of their own.
const JOBS_A_GATE: u64 = 50;
/// Jobs that share one lane.
const JOBS_A_LANE: u64 = 40;

pub(crate) struct World {
    /// How many times slower everything is than on the real clock: virtual time costs nothing.
    pub(crate) pace: u32,
    pub(crate) gates: Vec<Arc<CountingGate>>,
    pub(crate) buckets: Vec<Arc<TokenBucket>>,
    pub(crate) window: Arc<ElasticWindow>,
    pub(crate) memory: Arc<ScriptedMemory>,
    pub(crate) memory_gate: Arc<MemoryGate>,
    pub(crate) lanes: Router<u64, dyn Account>,
    /// The first is listened to.
    admissions: Mutex<[Admission; 2]>,
    /// The gate that the next few jobs share.
    gate_of_now: Mutex<(u64, Arc<CountingGate>)>,
    /// Whatever lives for a few jobs only.
    short_lived: Mutex<Vec<Weak<dyn Account>>>,
    pub(crate) accounts_made: AtomicU64,
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(crate) fn new(pace: u32) -> Result<(Self, Receiver<LimiterEvent>), BuildError> {
        let memory = ScriptedMemory::new(500, 1_000);
        let gate = MemoryGate::builder().source(memory.clone());
        let memory_gate = gate.progress_after(Duration::from_secs(5)).build()?;
        let window = ElasticWindow::builder("window")
            .max(400)
            .per(Duration::from_millis(100) * pace)
            .max_throttle(2.0)
            .failures_to_open(3)
            .initial_cooldown(Duration::from_millis(50))
            .max_cooldown(Duration::from_secs(2));
        let (watched, events) = Self::watched(&memory_gate)?;
        let admissions = [watched, Self::unwatched(&memory_gate)?];
        let world = Self {
            pace,
            gates: vec![
                CountingGate::new("narrow", 20)?,
                CountingGate::new("wide", 300)?,
                CountingGate::new("database", 60)?,
            ],
            buckets: vec![
                TokenBucket::new(
                    "model",
                    Limits::per_minute(600_000 / pace, 60_000_000 / u64::from(pace)),
                )?,
                TokenBucket::new(
                    "small model",
                    Limits::per_minute(120_000 / pace, 6_000_000 / u64::from(pace)),
                )?,
            ],
            window: window.build()?,
            lanes: Router::new(lane),
            memory,
            memory_gate,
            admissions: Mutex::new(admissions),
            gate_of_now: Mutex::new((u64::MAX, CountingGate::new("of its own", 1)?)),
            short_lived: Mutex::default(),
            accounts_made: AtomicU64::new(0),
        };
        Ok((world, events))
    }

    /// So long at the pace of this run.
    pub(crate) fn micros(&self, micros: u64) -> Duration {
        Duration::from_micros(micros) * self.pace
    }

    fn watched(gate: &Arc<MemoryGate>) -> Result<(Admission, Receiver<LimiterEvent>), BuildError> {
        let builder = Admission::builder().event_capacity(1 << 16).track_holders(true);
        let admission = builder.memory_gate(gate.clone()).build()?;
        let events = admission.subscribe();
        Ok((admission, events))
    }

    fn unwatched(gate: &Arc<MemoryGate>) -> Result<Admission, BuildError> {
        Ok(Admission::builder().max_waiting(700).memory_gate(gate.clone()).build()?)
    }

    pub(crate) fn admissions(&self) -> [Admission; 2] {
        lock(&self.admissions).clone()
    }

    pub(crate) fn start(&self) -> Result<(), StartError> {
        self.admissions().iter().try_for_each(Admission::start)
    }

    /// Stops the one that nobody listens to, for good, and starts another in its place.
    pub(crate) fn replace(&self) -> Result<(), BuildError> {
        let fresh = Self::unwatched(&self.memory_gate)?;
        fresh.start()?;
        let old = std::mem::replace(&mut lock(&self.admissions)[1], fresh);
        old.stop();
        Ok(())
    }

    /// What a job wants: some of the lasting limits, perhaps a lane, perhaps a gate of its own.
    pub(crate) fn demand(&self, job: u64, draw: &mut Draw) -> Result<Demand, ConfigError> {
        let mut demand = Demand::new();
        for gate in &self.gates {
            if draw.one_in(3) {
                demand = demand.permits(gate, draw.between(1..=3) as u32);
            }
        }
        for bucket in &self.buckets {
            if draw.one_in(3) {
                demand = demand.tokens(bucket, draw.between(1..=2_000));
            }
        }
        if draw.one_in(4) {
            demand = demand.permit(&self.window);
        }
        if draw.one_in(3) {
            let lane = self.lanes.account_for(&(job / JOBS_A_LANE))?;
            // A lane is new when nobody but the router and this job holds it.
            if Arc::strong_count(&lane) == 2 {
                self.made(Arc::downgrade(&lane));
            }
            demand = demand.permit(&lane);
        }
        if draw.one_in(4) {
            demand = demand.permit(&self.own_gate(job)?);
        }
        Ok(demand)
    }

    fn own_gate(&self, job: u64) -> Result<Arc<CountingGate>, ConfigError> {
        let batch = job / JOBS_A_GATE;
        let mut now = lock(&self.gate_of_now);
        if now.0 != batch {
            *now = (batch, CountingGate::new("of its own", 2)?);
            let account: Arc<dyn Account> = now.1.clone();
            self.made(Arc::downgrade(&account));
        }
        Ok(Arc::clone(&now.1))
    }

    fn made(&self, account: Weak<dyn Account>) {
        self.accounts_made.fetch_add(1, Ordering::Relaxed);
        lock(&self.short_lived).push(account);
    }

    /// Memory has room, and the upstreams are well: whoever still waits goes soon.
    pub(crate) fn calm(&self) {
        self.memory.set(300, 1_000);
        // Every third takes a fifth off a throttle of nine.
        for _ in 0..150 {
            self.buckets.iter().for_each(|bucket| bucket.record_success());
            self.window.record_success();
        }
    }

    /// Lets go of the gate of now, and of every lane that nobody could tell from a new one.
    pub(crate) fn let_go(&self) -> Result<(), ConfigError> {
        *lock(&self.gate_of_now) = (u64::MAX, CountingGate::new("of its own", 1)?);
        // Every call looks at two.
        for _ in 0..=self.lanes.len() {
            drop(self.lanes.account_for(&u64::MAX)?);
        }
        Ok(())
    }

    /// How many of the short-lived live, and forgets the others: to remember one keeps its memory.
    pub(crate) fn live(&self) -> usize {
        let mut short_lived = lock(&self.short_lived);
        short_lived.retain(|account| account.strong_count() > 0);
        short_lived.len()
    }
}

/// Every third lane is a bucket, which is forgotten only once it is full again.
fn lane(lane: &u64) -> Result<Arc<dyn Account>, ConfigError> {
    let name = format!("lane {lane}");
    Ok(if lane.is_multiple_of(3) {
        TokenBucket::new(name, Limits::per_minute(60_000, 60_000))?
    } else {
        CountingGate::new(name, 2)?
    })
}
