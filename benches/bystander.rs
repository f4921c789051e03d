//! Jobs that share nothing with those who wait.
//!
//! Two admissions; on the first, 100,000 jobs wait for the one permit of a gate X, which is held. On
//! each, a stream of jobs takes and returns one permit of a gate Y, one after the other, on one
//! thread.
//!
//! - `bystander`: the stream past 100,000 waiters over the stream past nobody.

mod measure;
mod peers;

use measure::{Plan, Side, figure, in_a_row, note, one_thread, park, rounds};
use peers::{Ours, demand_of, started};

fn main() {
    let plan = Plan::from_env();
    let (waiting, calls, count) =
        (plan.pick(100_000, 100), plan.pick(2_000, 50), plan.pick(501, 3));

    let runtime = one_thread();
    let _inside = runtime.enter();
    let crowded = Ours { admission: started(), demand: demand_of(1, 1_000) };
    let alone = Ours { admission: started(), demand: demand_of(1, 1_000) };

    let x = Ours { admission: crowded.admission.clone(), demand: demand_of(1, 1) };
    let held = runtime.block_on(x.take());
    let mut waiters: Vec<_> = (0..waiting).map(|_| x.admission.admit(x.demand.clone())).collect();
    waiters.iter_mut().for_each(park);

    let sides: Vec<Side<'_>> = vec![
        Box::new(|| in_a_row(&runtime, calls, async || drop(crowded.take().await))),
        Box::new(|| in_a_row(&runtime, calls, async || drop(alone.take().await))),
    ];
    let took = rounds(count, sides);
    assert_eq!(crowded.admission.queue_len(), waiting, "they all still wait");
    note("bystander_ns", took.of(0));
    note("bystander_alone_ns", took.of(1));
    figure("bystander", took.ratio(0, 1));
    drop((held, waiters));
}
