//! Where jobs find the databases of their host.

use std::any::{Any, type_name};
use std::collections::BTreeMap;
use std::collections::btree_map;
use std::fmt;

use super::{CountingProvider, DatabaseSettings, DbProvider};
use crate::error::{ConfigError, Names};
use crate::one_line::OneLine;
use crate::sync::{Arc, Mutex, OnceLock};

/// Why the registry of databases would not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DbProvidersError {
    /// The name belongs to another provider.
    #[error(
        "database `{}` is registered already, as {kind}; a name is one database: take another name, \
         or unregister the first",
        OneLine(name)
    )]
    Taken {
        /// The name.
        name: Arc<str>,
        /// The type that has it.
        kind: &'static str,
    },
    /// There is no provider of the name.
    #[error("no database `{}` is registered; there is {}", OneLine(name), Names(names))]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// Those there are.
        names: Vec<Arc<str>>,
    },
    /// The provider of the name is of another type.
    #[error("database `{}` is registered as {kind}, not as {wanted}", OneLine(name))]
    OtherType {
        /// The name.
        name: Arc<str>,
        /// What it is.
        kind: &'static str,
        /// What was asked for.
        wanted: &'static str,
    },
    /// The settings cannot be made a provider.
    #[error(transparent)]
    Settings(#[from] ConfigError),
}

/// The databases of a host, by name: code that runs in a job names its database instead of being
/// handed it.
///
/// # Examples
///
/// ```
/// use admit::{CountingProvider, DbProviders};
///
/// let databases = DbProviders::new();
/// databases.register(&CountingProvider::new("orders", 20)?)?;
/// let orders = databases.get::<CountingProvider>("orders")?;
///
/// let missing = databases.get::<CountingProvider>("audit").unwrap_err();
/// assert_eq!(missing.to_string(), "no database `audit` is registered; there is `orders`");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct DbProviders {
    kept: Mutex<BTreeMap<Arc<str>, Kept>>,
}

struct Kept {
    /// An `Arc<P>`.
    provider: Box<dyn Any + Send + Sync>,
    kind: &'static str,
}

impl DbProviders {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The registry of the process, for convenience.
    #[must_use]
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<DbProviders> = OnceLock::new();
        GLOBAL.get_or_init(Self::new)
    }

    /// Registers a provider under its name. The same one again is nothing new.
    ///
    /// # Errors
    ///
    /// [`Taken`](DbProvidersError::Taken) when the name belongs to another provider.
    pub fn register<P: DbProvider>(&self, provider: &Arc<P>) -> Result<(), DbProvidersError> {
        // A provider's methods are its author's, and not for us to call under the lock.
        let name = Arc::clone(provider.name());
        match self.kept.lock().entry(name) {
            btree_map::Entry::Vacant(place) => {
                let kept =
                    Kept { provider: Box::new(Arc::clone(provider)), kind: type_name::<P>() };
                place.insert(kept);
                Ok(())
            }
            btree_map::Entry::Occupied(place) if place.get().is(provider) => Ok(()),
            btree_map::Entry::Occupied(place) => Err(DbProvidersError::Taken {
                name: Arc::clone(place.key()),
                kind: place.get().kind,
            }),
        }
    }

    /// Registers a [`CountingProvider`] as the settings say, and answers it; `None`, and nothing is
    /// registered, when they state no bound: none is ever guessed.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register), and when the settings cannot be made a provider.
    pub fn register_default(
        &self,
        settings: &DatabaseSettings,
    ) -> Result<Option<Arc<CountingProvider>>, DbProvidersError> {
        let Some(provider) = settings.provider()? else { return Ok(None) };
        self.register(&provider)?;
        Ok(Some(provider))
    }

    /// The provider of a name.
    ///
    /// # Errors
    ///
    /// [`Unknown`](DbProvidersError::Unknown) lists the names there are,
    /// [`OtherType`](DbProvidersError::OtherType) names both types.
    pub fn get<P: DbProvider>(&self, name: &str) -> Result<Arc<P>, DbProvidersError> {
        let kept = self.kept.lock();
        let found = match kept.get_key_value(name) {
            Some((name, found)) => {
                found.provider.downcast_ref::<Arc<P>>().cloned().ok_or_else(|| {
                    let (name, wanted) = (Arc::clone(name), type_name::<P>());
                    DbProvidersError::OtherType { name, kind: found.kind, wanted }
                })
            }
            None => {
                let names = kept.keys().cloned().collect();
                Err(DbProvidersError::Unknown { name: name.to_owned(), names })
            }
        };
        drop(kept);
        found
    }

    /// Forgets a provider, for a host that stops; jobs that hold handles of it go on. Answers whether
    /// it was registered.
    pub fn unregister<P: DbProvider>(&self, provider: &Arc<P>) -> bool {
        // A provider's methods are its author's, its drop too, and not for us to run under the lock.
        let name = provider.name();
        let mut kept = self.kept.lock();
        let is_it = kept.get(name).is_some_and(|found| found.is(provider));
        let forgotten = if is_it { kept.remove(name) } else { None };
        drop(kept);
        forgotten.is_some()
    }

    /// The names there are, in order.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        self.kept.lock().keys().cloned().collect()
    }
}

