//! The clauses about how a handle ends.

use super::checked::{Checked, done, fails, is_closed};
use super::{ProviderContract, ProviderFixture};
use crate::db::DbProvider as _;

impl<F: ProviderFixture> ProviderContract<F> {
    pub(super) async fn rollback(&self) -> Checked {
        let provider = self.provider();
        let handle = self.acquired(&provider).await?;
        done("rollback before a begin", provider.rollback(&handle).await)?;
        let kept = self.inserted(&provider, &handle).await?;
        done("begin after it", provider.begin(&handle).await)?;
        let row = self.inserted(&provider, &handle).await?;
        done("rollback", provider.rollback(&handle).await)?;
        done("rollback again", provider.rollback(&handle).await)?;
        self.rows("after a rollback", row, 0).await?;
        done("begin after a rollback", provider.begin(&handle).await)?;
        let next = self.inserted(&provider, &handle).await?;
        done("commit after a rollback", provider.commit(&handle).await)?;
        done("rollback after the commit", provider.rollback(&handle).await)?;
        done("close", provider.close(&handle).await)?;
        done("rollback after the close", provider.rollback(&handle).await)?;
        self.rows("written before", kept, 1).await?;
        self.rows("written after", next, 1).await
    }

    pub(super) async fn close(&self) -> Checked {
        let provider = self.provider();
        let (handle, row) = self.opened(&provider).await?;
        done("close in a transaction", provider.close(&handle).await)?;
        self.out("after the close", 0)?;
        self.rows("after the close", row, 0).await?;
        self.nothing_left("after a close").await?;
        done("close again", provider.close(&handle).await)?;
        fails("a session after a close", provider.session(&handle), is_closed)?;
        fails("a begin after a close", provider.begin(&handle).await, is_closed)?;
        fails("a commit after a close", provider.commit(&handle).await, is_closed)?;
        provider.abort(&handle);
        self.out("after all that", 0)?;

        // A handle that is only dropped must not keep anything either.
        let (handle, row) = self.opened(&provider).await?;
        drop(handle);
        self.nothing_left("after a handle was dropped").await?;
        self.rows("of a handle that was dropped", row, 0).await
    }

    pub(super) async fn abort(&self) -> Checked {
        let provider = self.provider();
        let (handle, row) = self.opened(&provider).await?;
        provider.abort(&handle);
        provider.abort(&handle);
        fails("a session after an abort", provider.session(&handle), is_closed)?;
        fails("a begin after an abort", provider.begin(&handle).await, is_closed)?;
        fails("a commit after an abort", provider.commit(&handle).await, is_closed)?;
        done("rollback after an abort", provider.rollback(&handle).await)?;
        done("close after an abort", provider.close(&handle).await)?;
        done("close again", provider.close(&handle).await)?;
        self.nothing_left("after an abort").await?;
        self.rows("after an abort", row, 0).await?;

        let (handle, row) = self.opened(&provider).await?;
        provider.abort(&handle);
        done("close right after an abort", provider.close(&handle).await)?;
        self.nothing_left("after an abort and a close").await?;
        self.rows("after an abort and a close", row, 0).await
    }

    pub(super) async fn abort_in_use(&self) -> Checked {
        let provider = self.provider();
        let (handle, row) = self.opened(&provider).await?;
        let guard = self.session(&provider, &handle)?;
        provider.abort(&handle);
        fails("a second guard after an abort", provider.session(&handle), is_closed)?;
        let closed = self.within("close after an abort in use", provider.close(&handle)).await?;
        done("close after an abort in use", closed)?;
        drop(guard);
        fails("a session after an abort", provider.session(&handle), is_closed)?;
        self.nothing_left("after an abort in use").await?;
        self.rows("after an abort in use", row, 0).await
    }

    pub(super) async fn completion(&self) -> Checked {
        let provider = self.provider();
        // With a commit to be waited for, and without one.
        for commits in [true, false] {
            let handle = self.acquired(&provider).await?;
            done("begin", provider.begin(&handle).await)?;
            if commits {
                done("commit", provider.commit(&handle).await)?;
            }
            let waits = provider.await_completion(&handle);
            let both = async { tokio::join!(waits, provider.close(&handle)) };
            let (_, closed) = self.within("await_completion beside a close", both).await?;
            done("close beside an await_completion", closed)?;
        }
        Ok(())
    }
}
