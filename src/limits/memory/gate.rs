//! The gate around the readings: one lock, and a few words for the path without it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::latch::{Edge, Latch};
use super::origin::Origin;
use super::penalty::Penalty;
use super::pressure::Pressure;
use super::{MemoryGateBuilder, MemorySource, MemoryStatus, MemoryZone, curve};
use crate::account::{AccountLink, InPassage, Turn, Valve};
use crate::caught::say;
use crate::error::{AccountPanic, ConfigError, end_panic};
use crate::one_line::OneLine;
use crate::sync::{Arc, AtomicU8, AtomicU64, Mutex, Ordering};

/// Memory is critical.
const LATCHED: u8 = 1;
/// A release now would change nothing but the instant of the last release.
const SETTLED: u8 = 2;
/// The gate says yes to everyone.
const STOPPED: u8 = 4;

/// The memory gate: watched, not booked, since no job knows what it will need.
///
/// A reading of 95 % or more **latches** it, and nobody with entries goes until one below 90 %.
/// A line that memory has refused **drains**: its jobs go one at a time, the next when one
/// completes or when a delay has passed, whichever is first. The delay follows a cube from 50 ms at
/// 80 % to 30 s at 95 %, times a **growth penalty** (1 to 72,000) that doubles with each point by
/// which the floor has risen since the last release but one; it is at most an hour, and free of
/// the penalty while nothing is in flight. Outside a drain a job starts at once at any reading
/// below the latch.
///
/// One gate may serve several admissions: level, floor, latch and delay are shared, and each line
/// drains by its own completions. A status is only a reading: it changes nothing.
///
/// Memory announces nothing, so whoever is refused asks again within [`RECHECK`](Self::RECHECK).
/// A reading serves for [`READING_AGE`](Self::READING_AGE) unless configured otherwise. While
/// memory is steady and nothing waits on it, asking, releasing and completing cost a few atomic
/// operations and no lock.
///
/// # Examples
///
/// ```
/// use admit::{MemoryGate, MemoryReading, MemorySource, MemoryZone, Turn, Valve};
/// use std::io;
/// use tokio::time::Instant;
///
/// struct Full;
/// impl MemorySource for Full {
///     fn read(&self) -> io::Result<MemoryReading> { Ok(MemoryReading::new(96, 100)) }
/// }
///
/// let gate = MemoryGate::with_source(Full)?;
/// let now = Instant::now();
/// gate.look(now);
/// assert!(!gate.willing(Turn::default(), now));
/// assert_eq!(gate.status().zone, MemoryZone::Critical);
/// # Ok::<(), admit::ConfigError>(())
/// ```
pub struct MemoryGate {
    link: AccountLink,
    source: Box<dyn MemorySource>,
    reading_age: Duration,
    progress_after: Option<Duration>,
    origin: Origin,
    flags: AtomicU8,
    /// From which instant on a new reading is due; zero before the first.
    due: AtomicU64,
    /// The last release; zero before the first. Never goes back.
    last_release: AtomicU64,
    /// Jobs granted and neither completed nor rolled back.
    ///
    /// Wraps rather than locks when somebody reports a completion too many: see [`is_idle`](Self::is_idle).
    in_flight: AtomicU64,
    /// Whether a failure of the source has been logged.
    ///
    /// Held while the source is read, and never taken under another lock.
    failure_logged: Mutex<bool>,
    /// The flags follow this, and are written only under its lock.
    pressure: Mutex<Pressure>,
}

/// What a look has to say once every lock is free.
enum Report {
    Latched,
    Cleared,
    Failed(String),
}

impl MemoryGate {
    pub(super) const NAME: &str = "memory";

    /// While a line drains, whoever is refused asks again within this time.
    pub const RECHECK: Duration = Duration::from_secs(2);
    /// Percent of the limit at which nobody with entries goes any more.
    pub const LATCHES_AT: u64 = Latch::SETS_AT;
    /// Percent of the limit below which they go again.
    pub const CLEARS_BELOW: u64 = Latch::CLEARS_BELOW;
    /// The largest factor a growing floor puts on a drain's delay.
    pub const MOST_PENALTY: f64 = Penalty::MOST;
    /// The longest a drain waits between two releases, whatever the penalty.
    pub const LONGEST_DELAY: Duration = curve::CAP;
    /// How long a reading serves unless configured otherwise.
    pub const READING_AGE: Duration = Duration::from_millis(20);

