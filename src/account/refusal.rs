//! An account's "never": a sentence, and when it is worth trying again.

use std::borrow::Cow;
use std::fmt;

use tokio::time::Instant;

use crate::amount::Amount;
use crate::one_line::OneLine;

/// Why an account refuses a demand outright, rather than letting it wait.
///
/// The text is read by people and by language models: it says what was asked, what the limit is,
/// and what to do. The account's name is added by whoever reports it. `Display` is one line.
///
/// # Examples
///
/// ```
/// use admit::Refusal;
///
/// let refusal = Refusal::new("the service is closed on Sundays");
/// assert_eq!(refusal.to_string(), "the service is closed on Sundays");
/// assert!(refusal.retry_instant().is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", OneLine(text))]
pub struct Refusal {
    text: Cow<'static, str>,
    retry_at: Option<Instant>,
}

impl Refusal {
    /// A refusal for the reason given.
    pub fn new(text: impl Into<Cow<'static, str>>) -> Self {
        Self { text: text.into(), retry_at: None }
    }

    /// The refusal of an amount larger than the account can ever grant at once.
    #[must_use]
    pub fn never_fits(wanted: Amount, limit: impl fmt::Display) -> Self {
        Self::new(format!(
            "{wanted} can never be granted, the most at once is {limit}; ask for less, or raise the limit"
        ))
    }

    /// The same refusal, worth trying again at `instant`.
    #[must_use]
    pub const fn retry_at(mut self, instant: Instant) -> Self {
        self.retry_at = Some(instant);
        self
    }

    /// The sentence.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// When it is worth trying again; `None` when waiting does not help.
    #[must_use]
    pub const fn retry_instant(&self) -> Option<Instant> {
        self.retry_at
    }
}
