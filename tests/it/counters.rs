//! What waiting costs: the monitor's own counts of what it looked at.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admit::testing::Draw;
use admit::{
    Account, AccountLink, Admission, Admit, Amount, Ask, Category, Charge, CountingGate, Demand,
    Refusal, Replenishment,
};
use tokio::time::Instant;
use tokio_test::task::Spawn;

use crate::support::*;

fn line(admission: &Admission, demand: &Demand, n: usize) -> Vec<Spawn<Admit>> {
    (0..n).map(|_| parked(admission, demand.clone())).collect()
}

/// The counts of what `act` and the evaluator after it did.
async fn counted(admission: &Admission, act: impl FnOnce()) -> admit::Counters {
    settle().await;
    let before = admission.counters();
    act();
    settle().await;
    let mut counters = admission.counters();
    counters.examined -= before.examined;
    counters.asked -= before.asked;
    counters.passes -= before.passes;
    counters.wakes -= before.wakes;
    counters.timers -= before.timers;
    counters.told -= before.told;
    counters
}

#[tokio::test(start_paused = true)]
async fn a_release_elsewhere_examines_none_of_ten_thousand() {
    let admission = started();
    let (x, y) = (gate(1), gate(2));
    let held = admission.try_admit(permits(&x, 1)).unwrap();
    let _waiting = line(&admission, &permits(&x, 1), 10_000);
    let other = admission.try_admit(permits(&y, 1)).unwrap();
    let cost = counted(&admission, || drop(other)).await;
    assert_eq!((cost.examined, cost.asked, cost.passes, cost.wakes), (0, 0, 0, 0));
    drop(held);
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn a_release_examines_a_few_of_a_hundred_thousand_equals() {
    let admission = started();
    let x = gate(2);
    let one = admission.try_admit(permits(&x, 1)).unwrap();
    let _other = admission.try_admit(permits(&x, 1)).unwrap();
    let mut waiting = line(&admission, &permits(&x, 1), 100_000);
    let cost = counted(&admission, || drop(one)).await;
    assert_eq!(cost.wakes, 1);
    assert!(cost.examined <= 3 && cost.asked <= 10, "{cost:?}");
    drop(granted(&mut waiting[0]));
}

#[tokio::test(start_paused = true)]
async fn who_leaves_examines_nobody() {
    let admission = started();
    let x = gate(1);
    let _held = admission.try_admit(permits(&x, 1)).unwrap();
    let mut waiting = line(&admission, &permits(&x, 1), 1_000);
    let mut draw = Draw::new(1);
    // Everybody behind the head: a head that leaves reserved something.
    let _head = waiting.remove(0);
    while waiting.len() > 1 {
        let at = draw.between(0..=waiting.len() as u64 - 1) as usize;
        let cost = counted(&admission, || drop(waiting.swap_remove(at))).await;
        assert_eq!((cost.examined, cost.asked, cost.passes, cost.wakes), (0, 0, 0, 0));
    }
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn a_million_who_wait_cost_nothing_for_a_day() {
    let admission = started();
    let x = gate(1);
    let _held = admission.try_admit(permits(&x, 1)).unwrap();
    let demand = permits(&x, 1);
    let mut waiting: Vec<_> =
        (0..1_000_000).map(|_| Box::pin(admission.admit(demand.clone()))).collect();
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    for admit in &mut waiting {
        assert!(admit.as_mut().poll(&mut cx).is_pending());
    }
    settle().await;
    let before = admission.counters();
    tokio::time::sleep(Duration::from_secs(24 * 60 * 60)).await;
    settle().await;
    assert_eq!(admission.counters(), before);
    assert_eq!(admission.queue_len(), 1_000_000);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_longer_than_a_day_costs_a_look_a_day() {
    let admission = started();
    let x = gate(1);
    let _held = admission.try_admit(permits(&x, 1)).unwrap();
    let _waiting = line(&admission, &permits(&x, 1), 10_000);
    let day = Duration::from_secs(24 * 60 * 60);
    let patient = admission.admit(permits(&x, 1)).within(10 * day + Duration::from_secs(1));
    let mut patient = tokio_test::task::spawn(patient);
    assert!(patient.poll().is_pending());
    settle().await;
    let before = admission.counters();
    tokio::time::sleep(10 * day).await;
    settle().await;
    let cost = admission.counters();
    assert_eq!((cost.passes, cost.wakes), (before.passes, before.wakes));
    assert!(cost.timers - before.timers <= 10, "{cost:?}");
    assert!(!patient.is_woken());
}

#[tokio::test(start_paused = true)]
async fn no_line_is_too_long_for_who_comes_to_a_free_account() {
    let admission = started();
    let (x, y) = (gate(1), gate(1));
    let _held = admission.try_admit(permits(&x, 1)).unwrap();
    // All different, so that nothing about them is known in one go; the first wants all of it.
    let places = CountingGate::new("places", 200_000).unwrap();
    let _all = admission.try_admit(permits(&places, 200_000)).unwrap();
    let _head = parked(&admission, permits(&x, 1).permits(&places, 1));
    let _waiting: Vec<_> = (2..100_001).map(|n| parked(&admission, permits(&places, n))).collect();
    assert_eq!(admission.queue_len(), 100_000);
    let mut newcomer = tokio_test::task::spawn(admission.admit(permits(&y, 1)));
    let cost = counted(&admission, || assert!(newcomer.poll().is_ready())).await;
    assert_eq!((cost.examined, cost.asked), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_last_of_a_hundred_thousand_is_found_in_a_few_questions() {
    let admission = started();
    let places = CountingGate::new("places", 200_000).unwrap();
    let x = gate(1);
    let _held = admission.try_admit(permits(&x, 1)).unwrap();
    let all = admission.try_admit(permits(&places, 200_000)).unwrap();
    let mut head = parked(&admission, permits(&x, 1));
    let _waiting: Vec<_> =
        (0..99_998).map(|n| parked(&admission, permits(&places, 2 + n))).collect();
    let mut last = parked(&admission, permits(&places, 1));
    // One place is free once the gate has grown: only the last wants no more.
    let cost = counted(&admission, || places.resize(200_001).unwrap()).await;
    drop(granted(&mut last));
    assert!(cost.examined <= 4 && cost.asked <= 150, "{cost:?}");
    assert!(!head.is_woken() && head.poll().is_pending());
    drop(all);
}

/// A gate that counts how often it is asked.
struct Asked {
    link: AccountLink,
    busy: AtomicU64,
    fits: AtomicU64,
}

impl Account for Asked {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn category(&self) -> Category {
        Category::Other("asked".into())
    }

    fn capacity(&self) -> u64 {
        1
    }

    fn in_use(&self, _: Instant) -> u64 {
        self.busy.load(Ordering::Relaxed)
    }

    fn summary(&self, now: Instant) -> String {
        format!("{} of 1", self.in_use(now))
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn reads_clock(&self) -> bool {
        false
    }

    fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        self.fits.fetch_add(1, Ordering::Relaxed);
        Ok(self.busy.load(Ordering::Relaxed) + u64::from(ask.total().requests) <= 1)
    }

    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        let fits = self.busy.load(Ordering::Relaxed) + u64::from(ask.total().requests) <= 1;
        if fits {
            self.busy.fetch_add(u64::from(ask.mine.requests), Ordering::Relaxed);
        }
        Ok(fits.then_some(ask.now))
    }

    fn give(&self, charge: &Charge, _: Instant) -> Amount {
        self.busy.fetch_sub(u64::from(charge.amount.requests), Ordering::Relaxed);
        charge.amount
    }

    fn earliest_fit(&self, _: &Ask) -> Option<Instant> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_gives_elsewhere_do_not_ask_an_account_that_ten_thousand_wait_on() {
    let admission = started();
    let link = AccountLink::new("asked").unwrap();
    let a = Arc::new(Asked { link, busy: AtomicU64::new(0), fits: AtomicU64::new(0) });
    let elsewhere = gate(1_000);
    let _held = admission.try_admit(Demand::new().permit(&a)).unwrap();
    let _waiting = line(&admission, &Demand::new().permit(&a), 10_000);
    let others: Vec<_> =
        (0..1_000).map(|_| admission.try_admit(permits(&elsewhere, 1)).unwrap()).collect();
    settle().await;
    let before = a.fits.load(Ordering::Relaxed);
    for other in others {
        drop(other);
        settle().await;
    }
    let asked = a.fits.load(Ordering::Relaxed) - before;
    assert!(asked <= 2_000, "asked {asked} times");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_on_one_bucket_have_one_timer_and_a_wake_each() {
    const N: u64 = 100_000;
    let admission = started();
    // Sixty thousand a minute: one a millisecond, so that every grant has an instant of its own.
    let b = bucket(60_000, 60_000);
    let _first = admission.try_admit(Demand::new().add(&b, Amount { requests: 60_000, units: 1 }));
    let demand = Demand::new().tokens(&b, 1);
    let mut waiting = line(&admission, &demand, N as usize);
    settle().await;
    let before = admission.counters();
    let start = Instant::now();
    tokio::time::sleep(Duration::from_millis(N)).await;
    settle().await;
    let cost = admission.counters();
    assert_eq!(cost.wakes - before.wakes, N, "as many wakes as grants");
    // A timer is armed anew for every instant, never two for one.
    assert!(cost.timers - before.timers <= N, "{cost:?}");
    assert!(cost.passes - before.passes <= N + 1, "{cost:?}");
    assert!(cost.examined - before.examined <= 2 * N + 1, "{cost:?}");
    assert_eq!(admission.queue_len(), 0);
    assert_eq!(start.elapsed(), Duration::from_millis(N));
    for at in [0, N as usize - 1] {
        let grant = granted(&mut waiting[at]);
        assert_eq!(grant.wall_wait(), Duration::from_millis(at as u64 + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_parked_is_polled_twice_whatever_comes_and_goes_elsewhere() {
    let admission = started();
    let (x, y) = (gate(1), gate(1));
    let held = admission.try_admit(permits(&x, 1)).unwrap();
    let polls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&polls);
    let mut admit = Box::pin(admission.admit(permits(&x, 1)));
    let parked = tokio::spawn(std::future::poll_fn(move |cx| {
        counted.fetch_add(1, Ordering::Relaxed);
        admit.as_mut().poll(cx)
    }));
    settle().await;
    for _ in 0..1_000 {
        admission
            .run(permits(&y, 1), tokio::time::sleep(Duration::from_millis(600)))
            .await
            .unwrap();
    }
    drop(held);
    drop(parked.await.unwrap().unwrap());
    assert_eq!(polls.load(Ordering::Relaxed), 2);
}

/// Questions a grant, with so many waiting for tokens of one bucket, all amounts drawn.
async fn questions_a_grant(n: usize, head_is_short_elsewhere: bool) -> f64 {
    const GRANTS: u64 = 500;
    let admission = started();
    let b = bucket(u32::MAX, 60_000_000);
    let x = gate(1);
    let _held = admission.try_admit(permits(&x, 1)).unwrap();
    let _all = admission.try_admit(Demand::new().tokens(&b, 60_000_000)).unwrap();
    let _head = head_is_short_elsewhere.then(|| parked(&admission, permits(&x, 1)));
    let mut draw = Draw::new(7);
    let _waiting: Vec<_> = (0..n)
        .map(|_| parked(&admission, Demand::new().tokens(&b, draw.between(1..=1_000_000))))
        .collect();
    settle().await;
    let before = admission.counters();
    while admission.counters().wakes < before.wakes + GRANTS {
        tokio::time::sleep(Duration::from_millis(50)).await;
        settle().await;
    }
    let after = admission.counters();
    (after.asked - before.asked) as f64 / (after.wakes - before.wakes) as f64
}

#[tokio::test(start_paused = true)]
async fn questions_a_grant_grow_no_faster_than_the_logarithm_of_the_line() {
    for elsewhere in [false, true] {
        for n in [10_000, 100_000] {
            let questions = questions_a_grant(n, elsewhere).await;
            println!("{questions:.1} questions a grant of {n}, head short elsewhere: {elsewhere}");
            // A pass finds the earliest that fits, and then the soonest that will: down a tree
            // twice as deep as an even one, a few questions a node.
            let bound = 8.0 * (n as f64).log2();
            assert!(questions <= bound, "{questions} a grant of {n}, at most {bound}");
        }
    }
}

/// However many accounts there are: a router may have one for each customer.
#[tokio::test(start_paused = true)]
async fn a_snapshot_reads_who_waits_and_who_holds_once_and_not_once_an_account() {
    const N: usize = 300;
    let admission = Admission::builder().track_holders(true).start().unwrap();
    let gates: Vec<_> = (0..N).map(|_| gate(1)).collect();
    let held: Vec<_> =
        gates.iter().map(|gate| admission.try_admit(permits(gate, 1)).unwrap()).collect();
    let waiting: Vec<_> = gates.iter().map(|gate| parked(&admission, permits(gate, 1))).collect();
    let cost = counted(&admission, || {
        let accounts = admission.snapshot().accounts;
        assert!(accounts.iter().all(|account| account.oldest_wait.is_some()));
        assert!(accounts.iter().all(|account| account.holders.len() == 1));
    });
    assert_eq!(cost.await.told, 2 * N as u64);
    drop((held, waiting));
    // Nor does it walk on when it knows of all of them who is the first.
    let held = admission.try_admit(permits(&gates[0], 1)).unwrap();
    let waiting = line(&admission, &permits(&gates[0], 1), 1_000);
    assert_eq!(counted(&admission, || drop(admission.snapshot())).await.told, 2);
    drop((held, waiting));
}
