//! What every clause does: expect, compare, and wait with a bound.

use std::fmt::{Debug, Display};
use std::time::Duration;

use super::{ProviderContract, ProviderFixture};
use crate::db::{DbProvider, ProviderError};
use crate::sync::{Arc, Ordering, StaticU64};

/// Kept, or what happened instead.
pub(super) type Checked<T = ()> = Result<T, String>;

/// The provider, its handle and its session.
pub(super) type Handle<F> = <<F as ProviderFixture>::Provider as DbProvider>::Handle;
pub(super) type Session<F> = <<F as ProviderFixture>::Provider as DbProvider>::Session;

/// What should have succeeded.
pub(super) fn done<T>(what: &str, result: Result<T, impl Display>) -> Checked<T> {
    result.map_err(|error| format!("{what} failed: {error}"))
}

/// What should be equal.
pub(super) fn same<T: PartialEq + Debug>(what: &str, is: &T, should_be: &T) -> Checked {
    if is == should_be { Ok(()) } else { Err(format!("{what}: {is:?}, not {should_be:?}")) }
}

/// What should hold.
pub(super) fn holds(what: &str, is: bool) -> Checked {
    if is { Ok(()) } else { Err(what.to_owned()) }
}

/// What should have failed in this way.
pub(super) fn fails<T>(
    what: &str,
    result: Result<T, ProviderError>,
    way: impl FnOnce(&ProviderError) -> bool,
) -> Checked {
    match result {
        Ok(_) => Err(format!("{what} succeeded")),
        Err(error) if way(&error) => Ok(()),
        Err(error) => Err(format!("{what} failed in another way: {error}")),
    }
}

pub(super) const fn is_closed(error: &ProviderError) -> bool {
    matches!(error, ProviderError::Closed { .. })
}

pub(super) const fn is_foreign(error: &ProviderError) -> bool {
    matches!(error, ProviderError::Foreign { .. })
}

/// A row nobody else has.
pub(super) fn new_row() -> u64 {
    static ROWS: StaticU64 = StaticU64::new(1);
    ROWS.fetch_add(1, Ordering::Relaxed)
}

impl<F: ProviderFixture> ProviderContract<F> {
    /// A provider with the bound most clauses need.
    pub(super) fn provider(&self) -> Arc<F::Provider> {
        self.fixture.provider("main", 2)
    }

    pub(super) async fn acquired(&self, provider: &F::Provider) -> Checked<Handle<F>> {
        done("acquire", provider.acquire(false).await)
    }

    pub(super) fn session(
        &self,
        provider: &F::Provider,
        handle: &Handle<F>,
    ) -> Checked<Session<F>> {
        done("session", provider.session(handle))
    }

    /// A row inserted through a guard of its own.
    pub(super) async fn inserted(
        &self,
        provider: &F::Provider,
        handle: &Handle<F>,
    ) -> Checked<u64> {
        let row = new_row();
        let mut session = self.session(provider, handle)?;
        done("insert", self.fixture.insert(&mut session, row).await)?;
        Ok(row)
    }

    /// A handle with a transaction open and a row in it.
    pub(super) async fn opened(&self, provider: &F::Provider) -> Checked<(Handle<F>, u64)> {
        let handle = self.acquired(provider).await?;
        done("begin", provider.begin(&handle).await)?;
        let row = self.inserted(provider, &handle).await?;
        Ok((handle, row))
    }

    pub(super) async fn connection(
        &self,
        provider: &F::Provider,
        handle: &Handle<F>,
    ) -> Checked<String> {
        let mut session = self.session(provider, handle)?;
        done("asking which connection it is", self.fixture.connection(&mut session).await)
    }

    /// So many connections are out, now.
    pub(super) fn out(&self, when: &str, should_be: usize) -> Checked {
        same(&format!("connections out {when}"), &self.fixture.out(), &should_be)
    }

    pub(super) async fn rows(&self, when: &str, row: u64, should_be: usize) -> Checked {
        same(&format!("rows {when}"), &self.fixture.rows(row).await, &should_be)
    }

    /// No connection is out and no transaction open, soon.
    pub(super) async fn nothing_left(&self, when: &str) -> Checked {
        let deadline = tokio::time::Instant::now() + self.patience;
        loop {
            let out = self.fixture.out();
            let open = match F::HOLDS_A_CONNECTION {
                true => self.fixture.open_transactions().await.unwrap_or(0),
                false => 0,
            };
            if (out, open) == (0, 0) {
                return Ok(());
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(format!(
                    "{when}, {out} connections stay out, {open} transactions open"
                ));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What must not hang.
    pub(super) async fn within<T>(&self, what: &str, step: impl Future<Output = T>) -> Checked<T> {
        tokio::time::timeout(self.patience, step)
            .await
            .map_err(|_| format!("{what} was not done after {:?}", self.patience))
    }
}
