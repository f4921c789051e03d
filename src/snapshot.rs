//! How an admission and its accounts stand, at one instant.

use std::fmt;
use std::time::Duration;

use crate::amount::{Amount, JobInfo};
use crate::error::Shortage;
use crate::events::Category;
use crate::one_line::OneLine;
use crate::sync::Arc;

/// Everything an admission knows, read under one hold of its lock.
///
/// `Display` prints a table, the most used account first.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// Every account the admission has seen and somebody still uses; the memory gate first.
    pub accounts: Vec<AccountSnapshot>,
    /// How many jobs wait.
    pub waiting: usize,
    /// The job at the head of the line.
    pub head: Option<HeadSnapshot>,
    /// How many grants are held: made and not settled.
    pub held: usize,
    /// How jobs have fared so far.
    pub totals: Totals,
    /// How long the granted ones waited.
    pub waits: WaitHistogram,
    /// Grants that landed and whose future has not been polled since.
    pub unseen: Unseen,
    /// Events dropped because nobody published them in time. What a slow subscriber loses is told
    /// to it by its receiver and is not counted here.
    pub events_dropped: u64,
}

impl Snapshot {
    /// The account of a name, if the admission knows one.
    #[must_use]
    pub fn account(&self, name: &str) -> Option<&AccountSnapshot> {
        self.accounts.iter().find(|account| &*account.name == name)
    }
}

/// One account in a [`Snapshot`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AccountSnapshot {
    /// Its name.
    pub name: Arc<str>,
    /// Its category.
    pub category: Category,
    /// The most that can be in use.
    pub capacity: u64,
    /// How much is in use.
    pub in_use: u64,
    /// How many jobs wait on it, over all admissions.
    pub waiting: usize,
    /// How long the first of them has waited on it, where it waits in this admission.
    pub oldest_wait: Option<Duration>,
    /// The account's own word on its state; `None` when nominal.
    pub indicator: Option<String>,
    /// One line of its numbers.
    pub summary: String,
    /// Whether a settlement's `give` panicked, and nothing of it is granted any more.
    pub quarantined: bool,
    /// Who holds how much of it, since when: with
    /// [`track_holders`](crate::AdmissionBuilder::track_holders), else empty.
    pub holders: Vec<HolderSnapshot>,
}

impl AccountSnapshot {
    fn share(&self) -> f64 {
        if self.capacity == 0 { 0.0 } else { self.in_use as f64 / self.capacity as f64 }
    }
}

/// One grant that holds some of an account.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HolderSnapshot {
    /// The job, where its demand was labelled.
    pub job: Option<Arc<JobInfo>>,
    /// How much it was granted.
    pub amount: Amount,
    /// For how long it has held it.
    pub held_for: Duration,
}

/// The job at the head of the line.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeadSnapshot {
    /// The job, where its demand was labelled.
    pub job: Option<Arc<JobInfo>>,
    /// How long it has waited.
    pub age: Duration,
    /// What it is short of.
    pub shortages: Vec<Shortage>,
}

/// How jobs have fared since the admission was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct Totals {
    /// Granted, at once or from the line.
    pub granted: u64,
    /// Refused, for whatever reason but the next two.
    pub refused: u64,
    /// Cancelled, or dropped while they waited.
    pub cancelled: u64,
    /// Out of time.
    pub timed_out: u64,
}

/// Grants that landed and whose future has not been polled since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unseen {
    /// How many.
    pub count: usize,
    /// How long ago the first of them landed.
    pub oldest: Option<Duration>,
}

/// How long granted jobs waited, counted by decades.
///
/// # Examples
///
/// ```
/// use admit::WaitHistogram;
/// use std::time::Duration;
///
/// assert_eq!(WaitHistogram::BOUNDS[0], Duration::from_millis(1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct WaitHistogram {
    /// Granted without waiting at all.
    pub at_once: u64,
    /// Waited no longer than the bound of the same position in [`BOUNDS`](Self::BOUNDS), and longer
    /// than the one before.
    pub up_to: [u64; 7],
    /// Waited longer than the last bound.
    pub longer: u64,
}

impl WaitHistogram {
    /// The bounds of [`up_to`](Self::up_to).
    pub const BOUNDS: [Duration; 7] = [
        Duration::from_millis(1),
        Duration::from_millis(10),
        Duration::from_millis(100),
        Duration::from_secs(1),
        Duration::from_secs(10),
        Duration::from_secs(60),
        Duration::from_secs(600),
    ];

    pub(crate) const fn at_once(&mut self, jobs: u64) {
        self.at_once += jobs;
    }

