//! What is over leaves nothing behind: the process is no larger than before.
//!
//! Measured as resident memory, in a binary of its own, since the crate forbids the unsafe code a
//! counting allocator needs. A leak of a hundred bytes a round would show as ten times the margin.

#![cfg(target_os = "linux")]

use std::sync::{Mutex, PoisonError};

use admit::{Admission, CountingGate, Demand, Limits, TokenBucket};
use tokio_test::task::spawn;

const MARGIN: u64 = 10 << 20;

/// One at a time: they share the process.
static ALONE: Mutex<()> = Mutex::new(());

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = text.lines().find(|line| line.starts_with("VmRSS")).expect("it is there");
    let kilobytes: u64 =
        line.split_whitespace().nth(1).expect("a figure").parse().expect("a number");
    kilobytes << 10
}

/// Does `round` a number of times, and asserts that all but the first tenth took no memory.
fn assert_level(rounds: usize, mut round: impl FnMut()) {
    let first = rounds.div_ceil(10);
    for _ in 0..first {
        round();
    }
    let before = resident();
    for _ in first..rounds {
        round();
    }
    let after = resident();
    assert!(after < before + MARGIN, "{before} bytes before, {after} after");
}

#[test]
fn m7_a_million_admits_dropped_behind_a_head_leave_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let admission = Admission::builder().build().unwrap();
    let gate = CountingGate::new("held", 1).unwrap();
    let demand = Demand::new().permit(&gate);
    let held = admission.try_admit(demand.clone()).unwrap();
    let mut head = spawn(admission.admit(demand.clone()));
    assert!(head.poll().is_pending());
    // A hundred stand in the line at a time, and leave from its end, its front or all over.
    let mut turn = 0;
    assert_level(10_000, || {
        let mut line: Vec<_> = (0..100).map(|_| spawn(admission.admit(demand.clone()))).collect();
        for admit in &mut line {
            assert!(admit.poll().is_pending());
        }
        turn += 1;
        match turn % 3 {
            0 => line.reverse(),
            1 => line.rotate_left(turn % 100),
            _ => {}
        }
        drop(line);
        assert_eq!(admission.queue_len(), 1);
    });
    assert_eq!(admission.queue_len(), 1);
    admission.check();
    drop((head, held));
    assert_eq!(admission.queue_len(), 0);
    assert_eq!(gate.status().active, 0);
}

#[test]
fn m7_a_line_that_is_long_again_and_again_grows_no_further() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let admission = Admission::builder().build().unwrap();
    let gate = CountingGate::new("held", 1).unwrap();
    let demand = Demand::new().permit(&gate);
    let held = admission.try_admit(demand.clone()).unwrap();
    let mut head = spawn(admission.admit(demand.clone()));
    assert!(head.poll().is_pending());
    assert_level(4, || {
        let mut line: Vec<_> =
            (0..100_000).map(|_| spawn(admission.admit(demand.clone()))).collect();
        for admit in &mut line {
            assert!(admit.poll().is_pending());
        }
        assert_eq!(admission.queue_len(), 100_001);
        drop(line);
        assert_eq!(admission.queue_len(), 1);
    });
    drop((head, held));
}

#[test]
fn m7_a_million_accounts_used_once_are_forgotten() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let admission = Admission::builder().build().unwrap();
    let other = Admission::builder().build().unwrap();
    let kept = CountingGate::new("kept", 4).unwrap();
    let mut turn = 0_usize;
    assert_level(1_000_000, || {
        turn += 1;
        let demand = if turn.is_multiple_of(2) {
            Demand::new().permit(&CountingGate::new("once", 1).unwrap()).permit(&kept)
        } else {
            let limits = Limits::per_minute(10, 100);
            Demand::new().tokens(&TokenBucket::new("once", limits).unwrap(), 1).permit(&kept)
        };
        drop(admission.try_admit(demand.clone()).unwrap());
        if turn.is_multiple_of(4) {
            // An account of two admissions is forgotten by both.
            drop(other.try_admit(demand).unwrap());
        }
    });
    assert_eq!(admission.snapshot().accounts.len(), 1);
    assert_eq!(other.snapshot().accounts.len(), 1);
    admission.check();
}
