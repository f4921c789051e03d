//! Why a job was not run, or did not succeed.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use super::job_error::JobError;
use super::spend::SpendRefusal;
use crate::db::{DbVerb, ProviderError};
use crate::error::{AdmitError, Names};
use crate::models::RegistryError;
use crate::one_line::OneLine;
use crate::sync::Arc;
use crate::upstream::UpstreamFailure;

/// Where a run was when it was cancelled or its time ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunStage {
    /// It waited for its limits.
    Admission,
    /// It had its limits, and took its databases' handles if it has any. The grant was rolled back.
    Databases,
    /// The job's own future ran.
    Work,
    /// It committed.
    Commit,
    /// It waited for its next attempt, holding nothing.
    Retry,
}

impl fmt::Display for RunStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Admission => "while it waited for its limits",
            Self::Databases => "before its work began",
            Self::Work => "while the job ran",
            Self::Commit => "while it committed",
            Self::Retry => "while it waited for its next attempt",
        })
    }
}

/// Why a job was not run, or did not succeed. `E` is the job's own error.
///
/// Whatever it is, everything the job held is back where it belongs when this is returned.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError<E> {
    /// The requirements name a model that cannot be limited as specified. Nothing was taken.
    Requirements(RegistryError),
    /// A spend gate refuses what the job would reserve. Nothing was taken, nobody is stopped.
    Spend(SpendRefusal),
    /// The demand was not granted.
    Admit(AdmitError),
    /// A database's handle could not be had or made ready. The job did not run, and its grant was
    /// rolled back.
    Provider(ProviderError),
    /// The job succeeded, and a commit failed.
    Commit {
        /// What happened, at which database.
        source: ProviderError,
        /// The databases whose transactions had been committed before, in order. All others were
        /// rolled back; the one that failed may be durable all the same, where its connection broke
        /// or its completion failed.
        durable: Vec<Arc<str>>,
    },
    /// The job failed, and another attempt would not help, or there was to be none.
    Job(E),
    /// The upstream failed at the last attempt there was to be, and at those before it that were not
    /// refused.
    Exhausted {
        /// How many retries it had.
        retries: u32,
        /// The last failure.
        failure: E,
    },
    /// The job's token was cancelled.
    Cancelled {
        /// Where it was.
        stage: RunStage,
    },
    /// The job's time ran out.
    TimedOut {
        /// The time it had, over all attempts and the waits between them.
        limit: Duration,
        /// Where it was.
        stage: RunStage,
        /// What is known of why: what was missing at the admission, which commits were durable.
        cause: Option<TimeoutCause<E>>,
    },
    /// It was polled outside a Tokio runtime. Nothing was taken.
    NoRuntime,
}

/// What is known of why a job's time ran out.
#[derive(Debug)]
#[non_exhaustive]
pub enum TimeoutCause<E> {
    /// It was not granted in time; this says what was missing.
    Admission(AdmitError),
    /// A database's handle was not there in time, or not ready.
    Database {
        /// The database's name.
        database: Arc<str>,
        /// What was waited for.
        verb: DbVerb,
    },
    /// The job failed when it was told that its time was over, or the last attempt had failed.
    Failure(E),
    /// It was committing: these had been committed, and the next may or may not have been.
    Committing {
        /// The databases whose transactions had been committed, in order.
        durable: Vec<Arc<str>>,
    },
}

impl<E> RunError<E> {
    /// The job's own error, where it failed with one.
    pub const fn job_error(&self) -> Option<&E> {
        match self {
            Self::Job(error)
            | Self::Exhausted { failure: error, .. }
            | Self::TimedOut { cause: Some(TimeoutCause::Failure(error)), .. } => Some(error),
            _ => None,
        }
    }

    /// When it is worth running it again, where its limits know: see
    /// [`AdmitError::retry_at`](crate::AdmitError::retry_at).
    pub fn retry_at(&self) -> Option<Instant> {
        match self {
            Self::Admit(error)
            | Self::TimedOut { cause: Some(TimeoutCause::Admission(error)), .. } => {
                error.retry_at()
            }
            _ => None,
        }
    }

