//! Memory that reads what a test says.

use std::io;

use crate::limits::{MemoryReading, MemorySource};
use crate::sync::{Arc, AtomicUsize, Mutex, Ordering};

/// A source of memory readings that says what it is told.
///
/// # Examples
///
/// ```
/// use admit::{MemoryGate, Turn, Valve};
/// use admit::testing::ScriptedMemory;
/// use tokio::time::Instant;
///
/// let memory = ScriptedMemory::at_percent(96.0);
/// let gate = MemoryGate::with_source(memory.clone())?;
/// gate.look(Instant::now());
/// assert!(!gate.willing(Turn::default(), Instant::now()));
/// assert_eq!((memory.reads(), memory.relieved()), (1, 1));
/// # Ok::<(), admit::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct ScriptedMemory {
    answer: Mutex<Answer>,
    reads: AtomicUsize,
    relieved: AtomicUsize,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Reading(MemoryReading),
    Failure,
    Panic,
}

impl ScriptedMemory {
    /// The limit that percentages are set against, in bytes.
    pub const LIMIT: u64 = 1_000_000_000;

    /// So many bytes used of so many.
    #[must_use]
    pub fn new(used: u64, limit: u64) -> Arc<Self> {
        Arc::new(Self {
            answer: Mutex::new(Answer::Reading(MemoryReading::new(used, limit))),
            reads: AtomicUsize::new(0),
            relieved: AtomicUsize::new(0),
        })
    }

    /// So many hundredths of [`LIMIT`](Self::LIMIT) used.
    #[must_use]
    pub fn at_percent(percent: f64) -> Arc<Self> {
        Self::new(Self::bytes(percent), Self::LIMIT)
    }

    /// Reads so many bytes used of so many, from now on.
    pub fn set(&self, used: u64, limit: u64) {
        *self.answer.lock() = Answer::Reading(MemoryReading::new(used, limit));
    }

    /// Reads so many hundredths of [`LIMIT`](Self::LIMIT), from now on.
    pub fn set_percent(&self, percent: f64) {
        self.set(Self::bytes(percent), Self::LIMIT);
    }

    /// Fails every reading, from now on.
    pub fn fail(&self) {
        *self.answer.lock() = Answer::Failure;
    }

    /// Panics at every reading, from now on.
    pub fn panic(&self) {
        *self.answer.lock() = Answer::Panic;
    }

    /// How often it was read, failures included.
    #[must_use]
    pub fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    /// How often it was asked to relieve.
    #[must_use]
    pub fn relieved(&self) -> usize {
        self.relieved.load(Ordering::SeqCst)
    }

    /// Rounded: 89 % of the limit is meant, not the byte below it that a float may give.
    fn bytes(percent: f64) -> u64 {
        (percent / 100.0 * Self::LIMIT as f64).round() as u64
    }
}

impl MemorySource for ScriptedMemory {
    fn read(&self) -> io::Result<MemoryReading> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let answer = *self.answer.lock();
        match answer {
            Answer::Reading(reading) => Ok(reading),
            Answer::Failure => Err(io::Error::other("scripted failure")),
            Answer::Panic => panic!("scripted panic"),
        }
    }

    fn relieve(&self) {
        self.relieved.fetch_add(1, Ordering::SeqCst);
    }
}
