//! How an admission is configured.

use std::fmt;
use std::time::Duration;

use super::Admission;
use super::contained::Contained;
use super::core::Settings;
use super::face::Shared;
use super::pass::LOOKS_A_HOLD;
use crate::account::Valve;
use crate::error::{BuildError, ConfigError};
use crate::sync::Arc;

/// Configures an [`Admission`].
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use admit::Admission;
///
/// let admission = Admission::builder().max_waiting(10_000).track_holders(true).start()?;
/// assert_eq!(admission.queue_len(), 0);
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder builds nothing until `build` or `start`"]
pub struct AdmissionBuilder {
    valve: Option<Arc<dyn Valve>>,
    max_waiting: usize,
    looks_a_hold: usize,
    event_capacity: usize,
    track_holders: bool,
    warn_after: Option<Duration>,
}

impl Default for AdmissionBuilder {
    fn default() -> Self {
        Self {
            valve: None,
            max_waiting: usize::MAX,
            looks_a_hold: LOOKS_A_HOLD,
            event_capacity: Self::DEFAULT_EVENT_CAPACITY,
            track_holders: false,
            warn_after: None,
        }
    }
}

impl AdmissionBuilder {
    /// How many events a subscriber may lag behind before it loses the oldest, by default: some
    /// hundred jobs' worth.
    pub const DEFAULT_EVENT_CAPACITY: usize = 1_024;

    /// The most events a channel can keep.
    const MOST_EVENTS: usize = 1 << 24;

    /// The memory gate, or another limit that is watched rather than booked. None by default.
    ///
    /// One may serve several admissions. One that panics stands open from then on, which is logged.
    pub fn memory_gate(mut self, valve: Arc<dyn Valve>) -> Self {
        self.valve = Some(valve);
        self
    }

    /// The most jobs that may wait at once. No bound by default.
    ///
    /// A demand that would have to wait beyond it fails at once with
    /// [`QueueFull`](crate::AdmitError::QueueFull); one that fits still goes. With zero nobody ever
    /// waits.
    pub const fn max_waiting(mut self, jobs: usize) -> Self {
        self.max_waiting = jobs;
        self
    }

    /// How many events a subscriber may lag behind; the default is
    /// [`DEFAULT_EVENT_CAPACITY`](Self::DEFAULT_EVENT_CAPACITY).
    pub const fn event_capacity(mut self, events: usize) -> Self {
        self.event_capacity = events;
        self
    }

    /// Whether snapshots tell who holds how much of an account, and since when. Off by default: it
    /// costs a clock reading and a map entry a grant.
    pub const fn track_holders(mut self, on: bool) -> Self {
        self.track_holders = on;
        self
    }

    /// Logs, at warn, a job that has waited this long: who it is, what it is short of, and who holds
    /// that, where [holders are tracked](Self::track_holders). Off by default.
    ///
    /// A job is told of once, and of many that wait too long together only the first, with how many
    /// there are: at most one line in this time.
    pub const fn warn_after(mut self, wait: Duration) -> Self {
        self.warn_after = Some(wait);
        self
    }

    /// How many who wait are looked at before the lock is let go for a moment: 4,096, but for a test
    /// that wants to see what becomes of a look that is cut short. Zero is one.
    #[cfg(any(test, feature = "testing"))]
    pub const fn looks_a_hold(mut self, looks: usize) -> Self {
        self.looks_a_hold = if looks == 0 { 1 } else { looks };
        self
    }

    /// Builds the admission without starting it.
    ///
    /// Until [`Admission::start`] everything works but what needs the evaluator: what fits is
    /// granted, what does not waits.
    ///
    /// # Errors
    ///
    /// When the event capacity is zero or more than 16,777,216, or `warn_after` is zero.
    pub fn build(self) -> Result<Admission, ConfigError> {
        if self.event_capacity == 0 || self.event_capacity > Self::MOST_EVENTS {
            return Err(ConfigError::new(
                "event_capacity",
                self.event_capacity,
                format!("must be from 1 to {}", Self::MOST_EVENTS),
            ));
        }
        if self.warn_after.is_some_and(|wait| wait.is_zero()) {
            return Err(ConfigError::new("warn_after", "0s", "must be more than nothing"));
        }
        let settings = Settings {
            valve: self.valve.map(Contained::around),
            max_waiting: self.max_waiting,
            looks_a_hold: self.looks_a_hold,
            track_holders: self.track_holders,
            warn_after: self.warn_after,
        };
        Ok(Admission::of(Shared::new(settings, self.event_capacity)))
    }

    /// Builds the admission and starts its evaluator on the Tokio runtime here.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build) and [`Admission::start`].
    pub fn start(self) -> Result<Admission, BuildError> {
        let admission = self.build()?;
        admission.start()?;
        Ok(admission)
    }
}

impl fmt::Debug for AdmissionBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionBuilder")
            .field("memory_gate", &self.valve.as_ref().map(|valve| valve.link().name()))
            .field("max_waiting", &self.max_waiting)
            .field("event_capacity", &self.event_capacity)
            .field("track_holders", &self.track_holders)
            .field("warn_after", &self.warn_after)
            .finish()
    }
}
