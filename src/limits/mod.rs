//! The limits that come with the crate: each an [`Account`](crate::Account).

mod memory;

pub use memory::{
    MemoryGate, MemoryGateBuilder, MemoryReading, MemorySource, MemoryStatus, MemoryZone,
};
#[cfg(feature = "memory")]
pub use memory::{ResidentMemory, SystemMemory};
