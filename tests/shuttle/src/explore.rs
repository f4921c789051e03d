//! Runs a scene under many schedules.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};
use tokio::runtime::Runtime;

/// How many schedules of each kind, unless `ADMIT_SHUTTLE_ITERATIONS` says otherwise.
const ITERATIONS: usize = 5_000;
/// How many unlikely steps in a row the priorities look for.
const DEPTH: usize = 3;
/// Debug builds need more than shuttle's default.
const STACK: usize = 256 * 1024;

/// A clock that stands still until it is moved, and fires what is due then.
#[derive(Clone)]
pub(crate) struct Clock(Arc<Runtime>);

impl Clock {
    pub(crate) fn advance(&self, by: Duration) {
        self.0.block_on(tokio::time::advance(by));
    }
}

/// Runs a scene under random schedules, and under random priorities.
pub(crate) fn explore(scene: impl Fn() + Send + Sync + 'static) {
    explore_in_time(move |_| scene());
}

/// The same with a clock for the scene to move.
pub(crate) fn explore_in_time(scene: impl Fn(&Clock) + Send + Sync + 'static) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("nothing is in its way");
    let clock = Clock(Arc::new(runtime));
    // Shuttle runs everything on this thread, so everything finds this clock.
    let _inside = clock.0.enter();
    let scene = Arc::new(scene);
    let asked = std::env::var("ADMIT_SHUTTLE_ITERATIONS").ok();
    let asked = asked.map(|asked| asked.parse().expect("ADMIT_SHUTTLE_ITERATIONS is a number"));
    match asked {
        None => {
            run(RandomScheduler::new_from_seed(1, ITERATIONS), &clock, &scene);
            run(PctScheduler::new_from_seed(1, DEPTH, ITERATIONS), &clock, &scene);
        }
        Some(iterations) => {
            run(RandomScheduler::new(iterations), &clock, &scene);
            run(PctScheduler::new(DEPTH, iterations), &clock, &scene);
        }
    }
}

fn run(
    scheduler: impl Scheduler + 'static,
    clock: &Clock,
    scene: &Arc<impl Fn(&Clock) + Send + Sync + 'static>,
) {
    let mut config = Config::new();
    config.stack_size = STACK;
    // That orderings are taken for stronger ones is said in the crate's doc.
    config.silence_warnings = true;
    let (clock, scene) = (clock.clone(), Arc::clone(scene));
    Runner::new(scheduler, config).run(move || scene(&clock));
}

/// How often a scene ended which way, over all schedules: a race that only ever ends one way is none.
#[derive(Clone, Default)]
pub(crate) struct Ways(Arc<[AtomicUsize; 2]>);

impl Ways {
    pub(crate) fn went(&self, this_way: bool) {
        self.0[usize::from(this_way)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn were_both_gone(&self) {
        let [one, other] = &*self.0;
        let (one, other) = (one.load(Ordering::Relaxed), other.load(Ordering::Relaxed));
        assert!(one > 0 && other > 0, "{one} times this way, {other} times the other");
    }
}