    /// A gate on what would get this process killed: see [`SystemMemory`](crate::SystemMemory).
    ///
    /// # Errors
    ///
    /// None at present; a constructor may refuse.
    #[cfg(feature = "memory")]
    pub fn new() -> Result<Arc<Self>, ConfigError> {
        Self::builder().build()
    }

    /// A gate on this process's resident set, against so many bytes.
    ///
    /// # Errors
    ///
    /// When the budget is zero.
    #[cfg(feature = "memory")]
    pub fn with_budget(bytes: u64) -> Result<Arc<Self>, ConfigError> {
        Self::builder().budget(bytes).build()
    }

    /// A gate on readings of your own.
    ///
    /// # Errors
    ///
    /// None at present; a constructor may refuse.
    pub fn with_source(source: impl MemorySource) -> Result<Arc<Self>, ConfigError> {
        Self::builder().source(source).build()
    }

    /// A gate to be configured.
    pub const fn builder() -> MemoryGateBuilder {
        MemoryGateBuilder::new()
    }

    pub(super) fn assemble(
        source: Box<dyn MemorySource>,
        reading_age: Duration,
        progress_after: Option<Duration>,
    ) -> Result<Arc<Self>, ConfigError> {
        Ok(Arc::new(Self {
            link: AccountLink::new(Self::NAME)?,
            source,
            reading_age,
            progress_after,
            origin: Origin::new(Instant::now()),
            flags: AtomicU8::new(0),
            due: AtomicU64::new(0),
            last_release: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            failure_logged: Mutex::new(false),
            pressure: Mutex::new(Pressure::default()),
        }))
    }

    /// Says yes to everyone from now on, and reads nothing more. Final.
    pub fn stop(&self) {
        let pressure = self.pressure.lock();
        self.flags.fetch_or(STOPPED, Ordering::AcqRel);
        drop(pressure);
        self.link.grew();
    }

    /// The gate's numbers, from the last reading: no look, and no change.
    #[must_use]
    pub fn status(&self) -> MemoryStatus {
        let held = self.link.waiting();
        let pressure = self.pressure.lock();
        let reading = pressure.reading();
        let zone = if self.has(STOPPED) {
            MemoryZone::Green
        } else if pressure.latched_since().is_some() {
            MemoryZone::Critical
        } else if held > 0 {
            MemoryZone::Draining
        } else {
            MemoryZone::Green
        };
        MemoryStatus {
            used: reading.used,
            limit: reading.limit,
            ratio: reading.ratio(),
            floor: pressure.floor_ratio(),
            zone,
            held,
            pacing: pressure.delay(self.is_idle()),
            growth_penalty: pressure.penalty(),
        }
    }

    fn has(&self, flag: u8) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    /// Nothing is in flight.
    ///
    /// A count that wrapped below zero is nothing too: it must not penalize a line for ever.
    fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed).cast_signed() <= 0
    }

    /// Brings the flags up to what the pressure says now.
    ///
    /// The lock must be held, or two updates could leave the older answer.
    fn publish(&self, pressure: &Pressure) {
        let latched = if pressure.latched_since().is_some() { LATCHED } else { 0 };
        let settled = if pressure.is_settled() { SETTLED } else { 0 };
        let stopped = self.flags.load(Ordering::Relaxed) & STOPPED;
        self.flags.store(latched | settled | stopped, Ordering::Release);
    }

    /// Reads the source, unless somebody else does or just did.
    fn refresh(&self, now: Instant, word: u64) -> Option<Report> {
        // With a reading in hand nobody waits for a new one. Before the first there is nothing to
        // go on with, and going on without would let a whole start-up past a full memory.
        let first = self.due.load(Ordering::Acquire) == 0;
        let mut logged =
            if first { self.failure_logged.lock() } else { self.failure_logged.try_lock()? };
        if word < self.due.load(Ordering::Acquire) {
            return None;
        }
        let outcome = AccountPanic::catch("read", || self.source.read())
            .map_err(|panic| panic.to_string())
            .and_then(|read| read.map_err(|error| error.to_string()));
        let report = match outcome {
            Ok(reading) => {
                let mut pressure = self.pressure.lock();
                let edge = pressure.observe(reading, now);
                self.publish(&pressure);
                drop(pressure);
                edge.map(|edge| match edge {
                    Edge::Set => Report::Latched,
                    Edge::Cleared => Report::Cleared,
                })
            }
            Err(failure) => {
                let told = std::mem::replace(&mut *logged, true);
                (!told).then_some(Report::Failed(failure))
            }
        };
        let due = self.origin.word(now.checked_add(self.reading_age).unwrap_or(now));
        self.due.store(due, Ordering::Release);
        drop(logged);
        report
    }

    /// Who listens to the log may panic, which is no fault of the gate's: it must not be taken for
    /// one where the gate is asked.
    fn tell(&self, report: Report) {
        match report {
            Report::Latched => {
                say(|| warn!("memory latched: {}", self.status()));
                let relieved = catch_unwind(AssertUnwindSafe(|| self.source.relieve()));
                if let Err(payload) = relieved {
                    end_panic(payload);
                    say(|| warn!("the memory source panicked when asked to relieve"));
                }
            }
            Report::Cleared => say(|| info!("memory cleared: {}", self.status())),
            Report::Failed(failure) => {
                let failure = OneLine(failure);
                say(|| {
                    warn!("memory cannot be read, the last reading stands (told once): {failure}")
                });
            }
        }
    }

    /// When a drain's next release is due by the delay; `None` before the first.
    fn paced(&self, pressure: &Pressure) -> Option<Instant> {
        let last = self.origin.instant(self.last_release.load(Ordering::Acquire))?;
        Some(last + pressure.delay(self.is_idle()))
    }

    /// When one job goes in spite of the latch; `None` when none will as things stand.
    fn progress(&self, latched_since: Instant) -> Option<Instant> {
        if self.is_idle() { latched_since.checked_add(self.progress_after?) } else { None }
    }
}

