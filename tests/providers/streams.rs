//! A stream of rows that is dropped half-way, by a job that goes on.

use std::time::Duration;

use admit::{Admission, BoxError, JobRunner, Requirements, Resources, SqlxProvider, SqlxSession};
use futures::StreamExt;
use sqlx::{AssertSqlSafe, Executor};
use tokio::time::timeout;

use crate::mysql::MySqlDatabase;
use crate::postgres::PostgresDatabase;
use crate::sqlite::{SqliteFile, insert};

/// More than a connection holds back, so that the server is in the middle of it.
fn rows() -> String {
    let row = "x".repeat(1_000);
    format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900)
         SELECT i, '{row}' FROM n"
    )
}

macro_rules! dropped_streams {
    ($database:ident, $driver:ty) => {{
        let provider = SqlxProvider::new("main", 1, $database.pool.clone()).unwrap();
        let admission = Admission::builder().start().unwrap();
        let runner = JobRunner::builder(&admission).build().unwrap();
        let mut number = 0;
        // Dropped while it is prepared, a statement is another test's.
        for (is_prepared, taken) in
            [(false, 0), (false, 1), (false, 700), (true, 1), (true, 3), (true, 700)]
        {
            for (goes_on, fails) in [(true, false), (false, false), (true, true)] {
                number += 10;
                let requirements = Requirements::new().database(&provider).transactional();
                let job = async |resources: Resources| {
                    let mut session: SqlxSession<$driver> = resources.get(&provider)?;
                    session.execute(insert(number)).await?;
                    let mut rows = match is_prepared {
                        true => sqlx::query(AssertSqlSafe(rows())).fetch(&mut *session),
                        false => session.fetch(AssertSqlSafe(rows())),
                    };
                    if taken == 0 {
                        let _ = futures::poll!(rows.next());
                    }
                    for _ in 0..taken {
                        rows.next().await.ok_or("there are more")??;
                    }
                    drop(rows);
                    if goes_on {
                        session.execute(insert(number + 1)).await?;
                    }
                    if fails { Err(BoxError::from("told to")) } else { Ok(()) }
                };
                let run = timeout(Duration::from_secs(60), runner.run(requirements, job));
                let ran = run.await.expect("it does not hang");
                let case = format!("{is_prepared} {taken} {goes_on} {fails}: {ran:?}");
                assert_eq!(ran.is_ok(), !fails, "{case}");
                let there = [$database.rows(number).await, $database.rows(number + 1).await];
                let expected = [!fails, !fails && goes_on].map(usize::from);
                assert_eq!((there, $database.out()), (expected, 0), "{case}");
            }
        }
    }};
}

#[tokio::test]
async fn a_stream_dropped_half_way_on_sqlite_costs_the_job_nothing() {
    let file = SqliteFile::open(1).await;
    dropped_streams!(file, sqlx::Sqlite);
}

#[tokio::test]
async fn a_stream_dropped_half_way_on_postgres_costs_the_job_nothing() {
    let Some(database) = PostgresDatabase::open(1).await else { return };
    dropped_streams!(database, sqlx::Postgres);
    database.drop().await;
}

#[tokio::test]
async fn a_stream_dropped_half_way_on_mysql_costs_the_job_nothing() {
    let Some(database) = MySqlDatabase::open(1).await else { return };
    dropped_streams!(database, sqlx::MySql);
    database.drop().await;
}
