//! Jobs over three databases at once, each with faults drawn at random, and what is then left.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use admit::testing::Draw;
use admit::{
    Admission, BoxError, DbProvider, JobRunner, Requirements, Resources, RunError, SqlxProvider,
    TimeoutCause,
};
use futures::FutureExt;
use sqlx::{Connection, Database, Executor, MySql, Postgres, Sqlite};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::mysql::MySqlDatabase;
use crate::postgres::PostgresDatabase;
use crate::sqlite::{SqliteFile, insert};

const JOBS: u64 = 80;
const SEEDS: [u64; 1] = [1];

/// What a job does on a database between its two rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Nothing,
    Pause,
    /// A statement that fails, which the job goes on from.
    Swallows,
    /// A statement dropped at its first poll.
    DropsAStatement,
    /// A savepoint that is committed, or left to its drop.
    Savepoint,
    LeavesASavepoint,
    /// A `begin` of sqlx's dropped at its first poll.
    DropsABegin,
    /// Its own connection is ended.
    Kills,
    /// Its session is carried off by a task, for a while.
    CarriesOff,
    /// A task with a clone of its resources writes wherever it can.
    Spawns,
    /// A statement that changes the connection.
    TurnsOff,
}

const DEEDS: [Deed; 11] = [
    Deed::Nothing,
    Deed::Pause,
    Deed::Swallows,
    Deed::DropsAStatement,
    Deed::Savepoint,
    Deed::LeavesASavepoint,
    Deed::DropsABegin,
    Deed::Kills,
    Deed::CarriesOff,
    Deed::Spawns,
    Deed::TurnsOff,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Fails,
    Panics,
    Cancelled,
    OutOfTime,
    Dropped,
}

#[derive(Clone, Debug)]
struct Script {
    number: u64,
    deeds: [Option<Deed>; 3],
    end: End,
    after: Duration,
}

impl Script {
    fn draw(number: u64, draw: &mut Draw) -> Self {
        let mut deeds = [None; 3];
        for deed in &mut deeds {
            if !draw.one_in(3) {
                let odd = DEEDS[draw.between(0..=DEEDS.len() as u64 - 1) as usize];
                *deed = Some(if draw.one_in(2) { odd } else { Deed::Nothing });
            }
        }
        let end = match draw.between(0..=15) {
            0 => End::Fails,
            1 => End::Panics,
            2 | 3 => End::Cancelled,
            4 => End::OutOfTime,
            5 | 6 => End::Dropped,
            _ => End::Done,
        };
        // Where a token or a time ends it, at any point.
        let after = Duration::from_micros(draw.between(0..=150_000));
        Self { number, deeds, end, after }
    }

    /// sqlx rolls back what is around such a `begin` on PostgreSQL, and what comes after stays.
    fn may_lose_its_transaction(deed: Deed) -> bool {
        deed == Deed::DropsABegin
    }
}

struct Words {
    pause: &'static str,
    kill: &'static str,
    turn_off: &'static str,
}

static ON_A: Words = Words {
    pause: "SELECT pg_sleep(0.003)",
    kill: "SELECT pg_terminate_backend(pg_backend_pid())",
    turn_off: "SET default_transaction_deferrable = on",
};
static ON_B: Words = Words {
    pause: "SELECT sleep(0.003)",
    kill: "KILL CONNECTION connection_id()",
    turn_off: "SET autocommit = 0",
};
static ON_C: Words =
    Words { pause: "SELECT 1", kill: "SELECT 1", turn_off: "PRAGMA cache_size = 100" };

async fn first_poll<F: Future>(future: F) {
    let _ = futures::poll!(std::pin::pin!(future));
}

