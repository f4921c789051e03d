//! What a job's own error says about its upstream.

use std::convert::Infallible;
use std::error::Error;
use std::io;

use crate::error::BoxError;
use crate::upstream::UpstreamFailure;

/// A job's own error: it may carry a failure of an upstream, which is reported to the limits and may
/// be worth another attempt.
///
/// # Examples
///
/// ```
/// use admit::{JobError, UpstreamFailure};
///
/// #[derive(Debug, thiserror::Error)]
/// enum SummaryError {
///     #[error(transparent)]
///     Model(#[from] UpstreamFailure),
///     #[error("nothing to summarise")]
///     Empty,
/// }
///
/// impl JobError for SummaryError {
///     fn upstream(&self) -> Option<&UpstreamFailure> {
///         match self {
///             Self::Model(failure) => Some(failure),
///             Self::Empty => None,
///         }
///     }
/// }
/// ```
pub trait JobError {
    /// The upstream's failure, if that is what went wrong. Without one the error is the job's own:
    /// nothing is reported, and there is no other attempt.
    fn upstream(&self) -> Option<&UpstreamFailure> {
        None
    }
}

impl JobError for UpstreamFailure {
    fn upstream(&self) -> Option<&UpstreamFailure> {
        Some(self)
    }
}

/// Found anywhere among its sources. An error that passes another's sources off as its own, as
/// thiserror's `transparent` does, hides it: say `#[error("…")]` with a `#[source]` there.
impl JobError for BoxError {
    fn upstream(&self) -> Option<&UpstreamFailure> {
        let mut next: Option<&(dyn Error + 'static)> = Some(&**self);
        while let Some(error) = next {
            if let Some(failure) = error.downcast_ref() {
                return Some(failure);
            }
            next = error.source();
        }
        None
    }
}

impl JobError for Infallible {}
impl JobError for String {}
impl JobError for &'static str {}
impl JobError for io::Error {}
impl JobError for crate::db::ProviderError {}
impl JobError for super::UsageError {}
#[cfg(feature = "sqlx")]
impl JobError for sqlx::Error {}
#[cfg(feature = "sea-orm")]
impl JobError for sea_orm::DbErr {}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the summary failed")]
    struct Wrapped(#[source] UpstreamFailure);

    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct Transparent(UpstreamFailure);

    #[test]
    fn a_boxed_error_is_searched_for_the_upstream_it_came_from() {
        let failure = UpstreamFailure::status(429, "gpt-x", "");
        let direct: BoxError = failure.clone().into();
        assert_eq!(direct.upstream(), Some(&failure));
        let wrapped: BoxError = Wrapped(failure.clone()).into();
        assert_eq!(wrapped.upstream(), Some(&failure));
        let hidden: BoxError = Transparent(failure).into();
        assert_eq!(hidden.upstream(), None);
        let own: BoxError = "nothing to summarise".into();
        assert_eq!(own.upstream(), None);
    }
}
