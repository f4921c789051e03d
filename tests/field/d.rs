//! D. Wake-ups: whoever can go is told, once, whatever the wakers do.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use admit::{
    Account, Admission, AdmitError, Demand, EventKind, FailureKind, TryAdmitError, UpstreamFailure,
};
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

/// The length of the line is bounded by the pass, which walks it at every token that arrives.
#[tokio::test(start_paused = true)]
async fn d2_every_wake_is_a_grant() {
    let admission = Admission::builder().start().unwrap();
    let b = bucket(60_000, 60_000);
    drop(admission.try_admit(admit::Demand::new().add(&b, all_of(60_000))).unwrap());
    let tasks: Vec<_> = (0..2_000)
        .map(|_| {
            let (admit, polls) = counted(admission.admit(tokens_of(&b, 1)));
            (tokio::spawn(admit), polls)
        })
        .collect();
    while admission.queue_len() < 2_000 {
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

#[tokio::test(start_paused = true)]
async fn d5_a_panic_for_one_of_three_concerns_that_one() {
    for method in ["fits", "try_take", "earliest_fit"] {
        let admission = started();
        let mut watch = Observer::of(&admission);
        // The own account is the youngest, so that the others are debited before it.
        let (g, b) = (gate(8), bucket(10, 1_000));
        let own = Own::new(8);
        let held = admission.try_admit(Demand::new().permits(&own, 8)).unwrap();
        let demand = |n| Demand::new().permits(&own, n).permits(&g, n).tokens(&b, 100);
        let mut first = parked(&admission, demand(1));
        let mut second = parked(&admission, demand(2));
        let mut third = parked(&admission, demand(3));
        own.panic_for(2, method);
        let mut kept = None;
        if method == "earliest_fit" {
            // It is asked only of those who stay.
            drop(held);
            own.calm();
            settle().await;
            drop(granted(&mut first));
            drop(granted(&mut second));
            drop(granted(&mut third));
            settle().await;
            kept = Some(admission.try_admit(Demand::new().permits(&own, 8)).unwrap());
            first = parked(&admission, demand(1));
            own.panic_for(2, method);
            let mut admit = spawn(admission.admit(demand(2)));
            let Poll::Ready(outcome) = admit.poll() else { panic!("it is at fault") };
            assert_fault(outcome.map(drop), &*own, method);
            third = parked(&admission, demand(3));
        } else {
            drop(held);
            settle().await;
            assert_fault(landed(&mut second).map(drop), &*own, method);
            assert_eq!(watch.rejected(&*own, admit::RejectReason::Aborted), 1);
        }
        drop(kept);
        settle().await;
        let (first, third) = (granted(&mut first), granted(&mut third));
        assert_eq!((own.used(), g.status().active), (4, 4));
        drop((first, third));
        let spent = if method == "earliest_fit" { 500 } else { 200 };
        assert_eq!(b.status().available_tokens, 1_000 - spent, "{method}");
        own.calm();
        watch.all_gone();
    }
}

/// Asserts that it is the fault of this account, in this method.
#[track_caller]
fn assert_fault(outcome: Result<(), AdmitError>, account: &dyn Account, method: &str) {
    let error = outcome.expect_err("the account is broken");
    let AdmitError::AccountFault { account: name, source } = &error else { panic!("{error}") };
    assert_eq!(name, account.link().name());
    assert_eq!(source.method, method);
    assert!(std::error::Error::source(&error).is_some(), "the panic is the source");
}

#[tokio::test(start_paused = true)]
async fn d5_a_newcomer_meets_the_panic_alone() {
    for method in ["fits", "try_take"] {
        for own_first in [false, true] {
            let admission = started();
            let watch = Observer::of(&admission);
            let (own, g) = if own_first {
                let own = Own::new(1);
                (own, gate(1))
            } else {
                let g = gate(1);
                (Own::new(1), g)
            };
            let demand = Demand::new().permit(&own).permit(&g);
            // `fits` is asked only once something does not fit.
            let held = (method == "fits").then(|| admission.try_admit(permits(&g, 1)).unwrap());
            own.panic_in(method);
            let Err(TryAdmitError::Admit(error)) = admission.try_admit(demand.clone()) else {
                panic!("it is at fault")
            };
            assert_fault(Err(error), &*own, method);
            drop(held);
            assert_eq!((own.used(), g.status().active), (0, 0));
            own.calm();
            drop(admission.try_admit(demand).unwrap());
            watch.all_gone();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn d5_a_panic_as_an_account_is_first_read_is_its_fault() {
    for method in ["replenishment", "reads_clock"] {
        let admission = started();
        let watch = Observer::of(&admission);
        let (own, g) = (Own::new(1), gate(1));
        own.panic_in(method);
        let demand = permits(&g, 1).permit(&own);
        let outcome = admission.admit(demand.clone()).await;
        assert_fault(outcome.map(drop), &*own, method);
        own.calm();
        // It was read once, and is never read again.
        let outcome = admission.admit(demand).await;
        assert_fault(outcome.map(drop), &*own, method);
        assert_eq!(g.status().active, 0);
        watch.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn d5_a_panic_in_a_reading_leaves_the_field_empty() {
    for method in ["category", "capacity", "in_use", "indicator", "summary"] {
        let admission = started();
        let mut watch = Observer::of(&admission);
        let own = Own::new(1);
        own.panic_in(method);
        let held = admission.try_admit(Demand::new().permit(&own)).unwrap();
        let mut waiter = parked(&admission, Demand::new().permit(&own));
        let snapshot = admission.snapshot();
        let account = snapshot.account(own.link().name()).expect("it is still told of");
        assert_eq!(account.waiting, 1);
        match method {
            "capacity" => assert_eq!(account.capacity, 0),
            "in_use" => assert_eq!(account.in_use, 0),
            _ => assert_eq!((account.in_use, account.capacity), (1, 1)),
        }
        own.calm();
        drop(held);
        settle().await;
        drop(granted(&mut waiter));
        assert_eq!(watch_count(&admission), 0);
        // An empty field would confuse the observer's own sums; the counts must be right.
        assert!(admission.queue_len() == 0 && own.used() == 0);
        admission.check();
        drop(watch_events(&mut watch, method));
    }
}

fn watch_count(admission: &Admission) -> usize {
    admission.snapshot().held
}

/// Events are built whatever a reading does.
fn watch_events(watch: &mut Observer, method: &str) -> Vec<EventKind> {
    if matches!(method, "capacity" | "category") {
        return Vec::new();
    }
    watch.events().iter().map(|event| event.kind).collect()
}

#[tokio::test(start_paused = true)]
async fn d5_a_panic_in_feedback_costs_nothing() {
    for method in ["on_success", "on_upstream_failure", "settled", "reconcile"] {
        let admission = started();
        let watch = Observer::of(&admission);
        let (own, g) = (Own::new(1), gate(1));
        own.panic_in(method);
        let grant = admission.try_admit(Demand::new().permit(&own).permit(&g)).unwrap();
        let failure = UpstreamFailure::status(429, "somebody", "slow down");
        grant.report_success_all();
        grant.report_failure_all(&failure);
        assert_eq!(grant.reconcile(&own, 5), method != "reconcile");
        let mut waiter = parked(&admission, permits(&g, 1));
        drop(grant);
        assert_eq!((own.used(), g.status().active), (0, 0));
        settle().await;
        drop(granted(&mut waiter));
        own.calm();
        drop(admission.try_admit(Demand::new().permit(&own)).unwrap());
        assert_eq!(failure.kind, FailureKind::RateLimit);
        watch.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn d6_a_panicking_give_at_settlement_costs_one_account() {
    for (own_first, way) in
        [(false, "drop"), (true, "drop"), (true, "rollback"), (false, "release one")]
    {
        let admission = started();
        let mut watch = Observer::of(&admission);
        let (own, g) = if own_first {
            let own = Own::new(2);
            (own, gate(1))
        } else {
            let g = gate(1);
            (Own::new(2), g)
        };
        let demand = if own_first {
            Demand::new().permit(&own).permit(&g)
        } else {
            permits(&g, 1).permit(&own)
        };
        let grant = admission.try_admit(demand.clone()).unwrap();
        let mut both = parked(&admission, demand.clone());
        let mut one = parked(&admission, permits(&g, 1));
        own.panic_in("give");
        match way {
            "drop" => drop(grant),
            "rollback" => assert!(grant.rollback()),
            _ => {
                assert!(grant.release_one(&own));
                assert!(!grant.release_one(&own));
                settle().await;
                assert_fault(landed(&mut both).map(drop), &*own, "give");
                assert!(!one.is_woken(), "the gate is still held");
                drop(grant);
            }
        }
        settle().await;
        let one = granted(&mut one);
        if way != "release one" {
            assert_fault(landed(&mut both).map(drop), &*own, "give");
        }
        assert!(own.link().is_quarantined());
        own.calm();
        let late = admission.admit(Demand::new().permit(&own)).await;
        assert_fault(late.map(drop), &*own, "give");
        drop(one);
        settle().await;
        drop(admission.try_admit(permits(&g, 1)).unwrap());
        assert_eq!(g.status().active, 0);
        assert_eq!(watch.count(&*g, EventKind::Released), 3);
        watch.all_gone();
    }
}

/// A quarantine is every admission's: whoever waits on the account elsewhere hears of it too.
#[tokio::test(start_paused = true)]
async fn d6_a_quarantine_reaches_whoever_waits_in_another_admission() {
    let (one, other) = (started(), started());
    let watch = Observer::of(&one);
    let own = Own::new(1);
    let grant = one.try_admit(Demand::new().permit(&own)).unwrap();
    let mut waiter = parked(&other, Demand::new().permit(&own));
    own.panic_in("give");
    drop(grant);
    settle().await;
    assert_fault(landed(&mut waiter).map(drop), &*own, "give");
    own.calm();
    watch.all_gone();
    Observer::of(&other).all_gone();
}

/// A grant that landed and was dropped unseen is given back like any other.
#[tokio::test(start_paused = true)]
async fn d6_a_panicking_give_of_an_unseen_grant_does_not_panic_either() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (own, g) = (Own::new(1), gate(1));
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let unseen = parked(&admission, permits(&g, 1).permit(&own));
    let mut next = parked(&admission, permits(&g, 1));
    drop(held);
    settle().await;
    own.panic_in("give");
    drop(unseen);
    settle().await;
    drop(granted(&mut next));
    own.calm();
    watch.all_gone();
}

/// A panic while a failed attempt is undone is a defect. What the attempt had taken elsewhere comes
/// back all the same: other admissions may use it.
#[tokio::test(start_paused = true)]
async fn d6_a_panic_while_an_attempt_is_undone_closes_and_leaks_nothing() {
    for parked_ahead in [false, true] {
        let (admission, other) = (started(), started());
        let (g, h) = (gate(1), gate(1));
        let own = Own::new(1);
        let full = gate(1);
        let held = other.try_admit(permits(&full, 1)).unwrap();
        let mine = admission.try_admit(permits(&h, 1)).unwrap();
        let mut elsewhere = None;
        let waiter = parked_ahead.then(|| parked(&admission, permits(&h, 1).permit(&full)));
        own.panic_in("give");
        let demand = permits(&g, 1).permit(&own).permit(&full);
        if parked_ahead {
            // Behind one that wants the same it is surveyed first, and nothing is taken.
            drop(would_wait(admission.try_admit(demand.clone())));
            drop(waiter);
        }
        let Err(TryAdmitError::Admit(AdmitError::Closed(defect))) = admission.try_admit(demand)
        else {
            panic!("it closes")
        };
        assert!(defect.to_string().contains(&**own.link().name()), "{defect}");
        assert_eq!(g.status().active, 0, "the gate has its permit back");
        elsewhere.replace(other.try_admit(permits(&g, 1)).unwrap());
        let late = admission.admit(permits(&g, 1)).await;
        assert!(matches!(late, Err(AdmitError::Closed(_))));
        // A grant held then settles as ever.
        drop(mine);
        assert_eq!(h.status().active, 0);
        drop((elsewhere, held));
        admission.check();
        Observer::of(&other).all_gone();
    }
}
