//! Limits under threads: in the end nothing is in use, nobody waits, and nothing was ever
//! overdrawn.
//!
//! Real time only spaces things out. Every loop is bounded by its count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use admit::testing::Draw;
use admit::{
    Account, Admission, AdmitError, CircuitState, CountingGate, Demand, ElasticWindow, Grant,
    Limits, TokenBucket, TryAdmitError, UpstreamFailure,
};
use tokio::time::Instant;

const TASKS: u64 = 32;
const JOBS: u64 = 60;
const WINDOW: u32 = 40;
const PER: Duration = Duration::from_millis(10);
/// A minute's budget, spent at the start: what goes then is what comes in.
const TOKENS: u64 = 300_000_000;

/// How much of a gate is in use by our own count, and the most there ever was.
#[derive(Debug, Default)]
struct Peak {
    now: AtomicU32,
    most: AtomicU32,
}

impl Peak {
    fn enter(&self, n: u32) {
        let now = self.now.fetch_add(n, Ordering::SeqCst) + n;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn leave(&self, n: u32) {
        self.now.fetch_sub(n, Ordering::SeqCst);
    }
}

/// The limits, and what is counted beside them.
struct World {
    admissions: Vec<Admission>,
    small: Arc<CountingGate>,
    large: Arc<CountingGate>,
    window: Arc<ElasticWindow>,
    bucket: Arc<TokenBucket>,
    peaks: [Peak; 2],
    /// Slots and tokens that were taken and kept.
    slots: AtomicU64,
    tokens: AtomicU64,
    /// Refused by the circuit.
    refused: AtomicU64,
}

impl World {
    fn new(admissions: usize) -> Self {
        let start = |_| Admission::builder().start().expect("inside a runtime");
        let window = ElasticWindow::builder("window")
            .max(WINDOW)
            .per(PER)
            .max_throttle(1.0)
            .failures_to_open(2)
            .initial_cooldown(Duration::from_millis(4))
            .max_cooldown(Duration::from_millis(16))
            .probe_timeout(Duration::from_millis(50));
        let limits = Limits::per_minute(60_000_000, TOKENS);
        Self {
            admissions: (0..admissions).map(start).collect(),
            small: CountingGate::new("small", 3).unwrap(),
            large: CountingGate::new("large", 10).unwrap(),
            window: window.build().unwrap(),
            bucket: TokenBucket::new("bucket", limits).unwrap(),
            peaks: Default::default(),
            slots: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// A job of random wants: its demand, with what it wants of the gates, window and bucket.
    fn draw(&self, draw: &mut Draw) -> (Demand, Wants) {
        let wants = Wants {
            small: draw.between(0..=1) as u32 * draw.between(1..=3) as u32,
            large: draw.between(0..=4) as u32,
            slots: if draw.one_in(3) { 0 } else { draw.between(1..=3) as u32 },
            tokens: if draw.one_in(2) { 0 } else { draw.between(1..=20_000) },
        };
        let mut demand = Demand::new();
        // The order of mention is random too; what is debited first must not depend on it.
        let mut order = [0, 1, 2, 3];
        order.rotate_left(draw.between(0..=3) as usize);
        for which in order {
            demand = match which {
                0 if wants.small > 0 => demand.permits(&self.small, wants.small),
                1 if wants.large > 0 => demand.permits(&self.large, wants.large),
                2 if wants.slots > 0 => demand.permits(&self.window, wants.slots),
                3 if wants.tokens > 0 => demand.tokens(&self.bucket, wants.tokens),
                _ => demand,
            };
        }
        (demand, wants)
    }

    /// A grant runs, reports, and ends in one of the ways there are.
    async fn work(&self, grant: Grant, wants: Wants, draw: &mut Draw) {
        self.peaks[0].enter(wants.small);
        self.peaks[1].enter(wants.large);
        match draw.between(0..=3) {
            0 => tokio::time::sleep(Duration::from_micros(draw.between(0..=1_500))).await,
            _ => tokio::task::yield_now().await,
        }
        match draw.between(0..=9) {
            0..=4 => {
                grant.report_success_all();
            }
            5 => {
                let failure = UpstreamFailure::status(429, "upstream", "");
                grant.report_failure(&self.window, &failure);
            }
            6 => {
                let failure = UpstreamFailure::status(500, "upstream", "");
                grant.report_failure_all(&failure);
            }
            _ => {}
        }
        self.peaks[0].leave(wants.small);
        self.peaks[1].leave(wants.large);
        let rolls_back = draw.one_in(5);
        if !rolls_back {
            self.slots.fetch_add(u64::from(wants.slots), Ordering::SeqCst);
            self.tokens.fetch_add(wants.tokens, Ordering::SeqCst);
        }
        match (rolls_back, draw.one_in(2)) {
            (true, _) => assert!(grant.rollback()),
            (false, true) => assert!(grant.release()),
            (false, false) => drop(grant),
        }
    }

    async fn task(self: Arc<Self>, seed: u64) -> u64 {
        let mut draw = Draw::new(seed);
        let admission = &self.admissions[seed as usize % self.admissions.len()];
        let mut done = 0;
        for _ in 0..JOBS {
            let (demand, wants) = self.draw(&mut draw);
            let outcome = match draw.between(0..=9) {
                0 => match admission.try_admit(demand) {
                    Ok(grant) => Ok(grant),
                    Err(TryAdmitError::WouldWait { .. }) => continue,
                    Err(TryAdmitError::Admit(error)) => Err(error),
                    Err(error) => panic!("{error}"),
                },
                1 => admission.admit(demand).within(Duration::from_millis(1)).await,
                2 => {
                    // Given up after a poll or two, perhaps with the grant in hand.
                    let mut admit = std::pin::pin!(admission.admit(demand));
                    let mut outcome = None;
                    for _ in 0..draw.between(1..=2) {
                        tokio::select! {
                            biased;
                            decided = &mut admit => { outcome = Some(decided); break; }
                            () = tokio::task::yield_now() => {}
                        }
                    }
                    match outcome {
                        Some(outcome) => outcome,
                        None => continue,
                    }
                }
                _ => admission.admit(demand).await,
            };
            match outcome {
                Ok(grant) => self.work(grant, wants, &mut draw).await,
                Err(AdmitError::Refused { account, .. }) => {
                    assert_eq!(account, *self.window.link().name());
                    self.refused.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                }
                Err(AdmitError::TimedOut { .. }) => continue,
                Err(error) => panic!("{error}"),
            }
            done += 1;
        }
        done
    }

    /// Everything is back and nobody waits.
    async fn at_the_end(&self, elapsed: Duration) {
        for admission in &self.admissions {
            let drained = tokio::time::timeout(Duration::from_secs(5), admission.drained()).await;
            assert!(drained.is_ok(), "{}", admission.snapshot());
            admission.check();
            let snapshot = admission.snapshot();
            assert_eq!((snapshot.waiting, snapshot.held, snapshot.unseen.count), (0, 0, 0));
            assert!(snapshot.accounts.iter().all(|account| account.waiting == 0), "{snapshot}");
        }
        for gate in [&self.small, &self.large] {
            let status = gate.status();
            assert_eq!((status.active, status.available_permits), (0, status.max_concurrent));
        }
        let most = |peak: &Peak| peak.most.load(Ordering::SeqCst);
        assert!(most(&self.peaks[0]) <= 3 && most(&self.peaks[1]) <= 10, "{:?}", self.peaks);
        assert!(most(&self.peaks[0]) > 1 && most(&self.peaks[1]) > 3, "{:?}", self.peaks);

        // No span of the base length holds more than the maximum, so the whole time holds no more
        // than that for each span begun; the bucket no more than its budget and its rate.
        let spans = elapsed.as_nanos().div_ceil(PER.as_nanos()) as u64 + 1;
        let slots = self.slots.load(Ordering::SeqCst);
        assert!(slots <= u64::from(WINDOW) * spans, "{slots} slots in {elapsed:?}");
        let refill = u128::from(TOKENS) * elapsed.as_nanos() / 60_000_000_000;
        let tokens = self.tokens.load(Ordering::SeqCst);
        assert!(u128::from(tokens) <= u128::from(TOKENS) + refill + 1, "{tokens} tokens");
        assert!(slots > 0 && tokens > TOKENS);
    }
}

/// What a job wants.
#[derive(Clone, Copy, Debug)]
struct Wants {
    small: u32,
    large: u32,
    slots: u32,
    tokens: u64,
}

async fn stress(admissions: usize) {
    let world = Arc::new(World::new(admissions));
    let start = Instant::now();
    let budget = Demand::new().tokens(&world.bucket, TOKENS);
    drop(world.admissions[0].try_admit(budget).expect("it is full"));
    world.tokens.store(TOKENS, Ordering::SeqCst);
    let tasks: Vec<_> =
        (0..TASKS).map(|seed| tokio::spawn(Arc::clone(&world).task(seed))).collect();
    let mut done = 0;
    for task in tasks {
        let joined = tokio::time::timeout(Duration::from_secs(60), task).await;
        done += joined.expect("nobody waits for ever").expect("no panic");
    }
    let elapsed = start.elapsed();
    world.at_the_end(elapsed).await;
    assert!(done > TASKS * JOBS / 4, "{done} of {}", TASKS * JOBS);
    let refused = world.refused.load(Ordering::SeqCst);
    assert!(refused > 0, "the circuit never opened");
    // The window comes back to itself: a probe that succeeds is all it takes.
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if let Ok(grant) = world.admissions[0].try_admit(Demand::new().permit(&world.window)) {
            grant.report_success_all();
        }
        if world.window.status().circuit == CircuitState::Healthy {
            return;
        }
    }
    panic!("the circuit stays open: {}", world.window.status());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_admission_under_threads_gives_everything_back() {
    stress(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_admissions_that_share_their_limits_give_everything_back() {
    stress(2).await;
}

/// Nothing but the circuit: failures come from all sides, and never are two probes out at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn never_are_two_probes_of_a_window_out_at_once() {
    let window = ElasticWindow::builder("window")
        .max(1_000)
        .per(Duration::from_micros(100))
        .max_throttle(0.0)
        .failures_to_open(1)
        .initial_cooldown(Duration::from_millis(1))
        .max_cooldown(Duration::from_millis(2))
        .probe_timeout(Duration::from_secs(60))
        .build()
        .unwrap();
    let admission = Admission::builder().start().unwrap();
    // It is open before anybody comes, and no success is ever told: every grant is a probe.
    window.record_429();
    let (out, probes) = (Arc::new(Peak::default()), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..16)
        .map(|seed| {
            let (admission, window) = (admission.clone(), Arc::clone(&window));
            let (out, probes) = (Arc::clone(&out), Arc::clone(&probes));
            tokio::spawn(async move {
                let mut draw = Draw::new(seed);
                for _ in 0..400 {
                    let demand = Demand::new().permit(&window);
                    let grant = match draw.one_in(2) {
                        true => admission.try_admit(demand).ok(),
                        false => admission.admit(demand).await.ok(),
                    };
                    let Some(grant) = grant else {
                        tokio::time::sleep(Duration::from_micros(100)).await;
                        continue;
                    };
                    out.enter(1);
                    probes.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    out.leave(1);
                    match draw.between(0..=2) {
                        0 => drop(grant),
                        1 => assert!(grant.rollback()),
                        _ => {
                            let failure = UpstreamFailure::status(500, "upstream", "");
                            assert!(grant.report_failure(&window, &failure));
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(out.most.load(Ordering::SeqCst), 1);
    assert!(probes.load(Ordering::SeqCst) > 20, "{probes:?}");
    assert_eq!(admission.snapshot().held, 0);
    admission.check();
}
