//! What the contract has to be told about a provider and its database.

use crate::db::DbProvider;
use crate::error::BoxError;
use crate::sync::Arc;

type SessionOf<F> = <<F as ProviderFixture>::Provider as DbProvider>::Session;

/// A provider's pool and database, as [`ProviderContract`](super::ProviderContract) needs them.
///
/// The pool needs room for eight connections, the database a table for the rows of
/// [`insert`](Self::insert). All the methods but [`provider`](Self::provider) are for providers that
/// hold a connection; the others keep the defaults, which panic.
pub trait ProviderFixture: Send + Sync {
    /// The provider under test.
    type Provider: DbProvider;

    /// Whether a handle holds a connection. A provider that does not is checked for what is left.
    const HOLDS_A_CONNECTION: bool = true;

    /// A new provider of this name and bound. They all take their connections from one pool.
    fn provider(&self, name: &str, bound: u32) -> Arc<Self::Provider>;

    /// The connections that are out, as the pool counts them.
    fn out(&self) -> usize {
        needs("out")
    }

    /// The transactions that are open on connections of the pool, as the server sees them; `None`
    /// where there is no server to ask.
    fn open_transactions(&self) -> impl Future<Output = Option<usize>> + Send {
        async { None }
    }

    /// Which connection is behind a session: the same text for the same one, another for another.
    fn connection(
        &self,
        session: &mut SessionOf<Self>,
    ) -> impl Future<Output = Result<String, BoxError>> + Send {
        let _ = session;
        async { needs("connection") }
    }

    /// Inserts a row of this number.
    fn insert(
        &self,
        session: &mut SessionOf<Self>,
        row: u64,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (session, row);
        async { needs("insert") }
    }

    /// How many rows of this number there are, as a connection sees it that is not the pool's.
    fn rows(&self, row: u64) -> impl Future<Output = usize> + Send {
        let _ = row;
        async { needs("rows") }
    }

    /// Breaks the connection behind a session, as a server does that ends. `false` where it cannot
    /// be broken.
    fn break_connection(&self, session: &mut SessionOf<Self>) -> impl Future<Output = bool> + Send {
        let _ = session;
        async { false }
    }
}

fn needs(method: &str) -> ! {
    panic!("the fixture of a provider that holds a connection needs `{method}`")
}
