//! The clauses about what goes wrong on the way.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use super::checked::{Checked, Handle, done, holds};
use super::{ProviderContract, ProviderFixture};
use crate::db::{DbProvider, DbVerb, ProviderError};

const VERBS: [DbVerb; 5] =
    [DbVerb::Begin, DbVerb::Commit, DbVerb::AwaitCompletion, DbVerb::Rollback, DbVerb::Close];

/// A step that is not done after so many polls is let go at the next one.
const MOST_POLLS: u32 = 32;

impl<F: ProviderFixture> ProviderContract<F> {
    pub(super) async fn half_way(&self) -> Checked {
        let provider = self.provider();
        for is_aborted in [false, true] {
            for read_only in [false, true] {
                let mut polls = 1;
                while half_way(polls, provider.acquire(read_only)).await && polls < MOST_POLLS {
                    polls += 1;
                }
            }
            for verb in VERBS {
                let mut polls = 1;
                while self.cut_off(&provider, verb, polls, is_aborted).await? && polls < MOST_POLLS
                {
                    polls += 1;
                }
            }
        }
        Ok(())
    }

    /// A verb that is dropped after so many polls, and everything in order after it. Answers whether
    /// it was dropped, and not done by then.
    async fn cut_off(
        &self,
        provider: &F::Provider,
        verb: DbVerb,
        polls: u32,
        is_aborted: bool,
    ) -> Checked<bool> {
        let (handle, row) = self.prepared(provider, verb).await?;
        let step = half_way(polls, run(provider, verb, &handle));
        let was_cut = self.within(&format!("{verb} up to its poll {polls}"), step).await?;
        if is_aborted {
            provider.abort(&handle);
        } else {
            let what = format!("rollback after a half {verb}");
            // It may find out that the connection is beyond use.
            let _ = self.within(&what, provider.rollback(&handle)).await?;
        }
        let what = format!("close after a half {verb}");
        done(&what, self.within(&what, provider.close(&handle)).await?)?;
        if F::HOLDS_A_CONNECTION {
            self.nothing_left(&format!("after a half {verb}")).await?;
            if verb != DbVerb::Commit && verb != DbVerb::AwaitCompletion {
                self.rows(&format!("after a half {verb}"), row, 0).await?;
            }
            self.works(provider).await?;
        }
        Ok(was_cut)
    }

    pub(super) async fn broken(&self) -> Checked {
        let provider = self.provider();
        for verb in VERBS {
            let (handle, row) = self.prepared(&provider, verb).await?;
            let mut session = self.session(&provider, &handle)?;
            if !self.fixture.break_connection(&mut session).await {
                drop(session);
                return done("close", provider.close(&handle).await);
            }
            drop(session);
            let what = format!("{verb} on a broken connection");
            let result = self.within(&what, run(&*provider, verb, &handle)).await?;
            // It may also have waited for an answer in vain.
            let is_error = matches!(
                &result,
                Err(ProviderError::Failed { .. } | ProviderError::TimedOut { .. })
            );
            let must_fail = matches!(verb, DbVerb::Begin | DbVerb::Commit);
            holds(&format!("{what} did not fail"), is_error || !must_fail)?;
            let what = format!("the end after {what}");
            // Each may say that it failed, as a runner takes them: it goes on to the next.
            let _ = self.within(&what, provider.rollback(&handle)).await?;
            let _ = self.within(&what, provider.close(&handle)).await?;
            done("another close", self.within(&what, provider.close(&handle)).await?)?;
            self.nothing_left(&format!("after {what}")).await?;
            if verb != DbVerb::AwaitCompletion {
                self.rows(&format!("after {what}"), row, 0).await?;
            }
            self.works(&provider).await?;
        }
        Ok(())
    }

    /// A handle on which the verb makes sense, and the row that was inserted last.
    async fn prepared(&self, provider: &F::Provider, verb: DbVerb) -> Checked<(Handle<F>, u64)> {
        let handle = self.acquired(provider).await?;
        if verb == DbVerb::Begin {
            return Ok((handle, 0));
        }
        done("begin", provider.begin(&handle).await)?;
        let row = match F::HOLDS_A_CONNECTION {
            true => self.inserted(provider, &handle).await?,
            false => 0,
        };
        if verb == DbVerb::AwaitCompletion {
            done("commit", provider.commit(&handle).await)?;
        }
        Ok((handle, row))
    }

    /// The next job finds everything in order.
    async fn works(&self, provider: &F::Provider) -> Checked {
        let (handle, row) = self.opened(provider).await?;
        done("commit", provider.commit(&handle).await)?;
        done("close", provider.close(&handle).await)?;
        self.rows("of the next job", row, 1).await
    }
}

async fn run<P: DbProvider>(
    provider: &P,
    verb: DbVerb,
    handle: &P::Handle,
) -> Result<(), ProviderError> {
    match verb {
        DbVerb::Begin => provider.begin(handle).await,
        DbVerb::Commit => provider.commit(handle).await,
        DbVerb::AwaitCompletion => provider.await_completion(handle).await,
        DbVerb::Rollback => provider.rollback(handle).await,
        DbVerb::Close | DbVerb::Acquire => provider.close(handle).await,
    }
}

/// Polls a step so often, each time when it asks for it, and drops it. Answers whether it was dropped,
/// and not done by then.
pub(super) async fn half_way<T>(polls: u32, step: impl Future<Output = T>) -> bool {
    let mut step = pin!(step);
    let mut left = polls;
    let was_cut = poll_fn(|cx| match step.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(false),
        Poll::Pending => {
            left -= 1;
            if left == 0 { Poll::Ready(true) } else { Poll::Pending }
        }
    })
    .await;
    // What it set going goes on meanwhile.
    tokio::task::yield_now().await;
    was_cut
}
