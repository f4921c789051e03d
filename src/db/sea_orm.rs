//! A job's connection, as SeaORM's queries take it.

mod provider;
mod session;
mod statements;
mod transaction;

pub use self::provider::SeaOrmProvider;
pub use self::session::SeaOrmSession;
pub use self::transaction::SeaOrmTransaction;