impl Kept {
    fn is<P: DbProvider>(&self, provider: &Arc<P>) -> bool {
        self.provider.downcast_ref::<Arc<P>>().is_some_and(|kept| Arc::ptr_eq(kept, provider))
    }
}

impl fmt::Debug for DbProviders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (name, kept) in &*self.kept.lock() {
            map.entry(name, &kept.kind);
        }
        map.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_one_provider() {
        let databases = DbProviders::new();
        let orders = CountingProvider::new("orders", 2).unwrap();
        databases.register(&orders).unwrap();
        databases.register(&orders).unwrap();
        let second = CountingProvider::new("orders", 3).unwrap();
        let error = databases.register(&second).unwrap_err();
        assert!(error.to_string().contains("`orders` is registered already, as "), "{error}");
        assert!(Arc::ptr_eq(&databases.get("orders").unwrap(), &orders));

        assert!(!databases.unregister(&second));
        assert!(databases.unregister(&orders));
        assert!(!databases.unregister(&orders));
        databases.register(&second).unwrap();
    }

    #[test]
    fn a_miss_lists_the_names_and_a_wrong_type_names_both() {
        let databases = DbProviders::new();
        let none = databases.get::<CountingProvider>("x").unwrap_err();
        assert_eq!(none.to_string(), "no database `x` is registered; there is none");
        let orders = CountingProvider::new("orders", 2).unwrap();
        databases.register(&orders).unwrap();
        let mapped = orders.mapped(|()| 1);
        let error = databases.register(&mapped).unwrap_err();
        assert!(matches!(error, DbProvidersError::Taken { .. }));
        fn of<P: DbProvider>(databases: &DbProviders, _: &Arc<P>) -> DbProvidersError {
            databases.get::<P>("orders").err().unwrap()
        }
        let error = of(&databases, &mapped).to_string();
        assert!(error.contains("CountingProvider, not as ") && error.contains("Mapped"), "{error}");
        databases.register(&CountingProvider::new("audit", 2).unwrap()).unwrap();
        assert_eq!(databases.names(), ["audit".into(), "orders".into()]);
    }

    #[test]
    fn the_default_is_registered_only_with_a_bound() {
        let databases = DbProviders::new();
        let mut settings = DatabaseSettings::default();
        assert!(databases.register_default(&settings).unwrap().is_none());
        assert!(databases.names().is_empty());
        settings.max_concurrent = Some(0);
        let error = databases.register_default(&settings).unwrap_err();
        assert_eq!(error.to_string(), "`db:default`: max_concurrent is 0, but must be at least 1");
        settings.max_concurrent = Some(7);
        let provider = databases.register_default(&settings).unwrap().unwrap();
        assert_eq!(&**provider.name(), "default");
        assert_eq!(provider.account().status().max_concurrent, 7);
        assert!(databases.register_default(&settings).is_err());
    }
}
