//! Memory: the latch, the drain and its pace, through an admission.

mod drain;

use std::sync::Arc;
use std::time::Duration;

use admit::testing::ScriptedMemory;
use admit::{
    Account, Admission, AdmitError, Amount, Demand, Grant, MemoryGate, MemorySource, MemoryZone,
    RejectReason,
};
use tokio::time::Instant;

use crate::support::*;

/// An admission under a memory gate that reads what the test says.
struct Rig {
    memory: Arc<ScriptedMemory>,
    gate: Arc<MemoryGate>,
    admission: Admission,
    observer: Observer,
}

fn rig(percent: f64) -> Rig {
    let memory = ScriptedMemory::at_percent(percent);
    let gate = MemoryGate::with_source(memory.clone()).unwrap();
    let (admission, observer) = under(&gate);
    Rig { memory, gate, admission, observer }
}

fn under(gate: &Arc<MemoryGate>) -> (Admission, Observer) {
    let builder = Admission::builder().memory_gate(gate.clone()).event_capacity(1 << 14);
    let admission = builder.start().expect("inside a runtime with a timer");
    let observer = Observer::of(&admission);
    (admission, observer)
}

/// A job on a gate of its own, so that only memory can hold it.
fn job() -> Demand {
    permits(&gate(1), 1)
}

/// The gate's numbers at 85 % and 89 %.
const AT_85: Duration = millis(1_111);
const AT_89: Duration = millis(6_480);

