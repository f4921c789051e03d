//! A gate with a count of our own beside it, and what jobs do there.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use admit::{Account, Admission, Admit, AdmitError, CountingGate, Demand, Grant};
use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::thread::{self, JoinHandle};

pub(crate) fn start() -> Admission {
    Admission::builder().start().expect("the clock's runtime is there")
}

/// A gate, and who is behind it.
pub(crate) struct Place {
    pub(crate) gate: Arc<CountingGate>,
    inside: AtomicU32,
}

impl Place {
    pub(crate) fn new(capacity: u32) -> Arc<Self> {
        let gate = CountingGate::new("gate", capacity).expect("a name and a capacity");
        Arc::new(Self { gate, inside: AtomicU32::new(0) })
    }

    pub(crate) fn demand(&self) -> Demand {
        Demand::new().permit(&self.gate)
    }

    pub(crate) fn try_admit(&self, admission: &Admission) -> Grant {
        admission.try_admit(self.demand()).expect("nobody is there")
    }

    /// Counts itself in. Every step until [`leave`](Self::leave) is seen by others.
    pub(crate) fn enter(&self) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(inside <= self.gate.status().max_concurrent, "a permit was granted twice");
    }

    pub(crate) fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    /// Does what a grant is for, and gives it back.
    pub(crate) fn work(&self, grant: Grant) {
        self.enter();
        self.leave();
        drop(grant);
    }

    /// A thread that waits for its turn and works.
    pub(crate) fn visit(self: &Arc<Self>, admission: &Admission) -> JoinHandle<()> {
        self.wait_for(admission.admit(self.demand()))
    }

    /// The same for a future there is already.
    pub(crate) fn wait_for(self: &Arc<Self>, admit: Admit) -> JoinHandle<()> {
        let place = Arc::clone(self);
        thread::spawn(move || place.work(block_on(admit).expect("everybody's turn comes")))
    }

    /// A thread that waits for its turn, works if it comes, and answers how it ended.
    pub(crate) fn try_for(self: &Arc<Self>, admit: Admit) -> JoinHandle<Result<(), AdmitError>> {
        let place = Arc::clone(self);
        thread::spawn(move || block_on(admit).map(|grant| place.work(grant)))
    }

    /// Nobody is there and nobody waits.
    pub(crate) fn is_left(&self) {
        let status = self.gate.status();
        assert_eq!((status.active, status.available_permits), (0, status.max_concurrent));
        assert_eq!(self.gate.link().waiting(), 0);
        assert_eq!(self.inside.load(Ordering::SeqCst), 0);
    }
}

/// A thread that drops what it is given.
pub(crate) fn drop_beside<T: Send + 'static>(it: T) -> JoinHandle<()> {
    thread::spawn(move || drop(it))
}

pub(crate) fn join<T>(threads: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().expect("it did not panic")).collect()
}

/// A future that stands in the line. Whom its grant wakes comes with the next poll.
pub(crate) fn park(mut admit: Admit) -> Admit {
    let polled = Pin::new(&mut admit).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Pending), "somebody is in its way");
    admit
}

/// The line is empty, nothing is held, and so many were granted in all.
pub(crate) fn is_over(admission: &Admission, granted: u64) {
    admission.check();
    let snapshot = admission.snapshot();
    assert_eq!((snapshot.waiting, snapshot.held, snapshot.unseen.count), (0, 0, 0));
    assert_eq!((admission.queue_len(), snapshot.totals.granted), (0, granted));
}