impl Valve for MemoryGate {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn look(&self, now: Instant) {
        let word = self.origin.word(now);
        if word < self.due.load(Ordering::Acquire) || self.has(STOPPED) {
            return;
        }
        if let Some(report) = self.refresh(now, word) {
            self.tell(report);
        }
    }

    fn willing(&self, turn: Turn, now: Instant) -> bool {
        let flags = self.flags.load(Ordering::Acquire);
        if flags & STOPPED != 0 || (flags & LATCHED == 0 && (!turn.draining || turn.earned)) {
            return true;
        }
        let pressure = self.pressure.lock();
        let now = pressure.latest(now);
        match pressure.latched_since() {
            Some(since) => self.progress(since).is_some_and(|at| at <= now),
            None => {
                !turn.draining || turn.earned || self.paced(&pressure).is_none_or(|due| due <= now)
            }
        }
    }

    /// Without the lock while the gate is settled.
    ///
    /// Such a release would find the floor that the two before it found, so it commits what is
    /// committed already. If a look moves the floor meanwhile, the release
    /// counts as the one before that look.
    fn in_passage(&self) -> InPassage<'_> {
        InPassage::Brief
    }

    fn released(&self, now: Instant) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.last_release.fetch_max(self.origin.word(now), Ordering::AcqRel);
        if !self.has(SETTLED) {
            let mut pressure = self.pressure.lock();
            pressure.commit();
            self.publish(&pressure);
            drop(pressure);
        }
    }

    fn completed(&self, _: Instant) -> bool {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let flags = self.flags.load(Ordering::Acquire);
        flags & STOPPED != 0 || flags & LATCHED == 0
    }

    fn rolled_back(&self, _: Instant) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    fn earliest(&self, turn: Turn, now: Instant) -> Option<Instant> {
        if self.has(STOPPED) {
            return Some(now);
        }
        let pressure = self.pressure.lock();
        let now = pressure.latest(now);
        let recheck = now + Self::RECHECK;
        Some(match pressure.latched_since() {
            Some(since) => self.progress(since).map_or(recheck, |at| at.min(recheck)),
            None if !turn.draining || turn.earned => now,
            None => self.paced(&pressure).map_or(now, |due| due.min(recheck)),
        })
    }

    fn capacity(&self) -> u64 {
        self.pressure.lock().reading().limit
    }

    fn in_use(&self) -> u64 {
        self.pressure.lock().reading().used
    }

    /// `blocked` while latched, `pace:<n>ms` while a line drains.
    fn indicator(&self, _: Instant) -> Option<String> {
        let status = self.status();
        match status.zone {
            MemoryZone::Critical => Some("blocked".to_owned()),
            MemoryZone::Draining => Some(format!("pace:{}ms", status.pacing.as_millis())),
            MemoryZone::Green => None,
        }
    }

    fn summary(&self, _: Instant) -> String {
        self.status().to_string()
    }
}

impl fmt::Debug for MemoryGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryGate")
            .field("status", &self.status())
            .field("stopped", &self.has(STOPPED))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
