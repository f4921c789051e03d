//! Why a spend gate refuses a job.

use std::fmt;

use crate::money::{Currency, Money, Sum};
use crate::one_line::OneLine;
use crate::sync::Arc;

/// Why a [`SpendGate`](crate::SpendGate) refuses a job.
///
/// The job has neither waited nor run. Jobs of its workflow that run already go on: a refusal stops
/// nobody, and each text says so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpendRefusal {
    /// With this job, the workflow could spend more than its cap.
    #[error(
        "workflow `{}` would go over its cap of {cap}: {spent} are spent, {committed} \
         committed to jobs under way, and this one reserves {reservation}; raise or lift the cap, or \
         try again when jobs under way have cost less than they reserved; nothing running was \
         stopped",
        OneLine(workflow)
    )]
    OverCap {
        /// The workflow.
        workflow: Arc<str>,
        /// What its jobs that have ended cost.
        spent: Money,
        /// What its jobs under way have reserved.
        committed: Money,
        /// The cap.
        cap: Money,
        /// What this job reserves. Saturated where it is more than can be counted, and then under no
        /// cap.
        reservation: Money,
    },
    /// The workflow has a cap, and the job calls a model whose price nobody knows.
    #[error(
        "workflow `{}` has a cap, and model `{}` has no prices, so that nobody knows \
         what it would cost; give the model prices (zero where it is free), or lift the workflow's \
         caps; nothing running was stopped",
        OneLine(workflow),
        OneLine(model)
    )]
    Unpriced {
        /// The workflow.
        workflow: Arc<str>,
        /// The model.
        model: Arc<str>,
    },
    /// The workflow has caps, but none in the currency the model is priced in.
    #[error(
        "workflow `{}` has no cap in {currency}, in which model `{}` is priced, but in \
         {}; set a cap in {currency} as well, or lift the workflow's caps; nothing running was \
         stopped",
        OneLine(workflow),
        OneLine(model),
        Codes(caps)
    )]
    NoCap {
        /// The workflow.
        workflow: Arc<str>,
        /// The currency without a cap.
        currency: Currency,
        /// The model that is priced in it.
        model: Arc<str>,
        /// The currencies that have a cap.
        caps: Vec<Currency>,
    },
    /// The ledger is [strict](crate::SpendLedger::strict), and nothing caps the job.
    #[error("{}; nothing running was stopped", WithoutCap(workflow))]
    Uncapped {
        /// Its workflow, which has no cap; `None` for a job of no workflow.
        workflow: Option<Arc<str>>,
    },
    /// A gate of the host's own refuses, for its own reason.
    #[error(
        "spend gate `{}` refuses: {}; nothing running was stopped",
        OneLine(gate),
        OneLine(reason)
    )]
    Other {
        /// The gate.
        gate: Arc<str>,
        /// Its reason, and what to do about it.
        reason: String,
    },
}

impl SpendRefusal {
    /// A refusal by a gate of one's own: its name, the reason, and what to do about it.
    pub fn other(gate: impl Into<Arc<str>>, reason: impl Into<String>) -> Self {
        Self::Other { gate: gate.into(), reason: reason.into() }
    }

    /// Whether the same job may be admitted later without anybody's changing a cap or a price.
    ///
    /// That is when it would fit beside what is spent: jobs under way may cost less than they
    /// reserved. It is no promise.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::OverCap { spent, cap, reservation, .. } => {
                let least = Sum::of(spent.amount).plus(Sum::of(reservation.amount));
                !reservation.is_saturated() && least <= Sum::of(cap.amount)
            }
            _ => false,
        }
    }
}

/// What has no cap, and what to do about it.
struct WithoutCap<'a>(&'a Option<Arc<str>>);

impl fmt::Display for WithoutCap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(workflow) => write!(
                f,
                "workflow `{}` has no cap, and this ledger admits only what has one; set a cap, or \
                 look whether the name is right",
                OneLine(workflow)
            ),
            None => f.write_str(
                "the job is of no workflow, and this ledger admits only what has a cap; say which \
                 workflow it is of",
            ),
        }
    }
}

/// Currencies, as part of a sentence.
struct Codes<'a>(&'a [Currency]);

impl fmt::Display for Codes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, currency) in self.0.iter().enumerate() {
            let joint = match index {
                0 => "",
                _ if index + 1 == self.0.len() => " and ",
                _ => ", ",
            };
            write!(f, "{joint}{currency}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(spent: &str, committed: &str, reservation: &str) -> SpendRefusal {
        let usd = |amount: &str| Money::usd(amount.parse().unwrap());
        SpendRefusal::OverCap {
            workflow: "nightly".into(),
            spent: usd(spent),
            committed: usd(committed),
            cap: usd("1"),
            reservation: usd(reservation),
        }
    }

    #[test]
    fn each_refusal_names_the_workflow_the_amounts_and_what_to_do() {
        assert_eq!(
            over("0.9", "0.08", "0.0300001").to_string(),
            "workflow `nightly` would go over its cap of 1.000000 USD: 0.900000 USD are spent, \
             0.080000 USD committed to jobs under way, and this one reserves 0.030001 USD; raise or \
             lift the cap, or try again when jobs under way have cost less than they reserved; \
             nothing running was stopped"
        );
        let unpriced = SpendRefusal::Unpriced { workflow: "nightly".into(), model: "gpt-x".into() };
        assert_eq!(
            unpriced.to_string(),
            "workflow `nightly` has a cap, and model `gpt-x` has no prices, so that nobody knows \
             what it would cost; give the model prices (zero where it is free), or lift the \
             workflow's caps; nothing running was stopped"
        );
        let no_cap = SpendRefusal::NoCap {
            workflow: "nightly".into(),
            currency: Currency::EUR,
            model: "gpt-x".into(),
            caps: vec![Currency::USD, "CHF".parse().unwrap(), "JPY".parse().unwrap()],
        };
        assert_eq!(
            no_cap.to_string(),
            "workflow `nightly` has no cap in EUR, in which model `gpt-x` is priced, but in USD, \
             CHF and JPY; set a cap in EUR as well, or lift the workflow's caps; nothing running \
             was stopped"
        );
        assert_eq!(
            SpendRefusal::Uncapped { workflow: Some("nigthly".into()) }.to_string(),
            "workflow `nigthly` has no cap, and this ledger admits only what has one; set a cap, or \
             look whether the name is right; nothing running was stopped"
        );
        assert_eq!(
            SpendRefusal::Uncapped { workflow: None }.to_string(),
            "the job is of no workflow, and this ledger admits only what has a cap; say which \
             workflow it is of; nothing running was stopped"
        );
        assert_eq!(
            SpendRefusal::other("office-hours", "nothing costly at night").to_string(),
            "spend gate `office-hours` refuses: nothing costly at night; nothing running was stopped"
        );
    }

    #[test]
    fn only_what_would_fit_beside_what_is_spent_is_worth_trying_again() {
        assert!(over("0.5", "0.4", "0.5").is_retryable());
        assert!(!over("0.5", "0.4", "0.5000001").is_retryable());
        assert!(!SpendRefusal::other("mine", "no").is_retryable());
    }
}
