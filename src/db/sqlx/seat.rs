//! Where a job's connection is kept, and who has it.

use std::ops::{Deref, DerefMut};

use sqlx::Database;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

use super::lease::Lease;
use crate::sync::{Arc, AtomicBool, OnceLock, Ordering};

/// A job's connection: one guard at a time has it, until somebody takes it out for good.
pub(super) struct Seat<DB: Database> {
    lease: Arc<Mutex<Option<Lease<DB>>>>,
    given_up: AtomicBool,
    /// There from when the connection given up is being closed; cancelled when it is gone.
    discarded: OnceLock<CancellationToken>,
}

/// Somebody has the connection already.
pub(super) struct Taken;

impl<DB: Database> Seat<DB> {
    pub(super) fn new(lease: Lease<DB>) -> Arc<Self> {
        let lease = Arc::new(Mutex::new(Some(lease)));
        Arc::new(Self { lease, given_up: AtomicBool::new(false), discarded: OnceLock::new() })
    }

    fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }

    /// The connection, as soon as nobody has it, in order of arrival; `None` after the end.
    pub(super) async fn turn(self: &Arc<Self>) -> Option<Turn<DB>> {
        if self.is_given_up() {
            return None;
        }
        // A lock that is handed to a waiter who is dropped before he sees it passes him by: nobody
        // else could take it meanwhile, so he must look, too.
        let _swept = Swept(self);
        let lease = Arc::clone(&self.lease).lock_owned().await;
        Turn::new(lease, self)
    }

    /// The connection if nobody has it; `None` after the end.
    pub(super) fn try_turn(self: &Arc<Self>) -> Result<Option<Turn<DB>>, Taken> {
        if self.is_given_up() {
            return Ok(None);
        }
        let lease = Arc::clone(&self.lease).try_lock_owned().map_err(|_| Taken)?;
        Ok(Turn::new(lease, self))
    }

    /// Closes the connection: now, or when whoever has it lets go.
    pub(super) fn give_up(&self) {
        // First the flag, then the lock; a guard does it the other way round. So one of the two sees
        // the other, and the connection is not left here.
        self.given_up.store(true, Ordering::SeqCst);
        self.sweep();
    }

    /// Waits until a connection that was given up is gone from its pool. One that somebody still has
    /// is not waited for.
    pub(super) async fn discarded(&self) {
        if let Some(discarded) = self.discarded.get() {
            discarded.cancelled().await;
        }
    }

    fn sweep(&self) {
        if !self.is_given_up() {
            return;
        }
        let Ok(mut place) = self.lease.try_lock() else { return };
        let lease = place.take();
        drop(place);
        if let Some(lease) = lease {
            self.discard_later(lease);
        }
    }

    /// There is one connection, so one to be discarded.
    fn discard_later(&self, lease: Lease<DB>) {
        lease.discard_later(self.discarded.get_or_init(CancellationToken::new).clone());
    }
}

/// Looks for a connection given up when it is dropped.
struct Swept<'a, DB: Database>(&'a Seat<DB>);

impl<DB: Database> Drop for Swept<'_, DB> {
    fn drop(&mut self) {
        self.0.sweep();
    }
}

/// The connection while somebody has it.
pub(super) struct Turn<DB: Database> {
    /// `Some`, of `Some`, until it is dropped or taken out.
    lease: Option<OwnedMutexGuard<Option<Lease<DB>>>>,
    seat: Arc<Seat<DB>>,
}

impl<DB: Database> Turn<DB> {
    fn new(lease: OwnedMutexGuard<Option<Lease<DB>>>, seat: &Arc<Seat<DB>>) -> Option<Self> {
        let is_there = lease.is_some();
        let turn = Self { lease: Some(lease), seat: Arc::clone(seat) };
        // Dropped here, it lets the lock go before it looks whether there is something to sweep.
        (is_there && !seat.is_given_up()).then_some(turn)
    }

    /// Takes the connection out for good: nobody gets it after this.
    pub(super) fn take(mut self) -> Option<Lease<DB>> {
        self.lease.as_mut().and_then(|lease| lease.take())
    }
}

impl<DB: Database> Deref for Turn<DB> {
    type Target = Lease<DB>;

    fn deref(&self) -> &Lease<DB> {
        self.lease.as_ref().and_then(|lease| lease.as_ref()).expect("a turn has its connection")
    }
}

impl<DB: Database> DerefMut for Turn<DB> {
    fn deref_mut(&mut self) -> &mut Lease<DB> {
        self.lease.as_mut().and_then(|lease| lease.as_mut()).expect("a turn has its connection")
    }
}

impl<DB: Database> Drop for Turn<DB> {
    fn drop(&mut self) {
        drop(self.lease.take());
        self.seat.sweep();
    }
}
