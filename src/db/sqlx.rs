//! A job's connection from a pool of sqlx's.

mod builder;
mod dialect;
mod lease;
mod provider;
mod seat;
mod session;

#[cfg(feature = "sea-orm")]
pub(crate) use self::lease::Owed;

pub use self::builder::SqlxProviderBuilder;
pub use self::dialect::SqlDialect;
pub use self::provider::SqlxProvider;
pub use self::session::{SqlxHandle, SqlxSession};
