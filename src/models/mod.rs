//! Models and their limits: what they are, where they are read from, who keeps their accounts.

#[cfg(feature = "catalog")]
mod catalog;
mod registry;
mod singleton;
mod spec;
mod usage;

#[cfg(feature = "catalog")]
pub use catalog::{Catalog, CatalogError, CatalogPlace};
pub use registry::{Accounts, RegistryError};
pub use singleton::Singleton;
pub use spec::{ModelSpec, Prices};
pub use usage::Usage;
