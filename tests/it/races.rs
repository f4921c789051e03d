//! What another thread changes in the middle of a decision, and announces after it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use admit::{
    Account, AccountLink, Admission, Amount, Ask, Category, Charge, Demand, Refusal, Replenishment,
    TryAdmitError, Turn, Valve,
};
use tokio::time::Instant;

use crate::support::*;

/// A gate that grows at one of its next questions, as if it were resized on another thread just then.
struct Growing {
    link: AccountLink,
    capacity: AtomicU32,
    in_use: AtomicU32,
    /// Questions until it grows by two; zero when it does not.
    until: AtomicU32,
}

impl Growing {
    fn new() -> Arc<Self> {
        let link = AccountLink::new("growing").expect("a name");
        let [in_use, until] = [0, 0].map(AtomicU32::new);
        Arc::new(Self { link, capacity: AtomicU32::new(1), in_use, until })
    }

    fn meet(&self) {
        let until = self.until.load(Ordering::Relaxed);
        self.until.store(until.saturating_sub(1), Ordering::Relaxed);
        if until == 1 {
            self.capacity.fetch_add(2, Ordering::Relaxed);
            self.link.grew();
        }
    }
}

impl Account for Growing {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn category(&self) -> Category {
        Category::Other("growing".into())
    }

    fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed).into()
    }

    fn in_use(&self, _: Instant) -> u64 {
        self.in_use.load(Ordering::Relaxed).into()
    }

    fn summary(&self, _: Instant) -> String {
        String::new()
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn reads_clock(&self) -> bool {
        false
    }

    fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        self.meet();
        let wanted = self.in_use.load(Ordering::Relaxed) + ask.total().requests;
        Ok(wanted <= self.capacity.load(Ordering::Relaxed))
    }

    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        Ok(self.fits(ask)?.then(|| {
            self.in_use.fetch_add(ask.mine.requests, Ordering::Relaxed);
            ask.now
        }))
    }

    fn give(&self, charge: &Charge, _: Instant) -> Amount {
        self.in_use.fetch_sub(charge.amount.requests, Ordering::Relaxed);
        charge.amount
    }

    fn earliest_fit(&self, _: &Ask) -> Option<Instant> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn what_grows_as_a_newcomer_asks_goes_to_its_equals_first() {
    for until in 1..8 {
        let admission = started();
        let growing = Growing::new();
        let one = || Demand::new().permit(&growing);
        let held = admission.try_admit(one()).unwrap();
        let mut line: Vec<_> = (0..2).map(|_| parked(&admission, one())).collect();
        growing.until.store(until, Ordering::Relaxed);
        let newcomer = admission.try_admit(one());
        settle().await;
        if growing.until.load(Ordering::Relaxed) > 0 {
            growing.link.grew();
            settle().await;
        }
        assert!(
            newcomer.is_err() || line.iter().all(|waiter| waiter.is_woken()),
            "{until}: it went past its equals"
        );
        let told = newcomer.err();
        assert!(matches!(told, Some(TryAdmitError::WouldWait { .. }) | None), "{told:?}");
        drop((held, line.iter_mut().filter(|waiter| waiter.is_woken()).map(granted).count()));
        admission.check();
    }
}

/// Memory whose reading is refreshed by somebody else, after so many more questions.
struct Shut {
    link: AccountLink,
    noes: AtomicU32,
    /// How often it says yes then, before it is shut again.
    yeses: AtomicU32,
    /// Whether the line drained, as it was told with each question.
    told: Mutex<Vec<bool>>,
}

impl Shut {
    fn new() -> Arc<Self> {
        let link = AccountLink::new("memory").expect("a name");
        let [noes, yeses] = [u32::MAX; 2].map(AtomicU32::new);
        Arc::new(Self { link, noes, yeses, told: Mutex::default() })
    }

    fn open_after(&self, noes: u32) {
        self.noes.store(noes, Ordering::Relaxed);
    }
}

impl Valve for Shut {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn look(&self, _: Instant) {}

