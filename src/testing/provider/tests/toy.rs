//! The provider and its pool.

use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use crate::db::{DbProvider, DbVerb, ProviderError};
use crate::error::BoxError;
use crate::limits::DatabaseGate;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use crate::testing::ProviderFixture;

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    OneAccountForAll,
    ConnectsLate,
    ReturnsLate,
    HandsOutTwice,
    WritesThrough,
    CommitsNothing,
    ReconnectsAtBegin,
    CommitsWithoutBegin,
    WritesReadOnly,
    StaysReadOnly,
    TakesForeign,
    KeepsRolledBack,
    CommitsAtClose,
    KeepsDropped,
    WorksAborted,
    FailsToCloseAborted,
    ForgetsAbortInUse,
    NeverCompletes,
    LosesHalfWay,
    LosesLate,
    ClosesInUse,
    StaysReadOnlyAborted,
    StaysReadOnlyOpen,
    WritesReadOnlyLater,
    KeepsReadOnlyAborted,
    ChainsCommits,
    ReconnectsAtRollback,
    KeepsHalfAcquired,
    LosesOnceDropped,
    WorksClosed,
    BeginsTwice,
    FailsToRollBackAgain,
    KeepsIdleAborted,
    /// No fault: it waits for an answer as long as it cares to.
    WaitsInVain,
    IgnoresBroken,
    HangsBroken,
    TakesTwo,
}

/// The database and its pool.
#[derive(Default)]
struct Store {
    rows: Vec<u64>,
    idle: Vec<Connection>,
    made: usize,
    out: isize,
}

#[derive(Default)]
struct Connection {
    number: usize,
    staged: Option<Vec<u64>>,
    read_only: bool,
    is_broken: bool,
}

/// The fixture: a pool, and the fault of every provider over it.
pub(super) struct Toys {
    store: Arc<Mutex<Store>>,
    fault: Option<Fault>,
    first: Mutex<Option<Arc<DatabaseGate>>>,
}

impl Toys {
    pub(super) fn new(fault: Option<Fault>) -> Self {
        Self { store: Arc::default(), fault, first: Mutex::default() }
    }
}

pub(super) struct Toy {
    name: Arc<str>,
    account: Arc<DatabaseGate>,
    store: Arc<Mutex<Store>>,
    fault: Option<Fault>,
}

/// A connection while it is out; back in the pool, or gone, when it is dropped.
pub(super) struct Lease {
    connection: Option<Connection>,
    store: Arc<Mutex<Store>>,
    fault: Option<Fault>,
    /// How many it counts for, beside the one it is.
    extra: isize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.fault == Some(Fault::KeepsDropped) {
            return;
        }
        let mut store = self.store.lock();
        store.out -= 1 + self.extra;
        if let Some(connection) = self.connection.take() {
            store.idle.push(connection);
        }
    }
}

pub(super) struct ToyHandle {
    of: Arc<DatabaseGate>,
    number: usize,
    seat: Arc<tokio::sync::Mutex<Option<Lease>>>,
    is_aborted: Arc<AtomicBool>,
}

impl Drop for ToyHandle {
    fn drop(&mut self) {
        self.is_aborted.store(true, Ordering::SeqCst);
        if let Ok(mut seat) = self.seat.try_lock()
            && let Some(lease) = seat.as_mut()
        {
            // Gone, and what was staged with it.
            lease.connection = None;
            *seat = None;
        }
    }
}

pub(super) struct ToySession {
    lease: Option<OwnedMutexGuard<Option<Lease>>>,
    seat: Arc<tokio::sync::Mutex<Option<Lease>>>,
    is_aborted: Arc<AtomicBool>,
    fault: Option<Fault>,
}

impl ToySession {
    fn connection(&mut self) -> Option<&mut Connection> {
        self.lease.as_mut()?.as_mut()?.connection.as_mut()
    }
}

