//! The provider contract as a test, for authors of providers.

mod checked;
mod clauses;
mod ends;
mod fan_out;
mod faults;
mod fixture;

use std::fmt;
use std::time::Duration;

pub use self::fixture::ProviderFixture;
use crate::one_line::OneLine;
use crate::sync::Arc;

/// The contract of [`DbProvider`](crate::DbProvider), checked on a provider of your own.
///
/// It runs on a real database through a real pool, in the runtime it is called from and in real
/// time; the [fixture](ProviderFixture) says how. Checked are [all the clauses](Clause), one after
/// the other, each on providers of its own. Nothing is asserted about how fast anything is; what does
/// not happen within a minute, until told otherwise, is taken not to happen at all.
///
/// # Examples
///
/// A provider that only counts has no connection to be checked, and is checked for the rest.
///
/// ```
/// use std::sync::Arc;
/// use admit::CountingProvider;
/// use admit::testing::{ProviderContract, ProviderFixture};
///
/// struct Counting;
///
/// impl ProviderFixture for Counting {
///     type Provider = CountingProvider;
///     const HOLDS_A_CONNECTION: bool = false;
///
///     fn provider(&self, name: &str, bound: u32) -> Arc<CountingProvider> {
///         CountingProvider::new(name, bound).unwrap()
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// ProviderContract::new(Counting).assert().await;
/// # }
/// ```
pub struct ProviderContract<F> {
    fixture: F,
    patience: Duration,
}

impl<F: ProviderFixture> ProviderContract<F> {
    /// The contract of the providers a fixture makes.
    pub const fn new(fixture: F) -> Self {
        Self { fixture, patience: Duration::from_secs(60) }
    }

    /// How long a clause may take, and how long it waits for what a provider may do later; a minute,
    /// until told otherwise.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The fixture, for an end in order.
    pub fn into_fixture(self) -> F {
        self.fixture
    }

    /// Checks clause after clause up to the first breach.
    ///
    /// # Errors
    ///
    /// The breach: which clause, and what happened.
    ///
    /// # Panics
    ///
    /// When the fixture does, or the provider.
    pub async fn check(&self) -> Result<(), ContractBreach> {
        for &clause in Clause::ALL {
            if clause.needs_a_connection() && !F::HOLDS_A_CONNECTION {
                continue;
            }
            self.check_one(clause).await?;
        }
        Ok(())
    }

    /// Checks one clause.
    ///
    /// # Errors
    ///
    /// What happened, if it was not kept.
    ///
    /// # Panics
    ///
    /// When the fixture does, or the provider.
    pub async fn check_one(&self, clause: Clause) -> Result<(), ContractBreach> {
        let checked = tokio::time::timeout(self.patience * 4, self.clause(clause)).await;
        let what = match checked {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(what)) => what,
            Err(_) => format!("it was not done after {:?}", self.patience * 4),
        };
        let provider = Arc::clone(crate::DbProvider::name(&*self.fixture.provider("main", 1)));
        Err(ContractBreach { provider, clause, what })
    }

    /// Checks all the clauses, as the last line of a test.
    ///
    /// # Panics
    ///
    /// With the [breach](ContractBreach), if there is one.
    pub async fn assert(&self) {
        if let Err(breach) = self.check().await {
            panic!("{breach}");
        }
    }

    async fn clause(&self, clause: Clause) -> checked::Checked {
        match clause {
            Clause::Identity => self.identity().await,
            Clause::OneConnection => self.one_connection().await,
            Clause::OneGuard => self.one_guard().await,
            Clause::Isolation => self.isolation().await,
            Clause::SameConnection => self.same_connection().await,
            Clause::Order => self.order().await,
            Clause::ReadOnly => self.read_only().await,
            Clause::Foreign => self.foreign().await,
            Clause::Rollback => self.rollback().await,
            Clause::Close => self.close().await,
            Clause::Abort => self.abort().await,
            Clause::AbortInUse => self.abort_in_use().await,
            Clause::Completion => self.completion().await,
            Clause::HalfWay => self.half_way().await,
            Clause::Broken => self.broken().await,
            Clause::FanOut => self.fan_out().await,
        }
    }
}

impl<F> fmt::Debug for ProviderContract<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderContract").field("patience", &self.patience).finish_non_exhaustive()
    }
}

/// A clause of the provider contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Clause {
    /// A provider has its name, an account `db:<name>` of its own, and the bound as its capacity.
    Identity,
    /// One connection is out from `acquire`, before any statement, to `close`; then none.
    OneConnection,
    /// One guard is out at a time; `session` never waits for it, and nobody else has its connection,
    /// whatever the handle is told meanwhile.
    OneGuard,
    /// Uncommitted rows are invisible to another connection, and visible after the commit.
    Isolation,
    /// Several transactions on one handle, and statements between them, keep one connection.
    SameConnection,
    /// `begin` in a transaction and `commit` without one are errors, and harm neither.
    Order,
    /// `read_only` refuses writes, and the next user of that connection can write.
    ReadOnly,
    /// A handle of another provider is an error everywhere, and the handle is as it was.
    Foreign,
    /// A rollback leaves no row; before a `begin` it is nothing, and twice is once.
    Rollback,
    /// A close with an open transaction leaves no row and no transaction; twice is once.
    Close,
    /// Abort twice, and any use fails cleanly; a close right after it succeeds; nothing is left.
    Abort,
    /// An abort while a guard is out does not wait for it; nothing is left when the guard goes.
    AbortInUse,
    /// `await_completion` is released by `close`.
    Completion,
    /// A verb dropped half-way leaves a handle that can be ended, and nothing of it stays.
    HalfWay,
    /// On a broken connection no verb hangs, every handle ends, and the next one works.
    Broken,
    /// Many jobs through a [`JobRunner`](crate::JobRunner), of which some fail and some are dropped
    /// half-way, never have more connections out than the bound, and end with none.
    FanOut,
}

impl Clause {
    /// All of them, in the order they are checked.
    pub const ALL: &'static [Self] = &[
        Self::Identity,
        Self::OneConnection,
        Self::OneGuard,
        Self::Isolation,
        Self::SameConnection,
        Self::Order,
        Self::ReadOnly,
        Self::Foreign,
        Self::Rollback,
        Self::Close,
        Self::Abort,
        Self::AbortInUse,
        Self::Completion,
        Self::HalfWay,
        Self::Broken,
        Self::FanOut,
    ];

    const fn needs_a_connection(self) -> bool {
        !matches!(
            self,
            Self::Identity
                | Self::Order
                | Self::Foreign
                | Self::Completion
                | Self::HalfWay
                | Self::FanOut
        )
    }
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Identity => "identity",
            Self::OneConnection => "one connection",
            Self::OneGuard => "one guard",
            Self::Isolation => "isolation",
            Self::SameConnection => "same connection",
            Self::Order => "order",
            Self::ReadOnly => "read-only",
            Self::Foreign => "foreign",
            Self::Rollback => "rollback",
            Self::Close => "close",
            Self::Abort => "abort",
            Self::AbortInUse => "abort in use",
            Self::Completion => "completion",
            Self::HalfWay => "half-way",
            Self::Broken => "broken",
            Self::FanOut => "fan-out",
        })
    }
}

/// A breach of the provider contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("database `{}` breaks the clause \"{clause}\": {}", OneLine(provider), OneLine(what))]
#[non_exhaustive]
pub struct ContractBreach {
    /// The provider's name.
    pub provider: Arc<str>,
    /// The clause it broke.
    pub clause: Clause,
    /// What it did, and what it should have done.
    pub what: String,
}

#[cfg(test)]
mod tests;