    /// The error in a word, for a span.
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::Requirements(_) => "requirements",
            Self::Spend(_) => "spend",
            Self::Admit(_) => "refused",
            Self::Provider(_) => "provider",
            Self::Commit { .. } => "commit",
            Self::Job(_) => "failed",
            Self::Exhausted { .. } => "exhausted",
            Self::Cancelled { .. } => "cancelled",
            Self::TimedOut { .. } => "timed_out",
            Self::NoRuntime => "no_runtime",
        }
    }

    /// Whether a spend gate refused it: a workflow sees that and stops submitting.
    pub const fn is_spend_refusal(&self) -> bool {
        matches!(self, Self::Spend(_))
    }
}

impl<E: JobError> RunError<E> {
    /// Whether the same job may succeed later without anybody's changing anything.
    ///
    /// Never once a commit has begun, which may be durable: another run could do the work twice.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Spend(refusal) => refusal.is_retryable(),
            Self::Admit(error) => error.is_retryable(),
            Self::Job(error) => error.upstream().is_some_and(UpstreamFailure::is_retryable),
            Self::TimedOut { cause: Some(TimeoutCause::Committing { .. }), .. } => false,
            Self::Provider(_) | Self::Exhausted { .. } | Self::TimedOut { .. } => true,
            Self::Requirements(_)
            | Self::Commit { .. }
            | Self::Cancelled { .. }
            | Self::NoRuntime => false,
        }
    }
}

/// A job that runs others may fail as they did. Their upstreams are not its own: they have been
/// reported and retried where they were called.
impl<E> JobError for RunError<E> {}

impl<E: fmt::Display> fmt::Display for RunError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requirements(error) => error.fmt(f),
            Self::Spend(error) => error.fmt(f),
            Self::Admit(error) => error.fmt(f),
            Self::Provider(error) => write!(f, "the job was not started: {error}"),
            Self::Commit { source, durable } => {
                write!(f, "{source}; durable before it: {}", Names(durable))
            }
            Self::Job(error) => error.fmt(f),
            Self::Exhausted { retries, failure } => {
                let plural = if *retries == 1 { "y" } else { "ies" };
                write!(f, "{failure} (its budget of {retries} retr{plural} is used up)")
            }
            Self::Cancelled { stage } => write!(f, "cancelled {stage}"),
            Self::TimedOut { limit, stage, cause } => {
                write!(f, "not done within {limit:?}: its time ran out {stage}")?;
                match cause {
                    Some(TimeoutCause::Admission(error)) => write!(f, " ({error})"),
                    Some(TimeoutCause::Database { database, verb }) => {
                        let database = OneLine(database);
                        write!(f, " ({verb} on database `{database}` had not answered)")
                    }
                    Some(TimeoutCause::Failure(error)) => write!(f, " ({error})"),
                    Some(TimeoutCause::Committing { durable }) => {
                        write!(f, " (durable: {}; the next may be)", Names(durable))
                    }
                    None => Ok(()),
                }
            }
            Self::NoRuntime => {
                f.write_str("no Tokio runtime here: poll the run inside one, as in an async main")
            }
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for RunError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Requirements(error) => error.source(),
            Self::Spend(error) => error.source(),
            Self::Admit(error) => error.source(),
            Self::Provider(source) | Self::Commit { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Why requirements did not become a plan.
pub(super) enum Unplanned {
    Registry(RegistryError),
    Admit(AdmitError),
}

impl From<RegistryError> for Unplanned {
    fn from(error: RegistryError) -> Self {
        Self::Registry(error)
    }
}

impl From<AdmitError> for Unplanned {
    fn from(error: AdmitError) -> Self {
        Self::Admit(error)
    }
}

impl<E> From<Unplanned> for RunError<E> {
    fn from(error: Unplanned) -> Self {
        match error {
            Unplanned::Registry(error) => Self::Requirements(error),
            Unplanned::Admit(error) => Self::Admit(error),
        }
    }
}

/// A time-out of a verb of a database, as an error.
pub(super) fn overdue(provider: &Arc<str>, verb: DbVerb, limit: Duration) -> ProviderError {
    ProviderError::TimedOut { provider: Arc::clone(provider), verb, limit }
}
