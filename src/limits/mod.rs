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

/// The longest that an upstream's word holds a limit, whatever the host believes: the clock must be
/// able to say it.
const LONGEST_HOLD: std::time::Duration = std::time::Duration::from_secs(86_400);

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
