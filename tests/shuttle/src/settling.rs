//! One grant, settled from two sides.

use std::sync::Arc;

use admit::{Demand, Limits, TokenBucket};
use shuttle::future::block_on;
use shuttle::thread;

use crate::explore::{Ways, explore};
use crate::place::{Place, is_over, join, start};

#[test]
fn a_grant_released_and_rolled_back_at_once_settles_one_way() {
    let ways = Ways::default();
    let went = ways.clone();
    explore(move || {
        let (admission, place) = (start(), Place::new(1));
        let bucket = TokenBucket::new("bucket", Limits::per_minute(60, 1_000)).unwrap();
        let demand = Demand::new().tokens(&bucket, 400).permit(&place.gate);
        let grant = Arc::new(admission.try_admit(demand).expect("nobody is there"));
        let waiter = place.visit(&admission);
        let [watchdog, job] = [Arc::clone(&grant), grant];
        let watchdog = thread::spawn(move || watchdog.rollback());
        let is_released = job.release();
        join([waiter]);
        assert_eq!(watchdog.join().unwrap(), !is_released);
        drop(job);
        // Tokens stay spent when the work was done, and are all back when it never happened.
        let left = if is_released { 600 } else { 1_000 };
        assert_eq!(bucket.status().available_tokens, left);
        went.went(is_released);
        is_over(&admission, 2);
        place.is_left();
    });
    ways.were_both_gone();
}

#[test]
fn a_permit_given_back_early_beside_the_end_comes_back_once() {
    let ways = Ways::default();
    let went = ways.clone();
    explore(move || {
        let (admission, place) = (start(), Place::new(1));
        let grant = Arc::new(place.try_admit(&admission));
        let waiters = [place.visit(&admission), place.visit(&admission)];
        let other = Arc::clone(&grant);
        let gate = Arc::clone(&place.gate);
        let early = thread::spawn(move || other.release_one(&gate));
        assert!(grant.release());
        join(waiters);
        went.went(early.join().unwrap());
        drop(grant);
        is_over(&admission, 3);
        place.is_left();
    });
    ways.were_both_gone();
}

#[test]
fn a_correction_beside_the_parking_of_a_job_lets_it_go() {
    explore(|| {
        let admission = start();
        let bucket = TokenBucket::new("bucket", Limits::per_minute(60, 1_000)).unwrap();
        let demand = Demand::new().tokens(&bucket, 1_000);
        let grant = admission.try_admit(demand).expect("it is full");
        let waits = admission.admit(Demand::new().tokens(&bucket, 900));
        let waiter = thread::spawn(move || block_on(waits).map(drop));
        // The clock stands still: nothing else brings tokens.
        assert!(grant.reconcile(&bucket, 100));
        waiter.join().unwrap().expect("its turn comes");
        assert_eq!(bucket.status().available_tokens, 0);
        drop(grant);
        is_over(&admission, 2);
    });
}

#[test]
fn a_correction_beside_the_rollback_is_made_or_is_not() {
    let ways = Ways::default();
    let went = ways.clone();
    explore(move || {
        let admission = start();
        let bucket = TokenBucket::new("bucket", Limits::per_minute(60, 1_000)).unwrap();
        let demand = Demand::new().tokens(&bucket, 1_000);
        let grant = Arc::new(admission.try_admit(demand).expect("it is full"));
        let waits = admission.admit(Demand::new().tokens(&bucket, 900));
        let waiter = thread::spawn(move || block_on(waits).map(drop));
        let other = Arc::clone(&grant);
        let account = Arc::clone(&bucket);
        let corrects = thread::spawn(move || other.reconcile(&account, 100));
        assert!(grant.rollback());
        let corrected = corrects.join().unwrap();
        waiter.join().unwrap().expect("its turn comes");
        assert_eq!(bucket.status().available_tokens, 100);
        went.went(corrected);
        drop(grant);
        is_over(&admission, 2);
    });
    ways.were_both_gone();
}
