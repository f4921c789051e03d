//! What the tests share: small limits, and futures polled by hand.

use std::sync::Arc;
use std::task::Poll;

use admit::{Admission, Admit, AdmitError, CountingGate, Demand, Grant, Limits, TokenBucket};
use tokio_test::task::{Spawn, spawn};

pub(crate) fn started() -> Admission {
    Admission::builder().start().expect("inside a runtime with a timer")
}

pub(crate) fn gate(n: u32) -> Arc<CountingGate> {
    CountingGate::new(format!("gate of {n}"), n).expect("a positive capacity")
}

pub(crate) fn bucket(requests: u32, tokens: u64) -> Arc<TokenBucket> {
    let limits = Limits::per_minute(requests, tokens);
    TokenBucket::new(format!("bucket of {requests} and {tokens}"), limits).expect("positive limits")
}

pub(crate) fn permits(gate: &Arc<CountingGate>, n: u32) -> Demand {
    Demand::new().permits(gate, n)
}

/// Lets every task that can go on do so, without the clock moving.
pub(crate) async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// An admit polled once, which must park.
pub(crate) fn parked(admission: &Admission, demand: Demand) -> Spawn<Admit> {
    let mut admit = spawn(admission.admit(demand));
    assert!(admit.poll().is_pending(), "it does not fit");
    admit
}

/// The outcome of a parked admit that must have landed.
pub(crate) fn landed(admit: &mut Spawn<Admit>) -> Result<Grant, AdmitError> {
    assert!(admit.is_woken(), "it was woken for its outcome");
    match admit.poll() {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("it was woken for nothing"),
    }
}

pub(crate) fn granted(admit: &mut Spawn<Admit>) -> Grant {
    landed(admit).expect("it is granted")
}
