//! How much of an account a job wants, and who the job is.

use std::fmt;

use crate::one_line::OneLine;
use crate::sync::Arc;

/// How much one job wants of one account.
///
/// Two counters travel together, because limits count in two ways: a model's bucket is charged a
/// request *and* tokens, a connection pool a place. Which of them an account reads is the
/// account's own rule: a gate and a window count [`requests`](Self::requests), a bucket both.
///
/// Sums saturate; a saturated amount can never fit anywhere (see [`is_saturated`](Self::is_saturated)).
///
/// # Examples
///
/// ```
/// use admit::Amount;
///
/// assert_eq!(Amount::tokens(1_800), Amount { requests: 1, units: 1_800 });
/// assert_eq!(Amount::permits(2), Amount { requests: 2, units: 2 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Amount {
    /// Requests, or places: what a gate and a window count, and a bucket's first dimension.
    pub requests: u32,
    /// Units: a bucket's second dimension (tokens), and what events report.
    pub units: u64,
}

impl Amount {
    /// Nothing at all.
    pub const NONE: Self = Self { requests: 0, units: 0 };

    /// `n` places of a gate, or `n` slots of a window.
    #[must_use]
    pub const fn permits(n: u32) -> Self {
        Self { requests: n, units: n as u64 }
    }

    /// One request of `n` tokens.
    #[must_use]
    pub const fn tokens(n: u64) -> Self {
        Self { requests: 1, units: n }
    }

    /// Whether both counters are zero.
    #[must_use]
    #[inline]
    pub const fn is_none(self) -> bool {
        self.requests == 0 && self.units == 0
    }

    /// Whether a counter stands at its maximum: the sum overflowed, so no account can ever grant it.
    #[must_use]
    #[inline]
    pub const fn is_saturated(self) -> bool {
        self.requests == u32::MAX || self.units == u64::MAX
    }

    /// Both counters added, each stopping at its maximum.
    #[must_use]
    #[inline]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            units: self.units.saturating_add(other.units),
        }
    }

    /// Whether neither counter of `other` exceeds this one's.
    #[must_use]
    #[inline]
    pub const fn covers(self, other: Self) -> bool {
        self.requests >= other.requests && self.units >= other.units
    }
}

/// `3 permits`, `1 request of 1800 tokens`: what a sentence about an amount says.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n: u64| if n == 1 { "" } else { "s" };
        let requests = u64::from(self.requests);
        if self.is_saturated() {
            f.write_str("more than can be counted")
        } else if requests == self.units {
            write!(f, "{requests} permit{}", plural(requests))
        } else {
            let units = self.units;
            write!(f, "{requests} request{} of {units} token{}", plural(requests), plural(units))
        }
    }
}

/// Who a demand is for: the label that travels through waiting, grant and events.
///
/// # Examples
///
/// ```
/// use admit::JobInfo;
///
/// let job = JobInfo::new("17", "summarise").in_workflow("nightly").with("host", "example.org");
/// assert_eq!(job.to_string(), "summarise (17)");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct JobInfo {
    /// The host's own identifier of the job.
    pub id: Arc<str>,
    /// What kind of job it is, for a reader.
    pub name: Arc<str>,
    /// The workflow the job belongs to, if any.
    pub workflow: Option<Arc<str>>,
    /// Whatever else should appear beside the job, in the order it was added.
    #[cfg_attr(feature = "serde", serde(default))]
    pub extra: Vec<(Arc<str>, Arc<str>)>,
}

impl JobInfo {
    /// A label of an identifier and a name.
    pub fn new(id: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { id: id.into(), name: name.into(), workflow: None, extra: Vec::new() }
    }

    /// The same label, as part of a workflow.
    #[must_use]
    pub fn in_workflow(mut self, workflow: impl Into<Arc<str>>) -> Self {
        self.workflow = Some(workflow.into());
        self
    }

    /// The same label with one more key and value.
    #[must_use]
    pub fn with(mut self, key: impl Into<Arc<str>>, value: impl Into<Arc<str>>) -> Self {
        self.extra.push((key.into(), value.into()));
        self
    }
}

/// One line, whatever the label holds: it stands in log lines and tables, and a host may have made it
/// of what somebody else chose.
impl fmt::Display for JobInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", OneLine(&self.name), OneLine(&self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_stop_at_the_maximum_and_say_so() {
        let most = Amount { requests: u32::MAX - 1, units: u64::MAX - 1 };
        assert!(!most.is_saturated());
        let sum = most.saturating_add(Amount::tokens(5));
        assert_eq!(sum, Amount { requests: u32::MAX, units: u64::MAX });
        assert!(sum.is_saturated());
        assert_eq!(sum.to_string(), "more than can be counted");
    }

    #[test]
    fn an_amount_reads_as_permits_when_both_counters_agree() {
        assert_eq!(Amount::permits(1).to_string(), "1 permit");
        assert_eq!(Amount::permits(3).to_string(), "3 permits");
        assert_eq!(Amount::tokens(30).to_string(), "1 request of 30 tokens");
        assert_eq!(Amount::NONE.to_string(), "0 permits");
    }

    #[test]
    fn covering_needs_both_counters() {
        let budget = Amount { requests: 2, units: 100 };
        assert!(budget.covers(Amount::tokens(100)));
        assert!(!budget.covers(Amount::permits(3)));
        assert!(!budget.covers(Amount::tokens(101)));
    }
}
