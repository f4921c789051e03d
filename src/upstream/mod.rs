//! What an upstream says: its failures, its limits, and why they matter to a limit here.

mod failure;
#[cfg(feature = "http")]
mod headers;
mod info;
#[cfg(feature = "http")]
mod quota;
#[cfg(feature = "http")]
mod retry_after;
#[cfg(feature = "http")]
mod structured;

pub use failure::{FailureKind, UpstreamFailure};
pub use info::{LimitReading, QuotaPolicy, RateLimitInfo, RateLimitKind};
