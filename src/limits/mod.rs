//! The limits that come with the crate: each an [`Account`](crate::Account).

mod bucket;
mod circuit;
mod gate;
#[cfg(test)]
mod logged;
mod memory;
mod named;
mod router;
mod stamps;
mod throttle;
mod window;

pub use bucket::{Limits, TokenBucket, TokenBucketStatus};
pub use circuit::CircuitState;
pub use gate::{CountingGate, CountingGateBuilder, SemaphoreStatus};
pub use memory::{
    MemoryGate, MemoryGateBuilder, MemoryReading, MemorySource, MemoryStatus, MemoryZone,
};
#[cfg(feature = "memory")]
pub use memory::{ResidentMemory, SystemMemory};
pub use named::{DatabaseGate, HttpGate, ModelGate};
pub use router::Router;
pub use window::{ElasticWindow, ElasticWindowBuilder, ElasticWindowStatus, WindowConfig};
