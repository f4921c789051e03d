//! How many jobs may use the default database at once, as a host states it.

use super::CountingProvider;
use crate::error::ConfigError;
use crate::sync::Arc;

/// The default database's name and bound, from code, a file or the environment.
///
/// # Examples
///
/// ```
/// use admit::DatabaseSettings;
///
/// let settings = DatabaseSettings::from_vars(|name| match name {
///     "ADMIT_DATABASE_MAX_CONCURRENT" => Some("20".to_owned()),
///     _ => None,
/// })?;
/// assert_eq!(settings.name, "default");
/// assert_eq!(settings.max_concurrent, Some(20));
/// # Ok::<(), admit::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct DatabaseSettings {
    /// Its name. Default `default`.
    pub name: String,
    /// How many jobs at once. Without it nothing is registered: a bound is never guessed from a
    /// pool's size, because only the host knows who else needs the pool.
    pub max_concurrent: Option<u32>,
}

impl Default for DatabaseSettings {
    fn default() -> Self {
        Self { name: "default".to_owned(), max_concurrent: None }
    }
}

impl DatabaseSettings {
    /// Settings of a name and a bound.
    pub fn new(name: impl Into<String>, max_concurrent: u32) -> Self {
        Self { name: name.into(), max_concurrent: Some(max_concurrent) }
    }

    /// From `ADMIT_DATABASE_NAME` and `ADMIT_DATABASE_MAX_CONCURRENT`.
    ///
    /// # Errors
    ///
    /// Names the variable whose value will not do.
    pub fn from_env() -> Result<Self, ConfigError> {
        // What is no Unicode must not pass for unset: it would silently bound nothing.
        Self::from_vars(|name| Some(std::env::var_os(name)?.to_string_lossy().into_owned()))
    }

    /// The same from variables looked up elsewhere.
    ///
    /// # Errors
    ///
    /// Names the variable whose value will not do.
    pub fn from_vars(look_up: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut settings = Self::default();
        if let Some(name) = look_up("ADMIT_DATABASE_NAME") {
            if name.trim().is_empty() {
                let value = format!("{name:?}");
                return Err(ConfigError::new("ADMIT_DATABASE_NAME", value, "must not be empty"));
            }
            settings.name = name;
        }
        if let Some(bound) = look_up("ADMIT_DATABASE_MAX_CONCURRENT") {
            let parsed = bound.trim().parse().ok().filter(|&bound: &u32| bound > 0);
            settings.max_concurrent = Some(parsed.ok_or_else(|| {
                let value = format!("{bound:?}");
                let field = "ADMIT_DATABASE_MAX_CONCURRENT";
                ConfigError::new(field, value, "must be a whole number, at least 1")
            })?);
        }
        Ok(settings)
    }

    /// The provider they ask for, if they state a bound.
    pub(super) fn provider(&self) -> Result<Option<Arc<CountingProvider>>, ConfigError> {
        match self.max_concurrent {
            None => Ok(None),
            Some(0) => {
                let error = ConfigError::new("max_concurrent", 0, "must be at least 1");
                Err(error.of(format!("db:{}", self.name)))
            }
            Some(bound) => CountingProvider::new(self.name.as_str(), bound).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: Option<&str>, bound: Option<&str>) -> Result<DatabaseSettings, ConfigError> {
        DatabaseSettings::from_vars(|variable| match variable {
            "ADMIT_DATABASE_NAME" => name.map(str::to_owned),
            "ADMIT_DATABASE_MAX_CONCURRENT" => bound.map(str::to_owned),
            _ => None,
        })
    }

    #[test]
    fn the_environment_says_name_and_bound() {
        assert_eq!(of(None, None).unwrap(), DatabaseSettings::default());
        assert_eq!(of(Some("main"), Some(" 3 ")).unwrap(), DatabaseSettings::new("main", 3));
    }

    #[test]
    fn a_variable_that_will_not_do_is_named() {
        for bound in ["", "0", "-1", "many", "4294967296"] {
            let error = of(None, Some(bound)).unwrap_err();
            assert_eq!(error.field, "ADMIT_DATABASE_MAX_CONCURRENT");
            assert!(error.to_string().contains(&format!("{bound:?}")), "{error}");
        }
        assert_eq!(of(Some(" "), None).unwrap_err().field, "ADMIT_DATABASE_NAME");
    }
}
