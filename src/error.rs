//! The public errors: one enum a stage, each a sentence that can be acted on.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tokio::time::Instant;

use crate::account::Refusal;
use crate::amount::Amount;
use crate::one_line::OneLine;
use crate::sync::Arc;
use crate::time_left::TimeLeft;

/// Any error of code that is the host's own.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Names as part of a sentence.
pub(crate) struct Names<'a>(pub(crate) &'a [Arc<str>]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (index, name) in self.0.iter().enumerate() {
            write!(f, "{}`{}`", if index == 0 { "" } else { ", " }, OneLine(name))?;
        }
        Ok(())
    }
}

/// A value that cannot be configured: of what, which field, what it was, what it must be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}", Subject(subject.as_deref()), self.bare())]
#[non_exhaustive]
pub struct ConfigError {
    /// The name of what was to be configured, such as the account's; `None` where it has none.
    pub subject: Option<Box<str>>,
    /// The field, as the constructor or the setter calls it.
    pub field: &'static str,
    /// The value that was given, as text.
    pub value: Box<str>,
    /// What it must be instead.
    pub requirement: Box<str>,
}

impl ConfigError {
    /// An error about `field`, which was `value`, against the requirement.
    pub fn new(
        field: &'static str,
        value: impl fmt::Display,
        requirement: impl Into<Box<str>>,
    ) -> Self {
        Self {
            subject: None,
            field,
            value: value.to_string().into(),
            requirement: requirement.into(),
        }
    }

    /// What is wrong, without its name: for an error that says it already.
    pub(crate) fn bare(&self) -> impl fmt::Display {
        let Self { field, value, requirement, .. } = self;
        fmt::from_fn(move |f| write!(f, "{field} is {}, but {requirement}", OneLine(value)))
    }

    /// The same, about what has this name; where it says already what it is about, it stays so.
    #[must_use]
    pub fn of(mut self, subject: impl Into<Box<str>>) -> Self {
        self.subject.get_or_insert_with(|| subject.into());
        self
    }
}

/// The name of what was to be configured, at the head of a sentence.
struct Subject<'a>(Option<&'a str>);

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |name| write!(f, "`{}`: ", OneLine(name)))
    }
}

/// Why a demand was not granted.
///
/// Each variant's text names the account, the amount and the limit where there is one, and when it
/// is worth trying again.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdmitError {
    /// An account refuses the demand: it can never fit, or the account refuses everyone for now.
    #[error("`{account}` refuses: {refusal}")]
    Refused {
        /// The account that refuses.
        account: Arc<str>,
        /// Its reason.
        #[source]
        refusal: Refusal,
    },
    /// An account is broken: one of its methods panicked. A bug in the account, not in the job.
    #[error(
        "`{account}` is out of order ({source}): a bug in the account, not in the job; jobs that do \
         not name it go on"
    )]
    AccountFault {
        /// The account.
        account: Arc<str>,
        /// What happened in it.
        source: AccountPanic,
    },
    /// The job's cancellation token was cancelled.
    #[error("cancelled before it was granted")]
    Cancelled,
    /// The time given by [`within`](crate::Admit::within) passed first.
    #[error("not granted within {waited:?}: {}", Shortage::list(shortages))]
    TimedOut {
        /// From the first poll to the time-out.
        waited: Duration,
        /// What was missing at the end.
        shortages: Vec<Shortage>,
    },
    /// The line is full: see [`max_waiting`](crate::AdmissionBuilder::max_waiting).
    #[error(
        "the line is full: {waiting} waiting, and no more than {limit} may; try again when some have \
         gone"
    )]
    QueueFull {
        /// How many wait.
        waiting: usize,
        /// How many may.
        limit: usize,
    },
    /// The admission was stopped, or the runtime under its evaluator went away.
    #[error(
        "admission has been shut down, nothing more is granted: start it again if its runtime went \
         away, else build another"
    )]
    ShutDown,
    /// The admission closed itself because of a defect.
    #[error(
        "admission closed after a defect ({0}); nothing more is granted by it: report the defect, \
         and build another"
    )]
    Closed(#[source] Arc<Defect>),
}

