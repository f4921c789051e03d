//! A gate of the tests' own, which panics where it is told to. The machine in `tests/machine` uses
//! it, too.
#![allow(dead_code, reason = "not every test binary needs all of it")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use admit::{
    Account, AccountLink, Amount, Ask, Category, Charge, Refusal, Replenishment, UpstreamFailure,
};
use tokio::time::Instant;

type Act = Box<dyn FnOnce() + Send>;

/// A gate of the tests' own: it can be told to panic, to change its size, and counts its asks.
pub(crate) struct Own {
    link: AccountLink,
    state: Mutex<OwnState>,
    pub(crate) asked: AtomicUsize,
}

#[derive(Default)]
struct OwnState {
    capacity: u32,
    in_use: u32,
    /// The method that panics, and for which amount only.
    panics: Option<(&'static str, Option<u32>)>,
    /// Run inside `fits` after a no was found.
    after_no: Option<Act>,
}

impl Own {
    pub(crate) fn named(name: &str, capacity: u32) -> Arc<Self> {
        let link = AccountLink::new(name).expect("a name");
        let state = Mutex::new(OwnState { capacity, ..OwnState::default() });
        Arc::new(Self { link, state, asked: AtomicUsize::new(0) })
    }

    fn state(&self) -> MutexGuard<'_, OwnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this method panics.
    pub(crate) fn panic_in(&self, method: &'static str) {
        self.state().panics = Some((method, None));
    }

    /// From now on this method panics for whoever wants exactly `n`.
    pub(crate) fn panic_for(&self, n: u32, method: &'static str) {
        self.state().panics = Some((method, Some(n)));
    }

    /// It panics no more.
    pub(crate) fn calm(&self) {
        self.state().panics = None;
    }

    /// Changes its size and says nothing.
    pub(crate) fn set_capacity(&self, n: u32) {
        self.state().capacity = n;
    }

    /// Has `act` run after the next no was found and before it is answered.
    pub(crate) fn after_no(&self, act: impl FnOnce() + Send + 'static) {
        self.state().after_no = Some(Box::new(act));
    }

    pub(crate) fn used(&self) -> u32 {
        self.state().in_use
    }

    fn meet(&self, method: &'static str, wanted: Option<u32>) {
        let panics = self.state().panics;
        if let Some((which, only)) = panics
            && which == method
            && (only.is_none() || only == wanted)
        {
            panic!("told to panic in {method}");
        }
    }
}

impl Account for Own {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn category(&self) -> Category {
        self.meet("category", None);
        Category::Other("own".into())
    }

    fn capacity(&self) -> u64 {
        self.meet("capacity", None);
        u64::from(self.state().capacity)
    }

    fn in_use(&self, _: Instant) -> u64 {
        self.meet("in_use", None);
        u64::from(self.state().in_use)
    }

    fn indicator(&self, _: Instant) -> Option<String> {
        self.meet("indicator", None);
        None
    }

    fn summary(&self, _: Instant) -> String {
        self.meet("summary", None);
        String::new()
    }

    fn replenishment(&self) -> Replenishment {
        self.meet("replenishment", None);
        Replenishment::Release
    }

    fn reads_clock(&self) -> bool {
        self.meet("reads_clock", None);
        false
    }

    fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.meet("fits", Some(ask.mine.requests));
        let (fits, act) = {
            let mut state = self.state();
            let fits = state.in_use + ask.total().requests <= state.capacity;
            let act = if fits { None } else { state.after_no.take() };
            (fits, act)
        };
        if let Some(act) = act {
            act();
        }
        Ok(fits)
    }

    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        self.meet("try_take", Some(ask.mine.requests));
        let mut state = self.state();
        let fits = state.in_use + ask.total().requests <= state.capacity;
        if fits {
            state.in_use += ask.mine.requests;
        }
        drop(state);
        Ok(fits.then_some(ask.now))
    }

    fn give(&self, charge: &Charge, _: Instant) -> Amount {
        self.meet("give", Some(charge.amount.requests));
        self.state().in_use -= charge.amount.requests;
        charge.amount
    }

    fn earliest_fit(&self, ask: &Ask) -> Option<Instant> {
        self.meet("earliest_fit", Some(ask.mine.requests));
        None
    }

    fn reconcile(&self, charge: &Charge, _: u64, _: Instant) -> Amount {
        self.meet("reconcile", Some(charge.amount.requests));
        charge.amount
    }

    fn on_success(&self, _: &Charge, _: Instant) {
        self.meet("on_success", None);
    }

    fn on_upstream_failure(&self, _: &UpstreamFailure, _: &Charge, _: Instant) {
        self.meet("on_upstream_failure", None);
    }

    fn settled(&self, _: &Charge, _: bool, _: Instant) {
        self.meet("settled", None);
    }
}