async fn work<DB>(
    resources: &Resources,
    provider: &Arc<SqlxProvider<DB>>,
    words: &'static Words,
    number: u64,
    deed: Deed,
) -> Result<(), BoxError>
where
    DB: Database,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Connection: Send,
{
    let mut session = resources.get(provider)?;
    (&mut *session).execute(insert(number)).await?;
    match deed {
        Deed::Nothing => {}
        Deed::Pause => {
            (&mut *session).execute(words.pause).await?;
        }
        Deed::Swallows => {
            let _ = (&mut *session).execute("SELECT nothing FROM nowhere").await;
        }
        Deed::DropsAStatement => first_poll((&mut *session).execute(words.pause)).await,
        Deed::Savepoint | Deed::LeavesASavepoint => {
            let mut within = session.begin().await?;
            (&mut *within).execute(insert(number + 10_000)).await?;
            if deed == Deed::Savepoint {
                within.commit().await?;
            }
        }
        Deed::DropsABegin => first_poll(session.begin()).await,
        Deed::Kills => {
            let _ = (&mut *session).execute(words.kill).await;
        }
        Deed::CarriesOff => {
            (&mut *session).execute(insert(number)).await?;
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(number % 40)).await;
                let _ = (&mut *session).execute(insert(number + 20_000)).await;
            });
            return Ok(());
        }
        Deed::Spawns => {
            let (resources, provider) = (resources.clone(), Arc::clone(provider));
            tokio::spawn(async move {
                loop {
                    match resources.get(&provider) {
                        Ok(mut session) => {
                            let _ = (&mut *session).execute(insert(number + 30_000)).await;
                        }
                        Err(admit::ProviderError::InUse { .. }) => {}
                        Err(_) => return,
                    }
                    tokio::task::yield_now().await;
                }
            });
        }
        Deed::TurnsOff => {
            (&mut *session).execute(words.turn_off).await?;
        }
    }
    (&mut *session).execute(insert(number)).await?;
    Ok(())
}

/// What is known of a job's commits.
#[derive(Debug)]
enum Known {
    All,
    Nothing,
    /// So many are, the next one may be, and no other.
    Durable(usize),
    /// Its run was dropped, so as many as there were time for, in order.
    Some,
}

