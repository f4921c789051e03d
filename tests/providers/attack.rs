//! What jobs can do to their connection with their own SQL and their own drops.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use admit::{
    Admission, BoxError, DbProvider, DbVerb, JobRunner, ProviderError, Requirements, RunError,
    SqlxProvider,
};
use futures::TryStreamExt as _;
use sqlx::{AssertSqlSafe, Connection, Executor, MySql};
use tokio::sync::Barrier;

use crate::mysql::{FAILS_LATE, MySqlDatabase, thread};
use crate::postgres::PostgresDatabase;
use crate::sqlite::{SqliteFile, insert};

fn runner() -> JobRunner {
    JobRunner::builder(&Admission::builder().start().unwrap()).build().unwrap()
}

/// One of the two must lose, and MySQL rolls its whole transaction back.
#[tokio::test]
async fn a_job_that_swallows_a_deadlock_is_not_taken_for_done() {
    let Some(database) = MySqlDatabase::open(4).await else { return };
    let made = "CREATE TABLE locks (id INT PRIMARY KEY, held INT);
                INSERT INTO locks VALUES (1, 0), (2, 0)";
    database.observer.execute(made).await.unwrap();
    let provider = SqlxProvider::new("main", 2, database.pool.clone()).unwrap();
    let (runner, provider, both) = (runner(), &provider, &Barrier::new(2));
    let job = |number: u64, first: u64, second: u64| {
        let lock = |id| AssertSqlSafe(format!("UPDATE locks SET held = held + 1 WHERE id = {id}"));
        runner.run(
            Requirements::new().database(provider).transactional(),
            move |resources| async move {
                let mut session = resources.get(provider)?;
                session.execute(insert(number)).await?;
                session.execute(lock(first)).await?;
                both.wait().await;
                let _ = session.execute(lock(second)).await;
                Ok::<_, BoxError>(())
            },
        )
    };
    let ended = tokio::join!(job(1, 1, 2), job(2, 2, 1));
    let mut failed = 0;
    for (number, ended) in [(1, ended.0), (2, ended.1)] {
        let rows = match ended {
            Ok(()) => 1,
            Err(RunError::Commit { source, .. }) => {
                assert!(source.to_string().contains("has ended its transaction"), "{source}");
                failed += 1;
                0
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(database.rows(number).await, rows, "job {number}");
    }
    assert_eq!(failed, 1);
    assert_eq!(database.out(), 0);
    database.quiet().await;
    database.drop().await;
}

#[tokio::test]
async fn a_statement_that_commits_by_itself_is_told_at_the_commit() {
    let Some(database) = MySqlDatabase::open(1).await else { return };
    let provider = SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    for (statement, ends_it) in [
        ("CREATE TABLE IF NOT EXISTS made (id INT)", true),
        ("COMMIT", true),
        ("ROLLBACK", true),
        ("SAVEPOINT admit", false),
        ("SELECT 1", false),
        ("SET @admit = 1", false),
    ] {
        let handle = provider.acquire(false).await.unwrap();
        provider.begin(&handle).await.unwrap();
        provider.session(&handle).unwrap().execute(statement).await.unwrap();
        match provider.commit(&handle).await {
            Ok(()) => assert!(!ends_it, "{statement}"),
            Err(error) => {
                assert!(ends_it, "{statement}: {error}");
                assert!(error.to_string().contains("has ended its transaction"), "{error}");
            }
        }
        provider.close(&handle).await.unwrap();
        assert_eq!(database.out(), 0);
        database.quiet().await;
    }
    database.drop().await;
}

/// sqlx's driver for MySQL reads no further than the row that was asked for.
#[tokio::test]
async fn a_statement_that_fails_behind_the_row_that_was_asked_for_is_told_at_the_commit() {
    let Some(database) = MySqlDatabase::open(1).await else { return };
    database.observer.execute(FAILS_LATE).await.unwrap();
    let provider = &SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    for way in 0..3 {
        let requirements = Requirements::new().database(provider).transactional();
        let run = runner().run(requirements, async |resources| {
            let mut session = resources.get(provider)?;
            session.execute(insert(1)).await?;
            match way {
                0 => drop(sqlx::query("CALL fails_late()").fetch_one(&mut *session).await?),
                1 => drop(session.fetch_one("CALL fails_late()").await?),
                // Dropped half-way, which nothing tells from the others.
                _ => drop(session.fetch("CALL fails_late()").try_next().await?),
            }
            Ok::<_, BoxError>(())
        });
        match run.await.unwrap_err() {
            RunError::Commit { source, .. } => {
                assert!(source.to_string().contains("too late"), "{source}");
            }
            error => panic!("{error}"),
        }
        assert_eq!(database.rows(1).await, 0);
        assert_eq!(database.out(), 0);
        database.quiet().await;
    }
    database.drop().await;
}

/// A wait that is too long costs the statement and not the transaction.
#[tokio::test]
async fn a_job_that_swallows_a_lock_it_did_not_get_keeps_its_rows() {
    let Some(database) = MySqlDatabase::open(2).await else { return };
    let made = "CREATE TABLE locks (id INT PRIMARY KEY); INSERT INTO locks VALUES (1)";
    database.observer.execute(made).await.unwrap();
    let mut holder = database.observer.begin().await.unwrap();
    holder.execute("SELECT id FROM locks FOR UPDATE").await.unwrap();
    let provider = &SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    let requirements = Requirements::new().database(provider).transactional();
    let run = runner().run(requirements, async |resources| {
        let mut session = resources.get(provider)?;
        session.execute(insert(1)).await?;
        session.execute("SELECT id FROM locks FOR UPDATE NOWAIT").await.unwrap_err();
        assert_eq!(database.busy().await, 2, "what looks for open transactions finds them");
        Ok::<_, BoxError>(())
    });
    run.await.unwrap();
    holder.rollback().await.unwrap();
    assert_eq!(database.rows(1).await, 1);
    database.drop().await;
}

/// A statement that is on its way when it is dropped.
async fn drops_a_statement(provider: &Arc<SqlxProvider<MySql>>, handle: &admit::SqlxHandle<MySql>) {
    let mut session = provider.session(handle).unwrap();
    for value in 0_i64.. {
        let sql =
            AssertSqlSafe(format!("INSERT INTO entries SELECT ? + {value} FROM dual WHERE 0"));
        let mut statement = Box::pin(sqlx::query(sql).bind(value).execute(&mut *session));
        // A server may be that fast.
        let Poll::Ready(done) = futures::poll!(statement.as_mut()) else { break };
        done.unwrap();
    }
}

/// sqlx's driver for MySQL takes what is left of its answer for the next one's.
#[tokio::test]
async fn a_statement_dropped_while_it_is_prepared_confuses_nobody_else() {
    let Some(database) = MySqlDatabase::open(1).await else { return };
    let provider = SqlxProvider::builder("main", 1, database.pool.clone())
        .acquire_timeout(Duration::from_millis(500))
        .build()
        .unwrap();
    for way in ["commit", "rollback", "close", "none open"] {
        for _ in 0..10 {
            let handle = provider.acquire(false).await.unwrap();
            if way != "none open" {
                provider.begin(&handle).await.unwrap();
                provider.session(&handle).unwrap().execute(insert(1)).await.unwrap();
            }
            drops_a_statement(&provider, &handle).await;
            // Each as a runner takes it: what hangs is cut off, and the session given up.
            let limit = provider.acquire_timeout() * 2;
            if way == "commit" {
                let long = Duration::from_secs(60);
                let committed = tokio::time::timeout(long, provider.commit(&handle)).await;
                let committed = committed.expect("nothing cuts a commit off, so it must not hang");
                assert_eq!(database.rows(1).await, usize::from(committed.is_ok()), "{committed:?}");
            }
            if way == "rollback" {
                let _ = tokio::time::timeout(limit, provider.rollback(&handle)).await;
            }
            if tokio::time::timeout(limit, provider.close(&handle)).await.is_err() {
                provider.abort(&handle);
                provider.close(&handle).await.unwrap();
            }
            if way != "commit" {
                assert_eq!(database.rows(1).await, 0);
            }
            database.observer.execute("DELETE FROM entries").await.unwrap();
            // With a pool of one, the next has this connection, or this one is gone.
            let handle = provider.acquire(false).await.unwrap();
            let mut session = provider.session(&handle).unwrap();
            let asked = sqlx::query_scalar("SELECT ? + 41").bind(1_i64);
            let answer: i64 = asked.fetch_one(&mut *session).await.unwrap();
            assert_eq!(answer, 42, "after {way}");
            drop(session);
            provider.close(&handle).await.unwrap();
        }
    }
    database.drop().await;
}

/// Otherwise everything the next job writes would be in a transaction that nobody commits.
#[tokio::test]
async fn a_job_that_turns_autocommit_off_takes_it_along() {
    takes_along("SET autocommit = 0").await;
    // Every end of a transaction begins another.
    takes_along("SET completion_type = 'CHAIN'").await;
}

async fn takes_along(statement: &'static str) {
    let Some(database) = MySqlDatabase::open(1).await else { return };
    let provider = &SqlxProvider::new("main", 1, database.pool.clone()).unwrap();
    let (runner, plain) = (runner(), Requirements::new().database(provider));
    for requirements in [plain.clone(), plain.clone().transactional(), plain.clone().read_only()] {
        let turns_off = runner.run(requirements, async |resources| {
            resources.get(provider)?.execute(statement).await?;
            Ok::<_, BoxError>(())
        });
        turns_off.await.unwrap();
        assert_eq!(database.out(), 0);
        let writes = runner.run(plain.clone(), async |resources| {
            let mut session = resources.get(provider)?;
            session.execute(insert(1)).await?;
            Ok::<_, BoxError>(thread(&mut session).await?)
        });
        let first = writes.await.unwrap();
        assert_eq!(database.rows(1).await, 1);
        database.observer.execute("DELETE FROM entries").await.unwrap();
        // One that leaves it alone goes back.
        let again = runner.run(plain.clone(), async |resources| {
            Ok::<_, BoxError>(thread(&mut resources.get(provider)?).await?)
        });
        assert_eq!(again.await.unwrap(), first);
    }
    database.drop().await;
}

/// SQLite ends the transaction where a conflict, or a trigger, says so.
#[tokio::test]
async fn a_job_that_swallows_a_conflict_that_rolls_back_is_not_taken_for_done() {
    let file = SqliteFile::open(1).await;
    let made = "CREATE TABLE single (id INTEGER PRIMARY KEY);
                CREATE TRIGGER nine BEFORE INSERT ON single WHEN new.id = 9
                BEGIN SELECT raise(ROLLBACK, 'no nine'); END";
    file.observer.execute(made).await.unwrap();
    let (provider, runner) = (&SqlxProvider::new("main", 1, file.pool.clone()).unwrap(), runner());
    let conflict = "INSERT OR ROLLBACK INTO single VALUES (1), (1)";
    for statement in [conflict, "INSERT INTO single VALUES (9)"] {
        for is_within in [false, true] {
            let requirements = Requirements::new().database(provider).transactional();
            let run = runner.run(requirements, async |resources| {
                let mut session = resources.get(provider)?;
                session.execute(insert(1)).await?;
                if is_within {
                    let mut within = session.begin().await?;
                    within.execute(statement).await.unwrap_err();
                    // There is nothing left to release.
                    within.commit().await.unwrap_err();
                } else {
                    session.execute(statement).await.unwrap_err();
                }
                Ok::<_, BoxError>(())
            });
            let error = run.await.unwrap_err();
            assert!(matches!(error, RunError::Commit { .. }), "{statement}: {error}");
            assert_eq!((file.out(), file.rows(1).await), (0, 0), "{statement}");
            // What comes next on the pool's one connection is a transaction again.
            let next = runner.run(Requirements::new().database(provider), async |resources| {
                let mut session = resources.get(provider)?;
                let begun = session.begin().await?;
                Ok::<_, BoxError>(begun.rollback().await?)
            });
            next.await.unwrap();
        }
    }
}

/// The server waits for rows, and the driver for the server.
#[tokio::test]
async fn a_connection_that_answers_nothing_does_not_look_like_a_long_commit() {
    let Some(database) = PostgresDatabase::open(1).await else { return };
    let provider = SqlxProvider::builder("main", 1, database.pool.clone())
        .acquire_timeout(Duration::from_millis(100))
        .build()
        .unwrap();
    let provider = &provider;
    let requirements = Requirements::new().database(provider).transactional();
    let run = runner().run(requirements, async |resources| {
        let mut session = resources.get(provider)?;
        session.execute(insert(1)).await?;
        session.execute("COPY entries FROM STDIN").await.unwrap_err();
        Ok::<_, BoxError>(())
    });
    let error = run.await.unwrap_err();
    let RunError::Commit { source, durable } = &error else { panic!("{error}") };
    assert!(matches!(source, ProviderError::TimedOut { verb: DbVerb::Commit, .. }), "{error}");
    assert!(durable.is_empty());
    assert_eq!((database.out(), database.rows(1).await), (0, 0));
    drop(database.pool.acquire().await.unwrap());
    database.drop().await;
}
