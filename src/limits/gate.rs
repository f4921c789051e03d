//! So many at once: the counting gate.

mod status;

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

pub use self::status::SemaphoreStatus;
use crate::account::{Account, AccountLink, Ask, Charge, Refusal, Replenishment};
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
    link: AccountLink,
    /// Capacity and permits in use, packed, so that check and debit are one step without a lock.
    state: AtomicU64,
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
        check_capacity(capacity)?;
        let before = self.update(|state| Some(State { capacity, ..state }));
        let before = before.unwrap_or_else(|state| state).capacity;
        if capacity > before {
            self.link.grew();
        } else if capacity < before {
            self.link.may_refuse();
        }
        Ok(())
    }

    /// The gate's numbers now.
    #[must_use]
    pub fn status(&self) -> SemaphoreStatus {
        let State { capacity, in_use } = State::unpack(self.state.load(Ordering::Acquire));
        SemaphoreStatus {
            max_concurrent: capacity,
            available_permits: capacity.saturating_sub(in_use),
            active: in_use,
            last_activity: self.activity.as_ref().and_then(Activity::last),
        }
    }

    /// The state as an answer may be based on it.
    ///
    /// A waiter is parked because of a no, and the thread that then gives a permit back must see
    /// that somebody waits. The asker publishes that before it asks, the giver looks for it after
    /// it gave. Were the ask a plain load, both could miss each other: the load may be answered
    /// with the state before the give while the giver's look, too, is answered with the state
    /// before the publishing. An acquire-release read-modify-write has a place in the one order of
    /// all changes of this word: a give that the ask did not see comes after it there, reads the
    /// asker's write from it, and so sees what the asker published before.
    fn ordered(&self) -> State {
        State::unpack(self.state.fetch_add(0, Ordering::AcqRel))
    }

    /// Changes the state in one step; answers what it was, as `Err` when it is to stay so.
    ///
    /// `change` sees whatever is current, perhaps a stale value first; it is not final until an
    /// exchange succeeded, nor is its `None` until an ordered read confirmed it.
    fn update(&self, mut change: impl FnMut(State) -> Option<State>) -> Result<State, State> {
        let mut current = self.state.load(Ordering::Relaxed);
        loop {
            let state = State::unpack(current);
            let Some(next) = change(state) else {
                let confirmed = self.ordered();
                if confirmed == state {
                    return Err(state);
                }
                current = confirmed.pack();
                continue;
            };
            match self.state.compare_exchange_weak(
                current,
                next.pack(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(state),
                Err(actual) => current = actual,
            }
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
        &self.link
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
        self.ordered().answer(ask)
    }

    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        let taken = self.update(|state| {
            let fits = matches!(state.answer(ask), Ok(true));
            fits.then(|| State { in_use: state.in_use + ask.mine.requests, ..state })
        });
        match taken {
            Ok(_) => {
                self.stamp(ask.mine.requests);
                Ok(Some(ask.now))
            }
            Err(state) => state.answer(ask).map(|_| None),
        }
    }

    fn give(&self, charge: &Charge, _: Instant) -> Amount {
        let mine = charge.amount.requests;
        let before = self
            .update(|state| Some(State { in_use: state.in_use.saturating_sub(mine), ..state }))
            .unwrap_or_else(|state| state);
        self.stamp(mine);
        Amount::permits(mine.min(before.in_use))
    }

    fn earliest_fit(&self, _: &Ask) -> Option<Instant> {
        None
    }
}

impl fmt::Debug for CountingGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountingGate")
            .field("link", &self.link)
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
        check_capacity(self.capacity)?;
        Ok(CountingGate {
            link: AccountLink::new(self.name)?,
            state: AtomicU64::new(State { capacity: self.capacity, in_use: 0 }.pack()),
            activity: self.track_activity.then(Activity::new),
        })
    }
}

fn check_capacity(capacity: u32) -> Result<(), ConfigError> {
    if capacity == 0 {
        return Err(ConfigError::new("capacity", capacity, "must be at least 1"));
    }
    Ok(())
}

/// Capacity and permits in use.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    capacity: u32,
    in_use: u32,
}

impl State {
    const fn pack(self) -> u64 {
        ((self.capacity as u64) << 32) | self.in_use as u64
    }

    const fn unpack(word: u64) -> Self {
        Self { capacity: (word >> 32) as u32, in_use: word as u32 }
    }

    fn answer(self, ask: &Ask) -> Result<bool, Refusal> {
        let Amount { requests, units } = ask.mine;
        if u64::from(requests) != units && !ask.mine.is_saturated() {
            return Err(Refusal::new(format!(
                "{} asked of a gate, which counts permits: tokens asked of a gate are a mistake; \
                 ask for permits",
                ask.mine
            )));
        }
        if requests > self.capacity || ask.mine.is_saturated() {
            return Err(Refusal::never_fits(ask.mine, Amount::permits(self.capacity)));
        }
        let reserved = u64::from(ask.reserved_ahead.requests);
        if ask.reserved_ahead.is_saturated() {
            return Ok(false);
        }
        Ok(u64::from(self.in_use) + u64::from(requests) + reserved <= u64::from(self.capacity))
    }
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
