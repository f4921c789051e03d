//! An account that writes down what it hears.

use std::sync::{Arc, Mutex};

use admit::{
    Account, AccountLink, Amount, Ask, Category, Charge, Refusal, Replenishment, UpstreamFailure,
};
use tokio::time::Instant;

use crate::support::Log;

/// An account without limit that writes down what it hears.
pub(crate) struct Listener {
    link: AccountLink,
    replenishment: Replenishment,
    log: Log,
    held: Mutex<u64>,
}

impl Listener {
    pub(crate) fn new(name: &str, replenishment: Replenishment, log: &Log) -> Arc<Self> {
        let (link, log) = (AccountLink::new(name).unwrap(), log.clone());
        Arc::new(Self { link, replenishment, log, held: Mutex::new(0) })
    }

    fn heard(&self, what: &str) {
        self.log.write(format!("{}.{what}", self.link.name()));
    }
}

impl Account for Listener {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn category(&self) -> Category {
        Category::Other("listener".into())
    }

    fn capacity(&self) -> u64 {
        u64::MAX
    }

    fn in_use(&self, _: Instant) -> u64 {
        *self.held.lock().unwrap()
    }

    fn summary(&self, now: Instant) -> String {
        format!("{} in use", self.in_use(now))
    }

    fn replenishment(&self) -> Replenishment {
        self.replenishment
    }

    fn fits(&self, _: &Ask) -> Result<bool, Refusal> {
        Ok(true)
    }

    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        *self.held.lock().unwrap() += ask.mine.units;
        Ok(Some(ask.now))
    }

    fn give(&self, charge: &Charge, _: Instant) -> Amount {
        self.heard("give");
        *self.held.lock().unwrap() -= charge.amount.units;
        charge.amount
    }

    fn earliest_fit(&self, _: &Ask) -> Option<Instant> {
        None
    }

    fn on_success(&self, _: &Charge, _: Instant) {
        self.heard("success");
    }

    fn on_upstream_failure(&self, failure: &UpstreamFailure, _: &Charge, _: Instant) {
        self.heard(&format!("failure({})", failure.service));
    }

    fn settled(&self, _: &Charge, reported: bool, _: Instant) {
        self.heard(if reported { "settled" } else { "settled(unreported)" });
    }
}
