//! Leaving the line as one's turn comes.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use admit::{Admit, AdmitError};
use shuttle::future::block_on;
use shuttle::thread;
use tokio_util::sync::CancellationToken;

use crate::explore::{Ways, explore, explore_in_time};
use crate::place::{Place, drop_beside, is_over, join, park, start};

#[test]
fn who_is_dropped_beside_its_release_takes_nothing_along() {
    let ways = Ways::default();
    let went = ways.clone();
    explore(move || {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let leaves = park(admission.admit(place.demand()));
        let stays = place.wait_for(park(admission.admit(place.demand())));
        let threads = [drop_beside(leaves), drop_beside(held), stays];
        join(threads);
        let granted = admission.snapshot().totals.granted;
        went.went(granted == 3);
        is_over(&admission, granted);
        place.is_left();
    });
    // The grant landed before the drop, or went past it.
    ways.were_both_gone();
}

/// Hears that it is woken. Shuttle polls a future also when its thread was woken for a lock.
struct Ear {
    is_woken: AtomicBool,
    waker: Waker,
}

impl Wake for Ear {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        self.waker.wake_by_ref();
    }
}

/// Waits until it is woken, and is dropped without a look at why. Answers whether it was.
async fn drop_when_woken(mut admit: Admit) -> bool {
    let mut ear: Option<Arc<Ear>> = None;
    let was_woken = poll_fn(|cx| match &ear {
        Some(ear) if ear.is_woken.load(Ordering::SeqCst) => Poll::Ready(true),
        Some(_) => Poll::Pending,
        None => {
            let waker = cx.waker().clone();
            let new = Arc::new(Ear { is_woken: AtomicBool::new(false), waker });
            let waker = Waker::from(Arc::clone(ear.insert(new)));
            // It may have landed before anybody was there to be woken.
            Pin::new(&mut admit).poll(&mut Context::from_waker(&waker)).map(|_| false)
        }
    });
    was_woken.await
}

#[test]
fn a_grant_that_landed_and_is_never_seen_goes_to_the_next() {
    let ways = Ways::default();
    let went = ways.clone();
    explore(move || {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let leaves = park(admission.admit(place.demand()));
        let leaves = thread::spawn(move || block_on(drop_when_woken(leaves)));
        let stays = [place.visit(&admission), place.visit(&admission)];
        drop(held);
        join(stays);
        went.went(leaves.join().unwrap());
        is_over(&admission, 4);
        place.is_left();
    });
    ways.were_both_gone();
}

#[test]
fn a_cancelled_token_beside_a_grant_leaves_it_to_the_next() {
    let ways = Ways::default();
    let went = ways.clone();
    explore(move || {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let token = CancellationToken::new();
        let leaves = admission.admit(place.demand()).cancelled_by(token.clone());
        let leaves = place.try_for(park(leaves));
        let stays = place.visit(&admission);
        let cancels = thread::spawn(move || token.cancel());
        drop(held);
        join([stays, cancels]);
        let left = leaves.join().unwrap();
        assert!(matches!(left, Ok(()) | Err(AdmitError::Cancelled)), "{left:?}");
        went.went(left.is_ok());
        is_over(&admission, admission.snapshot().totals.granted);
        place.is_left();
    });
    ways.were_both_gone();
}

#[test]
fn a_token_cancelled_as_its_job_parks_is_heard() {
    explore(|| {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let token = CancellationToken::new();
        let leaves = admission.admit(place.demand()).cancelled_by(token.clone());
        let leaves = place.try_for(leaves);
        let cancels = thread::spawn(move || token.cancel());
        // The permit is held all the time.
        let left = leaves.join().unwrap();
        join([cancels]);
        assert!(matches!(left, Err(AdmitError::Cancelled)), "{left:?}");
        drop(held);
        is_over(&admission, 1);
        place.is_left();
    });
}

#[test]
fn a_time_out_beside_the_setting_of_the_timer_is_heard() {
    const LIMIT: Duration = Duration::from_millis(5);
    explore_in_time(|clock| {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let leaves = park(admission.admit(place.demand()).within(LIMIT));
        let leaves = place.try_for(leaves);
        let clock = clock.clone();
        let passes = thread::spawn(move || clock.advance(LIMIT));
        // The permit is held all the time.
        let left = leaves.join().unwrap();
        join([passes]);
        assert!(matches!(left, Err(AdmitError::TimedOut { .. })), "{left:?}");
        drop(held);
        is_over(&admission, 1);
        place.is_left();
    });
}

#[test]
fn a_time_out_beside_a_grant_leaves_it_to_the_next() {
    const LIMIT: Duration = Duration::from_millis(5);
    let ways = Ways::default();
    let went = ways.clone();
    explore_in_time(move |clock| {
        let (admission, place) = (start(), Place::new(1));
        let held = place.try_admit(&admission);
        let leaves = admission.admit(place.demand()).within(LIMIT);
        let leaves = place.try_for(park(leaves));
        let stays = place.visit(&admission);
        let clock = clock.clone();
        let passes = thread::spawn(move || clock.advance(LIMIT));
        drop(held);
        join([stays, passes]);
        let left = leaves.join().unwrap();
        assert!(matches!(left, Ok(()) | Err(AdmitError::TimedOut { .. })), "{left:?}");
        went.went(left.is_ok());
        is_over(&admission, 2 + u64::from(left.is_ok()));
        place.is_left();
    });
    ways.were_both_gone();
}

#[test]
fn a_head_that_leaves_lets_those_go_whom_it_kept() {
    explore(|| {
        let (admission, place, other) = (start(), Place::new(1), Place::new(1));
        let held = place.try_admit(&admission);
        let head = park(admission.admit(place.demand().permit(&other.gate)));
        let next = place.wait_for(park(admission.admit(place.demand())));
        // Its permit is free all the time, and set aside for the head.
        let kept = other.wait_for(park(admission.admit(other.demand())));
        let leaves = drop_beside(head);
        join([leaves, kept]);
        place.work(held);
        join([next]);
        is_over(&admission, 3);
        place.is_left();
        other.is_left();
    });
}
