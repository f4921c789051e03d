//! What was left behind.

use admit::{Account, MemorySource, ResidentMemory};
use tokio::runtime::Handle;
use tokio::time::{Duration, Instant};

use crate::tally::Ear;
use crate::world::World;

/// The process may be so much larger than after its first part: what allocators keep.
const MARGIN: u64 = 24 << 20;

/// Resident memory of this process, in bytes.
pub(crate) fn resident() -> std::io::Result<u64> {
    let source = ResidentMemory::new(u64::MAX).map_err(std::io::Error::other)?;
    source.read().map(|reading| reading.used)
}

pub(crate) fn grown(before: u64, after: u64) -> Option<String> {
    let grown = after.saturating_sub(before);
    (grown > MARGIN).then(|| format!("{} MiB of resident memory", grown >> 20))
}

/// Looks for everything that must not be there when every job has ended, on the clock of a runtime
/// in which nothing else runs.
pub(crate) async fn look(world: &World, ear: &mut Ear, is_virtual: bool) -> Vec<String> {
    let mut leaks = Vec::new();
    let mut expect = |what: &str, is: u64, right: u64| {
        println!("  {what}: {is}");
        if is != right {
            leaks.push(format!("{what}: {is}, not {right}"));
        }
    };
    let admissions = world.admissions();
    for (admission, name) in admissions.iter().zip(["watched", "not watched"]) {
        let is_drained = tokio::time::timeout(Duration::from_secs(5), admission.drained()).await;
        expect(&format!("undrained, {name}"), u64::from(is_drained.is_err()), 0);
    }
    // Everything that comes back with the clock is back; what memory asked for is forgotten.
    tokio::time::sleep(Duration::from_secs(if is_virtual { 7_200 } else { 1 })).await;
    world.let_go().expect("the limits are valid");
    ear.listen();
    for (admission, name) in admissions.iter().zip(["watched", "not watched"]) {
        admission.check();
        let snapshot = admission.snapshot();
        expect(&format!("waiters, {name}"), snapshot.waiting as u64, 0);
        expect(&format!("held grants, {name}"), snapshot.held as u64, 0);
        expect(&format!("grants nobody saw, {name}"), snapshot.unseen.count as u64, 0);
        let held_on = snapshot.accounts.iter().map(|account| account.waiting as u64).sum();
        expect(&format!("held on accounts, {name}"), held_on, 0);
        let holders: usize = snapshot.accounts.iter().map(|account| account.holders.len()).sum();
        expect(&format!("holders, {name}"), holders as u64, 0);
        // Two more than there are for good: the lane and the gate that were asked for last.
        let most = world.gates.len() + world.buckets.len() + 4;
        let known = snapshot.accounts.len().saturating_sub(most);
        expect(&format!("accounts known too long, {name}"), known as u64, 0);
    }
    expect("short-lived accounts alive", world.live() as u64, 0);
    expect("lanes kept", world.lanes.len().saturating_sub(1) as u64, 0);
    let places: u64 = world.gates.iter().map(|gate| gate.in_use(Instant::now())).sum();
    expect("places in use", places, 0);
    if is_virtual {
        let spent: u64 = world.buckets.iter().map(|bucket| bucket.in_use(Instant::now())).sum();
        expect("tokens missing", spent, 0);
        expect("slots taken", world.window.in_use(Instant::now()), 0);
    }
    if ear.lost == 0 {
        expect("holds that never ended", ear.held - ear.ended, 0);
    } else {
        println!("  {} events were lost to this subscriber, of {}", ear.lost, ear.heard);
    }
    // Nothing is to be done: no timer is set, and nobody is asked, for a day and more.
    let before = admissions.each_ref().map(|admission| admission.counters());
    let rest = Duration::from_secs(if is_virtual { 2 * 86_400 } else { 1 });
    tokio::time::sleep(rest).await;
    let after = admissions.each_ref().map(|admission| admission.counters());
    let more = before
        .iter()
        .zip(&after)
        .map(|(before, after)| (after.timers - before.timers) + (after.passes - before.passes));
    expect("timers and passes at rest", more.sum(), 0);
    // This block and the two evaluators.
    let alive = Handle::current().metrics().num_alive_tasks();
    expect("tasks beside the evaluators", alive.saturating_sub(2) as u64, 0);
    leaks
}
