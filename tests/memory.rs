//! Random readings of memory and random completions, under one admission.
//!
//! Memory's valve is wrapped in a witness that keeps what it was told, in order: every release is
//! held against the latch, and within a drain against the completions and the delay before it.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use admit::testing::ScriptedMemory;
use admit::{
    AccountLink, Admission, Admit, Amount, CountingGate, Demand, ElasticWindow, Grant, Limits,
    MemoryGate, MemoryZone, TokenBucket, TryAdmitError, Turn, Valve,
};
use proptest::prelude::*;
use tokio::time::Instant;
use tokio_test::task::{Spawn, spawn};

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What the witness knows.
#[derive(Debug, Default)]
struct Seen {
    /// How the line stood when it was last asked about.
    turn: Turn,
    /// A completion that was told while memory was not critical, since the last release.
    completed: bool,
    last_release: Option<Instant>,
    released: u64,
    ended: u64,
    /// Releases in a drain.
    drained: u64,
    /// What must never be.
    faults: Vec<String>,
}

/// A memory gate with a witness beside it.
struct Witness {
    gate: Arc<MemoryGate>,
    /// Whoever waits, waits on memory alone.
    is_alone: bool,
    seen: Mutex<Seen>,
}

impl Witness {
    fn of(gate: &Arc<MemoryGate>, is_alone: bool) -> Arc<Self> {
        Arc::new(Self { gate: Arc::clone(gate), is_alone, seen: Mutex::default() })
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Valve for Witness {
    fn link(&self) -> &AccountLink {
        self.gate.link()
    }

    fn look(&self, now: Instant) {
        self.gate.look(now);
    }

    fn willing(&self, turn: Turn, now: Instant) -> bool {
        self.seen().turn = turn;
        self.gate.willing(turn, now)
    }

    fn released(&self, now: Instant) {
        // Before the release is told, which may change the pace.
        let status = self.gate.status();
        let mut seen = self.seen();
        if status.zone == MemoryZone::Critical {
            seen.faults.push(format!("released under the latch: {status}"));
        }
        if self.is_alone && status.held > 0 && !seen.turn.draining {
            seen.faults.push(format!("a line on memory does not drain: {status}"));
        }
        if seen.turn.draining {
            seen.drained += 1;
            let is_due = seen.last_release.is_none_or(|last| last + status.pacing <= now);
            if !seen.completed && !is_due {
                let last = seen.last_release;
                seen.faults.push(format!("two releases, {last:?} and {now:?}: {status}"));
            }
        }
        seen.completed = false;
        seen.last_release = seen.last_release.max(Some(now));
        seen.released += 1;
        drop(seen);
        self.gate.released(now);
    }

    fn completed(&self, now: Instant) -> bool {
        let earns = self.gate.completed(now);
        let mut seen = self.seen();
        seen.completed |= self.gate.status().zone != MemoryZone::Critical;
        seen.ended += 1;
        drop(seen);
        earns
    }

    fn rolled_back(&self, now: Instant) {
        self.gate.rolled_back(now);
        self.seen().ended += 1;
    }

    fn earliest(&self, turn: Turn, now: Instant) -> Option<Instant> {
        self.gate.earliest(turn, now)
    }

    fn capacity(&self) -> u64 {
        self.gate.capacity()
    }

    fn in_use(&self) -> u64 {
        self.gate.in_use()
    }

    fn indicator(&self, now: Instant) -> Option<String> {
        self.gate.indicator(now)
    }

    fn summary(&self, now: Instant) -> String {
        self.gate.summary(now)
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Tenths of a percent in use.
    Reads(u64),
    /// The source fails; the last reading stands.
    Fails,
    /// A job of this kind.
    Arrives(usize),
    /// One that does not wait.
    Tries(usize),
    /// The running job of that place ends, or never was.
    Ends(usize),
    RollsBack(usize),
    /// The waiter of that place gives up, seen or unseen.
    GivesUp(usize),
    Waits(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let percent = prop_oneof![
        3 => 940..=1_000_u64,
        2 => 880..=940_u64,
        3 => 800..=900_u64,
        1 => 0..=800_u64,
        1 => Just(950_u64),
        1 => Just(900_u64),
    ];
    prop_oneof![
        4 => percent.prop_map(Step::Reads),
        1 => Just(Step::Fails),
        8 => (0..8_usize).prop_map(Step::Arrives),
        2 => (0..8_usize).prop_map(Step::Tries),
        6 => (0..20_usize).prop_map(Step::Ends),
        1 => (0..20_usize).prop_map(Step::RollsBack),
        1 => (0..20_usize).prop_map(Step::GivesUp),
        4 => (0..=60_u64).prop_map(|n| Step::Waits(n * 50)),
        2 => (0..=40_u64).prop_map(|n| Step::Waits(n * 1_000)),
    ]
}

/// What the jobs want: on memory alone, or on other limits too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum World {
    /// Every job has room everywhere but in memory.
    Roomy,
    Narrow,
}

struct Waiting {
    admit: Spawn<Admit>,
    kind: usize,
    arrived: u64,
}

struct Drive {
    world: World,
    memory: Arc<ScriptedMemory>,
    witness: Arc<Witness>,
    admission: Admission,
    gates: Vec<Arc<CountingGate>>,
    demands: Vec<Demand>,
    line: Vec<Waiting>,
    running: Vec<Grant>,
    arrivals: u64,
}

impl Drive {
    fn new(world: World) -> Self {
        let memory = ScriptedMemory::at_percent(50.0);
        let gate = MemoryGate::builder().source(memory.clone()).reading_age(Duration::ZERO);
        let witness = Witness::of(&gate.build().unwrap(), world == World::Roomy);
        let admission = Admission::builder().memory_gate(witness.clone()).start().unwrap();
        let scale = if world == World::Roomy { 10_000 } else { 1 };
        let gates: Vec<_> = [1, 2, 5]
            .map(|n| CountingGate::new(format!("gate {n}"), n * scale).unwrap())
            .into_iter()
            .collect();
        let limits = Limits::per_minute(60 * scale, 6_000 * u64::from(scale));
        let bucket = TokenBucket::new("bucket", limits).unwrap();
        let window = ElasticWindow::builder("window").max(3 * scale).build().unwrap();
        let demands = vec![
            Demand::new().permit(&gates[0]),
            Demand::new().permits(&gates[1], 2),
            Demand::new().permit(&gates[0]).permit(&gates[1]),
            Demand::new().permits(&gates[2], 3),
            Demand::new().permit(&gates[2]).tokens(&bucket, 700),
            Demand::new().permits(&window, 2),
            Demand::new().permit(&window).permit(&gates[1]),
            Demand::new().add(&gates[0], Amount::NONE),
        ];
        Self {
            world,
            memory,
            witness,
            admission,
            gates,
            demands,
            line: Vec::new(),
            running: Vec::new(),
            arrivals: 0,
        }
    }

    async fn step(&mut self, step: &Step) {
        match *step {
            Step::Reads(tenths) => self.memory.set(tenths, 1_000),
            Step::Fails => self.memory.fail(),
            Step::Arrives(kind) => self.arrives(kind),
            Step::Tries(kind) => match self.admission.try_admit(self.demands[kind].clone()) {
                Ok(grant) => self.running.push(grant),
                Err(TryAdmitError::WouldWait { shortages }) => assert!(!shortages.is_empty()),
                Err(error) => panic!("{error}"),
            },
            Step::Ends(at) if at < self.running.len() => drop(self.running.remove(at)),
            Step::RollsBack(at) if at < self.running.len() => {
                assert!(self.running.remove(at).rollback());
            }
            Step::GivesUp(at) if at < self.line.len() => drop(self.line.remove(at)),
            Step::Waits(span) => tokio::time::sleep(millis(span)).await,
            Step::Ends(_) | Step::RollsBack(_) | Step::GivesUp(_) => {}
        }
        self.rest().await;
    }

    fn arrives(&mut self, kind: usize) {
        let mut admit = spawn(self.admission.admit(self.demands[kind].clone()));
        self.arrivals += 1;
        match admit.poll() {
            Poll::Ready(outcome) => {
                // Nobody ahead waited on memory alone: else the newcomer overtook them.
                assert!(self.world == World::Narrow || !self.waits(), "it overtook the line");
                self.running.push(outcome.unwrap());
            }
            Poll::Pending => self.line.push(Waiting { admit, kind, arrived: self.arrivals }),
        }
    }

    /// Whether anybody waits who was not granted yet.
    fn waits(&self) -> bool {
        self.line.iter().any(|waiting| !waiting.admit.is_woken())
    }

    /// Lets everything happen that is due, collects who was granted, and looks at what must hold.
    async fn rest(&mut self) {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        self.admission.check();
        let woken: Vec<bool> = self.line.iter().map(|one| one.admit.is_woken()).collect();
        for (place, one) in self.line.iter().enumerate().filter(|(place, _)| woken[*place]) {
            // In its order: among equals always, among all who wait on memory alone too.
            let overtaken = self.line[..place].iter().zip(&woken).find(|(earlier, woken)| {
                !**woken && (self.world == World::Roomy || earlier.kind == one.kind)
            });
            if let Some((earlier, _)) = overtaken {
                panic!("arrival {} went before {}", one.arrived, earlier.arrived);
            }
        }
        for mut one in std::mem::take(&mut self.line) {
            if !one.admit.is_woken() {
                self.line.push(one);
                continue;
            }
            match one.admit.poll() {
                Poll::Ready(outcome) => self.running.push(outcome.expect("it is granted")),
                Poll::Pending => panic!("it was woken for nothing"),
            }
        }
        assert_eq!(self.admission.queue_len(), self.line.len());
        let seen = self.witness.seen();
        assert!(seen.faults.is_empty(), "{:#?}", seen.faults);
        assert_eq!(seen.released - seen.ended, self.running.len() as u64, "what is in flight");
        drop(seen);
        for gate in &self.gates {
            let status = gate.status();
            assert!(status.active <= status.max_concurrent, "{status:?}");
        }
    }

    /// Memory relaxes, and the jobs end as they are granted: everybody goes.
    async fn end(mut self) -> u64 {
        self.memory.set_percent(30.0);
        let mut turns = 0;
        while !self.line.is_empty() {
            self.running.clear();
            tokio::time::sleep(millis(500)).await;
            self.rest().await;
            turns += 1;
            assert!(turns < 2_000, "{} wait for ever", self.line.len());
        }
        self.running.clear();
        let drained = tokio::time::timeout(millis(1), self.admission.drained()).await;
        assert!(drained.is_ok(), "nobody waits and nothing is held");
        let snapshot = self.admission.snapshot();
        assert_eq!((snapshot.waiting, snapshot.held, snapshot.unseen.count), (0, 0, 0));
        for gate in &self.gates {
            let status = gate.status();
            assert_eq!((status.active, status.available_permits), (0, status.max_concurrent));
        }
        assert_eq!(self.witness.gate.status().held, 0);
        // The drain is over too: at once, as many as like.
        drop(self.admission.try_admit(self.demands[0].clone()).unwrap());
        drop(self.admission.try_admit(self.demands[3].clone()).unwrap());
        self.admission.check();
        self.witness.seen().drained
    }
}

/// Runs one history on a paused clock of its own; answers the releases in a drain.
fn drive(world: World, steps: &[Step]) -> u64 {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
        let mut drive = Drive::new(world);
        for step in steps {
            drive.step(step).await;
        }
        drive.end().await
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn whoever_waits_on_memory_goes_in_order_one_at_a_time_and_in_the_end(
        steps in prop::collection::vec(step(), 1..100),
    ) {
        drive(World::Roomy, &steps);
    }

    #[test]
    fn whoever_waits_on_memory_and_on_other_limits_goes_in_the_end(
        steps in prop::collection::vec(step(), 1..100),
    ) {
        drive(World::Narrow, &steps);
    }
}

/// So that the property above says something: lines do drain in it.
#[test]
fn a_long_line_drains_one_at_a_time() {
    let mut steps = vec![Step::Reads(970)];
    steps.extend((0..40).map(|kind| Step::Arrives(kind % 8)));
    steps.extend([Step::Reads(850), Step::Waits(2_000)]);
    steps.extend((0..30).flat_map(|_| [Step::Ends(0), Step::Waits(50)]));
    for world in [World::Roomy, World::Narrow] {
        assert!(drive(world, &steps) >= 20);
    }
}
