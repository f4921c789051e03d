//! What happened in a run, counted as it happens.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use admit::{FailureKind, UpstreamFailure, Usage};
use tokio::time::Instant;

/// The most failures that are told one by one at the end.
const TOLD: usize = 5;

/// The counts of a run, shared by its jobs.
#[derive(Debug)]
pub(crate) struct Ledger {
    opened: Instant,
    totals: Mutex<Totals>,
}

/// The counts themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Jobs whose row is stored.
    pub(crate) done: usize,
    /// Jobs that were given up.
    pub(crate) failed: usize,
    /// Jobs that Ctrl-C left undone.
    pub(crate) unfinished: usize,
    /// Jobs the cap left no money for.
    pub(crate) unpaid: usize,
    /// Jobs with all their limits in hand, now.
    pub(crate) running: usize,
    /// Jobs that failed and wait, holding nothing, to be tried again, now.
    pub(crate) pausing: usize,
    /// Calls made.
    pub(crate) calls: u64,
    /// Calls answered 429.
    pub(crate) rate_limited: u64,
    /// Calls answered 529, or 503 with a time to come back.
    pub(crate) overloaded: u64,
    /// Calls that failed in any other way.
    pub(crate) other_failures: u64,
    /// What each model did.
    pub(crate) models: Vec<Share>,
    /// Waits on each account, in the order of the demand.
    pub(crate) waits: Vec<(String, Waits)>,
    /// Time that places in the HTTP pool were held by jobs still waiting for something else.
    pub(crate) idle: Duration,
    /// Why jobs failed, the first few of them.
    pub(crate) told: Vec<String>,
}

/// What one model did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// Tokens in and out.
    pub(crate) tokens: u64,
    /// When its last answer came, from the start of the run.
    pub(crate) last_answer: Duration,
    /// Answers that did not say what they cost.
    pub(crate) uncounted: u32,
}

/// The waits of jobs on one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    /// How many had to wait.
    pub(crate) count: u32,
    /// All their waits together.
    pub(crate) total: Duration,
    /// The longest of them.
    pub(crate) longest: Duration,
}

impl Waits {
    /// Adds one wait.
    pub(crate) fn add(&mut self, wait: Duration) {
        self.count += 1;
        self.total += wait;
        self.longest = self.longest.max(wait);
    }

    /// The mean wait of those that waited.
    pub(crate) fn mean(self) -> Duration {
        self.total.checked_div(self.count).unwrap_or_default()
    }
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its row is stored.
    Done,
    /// It was given up, for this reason.
    Failed(String),
    /// The run was stopped before it could be done.
    Unfinished,
    /// The run's cap leaves no money for it.
    Unpaid,
}

impl Ledger {
    /// A ledger for so many models.
    pub(crate) fn new(models: usize) -> Self {
        let totals = Totals { models: vec![Share::default(); models], ..Totals::default() };
        Self { opened: Instant::now(), totals: Mutex::new(totals) }
    }

    /// The accounts there are, in the order in which their waits are to be told.
    pub(crate) fn list_accounts(&self, names: impl IntoIterator<Item = String>) {
        let waits = names.into_iter().map(|name| (name, Waits::default())).collect();
        self.write(|totals| totals.waits = waits);
    }

    fn write<R>(&self, change: impl FnOnce(&mut Totals) -> R) -> R {
        change(&mut self.totals.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The counts so far.
    pub(crate) fn totals(&self) -> Totals {
        self.write(|totals| totals.clone())
    }

    /// A job waited on an account.
    pub(crate) fn waited(&self, account: &str, wait: Duration) {
        self.write(|totals| match totals.waits.iter_mut().find(|(name, _)| name == account) {
            Some((_, waits)) => waits.add(wait),
            None => {
                let mut waits = Waits::default();
                waits.add(wait);
                totals.waits.push((account.to_owned(), waits));
            }
        });
    }

    /// A job held a place this long before it had everything else.
    pub(crate) fn held_idle(&self, time: Duration) {
        self.write(|totals| totals.idle += time);
    }

    /// A job has all its limits, until the guard drops.
    pub(crate) fn running(&self) -> Counted<'_> {
        Counted::new(self, |totals| &mut totals.running)
    }

    /// A job waits to be tried again, until the guard drops.
    pub(crate) fn pausing(&self) -> Counted<'_> {
        Counted::new(self, |totals| &mut totals.pausing)
    }

    /// A call was answered with a summary.
    pub(crate) fn answered(&self, model: usize, usage: Option<Usage>) {
        self.write(|totals| {
            totals.calls += 1;
            let share = &mut totals.models[model];
            share.tokens += usage.map_or(0, |usage| usage.total());
            share.uncounted += u32::from(usage.is_none());
            share.last_answer = self.opened.elapsed();
        });
    }

    /// A call failed.
    pub(crate) fn refused(&self, failure: &UpstreamFailure) {
        self.write(|totals| {
            totals.calls += 1;
            *match (failure.status, failure.kind) {
                (Some(429), _) => &mut totals.rate_limited,
                (_, FailureKind::Overload) => &mut totals.overloaded,
                _ => &mut totals.other_failures,
            } += 1;
        });
    }

    /// A job ended.
    pub(crate) fn ended(&self, path: &str, outcome: Outcome) {
        self.write(|totals| match outcome {
            Outcome::Done => totals.done += 1,
            Outcome::Unfinished => totals.unfinished += 1,
            Outcome::Unpaid => totals.unpaid += 1,
            Outcome::Failed(reason) => {
                totals.failed += 1;
                if totals.told.len() < TOLD {
                    totals.told.push(format!("{path}: {reason}"));
                }
            }
        });
    }
}

/// One more of something, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Counted<'a> {
    ledger: &'a Ledger,
    count: fn(&mut Totals) -> &mut usize,
}

impl<'a> Counted<'a> {
    fn new(ledger: &'a Ledger, count: fn(&mut Totals) -> &mut usize) -> Self {
        ledger.write(|totals| *count(totals) += 1);
        Self { ledger, count }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.ledger.write(|totals| *(self.count)(totals) -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_what_they_say() {
        let ledger = Ledger::new(1);
        for status in [429, 429, 529, 500, 404] {
            ledger.refused(&UpstreamFailure::status(status, "m", ""));
        }
        ledger.refused(&UpstreamFailure::no_response("m", ""));
        let totals = ledger.totals();
        assert_eq!((totals.rate_limited, totals.overloaded, totals.other_failures), (2, 1, 3));
        assert_eq!(totals.calls, 6);
    }

    #[test]
    fn only_those_that_waited_make_the_mean() {
        let ledger = Ledger::new(1);
        ledger.list_accounts(["http".to_owned(), "db".to_owned()]);
        ledger.waited("db", Duration::from_secs(1));
        ledger.waited("db", Duration::from_secs(3));
        let waits = ledger.totals().waits;
        assert_eq!(waits[0], ("http".to_owned(), Waits::default()));
        assert_eq!(waits[1].1.mean(), Duration::from_secs(2));
        assert_eq!(waits[1].1.longest, Duration::from_secs(3));
        assert_eq!(waits[0].1.mean(), Duration::ZERO);
    }

    #[test]
    fn a_job_counts_as_running_for_as_long_as_its_guard_lives() {
        let ledger = Ledger::new(1);
        let running = ledger.running();
        assert_eq!(ledger.totals().running, 1);
        drop(running);
        assert_eq!(ledger.totals().running, 0);
    }
}
