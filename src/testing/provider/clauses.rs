//! The clauses about what a provider is and what its session does.

use std::future::poll_fn;
use std::task::Poll;

use super::checked::{Checked, Handle, done, fails, holds, is_foreign, new_row, same};
use super::{ProviderContract, ProviderFixture};
use crate::account::Account as _;
use crate::db::{DbProvider as _, ProviderError};
use crate::sync::Arc;

/// How a read-only handle comes to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadOnlyEnd {
    RolledBack,
    /// With what is open still open.
    Closed,
    Aborted,
}

impl<F: ProviderFixture> ProviderContract<F> {
    pub(super) async fn identity(&self) -> Checked {
        let (one, other) = (self.fixture.provider("main", 3), self.fixture.provider("main", 1));
        same("the name", &&**one.name(), &"main")?;
        same("the account's name", &&**one.account().link().name(), &"db:main")?;
        same("the capacity", &one.account().capacity(), &3)?;
        same("the other one's capacity", &other.account().capacity(), &1)?;
        holds("two providers share an account", !Arc::ptr_eq(one.account(), other.account()))?;
        holds("acquire has no time at all", !one.acquire_timeout().is_zero())
    }

    pub(super) async fn one_connection(&self) -> Checked {
        let provider = self.provider();
        self.nothing_left("before").await?;
        for read_only in [false, true, false] {
            let handle = done("acquire", provider.acquire(read_only).await)?;
            self.out("after acquire", 1)?;
            let other = done("acquire", provider.acquire(read_only).await)?;
            self.out("after a second acquire", 2)?;
            done("close", provider.close(&handle).await)?;
            self.out("after a close", 1)?;
            done("begin", provider.begin(&other).await)?;
            self.out("in a transaction", 1)?;
            done("commit", provider.commit(&other).await)?;
            done("await_completion", provider.await_completion(&other).await)?;
            self.out("after a commit", 1)?;
            done("close", provider.close(&other).await)?;
            self.out("after every close", 0)?;
        }
        Ok(())
    }

