//! The short ways: past the admission's state, from hand to hand, and borrowed.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use admit::testing::ScriptedMemory;
use admit::{
    Account, Admission, Admit, AdmitError, Amount, Ask, Charge, CountingGate, Demand, MemoryGate,
    TryAdmitError,
};
use tokio::time::Instant;
use tokio_test::task::spawn;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn a_borrowed_job_is_granted_and_given_back_as_an_owned_one() {
    let admission = started();
    let (x, y) = (gate(1), gate(2));
    let demand = permits(&x, 1).permits(&y, 2);
    let grant = admission.admit_ref(&demand).await.unwrap();
    assert_eq!((x.status().active, y.status().active), (1, 2));
    assert!(grant.release_one(&y) && !grant.release_one(&y));
    assert_eq!((x.status().active, y.status().active), (1, 0));
    assert!(grant.release() && !grant.release());
    drop(grant);
    drop(admission.admit_ref(&demand).await.unwrap());
    assert_eq!((x.status().active, y.status().active), (0, 0));
    let snapshot = admission.snapshot();
    assert_eq!((snapshot.held, snapshot.totals.granted, snapshot.waits.at_once), (0, 2, 2));
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn a_borrowed_job_waits_its_turn_like_everybody_else() {
    let admission = started();
    let x = gate(1);
    let demand = permits(&x, 1);
    let held = admission.admit_ref(&demand).await.unwrap();
    let mut first = spawn(admission.admit_ref(&demand));
    let mut second = spawn(admission.admit_ref(&demand));
    assert!(first.poll().is_pending() && second.poll().is_pending());
    settle().await;
    tokio::time::advance(secs(3)).await;
    drop(held);
    assert!(!second.is_woken(), "one permit is one grant");
    let Poll::Ready(Ok(grant)) = first.poll() else { panic!("it was first") };
    assert_eq!(grant.wall_wait(), secs(3));
    assert_eq!(grant.wait_times().len(), 1);
    assert_eq!(
        (&*grant.wait_times()[0].account, grant.wait_times()[0].wait),
        ("gate of 1", secs(3))
    );
    admission.stop();
    assert!(matches!(second.poll(), Poll::Ready(Err(AdmitError::ShutDown))));
    drop(grant);
    assert_eq!(x.status().active, 0);
}

#[tokio::test(start_paused = true)]
async fn a_borrowed_grant_that_is_leaked_ends_no_admission() {
    let admission = started();
    let x = gate(8);
    let demand = permits(&x, 1);
    for _ in 0..4 {
        std::mem::forget(admission.admit_ref(&demand).await.unwrap());
    }
    // Handles come and go beside as many grants as there are handles, and more.
    drop(admission.clone());
    drop(admission.admit(demand.clone()).await.unwrap());
    drop(admission.admit(demand.clone()));
    assert_eq!(admission.snapshot().held, 4);
    let waiting = parked(&admission, permits(&x, 5));
    settle().await;
    assert!(!waiting.is_woken(), "the admission runs");
}

#[tokio::test(start_paused = true)]
async fn somebody_who_waits_sees_every_permit_that_comes_back_past_the_door() {
    let admission = started();
    let (x, y) = (gate(2), gate(1));
    let both = admission.try_admit(permits(&x, 1).permits(&y, 1)).unwrap();
    let one = admission.try_admit(permits(&x, 1)).unwrap();
    // By the door, until somebody names the gate.
    drop(admission.try_admit(permits(&y, 1)));
    let mut waiter = parked(&admission, permits(&x, 2));
    assert!(matches!(admission.try_admit(permits(&x, 1)), Err(TryAdmitError::WouldWait { .. })));
    drop(one);
    settle().await;
    assert!(!waiter.is_woken());
    drop(both);
    settle().await;
    drop(granted(&mut waiter));
    assert_eq!((x.status().active, y.status().active), (0, 0));
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_the_drain_hears_of_the_last_release_whoever_comes_meanwhile() {
    let admission = started();
    let x = gate(2);
    let held = admission.try_admit(permits(&x, 1)).unwrap();
    let mut drained = spawn(admission.drained());
    assert!(drained.poll().is_pending());
    // The door stays shut behind this one, or the last would go past whoever is to tell of it.
    drop(admission.try_admit(permits(&x, 1)).unwrap());
    assert!(!drained.is_woken());
    drop(held);
    assert!(drained.is_woken() && drained.poll().is_ready());
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn a_release_lets_the_head_go_before_anybody_else_has_a_turn() {
    let admission = started();
    let x = gate(3);
    let held = admission.try_admit(permits(&x, 3)).unwrap();
    let mut line: Vec<_> = [1, 2, 3].map(|n| parked(&admission, permits(&x, n))).into();
    settle().await;
    drop(held);
    assert!(line[0].is_woken() && line[1].is_woken() && !line[2].is_woken());
    let (one, two) = (granted(&mut line[0]), granted(&mut line[1]));
    drop(one);
    assert!(!line[2].is_woken());
    drop(two);
    drop(granted(&mut line[2]));
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn a_release_serves_nobody_on_an_admission_that_is_not_started() {
    let admission = Admission::builder().build().unwrap();
    let x = gate(1);
    for others in 0..2 {
        let held = admission.try_admit(permits(&x, 1)).unwrap();
        let mut line: Vec<_> = (0..=others).map(|_| parked(&admission, permits(&x, 1))).collect();
        drop(held);
        for waiter in &mut line {
            assert!(!waiter.is_woken());
            assert!(
                admission.try_admit(permits(&x, 1)).is_err(),
                "those before it are served first"
            );
            drop(granted(waiter));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn equals_hand_over_and_nobody_is_examined() {
    let admission = started();
    let (x, y) = (gate(2), gate(5));
    let demand = permits(&x, 2).permits(&y, 1);
    let mut held = admission.try_admit(demand.clone()).unwrap();
    let mut line: Vec<_> = (0..50).map(|_| parked(&admission, demand.clone())).collect();
    let mut other = parked(&admission, permits(&x, 1));
    settle().await;
    for waiter in &mut line[..49] {
        let before = admission.counters();
        tokio::time::advance(secs(1)).await;
        drop(held);
        let after = admission.counters();
        assert_eq!((after.examined, after.asked), (before.examined, before.asked));
        assert_eq!(after.wakes, before.wakes + 1);
        admission.check();
        held = granted(waiter);
        assert_eq!((x.status().active, y.status().active), (2, 1));
    }
    assert_eq!(held.wall_wait(), secs(49));
    // The last has nobody like it behind: whoever is there is looked at.
    drop(held);
    drop(granted(&mut line[49]));
    drop(granted(&mut other));
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn equals_do_not_hand_over_what_a_smaller_gate_has_no_room_for() {
    let admission = started();
    let x = gate(2);
    let (one, two) = (
        admission.try_admit(permits(&x, 1)).unwrap(),
        admission.try_admit(permits(&x, 1)).unwrap(),
    );
    let mut line: Vec<_> = (0..3).map(|_| parked(&admission, permits(&x, 1))).collect();
    x.resize(1).unwrap();
    settle().await;
    drop(one);
    settle().await;
    assert!(!line[0].is_woken(), "one is in use, and one is all there may be");
    drop(two);
    drop(granted(&mut line[0]));
    // And grown beyond what is handed over, a gate lets more go than one.
    x.resize(3).unwrap();
    settle().await;
    assert!(line[1].is_woken() && line[2].is_woken());
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn equals_that_name_their_gates_in_another_order_wait_for_the_one_that_is_short() {
    let admission = started();
    let (x, y) = (gate(1), gate(5));
    let held = admission.try_admit(permits(&x, 1).permits(&y, 1)).unwrap();
    let mut line = [(); 2].map(|()| parked(&admission, permits(&y, 1).permits(&x, 1)));
    settle().await;
    tokio::time::advance(secs(1)).await;
    let before = admission.counters().examined;
    drop(held);
    assert_eq!(admission.counters().examined, before, "it went from hand to hand");
    assert_eq!((x.link().waiting(), y.link().waiting()), (1, 0));
    let first = granted(&mut line[0]);
    assert_eq!(&*first.wait_times()[0].account, "gate of 1");
    drop(first);
    let second = granted(&mut line[1]);
    let waits: Vec<_> = second.wait_times().iter().map(|wait| &*wait.account).collect();
    assert_eq!(waits, ["gate of 1"]);
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn what_a_stopped_admission_gives_back_lets_those_go_who_came_to_another_afterwards() {
    let (old, new) = (started(), started());
    let x = gate(1);
    let held = old.try_admit(permits(&x, 1)).unwrap();
    old.stop();
    let mut waiting = parked(&new, permits(&x, 1));
    settle().await;
    drop(held);
    settle().await;
    drop(granted(&mut waiting));
    assert_eq!(x.status().active, 0);
    new.check();
}

#[tokio::test(start_paused = true)]
async fn a_correction_after_its_admission_stopped_lets_those_go_who_came_to_another_afterwards() {
    let (old, new) = (started(), started());
    let b = bucket(60, 1_000);
    let used = old.try_admit(Demand::new().tokens(&b, 1_000)).unwrap();
    // Settled, so that nothing is held as the admission stops: what was really used is known later.
    assert!(used.release());
    old.stop();
    let mut waiting = parked(&new, Demand::new().tokens(&b, 900));
    settle().await;
    assert!(used.reconcile(&b, 100));
    settle().await;
    drop(granted(&mut waiting));
    new.check();
}

#[tokio::test(start_paused = true)]
async fn whoever_comes_takes_no_turn_at_memory_from_whom_a_release_lets_go() {
    let memory = ScriptedMemory::at_percent(50.0);
    let valve = MemoryGate::builder().source(memory.clone()).progress_after(secs(10)).build();
    let admission = Admission::builder().memory_gate(valve.unwrap()).start().unwrap();
    let [x, y, z] = [(); 3].map(|()| gate(1));
    let before = admission.try_admit(permits(&x, 1)).unwrap();
    let beside = admission.try_admit(permits(&y, 1)).unwrap();
    let mut waiting = parked(&admission, permits(&x, 1));
    memory.set_percent(96.0);
    pass_time(secs(1)).await;
    let newcomer = || admission.try_admit(permits(&z, 1));
    assert!(matches!(newcomer(), Err(TryAdmitError::WouldWait { .. })));
    pass_time(secs(10)).await;
    // Memory lets one go now, and the first in line can, but nobody has looked at it yet. Memory is
    // named by everybody: so whoever wants nothing else of the line's does not go past it either.
    drop(before);
    drop(beside);
    assert!(matches!(newcomer(), Err(TryAdmitError::WouldWait { .. })));
    settle().await;
    drop(granted(&mut waiting));
    admission.check();
}

/// Runs its job as it is woken, to the end.
struct AtOnce {
    admit: Mutex<Option<Admit>>,
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static DEEPEST: Cell<u32> = const { Cell::new(0) };
}

impl Wake for AtOnce {
    fn wake(self: Arc<Self>) {
        DEPTH.set(DEPTH.get() + 1);
        DEEPEST.set(DEEPEST.get().max(DEPTH.get()));
        let admit = self.admit.lock().unwrap().take();
        let mut admit = admit.expect("it is woken once");
        // Whose budget it is called under is not its business.
        let unconstrained = pin!(tokio::task::unconstrained(&mut admit));
        let polled = unconstrained.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Ok(_))), "it was woken for its outcome");
        drop(polled);
        DEPTH.set(DEPTH.get() - 1);
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_that_run_as_they_are_woken_make_no_deep_stack() {
    let admission = started();
    let x = gate(1);
    let held = admission.try_admit(permits(&x, 1)).unwrap();
    for _ in 0..100 {
        let job = Arc::new(AtOnce { admit: Mutex::new(Some(admission.admit(permits(&x, 1)))) });
        let waker = Waker::from(Arc::clone(&job));
        let mut admit = job.admit.lock().unwrap();
        let polled = Pin::new(admit.as_mut().unwrap()).poll(&mut Context::from_waker(&waker));
        drop(admit);
        assert!(polled.is_pending());
    }
    settle().await;
    drop(held);
    for _ in 0..20 {
        settle().await;
    }
    assert_eq!(admission.queue_len(), 0);
    assert!(DEEPEST.get() <= 2, "{} deep", DEEPEST.get());
    admission.check();
}

/// Takes and gives back so often, and keeps count of what is in use.
fn work(admission: &Admission, demand: &Demand, use_of: &AtomicU32, most: u32, times: u32) -> u32 {
    let mut granted = 0;
    for _ in 0..times {
        if let Ok(grant) = admission.try_admit(demand.clone()) {
            let before = use_of.fetch_add(1, Ordering::SeqCst);
            assert!(before < most, "{before} beside it");
            use_of.fetch_sub(1, Ordering::SeqCst);
            granted += 1;
            drop(grant);
        }
    }
    granted
}

#[test]
fn passages_strangers_and_a_second_admission_lose_no_permit() {
    for _ in 0..30 {
        let [a, b] = [(); 2].map(|()| Admission::builder().build().unwrap());
        let x = CountingGate::new("x", 2).unwrap();
        let (demand, use_of) = (permits(&x, 1), AtomicU32::new(0));
        // The first has it to itself for a while.
        drop(a.try_admit(demand.clone()).unwrap());
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| work(&a, &demand, &use_of, 2, 2_000));
            }
            scope.spawn(|| {
                // A call that comes from no admission.
                let now = Instant::now();
                let ask = Ask::new(0, Amount::permits(1), now);
                for _ in 0..500 {
                    if x.try_take(&ask).unwrap().is_some() {
                        let before = use_of.fetch_add(1, Ordering::SeqCst);
                        assert!(before < 2, "{before} beside it");
                        use_of.fetch_sub(1, Ordering::SeqCst);
                        x.give(&Charge::new(0, Amount::permits(1), now), now);
                    }
                }
            });
            scope.spawn(|| {
                thread::yield_now();
                work(&b, &demand, &use_of, 2, 500)
            });
        });
        assert_eq!(x.status().active, 0);
        assert_eq!((a.snapshot().held, b.snapshot().held), (0, 0));
        a.check();
        b.check();
    }
}

#[test]
fn a_gate_resized_beside_passages_loses_no_permit() {
    let admission = Admission::builder().build().unwrap();
    let x = CountingGate::new("x", 4).unwrap();
    let (demand, use_of) = (permits(&x, 1), AtomicU32::new(0));
    let granted: u32 = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..3).map(|_| scope.spawn(|| work(&admission, &demand, &use_of, 3, 5_000))).collect();
        for n in 0..2_000 {
            x.resize(1 + n % 4).unwrap();
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(x.status().active, 0);
    assert_eq!(admission.snapshot().totals.granted, u64::from(granted));
    admission.check();
}

#[test]
fn what_a_stopped_admission_still_holds_comes_back_beside_anothers_passages() {
    for _ in 0..30 {
        let [old, new] = [(); 2].map(|()| Admission::builder().build().unwrap());
        let x = CountingGate::new("x", 64).unwrap();
        let (demand, use_of) = (permits(&x, 1), AtomicU32::new(0));
        let held: Vec<_> = (0..32).map(|_| old.try_admit(demand.clone()).unwrap()).collect();
        old.stop();
        thread::scope(|scope| {
            scope.spawn(|| work(&new, &demand, &use_of, 1, 500));
            scope.spawn(|| drop(held));
        });
        assert_eq!(x.status().active, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_back_already_is_not_given_back_again_past_the_open_door() {
    let admission = started();
    let (a, b) = (gate(4), gate(4));
    let both = || Demand::new().permit(&a).permit(&b);
    let held = admission.try_admit(both()).unwrap();
    let early = admission.try_admit(both()).unwrap();
    let released = admission.try_admit(both()).unwrap();
    assert!(early.release_one(&a) && released.release());
    // The door is open again from here on, and somebody holds what would be given back twice.
    drop(admission.try_admit(both()).unwrap());
    assert!(!released.release() && !early.release_one(&a));
    assert_eq!((a.status().active, b.status().active), (1, 2));
    drop(early);
    assert_eq!((a.status().active, b.status().active), (1, 1));
    drop((released, held));
    assert_eq!((a.status().active, b.status().active), (0, 0));
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn who_comes_next_after_a_hand_over_waits_for_what_became_short_meanwhile() {
    let admission = started();
    let (x, y) = (gate(1), gate(3));
    let both = || Demand::new().permit(&x).permit(&y);
    let held = admission.try_admit(both()).unwrap();
    let mut first = parked(&admission, both());
    let mut second = parked(&admission, both());
    assert_eq!((x.link().waiting(), y.link().waiting()), (2, 0));
    y.resize(1).unwrap();
    settle().await;
    drop(held);
    let grant = granted(&mut first);
    assert_eq!((x.link().waiting(), y.link().waiting()), (1, 1));
    admission.check();
    drop(grant);
    let grant = granted(&mut second);
    assert_eq!((x.link().waiting(), y.link().waiting()), (0, 0));
    assert_eq!(grant.wait_times().len(), 2);
    drop(grant);
    admission.check();
}
