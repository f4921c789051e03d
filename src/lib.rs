//! Take several limits at once, or wait holding nothing.

mod account;
mod amount;
mod error;
mod events;
mod limits;
mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod upstream;

pub use account::{
    Account, AccountId, AccountLink, AsAccount, Ask, Charge, Refusal, Replenishment, Turn, Valve,
};
pub use amount::{Amount, JobInfo};
pub use error::{
    AccountPanic, AdmitError, BuildError, ConfigError, Defect, Shortage, StartError, TryAdmitError,
};
pub use events::{Category, EventKind, LimiterEvent, RejectReason};
pub use limits::{
    MemoryGate, MemoryGateBuilder, MemoryReading, MemorySource, MemoryStatus, MemoryZone,
};
#[cfg(feature = "memory")]
pub use limits::{ResidentMemory, SystemMemory};
pub use upstream::{FailureKind, UpstreamFailure};