impl Drop for ToySession {
    fn drop(&mut self) {
        if self.fault == Some(Fault::LosesOnceDropped)
            && let Some(connection) = self.connection()
            && let Some(staged) = &mut connection.staged
        {
            staged.clear();
        }
        drop(self.lease.take());
        if self.is_aborted.load(Ordering::SeqCst)
            && self.fault != Some(Fault::ForgetsAbortInUse)
            && let Ok(mut seat) = self.seat.try_lock()
        {
            if let Some(lease) = seat.as_mut() {
                lease.connection = None;
            }
            *seat = None;
        }
    }
}

impl Toy {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn check(&self, handle: &ToyHandle) -> Result<(), ProviderError> {
        if Arc::ptr_eq(&handle.of, &self.account) || self.has(Fault::TakesForeign) {
            return Ok(());
        }
        Err(ProviderError::Foreign { provider: Arc::clone(&self.name) })
    }

    /// Read-only for one transaction, as a `SET TRANSACTION READ ONLY` is.
    fn lift(&self, connection: &mut Connection) {
        connection.read_only &= !self.has(Fault::WritesReadOnlyLater);
    }

    fn closed(&self) -> ProviderError {
        ProviderError::Closed { provider: Arc::clone(&self.name) }
    }

    fn lease(&self, read_only: bool) -> Lease {
        let mut store = self.store.lock();
        let made = store.made;
        let mut connection =
            store.idle.pop().unwrap_or_else(|| Connection { number: made, ..Default::default() });
        if connection.number == made {
            store.made += 1;
        }
        let extra = match self.fault {
            Some(Fault::TakesTwo) => 1,
            Some(Fault::ConnectsLate) => -1,
            _ => 0,
        };
        store.out += 1 + extra;
        connection.read_only |= read_only;
        drop(store);
        let store = Arc::clone(&self.store);
        Lease { connection: Some(connection), store, fault: self.fault, extra }
    }

    /// A step on the connection that takes two turns.
    async fn step(
        &self,
        handle: &ToyHandle,
        verb: DbVerb,
        step: impl FnOnce(&mut Connection) -> Result<(), &'static str> + Send,
    ) -> Result<(), ProviderError> {
        self.check(handle)?;
        let mut seat = handle.seat.lock().await;
        if handle.is_aborted.load(Ordering::SeqCst) && !self.has(Fault::WorksAborted) {
            return Err(self.closed());
        }
        let Some(connection) = seat.as_mut().and_then(|lease| lease.connection.as_mut()) else {
            return Err(self.closed());
        };
        if connection.is_broken && !self.has(Fault::IgnoresBroken) {
            if self.has(Fault::HangsBroken) {
                std::future::pending().await
            }
            let provider = Arc::clone(&self.name);
            if self.has(Fault::WaitsInVain) {
                let limit = self.acquire_timeout();
                return Err(ProviderError::TimedOut { provider, verb, limit });
            }
            return Err(ProviderError::failed(provider, verb, "broken"));
        }
        let state = step(connection).err();
        // Taken from the handle meanwhile: dropped here, it is nowhere.
        if self.has(Fault::LosesLate) {
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        }
        let loses = self.has(Fault::LosesHalfWay) || self.has(Fault::LosesLate);
        let taken = if loses { seat.take() } else { None };
        let kept = taken.map(std::mem::ManuallyDrop::new);
        tokio::task::yield_now().await;
        if let Some(lease) = kept {
            *seat = Some(std::mem::ManuallyDrop::into_inner(lease));
        }
        drop(seat);
        match state {
            None => Ok(()),
            Some(state) => {
                let provider = Arc::clone(&self.name);
                Err(ProviderError::OutOfOrder { provider, verb, state })
            }
        }
    }
}

impl DbProvider for Toy {
    type Handle = ToyHandle;
    type Session = ToySession;

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn account(&self) -> &Arc<DatabaseGate> {
        &self.account
    }

