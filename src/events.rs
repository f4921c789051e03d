//! Every step a job takes through admission, as an event.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime};

use crate::amount::JobInfo;
use crate::one_line::OneLine;
use crate::sync::Arc;

/// What kind of limit an account is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "String", into = "String"))]
#[non_exhaustive]
pub enum Category {
    /// The memory gate.
    Memory,
    /// Requests and tokens per minute.
    TokenBucket,
    /// So many in any span of time, with a circuit.
    ElasticWindow,
    /// So many at once.
    Semaphore,
    /// An account of the host's own.
    Other(Cow<'static, str>),
}

impl Category {
    /// The category's name: `memory`, `token_bucket`, `elastic_window`, `semaphore`, or its own.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Memory => "memory",
            Self::TokenBucket => "token_bucket",
            Self::ElasticWindow => "elastic_window",
            Self::Semaphore => "semaphore",
            Self::Other(name) => name,
        }
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(name) => f.pad(&OneLine(name).to_string()),
            _ => f.pad(self.as_str()),
        }
    }
}

impl From<String> for Category {
    fn from(name: String) -> Self {
        match name.as_str() {
            "memory" => Self::Memory,
            "token_bucket" => Self::TokenBucket,
            "elastic_window" => Self::ElasticWindow,
            "semaphore" => Self::Semaphore,
            _ => Self::Other(Cow::Owned(name)),
        }
    }
}

impl From<Category> for String {
    fn from(category: Category) -> Self {
        category.as_str().to_owned()
    }
}

/// The step an event tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum EventKind {
    /// The account was debited for a job that never waited on it.
    GrantedImmediate,
    /// The job was found short on the account, and waits.
    Held,
    /// The account was debited for a job that had waited on it.
    GrantedFromHold,
    /// The job leaves without a grant.
    Rejected,
    /// What the job held of the account came back.
    Released,
}

/// Why a job left without a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum RejectReason {
    /// Its token was cancelled, or its future dropped.
    Cancelled,
    /// Its time ran out.
    TimedOut,
    /// An account refused it.
    CircuitBlocked,
    /// An account, or the admission, has a bug.
    Aborted,
    /// The admission was shut down.
    Shutdown,
    /// The line was full.
    QueueFull,
}

/// One step of one job on one account.
///
/// N jobs that wait on an account make exactly 2N transitions there: each `Held` is followed by one
/// `GrantedFromHold` or one `Rejected`.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LimiterEvent {
    /// Counts the admission's events, in the order they were decided, from 1.
    pub sequence: u64,
    /// Whose step it is; `None` for a demand without a label.
    pub job: Option<Arc<JobInfo>>,
    /// The wall-clock time of the decision.
    #[cfg_attr(feature = "serde", serde(with = "unix_millis"))]
    pub at: SystemTime,
    /// The account's name.
    pub account: Arc<str>,
    /// Its category.
    pub category: Category,
    /// The most that can be in use of it.
    pub capacity: u64,
    /// What is in use of it after the step.
    pub in_use: u64,
    /// How many jobs wait on it after the step.
    pub waiting: usize,
    /// The step.
    pub kind: EventKind,
    /// How long the account had kept the job, for `GrantedFromHold` and for `Rejected` after a hold.
    #[cfg_attr(feature = "serde", serde(default, with = "millis"))]
    pub wait: Option<Duration>,
    /// Why the job left, for `Rejected`.
    pub reason: Option<RejectReason>,
    /// The account's own word on its state; `None` when nominal.
    pub indicator: Option<String>,
    /// The units the job wants or holds of the account.
    pub amount: u64,
}

/// Times as whole milliseconds since 1970.
#[cfg(feature = "serde")]
mod unix_millis {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(at: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        to.serialize_u64(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        let millis = u64::deserialize(from)?;
        UNIX_EPOCH
            .checked_add(Duration::from_millis(millis))
            .ok_or_else(|| serde::de::Error::custom("a time too far ahead"))
    }
}

/// Durations as whole milliseconds.
#[cfg(feature = "serde")]
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        wait: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_category_survives_its_name() {
        for category in [
            Category::Memory,
            Category::TokenBucket,
            Category::ElasticWindow,
            Category::Semaphore,
            Category::Other("render farm".into()),
        ] {
            assert_eq!(Category::from(String::from(category.clone())), category);
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn an_event_survives_serde_with_times_in_milliseconds() {
        let event = LimiterEvent {
            sequence: 7,
            job: Some(Arc::new(JobInfo::new("1", "one").in_workflow("w").with("k", "v"))),
            at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
            account: "http".into(),
            category: Category::Other("pool".into()),
            capacity: 4,
            in_use: 2,
            waiting: 1,
            kind: EventKind::GrantedFromHold,
            wait: Some(Duration::from_millis(250)),
            reason: None,
            indicator: Some("throttle:1.5x".to_owned()),
            amount: 3,
        };
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.contains("1700000000123") && text.contains("\"wait\":250"), "{text}");
        assert!(text.contains("granted_from_hold"), "{text}");
        assert_eq!(serde_json::from_str::<LimiterEvent>(&text).unwrap(), event);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn data_that_leaves_out_what_is_empty_or_knows_more_is_read() {
        let event = r#"{"sequence": 1, "at": 5, "account": "http", "category": "semaphore",
            "capacity": 4, "in_use": 0, "waiting": 0, "kind": "released", "amount": 1,
            "job": {"id": "1", "name": "one"}, "of_a_later_version": {}}"#;
        let event: LimiterEvent = serde_json::from_str(event).unwrap();
        assert_eq!((event.wait, event.reason, &event.indicator), (None, None, &None));
        assert_eq!(event.job.as_deref(), Some(&JobInfo::new("1", "one")));
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        let text = serde_json::to_string(&LimiterEvent { at: before, ..event.clone() }).unwrap();
        assert!(text.contains(r#""at":0,"#), "a clock before 1970 is told as 1970: {text}");
        let totals: crate::Totals = serde_json::from_str(r#"{"granted": 7}"#).unwrap();
        assert_eq!(totals, crate::Totals { granted: 7, ..Default::default() });
        let waits: crate::WaitHistogram = serde_json::from_str(r#"{"longer": 2}"#).unwrap();
        assert_eq!(waits.count(), 2);
    }
}
