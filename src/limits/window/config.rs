//! What a window is built from, and what of it is accepted.

use std::fmt;
use std::time::Duration;

use super::ElasticWindow;
use crate::error::ConfigError;
use crate::limits::circuit::CircuitRules;
use crate::limits::throttle::ThrottleRules;
use crate::sync::Arc;

/// The numbers of an [`ElasticWindow`], each with its default.
///
/// Checked once, when the window is built.
///
/// # Examples
///
/// ```
/// use admit::{ElasticWindow, WindowConfig};
/// use std::time::Duration;
///
/// let config = WindowConfig { max: 30, per: Duration::from_secs(60), ..WindowConfig::default() };
/// let window = ElasticWindow::new("geocoder", config)?;
/// assert_eq!(window.status().available, 30);
/// # Ok::<(), admit::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct WindowConfig {
    /// The most requests in any span of the window's length. Positive.
    ///
    /// Default 1: with [`per`](Self::per) at its default, a rate that no service minds. Set both.
    pub max: u32,
    /// The base length of the window, at throttle zero. Positive. Default 1 s.
    ///
    /// Who waits for a slot goes up to a millisecond after it is free, for timers are Tokio's. So a fast
    /// rate is better said of a long window: 100 in 100 ms, not 1 in 1 ms.
    pub per: Duration,
    /// The most the throttle can be; the window is stretched to `per × (1 + throttle)`.
    ///
    /// Not negative; kept in tenths. Default 9.0: a tenth of the configured rate at the slowest. At
    /// 0.0 the window never stretches, and every failure counts towards the circuit.
    pub max_throttle: f64,
    /// How many successes take 0.2 off the throttle while pressure is recent. Positive. Default 3.
    pub successes_per_decrease: u32,
    /// How many failures in a row at maximum throttle open the circuit. Positive. Default 3.
    pub failures_to_open: u32,
    /// How long the circuit stays blocked the first time. Positive. Default 30 s.
    pub initial_cooldown: Duration,
    /// What the cooldown, doubled by every failed probe, stops at. At least the initial one.
    ///
    /// Default 1 h: long enough to leave a broken service alone, short enough for it to be found
    /// recovered the same day.
    pub max_cooldown: Duration,
    /// After how long a probe that neither reports nor settles is given up. Positive.
    ///
    /// Default `None`: as long as [`max_cooldown`](Self::max_cooldown).
    pub probe_timeout: Option<Duration>,
    /// The longest a failure's `retry_after` holds the window: nobody goes until then, and nobody is
    /// refused for it. More than a day is a day.
    ///
    /// Default zero: a window does not read it, and leaves a failing service alone by its throttle
    /// and its circuit. Set it where a service says when to come back, and means it.
    pub max_hold: Duration,
}

impl Default for WindowConfig {
    fn default() -> Self {
        Self {
            max: 1,
            per: Duration::from_secs(1),
            max_throttle: 9.0,
            successes_per_decrease: 3,
            failures_to_open: 3,
            initial_cooldown: Duration::from_secs(30),
            max_cooldown: Duration::from_secs(60 * 60),
            probe_timeout: None,
            max_hold: Duration::ZERO,
        }
    }
}

impl WindowConfig {
    /// Refuses the first field that cannot be configured.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        positive("max", self.max != 0, self.max)?;
        positive_span("per", self.per)?;
        if !(self.max_throttle >= 0.0 && self.max_throttle.is_finite()) {
            let requirement = "must be a number that is not negative";
            return Err(ConfigError::new("max_throttle", self.max_throttle, requirement));
        }
        let successes = self.successes_per_decrease;
        positive("successes_per_decrease", successes != 0, successes)?;
        positive("failures_to_open", self.failures_to_open != 0, self.failures_to_open)?;
        positive_span("initial_cooldown", self.initial_cooldown)?;
        if self.max_cooldown < self.initial_cooldown {
            let value = format!("{:?}", self.max_cooldown);
            let least =
                format!("must be at least the initial cooldown, {:?}", self.initial_cooldown);
            return Err(ConfigError::new("max_cooldown", value, least));
        }
        self.probe_timeout.map_or(Ok(()), |timeout| positive_span("probe_timeout", timeout))
    }

    /// One pressure signal adds 1.0.
    pub(super) fn throttle_rules(&self) -> ThrottleRules {
        ThrottleRules {
            // Saturates: a maximum past 400 million is as good as none.
            max: (self.max_throttle * 10.0).round() as u32,
            successes: self.successes_per_decrease,
            ..ThrottleRules::with_step(10)
        }
    }

    pub(super) fn circuit_rules(&self) -> CircuitRules {
        CircuitRules {
            failures_to_open: self.failures_to_open,
            initial_cooldown: self.initial_cooldown,
            max_cooldown: self.max_cooldown,
            probe_timeout: self.probe_timeout.unwrap_or(self.max_cooldown),
        }
    }
}

fn positive(field: &'static str, is: bool, value: impl fmt::Display) -> Result<(), ConfigError> {
    if is { Ok(()) } else { Err(ConfigError::new(field, value, "must be positive")) }
}

fn positive_span(field: &'static str, span: Duration) -> Result<(), ConfigError> {
    positive(field, !span.is_zero(), format_args!("{span:?}"))
}

