//! Where the readings come from.

use std::io;

use crate::sync::Arc;

/// Memory at one moment: what is used, of what limit, in bytes.
///
/// # Examples
///
/// ```
/// use admit::MemoryReading;
///
/// let reading = MemoryReading::new(480 << 20, 512 << 20);
/// assert_eq!(reading.ratio(), 0.9375);
/// assert_eq!(MemoryReading::new(480 << 20, 0).ratio(), 0.0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReading {
    /// What is used, in bytes; it may exceed the limit.
    pub used: u64,
    /// The limit, in bytes; zero means that there is none, and no pressure.
    pub limit: u64,
}

impl MemoryReading {
    /// So many bytes used of so many.
    #[must_use]
    pub const fn new(used: u64, limit: u64) -> Self {
        Self { used, limit }
    }

    /// The share in use: 1.0 is the whole limit, and 0.0 is said when there is none.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.limit == 0 { 0.0 } else { self.used as f64 / self.limit as f64 }
    }

    /// Whether at least so many hundredths of the limit are used; exact to the byte.
    pub(super) fn reaches(&self, percent: u64) -> bool {
        self.limit > 0
            && u128::from(self.used) * 100 >= u128::from(self.limit) * u128::from(percent)
    }
}

/// Something that can say how much memory is used, and of what limit.
///
/// The gate reads it at most once per reading age (20 ms by default), never from two threads at
/// once, and outside every lock of an admission. It reads on the path of whoever asked for
/// admission, so a reading should take microseconds.
///
/// # Errors
///
/// [`read`](Self::read) may fail or panic: the gate goes on with its last reading and logs that
/// once.
///
/// # Examples
///
/// ```
/// use admit::{MemoryGate, MemoryReading, MemorySource};
/// use std::io;
///
/// /// A process whose allocator is told to stay within 256 MiB.
/// struct Arena;
///
/// impl MemorySource for Arena {
///     fn read(&self) -> io::Result<MemoryReading> {
///         Ok(MemoryReading::new(64 << 20, 256 << 20))
///     }
/// }
///
/// let gate = MemoryGate::with_source(Arena)?;
/// # Ok::<(), admit::ConfigError>(())
/// ```
pub trait MemorySource: Send + Sync + 'static {
    /// Memory now.
    ///
    /// # Errors
    ///
    /// When it cannot be read; the gate keeps the reading it has.
    fn read(&self) -> io::Result<MemoryReading>;

    /// Gives back what can be given back: called once each time the latch sets.
    ///
    /// An allocator that holds on to freed pages purges them here. Does nothing by default.
    fn relieve(&self) {}
}

/// So that whoever built the source keeps a handle to it.
impl<S: MemorySource + ?Sized> MemorySource for Arc<S> {
    fn read(&self) -> io::Result<MemoryReading> {
        (**self).read()
    }

    fn relieve(&self) {
        (**self).relieve();
    }
}
