//! One give that frees ten thousand.
//!
//! A gate of 10,000 permits is held whole by one grant, and 10,000 tasks wait for one permit each,
//! on a Tokio runtime of one thread. Measured is the time from the drop of that grant until the last
//! of the tasks has its own; every task keeps it until then. The same with a semaphore is noted.
//!
//! - `cascade_10k_ms`: that time in milliseconds.

mod measure;
mod peers;

use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use measure::{Plan, Side, Stopwatch, figure, note, one_thread, rounds};
use peers::{Ours, gate, owned, started};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinSet, yield_now};

fn main() {
    let plan = Plan::from_env();
    let (waiting, count) = (plan.pick(10_000, 100), plan.pick(31, 3));

    let runtime = one_thread();
    let _inside = runtime.enter();
    let admission = started();
    let gate = gate(waiting);
    let one = Ours { admission: admission.clone(), demand: admit::Demand::new().permit(&gate) };
    let all = Ours { admission, demand: admit::Demand::new().permits(&gate, waiting) };
    let semaphore = Arc::new(Semaphore::new(waiting as usize));

    let sides: Vec<Side<'_>> = vec![
        Box::new(|| {
            runtime.block_on(async {
                let held = all.take().await;
                free(waiting, held, || {
                    let one = one.clone();
                    async move { one.take().await }
                })
                .await
            })
        }),
        Box::new(|| {
            runtime.block_on(async {
                let all = Arc::clone(&semaphore).acquire_many_owned(waiting);
                let held = all.await.expect("never closed");
                free(waiting, held, || {
                    let semaphore = Arc::clone(&semaphore);
                    async move { owned(&semaphore).await }
                })
                .await
            })
        }),
    ];
    let took = rounds(count, sides);
    note("cascade_10k_semaphore_ms", took.of(1));
    note("cascade_10k_vs_semaphore", took.ratio(0, 1));
    figure("cascade_10k_ms", took.of(0));
}

/// Milliseconds from the drop of `held` until everybody who waits has what it waits for.
async fn free<H, G, F>(waiting: u32, held: H, take: impl Fn() -> F) -> f64
where
    G: Send + 'static,
    F: Future<Output = G> + Send + 'static,
{
    struct Goal {
        in_line: AtomicUsize,
        got: AtomicUsize,
        reached: Notify,
    }
    let waiting = waiting as usize;
    let (in_line, got) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let goal = Arc::new(Goal { in_line, got, reached: Notify::new() });
    let mut tasks = JoinSet::new();
    for _ in 0..waiting {
        let (goal, mine) = (Arc::clone(&goal), take());
        tasks.spawn(async move {
            goal.in_line.fetch_add(1, Relaxed);
            let mine = mine.await;
            if goal.got.fetch_add(1, Relaxed) + 1 == waiting {
                goal.reached.notify_one();
            }
            pending::<()>().await;
            drop(mine);
        });
    }
    while goal.in_line.load(Relaxed) < waiting {
        yield_now().await;
    }
    for _ in 0..4 {
        yield_now().await;
    }
    assert_eq!(goal.got.load(Relaxed), 0, "they all wait");
    let watch = Stopwatch::start();
    drop(held);
    goal.reached.notified().await;
    let took = watch.nanos_each(1);
    tasks.shutdown().await;
    took / 1e6
}
