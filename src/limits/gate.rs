//! So many at once: the counting gate.

mod status;

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

pub use self::status::SemaphoreStatus;
use crate::account::{
    Account, AccountLink, Ask, Charge, InPassage, PermitState, Permits, Refusal, Replenishment,
};
use crate::amount::Amount;
use crate::error::ConfigError;
use crate::events::Category;
use crate::sync::{Arc, AtomicU64, Ordering};

/// At most `capacity` permits in use at once.
///
/// A gate counts the [`requests`](Amount::requests) of an amount and refuses one whose units
/// differ: tokens asked of a gate are a mistake. An amount larger than the capacity is refused,
/// [`Amount::NONE`] never is. Permits come back when the work ends, so a gate names no instant and
/// reads no clock.
///
/// # Examples
///
/// ```
/// use admit::CountingGate;
///
/// let gate = CountingGate::new("http", 64)?;
/// assert_eq!(gate.status().available_permits, 64);
/// gate.resize(32)?;
/// assert_eq!(gate.status().to_string(), "0 of 32 permits in use, 32 available");
/// # Ok::<(), admit::ConfigError>(())
/// ```
pub struct CountingGate {
    permits: Arc<Permits>,
    activity: Option<Activity>,
}

impl CountingGate {
    /// A gate of this name with `capacity` permits.
    ///
    /// # Errors
    ///
    /// When the name is empty or the capacity zero.
    pub fn new(name: impl Into<Arc<str>>, capacity: u32) -> Result<Arc<Self>, ConfigError> {
        Self::builder(name, capacity).build()
    }

    /// A gate to be configured further.
    pub fn builder(name: impl Into<Arc<str>>, capacity: u32) -> CountingGateBuilder {
        CountingGateBuilder { name: name.into(), capacity, track_activity: false }
    }

    /// Changes the capacity, while jobs hold permits.
    ///
    /// Growing lets waiting jobs go at once. Shrinking takes nothing away: nothing is granted
    /// until what is in use has fallen below the new capacity, and a waiting job that wants more
    /// than the new capacity is refused.
    ///
    /// # Errors
    ///
    /// When the capacity is zero; the gate is then unchanged.
    pub fn resize(&self, capacity: u32) -> Result<(), ConfigError> {
        check_capacity(&self.permits.link, capacity)?;
        let before = self.permits.resize(capacity);
        if capacity > before {
            self.permits.link.grew();
        } else if capacity < before {
            self.permits.link.may_refuse();
        }
        Ok(())
    }

    /// The gate's numbers now.
    #[must_use]
    pub fn status(&self) -> SemaphoreStatus {
        let PermitState { capacity, in_use } = self.permits.state();
        SemaphoreStatus {
            max_concurrent: capacity,
            available_permits: capacity.saturating_sub(in_use),
            active: in_use,
            last_activity: self.activity.as_ref().and_then(Activity::last),
        }
    }

    fn stamp(&self, amount: u32) {
        if amount > 0
            && let Some(activity) = &self.activity
        {
            activity.stamp();
        }
    }
}

impl Account for CountingGate {
    fn link(&self) -> &AccountLink {
        &self.permits.link
    }

    fn category(&self) -> Category {
        Category::Semaphore
    }

    fn capacity(&self) -> u64 {
        u64::from(self.status().max_concurrent)
    }

    fn in_use(&self, _: Instant) -> u64 {
        u64::from(self.status().active)
    }

    fn summary(&self, _: Instant) -> String {
        self.status().summary()
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn reads_clock(&self) -> bool {
        false
    }

    fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        self.permits.fits(ask)
    }

    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        self.permits.link.stay_elsewhere();
        let taken = self.permits.take(ask)?;
        if taken.is_some() {
            self.stamp(ask.mine.requests);
        }
        Ok(taken)
    }

    fn give(&self, charge: &Charge, _: Instant) -> Amount {
        self.permits.link.stay_elsewhere();
        self.stamp(charge.amount.requests);
        self.permits.give(charge)
    }

    fn in_passage(&self) -> InPassage<'_> {
        // Whoever counts the permits elsewhere stamps nothing.
        match self.activity {
            None => InPassage::Counted(&self.permits),
            Some(_) => InPassage::Never,
        }
    }

    fn earliest_fit(&self, _: &Ask) -> Option<Instant> {
        None
    }
}

impl fmt::Debug for CountingGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountingGate")
            .field("link", &self.permits.link)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// Configures a [`CountingGate`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct CountingGateBuilder {
    name: Arc<str>,
    capacity: u32,
    track_activity: bool,
}

impl CountingGateBuilder {
    /// Whether to note when a permit was last taken or given back. Off by default: reading the
    /// clock costs more than the grant.
    pub const fn track_activity(mut self, on: bool) -> Self {
        self.track_activity = on;
        self
    }

    /// The gate.
    ///
    /// # Errors
    ///
    /// When the name is empty or the capacity zero.
    pub fn build(self) -> Result<Arc<CountingGate>, ConfigError> {
        self.build_plain().map(Arc::new)
    }

    /// The gate, for whoever wraps it.
    pub(super) fn build_plain(self) -> Result<CountingGate, ConfigError> {
        let link = AccountLink::new(self.name)?;
        check_capacity(&link, self.capacity)?;
        Ok(CountingGate {
            permits: Permits::new(link, self.capacity),
            activity: self.track_activity.then(Activity::new),
        })
    }
}

fn check_capacity(link: &AccountLink, capacity: u32) -> Result<(), ConfigError> {
    if capacity == 0 {
        let error = ConfigError::new("capacity", capacity, "must be at least 1");
        return Err(error.of(&**link.name()));
    }
    Ok(())
}

/// When something last happened, as one word.
struct Activity {
    origin: Instant,
    /// Nanoseconds since the origin, plus one; zero when nothing has happened yet.
    last: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self { origin: Instant::now(), last: AtomicU64::new(0) }
    }

    fn stamp(&self) {
        let nanos = Instant::now().saturating_duration_since(self.origin).as_nanos();
        let stamp = u64::try_from(nanos).unwrap_or(u64::MAX).saturating_add(1);
        // Two threads may stamp in either order: the later instant stays.
        self.last.fetch_max(stamp, Ordering::Relaxed);
    }

    fn last(&self) -> Option<Instant> {
        let nanos = self.last.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.origin + Duration::from_nanos(nanos))
    }
}

#[cfg(test)]
mod tests;
