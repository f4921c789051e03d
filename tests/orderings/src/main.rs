//! Whether the orderings of the short ways past the lock are strong enough: small scenes on threads,
//! for Miri, which answers a load with any value the language allows. The model checker in
//! `tests/shuttle` takes every atomic operation for sequentially consistent, and real machines
//! show next to nothing of what is allowed.
//!
//! ```sh
//! cargo run                                   # on this machine: shows that the scenes run
//! MIRIFLAGS="-Zmiri-many-seeds=0..32 -Zmiri-preemption-rate=0.1" cargo +nightly miri run
//! MIRIFLAGS=… cargo +nightly miri run -- resize             # only the scenes with this in their names
//! ```
//!
//! A program and not tests: what runs tests takes an interpreter longer than the scenes do. Each
//! seed is one run of every scene; a scene that fails panics, and Miri names the seed.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;

use admit::{Account, Admission, Amount, Ask, Charge, CountingGate, Demand, Grant};
use tokio::time::Instant;

fn main() {
    // All, or those that are named by a part of their names.
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let is_asked = |name: &str| asked.is_empty() || asked.iter().any(|part| name.contains(&**part));
    for (name, scene) in SCENES.iter().filter(|(name, _)| is_asked(name)) {
        // An interpreter that tries many seeds would say it for each.
        if !cfg!(miri) {
            println!("{name}");
        }
        scene();
    }
}

type Scene = (&'static str, fn());

const SCENES: &[Scene] = &[
    ("two who pass are never inside at once", two_who_pass),
    ("a resize beside a passage is not undone by it", a_resize),
    ("who comes from no admission loses no permit beside a passage", a_stranger),
    ("a second stranger waits as the first does", two_strangers),
    ("a second admission loses no permit beside a passage", a_second_admission),
    ("who holds the lock sees every passage", a_hold),
    ("who passes and who holds the lock count alike", a_count_with_a_hold),
    ("who passes and a stranger count alike", a_count_with_a_stranger),
    ("who passes and a second admission count alike", a_count_with_a_second_admission),
    ("a give that an ask did not see sees who waits", an_ask_and_a_give),
];

/// An admission whose door stands open, and a gate that it has taken of before.
fn opened(permits: u32) -> (Admission, Arc<CountingGate>, Demand) {
    let admission = Admission::builder().build().expect("nothing is asked of it");
    let gate = CountingGate::new("gate", permits).expect("a gate");
    let demand = Demand::new().permit(&gate);
    drop(admission.try_admit(demand.clone()).expect("it is free"));
    (admission, gate, demand)
}

/// Takes a permit, by the door where it may, and gives it back; `inside` runs while it is held.
fn pass(admission: &Admission, demand: &Demand, inside: impl FnOnce()) {
    let mut admit = pin!(admission.admit_ref(demand));
    match admit.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(grant)) => {
            inside();
            drop(grant);
        }
        Poll::Ready(Err(error)) => panic!("{error}"),
        // It leaves the line again.
        Poll::Pending => {}
    }
}

/// Takes a permit as somebody who comes from no admission does, and gives it back.
fn come_as_a_stranger(gate: &CountingGate, inside: impl FnOnce()) {
    let (one, now) = (Amount::permits(1), Instant::now());
    if gate.try_take(&Ask::new(0, one, now)).expect("one may fit").is_some() {
        inside();
        gate.give(&Charge::new(0, one, now), now);
    }
}

/// Counts who is inside at once.
struct Inside {
    now: AtomicU32,
    most: u32,
}

impl Inside {
    const fn of(most: u32) -> Self {
        Self { now: AtomicU32::new(0), most }
    }

