//! The end of an admission.

use std::sync::Arc;

use admit::{Admission, AdmitError, Grant, StartError, lose_runtime};
use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread;

use crate::explore::{Ways, explore};
use crate::place::{Place, drop_beside, is_over, join, park, start};

#[test]
fn a_stop_beside_an_admit_and_a_release_turns_away_or_comes_too_late() {
    let ways = Ways::default();
    let went = ways.clone();
    explore(move || {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let waits = place.try_for(park(admission.admit(place.demand())));
        let comes = place.try_for(admission.admit(place.demand()));
        let back = drop_beside(held);
        admission.stop();
        join([back]);
        let mut granted = 1;
        for outcome in join([waits, comes]) {
            assert!(matches!(outcome, Ok(()) | Err(AdmitError::ShutDown)), "{outcome:?}");
            went.went(outcome.is_ok());
            granted += u64::from(outcome.is_ok());
        }
        is_over(&admission, granted);
        place.is_left();
    });
    ways.were_both_gone();
}

/// Holds on to a grant until the checker drops what is left at the end of a run.
fn keep(grant: Grant) {
    drop(shuttle::future::spawn(async move {
        std::future::pending::<()>().await;
        drop(grant);
    }));
}

/// That the evaluator ends is seen by the checker: one that waits for ever is a deadlock.
#[test]
fn the_last_handles_and_a_grant_that_go_at_once_end_the_evaluator() {
    explore(|| {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let other = admission.clone();
        join([drop_beside(admission), drop_beside(other), drop_beside(held)]);
        place.is_left();
        // Nobody keeps it either.
        assert_eq!(Arc::strong_count(&place.gate), 1);
    });
}

#[test]
fn the_last_handle_that_goes_as_a_future_is_granted_ends_the_evaluator() {
    explore(|| {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let waiter = place.wait_for(park(admission.admit(place.demand())));
        join([drop_beside(admission), drop_beside(held), waiter]);
        place.is_left();
        assert_eq!(Arc::strong_count(&place.gate), 1);
    });
}

#[test]
fn two_last_handles_that_go_at_once_end_the_evaluator_though_a_grant_stays() {
    explore(|| {
        let (admission, place) = (start(), Place::new(1));
        keep(place.try_admit(&admission));
        let other = admission.clone();
        join([drop_beside(admission), drop_beside(other)]);
    });
}

#[test]
fn a_last_handle_that_becomes_a_grant_ends_the_evaluator_though_the_grant_stays() {
    explore(|| {
        let (admission, place) = (start(), Place::new(1));
        keep(place.try_admit(&admission));
        let waits = park(admission.admit(place.demand()));
        let comes = thread::spawn(move || keep(block_on(waits).expect("its turn comes")));
        let gate = Arc::clone(&place.gate);
        let goes = thread::spawn(move || {
            gate.resize(2).expect("it is more than none");
            drop(admission);
        });
        join([comes, goes]);
    });
}

#[test]
fn a_handle_that_goes_beside_a_try_admit_stops_nothing() {
    explore(|| {
        let (admission, place) = (start(), Place::new(1));
        let other = admission.clone();
        let goes = drop_beside(other);
        let works = thread::spawn({
            let place = Arc::clone(&place);
            move || {
                let grant = place.try_admit(&admission);
                let next = park(admission.admit(place.demand()));
                drop(grant);
                drop(next);
                admission
            }
        });
        join([goes]);
        let admission = works.join().unwrap();
        place.work(place.try_admit(&admission));
        is_over(&admission, admission.snapshot().totals.granted);
        place.is_left();
    });
}

#[test]
fn who_waits_for_the_drain_beside_the_last_release_hears_of_it() {
    explore(|| {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let waiter = place.wait_for(park(admission.admit(place.demand())));
        let drains = thread::spawn({
            let admission = admission.clone();
            move || block_on(admission.drained())
        });
        drop(held);
        join([waiter, drains]);
        is_over(&admission, 2);
        place.is_left();
    });
}

/// Starts it again as soon as it has noticed that its runtime is gone.
fn start_again(admission: &Admission) {
    while let Err(error) = admission.start() {
        assert!(matches!(error, StartError::AlreadyStarted), "{error}");
        thread::yield_now();
    }
}

#[test]
fn a_runtime_that_is_lost_beside_a_release_and_a_newcomer_fails_who_waits_or_comes_too_late() {
    let ways = Ways::default();
    let went = ways.clone();
    explore(move || {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let waits = place.try_for(park(admission.admit(place.demand())));
        let comes = place.try_for(admission.admit(place.demand()));
        let back = drop_beside(held);
        lose_runtime();
        start_again(&admission);
        // Whoever came to the line while nothing ran, or comes now, is looked at by the second.
        let last = place.visit(&admission);
        join([back, last]);
        let mut granted = 2;
        for outcome in join([waits, comes]) {
            assert!(matches!(outcome, Ok(()) | Err(AdmitError::ShutDown)), "{outcome:?}");
            went.went(outcome.is_ok());
            granted += u64::from(outcome.is_ok());
        }
        is_over(&admission, granted);
        place.is_left();
    });
    ways.were_both_gone();
}

#[test]
fn of_two_who_start_it_again_after_a_lost_runtime_one_does_and_what_grows_is_heard_of() {
    explore(|| {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        lose_runtime();
        let is_up = Arc::new(AtomicBool::new(false));
        let starts = [(); 2].map(|()| {
            let (admission, is_up) = (admission.clone(), Arc::clone(&is_up));
            thread::spawn(move || {
                while !is_up.load(Ordering::SeqCst) {
                    if admission.start().is_ok() {
                        is_up.store(true, Ordering::SeqCst);
                        return 1;
                    }
                    thread::yield_now();
                }
                0
            })
        });
        let waits = place.try_for(admission.admit(place.demand()));
        place.gate.resize(2).expect("a size");
        assert_eq!(join(starts).into_iter().sum::<u32>(), 1);
        let outcome = join([waits]).remove(0);
        assert!(matches!(outcome, Ok(()) | Err(AdmitError::ShutDown)), "{outcome:?}");
        drop(held);
        is_over(&admission, 1 + u64::from(outcome.is_ok()));
        place.is_left();
    });
}

#[test]
fn a_runtime_that_is_lost_beside_a_stop_or_the_last_handle_ends_everything_once() {
    explore(|| {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let waits = place.try_for(park(admission.admit(place.demand())));
        let other = admission.clone();
        let stops = thread::spawn(move || other.stop());
        let back = drop_beside(held);
        lose_runtime();
        join([stops, back]);
        let outcome = join([waits]).remove(0);
        assert!(matches!(outcome, Ok(()) | Err(AdmitError::ShutDown)), "{outcome:?}");
        assert!(matches!(admission.start(), Err(StartError::Stopped)));
        is_over(&admission, 1 + u64::from(outcome.is_ok()));
        place.is_left();
        // Nobody keeps it either.
        drop(admission);
        assert_eq!(Arc::strong_count(&place.gate), 1);
    });
}