    fn acquire_timeout(&self) -> Duration {
        Duration::from_millis(100)
    }

    async fn acquire(&self, read_only: bool) -> Result<ToyHandle, ProviderError> {
        let read_only = read_only && !self.has(Fault::WritesReadOnly);
        if self.has(Fault::KeepsHalfAcquired) {
            let half = std::mem::ManuallyDrop::new(self.lease(read_only));
            tokio::task::yield_now().await;
            drop(std::mem::ManuallyDrop::into_inner(half));
        }
        tokio::task::yield_now().await;
        let lease = self.lease(read_only);
        Ok(ToyHandle {
            number: lease.connection.as_ref().map_or(0, |connection| connection.number),
            of: Arc::clone(&self.account),
            seat: Arc::new(tokio::sync::Mutex::new(Some(lease))),
            is_aborted: Arc::default(),
        })
    }

    fn session(&self, handle: &ToyHandle) -> Result<ToySession, ProviderError> {
        self.check(handle)?;
        if handle.is_aborted.load(Ordering::SeqCst) && !self.has(Fault::WorksAborted) {
            return Err(self.closed());
        }
        let (seat, fault) = (Arc::clone(&handle.seat), self.fault);
        let is_aborted = Arc::clone(&handle.is_aborted);
        match Arc::clone(&seat).try_lock_owned() {
            Ok(lease) if lease.is_some() => {
                Ok(ToySession { lease: Some(lease), seat, is_aborted, fault })
            }
            Ok(_) => Err(self.closed()),
            Err(_) if self.has(Fault::HandsOutTwice) => {
                Ok(ToySession { lease: None, seat, is_aborted, fault })
            }
            Err(_) => Err(ProviderError::InUse { provider: Arc::clone(&self.name) }),
        }
    }

    async fn begin(&self, handle: &ToyHandle) -> Result<(), ProviderError> {
        let reconnects = self.has(Fault::ReconnectsAtBegin);
        self.step(handle, DbVerb::Begin, |connection| {
            if reconnects {
                connection.number += 1_000;
            }
            match connection.staged {
                Some(_) if self.has(Fault::BeginsTwice) => Ok(()),
                Some(_) => Err("a transaction open"),
                None => {
                    connection.staged = Some(Vec::new());
                    Ok(())
                }
            }
        })
        .await
    }

    async fn commit(&self, handle: &ToyHandle) -> Result<(), ProviderError> {
        let store = &self.store;
        self.step(handle, DbVerb::Commit, |connection| {
            self.lift(connection);
            match connection.staged.take() {
                Some(_) if self.has(Fault::CommitsNothing) => Ok(()),
                Some(staged) => {
                    store.lock().rows.extend(staged);
                    connection.staged = self.has(Fault::ChainsCommits).then(Vec::new);
                    Ok(())
                }
                None if self.has(Fault::CommitsWithoutBegin) => Ok(()),
                None => Err("no transaction open"),
            }
        })
        .await
    }

    async fn await_completion(&self, handle: &ToyHandle) -> Result<(), ProviderError> {
        if self.has(Fault::NeverCompletes) {
            std::future::pending().await
        }
        self.check(handle)
    }

    async fn rollback(&self, handle: &ToyHandle) -> Result<(), ProviderError> {
        let store = &self.store;
        let rolled_back = self
            .step(handle, DbVerb::Rollback, |connection| {
                self.lift(connection);
                let staged = connection.staged.take();
                if staged.is_none() && self.has(Fault::FailsToRollBackAgain) {
                    return Err("no transaction open");
                }
                if self.has(Fault::ReconnectsAtRollback) {
                    connection.number += 1_000;
                }
                if self.has(Fault::KeepsRolledBack) {
                    store.lock().rows.extend(staged.into_iter().flatten());
                }
                Ok(())
            })
            .await;
        match rolled_back {
            Err(ProviderError::Closed { .. }) => Ok(()),
            other => other,
        }
    }

