//! From a release to the next grant, however many wait.
//!
//! N tasks wait for the one permit of a gate, all with equal demands, beside N tasks that wait for
//! the one permit of a semaphore (an owned one, as a task needs), on one Tokio runtime of one
//! thread. A round releases the permit and lets it go from task to task some hundreds of times: the
//! next task is woken, polled, has its grant, and drops it. What is measured is the time a hand-off,
//! so all of it: the release, the decision, the evaluator's turn where it takes one, the wake, the
//! scheduler, and the future resolving. Who was served stays behind as an idle task and costs
//! nothing; as many new tasks join the line between the rounds, unmeasured, so N stays.
//!
//! All depths stand at once and are measured in turn in every round.
//!
//! - `depth_vs_semaphore`: ours over the semaphore's at the depth where that is worst.
//! - `depth_flat`: ours at the greatest depth over ours at the least. Tasks of a million lie in main
//!   memory and those of a thousand in cache; the semaphore's own ratio is noted beside it.

mod measure;
mod peers;

use std::future::{Future, pending};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use admit::Grant;
use measure::{Plan, Side, Stopwatch, figure, note, one_thread, rounds};
use peers::{Ours, demand_of, owned, started};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;

fn main() {
    let plan = Plan::from_env();
    let depths: &[usize] = plan.pick(&[1_000, 10_000, 100_000, 1_000_000], &[100, 200]);
    let (count, hops) = (plan.pick(101, 3), plan.pick(200, 20));

    let runtime = one_thread();
    let _inside = runtime.enter();
    let mut sides: Vec<Side<'_>> = Vec::new();
    for &depth in depths {
        let ours = Ours { admission: started(), demand: demand_of(1, 1) };
        sides.push(Crowd::side(&runtime, ours, depth, hops));
        sides.push(Crowd::side(&runtime, Arc::new(Semaphore::new(1)), depth, hops));
    }
    let took = rounds(count, sides);

    let mut worst = f64::MIN;
    for (at, depth) in depths.iter().enumerate() {
        let (ours, theirs) = (2 * at, 2 * at + 1);
        note(&format!("depth_{depth}_ns"), took.of(ours));
        note(&format!("depth_{depth}_semaphore_ns"), took.of(theirs));
        note(&format!("depth_{depth}_vs_semaphore"), took.ratio(ours, theirs));
        worst = worst.max(took.ratio(ours, theirs));
    }
    let deepest = 2 * (depths.len() - 1);
    note("depth_flat_of_the_semaphore", took.ratio(deepest + 1, 1));
    figure("depth_vs_semaphore", worst);
    figure("depth_flat", took.ratio(deepest, 0));
}

/// Something of which there is one, for a task to wait for.
trait Single: Clone + Send + Sync + 'static {
    type Held: Send + 'static;

    fn take(&self) -> impl Future<Output = Self::Held> + Send;
}

impl Single for Ours {
    type Held = Grant;

    fn take(&self) -> impl Future<Output = Grant> + Send {
        Self::take(self)
    }
}

impl Single for Arc<Semaphore> {
    type Held = OwnedSemaphorePermit;

    fn take(&self) -> impl Future<Output = OwnedSemaphorePermit> + Send {
        owned(self)
    }
}

/// Tasks in line for the same thing.
struct Crowd<S: Single> {
    single: S,
    goal: Arc<Goal<S::Held>>,
    came: usize,
}

struct Goal<H> {
    in_line: AtomicUsize,
    /// Hand-offs still to come in this round.
    left: AtomicUsize,
    /// With the last of the round, until the next begins.
    held: Mutex<Option<H>>,
    reached: Notify,
}

impl<S: Single> Crowd<S> {
    fn new(single: S) -> Self {
        let goal = Goal {
            in_line: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            held: Mutex::new(None),
            reached: Notify::new(),
        };
        Self { single, goal: Arc::new(goal), came: 0 }
    }

    /// Rounds of so many hand-offs with so many in line.
    fn side(runtime: &Runtime, single: S, depth: usize, hops: usize) -> Side<'_> {
        let mut crowd = Self::new(single);
        runtime.block_on(crowd.gather(depth));
        Box::new(move || runtime.block_on(crowd.round(hops)))
    }

    /// So many more join the line.
    async fn gather(&mut self, count: usize) {
        if self.came == 0 {
            *self.goal.held.lock().expect("whole") = Some(self.single.take().await);
        }
        for _ in 0..count {
            let (single, goal) = (self.single.clone(), Arc::clone(&self.goal));
            tokio::spawn(async move {
                goal.in_line.fetch_add(1, Relaxed);
                let held = single.take().await;
                if goal.left.fetch_sub(1, Relaxed) == 1 {
                    *goal.held.lock().expect("whole") = Some(held);
                    goal.reached.notify_one();
                } else {
                    drop(held);
                }
                pending::<()>().await;
            });
        }
        self.came += count;
        while self.goal.in_line.load(Relaxed) < self.came {
            yield_now().await;
        }
        // The evaluator may have something to do with those who came.
        for _ in 0..4 {
            yield_now().await;
        }
    }

    /// Nanoseconds a hand-off, over so many.
    async fn round(&mut self, hops: usize) -> f64 {
        self.goal.left.store(hops, Relaxed);
        let held = self.goal.held.lock().expect("whole").take();
        let watch = Stopwatch::start();
        drop(held);
        self.goal.reached.notified().await;
        let took = watch.nanos_each(hops);
        self.gather(hops).await;
        took
    }
}
