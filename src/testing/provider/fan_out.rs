//! The clause about many jobs at once.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use super::checked::{Checked, done, holds, new_row, same};
use super::{ProviderContract, ProviderFixture};
use crate::account::Account as _;
use crate::db::DbProvider as _;
use crate::jobs::{JobRunner, Requirements, Resources};
use crate::monitor::Admission;
use crate::sync::{AtomicUsize, Ordering};

const JOBS: u32 = 60;
const BOUND: u32 = 2;

/// What a job should come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Failed,
    Dropped,
}

impl End {
    /// A fifth fails, a fifth is dropped half-way.
    const fn of(job: u32) -> Self {
        match job % 5 {
            1 => Self::Failed,
            3 => Self::Dropped,
            _ => Self::Done,
        }
    }
}

impl<F: ProviderFixture> ProviderContract<F> {
    pub(super) async fn fan_out(&self) -> Checked {
        let provider = self.fixture.provider("main", BOUND);
        let admission = done("the start of an admission", Admission::builder().start())?;
        let runner = done("a runner", JobRunner::builder(&admission).build())?;
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let rows: Vec<u64> = (0..JOBS).map(|_| new_row()).collect();

        let (provider, inside, most, rows) = (&provider, &inside, &most, &rows);
        let jobs = (0..JOBS).map(|job| {
            let end = End::of(job);
            let work = move |resources: Resources| async move {
                let is_inside = Counted::new(inside);
                most.fetch_max(is_inside.now(), Ordering::SeqCst);
                self.watch(most);
                let mut session = done("session", resources.get(provider))?;
                if F::HOLDS_A_CONNECTION {
                    let inserted = self.fixture.insert(&mut session, rows[job as usize]).await;
                    done("insert", inserted)?;
                }
                tokio::task::yield_now().await;
                self.watch(most);
                drop(session);
                if end == End::Failed { Err("as it should".to_owned()) } else { Ok(()) }
            };
            let requirements = Requirements::new().database(provider).transactional();
            let run = runner.run(requirements, work);
            async move {
                match end {
                    End::Dropped => {
                        tokio::select! {
                            biased;
                            () = turns(job) => Ok(None),
                            ran = run => Ok(Some(ran.is_ok())),
                        }
                    }
                    _ => match run.await {
                        Ok(()) => Ok(Some(true)),
                        Err(error) if end == End::Done => Err(format!("job {job}: {error}")),
                        Err(_) => Ok(Some(false)),
                    },
                }
            }
        });
        let ended = all(jobs.collect(), || self.watch(most)).await;
        admission.stop();
        admission.drained().await;

        let most = most.load(Ordering::SeqCst);
        holds(&format!("{most} connections or jobs were at work"), most <= BOUND as usize)?;
        holds("no job was at work", most > 0)?;
        same(
            "permits in use at the end",
            &provider.account().in_use(tokio::time::Instant::now()),
            &0,
        )?;
        if !F::HOLDS_A_CONNECTION {
            return Ok(());
        }
        self.out("when everything had ended", 0)?;
        self.nothing_left("when everything had ended").await?;
        for (job, ended) in ended.into_iter().enumerate() {
            let rows = self.fixture.rows(rows[job]).await;
            // One that was dropped may have come to its commit before.
            let expected = match ended? {
                Some(is_done) => usize::from(is_done),
                None => continue,
            };
            same(&format!("rows of job {job}"), &rows, &expected)?;
        }
        Ok(())
    }

    /// Looks at how many are out.
    fn watch(&self, most: &AtomicUsize) {
        if F::HOLDS_A_CONNECTION {
            most.fetch_max(self.fixture.out(), Ordering::SeqCst);
        }
    }
}

/// One more, until it is dropped.
struct Counted<'a>(&'a AtomicUsize, usize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        let before = count.fetch_add(1, Ordering::SeqCst);
        Self(count, before + 1)
    }

    const fn now(&self) -> usize {
        self.1
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn turns(n: u32) {
    for _ in 0..n {
        tokio::task::yield_now().await;
    }
}

/// All of them at once, in this task: what they borrow need not be `'static`.
async fn all<T>(futures: Vec<impl Future<Output = T>>, mut between: impl FnMut()) -> Vec<T> {
    let mut futures: Vec<(Option<Pin<Box<_>>>, Option<T>)> =
        futures.into_iter().map(|future| (Some(Box::pin(future)), None)).collect();
    poll_fn(|cx| {
        between();
        for (future, output) in &mut futures {
            if let Some(running) = future
                && let Poll::Ready(done) = running.as_mut().poll(cx)
            {
                *output = Some(done);
                *future = None;
            }
        }
        match futures.iter().all(|(future, _)| future.is_none()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}
