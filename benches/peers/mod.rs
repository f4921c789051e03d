//! The same jobs on what one would use otherwise, and the accounts they are compared with.

#![allow(dead_code, reason = "every bench uses its own part of it")]

use std::num::NonZeroU32;
use std::sync::Arc;

use admit::{Admission, CountingGate, Demand, Grant, GrantRef, Limits, TokenBucket};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// An admission with its evaluator on the runtime here.
pub(crate) fn started() -> Admission {
    Admission::builder().start().expect("inside a runtime with a timer")
}

/// A gate of so many permits.
pub(crate) fn gate(permits: u32) -> Arc<CountingGate> {
    CountingGate::new("gate", permits).expect("a positive capacity")
}

/// One permit of each of so many gates.
pub(crate) fn demand_of(gates: usize, permits: u32) -> Demand {
    (0..gates).fold(Demand::new(), |demand, _| demand.permit(&gate(permits)))
}

/// A bucket that is never short at any speed a bench can reach.
pub(crate) fn ample_bucket() -> Arc<TokenBucket> {
    TokenBucket::new("bucket", Limits::per_minute(u32::MAX, 1 << 40)).expect("positive limits")
}

/// A demand that may be held by a task of its own.
#[derive(Clone)]
pub(crate) struct Ours {
    pub(crate) admission: Admission,
    pub(crate) demand: Demand,
}

impl Ours {
    /// Admits the demand, for a job that ends before this does.
    pub(crate) async fn lend(&self) -> GrantRef<'_> {
        self.admission.admit_ref(&self.demand).await.expect("it is granted at some time")
    }

    /// Admits a copy of the demand.
    pub(crate) async fn take(&self) -> Grant {
        self.admission.admit(self.demand.clone()).await.expect("it is granted at some time")
    }
}

/// Tokio semaphores, awaited one after the other.
pub(crate) struct Semaphores<const N: usize>([Semaphore; N]);

impl<const N: usize> Semaphores<N> {
    /// Of so many permits each.
    pub(crate) fn new(permits: usize) -> Self {
        Self(std::array::from_fn(|_| Semaphore::new(permits)))
    }

    async fn permit(&self, at: usize) -> SemaphorePermit<'_> {
        self.0[at].acquire().await.expect("never closed")
    }
}

impl Semaphores<1> {
    pub(crate) async fn take(&self) -> SemaphorePermit<'_> {
        self.permit(0).await
    }
}

impl Semaphores<2> {
    pub(crate) async fn take(&self) -> [SemaphorePermit<'_>; 2] {
        [self.permit(0).await, self.permit(1).await]
    }
}

impl Semaphores<3> {
    pub(crate) async fn take(&self) -> [SemaphorePermit<'_>; 3] {
        [self.permit(0).await, self.permit(1).await, self.permit(2).await]
    }
}

/// A permit that a task of its own may hold.
pub(crate) async fn owned(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(semaphore).acquire_owned().await.expect("never closed")
}

/// governor, with its own clock and defaults: so many cells a second, none saved up beyond that.
pub(crate) fn limiter(cells_per_second: u32) -> DefaultDirectRateLimiter {
    let cells = NonZeroU32::new(cells_per_second).expect("a positive rate");
    RateLimiter::direct(Quota::per_second(cells))
}