    fn willing(&self, turn: Turn, _: Instant) -> bool {
        self.told.lock().unwrap().push(turn.draining);
        let noes = self.noes.load(Ordering::Relaxed);
        self.noes.store(noes.saturating_sub(1), Ordering::Relaxed);
        if noes > 0 {
            return false;
        }
        let yeses = self.yeses.load(Ordering::Relaxed);
        self.yeses.store(yeses.saturating_sub(1), Ordering::Relaxed);
        yeses > 0
    }

    /// The next has to wait for long.
    fn released(&self, _: Instant) {
        self.noes.store(1_000, Ordering::Relaxed);
    }

    fn completed(&self, _: Instant) -> bool {
        false
    }

    fn rolled_back(&self, _: Instant) {}

    fn earliest(&self, _: Turn, now: Instant) -> Option<Instant> {
        Some(now + secs(2))
    }

    fn capacity(&self) -> u64 {
        1
    }

    fn in_use(&self) -> u64 {
        1
    }

    fn summary(&self, _: Instant) -> String {
        String::new()
    }
}

#[tokio::test(start_paused = true)]
async fn memory_that_opens_in_the_middle_of_a_decision_lets_the_head_go_first() {
    for noes in 0..12 {
        let memory = Shut::new();
        let admission = Admission::builder().memory_gate(memory.clone()).start().unwrap();
        let gates = [(); 3].map(|()| gate(1));
        let mut head = parked(&admission, permits(&gates[0], 1));
        let behind = parked(&admission, permits(&gates[1], 1));
        memory.open_after(noes);
        let newcomer = admission.try_admit(permits(&gates[2], 1));
        pass_time(secs(5)).await;
        assert!(head.is_woken() && newcomer.is_err() && !behind.is_woken(), "{noes}");
        drop(granted(&mut head));
        admission.check();
    }
}

/// Memory that shuts once somebody went, and opens again before the instant it named, untold.
#[tokio::test(start_paused = true)]
async fn memory_that_opens_after_it_stopped_a_pass_lets_those_go_first_who_were_not_asked() {
    let memory = Shut::new();
    memory.open_after(0);
    let admission = Admission::builder().memory_gate(memory.clone()).start().unwrap();
    let gates = [(); 4].map(|()| gate(1));
    let elsewhere = Admission::builder().build().unwrap();
    let held = [0, 1, 2].map(|at| elsewhere.try_admit(permits(&gates[at], 1)).unwrap());
    let head = parked(&admission, permits(&gates[0], 1));
    let mut behind = [1, 2].map(|at| parked(&admission, permits(&gates[at], 1)));
    let [_first, second, third] = held;
    drop((second, third));
    settle().await;
    drop(granted(&mut behind[0]));
    assert!(!behind[1].is_woken(), "memory stopped the pass");
    memory.open_after(0);
    let newcomer = admission.try_admit(permits(&gates[3], 1));
    assert!(newcomer.is_err(), "it went past who could go");
    settle().await;
    drop(granted(&mut behind[1]));
    drop(head);
    admission.check();
}

/// A drain is over once memory was willing for a whole pass, in which it stopped nobody.
#[tokio::test(start_paused = true)]
async fn memory_that_opens_in_the_middle_of_a_pass_ends_no_drain_yet() {
    let memory = Shut::new();
    let admission = Admission::builder().memory_gate(memory.clone()).start().unwrap();
    let gate = gate(1);
    let elsewhere = Admission::builder().build().unwrap();
    let held = elsewhere.try_admit(permits(&gate, 1)).unwrap();
    let head = parked(&admission, permits(&gate, 1));
    // The pass is told no as it begins, and then yes, at its end, too, if it asks there.
    let before = memory.told.lock().unwrap().len();
    memory.open_after(1);
    memory.yeses.store(3, Ordering::Relaxed);
    for _ in 0..2 {
        gate.link().grew();
        settle().await;
    }
    let told = memory.told.lock().unwrap().split_off(before);
    assert!(told.iter().all(|&drains| drains), "{told:?}");
    // And now all the time.
    memory.yeses.store(u32::MAX, Ordering::Relaxed);
    pass_time(secs(3)).await;
    gate.link().grew();
    settle().await;
    assert_eq!(memory.told.lock().unwrap().last(), Some(&false));
    drop((head, held));
    admission.check();
}
