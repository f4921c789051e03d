//! The limits that come with the crate: each an [`Account`](crate::Account).

mod bucket;
mod gate;
mod named;
mod router;
mod throttle;

pub use bucket::{Limits, TokenBucket, TokenBucketStatus};
pub use gate::{CountingGate, CountingGateBuilder, SemaphoreStatus};
pub use named::{DatabaseGate, HttpGate, ModelGate};
pub use router::Router;
