//! A way of coming by the limits: what the two modes have in common.

use std::time::Duration;

use admit::Cost;

use crate::jobs::Work;
use crate::ledger::Outcome;
use crate::plan::Job;

/// How the jobs of a run come by their limits.
pub(crate) trait Way: Send + Sync + 'static {
    /// What the table calls it.
    const NAME: &'static str;
    /// What the table says of its waits.
    const WAITS: &'static str;

    /// Does one job: takes its limits, asks, stores; again when the provider would not.
    fn run(&self, work: &Work, job: &Job) -> impl Future<Output = Outcome> + Send;

    /// Reads every account, always in the same order.
    fn gauges(&self) -> Vec<Gauge>;

    /// What the jobs have cost; `None` where nobody keeps books.
    fn spent(&self) -> Option<Cost>;

    /// Lets nothing new begin.
    fn stop(&self);

    /// Waits until nobody waits and nothing is held.
    fn drained(&self) -> impl Future<Output = ()> + Send;
}

/// One account, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gauge {
    /// The account's name.
    pub(crate) name: String,
    /// How much of it is in use.
    pub(crate) in_use: u64,
    /// How much there is of it.
    pub(crate) capacity: u64,
    /// What the numbers count, where the name does not say it.
    pub(crate) unit: &'static str,
    /// How many jobs wait on it.
    pub(crate) waiting: usize,
    /// How long the first of them has.
    pub(crate) oldest: Option<Duration>,
    /// Its own word on an unusual state.
    pub(crate) note: Option<String>,
}
