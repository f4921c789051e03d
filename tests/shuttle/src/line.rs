//! Coming, waiting and going.

use std::sync::Arc;

use admit::{CountingGate, Demand, TryAdmitError};
use shuttle::future::block_on;
use shuttle::thread;

use crate::explore::{Ways, explore};
use crate::place::{Place, drop_beside, is_over, join, park, start};

#[test]
fn two_who_come_and_go_and_one_who_waits_all_go_once() {
    explore(|| {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let third = place.wait_for(park(admission.admit(place.demand())));
        let others = [place.visit(&admission), place.visit(&admission)];
        drop(held);
        join(others.into_iter().chain([third]));
        is_over(&admission, 4);
        place.is_left();
    });
}

#[test]
fn one_comes_as_the_only_permit_comes_back() {
    explore(|| {
        let (admission, place) = (start(), Place::new(1));
        let back = drop_beside(place.try_admit(&admission));
        let comes = place.visit(&admission);
        join([back, comes]);
        is_over(&admission, 2);
        place.is_left();
    });
}

#[test]
fn two_permits_that_come_back_at_once_serve_two() {
    explore(|| {
        let (admission, place) = (start(), Place::new(2));
        let held = [place.try_admit(&admission), place.try_admit(&admission)];
        let both = place.wait_for(park(admission.admit(Demand::new().permits(&place.gate, 2))));
        let one = place.visit(&admission);
        join(held.map(drop_beside).into_iter().chain([both, one]));
        is_over(&admission, 4);
        place.is_left();
    });
}

#[test]
fn who_tries_beside_a_release_takes_nothing_from_who_waits() {
    let ways = Ways::default();
    let went = ways.clone();
    explore(move || {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let waiter = place.wait_for(park(admission.admit(place.demand())));
        let tries = thread::spawn({
            let (admission, place) = (admission.clone(), Arc::clone(&place));
            move || match admission.try_admit(place.demand()) {
                Ok(grant) => {
                    place.work(grant);
                    true
                }
                Err(TryAdmitError::WouldWait { shortages }) => {
                    assert_eq!(shortages.len(), 1);
                    false
                }
                Err(error) => panic!("{error}"),
            }
        });
        drop(held);
        join([waiter]);
        let has_gone = tries.join().unwrap();
        went.went(has_gone);
        is_over(&admission, 2 + u64::from(has_gone));
        place.is_left();
    });
    ways.were_both_gone();
}

#[test]
fn demands_over_two_gates_in_either_order_all_get_through() {
    explore(|| {
        let admission = start();
        let gates = ["one", "other"].map(|name| CountingGate::new(name, 1).unwrap());
        let orders = [[0, 1], [1, 0], [0, 1]];
        let threads = orders.map(|[first, second]| {
            let demand = Demand::new().permit(&gates[first]).permit(&gates[second]);
            let admission = admission.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    drop(block_on(admission.admit(demand.clone())).expect("its turn comes"));
                }
            })
        });
        join(threads);
        is_over(&admission, 6);
        assert!(gates.iter().all(|gate| gate.status().active == 0));
    });
}

#[test]
fn what_one_gives_back_early_and_late_serves_one_each() {
    explore(|| {
        let admission = start();
        let (early, late) = (Place::new(1), Place::new(1));
        let both = Demand::new().permit(&early.gate).permit(&late.gate);
        let held = admission.try_admit(both).expect("nobody is there");
        let waiters = [&early, &late].map(|place| place.visit(&admission));
        assert!(held.release_one(&early.gate));
        drop(held);
        join(waiters);
        is_over(&admission, 3);
        early.is_left();
        late.is_left();
    });
}
