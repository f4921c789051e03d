//! Pools whose hooks hang, fail, panic and close connections, under jobs that end in every way.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use admit::{Admission, BoxError, DbProvider, JobRunner, Requirements, SqlxProvider};
use futures::FutureExt;
use sqlx::Executor;
use sqlx::sqlite::SqlitePoolOptions;
use tokio_util::sync::CancellationToken;

use crate::sqlite::{SqliteFile, insert};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hook {
    Pauses,
    Hangs,
    Closes,
    Fails,
    Panics,
    /// No hook, but connections that are too old at once.
    Ages,
    /// The pool is closed while the job works.
    PoolCloses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Fails,
    Panics,
    Cancelled,
    Dropped,
}

const HOOKS: [Hook; 7] = [
    Hook::Pauses,
    Hook::Hangs,
    Hook::Closes,
    Hook::Fails,
    Hook::Panics,
    Hook::Ages,
    Hook::PoolCloses,
];

const ENDS: [End; 5] = [End::Done, End::Fails, End::Panics, End::Cancelled, End::Dropped];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_pools_hooks_do_the_connection_goes_before_the_permit() {
    for hook in HOOKS {
        for end in ENDS {
            for (minimum, transactional) in [(0, true), (1, false)] {
                let case = case(hook, end, minimum, transactional);
                let over = tokio::time::timeout(Duration::from_secs(60), case).await;
                over.unwrap_or_else(|_| panic!("{hook:?}, {end:?} hangs"));
            }
        }
    }
}

async fn case(hook: Hook, end: End, minimum: u32, transactional: bool) {
    let case = format!("{hook:?}, {end:?}, {minimum}, {transactional}");
    let file = SqliteFile::open(1).await;
    let mut options = SqlitePoolOptions::new()
        .max_connections(1)
        .min_connections(minimum)
        .acquire_timeout(Duration::from_secs(20));
    options = match hook {
        Hook::Ages => options.max_lifetime(Duration::from_nanos(1)),
        Hook::PoolCloses => options,
        _ => options.after_release(move |_, _| {
            Box::pin(async move {
                match hook {
                    Hook::Pauses => tokio::time::sleep(Duration::from_millis(5)).await,
                    Hook::Hangs => std::future::pending().await,
                    Hook::Fails => return Err(sqlx::Error::WorkerCrashed),
                    Hook::Panics => panic!("the hook"),
                    _ => {}
                }
                Ok(hook != Hook::Closes)
            })
        }),
    };
    let pool = options.connect_with(file.pool.connect_options().as_ref().clone()).await.unwrap();
    let provider = SqlxProvider::builder("main", 1, pool.clone())
        .acquire_timeout(Duration::from_millis(if hook == Hook::Hangs { 50 } else { 20_000 }))
        .build()
        .unwrap();
    let admission = Admission::builder().start().unwrap();
    let runner = JobRunner::builder(&admission).build().unwrap();
    let mut requirements = Requirements::new().database(&provider);
    if transactional {
        requirements = requirements.transactional();
    }
    let token = CancellationToken::new();
    let cancels = token.clone();
    let runs = runner.job(requirements.clone()).cancelled_by(token).run(async |resources| {
        let mut session = resources.get(&provider)?;
        session.execute(insert(1)).await?;
        if hook == Hook::PoolCloses {
            let pool = pool.clone();
            tokio::spawn(async move { pool.close().await });
            while !provider.pool().is_closed() {
                tokio::task::yield_now().await;
            }
        }
        match end {
            End::Done => Ok(()),
            End::Fails => Err("no".into()),
            End::Panics => panic!("the job"),
            End::Cancelled => {
                cancels.cancel();
                std::future::pending().await
            }
            End::Dropped => {
                std::future::pending::<()>().await;
                Ok::<_, BoxError>(())
            }
        }
    });
    let mut runs = Box::pin(AssertUnwindSafe(runs).catch_unwind());
    if end == End::Dropped {
        let _ = tokio::time::timeout(Duration::from_millis(20), &mut runs).await;
        drop(runs);
        while provider.account().status().active > 0 {
            tokio::task::yield_now().await;
        }
    } else {
        let said = runs.await;
        assert_eq!(matches!(said, Ok(Ok(()))), end == End::Done, "{case}");
    }
    // At once: the minimum is made up for by a connection that is idle.
    assert_eq!(provider.account().status().active, 0, "{case}");
    let out = pool.size() as usize - pool.num_idle();
    assert!(out == 0 || minimum > 0, "{case}: {out}");
    let rows = usize::from(end == End::Done || !transactional);
    assert_eq!(file.rows(1).await, rows, "{case}");
    if hook != Hook::PoolCloses {
        let again = runner.run(requirements, async |resources| {
            resources.get(&provider)?.execute(insert(2)).await?;
            Ok::<_, BoxError>(())
        });
        again.await.unwrap_or_else(|e| panic!("{case}: {e}"));
        assert_eq!(file.rows(2).await, 1, "{case}");
    }
}