/// Builds an [`ElasticWindow`]; see [`ElasticWindow::builder`].
///
/// What is not set is as in [`WindowConfig::default`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct ElasticWindowBuilder {
    name: Arc<str>,
    config: WindowConfig,
}

impl ElasticWindowBuilder {
    pub(super) fn new(name: Arc<str>) -> Self {
        Self { name, config: WindowConfig::default() }
    }

    /// All numbers at once, replacing what was set before.
    pub fn config(mut self, config: WindowConfig) -> Self {
        self.config = config;
        self
    }

    /// The most requests in any span of the window's length. See [`WindowConfig::max`].
    pub const fn max(mut self, requests: u32) -> Self {
        self.config.max = requests;
        self
    }

    /// The base length of the window. See [`WindowConfig::per`].
    pub const fn per(mut self, base: Duration) -> Self {
        self.config.per = base;
        self
    }

    /// The most the throttle can be. See [`WindowConfig::max_throttle`].
    pub const fn max_throttle(mut self, throttle: f64) -> Self {
        self.config.max_throttle = throttle;
        self
    }

    /// How many successes take 0.2 off. See [`WindowConfig::successes_per_decrease`].
    pub const fn successes_per_decrease(mut self, successes: u32) -> Self {
        self.config.successes_per_decrease = successes;
        self
    }

    /// How many failures open the circuit. See [`WindowConfig::failures_to_open`].
    pub const fn failures_to_open(mut self, failures: u32) -> Self {
        self.config.failures_to_open = failures;
        self
    }

    /// The first cooldown. See [`WindowConfig::initial_cooldown`].
    pub const fn initial_cooldown(mut self, cooldown: Duration) -> Self {
        self.config.initial_cooldown = cooldown;
        self
    }

    /// The longest cooldown. See [`WindowConfig::max_cooldown`].
    pub const fn max_cooldown(mut self, cooldown: Duration) -> Self {
        self.config.max_cooldown = cooldown;
        self
    }

    /// When a probe is given up. See [`WindowConfig::probe_timeout`].
    pub const fn probe_timeout(mut self, timeout: Duration) -> Self {
        self.config.probe_timeout = Some(timeout);
        self
    }

    /// The longest a failure's `retry_after` holds the window. See [`WindowConfig::max_hold`].
    pub const fn max_hold(mut self, most: Duration) -> Self {
        self.config.max_hold = most;
        self
    }

    /// Builds the window.
    ///
    /// # Errors
    ///
    /// As for [`ElasticWindow::new`].
    pub fn build(self) -> Result<Arc<ElasticWindow>, ConfigError> {
        ElasticWindow::new(self.name, self.config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut WindowConfig)) -> &'static str {
        let mut config = WindowConfig::default();
        assert_eq!(config.validate(), Ok(()));
        change(&mut config);
        config.validate().expect_err("a value that cannot be").field
    }

    #[test]
    fn every_number_is_validated_and_named() {
        assert_eq!(refused(|config| config.max = 0), "max");
        assert_eq!(refused(|config| config.per = Duration::ZERO), "per");
        for throttle in [-0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(refused(|config| config.max_throttle = throttle), "max_throttle");
        }
        assert_eq!(refused(|config| config.successes_per_decrease = 0), "successes_per_decrease");
        assert_eq!(refused(|config| config.failures_to_open = 0), "failures_to_open");
        assert_eq!(refused(|config| config.initial_cooldown = Duration::ZERO), "initial_cooldown");
        let below = Duration::from_secs(29);
        assert_eq!(refused(|config| config.max_cooldown = below), "max_cooldown");
        assert_eq!(refused(|config| config.probe_timeout = Some(Duration::ZERO)), "probe_timeout");
    }

    #[test]
    fn the_bounds_themselves_are_accepted() {
        let config = WindowConfig {
            max: u32::MAX,
            per: Duration::MAX,
            max_throttle: 0.0,
            successes_per_decrease: 1,
            failures_to_open: 1,
            initial_cooldown: Duration::from_nanos(1),
            max_cooldown: Duration::from_nanos(1),
            probe_timeout: Some(Duration::MAX),
            max_hold: Duration::MAX,
        };
        assert_eq!(config.validate(), Ok(()));
    }

    #[test]
    fn a_probe_is_given_up_after_the_longest_cooldown_unless_told_otherwise() {
        let config = WindowConfig { max_cooldown: Duration::from_secs(77), ..Default::default() };
        assert_eq!(config.circuit_rules().probe_timeout, Duration::from_secs(77));
    }

    #[test]
    fn an_error_says_field_value_and_requirement() {
        let config = WindowConfig { max_cooldown: Duration::from_secs(5), ..Default::default() };
        let error = config.validate().unwrap_err();
        let text = "max_cooldown is 5s, but must be at least the initial cooldown, 30s";
        assert_eq!(error.to_string(), text);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_config_as_data_needs_only_what_differs_and_refuses_what_it_does_not_know() {
        let config: WindowConfig = serde_json::from_str(r#"{"max": 5}"#).unwrap();
        assert_eq!(config, WindowConfig { max: 5, ..WindowConfig::default() });
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<WindowConfig>(&text).unwrap(), config);
        assert!(serde_json::from_str::<WindowConfig>(r#"{"maximum": 5}"#).is_err());
    }
}
