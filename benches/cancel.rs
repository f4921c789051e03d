//! Leaving the line, from anywhere in it.
//!
//! N futures are polled once, so that they wait for the one permit of a gate, and are then dropped
//! in random order, the head among them like anybody else. After every thousand the evaluator gets
//! its turn, on the same thread. The futures lie in one block of memory; a random one of a million
//! is not in any cache.
//!
//! - `cancel_us`: microseconds for each of a million.
//! - `cancel_flat`: the same over that of ten thousand.
//!
//! Noted beside it: a semaphore's, and jobs that all want different amounts.

mod measure;
mod peers;

use std::sync::Arc;

use admit::{Admit, Demand};
use measure::{Plan, Random, Side, Stopwatch, figure, note, one_thread, park, rounds};
use peers::{demand_of, gate, started};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::yield_now;

fn main() {
    let plan = Plan::from_env();
    let (few, many) = (plan.pick(10_000, 100), plan.pick(1_000_000, 1_000));
    let count = plan.pick(5, 3);
    let runtime = one_thread();
    let _inside = runtime.enter();

    let sides: Vec<Side<'_>> = vec![
        Box::new(|| drop_all(&runtime, few, alike)),
        Box::new(|| drop_all(&runtime, many, alike)),
        Box::new(|| drop_all(&runtime, few, different)),
        Box::new(|| drop_all(&runtime, many, different)),
        Box::new(|| drop_all(&runtime, few, of_a_semaphore)),
        Box::new(|| drop_all(&runtime, many, of_a_semaphore)),
    ];
    let took = rounds(count, sides);
    note("cancel_few_us", took.of(0));
    note("cancel_different_us", took.of(3));
    note("cancel_different_flat", took.ratio(3, 2));
    note("cancel_semaphore_us", took.of(5));
    note("cancel_semaphore_flat", took.ratio(5, 4));
    figure("cancel_us", took.of(1));
    figure("cancel_flat", took.ratio(1, 0));
}

/// Who waits, and what keeps them waiting.
type Line<F> = (Vec<Option<F>>, Box<dyn std::any::Any>);

/// Jobs with one demand.
fn alike(count: usize) -> Line<Admit> {
    let (admission, demand) = (started(), demand_of(1, 1));
    let held = admission.try_admit(demand.clone()).expect("nobody holds it");
    let admits = (0..count).map(|_| Some(admission.admit(demand.clone())));
    (admits.collect(), Box::new(held))
}

/// Jobs that want from one permit to a million.
fn different(count: usize) -> Line<Admit> {
    const MOST: u32 = 1_000_000;
    let (admission, gate) = (started(), gate(MOST));
    let held = admission.try_admit(Demand::new().permits(&gate, MOST)).expect("nobody holds it");
    let mut random = Random(11);
    let admits = (0..count).map(|_| {
        let permits = random.up_to(u64::from(MOST)) as u32;
        Some(admission.admit(Demand::new().permits(&gate, permits)))
    });
    (admits.collect(), Box::new(held))
}

/// Futures of a semaphore's permit, which must not move.
fn of_a_semaphore(count: usize) -> Line<std::pin::Pin<Box<dyn Future<Output = ()>>>> {
    let semaphore = Arc::new(Semaphore::new(0));
    let waiters = (0..count).map(|_| {
        let semaphore = Arc::clone(&semaphore);
        let wait = async move { drop(semaphore.acquire_owned().await) };
        Some(Box::pin(wait) as std::pin::Pin<Box<dyn Future<Output = ()>>>)
    });
    (waiters.collect(), Box::new(semaphore.clone()))
}

/// Microseconds for each of so many.
fn drop_all<F>(runtime: &Runtime, count: usize, line: fn(usize) -> Line<F>) -> f64
where
    F: Future + Unpin,
{
    let (mut waiters, keeps) = line(count);
    waiters.iter_mut().flatten().for_each(park);
    let order = Random(count as u64).order(count);
    let took = runtime.block_on(async {
        yield_now().await;
        let watch = Stopwatch::start();
        for thousand in order.chunks(1_000) {
            for &at in thousand {
                drop(waiters[at as usize].take());
            }
            yield_now().await;
        }
        watch.nanos_each(count)
    });
    drop(keeps);
    took / 1e3
}