async fn havoc(seed: u64) {
    let Some(postgres) = PostgresDatabase::open(5).await else { return };
    let Some(mysql) = MySqlDatabase::open(5).await else { return };
    let sqlite = SqliteFile::open(5).await;
    let limit = Duration::from_millis(400);
    let a: Arc<SqlxProvider<Postgres>> = SqlxProvider::builder("a", 3, postgres.pool.clone())
        .acquire_timeout(limit)
        .build()
        .unwrap();
    let b: Arc<SqlxProvider<MySql>> =
        SqlxProvider::builder("b", 3, mysql.pool.clone()).acquire_timeout(limit).build().unwrap();
    let c: Arc<SqlxProvider<Sqlite>> = SqlxProvider::builder("c", 2, sqlite.pool.clone())
        .acquire_timeout(Duration::from_secs(20))
        .begin_with("BEGIN IMMEDIATE")
        .build()
        .unwrap();

    let admission = Admission::builder().start().unwrap();
    let runner = JobRunner::builder(&admission).build().unwrap();
    let mut draw = Draw::new(seed);
    let mut tasks = JoinSet::new();
    for number in 1..=JOBS {
        let script = Script::draw(number, &mut draw);
        let mut requirements = Requirements::new().transactional();
        if script.deeds[0].is_some() {
            requirements = requirements.database(&a);
        }
        if script.deeds[1].is_some() {
            requirements = requirements.database(&b);
        }
        if script.deeds[2].is_some() {
            requirements = requirements.database(&c);
        }
        let token = CancellationToken::new();
        let (a, b, c) = (Arc::clone(&a), Arc::clone(&b), Arc::clone(&c));
        let of_job = script.clone();
        let mut job = runner.job(requirements).cancelled_by(token.clone());
        if script.end == End::OutOfTime {
            job = job.within(script.after);
        }
        let run = job.run(move |resources| {
            let (a, b, c, script) =
                (Arc::clone(&a), Arc::clone(&b), Arc::clone(&c), of_job.clone());
            async move {
                let number = script.number;
                if let Some(deed) = script.deeds[0] {
                    work(&resources, &a, &ON_A, number, deed).await?;
                }
                if let Some(deed) = script.deeds[1] {
                    work(&resources, &b, &ON_B, number, deed).await?;
                }
                if let Some(deed) = script.deeds[2] {
                    work(&resources, &c, &ON_C, number, deed).await?;
                }
                match script.end {
                    End::Fails => Err("as it should".into()),
                    End::Panics => panic!("as it should"),
                    _ => Ok::<_, BoxError>(()),
                }
            }
        });
        tasks.spawn(async move {
            if script.end == End::Cancelled {
                let after = script.after;
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    token.cancel();
                });
            }
            let run = AssertUnwindSafe(run).catch_unwind();
            let ended = if script.end == End::Dropped {
                tokio::time::timeout(script.after, run).await
            } else {
                Ok(run.await)
            };
            let known = match &ended {
                Err(_) => Known::Some,
                Ok(Ok(Ok(()))) => Known::All,
                Ok(Ok(Err(
                    RunError::Commit { durable, .. }
                    | RunError::TimedOut {
                        cause: Some(TimeoutCause::Committing { durable }), ..
                    },
                ))) => Known::Durable(durable.len()),
                Ok(_) => Known::Nothing,
            };
            (script, known, format!("{ended:?}"))
        });
    }
    let mut jobs = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        jobs.push(ended.unwrap());
    }
    admission.stop();
    admission.drained().await;
    assert_eq!(a.account().status().active, 0);
    assert_eq!(b.account().status().active, 0);
    assert_eq!(c.account().status().active, 0);
    // Those that were carried off.
    while postgres.out() + mysql.out() + sqlite.out() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    while postgres.busy().await > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    mysql.quiet().await;

    for (script, known, ended) in jobs {
        let number = script.number;
        let mut rows = Vec::new();
        for (database, deed) in script.deeds.iter().enumerate() {
            let Some(deed) = deed else { continue };
            let mut of = [0; 4];
            for (beside, rows) in of.iter_mut().enumerate() {
                let number = number + 10_000 * beside as u64;
                *rows = match database {
                    0 => postgres.rows(number).await,
                    1 => mysql.rows(number).await,
                    _ => sqlite.rows(number).await,
                };
            }
            rows.push((*deed, of));
        }
        let case = format!("seed {seed}, {script:?}, {known:?}, {ended}: {rows:?}");
        let mut is_missing = false;
        for (place, (deed, rows)) in rows.into_iter().enumerate() {
            let is_there = rows[0] == 2 && (deed != Deed::Savepoint || rows[1] == 1);
            let is_nowhere = rows == [0; 4];
            if Script::may_lose_its_transaction(deed) && !is_there {
                assert!(!matches!(known, Known::All), "{case}");
                is_missing = true;
                continue;
            }
            assert!(is_there || is_nowhere, "half of it is there: {case}");
            if deed == Deed::LeavesASavepoint {
                assert_eq!(rows[1], 0, "{case}");
            }
            match known {
                Known::All => assert!(is_there, "{case}"),
                Known::Nothing => assert!(is_nowhere, "{case}"),
                Known::Durable(durable) if place < durable => assert!(is_there, "{case}"),
                Known::Durable(durable) if place > durable => assert!(is_nowhere, "{case}"),
                Known::Durable(_) => {}
                Known::Some => assert!(!(is_missing && is_there), "out of order: {case}"),
            }
            is_missing |= !is_there;
        }
    }
    postgres.drop().await;
    mysql.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_jobs_do_on_three_databases_their_rows_are_what_their_runs_said() {
    for seed in SEEDS {
        let over = tokio::time::timeout(Duration::from_secs(120), havoc(seed)).await;
        over.unwrap_or_else(|_| panic!("seed {seed} hangs"));
    }
}
