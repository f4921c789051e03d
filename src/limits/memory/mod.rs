//! Memory: a limit that is watched rather than booked.

mod builder;
#[cfg(feature = "memory")]
mod cgroup;
mod curve;
mod floor;
mod gate;
#[cfg(feature = "memory")]
mod kept_file;
mod latch;
mod level;
mod origin;
mod penalty;
mod pressure;
#[cfg(feature = "memory")]
mod resident;
mod source;
mod status;
#[cfg(feature = "memory")]
mod system;

pub use builder::MemoryGateBuilder;
pub use gate::MemoryGate;
#[cfg(feature = "memory")]
pub use resident::ResidentMemory;
pub use source::{MemoryReading, MemorySource};
pub use status::{MemoryStatus, MemoryZone};
#[cfg(feature = "memory")]
pub use system::SystemMemory;
