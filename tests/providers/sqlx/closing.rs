//! How a connection goes: back to its pool, closed, or with whoever has it.

use std::cell::RefCell;
use std::sync::Barrier;

use admit::{BoxError, JobRunner, SqlxSession};
use sqlx::Database;
use tokio::runtime::Runtime;

use super::*;

#[tokio::test]
async fn a_connection_in_an_unknown_state_does_not_go_back_to_the_pool() {
    let Some(database) = PostgresDatabase::open(1).await else { return };
    let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    let mut seen = Vec::new();
    for way in 0..3 {
        let handle = provider.acquire(false).await.unwrap();
        seen.push(backend(&mut provider.session(&handle).unwrap()).await.unwrap());
        provider.begin(&handle).await.unwrap();
        match way {
            0 => loop {
                let mut commit = Box::pin(provider.commit(&handle));
                let Poll::Ready(committed) = futures::poll!(commit.as_mut()) else { break };
                committed.unwrap();
                provider.begin(&handle).await.unwrap();
            },
            1 => provider.abort(&handle),
            _ => drop(handle),
        }
        // With a pool of one, the next acquire waits until this one is gone.
    }
    let handle = provider.acquire(false).await.unwrap();
    seen.push(backend(&mut provider.session(&handle).unwrap()).await.unwrap());
    provider.close(&handle).await.unwrap();
    let mut distinct = seen.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 4, "{seen:?}");
    database.drop().await;
}

#[tokio::test]
async fn close_after_an_abort_waits_until_the_connection_is_gone() {
    let Some(database) = PostgresDatabase::open(4).await else { return };
    let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    for _ in 0..20 {
        let handle = provider.acquire(false).await.unwrap();
        provider.begin(&handle).await.unwrap();
        provider.abort(&handle);
        provider.close(&handle).await.unwrap();
        assert_eq!(database.out(), 0);
    }
    database.drop().await;
}

/// As a run does that is dropped while it ends: a task goes on with a close of its own.
#[tokio::test]
async fn close_after_half_a_close_waits_until_the_connection_is_gone() {
    let file = SqliteFile::open(4).await;
    let provider = SqlxProvider::new("main", 1, file.pool.clone()).unwrap();
    half_closed(&provider, || file.out()).await;
    let Some(database) = PostgresDatabase::open(4).await else { return };
    let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    half_closed(&provider, || database.out()).await;
    database.drop().await;
}

/// There is no handle yet, so nobody to wait for it: a run that is dropped returns its permit at once.
#[tokio::test]
async fn an_acquire_dropped_half_way_leaves_no_connection_out() {
    let file = SqliteFile::open(4).await;
    let provider = SqlxProvider::new("main", 1, file.pool.clone()).unwrap();
    half_acquired(&provider, || file.out()).await;
    let Some(database) = PostgresDatabase::open(4).await else { return };
    let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    half_acquired(&provider, || database.out()).await;
    database.drop().await;
}

