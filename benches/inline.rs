//! Jobs that go at once: one thread, nobody waits, everything fits.
//!
//! One call is one whole job: a demand is admitted, awaited, and its grant dropped. The peers' permits
//! are taken one after the other, awaited, and dropped. Both borrow, which is the cheaper way of each
//! (`admit_ref`, `Semaphore::acquire`); ours with a copy of the demand and an owned grant (`admit`) is
//! noted beside it, over the same peer. Both run as the main future of a Tokio runtime of one thread,
//! without the cooperative budget.
//!
//! - `inline3`: three gates over three semaphores.
//! - `inline1`: one gate over one semaphore.
//! - `inline_metered`: one token of a bucket and two gates over governor's `until_ready` and two
//!   semaphores. Neither bucket nor governor is ever short.
//! - `inline_memory`: three gates with the memory gate on (its default source and reading age) over
//!   the same with it off.

mod measure;
mod peers;

use admit::{Admission, MemoryGate};
use measure::{Plan, Rounds, Side, figure, in_a_row, note, one_thread, rounds};
use peers::{Ours, Semaphores, ample_bucket, demand_of, limiter, started};
use tokio::runtime::Runtime;

/// No gate here is ever full.
const AMPLE: u32 = 1_000;

fn main() {
    let plan = Plan::from_env();
    let runtime = one_thread();
    let _inside = runtime.enter();
    let bench = Bench { runtime: &runtime, calls: plan.pick(2_000, 50), count: plan.pick(501, 3) };

    let one = Semaphores::<1>::new(AMPLE as usize);
    let took = bench.compare(started(), demand_of(1, AMPLE), async || drop(one.take().await));
    tell("inline1", "semaphore", &took);

    let three = Semaphores::<3>::new(AMPLE as usize);
    let took = bench.compare(started(), demand_of(3, AMPLE), async || drop(three.take().await));
    tell("inline3", "semaphores", &took);

    let two = Semaphores::<2>::new(AMPLE as usize);
    // Ten nanoseconds a cell: faster than anybody asks, and still a whole number of them.
    let cells = limiter(100_000_000);
    let metered = demand_of(2, AMPLE).tokens(&ample_bucket(), 1);
    let took = bench.compare(started(), metered, async || {
        cells.until_ready().await;
        drop(two.take().await);
    });
    tell("inline_metered", "governor_and_semaphores", &took);

    let memory = MemoryGate::new().expect("the machine's memory");
    let watched = Admission::builder().memory_gate(memory).start().expect("inside a runtime");
    // Of accounts of their own: one that several admissions share has more to do.
    let off = Ours { admission: started(), demand: demand_of(3, AMPLE) };
    let took = bench.compare(watched, demand_of(3, AMPLE), async || drop(off.lend().await));
    tell("inline_memory", "without", &took);
}

struct Bench<'a> {
    runtime: &'a Runtime,
    calls: usize,
    count: usize,
}

impl Bench<'_> {
    fn compare(&self, admission: Admission, demand: admit::Demand, peer: impl AsyncFn()) -> Rounds {
        let ours = Ours { admission, demand };
        let sides: Vec<Side<'_>> = vec![
            Box::new(|| in_a_row(self.runtime, self.calls, async || drop(ours.lend().await))),
            Box::new(|| in_a_row(self.runtime, self.calls, &peer)),
            Box::new(|| in_a_row(self.runtime, self.calls, async || drop(ours.take().await))),
        ];
        rounds(self.count, sides)
    }
}

fn tell(name: &str, peer: &str, took: &Rounds) {
    note(&format!("{name}_ns"), took.of(0));
    note(&format!("{name}_{peer}_ns"), took.of(1));
    note(&format!("{name}_owned_ns"), took.of(2));
    note(&format!("{name}_owned"), took.ratio(2, 1));
    figure(name, took.ratio(0, 1));
}
