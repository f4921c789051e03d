//! Windows: what any span of time may hold. Their circuit is in [`circuit`], what an upstream's
//! headers say in [`headers`].

mod circuit;
mod headers;

use std::sync::Arc;
use std::time::Duration;

use admit::testing::Draw;
use admit::{
    Account, Admission, AdmitError, Amount, Demand, ElasticWindow, ElasticWindowBuilder, EventKind,
    Grant, UpstreamFailure,
};
use tokio::time::Instant;
use tokio_test::task::spawn;

use crate::support::*;

/// A window under a name of its own.
pub(crate) fn window_builder(max: u32, per: Duration) -> ElasticWindowBuilder {
    ElasticWindow::builder(format!("window {} of {max}", number())).max(max).per(per)
}

fn window(max: u32, per: Duration) -> Arc<ElasticWindow> {
    window_builder(max, per).build().expect("positive numbers")
}

fn requests(window: &Arc<ElasticWindow>, n: u32) -> Demand {
    Demand::new().permits(window, n)
}

pub(crate) fn too_many() -> UpstreamFailure {
    UpstreamFailure::status(429, "upstream", "slow down")
}

/// INV2: what a window took and did not get back within its length, which no span may have more of
/// than the maximum.
struct Spans {
    max: u32,
    base: Duration,
    taken: Vec<(Instant, u32)>,
}

impl Spans {
    fn of(max: u32, base: Duration) -> Self {
        Self { max, base, taken: Vec::new() }
    }

    fn took(&mut self, at: Instant, n: u32) {
        self.taken.push((at, n));
    }

    /// A rollback: later than the window is long, it undoes nothing.
    fn gave_back(&mut self, at: Instant, n: u32) {
        if Instant::now() < at + self.base {
            let place = self.taken.iter().position(|&taken| taken == (at, n));
            self.taken.remove(place.expect("it was taken"));
        }
    }