    pub(crate) fn record(&mut self, wait: Duration) {
        match Self::BOUNDS.iter().position(|&bound| wait <= bound) {
            Some(index) => self.up_to[index] += 1,
            None => self.longer += 1,
        }
    }

    /// How many grants there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.at_once + self.up_to.iter().sum::<u64>() + self.longer
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { granted, refused, cancelled, timed_out } = self.totals;
        writeln!(
            f,
            "{} waiting, {} held; {granted} granted, {refused} refused, {cancelled} cancelled, \
             {timed_out} timed out",
            self.waiting, self.held
        )?;
        if let Some(head) = &self.head {
            let who = head.job.as_ref().map_or_else(|| "a job".to_owned(), |job| job.to_string());
            write!(f, "head: {who}, for {:.1?}", head.age)?;
            for shortage in &head.shortages {
                write!(f, "; {shortage}")?;
            }
            writeln!(f)?;
        }
        if self.unseen.count > 0 {
            let oldest = self.unseen.oldest.unwrap_or_default();
            writeln!(f, "{} granted and not polled since, for {oldest:.1?}", self.unseen.count)?;
        }
        let mut sorted: Vec<_> = self.accounts.iter().collect();
        sorted.sort_by(|a, b| b.share().total_cmp(&a.share()));
        let width = |of: fn(&AccountSnapshot) -> usize, head: usize| {
            sorted.iter().map(|account| of(account)).max().unwrap_or(0).max(head)
        };
        let name = width(|account| account.name.chars().count(), "account".len());
        let kind = width(|account| account.category.as_str().chars().count(), "category".len());
        writeln!(
            f,
            "{:name$}  {:kind$}  {:>12}  {:>12}  {:>7}  {:>9}  state",
            "account", "category", "in use", "capacity", "waiting", "oldest"
        )?;
        for account in sorted {
            let oldest =
                account.oldest_wait.map_or_else(String::new, |oldest| format!("{oldest:.1?}"));
            let state = match (&account.indicator, account.quarantined) {
                (_, true) => OneLine("quarantined"),
                // An account of the host's own may say anything.
                (Some(indicator), _) => OneLine(indicator.as_str()),
                (None, _) => OneLine(""),
            };
            let line = format!(
                "{:name$}  {:kind$}  {:>12}  {:>12}  {:>7}  {oldest:>9}  {state}",
                account.name, account.category, account.in_use, account.capacity, account.waiting,
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str, in_use: u64, capacity: u64) -> AccountSnapshot {
        AccountSnapshot {
            name: name.into(),
            category: Category::Semaphore,
            capacity,
            in_use,
            waiting: 0,
            oldest_wait: None,
            indicator: None,
            summary: String::new(),
            quarantined: false,
            holders: Vec::new(),
        }
    }

    #[test]
    fn the_table_is_sorted_by_use_and_aligned() {
        let snapshot = Snapshot {
            accounts: vec![account("http", 1, 64), account("db:main", 9, 10)],
            waiting: 0,
            head: None,
            held: 1,
            totals: Totals { granted: 3, ..Totals::default() },
            waits: WaitHistogram::default(),
            unseen: Unseen::default(),
            events_dropped: 0,
        };
        let text = snapshot.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "0 waiting, 1 held; 3 granted, 0 refused, 0 cancelled, 0 timed out");
        assert!(lines[2].starts_with("db:main  semaphore             9            10"), "{text}");
        assert!(lines[3].starts_with("http     semaphore             1            64"), "{text}");
    }

    #[test]
    fn use_is_a_share_and_quarantine_is_told_before_an_indicator() {
        let broken = AccountSnapshot {
            quarantined: true,
            indicator: Some("throttle:1.5x".to_owned()),
            ..account("broken", 30, 64)
        };
        let snapshot = Snapshot {
            accounts: vec![broken, account("db:main", 9, 10)],
            waiting: 0,
            head: None,
            held: 2,
            totals: Totals::default(),
            waits: WaitHistogram::default(),
            unseen: Unseen::default(),
            events_dropped: 0,
        };
        let text = snapshot.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[2].starts_with("db:main"), "nine of ten before thirty of sixty-four: {text}");
        assert!(lines[3].starts_with("broken") && lines[3].ends_with("  quarantined"), "{text}");
    }

    #[test]
    fn a_wait_falls_under_the_first_bound_it_does_not_exceed() {
        let mut waits = WaitHistogram::default();
        for millis in [0, 1, 2, 10, 599_999, 600_000, 600_001] {
            waits.record(Duration::from_millis(millis));
        }
        assert_eq!(waits.up_to, [2, 2, 0, 0, 0, 0, 2]);
        assert_eq!(waits.longer, 1);
        waits.at_once(1);
        assert_eq!(waits.count(), 8);
    }
}
