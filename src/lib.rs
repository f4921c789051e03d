//! Take several limits at once, or wait holding nothing.
//!
//! A job often needs several limits at the same time: tokens of a model, a place in an HTTP pool, a
//! database connection. Taken one after another, each is held idle while the next is waited for, and
//! jobs that need little wait behind limits that nobody uses. Here a job names everything it needs in
//! one [`Demand`]. [`Admission::admit`] takes the whole of it in one step, or the job waits in line
//! holding nothing.
//!
//! ```
//! use admit::{Admission, Demand, HttpGate, Limits, TokenBucket};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let admission = Admission::builder().start()?;
//! let model = TokenBucket::new("gpt-x", Limits::per_minute(500, 30_000))?;
//! let http = HttpGate::new(64)?;
//!
//! let grant = admission.admit(Demand::new().tokens(&model, 1_800).permit(&http)).await?;
//! // … call the model …
//! drop(grant); // the place is free at once, the tokens come back with time
//! # Ok(())
//! # }
//! ```
//!
//! # What is here
//!
//! - The monitor: [`Admission`], [`Demand`], the future [`Admit`], and the [`Grant`] it resolves to.
//! - Limits: [`CountingGate`] with [`HttpGate`], [`DatabaseGate`] and [`ModelGate`]; [`TokenBucket`];
//!   [`ElasticWindow`]; [`Router`] for a limit per key; [`MemoryGate`]. A limit of your own implements
//!   [`Account`].
//! - Models: [`ModelSpec`], [`Accounts`], and `Catalog` with the feature `catalog`.
//! - Jobs: [`JobRunner`] runs what [`Requirements`] declare, with [`Resources`]; databases come
//!   through a [`DbProvider`]: [`CountingProvider`], `SqlxProvider`, `SeaOrmProvider`, or your own.
//! - Money: [`Money`] and [`Cost`], exact and per [`Currency`]; [`Prices`] of a [`Usage`]; a
//!   [`SpendGate`] before jobs that cost something, and [`SpendLedger`], caps per workflow.
//! - What upstreams say: [`UpstreamFailure`], [`RateLimitInfo`].
//! - Watching: [`Admission::snapshot`], [`Admission::subscribe`].
//!
//! The [`guide`] goes through all of it.
//!
//! # What it promises
//!
//! - A demand is granted whole, in one step, or not at all.
//! - There is one line, first come first served, and nobody overtakes its head on anything the head
//!   needs. A job whose limits have room beside that goes at once.
//! - Nobody polls: a waiting job is woken once, for its outcome.
//! - Everything is cancel safe: a future that is dropped leaves the line and takes nothing with it.
//!
//! # Features
//!
//! | feature | default | brings |
//! | --- | --- | --- |
//! | `memory` | yes | the memory gate's own readings: cgroup, machine, resident set |
//! | `http` | no | limits and failures read from response headers |
//! | `catalog` | no | models from a TOML file |
//! | `serde` | no | events, snapshots' counters and configuration as data |
//! | `sqlx` | no | a job's connection from a sqlx 0.9 pool; the drivers are yours to choose |
//! | `sea-orm` | no | the same connection for SeaORM 2; brings `sqlx` |
//! | `testing` | no | the contracts of accounts and providers as tests, scripted memory, the monitor's own checks |

mod account;
mod amount;
mod caught;
mod db;
mod demand;
mod error;
mod events;
mod grant;
mod jobs;
mod limits;
mod models;
mod money;
mod monitor;
mod one_line;
mod snapshot;
mod spanned;
mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod time_left;
mod upstream;

pub use account::{
    Account, AccountId, AccountLink, AsAccount, Ask, Charge, Refusal, Replenishment, Turn, Valve,
};
pub use amount::{Amount, JobInfo};
pub use db::{
    CountingHandle, CountingProvider, DatabaseSettings, DbProvider, DbProviders, DbProvidersError,
    DbVerb, Mapped, ProviderError, ambient, requires_new,
};
#[cfg(feature = "sea-orm")]
pub use db::{SeaOrmProvider, SeaOrmSession, SeaOrmTransaction};
#[cfg(feature = "sqlx")]
pub use db::{SqlDialect, SqlxHandle, SqlxProvider, SqlxProviderBuilder, SqlxSession};
pub use demand::{Demand, Entry};
pub use error::{
    AccountPanic, AdmitError, BoxError, BuildError, ConfigError, Defect, Shortage, StartError,
    TryAdmitError,
};
pub use events::{Category, EventKind, LimiterEvent, RejectReason};
pub use grant::{Grant, GrantRef, WaitTime};
pub use jobs::{
    Finished, Job, JobError, JobRecord, JobRunner, JobRunnerBuilder, Priced, Requirements,
    Reservation, Resources, RetryPolicy, RunError, RunStage, SpendGate, SpendLedger, SpendRefusal,
    SpendStatus, TimeoutCause, UsageError,
};
pub use limits::{
    CircuitState, CountingGate, CountingGateBuilder, DatabaseGate, ElasticWindow,
    ElasticWindowBuilder, ElasticWindowStatus, HttpGate, Limits, MemoryGate, MemoryGateBuilder,
    MemoryReading, MemorySource, MemoryStatus, MemoryZone, ModelGate, Router, SemaphoreStatus,
    TokenBucket, TokenBucketStatus, WindowConfig,
};
#[cfg(feature = "memory")]
pub use limits::{ResidentMemory, SystemMemory};
pub use models::{Accounts, ModelSpec, Prices, RegistryError, Singleton, Usage};
#[cfg(feature = "catalog")]
pub use models::{Catalog, CatalogError, CatalogPlace};
pub use money::{Cost, Currency, Money};
#[cfg(any(test, feature = "testing"))]
pub use monitor::Counters;
pub use monitor::{Admission, AdmissionBuilder, Admit, AdmitRef, Borrowed, Keep, Owned};
pub use rust_decimal::Decimal;
pub use snapshot::{
    AccountSnapshot, HeadSnapshot, HolderSnapshot, Snapshot, Totals, Unseen, WaitHistogram,
};
#[cfg(admit_shuttle)]
#[doc(hidden)]
pub use sync::lose_runtime;
pub use upstream::{
    FailureKind, LimitReading, QuotaPolicy, RateLimitInfo, RateLimitKind, UpstreamFailure,
};

#[doc = include_str!("../docs/guide.md")]
pub mod guide {}

// The README's program is compiled and run like any other.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
