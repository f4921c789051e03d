//! Take several limits at once, or wait holding nothing.

mod account;
mod amount;
mod demand;
mod error;
mod events;
mod grant;
mod limits;
mod models;
mod monitor;
mod snapshot;
mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod upstream;

pub use account::{
    Account, AccountId, AccountLink, AsAccount, Ask, Charge, Refusal, Replenishment, Turn, Valve,
};
pub use amount::{Amount, JobInfo};
pub use demand::{Demand, Entry};
pub use error::{
    AccountPanic, AdmitError, BuildError, ConfigError, Defect, Shortage, StartError, TryAdmitError,
};
pub use events::{Category, EventKind, LimiterEvent, RejectReason};
pub use grant::{Grant, WaitTime};
pub use limits::{
    CircuitState, CountingGate, CountingGateBuilder, DatabaseGate, ElasticWindow,
    ElasticWindowBuilder, ElasticWindowStatus, HttpGate, Limits, MemoryGate, MemoryGateBuilder,
    MemoryReading, MemorySource, MemoryStatus, MemoryZone, ModelGate, Router, SemaphoreStatus,
    TokenBucket, TokenBucketStatus, WindowConfig,
};
#[cfg(feature = "memory")]
pub use limits::{ResidentMemory, SystemMemory};
pub use models::{Accounts, BoxError, ModelSpec, Prices, RegistryError, Singleton};
#[cfg(feature = "catalog")]
pub use models::{Catalog, CatalogError, CatalogPlace};
pub use monitor::{Admission, AdmissionBuilder, Admit};
pub use snapshot::{
    AccountSnapshot, HeadSnapshot, HolderSnapshot, Snapshot, Totals, Unseen, WaitHistogram,
};
pub use upstream::{
    FailureKind, LimitReading, QuotaPolicy, RateLimitInfo, RateLimitKind, UpstreamFailure,
};
