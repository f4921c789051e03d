//! What a waiter costs in memory.
//!
//! 100,000 futures are made, then polled once each so that they wait. What the heap grows by in the
//! polls is what the monitor keeps for them: their place in the line, their part of the index, what
//! they were found short of, their waker. The future itself is a part of the task that awaits it and
//! was there before; its size is noted, as is a semaphore's, whose place in line is inside its
//! future.
//!
//! - `waiter_bytes`: bytes a waiter, of jobs with one demand on three gates that are all held, which
//!   is the most: every account a job was found short of is remembered.
//!
//! Noted beside it: the same with only one of the gates held; jobs whose demands all differ, a permit
//! to a million of one gate (a demand is on the heap too, but was before the poll); and how often a
//! job that goes at once allocates.

mod measure;
mod peers;

use admit::{Admit, Demand, Grant};
use allocation_counter::measure as counted;
use measure::{Plan, Random, figure, note, one_thread, park};
use peers::{Ours, demand_of, gate, started};
use tokio::sync::Semaphore;

fn main() {
    let plan = Plan::from_env();
    let count = plan.pick(100_000, 1_000);
    let runtime = one_thread();
    let _inside = runtime.enter();

    let at_once = Ours { admission: started(), demand: demand_of(3, 1) };
    runtime.block_on(async { drop(at_once.take().await) });
    let calls = 1_000;
    let inline = counted(|| {
        runtime.block_on(async {
            for _ in 0..calls {
                drop(at_once.take().await);
            }
        });
    });
    note("inline_allocations_a_job", inline.count_total as f64 / f64::from(calls));

    let (admission, gate) = (started(), gate(1_000_000));
    let all = admission.try_admit(Demand::new().permits(&gate, 1_000_000)).expect("all are free");
    let mut random = Random(13);
    let mut different: Vec<Admit> = (0..count)
        .map(|_| admission.admit(Demand::new().permits(&gate, random.up_to(1_000_000) as u32)))
        .collect();
    note("waiter_bytes_all_different", parked(&mut different) / count as f64);

    let one_short = waiting(count, 1);
    note("waiter_bytes_one_short_of_three", one_short);
    let bytes = waiting(count, 3);

    let semaphore = Semaphore::new(1);
    note("admit_future_bytes", size_of::<Admit>() as f64);
    note("semaphore_future_bytes", size_of_val(&semaphore.acquire()) as f64);
    note("grant_bytes", size_of::<Grant>() as f64);
    figure("waiter_bytes", bytes);
    drop((different, all));
}

/// Bytes a waiter, of jobs with one demand on three gates of which so many are held.
fn waiting(count: usize, held: usize) -> f64 {
    let admission = started();
    // Those that are not held have room for everybody, the head's reservation included.
    let gates: [_; 3] = std::array::from_fn(|at| gate(if at < held { 1 } else { u32::MAX }));
    let of = |gates: &[_]| gates.iter().fold(Demand::new(), |demand, gate| demand.permit(gate));
    let held = admission.try_admit(of(&gates[..held])).expect("all are free");
    let demand = of(&gates);
    let mut admits: Vec<Admit> = (0..count).map(|_| admission.admit(demand.clone())).collect();
    let bytes = parked(&mut admits) / count as f64;
    drop((admits, held));
    bytes
}

/// What the heap has grown by when they all wait.
fn parked(admits: &mut [Admit]) -> f64 {
    counted(|| admits.iter_mut().for_each(park)).bytes_current as f64
}
