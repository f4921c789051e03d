//! What an account announces, on a thread of its own.

use std::sync::Arc;

use admit::{Account, AdmitError, Demand};
use shuttle::future::block_on;
use shuttle::thread;

use crate::explore::{Ways, explore};
use crate::place::{Place, is_over, join, park, start};

#[test]
fn what_grows_between_the_no_and_the_filing_is_not_missed() {
    explore(|| {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let waiter = place.visit(&admission);
        let gate = Arc::clone(&place.gate);
        let grows = thread::spawn(move || gate.resize(2).expect("it is more than none"));
        // The only permit there was is held all the time.
        join([waiter, grows]);
        drop(held);
        is_over(&admission, 2);
        place.is_left();
    });
}

#[test]
fn what_grows_twice_beside_two_who_come_serves_both() {
    explore(|| {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let waiters = [place.visit(&admission), place.visit(&admission)];
        let gate = Arc::clone(&place.gate);
        let grows = thread::spawn(move || {
            gate.resize(2).expect("it is more than none");
            gate.resize(3).expect("it is more than none");
        });
        join(waiters.into_iter().chain([grows]));
        drop(held);
        is_over(&admission, 3);
        place.is_left();
    });
}

#[test]
fn what_may_refuse_between_the_no_and_the_filing_refuses() {
    explore(|| {
        let (admission, place) = (start(), Place::new(2));
        let held = place.try_admit(&admission);
        let both = Demand::new().permits(&place.gate, 2);
        let waiter = place.try_for(admission.admit(both));
        let gate = Arc::clone(&place.gate);
        let shrinks = thread::spawn(move || gate.resize(1).expect("it is more than none"));
        join([shrinks]);
        let refused = waiter.join().unwrap();
        assert!(matches!(refused, Err(AdmitError::Refused { .. })), "{refused:?}");
        drop(held);
        is_over(&admission, 1);
        place.is_left();
    });
}

#[test]
fn what_may_refuse_beside_what_grows_refuses_whom_it_must() {
    explore(|| {
        let (admission, place, other) = (start(), Place::new(2), Place::new(1));
        let in_front = other.try_admit(&admission);
        let held = [place.try_admit(&admission), place.try_admit(&admission)];
        // Behind a head that waits elsewhere, one who is in nobody's way and one whose want gets too
        // large. A look at those who might fit stops at the first of them.
        let head = other.wait_for(park(admission.admit(other.demand())));
        let small = place.wait_for(park(admission.admit(place.demand())));
        let large = park(admission.admit(Demand::new().permits(&place.gate, 2)));
        let large = thread::spawn(move || block_on(large).map(drop));
        let gates = [&place.gate, &place.gate].map(Arc::clone);
        let [grows, shrinks] = gates;
        let grows = thread::spawn(move || grows.link().grew());
        let shrinks = thread::spawn(move || shrinks.resize(1).expect("it is more than none"));
        let refused = large.join().unwrap();
        assert!(matches!(refused, Err(AdmitError::Refused { .. })), "{refused:?}");
        drop((in_front, held));
        join([head, small, grows, shrinks]);
        is_over(&admission, 5);
        place.is_left();
        other.is_left();
    });
}

#[test]
fn what_may_refuse_beside_a_release_refuses_or_grants() {
    let ways = Ways::default();
    let went = ways.clone();
    explore(move || {
        let (admission, place) = (start(), Place::new(2));
        let held = place.try_admit(&admission);
        let waiter = park(admission.admit(Demand::new().permits(&place.gate, 2)));
        // It does not count itself in: two permits are one job, and more than there are by then.
        let waiter = thread::spawn(move || block_on(waiter).map(drop));
        let next = place.visit(&admission);
        let gate = Arc::clone(&place.gate);
        let shrinks = thread::spawn(move || gate.resize(1).expect("it is more than none"));
        drop(held);
        join([next, shrinks]);
        let outcome = waiter.join().unwrap();
        assert!(matches!(outcome, Ok(()) | Err(AdmitError::Refused { .. })), "{outcome:?}");
        went.went(outcome.is_ok());
        is_over(&admission, 2 + u64::from(outcome.is_ok()));
        place.is_left();
    });
    ways.were_both_gone();
}

#[test]
fn an_account_that_is_gone_beside_a_release_is_forgotten() {
    explore(|| {
        let (admission, place) = (start(), Place::new(1));
        let gone = Place::new(1);
        drop(gone.try_admit(&admission));
        let held = place.try_admit(&admission);
        let waiter = place.visit(&admission);
        let goes = thread::spawn(move || drop(gone));
        drop(held);
        join([waiter, goes]);
        assert_eq!(admission.snapshot().accounts.len(), 1);
        is_over(&admission, 3);
        place.is_left();
    });
}