async fn half_acquired<DB: Database>(provider: &Arc<SqlxProvider<DB>>, out: impl Fn() -> usize) {
    for polls in 1..20 {
        let mut acquire = Box::pin(provider.acquire(true));
        for _ in 0..polls {
            if let Poll::Ready(acquired) = futures::poll!(acquire.as_mut()) {
                return provider.close(&acquired.unwrap()).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(acquire);
        assert_eq!(out(), 0);
    }
}

async fn half_closed<DB: Database>(provider: &Arc<SqlxProvider<DB>>, out: impl Fn() -> usize) {
    for _ in 0..20 {
        let handle = provider.acquire(false).await.unwrap();
        provider.begin(&handle).await.unwrap();
        let mut close = Box::pin(provider.close(&handle));
        // A database may be that fast.
        let _ = futures::poll!(close.as_mut());
        drop(close);
        provider.close(&handle).await.unwrap();
        assert_eq!(out(), 0);
    }
}

#[tokio::test]
async fn the_last_guard_may_be_dropped_on_a_thread_without_a_runtime() {
    let file = SqliteFile::open(1).await;
    let provider = SqlxProvider::new("main", 1, file.pool.clone()).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    let session = provider.session(&handle).unwrap();
    provider.abort(&handle);
    drop(handle);
    std::thread::spawn(move || drop(session)).join().unwrap();
    // The pool has one connection: this comes only when the old one is gone.
    let handle = provider.acquire(false).await.unwrap();
    provider.close(&handle).await.unwrap();
}

#[tokio::test]
async fn a_guard_carried_off_delays_the_end_and_does_not_hang_it() {
    let file = SqliteFile::open(1).await;
    let provider = SqlxProvider::builder("main", 1, file.pool.clone())
        .acquire_timeout(Duration::from_millis(50))
        .build()
        .unwrap();
    let handle = provider.acquire(false).await.unwrap();
    provider.begin(&handle).await.unwrap();
    let session = provider.session(&handle).unwrap();
    for result in [
        provider.commit(&handle).await,
        provider.rollback(&handle).await,
        provider.close(&handle).await,
    ] {
        assert!(matches!(result, Err(ProviderError::InUse { .. })), "{result:?}");
    }
    provider.abort(&handle);
    provider.close(&handle).await.unwrap();
    assert_eq!(file.out(), 1, "whoever has it still has it");
    drop(session);
    // Comes only when the old one is gone.
    drop(file.pool.acquire().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_that_meets_the_drop_of_a_guard_leaves_nothing() {
    let file = SqliteFile::open(1).await;
    let provider = SqlxProvider::new("main", 1, file.pool.clone()).unwrap();
    for _ in 0..300 {
        // The pool has one connection: each time this comes only when the last is gone.
        let handle = provider.acquire(false).await.unwrap();
        let session = provider.session(&handle).unwrap();
        let both = Arc::new(Barrier::new(2));
        let dropper = std::thread::spawn({
            let both = Arc::clone(&both);
            move || {
                both.wait();
                drop(session);
            }
        });
        both.wait();
        provider.abort(&handle);
        dropper.join().unwrap();
        assert!(provider.session(&handle).is_err());
    }
}

#[tokio::test]
async fn a_connection_handed_to_a_waiter_who_is_gone_is_given_up_all_the_same() {
    let file = SqliteFile::open(1).await;
    let provider = SqlxProvider::new("main", 1, file.pool.clone()).unwrap();
    let handle = provider.acquire(false).await.unwrap();
    let session = provider.session(&handle).unwrap();
    let mut waiter = Box::pin(provider.begin(&handle));
    assert!(futures::poll!(waiter.as_mut()).is_pending());
    provider.abort(&handle);
    // The lock goes to the waiter, who never looks.
    drop(session);
    drop(waiter);
    provider.close(&handle).await.unwrap();
    assert_eq!(file.out(), 0);
}

async fn keeps_a_minimum(minimum: u32) -> (SqliteFile, Arc<SqlxProvider<Sqlite>>) {
    let file = SqliteFile::open(2).await;
    let options = file.pool.connect_options().as_ref().clone();
    let pool = SqlitePoolOptions::new().min_connections(minimum).max_connections(2);
    let pool = pool.connect_with(options).await.unwrap();
    (file, SqlxProvider::new("main", 1, pool).unwrap())
}

/// As a run that is dropped outside its runtime. sqlx's connection wants one where the pool keeps a
/// minimum.
#[test]
fn a_close_dropped_half_way_outside_its_runtime_does_not_panic() {
    for minimum in [0, 1] {
        let runtime = Runtime::new().unwrap();
        let (file, close) = runtime.block_on(async {
            let (file, provider) = keeps_a_minimum(minimum).await;
            let handle = provider.acquire(false).await.unwrap();
            loop {
                // A database may be that fast.
                let mut begin = pin!(tokio::task::unconstrained(provider.begin(&handle)));
                let Poll::Ready(begun) = futures::poll!(begin.as_mut()) else { break };
                begun.unwrap();
                provider.rollback(&handle).await.unwrap();
            }
            let mut close = Box::pin(async move { provider.close(&handle).await });
            let _ = futures::poll!(close.as_mut());
            (file, close)
        });
        drop(close);
        runtime.block_on(async { drop(file) });
    }
}

thread_local! {
    /// Goes after the runtime's own of this thread, if it is used before it.
    static LEFT: RefCell<Option<SqlxSession<Sqlite>>> = const { RefCell::new(None) };
}

#[test]
fn a_guard_that_goes_with_its_thread_after_its_runtime_ends_no_process() {
    for minimum in [0, 1] {
        let runtime = Runtime::new().unwrap();
        let (file, provider) = runtime.block_on(keeps_a_minimum(minimum));
        let (owned, pool) = (runtime.handle().clone(), provider.pool().clone());
        let (left, has_left) = std::sync::mpsc::channel();
        let (ends, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            LEFT.with_borrow_mut(|left| assert!(left.is_none()));
            let session = owned.block_on(async {
                let handle = provider.acquire(false).await.unwrap();
                provider.session(&handle).unwrap()
            });
            LEFT.set(Some(session));
            left.send(()).unwrap();
            let _ = ended.recv();
        });
        has_left.recv().unwrap();
        // For the connection, the file must outlast the runtime.
        drop(runtime);
        drop(ends);
        thread.join().unwrap();
        while pool.num_idle() < pool.size() as usize {
            std::thread::sleep(Duration::from_millis(1));
        }
        Runtime::new().unwrap().block_on(async { drop(file) });
    }
}

/// SQLite's driver says goodbye when the statement that runs has ended. A provider that waits less than
/// sqlx's own pool does gives the connection up in time.
#[tokio::test]
async fn a_connection_that_is_slow_to_close_is_gone_before_its_permit_is_free() {
    let database = SqliteFile::open(1).await;
    let provider = SqlxProvider::builder("main", 1, database.pool.clone());
    let provider = &provider.acquire_timeout(Duration::from_millis(400)).build().unwrap();
    let admission = Admission::builder().start().unwrap();
    let runner = JobRunner::builder(&admission).build().unwrap();
    let counts =
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000000)
                  SELECT max(i) FROM n";
    let work = async |resources: admit::Resources| {
        let mut session = resources.get(provider)?;
        session.execute(counts).await?;
        Ok::<_, BoxError>(())
    };
    let run = runner.job(Requirements::new().database(provider)).within(Duration::from_millis(40));
    run.run(work).await.unwrap_err();
    assert_eq!((provider.account().status().active, database.out()), (0, 0));
}