    pub(super) async fn one_guard(&self) -> Checked {
        let provider = self.provider();
        let handle = self.acquired(&provider).await?;
        let mut guard = self.session(&provider, &handle)?;
        let in_use = |error: &ProviderError| matches!(error, ProviderError::InUse { .. });
        fails("a second guard", provider.session(&handle), in_use)?;
        // A close may wait for the guard or fail, but not give the connection to somebody else.
        let asked = self.fixture.connection(&mut guard).await;
        let whose = done("asking which connection it is", asked)?;
        let mut close = Box::pin(provider.close(&handle));
        for _ in 0..16 {
            if poll_fn(|cx| Poll::Ready(close.as_mut().poll(cx).is_ready())).await {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(close);
        let mut others = Vec::new();
        for _ in 0..3 {
            let other = self.acquired(&provider).await?;
            let theirs = self.connection(&provider, &other).await?;
            holds("a connection was given away while a guard of it was out", theirs != whose)?;
            others.push(other);
        }
        for other in &others {
            done("close", provider.close(other).await)?;
        }
        drop(guard);
        done("close when the guard is gone", provider.close(&handle).await)?;
        self.nothing_left("after a close in use").await?;

        let handle = self.acquired(&provider).await?;
        drop(self.session(&provider, &handle)?);
        done("close", provider.close(&handle).await)?;
        let closed = |error: &ProviderError| matches!(error, ProviderError::Closed { .. });
        fails("a guard after the close", provider.session(&handle), closed)
    }

    pub(super) async fn isolation(&self) -> Checked {
        let provider = self.provider();
        let (handle, row) = self.opened(&provider).await?;
        self.rows("before the commit", row, 0).await?;
        done("commit", provider.commit(&handle).await)?;
        done("await_completion", provider.await_completion(&handle).await)?;
        self.rows("after the commit", row, 1).await?;
        let direct = self.inserted(&provider, &handle).await?;
        self.rows("inserted without a transaction", direct, 1).await?;
        done("close", provider.close(&handle).await)?;
        self.rows("after the close", row, 1).await
    }

    pub(super) async fn same_connection(&self) -> Checked {
        let provider = self.provider();
        let handle = self.acquired(&provider).await?;
        let first = self.connection(&provider, &handle).await?;
        for commits in [true, false, true] {
            done("begin", provider.begin(&handle).await)?;
            let inside = self.connection(&provider, &handle).await?;
            same("the connection in a transaction", &inside, &first)?;
            let row = self.inserted(&provider, &handle).await?;
            if commits {
                done("commit", provider.commit(&handle).await)?;
                done("await_completion", provider.await_completion(&handle).await)?;
            } else {
                done("rollback", provider.rollback(&handle).await)?;
            }
            self.rows("after a transaction", row, usize::from(commits)).await?;
            let between = self.connection(&provider, &handle).await?;
            same("the connection after a transaction", &between, &first)?;
            self.out("after a transaction", 1)?;
        }
        done("close", provider.close(&handle).await)
    }

    pub(super) async fn order(&self) -> Checked {
        let provider = self.provider();
        let handle = self.acquired(&provider).await?;
        let out_of_order =
            |error: &ProviderError| matches!(error, ProviderError::OutOfOrder { .. });
        fails("a commit without a begin", provider.commit(&handle).await, out_of_order)?;
        done("begin", provider.begin(&handle).await)?;
        fails("a second begin", provider.begin(&handle).await, out_of_order)?;
        done("commit", provider.commit(&handle).await)?;
        fails("a second commit", provider.commit(&handle).await, out_of_order)?;
        done("close", provider.close(&handle).await)
    }

    pub(super) async fn read_only(&self) -> Checked {
        let provider = self.provider();
        for (transactional, end) in [
            (false, ReadOnlyEnd::RolledBack),
            (true, ReadOnlyEnd::RolledBack),
            (true, ReadOnlyEnd::Closed),
            (false, ReadOnlyEnd::Aborted),
            (true, ReadOnlyEnd::Aborted),
        ] {
            let handle = done("acquire", provider.acquire(true).await)?;
            let restricted = self.connection(&provider, &handle).await?;
            if transactional {
                // Not only the first one, whichever way that ended.
                for commits in [true, false] {
                    done("begin", provider.begin(&handle).await)?;
                    if commits {
                        done("commit", provider.commit(&handle).await)?;
                    } else {
                        self.refused(&provider, &handle).await?;
                        done("rollback", provider.rollback(&handle).await)?;
                    }
                }
                done("begin", provider.begin(&handle).await)?;
            }
            let row = self.refused(&provider, &handle).await?;
            match end {
                ReadOnlyEnd::RolledBack => {
                    done("rollback", provider.rollback(&handle).await)?;
                }
                ReadOnlyEnd::Closed => {}
                ReadOnlyEnd::Aborted => provider.abort(&handle),
            }
            done("close", provider.close(&handle).await)?;
            self.nothing_left("after a read-only session").await?;
            self.rows("of a read-only session", row, 0).await?;

            // Whoever gets that connection next; a provider may also have closed it.
            let mut handles = Vec::new();
            while handles.len() < 4 {
                let handle = self.acquired(&provider).await?;
                let connection = self.connection(&provider, &handle).await?;
                let row = self.inserted(&provider, &handle).await?;
                self.rows("of the next user", row, 1).await?;
                handles.push(handle);
                if connection == restricted {
                    break;
                }
            }
            for handle in &handles {
                done("close", provider.close(handle).await)?;
            }
        }
        Ok(())
    }

    /// A row that a read-only session did not take.
    async fn refused(&self, provider: &F::Provider, handle: &Handle<F>) -> Checked<u64> {
        let row = new_row();
        let mut session = self.session(provider, handle)?;
        let inserted = self.fixture.insert(&mut session, row).await;
        holds("a read-only session can write", inserted.is_err())?;
        Ok(row)
    }

    pub(super) async fn foreign(&self) -> Checked {
        let (mine, other) = (self.provider(), self.provider());
        let handle = self.acquired(&mine).await?;
        done("begin", mine.begin(&handle).await)?;
        fails("a foreign session", other.session(&handle), is_foreign)?;
        fails("a foreign begin", other.begin(&handle).await, is_foreign)?;
        fails("a foreign commit", other.commit(&handle).await, is_foreign)?;
        fails("a foreign await_completion", other.await_completion(&handle).await, is_foreign)?;
        fails("a foreign rollback", other.rollback(&handle).await, is_foreign)?;
        fails("a foreign close", other.close(&handle).await, is_foreign)?;
        other.abort(&handle);
        drop(self.session(&mine, &handle)?);
        done("the commit after all that", mine.commit(&handle).await)?;
        done("close", mine.close(&handle).await)
    }
}
