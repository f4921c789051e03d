//! What can go wrong with a database's handle.

use std::fmt;
use std::time::Duration;

use crate::error::{BoxError, Names};
use crate::one_line::OneLine;
use crate::sync::Arc;

/// One step in the life of a handle; see [`DbProvider`](super::DbProvider).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DbVerb {
    /// Taking a session.
    Acquire,
    /// Opening a transaction.
    Begin,
    /// Committing it.
    Commit,
    /// Waiting until the commit is complete.
    AwaitCompletion,
    /// Rolling it back.
    Rollback,
    /// Returning the session.
    Close,
}

impl fmt::Display for DbVerb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Acquire => "acquire",
            Self::Begin => "begin",
            Self::Commit => "commit",
            Self::AwaitCompletion => "await_completion",
            Self::Rollback => "rollback",
            Self::Close => "close",
        })
    }
}

/// Why a provider could not do what it was asked for.
///
/// Each text names the database; none holds a connection's URL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// The database or its driver failed.
    #[error("database `{}`: {verb} failed: {}", OneLine(provider), OneLine(source))]
    Failed {
        /// The database's name.
        provider: Arc<str>,
        /// What was being done.
        verb: DbVerb,
        /// What the driver said.
        source: BoxError,
    },
    /// It took longer than the provider's [`acquire_timeout`](super::DbProvider::acquire_timeout).
    #[error(
        "database `{}`: {verb} took longer than {limit:?}; {}",
        OneLine(provider),
        hint(provider, *verb)
    )]
    TimedOut {
        /// The database's name.
        provider: Arc<str>,
        /// What was being done.
        verb: DbVerb,
        /// The time it had.
        limit: Duration,
    },
    /// The handle was acquired from another provider.
    #[error(
        "database `{}`: this handle was acquired from another provider, end it there",
        OneLine(provider)
    )]
    Foreign {
        /// The provider that was asked.
        provider: Arc<str>,
    },
    /// The handle has ended.
    #[error("database `{}`: the job's handle is closed; it ends with its job", OneLine(provider))]
    Closed {
        /// The database's name.
        provider: Arc<str>,
    },
    /// Somebody has the session.
    #[error(
        "database `{}`: the job has this session in use; drop the other guard first",
        OneLine(provider)
    )]
    InUse {
        /// The database's name.
        provider: Arc<str>,
    },
    /// The verb does not fit the state of the transaction.
    #[error("database `{}`: {verb} with {state}", OneLine(provider))]
    OutOfOrder {
        /// The database's name.
        provider: Arc<str>,
        /// What was asked for.
        verb: DbVerb,
        /// What stands against it: `no transaction open`, or `a transaction open`.
        state: &'static str,
    },
    /// The job holds no handle of this provider, or no job runs here.
    #[error("database `{}` {}", OneLine(provider), NotHeld(provider, held))]
    NotHeld {
        /// The provider that was asked for.
        provider: Arc<str>,
        /// The names of those it holds.
        held: Vec<Arc<str>>,
    },
}

/// What a job holds instead, and what to do about it.
struct NotHeld<'a>(&'a Arc<str>, &'a [Arc<str>]);

impl fmt::Display for NotHeld<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(provider, held) = self;
        if held.is_empty() {
            f.write_str(
                "is not held here; ask within a job that requires it (a task that the job spawns \
                 inherits nothing)",
            )
        } else if held.contains(provider) {
            // A namesake, or one mapped anew: two providers, even on one database.
            f.write_str(
                "is held by this job through another provider; ask with the one it required",
            )
        } else {
            let held = Names(held);
            write!(f, "is not among what this job holds ({held}); require it first")
        }
    }
}

/// What to do about a verb that took too long.
fn hint(provider: &str, verb: DbVerb) -> String {
    match verb {
        DbVerb::Acquire => format!(
            "the pool needs room for every permit of `db:{}` and for everybody else who uses it",
            OneLine(provider)
        ),
        _ => "either the database does not answer, or a guard of the session is out still".into(),
    }
}

impl ProviderError {
    /// A failure of the database or its driver.
    pub fn failed(
        provider: impl Into<Arc<str>>,
        verb: DbVerb,
        source: impl Into<BoxError>,
    ) -> Self {
        Self::Failed { provider: provider.into(), verb, source: source.into() }
    }

    /// The database it is about.
    #[must_use]
    pub const fn provider(&self) -> &Arc<str> {
        match self {
            Self::Failed { provider, .. }
            | Self::TimedOut { provider, .. }
            | Self::Foreign { provider }
            | Self::Closed { provider }
            | Self::InUse { provider }
            | Self::OutOfOrder { provider, .. }
            | Self::NotHeld { provider, .. } => provider,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_the_database_and_what_is_held() {
        let none = ProviderError::NotHeld { provider: "orders".into(), held: Vec::new() };
        assert_eq!(
            none.to_string(),
            "database `orders` is not held here; ask within a job that requires it (a task that the \
             job spawns inherits nothing)"
        );
        let two = ProviderError::NotHeld {
            provider: "orders".into(),
            held: vec!["main".into(), "audit".into()],
        };
        assert!(two.to_string().contains("(`main`, `audit`)"));
        let failed = ProviderError::failed("orders", DbVerb::Commit, "disk full");
        assert_eq!(failed.to_string(), "database `orders`: commit failed: disk full");
        assert_eq!(&**failed.provider(), "orders");
    }
}
