//! The locks and atomics the crate is built on, in one place.
//!
//! Everything here is `std`'s. It is named through this module so that the model checker's stand-ins
//! take its place under `cfg(admit_shuttle)` (`tests/shuttle`), and so that poisoning is decided
//! once: a panic under one of our locks is caught and accounted for where it happens, so the data
//! behind the lock is as the code left it and the lock goes on.

use std::future::Future;

use tokio::runtime::Handle as Runtime;

#[cfg(admit_shuttle)]
use shuttle::sync as locks;
#[cfg(not(admit_shuttle))]
use std::sync as locks;

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::OnceLock;
pub(crate) use std::sync::Weak;
/// A counter in a `static`: always `std`'s, for it outlives the model checker's runs, which on
/// several threads share it.
pub(crate) use std::sync::atomic::AtomicU64 as StaticU64;

pub(crate) use locks::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// A mutex that ignores poisoning.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(locks::Mutex<T>);

/// What [`Mutex::lock`] hands out.
pub(crate) type MutexGuard<'a, T> = locks::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(locks::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The lock if nobody has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// The value itself, through the only reference there is: no locking.
    #[inline]
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(not(admit_shuttle))]
pub(crate) use tokio::sync::Notify;

/// Tokio's, with a moment before each step of it at which others may come in between.
#[cfg(admit_shuttle)]
#[derive(Debug)]
pub(crate) struct Notify(tokio::sync::Notify);

#[cfg(admit_shuttle)]
impl Notify {
    pub(crate) fn new() -> Self {
        Self(tokio::sync::Notify::new())
    }

    pub(crate) fn notify_one(&self) {
        step();
        self.0.notify_one();
    }

    pub(crate) fn notify_waiters(&self) {
        step();
        self.0.notify_waiters();
    }

    pub(crate) fn notified(&self) -> tokio::sync::futures::Notified<'_> {
        step();
        self.0.notified()
    }
}

/// A moment at which another thread may come in between, where nothing here says so: reference
/// counts are `std`'s under the model checker too, and it does not see them change.
#[inline]
pub(crate) fn step() {
    #[cfg(admit_shuttle)]
    AtomicBool::new(false).load(Ordering::SeqCst);
}

/// A moment of waiting for another thread that is all but done.
#[inline]
pub(crate) fn spin() {
    #[cfg(not(admit_shuttle))]
    std::hint::spin_loop();
    #[cfg(admit_shuttle)]
    shuttle::thread::yield_now();
}

/// Runs a task on a Tokio runtime, or as a task of the model checker's, which must end with its run.
#[cfg(not(admit_shuttle))]
pub(crate) fn spawn(runtime: &Runtime, task: impl Future<Output = ()> + Send + 'static) {
    runtime.spawn(task);
}

#[cfg(admit_shuttle)]
pub(crate) fn spawn(_: &Runtime, task: impl Future<Output = ()> + Send + 'static) {
    let runtime = tokio_util::sync::CancellationToken::new();
    LAST_RUNTIME.with(|last| last.replace(runtime.clone()));
    // Dropped, the handle would let the task be forgotten at the end: one that never ends would not
    // be found.
    std::mem::forget(shuttle::future::spawn(async move {
        runtime.run_until_cancelled(task).await;
    }));
}

#[cfg(admit_shuttle)]
thread_local! {
    static LAST_RUNTIME: std::cell::RefCell<tokio_util::sync::CancellationToken> =
        std::cell::RefCell::default();
}

/// Drops the task that was spawned last, at some moment to come, as its runtime would that goes away.
#[cfg(admit_shuttle)]
#[doc(hidden)]
pub fn lose_runtime() {
    step();
    let last = LAST_RUNTIME.with(|last| last.borrow().clone());
    last.cancel();
}
