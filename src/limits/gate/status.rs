//! A gate's numbers at one instant.

use std::fmt;

use tokio::time::Instant;

/// A gate's numbers at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SemaphoreStatus {
    /// The capacity.
    pub max_concurrent: u32,
    /// How many permits are free; none while a shrunk gate is overfull.
    pub available_permits: u32,
    /// How many permits are in use; more than the capacity while a shrunk gate is overfull.
    pub active: u32,
    /// When a permit was last taken or given back, if the gate tracks it and that has happened.
    pub last_activity: Option<Instant>,
}

impl SemaphoreStatus {
    /// One line naming the numbers.
    #[must_use]
    pub fn summary(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for SemaphoreStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max_concurrent, available_permits, active, .. } = self;
        write!(f, "{active} of {max_concurrent} permits in use, {available_permits} available")
    }
}
