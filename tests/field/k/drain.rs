//! The drain of a line, where other things happen to it than its own releases.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use admit::{
    AdmitError, CountingGate, Demand, EventKind, Grant, MemoryGate, MemoryReading, MemorySource,
    MemoryZone,
};
use tokio::time::Instant;
use tokio_test::task::spawn;

use super::{AT_85, Rig, assert_held_on_memory, job, rig, under};
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn k_memory_opens_while_the_head_is_short_elsewhere() {
    let mut rig = rig(96.0);
    let busy = gate(1);
    rig.memory.set_percent(50.0);
    let held = rig.admission.try_admit(permits(&busy, 1)).unwrap();
    rig.memory.set_percent(96.0);
    pass_time(secs(1)).await;
    let mut head = parked(&rig.admission, permits(&busy, 1));
    let mut behind: Vec<_> = (0..3).map(|_| parked(&rig.admission, job())).collect();
    rig.memory.set_percent(50.0);
    pass_time(secs(2)).await;
    // The followers drain by the least delay, and the head reserves only its gate.
    assert_eq!(behind.iter().filter(|waiter| waiter.is_woken()).count(), 1);
    pass_time(millis(100)).await;
    let waits: Vec<_> = behind.iter_mut().map(|waiter| granted(waiter).wall_wait()).collect();
    assert_eq!(waits, [secs(2), secs(2) + millis(50), secs(2) + millis(100)]);
    assert!(!head.is_woken());
    rig.observer.at_rest();
    // The head waits on nothing but its gate: the drain ends, and whoever comes goes at once.
    pass_time(millis(50)).await;
    drop((0..5).map(|_| rig.admission.try_admit(job()).unwrap()).collect::<Vec<_>>());
    drop(held);
    settle().await;
    drop(granted(&mut head));
    rig.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn k_a_turn_that_went_to_a_follower_is_gone_for_the_head() {
    let mut rig = rig(85.0);
    let busy = gate(1);
    let held = rig.admission.try_admit(permits(&busy, 1)).unwrap();
    rig.memory.set_percent(96.0);
    pass_time(secs(1)).await;
    let mut head = parked(&rig.admission, permits(&busy, 1));
    let mut follower = parked(&rig.admission, job());
    let mut last = parked(&rig.admission, job());
    rig.memory.set_percent(85.0);
    pass_time(secs(2)).await;
    let first = granted(&mut follower);
    assert!(!last.is_woken());
    // Room for the head, but no completion: the delay since the follower's release stands.
    busy.resize(2).unwrap();
    pass_time(AT_85 - millis(1)).await;
    assert!(!head.is_woken() && !last.is_woken());
    rig.observer.at_rest();
    pass_time(millis(1)).await;
    let second = granted(&mut head);
    assert_eq!(second.wall_wait(), secs(2) + AT_85);
    assert!(!last.is_woken(), "one at a time, the head first");
    drop(held);
    settle().await;
    drop((granted(&mut last), first, second));
    rig.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn k_a_newcomer_during_a_drain_joins_it_though_it_shares_nothing() {
    let rig = rig(96.0);
    let mut line: Vec<_> = (0..2).map(|_| parked(&rig.admission, job())).collect();
    rig.memory.set_percent(85.0);
    pass_time(secs(2)).await;
    let first = granted(&mut line[0]);
    let other = job();
    assert_held_on_memory(rig.admission.try_admit(other.clone()));
    line.push(parked(&rig.admission, other.clone()));
    let arrived = Instant::now();
    drop(rig.admission.try_admit(Demand::new()).unwrap());
    // In its turn: after the one that waits already.
    drop(first);
    settle().await;
    let second = granted(&mut line[1]);
    assert!(!line[2].is_woken());
    assert_held_on_memory(rig.admission.try_admit(job()));
    // One that shares with who waits now is short of that too, memory first.
    let shortages = would_wait(rig.admission.try_admit(other.clone()));
    let shared = other.entries()[0].account();
    assert_eq!((shortages.len(), &shortages[1].account), (2, shared.link().name()));
    pass_time(AT_85).await;
    let third = granted(&mut line[2]);
    assert_eq!(arrived + third.wall_wait(), Instant::now());
    drop((second, third));
    rig.observer.all_gone();
}

/// Memory that fills between two holds of the lock: armed, it reads low once and then high.
#[derive(Debug, Default)]
struct Closing {
    reads_left: AtomicUsize,
    then: AtomicUsize,
}

impl MemorySource for Closing {
    fn read(&self) -> io::Result<MemoryReading> {
        let take = |left: usize| left.checked_sub(1);
        let is_last =
            self.reads_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err();
        let used = if is_last { self.then.load(Ordering::SeqCst) } else { 50 };
        Ok(MemoryReading::new(used as u64, 100))
    }
}

#[tokio::test(start_paused = true)]
async fn k_memory_that_closes_in_the_middle_of_a_cascade_stops_it_in_order() {
    const JOBS: usize = 4_400;
    let source = Arc::new(Closing { reads_left: 0.into(), then: 50.into() });
    let memory = MemoryGate::builder().source(source.clone()).reading_age(Duration::ZERO).build();
    let memory = memory.unwrap();
    let (admission, _) = under(&memory);
    let gate = gate(1);
    let held = admission.try_admit(permits(&gate, 1)).unwrap();
    let mut line: Vec<_> = (0..JOBS).map(|_| parked(&admission, permits(&gate, 1))).collect();
    settle().await;
    source.then.store(96, Ordering::SeqCst);
    source.reads_left.store(1, Ordering::SeqCst);
    gate.resize(JOBS as u32 + 1).unwrap();
    settle().await;
    let went = line.iter().filter(|waiter| waiter.is_woken()).count();
    assert!(went > 0 && went < JOBS, "{went}");
    assert!(line[..went].iter().all(|waiter| waiter.is_woken()), "in order");
    assert_eq!(memory.status().zone, MemoryZone::Critical);
    admission.check();
    // What is left drains one at a time, as soon as memory allows.
    source.then.store(50, Ordering::SeqCst);
    pass_time(secs(2)).await;
    let mut running = Vec::new();
    for mut waiter in line.drain(..went) {
        // So many polls in one turn would spend the task's budget.
        tokio::task::yield_now().await;
        running.push(granted(&mut waiter));
    }
    let left = line.len();
    assert_eq!(line.iter().filter(|waiter| waiter.is_woken()).count(), 1);
    pass_time(millis(50 * 9)).await;
    assert_eq!(line.iter().filter(|waiter| waiter.is_woken()).count(), 10);
    for done in 11..=left {
        // A completion lets one go, however many there are in a turn.
        drop(running.split_off(running.len() - 2));
        settle().await;
        assert_eq!(line.iter().filter(|waiter| waiter.is_woken()).count(), done);
        assert!(line[..done].iter().all(|waiter| waiter.is_woken()), "in order");
    }
    for mut waiter in line {
        tokio::task::yield_now().await;
        drop(granted(&mut waiter));
    }
    drop((running, held));
    admission.drained().await;
    Observer::of(&admission).all_gone();
}

#[tokio::test(start_paused = true)]
async fn k_two_admissions_under_one_gate_share_its_pace_and_not_their_completions() {
    let Rig { memory, gate, admission: one, observer } = rig(96.0);
    let (two, other_observer) = under(&gate);
    let mut line = Vec::new();
    for _ in 0..3 {
        line.push(parked(&one, job()));
        pass_time(millis(300)).await;
        line.push(parked(&two, job()));
    }
    assert_eq!(gate.status().held, 6);
    memory.set_percent(85.0);
    let mut went: Vec<(Instant, usize)> = Vec::new();
    let mut grants: Vec<Option<Grant>> = (0..6).map(|_| None).collect();
    for _ in 0..12_000 {
        pass_time(millis(1)).await;
        for (index, waiter) in line.iter_mut().enumerate() {
            if grants[index].is_none() && waiter.is_woken() {
                went.push((Instant::now(), index));
                grants[index] = Some(granted(waiter));
            }
        }
    }
    assert_eq!(went.len(), 6, "{went:?}");
    for pair in went.windows(2) {
        let gap = pair[1].0 - pair[0].0;
        assert!(gap >= AT_85 && gap <= secs(2) + AT_85, "{went:?}");
    }
    for parity in [0, 1] {
        let places: Vec<_> = went.iter().map(|&(_, at)| at).filter(|at| at % 2 == parity).collect();
        assert!(places.is_sorted(), "each line in its order: {went:?}");
    }

    // Both lines again: a completion of the one earns the one a turn, and not the other.
    memory.set_percent(96.0);
    pass_time(secs(1)).await;
    let mut mine = [parked(&one, job()), parked(&one, job())];
    let mut theirs = [parked(&two, job()), parked(&two, job())];
    memory.set_percent(85.0);
    pass_time(secs(2) + millis(200)).await;
    let count = |line: &[tokio_test::task::Spawn<admit::Admit>]| {
        line.iter().filter(|waiter| waiter.is_woken()).count()
    };
    assert_eq!((count(&mine), count(&theirs)), (1, 0), "one look came first");
    grants[1].take();
    settle().await;
    assert_eq!((count(&mine), count(&theirs)), (1, 1));
    grants[0].take();
    settle().await;
    assert_eq!((count(&mine), count(&theirs)), (2, 1));
    pass_time(secs(2)).await;
    assert_eq!((count(&mine), count(&theirs)), (2, 2));
    for waiter in mine.iter_mut().chain(&mut theirs) {
        drop(granted(waiter));
    }
    drop(grants);
    settle().await;
    observer.all_gone();
    other_observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn k_a_gate_that_is_stopped_lets_everybody_go() {
    let rig = rig(96.0);
    let mut line: Vec<_> = (0..3).map(|_| parked(&rig.admission, job())).collect();
    pass_time(secs(1)).await;
    rig.gate.stop();
    settle().await;
    for waiter in &mut line {
        assert_eq!(granted(waiter).wall_wait(), secs(1));
    }
    drop((0..5).map(|_| rig.admission.try_admit(job()).unwrap()).collect::<Vec<_>>());
    assert_eq!(rig.gate.status().zone, MemoryZone::Green);
    rig.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn k_an_impossible_demand_is_refused_before_it_meets_memory() {
    let mut rig = rig(96.0);
    let small: Arc<CountingGate> = gate(2);
    let Poll::Ready(Err(error)) = spawn(rig.admission.admit(permits(&small, 3))).poll() else {
        panic!("it waits for memory, and never fits")
    };
    assert!(matches!(error, AdmitError::Refused { .. }), "{error}");
    assert_eq!(rig.observer.count(&*small, EventKind::Held), 0);
    // One that turns impossible while memory holds it is refused at once, too.
    let mut waiter = parked(&rig.admission, permits(&small, 2));
    small.resize(1).unwrap();
    settle().await;
    assert!(matches!(landed(&mut waiter), Err(AdmitError::Refused { .. })));
    rig.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn k_a_job_that_times_out_on_memory_says_so() {
    let rig = rig(96.0);
    let error = rig.admission.admit(job()).within(secs(5)).await.unwrap_err();
    let AdmitError::TimedOut { waited, shortages } = &error else { panic!("{error}") };
    assert_eq!((*waited, shortages.len()), (secs(5), 1));
    assert_eq!(&*shortages[0].account, "memory");
    assert!(shortages[0].retry_at.is_some());
    rig.observer.all_gone();
}

/// A release that held the window while memory was shut: the probe is for the head all the same.
#[tokio::test(start_paused = true)]
async fn k_a_head_held_on_memory_keeps_the_probe_it_is_due() {
    let rig = rig(96.0);
    let builder = crate::windows::window_builder(100, secs(1)).max_throttle(0.0);
    let window = builder.build().unwrap();
    (0..3).for_each(|_| window.record_429());
    pass_time(secs(30)).await;
    let demand = Demand::new().permit(&window);
    let mut line: Vec<_> = (0..3).map(|_| parked(&rig.admission, demand.clone())).collect();
    pass_time(secs(1)).await;
    rig.memory.set_percent(50.0);
    pass_time(secs(2)).await;
    let probe = granted(&mut line[0]);
    for waiter in &mut line[1..] {
        assert!(matches!(landed(waiter), Err(AdmitError::Refused { .. })));
    }
    assert!(probe.report_success(&window));
    drop(probe);
    rig.observer.all_gone();
}
