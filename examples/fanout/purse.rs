//! What a run may spend, and what it has spent.

use std::sync::Arc;

use admit::{
    ConfigError, Cost, Decimal, JobInfo, JobRunnerBuilder, Money, Priced, Reservation, SpendGate,
    SpendLedger, SpendRefusal,
};
use tokio::sync::Notify;

/// The workflow all jobs of a run belong to.
pub(crate) const WORKFLOW: &str = "fanout";

/// The money of a run: the books, and the line of those who wait until there is some again.
///
/// All jobs ask for their money at once, and most of them will cost less than they have to set
/// aside. So a job that is refused may only have come too early. It waits here, holding nothing,
/// and is woken when money has come back.
#[derive(Debug)]
pub(crate) struct Purse {
    ledger: Arc<SpendLedger>,
    line: Arc<Line>,
}

impl Purse {
    /// A purse with so many dollars in it, or without a bottom.
    ///
    /// # Errors
    ///
    /// When there are less than none.
    pub(crate) fn new(cap: Option<Decimal>) -> Result<Self, ConfigError> {
        let ledger = SpendLedger::new();
        if let Some(cap) = cap {
            ledger.set_cap(WORKFLOW, Money::usd(cap))?;
        }
        Ok(Self { ledger, line: Arc::default() })
    }

    /// Lets a runner ask before it runs a job.
    pub(crate) fn guard(&self, runner: JobRunnerBuilder) -> JobRunnerBuilder {
        // In this order: the line hears of what the ledger has written down.
        runner.spend_gate(&self.ledger).spend_gate(&self.line)
    }

    /// Waits, after a refusal, until it is worth asking again.
    pub(crate) async fn has_changed(&self) {
        self.line.next.notified().await;
    }

    /// Whoever was woken and has no use for it wakes the next.
    pub(crate) fn pass_on(&self) {
        self.line.next.notify_one();
    }

    /// What the jobs that have ended cost.
    pub(crate) fn spent(&self) -> Cost {
        self.ledger.spent(WORKFLOW)
    }
}

/// Behind the ledger: one who got money lets the next one ask, and again when it comes back.
///
/// So nobody is forgotten: who waits was refused for the sake of somebody who had set money aside,
/// and that one's end wakes the first in the line. A wake-up nobody waits for is kept for who comes
/// next.
#[derive(Debug, Default)]
struct Line {
    next: Arc<Notify>,
}

impl SpendGate for Line {
    fn admit(&self, _: &JobInfo, _: &[Priced]) -> Result<Reservation, SpendRefusal> {
        self.next.notify_one();
        let next = Arc::clone(&self.next);
        Ok(Reservation::new(move |_| next.notify_one()))
    }
}
