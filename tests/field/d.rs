//! D. Wake-ups: whoever can go is told, once, whatever the wakers do.

mod panics;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use admit::{Account, Admission, AdmitError, Demand};
use tokio_test::task::spawn;

use crate::support::*;

/// Lets a thread go on once a round, and tells when it is through with it.
#[derive(Default)]
struct Rounds {
    begun: AtomicUsize,
    ended: AtomicUsize,
}

impl Rounds {
    fn wait(counter: &AtomicUsize, round: usize) {
        while counter.load(Ordering::Acquire) < round {
            std::hint::spin_loop();
            std::thread::yield_now();
        }
    }
}

/// After everything was told, the evaluator needs few turns to wake whoever can go.
async fn woken<F: std::future::Future>(admit: &tokio_test::task::Spawn<F>) -> bool {
    for _ in 0..50 {
        if admit.is_woken() {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

#[tokio::test(start_paused = true)]
async fn d1_a_release_between_the_no_and_the_filing_is_not_missed() {
    const ROUNDS: usize = 100_000;
    let admission = Admission::builder().start().unwrap();
    let g = gate(1);
    let (rounds, slot) = (Arc::new(Rounds::default()), Arc::new(Mutex::new(None)));
    let releasing = {
        let (rounds, slot) = (Arc::clone(&rounds), Arc::clone(&slot));
        tokio::task::spawn_blocking(move || {
            for round in 1..=ROUNDS {
                Rounds::wait(&rounds.begun, round);
                drop::<Option<admit::Grant>>(slot.lock().unwrap().take());
                rounds.ended.store(round, Ordering::Release);
            }
        })
    };
    let mut parked = 0;
    for round in 1..=ROUNDS {
        *slot.lock().unwrap() = Some(admission.try_admit(permits(&g, 1)).unwrap());
        let mut admit = spawn(admission.admit(permits(&g, 1)));
        rounds.begun.store(round, Ordering::Release);
        for _ in 0..round % 64 {
            std::hint::spin_loop();
        }
        let grant = match admit.poll() {
            Poll::Ready(grant) => grant.unwrap(),
            Poll::Pending => {
                parked += 1;
                Rounds::wait(&rounds.ended, round);
                assert!(woken(&admit).await, "parked beside a free permit in round {round}");
                granted(&mut admit)
            }
        };
        drop(grant);
        Rounds::wait(&rounds.ended, round);
        tokio::task::yield_now().await;
    }
    releasing.await.unwrap();
    assert!(parked > 0, "some rounds were a race");
    Observer::of(&admission).all_gone();
}

#[tokio::test(start_paused = true)]
async fn d1_an_announcement_on_another_thread_is_not_missed() {
    const ROUNDS: usize = 100_000;
    let admission = Admission::builder().start().unwrap();
    let own = Own::new(1);
    let rounds = Arc::new(Rounds::default());
    let announcing = {
        let (rounds, own) = (Arc::clone(&rounds), Arc::clone(&own));
        tokio::task::spawn_blocking(move || {
            for round in 1..=ROUNDS {
                Rounds::wait(&rounds.begun, round);
                own.set_capacity(1);
                own.link().grew();
                rounds.ended.store(round, Ordering::Release);
            }
        })
    };
    for round in 1..=ROUNDS {
        own.set_capacity(0);
        let mut admit = spawn(admission.admit(Demand::new().permit(&own)));
        rounds.begun.store(round, Ordering::Release);
        for _ in 0..round % 64 {
            std::hint::spin_loop();
        }
        let grant = match admit.poll() {
            Poll::Ready(grant) => grant.unwrap(),
            Poll::Pending => {
                Rounds::wait(&rounds.ended, round);
                assert!(woken(&admit).await, "parked beside a free permit in round {round}");
                granted(&mut admit)
            }
        };
        drop(grant);
        Rounds::wait(&rounds.ended, round);
        tokio::task::yield_now().await;
    }
    announcing.await.unwrap();
    Observer::of(&admission).all_gone();
}

/// The same race, hit every time: the account opens after its no and before it answers it.
#[tokio::test(start_paused = true)]
async fn d1_an_account_that_opens_while_it_says_no_is_asked_again() {
    for behind_another in [false, true] {
        for by_a_thread in [false, true] {
            let admission = started();
            let watch = Observer::of(&admission);
            let (own, g) = (Own::new(0), gate(1));
            let held = admission.try_admit(permits(&g, 1)).unwrap();
            let head = behind_another.then(|| parked(&admission, permits(&g, 1)));
            // The ask that files it is the last: it comes a second time with its waker.
            for nth in [1, 2] {
                own.set_capacity(0);
                let opens = Arc::clone(&own);
                let open = move || {
                    opens.set_capacity(1);
                    opens.link().grew();
                };
                let open = move || {
                    if by_a_thread { std::thread::spawn(open).join().unwrap() } else { open() }
                };
                if nth == 1 {
                    own.after_no(open);
                } else {
                    let second = Arc::clone(&own);
                    own.after_no(move || second.after_no(open));
                }
                let mut admit = spawn(admission.admit(Demand::new().permit(&own)));
                let grant = match admit.poll() {
                    Poll::Ready(grant) => grant.unwrap(),
                    Poll::Pending => {
                        assert!(woken(&admit).await, "ask {nth}");
                        granted(&mut admit)
                    }
                };
                drop(grant);
                settle().await;
            }
            drop((head, held));
            settle().await;
            watch.all_gone();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn d2_every_wake_is_a_grant() {
    let admission = Admission::builder().start().unwrap();
    let b = bucket(60_000, 60_000);
    drop(admission.try_admit(admit::Demand::new().add(&b, all_of(60_000))).unwrap());
    let tasks: Vec<_> = (0..100_000)
        .map(|_| {
            let (admit, polls) = counted(admission.admit(tokens_of(&b, 1)));
            (tokio::spawn(admit), polls)
        })
        .collect();
    while admission.queue_len() < 100_000 {
        tokio::task::yield_now().await;
    }
    for (task, polls) in tasks {
        let _ = task.await.unwrap().unwrap();
        assert_eq!(polls.load(Ordering::Relaxed), 2);
    }
    Observer::of(&admission).all_gone();
}

fn all_of(n: u32) -> admit::Amount {
    admit::Amount { requests: n, units: u64::from(n) }
}

#[tokio::test(start_paused = true)]
async fn d2_a_parked_job_is_polled_exactly_twice() {
    for wants_time in [false, true] {
        let admission = started();
        let watch = Observer::of(&admission);
        let (g, b, other) = (gate(1), bucket(1, 600), gate(4));
        let held = admission.try_admit(permits(&g, 1)).unwrap();
        if wants_time {
            drop(admission.try_admit(tokens_of(&b, 600)).unwrap());
        }
        let demand = if wants_time { tokens_of(&b, 600) } else { permits(&g, 1) };
        let (admit, polls) = counted(admission.admit(demand));
        let task = tokio::spawn(admit);
        settle().await;
        let start = tokio::time::Instant::now();
        for _ in 0..1_000 {
            let grant = admission.admit(permits(&other, 2)).await.unwrap();
            let behind = tokio::spawn(admission.admit(permits(&other, 3)));
            settle().await;
            drop(grant);
            drop(behind.await.unwrap().unwrap());
            tokio::time::sleep(millis(if wants_time { 50 } else { 600 })).await;
        }
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        drop(held);
        let _ = task.await.unwrap().unwrap();
        assert_eq!(polls.load(Ordering::Relaxed), 2);
        if !wants_time {
            assert_eq!(start.elapsed(), secs(600));
        }
        watch.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn d3_a_waker_may_come_back_in() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (g, h) = (gate(1), gate(2));
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut first = admission.admit(permits(&g, 1));
    let hook = Hook::new();
    assert!(hook.poll(&mut first).is_pending());
    let second = parked(&admission, permits(&g, 1));
    let mut third = parked(&admission, permits(&g, 1));
    let done = Arc::new(Mutex::new(None));
    hook.on_wake({
        let (admission, h, done) = (admission.clone(), Arc::clone(&h), Arc::clone(&done));
        move || {
            drop(second);
            let grant = admission.try_admit(permits(&h, 2)).unwrap();
            *done.lock().unwrap() = Some((grant, admission.snapshot()));
        }
    });
    drop(held);
    settle().await;
    let (grant, snapshot) = done.lock().unwrap().take().expect("the waker was woken");
    assert_eq!(snapshot.waiting, 1, "one went, one was dropped");
    assert_eq!(snapshot.account(h.link().name()).unwrap().in_use, 2);
    assert_eq!(h.status().active, 2);
    let Poll::Ready(first) = hook.poll(&mut first) else { panic!("it was granted") };
    assert_eq!(hook.wakes(), 1);
    drop((first.unwrap(), grant));
    settle().await;
    drop(granted(&mut third));
    watch.all_gone();
}

/// A job and its watchdog share a grant, and an executor may run either of them as it wakes it.
#[tokio::test(start_paused = true)]
async fn d3_whoever_the_end_of_a_grant_wakes_may_settle_it_again() {
    for way in ["drop", "release", "rollback", "release one"] {
        let admission = started();
        let watch = Observer::of(&admission);
        let g = gate(1);
        let held = Arc::new(admission.try_admit(permits(&g, 1)).unwrap());
        let settle_again = |held: &Arc<admit::Grant>| {
            let held = Arc::clone(held);
            move || {
                let settled = held.release();
                assert_eq!(settled, way == "release one");
                assert!(
                    !held.rollback() && !held.release_one(held.demand().entries()[0].account())
                );
            }
        };
        let (listener, drainer) = (Hook::new(), Hook::new());
        let (mut events, watching) = (admission.subscribe(), admission.clone());
        let mut next = Box::pin(events.recv());
        assert!(listener.poll(&mut next).is_pending());
        let mut drained = Box::pin(watching.drained());
        assert!(drainer.poll(&mut drained).is_pending());
        if way != "drop" {
            listener.on_wake(settle_again(&held));
        }
        if matches!(way, "release" | "rollback") {
            drainer.on_wake(settle_again(&held));
        }
        match way {
            "drop" => drop(held),
            "release" => assert!(held.release()),
            "rollback" => assert!(held.rollback()),
            _ => assert!(held.release_one(&g)),
        }
        assert_eq!((listener.wakes(), drainer.wakes()), (1, 1), "{way}");
        assert!(drainer.poll(&mut drained).is_ready());
        watch.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn d3_a_waker_dropped_with_its_job_may_come_back_in() {
    for way in ["withdrawn", "replaced", "woken"] {
        let admission = started();
        let watch = Observer::of(&admission);
        let g = gate(1);
        let held = admission.try_admit(permits(&g, 1)).unwrap();
        let mut admit = admission.admit(permits(&g, 1));
        let hook = Hook::new();
        assert!(hook.poll(&mut admit).is_pending());
        let lens = Arc::new(Mutex::new(Vec::new()));
        hook.on_drop({
            let (admission, lens) = (admission.clone(), Arc::clone(&lens));
            move || lens.lock().unwrap().push(admission.queue_len())
        });
        drop(hook);
        let expected = match way {
            "withdrawn" => {
                drop(admit);
                0
            }
            "replaced" => {
                let mut admit = spawn(admit);
                assert!(admit.poll().is_pending());
                drop(admit);
                1
            }
            _ => {
                drop(held);
                settle().await;
                drop(admit);
                assert_eq!(*lens.lock().unwrap(), [0]);
                watch.all_gone();
                continue;
            }
        };
        assert_eq!(*lens.lock().unwrap(), [expected], "{way}");
        drop(held);
        watch.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn d3_a_waker_that_panics_keeps_nobody_else_asleep() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(2);
    let held = admission.try_admit(permits(&g, 2)).unwrap();
    let mut first = admission.admit(permits(&g, 1));
    let hook = Hook::new();
    assert!(hook.poll(&mut first).is_pending());
    hook.on_wake(|| panic!("a waker fails"));
    let mut second = parked(&admission, permits(&g, 1));
    let mut third = parked(&admission, permits(&g, 2));
    drop(held);
    settle().await;
    drop(granted(&mut second));
    let Poll::Ready(first) = hook.poll(&mut first) else { panic!("it was granted") };
    drop(first.unwrap());
    settle().await;
    drop(granted(&mut third));
    watch.all_gone();
}

/// Whoever waits for events or for `drained` has a waker too, and it is no business of a job's.
#[tokio::test(start_paused = true)]
async fn d3_a_bystanders_waker_that_panics_reaches_no_job() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut waiter = parked(&admission, permits(&g, 1));

    let listener = Hook::new();
    let mut events = admission.subscribe();
    let mut next = Box::pin(events.recv());
    assert!(listener.poll(&mut next).is_pending());
    listener.on_wake(|| panic!("a listener fails"));
    drop(held);
    settle().await;
    let grant = granted(&mut waiter);
    assert_eq!(listener.wakes(), 1);
    drop(next);

    let watching = admission.clone();
    let mut drained = Box::pin(watching.drained());
    let drainer = Hook::new();
    assert!(drainer.poll(&mut drained).is_pending());
    drainer.on_wake(|| panic!("a watcher fails"));
    drop(grant);
    assert_eq!(drainer.wakes(), 1);
    assert!(drainer.poll(&mut drained).is_ready());

    // The evaluator is still there: the next waiter goes.
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let mut waiter = parked(&admission, permits(&g, 1));
    drop(held);
    settle().await;
    drop(granted(&mut waiter));
    watch.all_gone();
}

/// Runs something when it drops: hidden in an account, which a demand owns.
struct Owner {
    own: Arc<Own>,
    act: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(act) = self.act.take() {
            act();
        }
    }
}

impl Account for Owner {
    fn link(&self) -> &admit::AccountLink {
        self.own.link()
    }
    fn category(&self) -> admit::Category {
        self.own.category()
    }
    fn capacity(&self) -> u64 {
        self.own.capacity()
    }
    fn in_use(&self, now: tokio::time::Instant) -> u64 {
        self.own.in_use(now)
    }
    fn summary(&self, now: tokio::time::Instant) -> String {
        self.own.summary(now)
    }
    fn replenishment(&self) -> admit::Replenishment {
        self.own.replenishment()
    }
    fn fits(&self, ask: &admit::Ask) -> Result<bool, admit::Refusal> {
        self.own.fits(ask)
    }
    fn try_take(&self, ask: &admit::Ask) -> Result<Option<tokio::time::Instant>, admit::Refusal> {
        self.own.try_take(ask)
    }
    fn give(&self, charge: &admit::Charge, now: tokio::time::Instant) -> admit::Amount {
        self.own.give(charge, now)
    }
    fn earliest_fit(&self, ask: &admit::Ask) -> Option<tokio::time::Instant> {
        self.own.earliest_fit(ask)
    }
}

/// The last owner of an account may be the monitor, and the account's own `Drop` may do anything.
#[tokio::test(start_paused = true)]
async fn d3_an_account_may_come_back_in_or_panic_as_it_is_dropped() {
    for panics in [false, true] {
        let admission = started();
        let g = gate(1);
        let held = admission.try_admit(permits(&g, 1)).unwrap();
        let mut waiter = parked(&admission, permits(&g, 1));
        let lens = Arc::new(Mutex::new(Vec::new()));
        let act = {
            let (admission, lens) = (admission.clone(), Arc::clone(&lens));
            move || {
                lens.lock().unwrap().push(admission.queue_len());
                assert!(!panics, "an account fails as it is dropped");
            }
        };
        let own = Own::new(0);
        let owner = Arc::new(Owner { own: Arc::clone(&own), act: Some(Box::new(act)) });
        // The demand is the account's last owner, and leaves the line on the evaluator.
        let late = Demand::new().permit(&owner);
        drop(owner);
        let mut late = park(admission.admit(late).within(secs(1)));
        pass_time(secs(2)).await;
        assert!(matches!(landed(&mut late), Err(AdmitError::TimedOut { .. })));
        assert_eq!(*lens.lock().unwrap(), [1]);
        drop(held);
        settle().await;
        drop(granted(&mut waiter));
        Observer::of(&admission).all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn d4_a_release_through_one_admission_grants_in_another() {
    let (one, other) = (started(), started());
    let (watch, watch_other) = (Observer::of(&one), Observer::of(&other));
    let (g, b) = (gate(1), gate(1));
    let full = one.try_admit(permits(&b, 1)).unwrap();
    let x = one.try_admit(permits(&g, 1)).unwrap();
    let mut y = parked(&other, permits(&g, 1));
    for _ in 0..100 {
        drop(one.try_admit(permits(&g, 1).permit(&b)).unwrap_err());
    }
    assert!(!y.is_woken());
    drop(x);
    settle().await;
    let y = granted(&mut y);
    drop((y, full));
    watch.all_gone();
    watch_other.all_gone();
}

/// One admission keeps taking the gate for a moment and giving it back, on a thread of its own.
#[tokio::test(start_paused = true)]
async fn d4_a_momentary_debit_parks_nobody_beside_a_free_permit() {
    for others in [1, 2] {
        let admissions: Vec<_> =
            (0..=others).map(|_| Admission::builder().start().unwrap()).collect();
        let (g, b) = (gate(1), gate(1));
        let full = admissions[0].try_admit(permits(&b, 1)).unwrap();
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let trying = {
            let (admission, stop) = (admissions[0].clone(), Arc::clone(&stop));
            let demand = permits(&g, 1).permit(&b);
            tokio::task::spawn_blocking(move || {
                let mut tries = 0_usize;
                while !stop.load(Ordering::Relaxed) {
                    drop(admission.try_admit(demand.clone()).unwrap_err());
                    tries += 1;
                }
                tries
            })
        };
        let mut parked = 0;
        for round in 0..20_000 {
            let admission = &admissions[1 + round % others];
            let mut admit = spawn(admission.admit(permits(&g, 1)));
            let grant = match admit.poll() {
                Poll::Ready(grant) => grant.unwrap(),
                Poll::Pending => {
                    parked += 1;
                    // It loses the race to a debit now and then, but is told each time.
                    let mut turns = 0;
                    while !admit.is_woken() {
                        turns += 1;
                        assert!(turns < 5_000_000, "parked for good in round {round}");
                        tokio::task::yield_now().await;
                    }
                    granted(&mut admit)
                }
            };
            drop(grant);
            tokio::task::yield_now().await;
        }
        stop.store(true, Ordering::Relaxed);
        let tries = trying.await.unwrap();
        assert!(tries > 0 && parked < 20_000);
        drop(full);
        for admission in &admissions {
            Observer::of(admission).all_gone();
        }
    }
}

/// The first admission lets go of the gate while the others wait: the last try may be the one that
/// made them wait.
#[tokio::test(start_paused = true)]
async fn d4_the_last_of_the_momentary_debits_is_told_as_well() {
    let (one, other) =
        (Admission::builder().start().unwrap(), Admission::builder().start().unwrap());
    let (rounds, g, b) = (Arc::new(Rounds::default()), gate(1), gate(1));
    let full = one.try_admit(permits(&b, 1)).unwrap();
    const ROUNDS: usize = 30_000;
    let trying = {
        let (one, rounds, demand) = (one.clone(), Arc::clone(&rounds), permits(&g, 1).permit(&b));
        tokio::task::spawn_blocking(move || {
            for round in 1..=ROUNDS {
                Rounds::wait(&rounds.begun, round);
                drop(one.try_admit(demand.clone()).unwrap_err());
                rounds.ended.store(round, Ordering::Release);
            }
        })
    };
    for round in 1..=ROUNDS {
        let mut admit = spawn(other.admit(permits(&g, 1)));
        rounds.begun.store(round, Ordering::Release);
        for _ in 0..round % 64 {
            std::hint::spin_loop();
        }
        let grant = match admit.poll() {
            Poll::Ready(grant) => grant.unwrap(),
            Poll::Pending => {
                Rounds::wait(&rounds.ended, round);
                assert!(woken(&admit).await, "parked beside a free permit in round {round}");
                granted(&mut admit)
            }
        };
        drop(grant);
        Rounds::wait(&rounds.ended, round);
    }
    trying.await.unwrap();
    drop(full);
    Observer::of(&one).all_gone();
    Observer::of(&other).all_gone();
}
