//! Many who want different amounts, while refills arrive.
//!
//! N tasks wait on one token bucket, each for a random amount of 1 to 1,000,000 tokens, so that
//! nearly every demand is a class of its own. The clock is Tokio's paused one: it moves when nothing
//! else can be done, to the next instant the evaluator asked to be woken at, so refills arrive as
//! fast as the thread can serve them. A round lasts for some hundreds of grants and is measured on
//! the processor's clock; as many new tasks join between the rounds, unmeasured.
//!
//! Four lines are measured, each with 10,000, 100,000 and 1,000,000 waiters at once on runtimes of
//! their own, taken in turn: the head of the line short of tokens too (it is one of those who
//! wait), or short elsewhere (of a gate's permit nobody returns, with a million tokens set aside for
//! it); and a bucket that refills about one grant's amount in a millisecond, which is the least a
//! Tokio timer can wait, or about thirty-two.
//!
//! - `mixed_flat`: the cost of a grant with the most waiters over that with the fewest, where that is
//!   worst.

mod measure;
mod peers;

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use admit::{Admission, Amount, Demand, Grant, Limits, TokenBucket};
use measure::{Plan, Random, Side, Stopwatch, figure, note, paused, rounds};
use peers::{gate, started};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::yield_now;

/// The largest amount a job asks for.
const MOST: u64 = 1_000_000;

fn main() {
    let plan = Plan::from_env();
    let sizes: &[usize] = plan.pick(&[10_000, 100_000, 1_000_000], &[100, 200]);
    let (count, grants) = (plan.pick(21, 3), plan.pick(256, 16));
    let mut worst = f64::MIN;
    for (head, is_elsewhere) in [("short_of_tokens", false), ("short_elsewhere", true)] {
        for a_millisecond in [1, 32] {
            let asked: Vec<Rc<Cell<f64>>> = sizes.iter().map(|_| Rc::default()).collect();
            let sides = sizes.iter().zip(&asked).map(|(&size, asked)| {
                let mut line = Line::new(a_millisecond, is_elsewhere, Rc::clone(asked));
                line.gather(size);
                Box::new(move || line.round(grants)) as Side<'_>
            });
            let took = rounds(count, sides.collect());
            for (at, size) in sizes.iter().enumerate() {
                let name = format!("mixed_{size}_head_{head}_{a_millisecond}_a_refill");
                note(&format!("{name}_ns"), took.of(at));
                note(&format!("{name}_questions_a_grant"), asked[at].get());
            }
            let flat = took.ratio(sizes.len() - 1, 0);
            note(&format!("mixed_flat_head_{head}_{a_millisecond}_a_refill"), flat);
            worst = worst.max(flat);
        }
    }
    figure("mixed_flat", worst);
}

/// A line of jobs with random demands, on a runtime and a clock of its own.
struct Line {
    runtime: Runtime,
    admission: Admission,
    bucket: Arc<TokenBucket>,
    random: Random,
    goal: Arc<Goal>,
    came: usize,
    asked: Rc<Cell<f64>>,
    _held: Option<Grant>,
}

struct Goal {
    in_line: AtomicUsize,
    granted: AtomicUsize,
    /// How many must have been granted for the round to end.
    target: AtomicUsize,
    reached: Notify,
}

impl Line {
    fn new(grants_a_millisecond: u64, is_head_elsewhere: bool, asked: Rc<Cell<f64>>) -> Self {
        let runtime = paused();
        let _inside = runtime.enter();
        let admission = started();
        let tokens = grants_a_millisecond * MOST / 2 * 60_000;
        let limits = Limits::per_minute(u32::MAX, tokens);
        let bucket = TokenBucket::new("bucket", limits).expect("positive limits");
        // A bucket starts full, and a paused clock adds nothing until somebody waits.
        let whole = Demand::new().add(&bucket, Amount { requests: 1, units: tokens });
        drop(admission.try_admit(whole).expect("it starts full"));
        let gate = gate(1);
        let held = is_head_elsewhere.then(|| {
            let held = admission.try_admit(Demand::new().permit(&gate)).expect("nobody holds it");
            let head = admission.admit(Demand::new().permit(&gate).tokens(&bucket, MOST));
            runtime.spawn(head);
            runtime.block_on(async {
                while admission.queue_len() == 0 {
                    yield_now().await;
                }
            });
            held
        });
        let goal = Goal {
            in_line: AtomicUsize::new(0),
            granted: AtomicUsize::new(0),
            target: AtomicUsize::new(usize::MAX),
            reached: Notify::new(),
        };
        let random = Random(7);
        drop(_inside);
        Self {
            runtime,
            admission,
            bucket,
            random,
            goal: Arc::new(goal),
            came: 0,
            asked,
            _held: held,
        }
    }

    /// So many more join.
    fn gather(&mut self, count: usize) {
        for _ in 0..count {
            let demand = Demand::new().tokens(&self.bucket, self.random.up_to(MOST));
            let (admit, goal) = (self.admission.admit(demand), Arc::clone(&self.goal));
            self.runtime.spawn(async move {
                goal.in_line.fetch_add(1, Relaxed);
                let grant = admit.await.expect("it is granted at some time");
                let granted = goal.granted.fetch_add(1, Relaxed) + 1;
                if granted == goal.target.load(Relaxed) {
                    goal.reached.notify_one();
                }
                drop(grant);
                pending::<()>().await;
            });
        }
        self.came += count;
        self.runtime.block_on(async {
            while self.goal.in_line.load(Relaxed) < self.came {
                yield_now().await;
            }
            for _ in 0..4 {
                yield_now().await;
            }
        });
    }

    /// Nanoseconds a grant, over at least so many.
    fn round(&mut self, grants: usize) -> f64 {
        let before = self.goal.granted.load(Relaxed);
        self.goal.target.store(before + grants, Relaxed);
        let (work, watch) = (self.admission.counters(), Stopwatch::start());
        self.runtime.block_on(self.goal.reached.notified());
        let granted = self.goal.granted.load(Relaxed) - before;
        let took = watch.nanos_each(granted);
        let asked = self.admission.counters().asked - work.asked;
        self.asked.set(asked as f64 / granted as f64);
        self.gather(granted);
        took
    }
}
