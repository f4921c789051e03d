//! One account a declared type.

use std::any::type_name;

use crate::account::Account;
use crate::error::BoxError;
use crate::sync::Arc;

/// A limit of the host's own of which there is one in a registry.
///
/// The type names the limit; [`Accounts::get`](crate::Accounts::get) builds its account on first
/// use and answers the same one ever after.
///
/// # Examples
///
/// ```
/// use admit::{Accounts, BoxError, CountingGate, Singleton};
/// use std::sync::Arc;
///
/// struct GeocoderRateLimiter;
///
/// impl Singleton for GeocoderRateLimiter {
///     type Account = CountingGate;
///
///     fn build() -> Result<Arc<CountingGate>, BoxError> {
///         Ok(CountingGate::new(Self::name(), 5)?)
///     }
/// }
///
/// let accounts = Accounts::new();
/// let geocoder = accounts.get::<GeocoderRateLimiter>()?;
/// assert_eq!(GeocoderRateLimiter::name(), "Geocoder");
/// assert!(Arc::ptr_eq(&geocoder, &accounts.get::<GeocoderRateLimiter>()?));
/// # Ok::<(), admit::RegistryError>(())
/// ```
pub trait Singleton: 'static {
    /// The account's type.
    type Account: Account;

    /// A name for the account, for [`build`](Self::build) to use.
    ///
    /// The default is the type's own name, without its path and its generic arguments, less a
    /// `RateLimiter` suffix.
    #[must_use]
    fn name() -> &'static str {
        short_name(type_name::<Self>())
    }

    /// Builds the account.
    ///
    /// It may ask the registry for other singletons, on its own thread.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from being built. It is reported as the cause, and asked again at the
    /// next use.
    fn build() -> Result<Arc<Self::Account>, BoxError>;
}

fn short_name(full: &str) -> &str {
    let path = full.split('<').next().unwrap_or(full);
    let own = path.rsplit("::").next().unwrap_or(path);
    match own.strip_suffix("RateLimiter") {
        // A type called just that keeps its name: an account must have one.
        None | Some("") => own,
        Some(stem) => stem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_types_own_less_the_suffix() {
        for (full, short) in [
            ("app::limits::GeocoderRateLimiter", "Geocoder"),
            ("app::Geocoder", "Geocoder"),
            ("app::RateLimiter", "RateLimiter"),
            ("app::RateLimiterPool", "RateLimiterPool"),
            ("app::PerHostRateLimiter<alloc::vec::Vec<u8>>", "PerHost"),
            ("Bare", "Bare"),
        ] {
            assert_eq!(short_name(full), short, "{full}");
        }
    }
}
