//! Two admissions that share a gate.

use admit::{CountingGate, Demand, TryAdmitError};
use shuttle::future::block_on;
use shuttle::thread;

use crate::explore::{Ways, explore};
use crate::place::{Place, is_over, join, start};

#[test]
fn what_comes_back_through_one_serves_who_waits_in_the_other() {
    explore(|| {
        let (one, other, place) = (start(), start(), Place::new(1));
        let held = place.try_admit(&one);
        let threads = [place.visit(&other), place.visit(&one)];
        drop(held);
        join(threads);
        is_over(&one, 2);
        is_over(&other, 1);
        place.is_left();
    });
}

#[test]
fn an_attempt_that_is_undone_parks_nobody_in_the_other() {
    let ways = Ways::default();
    let went = ways.clone();
    explore(move || {
        let (one, other, place) = (start(), start(), Place::new(1));
        let full = CountingGate::new("full", 1).unwrap();
        // Named after the gate, and so debited after it: the gate's permit is taken and given back.
        let held = one.try_admit(Demand::new().permit(&full)).expect("nobody is there");
        let demand = place.demand().permit(&full);
        let tries = thread::spawn(move || match one.try_admit(demand) {
            Err(TryAdmitError::WouldWait { .. }) => one,
            other => panic!("{other:?}"),
        });
        let waiter = place.visit(&other);
        join([waiter]);
        let one = tries.join().unwrap();
        drop(held);
        went.went(other.snapshot().waits.at_once == 1);
        is_over(&one, 1);
        is_over(&other, 1);
        place.is_left();
    });
    ways.were_both_gone();
}

#[test]
fn two_gates_in_either_order_through_two_admissions_all_get_through() {
    explore(|| {
        let admissions = [start(), start()];
        let gates = ["one", "other"].map(|name| CountingGate::new(name, 1).unwrap());
        let threads = [0, 1].map(|first| {
            let demand = Demand::new().permit(&gates[first]).permit(&gates[1 - first]);
            let admission = admissions[first].clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    drop(block_on(admission.admit(demand.clone())).expect("its turn comes"));
                }
            })
        });
        join(threads);
        admissions.iter().for_each(|admission| is_over(admission, 2));
        assert!(gates.iter().all(|gate| gate.status().active == 0));
    });
}