impl AdmitError {
    /// Whether the same demand may be granted later without anybody's changing a limit.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::TimedOut { .. } | Self::QueueFull { .. } => true,
            Self::Refused { refusal, .. } => refusal.retry_instant().is_some(),
            _ => false,
        }
    }

    /// When it is worth trying again, where that is known.
    #[must_use]
    pub fn retry_at(&self) -> Option<Instant> {
        match self {
            Self::Refused { refusal, .. } => refusal.retry_instant(),
            Self::TimedOut { shortages, .. } => Shortage::all_at(shortages),
            _ => None,
        }
    }
}

/// Why [`try_admit`](crate::Admission::try_admit) granted nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TryAdmitError {
    /// The demand would have to wait.
    #[error("would have to wait: {}", Shortage::list(shortages))]
    WouldWait {
        /// Every account it is short on, in the demand's order (memory first, where it is asked).
        shortages: Vec<Shortage>,
    },
    /// It would not be granted by waiting either.
    #[error(transparent)]
    Admit(#[from] AdmitError),
}

impl TryAdmitError {
    /// When the clock alone would let the demand go; `None` when only an event can, or nothing.
    #[must_use]
    pub fn retry_at(&self) -> Option<Instant> {
        match self {
            Self::WouldWait { shortages } => Shortage::all_at(shortages),
            Self::Admit(error) => error.retry_at(),
        }
    }
}

/// One account that a demand does not fit on at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// The account's name.
    pub account: Arc<str>,
    /// What the demand wants of it.
    pub wanted: Amount,
    /// What is set aside there for the head of the line.
    pub reserved_ahead: Amount,
    /// How much is in use.
    pub in_use: u64,
    /// The most that can be in use.
    pub capacity: u64,
    /// The account's numbers in its own words, on one line; empty when it said nothing.
    pub summary: String,
    /// When the clock alone would make it fit; `None` when only an event can.
    pub retry_at: Option<Instant>,
}

impl Shortage {
    /// All of them, as part of a sentence.
    pub(crate) fn list(shortages: &[Self]) -> impl fmt::Display {
        struct List<'a>(&'a [Shortage]);
        impl fmt::Display for List<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                if self.0.is_empty() {
                    return f.write_str("jobs ahead of it come first");
                }
                for (index, shortage) in self.0.iter().enumerate() {
                    if index > 0 {
                        f.write_str("; ")?;
                    }
                    write!(f, "{shortage}")?;
                }
                Ok(())
            }
        }
        List(shortages)
    }

    /// When the clock will have mended every one of them.
    fn all_at(shortages: &[Self]) -> Option<Instant> {
        shortages
            .iter()
            .map(|shortage| shortage.retry_at)
            .collect::<Option<Vec<_>>>()
            .and_then(|instants| instants.into_iter().max())
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { account, wanted, reserved_ahead, in_use, capacity, summary, .. } = self;
        // Memory is asked for nothing, and so may anybody be who only has to stand behind a head.
        if wanted.is_none() {
            write!(f, "`{account}` lets nobody go now (")?;
        } else {
            write!(f, "`{account}` is short of {wanted} (")?;
        }
        if summary.is_empty() {
            write!(f, "{in_use} of {capacity} in use")?;
        } else {
            // An account of the host's own may say anything.
            write!(f, "{}", OneLine(summary))?;
        }
        if !reserved_ahead.is_none() {
            write!(f, ", {reserved_ahead} set aside for the job ahead")?;
        }
        match self.retry_at {
            Some(at) => {
                let wait = at.saturating_duration_since(Instant::now());
                let fits = if wanted.is_none() { "asked again" } else { "fits" };
                write!(f, ", {fits} in {})", TimeLeft(wait))
            }
            None => f.write_str(", fits when some is given back)"),
        }
    }
}

/// Why an admission could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Its evaluator runs already.
    #[error("admission is started already; use the handle there is")]
    AlreadyStarted,
    /// There is no Tokio runtime here to run the evaluator on.
    #[error("no Tokio runtime here: call start inside one (for instance in an async main)")]
    NoRuntime,
    /// The Tokio runtime here has no timer.
    #[error("the Tokio runtime here has no timer: build it with `enable_time` or `enable_all`")]
    NoTimer,
    /// It was stopped, which is final.
    #[error("admission was stopped, which is final: build another")]
    Stopped,
}

