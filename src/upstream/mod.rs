//! What an upstream says: its failures, and why they matter to a limit.

mod failure;

pub use failure::{FailureKind, UpstreamFailure};
