//! What accounts are asked.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use admit::{
    Account, AccountLink, Amount, Ask, Category, Charge, CountingGate, Demand, Refusal,
    Replenishment,
};
use tokio::time::Instant;

use crate::support::*;

/// A gate that remembers under which ids it was asked and given back to.
struct Listener {
    gate: Arc<CountingGate>,
    ids: Mutex<HashSet<u64>>,
}

impl Listener {
    fn hear(&self, id: u64) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
    }

    /// The ids heard since the last time.
    fn heard(&self) -> HashSet<u64> {
        std::mem::take(&mut *self.ids.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Account for Listener {
    fn link(&self) -> &AccountLink {
        self.gate.link()
    }
    fn category(&self) -> Category {
        self.gate.category()
    }
    fn capacity(&self) -> u64 {
        self.gate.capacity()
    }
    fn in_use(&self, now: Instant) -> u64 {
        self.gate.in_use(now)
    }
    fn summary(&self, now: Instant) -> String {
        self.gate.summary(now)
    }
    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }
    fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        self.hear(ask.id);
        self.gate.fits(ask)
    }
    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        self.hear(ask.id);
        self.gate.try_take(ask)
    }
    fn give(&self, charge: &Charge, now: Instant) -> Amount {
        self.hear(charge.id);
        self.gate.give(charge, now)
    }
    fn earliest_fit(&self, ask: &Ask) -> Option<Instant> {
        self.hear(ask.id);
        self.gate.earliest_fit(ask)
    }
}

#[tokio::test(start_paused = true)]
async fn every_ask_of_one_admit_has_one_id_and_no_other_admit_has_it() {
    let admission = started();
    let listener = Arc::new(Listener { gate: gate(1), ids: Mutex::default() });
    let demand = Demand::new().permit(&listener);
    let first = admission.admit(demand.clone()).await.unwrap();
    let of_first = listener.heard();
    assert_eq!(of_first.len(), 1);
    // Tried inline, surveyed, filed, looked at again and granted.
    let mut second = parked(&admission, demand);
    drop(first);
    settle().await;
    drop(granted(&mut second));
    let both: HashSet<_> = of_first.union(&listener.heard()).copied().collect();
    assert_eq!(both.len(), 2, "one for each");
}
