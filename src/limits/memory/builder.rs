//! How a memory gate is configured.

use std::fmt;
use std::time::Duration;

use super::{MemoryGate, MemorySource};
use crate::error::ConfigError;
use crate::sync::Arc;

/// Configures a [`MemoryGate`]: see [`MemoryGate::builder`].
///
/// # Examples
///
/// ```
/// use admit::{MemoryGate, MemoryReading, MemorySource};
/// use std::{io, time::Duration};
///
/// # struct Arena;
/// # impl MemorySource for Arena {
/// #     fn read(&self) -> io::Result<MemoryReading> { Ok(MemoryReading::new(1, 2)) }
/// # }
/// let gate = MemoryGate::builder()
///     .source(Arena)
///     .progress_after(Duration::from_secs(30))
///     .reading_age(Duration::from_millis(5))
///     .build()?;
/// # Ok::<(), admit::ConfigError>(())
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct MemoryGateBuilder {
    source: Source,
    reading_age: Duration,
    progress_after: Option<Duration>,
}

enum Source {
    Default,
    #[cfg(feature = "memory")]
    Budget(u64),
    Supplied(Box<dyn MemorySource>),
}

impl MemoryGateBuilder {
    pub(super) const fn new() -> Self {
        Self { source: Source::Default, reading_age: MemoryGate::READING_AGE, progress_after: None }
    }

    /// Reads this source, in place of what would get this process killed.
    pub fn source(mut self, source: impl MemorySource) -> Self {
        self.source = Source::Supplied(Box::new(source));
        self
    }

    /// Measures this process's resident set against so many bytes.
    #[cfg(feature = "memory")]
    pub fn budget(mut self, bytes: u64) -> Self {
        self.source = Source::Budget(bytes);
        self
    }

    /// How long a reading serves before the next look takes a new one.
    ///
    /// 20 ms by default. Zero reads at every look.
    pub const fn reading_age(mut self, age: Duration) -> Self {
        self.reading_age = age;
        self
    }

    /// Lets one job go when memory was critical for this long; never by default.
    ///
    /// It goes when the latch has been set for that long and nothing is in flight.
    ///
    /// For a process whose memory is full of something no job of its own will free: without it
    /// such a line waits until somebody else makes room. One job at a time: the next goes when
    /// that one has ended, while memory is still critical.
    pub const fn progress_after(mut self, latched: Duration) -> Self {
        self.progress_after = Some(latched);
        self
    }

    /// The gate.
    ///
    /// # Errors
    ///
    /// When the budget is zero, when a reading would serve longer than the two seconds in which a
    /// draining line asks again, or when no source was supplied and the crate was built without
    /// its feature `memory`.
    pub fn build(self) -> Result<Arc<MemoryGate>, ConfigError> {
        self.assemble().map_err(|error| error.of(MemoryGate::NAME))
    }

    fn assemble(self) -> Result<Arc<MemoryGate>, ConfigError> {
        if self.reading_age > MemoryGate::RECHECK {
            return Err(ConfigError::new(
                "reading_age",
                format!("{:?}", self.reading_age),
                format!("must be at most {:?}", MemoryGate::RECHECK),
            ));
        }
        let source: Box<dyn MemorySource> = match self.source {
            Source::Supplied(source) => source,
            #[cfg(feature = "memory")]
            Source::Budget(bytes) => Box::new(super::ResidentMemory::new(bytes)?),
            #[cfg(feature = "memory")]
            Source::Default => Box::new(super::SystemMemory::new()),
            #[cfg(not(feature = "memory"))]
            Source::Default => {
                return Err(ConfigError::new(
                    "source",
                    "missing",
                    "must be supplied when the feature `memory` is off",
                ));
            }
        };
        MemoryGate::assemble(source, self.reading_age, self.progress_after)
    }
}

impl fmt::Debug for MemoryGateBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryGateBuilder")
            .field("reading_age", &self.reading_age)
            .field("progress_after", &self.progress_after)
            .finish_non_exhaustive()
    }
}
