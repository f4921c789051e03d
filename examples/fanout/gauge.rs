//! How full the accounts of a run are, for the live lines.

use std::time::Duration;

/// One account, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gauge {
    /// The account's name.
    pub(crate) name: String,
    /// How much of it is in use.
    pub(crate) in_use: u64,
    /// How much there is of it.
    pub(crate) capacity: u64,
    /// How many jobs wait on it.
    pub(crate) waiting: usize,
    /// How long the first of them has.
    pub(crate) oldest: Option<Duration>,
    /// Its own word on an unusual state.
    pub(crate) note: Option<String>,
}

/// Something that has accounts to read.
pub(crate) trait Gauges: Send + Sync + 'static {
    /// Reads all of them, always in the same order.
    fn read(&self) -> Vec<Gauge>;
}
