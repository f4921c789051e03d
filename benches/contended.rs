//! Two threads at once.
//!
//! A Tokio runtime of two worker threads and 32 tasks, sixteen a thread. Every task admits and
//! releases a demand of three gates again and again, and lets the others go on after every
//! thirty-second time. Nothing is ever short; what is contended is the locks and the counters. The
//! peer takes three semaphores one after the other. Both borrow what they take, and are without the cooperative budget, of which
//! three semaphores would spend three times as much.
//!
//! - `contended3`: ours over the semaphores', by the time until all tasks are done.
//!
//! Noted beside it: four permits of each for the 32 tasks, every one kept while the others go on, so
//! that most wait; on semaphores a task then holds the first while it waits for the next.

mod measure;
mod peers;

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use measure::{Plan, Side, figure, note, real_nanos_each, rounds};
use peers::{Ours, Semaphores, demand_of, started};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, unconstrained, yield_now};

const TASKS: usize = 32;
/// Jobs of one task before it lets the others go on.
const BURST: usize = 32;
const AMPLE: u32 = 1_000;
const SCARCE: u32 = 4;

fn main() {
    let plan = Plan::from_env();
    let (jobs, few, count) = (plan.pick(256, 32), plan.pick(64, 16), plan.pick(201, 3));
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime of two threads");
    let _inside = runtime.enter();
    let ours = |permits| Ours { admission: started(), demand: demand_of(3, permits) };
    let theirs = |permits: u32| Arc::new(Semaphores::<3>::new(permits as usize));
    let (ample, scarce) = (ours(AMPLE), ours(SCARCE));
    let (their_ample, their_scarce) = (theirs(AMPLE), theirs(SCARCE));

    let sides: Vec<Side<'_>> = vec![
        Box::new(|| {
            all(&runtime, jobs, || {
                let ours = ample.clone();
                async move {
                    for job in 1..=jobs {
                        drop(ours.lend().await);
                        if job % BURST == 0 {
                            yield_now().await;
                        }
                    }
                }
            })
        }),
        Box::new(|| {
            all(&runtime, jobs, || {
                let theirs = Arc::clone(&their_ample);
                async move {
                    for job in 1..=jobs {
                        drop(theirs.take().await);
                        if job % BURST == 0 {
                            yield_now().await;
                        }
                    }
                }
            })
        }),
        Box::new(|| {
            all(&runtime, few, || {
                let ours = scarce.clone();
                async move {
                    for _ in 0..few {
                        let held = ours.lend().await;
                        yield_now().await;
                        drop(held);
                    }
                }
            })
        }),
        Box::new(|| {
            all(&runtime, few, || {
                let theirs = Arc::clone(&their_scarce);
                async move {
                    for _ in 0..few {
                        let held = theirs.take().await;
                        yield_now().await;
                        drop(held);
                    }
                }
            })
        }),
    ];
    let took = rounds(count, sides);
    note("contended3_scarce_ns", took.of(2));
    note("contended3_scarce_semaphores_ns", took.of(3));
    note("contended3_scarce_vs_semaphores", took.ratio(2, 3));
    note("contended3_ns", took.of(0));
    note("contended3_semaphores_ns", took.of(1));
    figure("contended3", took.ratio(0, 1));
}

/// Nanoseconds a job, until all tasks have done theirs.
fn all<F>(runtime: &Runtime, jobs: usize, task: impl Fn() -> F) -> f64
where
    F: Future<Output = ()> + Send + 'static,
{
    runtime.block_on(async {
        let start = Instant::now();
        let mut tasks: JoinSet<()> = (0..TASKS).map(|_| unconstrained(task())).collect();
        while tasks.join_next().await.is_some() {}
        real_nanos_each(start, TASKS * jobs)
    })
}
