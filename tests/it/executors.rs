//! Futures of this crate on executors that are not Tokio's.

use std::sync::mpsc;
use std::thread;

use admit::{Admission, AdmitError};
use futures::executor::block_on;

use crate::support::*;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap()
}

#[test]
fn an_admit_is_awaited_on_an_executor_that_knows_nothing_of_tokio() {
    let runtime = runtime();
    let admission = Admission::builder().build().unwrap();
    runtime.block_on(async { admission.start().unwrap() });
    let (a, b) = (named("a", 1), bucket(1_000, 60_000));
    let demand = permits(&a, 1).tokens(&b, 10);
    let grant = block_on(admission.admit(demand.clone())).unwrap();
    let (parks, parked) = mpsc::channel();
    let waiting = {
        let (admission, demand) = (admission.clone(), demand.clone());
        thread::spawn(move || {
            parks.send(()).unwrap();
            let grant = block_on(admission.admit(demand)).unwrap();
            let waits = grant.wait_times().len();
            drop(grant);
            waits
        })
    };
    parked.recv().unwrap();
    while admission.queue_len() == 0 {
        thread::yield_now();
    }
    drop(grant);
    assert_eq!(waiting.join().unwrap(), 1);
    // Time limits and `drained` need no runtime where they are awaited, either.
    let held = block_on(admission.admit(demand.clone())).unwrap();
    let late = block_on(admission.admit(demand.clone()).within(millis(5)));
    assert!(matches!(late, Err(AdmitError::TimedOut { .. })));
    drop(held);
    assert_eq!(block_on(admission.run(demand, async { 5 })).unwrap(), 5);
    block_on(admission.drained());
    assert_eq!(a.status().active, 0);
}

#[test]
fn without_any_runtime_what_fits_is_granted_and_the_rest_can_be_tried() {
    let admission = Admission::builder().build().unwrap();
    let a = named("a", 1);
    let grant = block_on(admission.admit(permits(&a, 1))).unwrap();
    assert!(admission.try_admit(permits(&a, 1)).is_err());
    drop(grant);
    let grant = thread::spawn({
        let (admission, demand) = (admission.clone(), permits(&a, 1));
        move || admission.try_admit(demand).unwrap()
    });
    // A grant is settled on whatever thread it ends.
    drop(grant.join().unwrap());
    assert_eq!(a.status().active, 0);
}
