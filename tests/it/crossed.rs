//! Random jobs in several admissions that share every limit: each line keeps its own rules, and what
//! one gives back reaches the others.
//!
//! `ADMIT_CROSSED_SEEDS=2000 cargo test --all-features --test it crossed` plays more of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

use admit::testing::Draw;
use admit::{
    Account, Admission, Admit, AdmitError, Amount, Ask, CountingGate, Demand, ElasticWindow, Entry,
    Grant, Limits, TokenBucket, UpstreamFailure, WindowConfig,
};
use tokio::runtime::Builder;
use tokio::time::Instant;
use tokio_test::task::Spawn;

use crate::support::*;

const SEEDS: u64 = 60;
const STEPS: u64 = 150;
const LINES: usize = 3;

/// One admission, and who waits there, in order of arrival.
struct Line {
    admission: Admission,
    waiting: Vec<Waiting>,
}

struct Waiting {
    demand: Demand,
    admit: Spawn<Admit>,
}

struct World {
    gates: [Arc<CountingGate>; 2],
    bucket: Arc<TokenBucket>,
    window: Arc<ElasticWindow>,
    lines: Vec<Line>,
    grants: Vec<Grant>,
    seen: BTreeMap<&'static str, u64>,
}

impl World {
    fn new(draw: &mut Draw) -> Self {
        let config = WindowConfig {
            max: draw.between(1..=4) as u32,
            per: millis(draw.between(1..=3_000)),
            failures_to_open: draw.between(1..=4) as u32,
            initial_cooldown: millis(draw.between(1..=5_000)),
            max_hold: millis(draw.between(0..=2_000)),
            ..WindowConfig::default()
        };
        let line = |_| Line { admission: started(), waiting: Vec::new() };
        Self {
            gates: [named("left", 1 + draw.between(0..=2) as u32), named("right", 2)],
            bucket: bucket(draw.between(20..=200) as u32, draw.between(20..=100)),
            window: ElasticWindow::new("window", config).unwrap(),
            lines: (0..LINES).map(line).collect(),
            grants: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    fn demand(&self, draw: &mut Draw) -> Demand {
        let mut demand = Demand::new();
        while demand.is_empty() {
            for gate in &self.gates {
                if draw.one_in(2) {
                    demand = demand.permits(gate, draw.between(1..=2) as u32);
                }
            }
            if draw.one_in(2) {
                demand = demand.tokens(&self.bucket, draw.between(1..=20));
            }
            if draw.one_in(4) {
                demand = demand.permit(&self.window);
            }
        }
        demand
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    async fn step(&mut self, draw: &mut Draw) {
        let at = draw.between(0..=LINES as u64 - 1) as usize;
        match draw.between(0..=11) {
            0..=4 => {
                let demand = self.demand(draw);
                let mut admit = self.lines[at].admission.admit(demand.clone());
                if draw.one_in(6) {
                    admit = admit.within(millis(draw.between(0..=2_000)));
                }
                let mut admit = tokio_test::task::spawn(admit);
                match admit.poll() {
                    Poll::Pending => self.lines[at].waiting.push(Waiting { demand, admit }),
                    Poll::Ready(outcome) => self.ended(outcome),
                }
            }
            5..=7 if !self.grants.is_empty() => self.settle_one(draw),
            8 => {
                let waiting = &mut self.lines[at].waiting;
                if !waiting.is_empty() {
                    let left = draw.between(0..=waiting.len() as u64 - 1) as usize;
                    drop(waiting.remove(left));
                    self.saw("left");
                }
            }
            9 => self.change(draw),
            10 if draw.one_in(12) => {
                self.lines[at].admission.stop();
                settle().await;
                for mut stopped in std::mem::take(&mut self.lines[at].waiting) {
                    assert!(landed(&mut stopped.admit).is_err());
                }
                self.lines[at].admission = started();
                self.saw("stopped");
            }
            _ => tokio::time::advance(millis(draw.between(1..=1_500))).await,
        }
    }

    fn ended(&mut self, outcome: Result<Grant, AdmitError>) {
        match outcome {
            Ok(grant) => {
                self.grants.push(grant);
                self.saw("granted");
            }
            Err(AdmitError::TimedOut { .. }) => self.saw("timed out"),
            Err(AdmitError::Refused { .. }) => self.saw("refused"),
            Err(error) => panic!("{error}"),
        }
    }

    /// What a job does with its grant; mostly it ends it.
    fn settle_one(&mut self, draw: &mut Draw) {
        let at = draw.between(0..=self.grants.len() as u64 - 1) as usize;
        let (grant, gates) = (&self.grants[at], &self.gates);
        match draw.between(0..=12) {
            0 => drop(grant.release_one(&gates[0])),
            1..=3 => drop(grant.reconcile(&self.bucket, draw.between(0..=30))),
            4 => drop(grant.report_success_all()),
            5 => {
                let failure = UpstreamFailure::status(429, "window", "slow down");
                let wait = millis(draw.between(0..=4_000));
                grant.report_failure_all(&failure.with_retry_after(wait));
            }
            6 | 7 => drop(self.grants.swap_remove(at).rollback()),
            _ => drop(self.grants.swap_remove(at)),
        }
    }

    fn change(&self, draw: &mut Draw) {
        match draw.between(0..=3) {
            0 => self.gates[0].resize(draw.between(1..=3) as u32).unwrap(),
            1 => self.gates[1].resize(draw.between(1..=3) as u32).unwrap(),
            2 => {
                let limits = (draw.between(20..=200) as u32, draw.between(20..=100));
                self.bucket.set_limits(Limits::per_minute(limits.0, limits.1)).unwrap();
            }
            _ => self.bucket.record_429(),
        }
    }

    /// Those who were granted or refused leave their lines; equals in order of arrival.
    fn collect(&mut self) {
        for at in 0..LINES {
            let waiting = std::mem::take(&mut self.lines[at].waiting);
            let mut passed_over: Vec<Demand> = Vec::new();
            for mut one in waiting {
                match one.admit.poll() {
                    Poll::Pending => {
                        passed_over.push(one.demand.clone());
                        self.lines[at].waiting.push(one);
                    }
                    Poll::Ready(outcome) => {
                        let was_granted = outcome.is_ok();
                        let overtook = passed_over.iter().any(|other| same(other, &one.demand));
                        assert!(!was_granted || !overtook, "an equal that came first waits");
                        self.ended(outcome);
                    }
                }
            }
        }
    }

    /// At rest nobody waits who fits: not the head, and nobody else beside what the head wants.
    fn check(&self) {
        let now = Instant::now();
        for Line { admission, waiting } in &self.lines {
            admission.check();
            let Some(head) = waiting.first() else { continue };
            for (place, one) in waiting.iter().enumerate() {
                let fits = one.demand.entries().iter().all(|entry| {
                    let account = entry.account();
                    let ahead = match place {
                        0 => Amount::NONE,
                        _ => amount_on(&head.demand, entry),
                    };
                    let ask = Ask::new(u64::MAX, entry.amount(), now).behind(ahead);
                    account.fits(&ask).unwrap_or(true)
                });
                assert!(!fits, "the one in place {place} fits and waits: {:?}", one.demand);
            }
        }
        for gate in &self.gates {
            let held = self.grants.iter().filter_map(|grant| grant.charge(gate));
            let held: u64 = held.map(|charge| u64::from(charge.amount.requests)).sum();
            assert_eq!(gate.in_use(now), held, "{}", gate.summary(now));
        }
    }
}

fn amount_on(demand: &Demand, of: &Entry) -> Amount {
    let id = of.account().link().id();
    let entry = demand.entries().iter().find(|entry| entry.account().link().id() == id);
    entry.map_or(Amount::NONE, Entry::amount)
}

fn same(one: &Demand, other: &Demand) -> bool {
    let amounts = |demand: &Demand| -> Vec<_> {
        demand.entries().iter().map(|entry| (entry.account().link().id(), entry.amount())).collect()
    };
    amounts(one) == amounts(other)
}

#[test]
fn three_lines_over_the_same_limits_each_keep_their_rules() {
    let seeds = std::env::var("ADMIT_CROSSED_SEEDS");
    let seeds = seeds.map_or(SEEDS, |text| text.parse().expect("a number"));
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 0..seeds {
        let runtime =
            Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let caught = std::panic::catch_unwind(|| {
            runtime.block_on(tokio::task::unconstrained(async {
                let mut draw = Draw::new(seed);
                let mut world = World::new(&mut draw);
                for _ in 0..STEPS {
                    world.step(&mut draw).await;
                    settle().await;
                    world.collect();
                    world.check();
                }
                world.seen
            }))
        });
        let Ok(of_seed) = caught else { panic!("with seed {seed}") };
        for (what, times) in of_seed {
            *seen.entry(what).or_default() += times;
        }
    }
    for what in ["granted", "left", "timed out", "refused", "stopped"] {
        assert!(seen.get(what).is_some_and(|times| *times > 5), "{what}: {seen:?}");
    }
}
