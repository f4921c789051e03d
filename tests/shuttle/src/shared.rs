//! Several admissions that share their limits, and a gate that is resized beside them.

use std::sync::Arc;

use admit::{Admission, CountingGate, Demand, Limits, TokenBucket, TryAdmitError};
use shuttle::future::block_on;
use shuttle::thread;

use crate::explore::{Ways, explore};
use crate::place::{Place, is_over, join, park, start};

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

/// One that stopped still holds the only permit and all the tokens; two others wait for both.
#[test]
fn a_stop_a_correction_a_release_and_a_resize_at_once_serve_who_waits_in_two_others() {
    explore(|| {
        let (old, others, place) = (start(), [start(), start()], Place::new(1));
        let bucket = TokenBucket::new("bucket", Limits::per_minute(60, 1_000)).unwrap();
        let all = place.demand().tokens(&bucket, 1_000);
        let held = Arc::new(old.try_admit(all).expect("nobody is there"));
        let waiting = others
            .each_ref()
            .map(|other| place.wait_for(other.admit(place.demand().tokens(&bucket, 400))));
        let stops = thread::spawn(move || {
            old.stop();
            old
        });
        let corrects = {
            // The clock stands still: nothing else brings tokens.
            let (held, bucket) = (Arc::clone(&held), Arc::clone(&bucket));
            thread::spawn(move || assert!(held.reconcile(&bucket, 100)))
        };
        place.gate.resize(2).unwrap();
        assert!(held.release());
        join([corrects]);
        join(waiting);
        let old = stops.join().unwrap();
        drop(held);
        is_over(&old, 1);
        others.iter().for_each(|other| is_over(other, 1));
        assert_eq!(bucket.status().available_tokens, 100);
        place.is_left();
    });
}

/// Each wants two of three, in another order.
#[test]
fn three_gates_shared_crosswise_by_three_admissions_serve_all_though_one_shrinks_and_grows() {
    explore(|| {
        let gates = ["one", "two", "three"].map(|name| CountingGate::new(name, 2).unwrap());
        let admissions = [start(), start(), start()];
        let threads = [0, 1, 2].map(|first| {
            let demand = Demand::new().permit(&gates[first]).permit(&gates[(first + 1) % 3]);
            let admission: Admission = admissions[first].clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    drop(block_on(admission.admit(demand.clone())).expect("its turn comes"));
                }
            })
        });
        gates[0].resize(1).unwrap();
        gates[0].resize(3).unwrap();
        join(threads);
        admissions.iter().for_each(|admission| is_over(admission, 2));
        assert!(gates.iter().all(|gate| gate.status().active == 0));
    });
}

#[test]
fn a_gate_that_grows_beside_a_newcomer_serves_its_equals_first() {
    let ways = Ways::default();
    let went = ways.clone();
    explore(move || {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let line = [(); 2].map(|()| park(admission.admit(place.demand())));
        let grows = {
            let place = Arc::clone(&place);
            thread::spawn(move || place.gate.resize(4).unwrap())
        };
        let newcomer = admission.try_admit(place.demand()).ok();
        if newcomer.is_some() {
            assert_eq!(admission.snapshot().unseen.count, 2, "it went past its equals");
        }
        went.went(newcomer.is_some());
        join([grows]);
        drop((held, newcomer, line));
        admission.check();
        assert_eq!((admission.snapshot().held, admission.queue_len()), (0, 0));
        place.is_left();
    });
    ways.were_both_gone();
}