    async fn close(&self, handle: &ToyHandle) -> Result<(), ProviderError> {
        self.check(handle)?;
        if handle.is_aborted.load(Ordering::SeqCst) {
            let fails = self.has(Fault::FailsToCloseAborted);
            return if fails { Err(self.closed()) } else { Ok(()) };
        }
        if self.has(Fault::ClosesInUse) && handle.seat.try_lock().is_err() {
            let connection = Connection { number: handle.number, ..Default::default() };
            self.store.lock().idle.push(connection);
            return Ok(());
        }
        if self.has(Fault::WorksClosed) {
            return Ok(());
        }
        let Some(mut lease) = handle.seat.lock().await.take() else { return Ok(()) };
        if let Some(connection) = lease.connection.as_mut() {
            let is_open = connection.staged.is_some();
            let staged = connection.staged.take().into_iter().flatten();
            if self.has(Fault::CommitsAtClose) {
                self.store.lock().rows.extend(staged);
            }
            connection.read_only &=
                self.has(Fault::StaysReadOnly) || (is_open && self.has(Fault::StaysReadOnlyOpen));
        }
        if lease.connection.as_ref().is_some_and(|connection| connection.is_broken) {
            lease.connection = None;
        }
        if self.has(Fault::ReturnsLate) {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                drop(lease);
            });
        }
        Ok(())
    }

    fn abort(&self, handle: &ToyHandle) {
        if self.check(handle).is_err() || self.has(Fault::WorksAborted) {
            return;
        }
        handle.is_aborted.store(true, Ordering::SeqCst);
        if let Ok(mut seat) = handle.seat.try_lock() {
            let keeps =
                seat.as_ref().and_then(|lease| lease.connection.as_ref()).is_some_and(|kept| {
                    (kept.read_only && self.has(Fault::KeepsReadOnlyAborted))
                        || (kept.staged.is_none() && self.has(Fault::KeepsIdleAborted))
                });
            if keeps {
                std::mem::forget(seat.take());
                return;
            }
            if let Some(lease) = seat.as_mut() {
                if self.has(Fault::StaysReadOnlyAborted) {
                    lease.connection.as_mut().expect("not ended").staged = None;
                } else {
                    lease.connection = None;
                }
            }
            *seat = None;
        }
    }
}

impl ProviderFixture for Toys {
    type Provider = Toy;

    fn provider(&self, name: &str, bound: u32) -> Arc<Toy> {
        let mut account = DatabaseGate::new(name, bound).unwrap();
        if self.fault == Some(Fault::OneAccountForAll) {
            account = Arc::clone(self.first.lock().get_or_insert(account));
        }
        let store = Arc::clone(&self.store);
        Arc::new(Toy { name: name.into(), account, store, fault: self.fault })
    }

    fn out(&self) -> usize {
        self.store.lock().out as usize
    }

    async fn open_transactions(&self) -> Option<usize> {
        None
    }

    async fn connection(&self, session: &mut ToySession) -> Result<String, BoxError> {
        Ok(session.connection().ok_or("no connection")?.number.to_string())
    }

    async fn insert(&self, session: &mut ToySession, row: u64) -> Result<(), BoxError> {
        let writes_through = self.fault == Some(Fault::WritesThrough);
        let connection = session.connection().ok_or("no connection")?;
        if connection.read_only {
            return Err("read-only".into());
        }
        match &mut connection.staged {
            Some(staged) if !writes_through => staged.push(row),
            _ => self.store.lock().rows.push(row),
        }
        Ok(())
    }

    async fn rows(&self, row: u64) -> usize {
        self.store.lock().rows.iter().filter(|&&other| other == row).count()
    }

    async fn break_connection(&self, session: &mut ToySession) -> bool {
        if let Some(connection) = session.connection() {
            connection.is_broken = true;
            connection.staged = None;
        }
        true
    }
}