#[track_caller]
fn assert_held_on_memory(outcome: Result<Grant, admit::TryAdmitError>) {
    let shortages = would_wait(outcome);
    assert_eq!(&*shortages[0].account, "memory");
    assert_eq!(shortages.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn k1_a_latched_line_goes_when_the_latch_clears_and_then_by_the_delay() {
    let mut rig = rig(95.0);
    let nothing = || drop(rig.admission.try_admit(Demand::new()).unwrap());
    let mut head = parked(&rig.admission, job());
    let mut second = parked(&rig.admission, job());
    nothing();
    pass_time(secs(5)).await;
    rig.memory.set_percent(90.0);
    pass_time(secs(5)).await;
    assert!(!head.is_woken() && !second.is_woken());
    assert_eq!(rig.gate.status().zone, MemoryZone::Critical);
    nothing();
    rig.observer.at_rest();

    rig.memory.set_percent(89.0);
    let fell = Instant::now();
    pass_time(secs(2)).await;
    let first = granted(&mut head);
    let went = first.wall_wait();
    assert!(went >= secs(10) && went <= secs(12), "{went:?}");
    nothing();
    let drains = Instant::now() - fell;
    pass_time(secs(10) + AT_89 - drains).await;
    assert_eq!(granted(&mut second).wall_wait(), went + AT_89);
    nothing();
    drop(first);
    rig.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn k1_the_latch_clears_only_below_ninety() {
    for (percent, clears) in [(94.9, false), (90.0, false), (89.999, true), (10.0, true)] {
        let rig = rig(95.0);
        let mut head = parked(&rig.admission, job());
        rig.memory.set_percent(percent);
        pass_time(secs(60)).await;
        assert_eq!(head.is_woken(), clears, "{percent}");
        if !clears {
            rig.memory.set_percent(50.0);
            pass_time(secs(2)).await;
        }
        drop(granted(&mut head));
        rig.observer.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn k2_completions_under_the_latch_earn_nothing_and_later_ones_a_turn() {
    let rig = rig(85.0);
    let mut five: Vec<_> = (0..5).map(|_| rig.admission.try_admit(job()).unwrap()).collect();
    pass_time(secs(2)).await;
    rig.memory.set_percent(96.0);
    let mut line: Vec<_> = (0..3).map(|_| parked(&rig.admission, job())).collect();
    assert_eq!(rig.gate.status().zone, MemoryZone::Critical);
    let fifth = five.pop().unwrap();
    drop(five);
    settle().await;
    rig.memory.set_percent(85.0);
    pass_time(secs(2)).await;
    let first = granted(&mut line[0]);
    assert_eq!(first.wall_wait(), secs(2), "at the next look");
    assert!(!line[1].is_woken());
    pass_time(millis(100)).await;
    drop(fifth);
    settle().await;
    let second = granted(&mut line[1]);
    assert_eq!(second.wall_wait(), secs(2) + millis(100));
    assert!(!line[2].is_woken());
    pass_time(AT_85).await;
    assert_eq!(granted(&mut line[2]).wall_wait(), secs(2) + millis(100) + AT_85);
    drop((first, second));
    rig.observer.all_gone();
}

/// The look comes before the delay has passed: only a turn that was earned could let one go then.
#[tokio::test(start_paused = true)]
async fn k2_what_completed_under_the_latch_lets_nobody_go_when_it_clears() {
    let rig = rig(89.0);
    let mut running: Vec<_> = (0..3).map(|_| rig.admission.try_admit(job()).unwrap()).collect();
    pass_time(millis(100)).await;
    rig.memory.set_percent(96.0);
    let mut line: Vec<_> = (0..2).map(|_| parked(&rig.admission, job())).collect();
    drop(running.split_off(1));
    settle().await;
    rig.memory.set_percent(89.0);
    pass_time(AT_89 - millis(101)).await;
    assert_eq!(rig.gate.status().zone, MemoryZone::Draining);
    assert!(!line[0].is_woken());
    pass_time(millis(1)).await;
    let first = granted(&mut line[0]);
    assert_eq!(first.wall_wait(), AT_89 - millis(100));
    drop(running);
    settle().await;
    drop((granted(&mut line[1]), first));
    rig.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn k2_completions_do_not_accumulate() {
    let rig = rig(85.0);
    let running: Vec<_> = (0..5).map(|_| rig.admission.try_admit(job()).unwrap()).collect();
    rig.memory.set_percent(96.0);
    pass_time(secs(1)).await;
    let mut line: Vec<_> = (0..4).map(|_| parked(&rig.admission, job())).collect();
    rig.memory.set_percent(85.0);
    pass_time(secs(2)).await;
    let first = granted(&mut line[0]);
    // Four end in one turn: one goes for all of them.
    drop(running);
    settle().await;
    let second = granted(&mut line[1]);
    assert!(!line[2].is_woken());
    pass_time(AT_85 - millis(1)).await;
    assert!(!line[2].is_woken());
    pass_time(millis(1)).await;
    let third = granted(&mut line[2]);
    assert_eq!(third.wall_wait(), second.wall_wait() + AT_85);
    // A rollback is no completion, a release is one.
    third.rollback();
    settle().await;
    assert!(!line[3].is_woken());
    drop(first);
    settle().await;
    drop((granted(&mut line[3]), second));
    rig.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn k2_a_release_nobody_saw_is_no_completion() {
    let rig = rig(96.0);
    let mut line: Vec<_> = (0..2).map(|_| parked(&rig.admission, job())).collect();
    rig.memory.set_percent(85.0);
    pass_time(secs(2)).await;
    let unseen = line.remove(0);
    assert!(unseen.is_woken());
    drop(unseen);
    settle().await;
    assert!(!line[0].is_woken());
    pass_time(AT_85 - millis(1)).await;
    assert!(!line[0].is_woken());
    pass_time(millis(1)).await;
    assert_eq!(granted(&mut line[0]).wall_wait(), secs(2) + AT_85);
    rig.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn k3_outside_a_drain_everybody_goes_at_once() {
    let rig = rig(94.0);
    let ten: Vec<_> = (0..10).map(|_| rig.admission.try_admit(job()).unwrap()).collect();
    let three = gate(3);
    let held: Vec<_> =
        (0..3).map(|_| rig.admission.try_admit(permits(&three, 1)).unwrap()).collect();
    let mut line: Vec<_> = (0..3).map(|_| parked(&rig.admission, permits(&three, 1))).collect();
    pass_time(secs(3)).await;
    drop(held);
    settle().await;
    for waiter in &mut line {
        assert_eq!(granted(waiter).wall_wait(), secs(3));
    }
    drop(ten);
    rig.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn k3_a_try_admit_that_was_turned_away_began_no_drain() {
    let rig = rig(96.0);
    for _ in 0..3 {
        assert_held_on_memory(rig.admission.try_admit(job()));
    }
    rig.memory.set_percent(89.0);
    pass_time(millis(20)).await;
    drop((0..10).map(|_| rig.admission.try_admit(job()).unwrap()).collect::<Vec<_>>());
    // Nor did one whose time was up at once, or that found the line full.
    rig.memory.set_percent(96.0);
    pass_time(millis(20)).await;
    let late = rig.admission.admit(job()).within(Duration::ZERO).await.unwrap_err();
    assert!(matches!(late, AdmitError::TimedOut { .. }), "{late}");
    rig.memory.set_percent(89.0);
    pass_time(millis(20)).await;
    drop((0..10).map(|_| rig.admission.try_admit(job()).unwrap()).collect::<Vec<_>>());
    rig.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn k3_a_drain_whose_line_gave_up_is_over() {
    let rig = rig(96.0);
    let line: Vec<_> = (0..3).map(|_| parked(&rig.admission, job())).collect();
    rig.memory.set_percent(89.0);
    pass_time(secs(2)).await;
    assert_eq!(line.iter().filter(|waiter| waiter.is_woken()).count(), 1);
    assert_held_on_memory(rig.admission.try_admit(job()));
    drop(line);
    drop((0..10).map(|_| rig.admission.try_admit(job()).unwrap()).collect::<Vec<_>>());
    rig.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn k4_a_limit_that_grows_clears_the_latch() {
    let mut rig = rig(50.0);
    rig.memory.set(96, 100);
    let mut waiter = parked(&rig.admission, job());
    pass_time(secs(10)).await;
    assert!(!waiter.is_woken());
    rig.observer.at_rest();
    rig.memory.set(96, 200);
    pass_time(secs(2)).await;
    drop(granted(&mut waiter));
    rig.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn k4_no_limit_is_no_pressure() {
    let rig = rig(96.0);
    let mut waiter = parked(&rig.admission, job());
    rig.memory.set(u64::MAX, 0);
    pass_time(secs(2)).await;
    drop(granted(&mut waiter));
    drop((0..10).map(|_| rig.admission.try_admit(job()).unwrap()).collect::<Vec<_>>());
    assert_eq!(rig.gate.status().ratio, 0.0);
    rig.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn k4_a_source_that_fails_or_panics_leaves_the_last_word() {
    for fails in [ScriptedMemory::fail, ScriptedMemory::panic] {
        let rig = rig(96.0);
        let mut waiter = parked(&rig.admission, job());
        fails(&rig.memory);
        pass_time(secs(20)).await;
        assert!(!waiter.is_woken());
        rig.memory.set_percent(50.0);
        pass_time(secs(2)).await;
        drop(granted(&mut waiter));
        fails(&rig.memory);
        pass_time(secs(1)).await;
        drop(rig.admission.try_admit(job()).unwrap());
        rig.observer.all_gone();
    }
}

/// What the control groups' files say is read in the crate; here, that such a reading is one.
#[tokio::test(start_paused = true)]
async fn k5_the_default_source_measures_against_a_limit_there_is() {
    let source = admit::SystemMemory::new();
    let reading = source.read().unwrap();
    assert!(reading.limit > 0 && reading.limit < 1 << 60, "{reading:?}");
    assert!(reading.used > 0 && reading.used <= reading.limit, "{reading:?}");
    let gate = MemoryGate::new().unwrap();
    let (admission, observer) = under(&gate);
    if reading.used * 100 < reading.limit * 90 {
        drop(admission.try_admit(job()).unwrap());
        let status = gate.status();
        assert_eq!(status.limit, reading.limit);
        assert!(status.ratio > 0.0 && status.ratio < 0.95, "{status}");
    }
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn k6_with_progress_one_goes_under_the_latch_and_the_other_not_while_it_runs() {
    let memory = ScriptedMemory::at_percent(96.0);
    let gate = MemoryGate::builder().source(memory.clone()).progress_after(secs(30)).build();
    let (admission, mut observer) = under(&gate.unwrap());
    let mut line: Vec<_> = (0..3).map(|_| parked(&admission, job())).collect();
    pass_time(secs(30) - millis(1)).await;
    assert!(!line[0].is_woken());
    pass_time(millis(1)).await;
    let first = granted(&mut line[0]);
    assert_eq!(first.wall_wait(), secs(30));
    pass_time(secs(300)).await;
    observer.at_rest();
    assert!(!line[1].is_woken());
    assert_held_on_memory(admission.try_admit(job()));
    drop(first);
    pass_time(secs(2)).await;
    let second = granted(&mut line[1]);
    assert!(!line[2].is_woken());
    // One that never was: the next goes on.
    second.rollback();
    pass_time(secs(2)).await;
    drop(granted(&mut line[2]));
    observer.all_gone();
}

/// Whoever waits on a limit of its own waits on memory, too, from then on; whether or not anybody
/// listens, and whichever way the newcomer comes in.
#[tokio::test(start_paused = true)]
async fn k6_a_newcomer_that_goes_under_the_latch_leaves_a_line_that_drains() {
    for is_watched in [true, false] {
        let shared = gate(2);
        let newcomers = [job(), permits(&shared, 1)];
        for newcomer in newcomers {
            let memory = ScriptedMemory::at_percent(50.0);
            let valve = MemoryGate::builder().source(memory.clone()).progress_after(secs(30));
            let builder = Admission::builder().memory_gate(valve.build().unwrap());
            let admission = builder.start().unwrap();
            let watch = is_watched.then(|| admission.subscribe());
            let bucket = bucket(60, 60);
            drop(admission.try_admit(tokens_of(&bucket, 60)).unwrap());
            drop(admission.try_admit(newcomer.clone()).unwrap());
            let mut head = parked(&admission, tokens_of(&bucket, 60).permit(&shared));
            memory.set_percent(96.0);
            pass_time(secs(1)).await;
            assert_held_on_memory(admission.try_admit(newcomer.clone()));
            pass_time(secs(31)).await;
            let held_on_memory = || admission.snapshot().account("memory").unwrap().waiting;
            assert_eq!(held_on_memory(), 0, "nobody has asked it for the head");
            let newcomer = admission.try_admit(newcomer).unwrap();
            settle().await;
            assert_eq!(held_on_memory(), 1, "{is_watched}");
            pass_time(secs(60)).await;
            assert!(!head.is_woken());
            drop(newcomer);
            pass_time(secs(2)).await;
            drop((granted(&mut head), watch));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn k6_without_progress_nobody_goes_under_the_latch() {
    let mut rig = rig(96.0);
    let line: Vec<_> = (0..2).map(|_| parked(&rig.admission, job())).collect();
    pass_time(secs(3_600)).await;
    rig.observer.at_rest();
    assert!(line.iter().all(|waiter| !waiter.is_woken()));
    drop(line);
    rig.observer.all_gone();
}

/// Not one more turn than it takes: the evaluator of a latched line looks every two seconds.
#[tokio::test(start_paused = true)]
async fn k6_a_latched_line_is_looked_at_every_two_seconds_and_not_more_often() {
    let rig = rig(96.0);
    let line: Vec<_> = (0..100).map(|_| parked(&rig.admission, job())).collect();
    settle().await;
    let before = rig.admission.counters();
    pass_time(secs(600)).await;
    let after = rig.admission.counters();
    assert!(after.timers - before.timers <= 301, "{before:?} {after:?}");
    assert!(after.examined - before.examined <= 602, "the head only: {before:?} {after:?}");
    drop(line);
    rig.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f4_nothing_of_a_gate_still_meets_the_memory_gate() {
    let mut rig = rig(96.0);
    let gate = gate(1);
    let nothing = Demand::new().add(&gate, Amount::NONE);
    assert_held_on_memory(rig.admission.try_admit(nothing.clone()));
    let mut waiter = parked(&rig.admission, nothing);
    pass_time(secs(1)).await;
    rig.observer.at_rest();
    rig.memory.set_percent(80.0);
    pass_time(secs(1)).await;
    let grant = granted(&mut waiter);
    assert_eq!(&*grant.wait_times()[0].account, "memory");
    assert_eq!(grant.wait_times()[0].wait, secs(2));
    drop(grant);
    rig.observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn m2_a_stop_refuses_who_waits_on_memory_like_everybody_else() {
    let mut rig = rig(50.0);
    let (busy, budget) = (gate(1), drained_bucket(&rig.admission, 600, 60_000));
    let held = rig.admission.try_admit(permits(&busy, 1)).unwrap();
    let mut line = vec![
        parked(&rig.admission, permits(&busy, 1)),
        parked(&rig.admission, tokens_of(&budget, 100)),
    ];
    rig.memory.set_percent(96.0);
    pass_time(millis(20)).await;
    line.push(parked(&rig.admission, job()));
    assert_eq!(rig.gate.status().held, 1);
    rig.admission.stop();
    for waiter in &mut line {
        assert!(matches!(landed(waiter), Err(AdmitError::ShutDown)));
    }
    let later = rig.admission.admit(job()).await.unwrap_err();
    assert!(matches!(later, AdmitError::ShutDown), "{later}");
    assert_eq!(rig.gate.status().held, 0);
    assert_eq!(busy.status().active, 1);
    drop(held);
    assert_eq!(busy.status().active, 0);
    rig.admission.drained().await;
    let of_memory = |event: &&admit::LimiterEvent| {
        &*event.account == "memory" && event.reason == Some(RejectReason::Shutdown)
    };
    assert_eq!(rig.observer.events().iter().filter(of_memory).count(), 1);
    // The account's own count: a stopped admission knows no account any more.
    assert_eq!(busy.link().waiting() + budget.link().waiting(), 0);
}
