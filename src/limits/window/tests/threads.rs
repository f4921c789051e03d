//! Many threads on one window.

use std::sync::Barrier;
use std::thread;

use super::*;

#[test]
fn j3_sixty_four_threads_that_fail_at_once_open_it_once() {
    let rig = Rig::brittle();
    let barrier = Barrier::new(64);
    let before = Instant::now();
    thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                barrier.wait();
                rig.window.record_failure(&slow_down());
            });
        }
    });
    let until = rig.refusal().retry_instant().expect("blocked");
    assert!(until >= before + 30 * SECOND && until <= Instant::now() + 30 * SECOND);
    assert_eq!(rig.circuit(), CircuitState::Blocked);
    assert_eq!(rig.announced(), MAY_REFUSE);
}

#[test]
fn j3_sixty_four_threads_that_come_as_the_cooldown_ends_send_one_probe() {
    let rig = Rig::blocked();
    let end = rig.refusal().retry_instant().expect("blocked");
    let barrier = Barrier::new(64);
    let answers: Vec<_> = thread::scope(|scope| {
        let (rig, barrier) = (&rig, &barrier);
        let take = |id| {
            move || {
                barrier.wait();
                rig.window.try_take(&ask(id, 1, end))
            }
        };
        let threads: Vec<_> = (0..64).map(|id| scope.spawn(take(id))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let probes = answers.iter().filter(|answer| **answer == Ok(Some(end))).count();
    let refused = answers.iter().filter(|answer| answer.is_err()).count();
    assert_eq!((probes, refused), (1, 63));
    assert_eq!(rig.window.in_use(end), 1);
    assert_eq!(rig.window.indicator(end).as_deref(), Some("probing"));
}

#[test]
fn threads_never_put_more_than_the_maximum_into_any_span() {
    let rig = Rig::new(ElasticWindow::builder("geo").max(7).per(Duration::from_millis(2)));
    let barrier = Barrier::new(8);
    let rounds = if cfg!(miri) { 50 } else { 5_000_u64 };
    let worker = |worker: u64| {
        let (rig, barrier) = (&rig, &barrier);
        move || {
            let mut kept = Vec::new();
            barrier.wait();
            for round in 0..rounds {
                let id = worker * 10_000 + round;
                let n = 1 + (round % 3) as u32;
                let _ = rig.window.status();
                let Some(charge) = rig.take(id, n) else { continue };
                match round % 5 {
                    0 => drop(rig.window.give(&charge, Instant::now())),
                    1 => rig.window.record_advisory_pressure(),
                    _ => rig.window.record_success(),
                }
                if round % 5 != 0 {
                    kept.push((charge.at, n));
                }
            }
            kept
        }
    };
    let mut kept: Vec<(Instant, u32)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|id| scope.spawn(worker(id))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    kept.sort_unstable();
    laws::assert_no_span_holds_more(&kept, 7, Duration::from_millis(2));
    assert!(!kept.is_empty());
    let status = rig.window.status();
    assert!(status.available <= 7 && (0.0..=9.0).contains(&status.throttle));
}