    #[track_caller]
    fn check(&self) {
        for &(start, _) in &self.taken {
            let within = |at: Instant| start <= at && at < start + self.base;
            let held = self.taken.iter().filter(|(at, _)| within(*at)).map(|(_, n)| n).sum::<u32>();
            assert!(
                held <= self.max,
                "INV2: {held} of {} from {start:?}: {:?}",
                self.max,
                self.taken
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a3_a_short_window_that_refuses_takes_nothing_of_the_long_one() {
    let admission = started();
    let observer = Observer::of(&admission);
    let (short, long) = (window(10, secs(60)), window(30, secs(30 * 60)));
    for demand in [
        Demand::new().permit(&short).permit(&long),
        // Thirty minutes later, named the other way round.
        Demand::new().permit(&long).permit(&short),
    ] {
        let mut grants = Vec::new();
        for _ in 0..40 {
            match admission.try_admit(demand.clone()) {
                Ok(grant) => grants.push(grant),
                refused => assert_short_of(&would_wait(refused), &[&*short]),
            }
        }
        assert_eq!(grants.len(), 10);
        assert_eq!(long.in_use(Instant::now()), 10);
        assert_eq!((short.status().available, long.status().available), (0, 20));
        drop(grants);
        pass_time(secs(30 * 60)).await;
    }
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn a3_of_two_windows_the_longer_one_decides_once_it_is_full() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let (short, long) = (window(10, secs(60)), window(30, secs(30 * 60)));
    let both = Demand::new().permit(&short).permit(&long);
    let start = Instant::now();
    let mut line: Vec<_> = (0..35)
        .map(|_| {
            tokio::spawn({
                let admit = admission.admit(both.clone());
                async move { admit.await.map(|grant| (grant, start.elapsed())) }
            })
        })
        .collect();
    let mut went = Vec::new();
    for job in &mut line {
        went.push(job.await.unwrap().unwrap().1);
    }
    for (place, at) in went.iter().enumerate() {
        let right = [0, 60, 120, 1_800][place / 10];
        assert_eq!(*at, secs(right), "the {place}th");
    }
    observer.look();
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e5_the_sixth_goes_when_the_first_five_leave_and_not_with_the_second_on_the_clock() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let window = window(5, secs(1));
    let start = Instant::now();
    pass_time(millis(999)).await;
    let five: Vec<_> = (0..5).map(|_| admission.try_admit(requests(&window, 1)).unwrap()).collect();
    pass_time(millis(2)).await;
    let mut sixth = parked(&admission, requests(&window, 1));
    pass_time(millis(997)).await;
    assert!(!sixth.is_woken());
    observer.nobody_could_go(&[requests(&window, 1)]);
    pass_time(millis(1)).await;
    assert_eq!(start.elapsed(), millis(1_999));
    let sixth = granted(&mut sixth);
    assert_eq!(sixth.wall_wait(), millis(998));
    drop((five, sixth));
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e5_a_line_on_a_window_goes_as_fast_as_slots_leave() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let window = window(5, secs(1));
    let mut spans = Spans::of(5, secs(1));
    // Slots of 1, 2 and 2 taken at 0, 300 and 600 ms.
    let mut grants = Vec::new();
    for (at, n) in [(0, 1), (300, 2), (300, 2)] {
        pass_time(millis(at)).await;
        grants.push(admission.try_admit(requests(&window, n)).unwrap());
        spans.took(Instant::now(), n);
    }
    let arrived = Instant::now();
    let wants = [3, 1, 1, 5];
    let mut line: Vec<_> = wants.map(|n| parked(&admission, requests(&window, n))).into();
    pass_time(millis(399)).await;
    observer.nobody_could_go(&wants.map(|n| requests(&window, n)));
    pass_time(secs(3)).await;
    for ((waiter, n), right) in line.iter_mut().zip(wants).zip([700, 1_000, 1_000, 2_000]) {
        let grant = granted(waiter);
        assert_eq!(grant.wall_wait(), millis(right), "{n}");
        spans.took(arrived + grant.wall_wait(), n);
    }
    spans.check();
    drop(grants);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e9_a_rollback_takes_back_its_own_slot_and_not_the_newest() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let window = window(1, secs(1));
    let start = Instant::now();
    let first = admission.try_admit(requests(&window, 1)).unwrap();
    pass_time(millis(1_400)).await;
    let second = admission.try_admit(requests(&window, 1)).unwrap();
    let mut next = parked(&admission, requests(&window, 1));
    pass_time(millis(100)).await;
    first.rollback();
    settle().await;
    assert!(!next.is_woken());
    observer.nobody_could_go(&[requests(&window, 1)]);
    pass_time(millis(899)).await;
    assert!(!next.is_woken());
    pass_time(millis(1)).await;
    assert_eq!(start.elapsed(), millis(2_400));
    drop((granted(&mut next), second));
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e9_a_rollback_of_a_slot_that_is_still_there_lets_the_next_go() {
    let admission = started();
    let observer = Observer::of(&admission);
    let window = window(3, secs(1));
    let first = admission.try_admit(requests(&window, 1)).unwrap();
    pass_time(millis(500)).await;
    let second = admission.try_admit(requests(&window, 2)).unwrap();
    let mut next = parked(&admission, requests(&window, 2));
    pass_time(millis(499)).await;
    second.rollback();
    settle().await;
    drop(granted(&mut next));
    // What the first took is there for another millisecond.
    assert_eq!(window.status().available, 0);
    pass_time(millis(1)).await;
    assert_eq!(window.status().available, 1);
    drop(first);
    observer.all_gone();
}

async fn pressed_at_1200(read_before: bool) {
    let admission = started();
    let observer = Observer::of(&admission);
    let window = window(5, secs(1));
    let mut spans = Spans::of(5, secs(1));
    for _ in 0..5 {
        drop(admission.try_admit(requests(&window, 1)).unwrap());
        spans.took(Instant::now(), 1);
    }
    pass_time(millis(1_100)).await;
    if read_before {
        assert_eq!(window.status().available, 5);
    }
    pass_time(millis(100)).await;
    window.record_advisory_pressure();
    assert_eq!(window.status().effective_window, secs(2));
    for _ in 0..5 {
        drop(admission.try_admit(requests(&window, 1)).unwrap());
        spans.took(Instant::now(), 1);
    }
    assert_short_of(&would_wait(admission.try_admit(requests(&window, 1))), &[&*window]);
    // Under the new length they leave together, two seconds on.
    let grant = admission.admit(requests(&window, 5)).await.unwrap();
    assert_eq!(grant.wall_wait(), secs(2));
    spans.took(Instant::now(), 5);
    spans.check();
    drop(grant);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn e10_a_stretch_revives_nothing_that_had_left() {
    pressed_at_1200(false).await;
}

#[tokio::test(start_paused = true)]
async fn e10_a_reading_before_the_stretch_changes_nothing() {
    pressed_at_1200(true).await;
}

#[tokio::test(start_paused = true)]
async fn e10_whoever_waits_while_a_window_is_stretched_waits_for_the_new_length() {
    let admission = started();
    let observer = Observer::of(&admission);
    let window = window(5, secs(1));
    drop(admission.try_admit(requests(&window, 5)).unwrap());
    let mut waiter = parked(&admission, requests(&window, 1));
    pass_time(millis(900)).await;
    window.record_advisory_pressure();
    pass_time(millis(1_099)).await;
    assert!(!waiter.is_woken());
    // Three successes take 0.2 off, and the 1.8 s have passed by then.
    window.record_success();
    window.record_success();
    settle().await;
    assert!(!waiter.is_woken());
    window.record_success();
    settle().await;
    assert_eq!(granted(&mut waiter).wall_wait(), millis(1_999));
    observer.all_gone();
}

/// A grant of so many slots, and when they were taken.
struct Taken {
    grant: Grant,
    at: Instant,
    n: u32,
}

#[tokio::test(start_paused = true)]
async fn inv2_no_span_holds_more_than_the_maximum_whatever_is_rolled_back() {
    for seed in 0..40 {
        let mut draw = Draw::new(seed);
        let admission = started();
        let mut observer = Observer::of(&admission);
        let (max, base) = (draw.between(1..=6) as u32, millis(500));
        let window = window_builder(max, base).max_throttle(2.0).failures_to_open(1_000).build();
        let window = window.unwrap();
        let mut spans = Spans::of(max, base);
        let mut held: Vec<Taken> = Vec::new();
        let mut line = Vec::new();
        for _ in 0..120 {
            let n = draw.between(1..=u64::from(max)) as u32;
            match draw.between(0..=9) {
                0..=3 => {
                    let mut admit = spawn(admission.admit(requests(&window, n)));
                    if let std::task::Poll::Ready(outcome) = admit.poll() {
                        held.push(Taken { grant: outcome.unwrap(), at: Instant::now(), n });
                        spans.took(Instant::now(), n);
                    } else {
                        line.push((admit, Instant::now(), n));
                    }
                }
                4 | 5 if !held.is_empty() => {
                    let index = draw.between(0..=held.len() as u64 - 1) as usize;
                    let Taken { grant, at, n } = held.swap_remove(index);
                    if draw.one_in(2) {
                        grant.rollback();
                        spans.gave_back(at, n);
                    }
                }
                6 => window.record_429(),
                7 => (0..4).for_each(|_| window.record_success()),
                _ => pass_time(millis(50 * draw.between(0..=8))).await,
            }
            settle().await;
            observer.at_rest();
            line.retain_mut(|(admit, arrived, n)| {
                if !admit.is_woken() {
                    return true;
                }
                let grant = granted(admit);
                let at = *arrived + grant.wall_wait();
                spans.took(at, *n);
                held.push(Taken { grant, at, n: *n });
                false
            });
            spans.check();
        }
        pass_time(secs(200)).await;
        for (mut admit, ..) in line {
            drop(granted(&mut admit));
        }
        held.clear();
        observer.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn f4_nothing_of_a_window_is_granted_unless_it_is_blocked() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let window = window_builder(1, secs(1)).max_throttle(0.0).build().unwrap();
    let nothing = Demand::new().add(&window, Amount::NONE);
    drop(admission.try_admit(requests(&window, 1)).unwrap());
    // Full, and still nothing of it is there for everyone.
    drop(admission.try_admit(nothing.clone()).unwrap());
    assert_eq!(window.in_use(Instant::now()), 1);

    (0..3).for_each(|_| window.record_429());
    for demand in [nothing.clone(), nothing.clone().permit(&gate(1))] {
        let outcome = spawn(admission.admit(demand)).poll();
        let std::task::Poll::Ready(Err(error)) = outcome else { panic!("{outcome:?}") };
        assert!(matches!(error, AdmitError::Refused { .. }), "{error}");
        assert!(error.to_string().contains(&**window.link().name()), "{error}");
    }
    assert_eq!(observer.count(&*window, EventKind::Rejected), 2);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn f5_a_window_of_nothing_is_no_window() {
    let admission = started();
    let observer = Observer::of(&admission);
    let field = |builder: ElasticWindowBuilder| builder.build().unwrap_err().field;
    assert_eq!(field(window_builder(0, secs(1))), "max");
    assert_eq!(field(window_builder(1, Duration::ZERO)), "per");
    let error = window_builder(0, secs(1)).build().unwrap_err();
    assert_eq!((&*error.value, error.to_string().contains("max")), ("0", true));
    let window = window(1, Duration::from_nanos(1));
    drop(admission.try_admit(requests(&window, 1)).unwrap());
    assert!(matches!(would_refuse(&admission, requests(&window, 2)), AdmitError::Refused { .. }));
    observer.all_gone();
}

/// The reason for which a demand is refused at once.
pub(crate) fn would_refuse(admission: &Admission, demand: Demand) -> AdmitError {
    match admission.try_admit(demand) {
        Err(admit::TryAdmitError::Admit(error)) => error,
        other => panic!("it should be refused: {other:?}"),
    }
}