/// Why [`AdmissionBuilder::start`](crate::AdmissionBuilder::start) failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A value cannot be configured.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The evaluator could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// A panic inside an account's method, caught.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its `{method}` panicked: {message}")]
#[non_exhaustive]
pub struct AccountPanic {
    /// The method.
    pub method: &'static str,
    /// The panic's message, shortened; empty when it was not text.
    pub message: String,
}

impl AccountPanic {
    /// Runs one method of an account and turns its panic into a value.
    pub(crate) fn catch<R>(method: &'static str, call: impl FnOnce() -> R) -> Result<R, Self> {
        catch_unwind(AssertUnwindSafe(call)).map_err(|payload| Self::of(method, payload))
    }

    pub(crate) fn of(method: &'static str, payload: Box<dyn Any + Send>) -> Self {
        Self { method, message: panic_message(payload) }
    }
}

/// A defect that closed an admission: a panic where none can be made good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {message}")]
#[non_exhaustive]
pub struct Defect {
    /// Where it happened.
    pub what: String,
    /// The panic's message, shortened.
    pub message: String,
}

impl Defect {
    pub(crate) fn new(what: impl Into<String>, message: impl Into<String>) -> Self {
        Self { what: what.into(), message: message.into() }
    }
}

/// The text of a panic, on one line, at most 200 characters of it. It ends here.
pub(crate) fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(not a text)");
    let message = OneLine(text).to_string().chars().take(200).collect();
    end_panic(payload);
    message
}

/// Drops what something panicked with. That may panic in turn, and we may hold a lock, or be
/// unwinding already.
pub(crate) fn end_panic(payload: Box<dyn Any + Send>) {
    // One whose drop panics for ever is leaked.
    std::mem::forget(catch_unwind(AssertUnwindSafe(|| drop(payload))));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortage(account: &str, retry_at: Option<Instant>) -> Shortage {
        Shortage {
            account: account.into(),
            wanted: Amount::permits(2),
            reserved_ahead: Amount::permits(1),
            in_use: 3,
            capacity: 4,
            summary: String::new(),
            retry_at,
        }
    }

    #[test]
    fn a_would_wait_is_worth_retrying_when_the_clock_mends_every_shortage() {
        let now = Instant::now();
        let later = now + Duration::from_secs(3);
        let both = TryAdmitError::WouldWait {
            shortages: vec![shortage("a", Some(now)), shortage("b", Some(later))],
        };
        assert_eq!(both.retry_at(), Some(later));
        let one = TryAdmitError::WouldWait {
            shortages: vec![shortage("a", Some(now)), shortage("b", None)],
        };
        assert_eq!(one.retry_at(), None);
    }

    #[test]
    fn a_text_names_the_account_the_amount_and_the_limit() {
        let error = AdmitError::TimedOut {
            waited: Duration::from_secs(1),
            shortages: vec![shortage("db:main", None)],
        };
        assert_eq!(
            error.to_string(),
            "not granted within 1s: `db:main` is short of 2 permits (3 of 4 in use, \
             1 permit set aside for the job ahead, fits when some is given back)"
        );
        let error = AdmitError::Refused {
            account: "gpt-x".into(),
            refusal: Refusal::never_fits(Amount::tokens(101), "100 tokens"),
        };
        let text = error.to_string();
        assert!(text.contains("`gpt-x`") && text.contains("101") && text.contains("100"), "{text}");
    }

    #[test]
    fn a_panic_becomes_a_short_text() {
        let caught = AccountPanic::catch("fits", || panic!("{}", "x".repeat(500))).unwrap_err();
        assert_eq!(caught.method, "fits");
        assert_eq!(caught.message.len(), 200);
        let caught = AccountPanic::catch("fits", || panic!("left\n  right")).unwrap_err();
        assert_eq!(caught.message, "left   right");
    }

    #[test]
    fn errors_can_cross_threads() {
        fn holds<T: Send + Sync + 'static>() {}
        holds::<AdmitError>();
        holds::<TryAdmitError>();
        holds::<ConfigError>();
    }
}