    fn one(&self) {
        assert!(self.now.fetch_add(1, Ordering::Relaxed) < self.most, "granted twice");
        self.now.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs both at once.
fn beside(one: impl FnOnce() + Send, other: impl FnOnce() + Send) {
    thread::scope(|scope| {
        scope.spawn(one);
        scope.spawn(other);
    });
}

fn nothing_is_left(gate: &CountingGate) {
    assert_eq!(gate.status().active, 0, "a permit is lost");
}

fn two_who_pass() {
    let (admission, gate, demand) = opened(1);
    let inside = Inside::of(1);
    let passes = || {
        for _ in 0..2 {
            pass(&admission, &demand, || inside.one());
        }
    };
    beside(passes, passes);
    nothing_is_left(&gate);
}

fn a_resize() {
    const TIMES: u32 = 3;
    let (admission, gate, demand) = opened(100);
    let (passed, ()) = both(
        || [(); TIMES as usize].map(|()| kept(&admission, &demand)),
        || {
            for more in 1..=TIMES {
                gate.resize(100 + more).expect("a size");
                assert_eq!(gate.status().max_concurrent, 100 + more);
            }
        },
    );
    assert_eq!(gate.status().active, TIMES, "a permit is lost");
    assert_eq!(gate.status().max_concurrent, 100 + TIMES, "the resize is undone");
    drop(passed);
    nothing_is_left(&gate);
}

fn a_stranger() {
    let (admission, gate, demand) = opened(1);
    let inside = Inside::of(1);
    beside(
        || pass(&admission, &demand, || inside.one()),
        || come_as_a_stranger(&gate, || inside.one()),
    );
    nothing_is_left(&gate);
}

fn two_strangers() {
    let (admission, gate, demand) = opened(2);
    let inside = Inside::of(2);
    thread::scope(|scope| {
        scope.spawn(|| pass(&admission, &demand, || inside.one()));
        for _ in 0..2 {
            scope.spawn(|| come_as_a_stranger(&gate, || inside.one()));
        }
    });
    nothing_is_left(&gate);
}

fn a_second_admission() {
    let (admission, gate, demand) = opened(1);
    let inside = Inside::of(1);
    let second = Admission::builder().build().expect("nothing is asked of it");
    let theirs = Demand::new().permit(&gate);
    beside(
        || pass(&admission, &demand, || inside.one()),
        || pass(&second, &theirs, || inside.one()),
    );
    nothing_is_left(&gate);
}

fn a_hold() {
    let (admission, gate, demand) = opened(1);
    let inside = Inside::of(1);
    beside(
        || pass(&admission, &demand, || inside.one()),
        || {
            // Shuts the door, looks, and opens it again.
            let held = admission.snapshot().held;
            assert!(held <= 1);
            pass(&admission, &demand, || inside.one());
        },
    );
    nothing_is_left(&gate);
    assert_eq!(admission.snapshot().held, 0);
}

/// A grant for one, by the door where it may.
fn kept(admission: &Admission, demand: &Demand) -> Grant {
    admission.try_admit(demand.clone()).expect("there is room for all")
}

/// Runs both at once, and answers what they answer: a permit that is kept is one that cannot be lost
/// unseen.
fn both<T: Send, U: Send>(
    one: impl FnOnce() -> T + Send,
    other: impl FnOnce() -> U + Send,
) -> (T, U) {
    thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        (one.join().expect("no panic"), other)
    })
}

fn a_count_with_a_hold() {
    let (admission, gate, demand) = opened(8);
    let keeps = || [(); 2].map(|()| kept(&admission, &demand));
    let (passed, held) = both(keeps, || {
        // Shuts the door; the next opens it again.
        let counted = admission.snapshot().held;
        assert!(counted <= 2);
        keeps()
    });
    assert_eq!(gate.status().active, 4, "a permit is lost");
    both(
        || drop(passed),
        || {
            assert!(admission.snapshot().held >= 2);
            drop(held);
        },
    );
    nothing_is_left(&gate);
    // Grants are counted among the owners: were they miscounted, it would take this for the end.
    drop(admission.clone());
    drop(kept(&admission, &demand));
}

fn a_count_with_a_stranger() {
    let (admission, gate, demand) = opened(8);
    let (passed, taken) = both(
        || kept(&admission, &demand),
        || gate.try_take(&Ask::new(0, Amount::permits(1), Instant::now())).expect("one may fit"),
    );
    assert!(taken.is_some());
    assert_eq!(gate.status().active, 2, "a permit is lost");
    drop(passed);
    assert_eq!(gate.status().active, 1);
}

fn a_count_with_a_second_admission() {
    let (admission, gate, demand) = opened(8);
    let second = Admission::builder().build().expect("nothing is asked of it");
    let theirs = Demand::new().permit(&gate);
    let (passed, taken) = both(|| kept(&admission, &demand), || kept(&second, &theirs));
    assert_eq!(gate.status().active, 2, "a permit is lost");
    drop((passed, taken));
    nothing_is_left(&gate);
}

/// The two sides of a lost wake-up, as two admissions play them: publish, then ask; give, then look.
fn an_ask_and_a_give() {
    for _ in 0..4 {
        let gate = CountingGate::new("gate", 1).expect("a gate");
        let (one, now) = (Amount::permits(1), Instant::now());
        gate.try_take(&Ask::new(1, one, now)).expect("it may fit").expect("it is free");
        let waiting = AtomicBool::new(false);
        let (fits, seen) = thread::scope(|scope| {
            let asks = scope.spawn(|| {
                waiting.store(true, Ordering::Relaxed);
                gate.fits(&Ask::new(2, one, now)).expect("it may fit")
            });
            let gives = scope.spawn(|| {
                gate.give(&Charge::new(1, one, now), now);
                waiting.load(Ordering::Relaxed)
            });
            (asks.join().expect("no panic"), gives.join().expect("no panic"))
        });
        assert!(fits || seen, "somebody waits for a permit that is there");
    }
}
