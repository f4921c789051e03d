//! Says who waits too long.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use super::core::Core;
use super::outbox::{self, Outbox};
use crate::amount::JobInfo;
use crate::error::Shortage;
use crate::snapshot::HolderSnapshot;
use crate::sync::Arc;

/// Of those behind the head, as many are counted: a line is told of in one hold.
const MOST_COUNTED: usize = 1_000;

/// How long the head may wait before it is told of, and who was told of last.
///
/// Only the head is looked at. Whoever waits long becomes it, or waits behind somebody who has waited
/// longer. A line of many that wait too long makes one log line a period, not one a job.
pub(crate) struct Patience {
    after: Duration,
    /// The job and the instant.
    told: Option<(u64, Instant)>,
}

impl Patience {
    pub(crate) const fn new(after: Duration) -> Self {
        Self { after, told: None }
    }
}

/// One job that waits too long.
pub(crate) struct Overdue {
    job: Option<Arc<JobInfo>>,
    age: Duration,
    shortages: Vec<Shortage>,
    /// Of the accounts it is short of; empty where holders are not tracked.
    holders: Vec<(Arc<str>, Vec<HolderSnapshot>)>,
    /// How many behind it have waited as long, up to [`MOST_COUNTED`].
    others: usize,
}

impl Core {
    /// When the head is to be told of; `None` when nobody is, or it has been already.
    pub(super) fn next_overdue(&self) -> Option<Instant> {
        let Patience { after, told } = self.patience.as_ref()?;
        let head = self.line.waiter(self.line.head()?)?;
        let due = head.arrived.checked_add(*after)?;
        match told {
            Some((id, _)) if *id == head.id => None,
            Some((_, at)) => Some(due.max(at.checked_add(*after)?)),
            None => Some(due),
        }
    }

    /// Tells of the head, if it is time.
    pub(super) fn tell_overdue(&mut self, now: Instant, out: &mut Outbox) {
        if self.next_overdue().is_none_or(|due| due > now) {
            return;
        }
        let Some(head) = self.line.head().and_then(|key| self.line.waiter(key)) else { return };
        let (id, arrived, demand) = (head.id, head.arrived, head.demand.clone());
        let Some(patience) = &mut self.patience else { return };
        patience.told = Some((id, now));
        let after = patience.after;
        let is_late = |since: Instant| now.saturating_duration_since(since) >= after;
        let behind = self.line.iter().skip(1).take(MOST_COUNTED);
        let others = behind.take_while(|waiter| is_late(waiter.arrived)).count();
        let shortages = self.head_snapshot(now).map_or_else(Vec::new, |head| head.shortages);
        let is_short = |name: &str| shortages.iter().any(|shortage| &*shortage.account == name);
        let holders = demand
            .entries()
            .iter()
            .filter(|entry| is_short(entry.name()))
            .map(|entry| (Arc::clone(entry.name()), self.holders_of(entry.id(), now)))
            .filter(|(_, holders)| !holders.is_empty())
            .collect();
        let age = now.saturating_duration_since(arrived);
        let job = demand.job().cloned();
        let overdue = Overdue { job, age, shortages, holders, others };
        out.lines.push(outbox::Line::Overdue(Box::new(overdue)));
        // Its accounts may have lost their other owners, and their drop is not ours to run here.
        out.demands.push(demand);
    }
}

/// What is logged.
impl fmt::Display for Overdue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.job {
            Some(job) => write!(f, "{job}")?,
            None => f.write_str("a job")?,
        }
        write!(
            f,
            " has waited for {:.1} s: {}",
            self.age.as_secs_f64(),
            Shortage::list(&self.shortages)
        )?;
        for (account, holders) in &self.holders {
            write!(f, "; `{account}` is held by ")?;
            for (index, holder) in holders.iter().take(3).enumerate() {
                let separator = if index == 0 { "" } else { ", " };
                let job = holder.job.as_ref();
                let name = job.map_or_else(|| "a job".to_owned(), |job| job.to_string());
                let secs = holder.held_for.as_secs_f64();
                write!(f, "{separator}{name} ({}, for {secs:.1} s)", holder.amount)?;
            }
            if holders.len() > 3 {
                write!(f, " and {} more", holders.len() - 3)?;
            }
        }
        match self.others {
            0 => Ok(()),
            MOST_COUNTED => write!(f, "; {MOST_COUNTED} and more behind it have waited as long"),
            others => write!(f, "; {others} behind it have waited as long"),
        }
    }
}
