//! Past the door: grants that see nothing of the admission's state, beside everybody who changes what
//! they count.

use std::io;
use std::sync::Arc;

use admit::{
    Account, Admission, Amount, Ask, Charge, CountingGate, Limits, MemoryGate, MemoryReading,
    MemorySource, TokenBucket,
};
use shuttle::thread::{self, JoinHandle};
use tokio::time::Instant;

use crate::explore::{Ways, explore};
use crate::place::{Place, drop_beside, is_over, join, park, start};

/// An admission whose door is open: somebody has come and gone by the inline way.
fn open(place: &Place) -> Admission {
    let admission = start();
    drop(place.try_admit(&admission));
    admission
}

/// Comes and goes by the door, if the gate has room, and answers whether it had.
fn passes(place: &Arc<Place>, admission: &Admission) -> JoinHandle<bool> {
    let (place, admission) = (Arc::clone(place), admission.clone());
    thread::spawn(move || match admission.try_admit(place.demand()) {
        Ok(grant) => {
            place.work(grant);
            true
        }
        Err(_) => false,
    })
}

/// Takes and keeps a permit as no admission does.
fn takes_directly(gate: &Arc<CountingGate>) -> JoinHandle<bool> {
    let gate = Arc::clone(gate);
    thread::spawn(move || {
        let ask = Ask::new(0, Amount::permits(1), Instant::now());
        gate.try_take(&ask).expect("it fits the gate").is_some()
    })
}

#[test]
fn two_strangers_beside_a_passage_lose_no_permit() {
    explore(|| {
        let place = Place::new(4);
        let admission = open(&place);
        let passing = passes(&place, &admission);
        let strangers = [(); 2].map(|()| takes_directly(&place.gate));
        assert_eq!(join(strangers), [true, true]);
        assert_eq!(join([passing]), [true]);
        assert_eq!(place.gate.status().active, 2);
        for _ in 0..2 {
            let now = Instant::now();
            place.gate.give(&Charge::new(0, Amount::permits(1), now), now);
        }
        is_over(&admission, 2);
        place.is_left();
    });
}

#[test]
fn a_passage_goes_by_no_capacity_that_a_finished_resize_took_away() {
    let ways = Ways::default();
    let went = ways.clone();
    explore(move || {
        let place = Place::new(2);
        let admission = open(&place);
        let both = place.demand().permit(&place.gate);
        let passing = {
            let admission = admission.clone();
            thread::spawn(move || admission.try_admit(both).ok())
        };
        place.gate.resize(1).unwrap();
        let after = place.gate.status().active;
        let grant = join([passing]).pop().unwrap();
        assert_eq!(after, if grant.is_some() { 2 } else { 0 }, "two of one were granted");
        went.went(grant.is_some());
        let granted = 1 + u64::from(grant.is_some());
        drop(grant);
        is_over(&admission, granted);
        place.is_left();
    });
    ways.were_both_gone();
}

#[test]
fn a_second_admission_that_attaches_beside_passages_loses_no_permit() {
    explore(|| {
        let place = Place::new(1);
        let (one, other) = (open(&place), start());
        let passing = passes(&place, &one);
        let waiting = place.visit(&other);
        let passed = join([passing]) == [true];
        join([waiting]);
        is_over(&one, 1 + u64::from(passed));
        is_over(&other, 1);
        place.is_left();
    });
}

#[test]
fn who_parks_beside_a_release_past_the_door_is_not_left_there() {
    explore(|| {
        let place = Place::new(1);
        let admission = open(&place);
        let held = place.try_admit(&admission);
        let waiting = [place.visit(&admission), place.visit(&admission)];
        let leaving = drop_beside(held);
        join(waiting);
        join([leaving]);
        is_over(&admission, 4);
        place.is_left();
    });
}

#[test]
fn a_look_from_outside_counts_whoever_is_past_the_door() {
    explore(|| {
        let place = Place::new(2);
        let admission = open(&place);
        let passing = [(); 2].map(|()| passes(&place, &admission));
        let snapshot = admission.snapshot();
        assert!(snapshot.held <= 2 && (1..=3).contains(&snapshot.totals.granted));
        assert_eq!(join(passing), [true, true]);
        is_over(&admission, 3);
        place.is_left();
    });
}

#[test]
fn a_stop_beside_passages_ends_them_and_what_is_held_comes_back() {
    explore(|| {
        let place = Place::new(2);
        let admission = open(&place);
        let passing = [(); 2].map(|()| passes(&place, &admission));
        admission.stop();
        let passed = join(passing).into_iter().filter(|&passed| passed).count() as u64;
        is_over(&admission, 1 + passed);
        place.is_left();
    });
}

#[test]
fn what_was_handed_over_and_never_seen_goes_to_the_next() {
    explore(|| {
        let place = Place::new(1);
        let admission = open(&place);
        let held = place.try_admit(&admission);
        let head = park(admission.admit(place.demand()));
        let behind = park(admission.admit(place.demand()));
        let threads = [drop_beside(head)];
        let leaving = drop_beside(held);
        let waiting = place.wait_for(behind);
        join(threads);
        join([leaving, waiting]);
        admission.check();
        assert_eq!((admission.snapshot().held, admission.queue_len()), (0, 0));
        place.is_left();
    });
}

#[test]
fn what_a_stopped_admission_gives_back_serves_who_waits_in_another() {
    explore(|| {
        let place = Place::new(1);
        let (old, new) = (open(&place), start());
        let held = place.try_admit(&old);
        old.stop();
        let leaving = drop_beside(held);
        let waiting = place.visit(&new);
        join([leaving, waiting]);
        is_over(&new, 1);
        place.is_left();
    });
}

/// Memory with room enough.
pub(crate) struct Roomy;

impl MemorySource for Roomy {
    fn read(&self) -> io::Result<MemoryReading> {
        Ok(MemoryReading::new(10, 100))
    }
}

#[test]
fn passages_with_tokens_and_memory_beside_who_waits_take_each_once() {
    explore(|| {
        let place = Place::new(1);
        let bucket = TokenBucket::new("bucket", Limits::per_minute(10, 100)).unwrap();
        let memory = MemoryGate::with_source(Roomy).unwrap();
        let admission = Admission::builder().memory_gate(memory).start().unwrap();
        let demand = place.demand().tokens(&bucket, 10);
        drop(admission.try_admit(demand.clone()).expect("nobody is there"));
        let held = admission.try_admit(demand.clone()).expect("nobody is there");
        let threads = [
            place.wait_for(admission.admit(demand.clone())),
            place.wait_for(admission.admit(demand)),
            drop_beside(held),
        ];
        join(threads);
        assert_eq!(bucket.status().available_tokens, 60);
        assert_eq!(bucket.status().available_requests, 6);
        is_over(&admission, 4);
        place.is_left();
    });
}
