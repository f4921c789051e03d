//! What accounts are asked.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use admit::{
    Account, AccountLink, AdmitError, Amount, Ask, Category, Charge, CountingGate, Demand, Refusal,
    Replenishment,
};
use tokio::time::Instant;

use crate::support::*;

/// A gate that remembers under which ids it was asked and given back to, and how often it was taken of.
struct Listener {
    gate: Arc<CountingGate>,
    ids: Mutex<HashSet<u64>>,
    taken: AtomicUsize,
    reads_clock: bool,
}

impl Listener {
    fn new(reads_clock: bool) -> Arc<Self> {
        let (ids, taken) = (Mutex::default(), AtomicUsize::new(0));
        Arc::new(Self { gate: gate(1), ids, taken, reads_clock })
    }

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
    fn reads_clock(&self) -> bool {
        self.reads_clock
    }
    fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        self.hear(ask.id);
        self.gate.fits(ask)
    }
    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        self.hear(ask.id);
        let taken = self.gate.try_take(ask)?;
        self.taken.fetch_add(usize::from(taken.is_some()), Ordering::Relaxed);
        Ok(taken)
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
    let listener = Listener::new(true);
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

/// Whether or not its answers depend on the clock.
#[tokio::test(start_paused = true)]
async fn who_asks_for_a_survey_first_is_taken_of_only_for_a_demand_that_fits() {
    for reads_clock in [true, false] {
        let admission = started();
        let (listener, other) = (Listener::new(reads_clock), gate(1));
        let held = admission.try_admit(permits(&other, 1)).unwrap();
        let both = || Demand::new().permit(&listener).permit(&other);
        let taken = || listener.taken.swap(0, Ordering::Relaxed);
        assert!(admission.try_admit(both()).is_err());
        assert_eq!(taken(), 1, "it has asked for nothing, so a debit may be undone");
        listener.link().set_survey_first(true);
        assert!(admission.try_admit(both()).is_err());
        let mut waiter = parked(&admission, both());
        assert_eq!(taken(), 0, "{reads_clock}: it was taken of, and given back to");
        drop(held);
        settle().await;
        drop(granted(&mut waiter));
        assert_eq!(taken(), 1);
    }
}

/// It borrows the link of a gate, which goes on without it.
#[tokio::test(start_paused = true)]
async fn whoever_waits_on_a_gate_is_refused_by_it_though_an_account_that_borrowed_its_link_is_gone()
{
    let admission = started();
    let listener = Listener::new(false);
    let gate = Arc::clone(&listener.gate);
    gate.resize(3).unwrap();
    drop(admission.try_admit(Demand::new().permit(&listener)).unwrap());
    drop(listener);
    let other = named("other", 1);
    let held = admission.try_admit(permits(&gate, 3).permit(&other)).unwrap();
    let head = parked(&admission, permits(&other, 1));
    let mut waiter = parked(&admission, permits(&gate, 3));
    gate.resize(2).unwrap();
    settle().await;
    let error = landed(&mut waiter).unwrap_err();
    assert!(matches!(error, AdmitError::Refused { .. }), "{error}");
    drop((head, held));
}
