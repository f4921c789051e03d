//! Databases: a connection is held only under a permit.
//!
//! A [`DbProvider`] exposes its bound as an account, so that a permit is admitted with the rest of a
//! job's demand, and hands the job its connection under that permit. The pool stays the host's.

mod ambient;
mod boxed;
mod counting;
mod error;
mod mapped;
mod provider;
mod registry;
#[cfg(feature = "sea-orm")]
mod sea_orm;
mod settings;
#[cfg(feature = "sqlx")]
mod sqlx;

pub(crate) use self::ambient::{Bound, in_scope};
pub use self::ambient::{ambient, requires_new};
pub(crate) use self::boxed::{AnyHandle, AnyProvider, Verbed};
pub use self::counting::{CountingHandle, CountingProvider};
pub use self::error::{DbVerb, ProviderError};
pub use self::mapped::Mapped;
pub use self::provider::DbProvider;
pub use self::registry::{DbProviders, DbProvidersError};
#[cfg(feature = "sea-orm")]
pub use self::sea_orm::{SeaOrmProvider, SeaOrmSession, SeaOrmTransaction};
pub use self::settings::DatabaseSettings;
#[cfg(feature = "sqlx")]
pub use self::sqlx::{SqlDialect, SqlxHandle, SqlxProvider, SqlxProviderBuilder, SqlxSession};
