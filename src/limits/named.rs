//! The gates every host has: HTTP places, database permits, a model's concurrency.
//!
//! Each is a [`CountingGate`] under a type of its own, so that a host that takes "the database's
//! gate" cannot be handed the HTTP pool.

use tokio::time::Instant;

use super::gate::{CountingGate, SemaphoreStatus};
use crate::account::{Account, AccountLink, Ask, Charge, InPassage, Refusal, Replenishment};
use crate::amount::Amount;
use crate::error::ConfigError;
use crate::events::Category;
use crate::sync::Arc;

macro_rules! named_gate {
    ($gate:ident) => {
        impl $gate {
            /// Changes the capacity, as [`CountingGate::resize`] does.
            ///
            /// # Errors
            ///
            /// When the capacity is zero; the gate is then unchanged.
            pub fn resize(&self, capacity: u32) -> Result<(), ConfigError> {
                self.0.resize(capacity)
            }

            /// The gate's numbers now.
            #[must_use]
            pub fn status(&self) -> SemaphoreStatus {
                self.0.status()
            }

            fn named(name: impl Into<Arc<str>>, capacity: u32) -> Result<Arc<Self>, ConfigError> {
                let gate = CountingGate::builder(name, capacity).build_plain()?;
                Ok(Arc::new(Self(gate)))
            }
        }

        impl Account for $gate {
            fn link(&self) -> &AccountLink {
                self.0.link()
            }

            fn category(&self) -> Category {
                self.0.category()
            }

            fn capacity(&self) -> u64 {
                self.0.capacity()
            }

            fn in_use(&self, now: Instant) -> u64 {
                self.0.in_use(now)
            }

            fn summary(&self, now: Instant) -> String {
                self.0.summary(now)
            }

            fn replenishment(&self) -> Replenishment {
                self.0.replenishment()
            }

            fn reads_clock(&self) -> bool {
                self.0.reads_clock()
            }

            fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
                self.0.fits(ask)
            }

            fn in_passage(&self) -> InPassage<'_> {
                self.0.in_passage()
            }

            fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
                self.0.try_take(ask)
            }

            fn give(&self, charge: &Charge, now: Instant) -> Amount {
                self.0.give(charge, now)
            }

            fn earliest_fit(&self, ask: &Ask) -> Option<Instant> {
                self.0.earliest_fit(ask)
            }
        }
    };
}

/// Places in the HTTP pool, one a job: a counting gate named `http`.
///
/// # Examples
///
/// ```
/// use admit::{Account, HttpGate};
///
/// let http = HttpGate::new(HttpGate::DEFAULT_CAPACITY)?;
/// assert_eq!(&**http.link().name(), "http");
/// assert_eq!(http.capacity(), 1_000);
/// # Ok::<(), admit::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct HttpGate(CountingGate);

impl HttpGate {
    /// 1,000 places: below the usual limit on a process's open files.
    pub const DEFAULT_CAPACITY: u32 = 1_000;

    /// The gate with `capacity` places.
    ///
    /// # Errors
    ///
    /// When the capacity is zero.
    pub fn new(capacity: u32) -> Result<Arc<Self>, ConfigError> {
        Self::named("http", capacity)
    }
}

named_gate!(HttpGate);

/// Connections of one database: a counting gate named `db:<name>`.
///
/// # Examples
///
/// ```
/// use admit::{Account, DatabaseGate};
///
/// let main = DatabaseGate::new("main", 10)?;
/// assert_eq!(&**main.link().name(), "db:main");
/// assert!(DatabaseGate::new("", 10).is_err());
/// # Ok::<(), admit::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct DatabaseGate(CountingGate);

impl DatabaseGate {
    /// The gate of the database `name`, with `capacity` permits.
    ///
    /// # Errors
    ///
    /// When the name is empty or the capacity zero.
    pub fn new(name: impl AsRef<str>, capacity: u32) -> Result<Arc<Self>, ConfigError> {
        let name = name.as_ref();
        // The prefix would make a name of nothing look like one.
        AccountLink::new(name)?;
        Self::named(format!("db:{name}"), capacity)
    }
}

named_gate!(DatabaseGate);

/// Concurrent calls of one model: a counting gate named after it.
///
/// # Examples
///
/// ```
/// use admit::{Account, Category, ModelGate};
///
/// let gate = ModelGate::new("local-llama", 2)?;
/// assert_eq!(&**gate.link().name(), "local-llama");
/// assert_eq!(gate.category(), Category::Semaphore);
/// # Ok::<(), admit::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct ModelGate(CountingGate);

impl ModelGate {
    /// The gate of `model`, with `capacity` calls at once.
    ///
    /// # Errors
    ///
    /// When the name is empty or the capacity zero.
    pub fn new(model: impl Into<Arc<str>>, capacity: u32) -> Result<Arc<Self>, ConfigError> {
        Self::named(model, capacity)
    }
}

named_gate!(ModelGate);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_gate_counts_as_the_gate_it_is() {
        let gate = DatabaseGate::new("main", 2).unwrap();
        let now = Instant::now();
        let ask = Ask::new(1, Amount::permits(2), now);
        assert!(!gate.reads_clock());
        assert_eq!(gate.replenishment(), Replenishment::Release);
        let at = gate.try_take(&ask).unwrap().unwrap();
        assert_eq!(gate.in_use(now), 2);
        assert_eq!(gate.try_take(&ask).unwrap(), None);
        assert_eq!(gate.earliest_fit(&ask), None);
        gate.resize(1).unwrap();
        assert_eq!(gate.status().available_permits, 0);
        assert_eq!(gate.summary(now), "2 of 1 permits in use, 0 available");
        assert_eq!(gate.give(&Charge::new(1, ask.mine, at), now), Amount::permits(2));
        assert!(gate.fits(&ask).is_err());
        assert_eq!(gate.status().active, 0);
    }

    #[test]
    fn each_checks_its_name_and_capacity() {
        assert_eq!(HttpGate::new(0).unwrap_err().field, "capacity");
        assert_eq!(DatabaseGate::new("main", 0).unwrap_err().field, "capacity");
        assert_eq!(DatabaseGate::new(" ", 1).unwrap_err().field, "name");
        assert_eq!(ModelGate::new("", 1).unwrap_err().field, "name");
    }
}
