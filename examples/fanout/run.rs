//! One run, from the command line to the report.

use std::sync::Arc;
use std::time::Duration;

use admit::ModelSpec;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::admitted::AllAtOnce;
use crate::baseline::OneAtATime;
use crate::cli::Args;
use crate::client::Client;
use crate::error::Fatal;
use crate::figures::count;
use crate::files;
use crate::jobs::Work;
use crate::ledger::{Ledger, Outcome};
use crate::plan::{BYTES_A_TOKEN, Job, Plan};
use crate::progress::{Progress, Show};
use crate::provider::{Character, StandIn};
use crate::report::Report;
use crate::store::Store;
use crate::way::Way;

/// Does everything the command line asks for. Cancelling `stop` ends it early: what is in flight
/// is still answered and stored, nothing else begins.
///
/// # Errors
///
/// When it cannot start. What goes wrong with single jobs is in the report.
pub(crate) async fn run(args: &Args, show: Show, stop: CancellationToken) -> Result<Report, Fatal> {
    let folder = args.folder();
    let folder = folder.canonicalize().unwrap_or(folder);
    let max_bytes = u64::from(args.max_input) * BYTES_A_TOKEN;
    let found = files::collect(&folder, max_bytes, args.limit)?;
    let Plan { models, jobs } = Plan::new(args, found.files)?;
    let (stand_in, client) = match &args.endpoint {
        Some(endpoint) => (None, Client::new(endpoint, args.key()?, args.call_timeout())?),
        None => {
            let stand_in = open_stand_in(args, &models, &jobs).await?;
            let client = Client::new(&stand_in.url, None, args.call_timeout())?;
            (Some(stand_in), client)
        }
    };
    client.check().await?;
    let store = Store::open(&args.database(), &folder, args.database_connections).await?;
    if show != Show::Nothing {
        let whom = args.endpoint.as_deref().unwrap_or("a stand-in provider");
        let (files, models) = (count(jobs.len(), "file"), count(models.len(), "model"));
        eprintln!("{files} under {}, {models} of {whom}", folder.display());
    }

    let work = Arc::new(Work {
        client,
        store,
        ledger: Ledger::new(models.len()),
        models,
        max_bytes,
        max_output: args.max_output,
        attempts: args.attempts,
        seed: args.seed,
        stop,
    });
    let (http, database) = (args.http, args.database_connections);
    let (way, waits_are, wall) = if args.one_at_a_time {
        let way = OneAtATime::new(&work.models, http, database);
        (OneAtATime::NAME, OneAtATime::WAITS, carry_out(way, jobs, &work, show).await)
    } else {
        let way = AllAtOnce::start(&work.models, http, database, !args.no_memory_gate)?;
        (AllAtOnce::NAME, AllAtOnce::WAITS, carry_out(way, jobs, &work, show).await)
    };

    let rows = work.store.rows().await;
    work.store.close().await;
    Ok(Report {
        way,
        waits_are,
        totals: work.ledger.totals(),
        wall,
        models: work.models.clone(),
        skipped: found.skipped,
        cut: found.cut,
        seen: stand_in.map(|stand_in| stand_in.seen()),
        database: work.store.path().to_owned(),
        rows,
        interrupted: work.stop.is_cancelled(),
    })
}

/// Does all the jobs, one way, and answers how long it took.
async fn carry_out<W: Way>(way: W, jobs: Vec<Job>, work: &Arc<Work>, show: Show) -> Duration {
    let way = Arc::new(way);
    work.ledger.list_accounts(way.gauges().into_iter().map(|gauge| gauge.name));
    let progress = Progress::start(show, jobs.len(), work, Arc::clone(&way));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    // All at once: how many go at a time is for the limits to say.
    for job in jobs {
        tasks.spawn(carry_out_one(Arc::clone(&way), Arc::new(job), Arc::clone(work)));
    }
    let all = async { while tasks.join_next().await.is_some() {} };
    tokio::pin!(all);
    if work.stop.run_until_cancelled(&mut all).await.is_none() {
        way.stop();
        all.await;
    }
    way.stop();
    way.drained().await;
    drop(progress);
    start.elapsed()
}

async fn carry_out_one<W: Way>(way: Arc<W>, job: Arc<Job>, work: Arc<Work>) {
    // A task of its own, so that a panic in a job is that job's failure.
    let running = tokio::spawn({
        let (job, work) = (Arc::clone(&job), Arc::clone(&work));
        async move { way.run(&work, &job).await }
    });
    let outcome = running.await.unwrap_or_else(|error| Outcome::Failed(error.to_string()));
    work.ledger.ended(&job.path, outcome);
}

/// Starts the stand-in with the budgets the run believes in, or with the share of them it is to have.
async fn open_stand_in(args: &Args, models: &[ModelSpec], jobs: &[Job]) -> Result<StandIn, Fatal> {
    let percent = u64::from(args.true_budget);
    let largest = jobs.iter().map(|job| job.reservation).max().unwrap_or(0);
    let models: Vec<_> = models
        .iter()
        .map(|model| {
            let mut model = model.clone();
            let limits = model.limits();
            let requests = u64::from(limits.requests) * percent / 100;
            model.requests_per_minute = Some(u32::try_from(requests.max(1)).unwrap_or(u32::MAX));
            // Never so little that a job could not be done at all.
            model.tokens_per_minute = (limits.tokens * percent / 100).max(largest);
            model
        })
        .collect();
    let character = Character {
        latency: Duration::from_millis(args.latency),
        chaos: args.chaos,
        seed: args.seed,
    };
    StandIn::start(&models, character).await.map_err(Fatal::StandIn)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use clap::Parser as _;
    use sqlx::Row as _;
    use sqlx::sqlite::SqlitePool;
    use tempfile::TempDir;

    use super::*;

    /// A folder of so many files, one that is no text, and no database yet.
    fn folder(files: usize) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..files {
            let path = folder.path().join(format!("{number:02}.txt"));
            std::fs::write(path, format!("This is the file number {number}.\n")).unwrap();
        }
        std::fs::write(folder.path().join("binary"), b"\0\xff").unwrap();
        folder
    }

    async fn run_in(folder: &Path, line: &str, stop: &CancellationToken) -> Result<Report, Fatal> {
        let words = ["fanout", folder.to_str().unwrap(), "--database"];
        let database = folder.join(".rows.sqlite");
        let words = words.into_iter().chain([database.to_str().unwrap()]);
        let says = |flag| line.contains(flag);
        let fast = if says("--latency") || says("--endpoint") { "" } else { " --latency 1" };
        let line = format!("{line}{fast}");
        let args = Args::try_parse_from(words.chain(line.split_whitespace())).unwrap();
        run(&args, Show::Nothing, stop.clone()).await
    }

    async fn rows(folder: &Path) -> Vec<(String, String, u32)> {
        let url = format!("sqlite://{}", folder.join(".rows.sqlite").display());
        let pool = SqlitePool::connect(&url).await.unwrap();
        let rows = sqlx::query("SELECT path, summary, attempts FROM summaries ORDER BY path")
            .fetch_all(&pool)
            .await
            .unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
    }

    const AMPLE: &str = "--tokens-per-minute 1000000 --requests-per-minute 1000";

    #[tokio::test]
    async fn every_text_file_gets_its_row_either_way() {
        for way in ["", "--one-at-a-time"] {
            let folder = folder(20);
            let line = format!("{AMPLE} {way}");
            let report = run_in(folder.path(), &line, &CancellationToken::new()).await.unwrap();
            assert_eq!(report.status(), 0, "{report}");
            assert_eq!((report.totals.done, report.skipped.not_text), (20, 1), "{report}");
            assert_eq!(report.rows, Ok(20));
            let seen = report.seen.unwrap();
            assert_eq!((seen.answered, seen.refused), (20, 0));
            let tokens: u64 = report.totals.models.iter().map(|share| share.tokens).sum();
            assert_eq!(tokens, seen.tokens, "what was reconciled is what the provider counted");
            let rows = rows(folder.path()).await;
            let paths: HashSet<_> = rows.iter().map(|(path, ..)| path.as_str()).collect();
            assert_eq!(paths.len(), 20);
            assert!(
                rows.iter().all(|(_, summary, attempts)| !summary.is_empty() && *attempts == 1)
            );
        }
    }

    #[tokio::test]
    async fn a_provider_that_fails_now_and_then_costs_attempts_but_no_row() {
        let folder = folder(12);
        let line = format!("{AMPLE} --chaos 30 --attempts 50");
        let report = run_in(folder.path(), &line, &CancellationToken::new()).await.unwrap();
        assert_eq!((report.status(), report.rows.clone()), (0, Ok(12)), "{report}");
        let totals = &report.totals;
        assert!(totals.overloaded + totals.other_failures > 0, "{report}");
        assert_eq!(totals.calls, 12 + totals.overloaded + totals.other_failures);
        let attempts: u32 = rows(folder.path()).await.iter().map(|row| row.2).sum();
        assert_eq!(u64::from(attempts), totals.calls);
    }

    #[tokio::test]
    async fn a_job_that_is_given_up_is_told_and_changes_the_status() {
        let folder = folder(12);
        let line = format!("{AMPLE} --chaos 50 --attempts 1");
        let report = run_in(folder.path(), &line, &CancellationToken::new()).await.unwrap();
        assert_eq!(report.status(), 1);
        assert!(report.totals.failed > 0);
        assert_eq!(report.totals.done + report.totals.failed, 12);
        assert_eq!(report.rows, Ok(report.totals.done as u64));
        assert!(report.totals.told[0].contains("given up after 1 call"), "{report}");
    }

    #[tokio::test]
    async fn stopping_lets_what_is_in_flight_end_and_loses_no_row() {
        for way in ["", "--one-at-a-time"] {
            let folder = folder(40);
            let stop = CancellationToken::new();
            let line = format!("{AMPLE} --latency 300 --http 4 {way}");
            let (report, ()) = tokio::join!(run_in(folder.path(), &line, &stop), async {
                tokio::time::sleep(Duration::from_millis(600)).await;
                stop.cancel();
            });
            let report = report.unwrap();
            assert_eq!(report.status(), 130);
            let totals = &report.totals;
            assert!(totals.done > 0 && totals.unfinished > 0, "{report}");
            assert_eq!((totals.done + totals.unfinished, totals.failed), (40, 0), "{report}");
            assert_eq!(report.rows, Ok(totals.done as u64));
            assert_eq!(report.seen.unwrap().answered, totals.done as u64, "no answer is lost");
        }
    }

    #[tokio::test]
    async fn a_budget_that_is_smaller_than_believed_is_learned_from_the_answers() {
        let folder = folder(30);
        let line = "--model m --requests-per-minute 1200 --true-budget 50 --attempts 50";
        let line = format!("{line} --tokens-per-minute 100000 --http 30");
        let report = run_in(folder.path(), &line, &CancellationToken::new()).await.unwrap();
        assert_eq!((report.status(), report.totals.done), (0, 30), "{report}");
    }

    #[tokio::test]
    async fn what_keeps_a_run_from_starting_leaves_nothing_behind() {
        let folder = folder(2);
        let stop = CancellationToken::new();
        let line = "--endpoint http://127.0.0.1:1/v1";
        let error = run_in(folder.path(), line, &stop).await.unwrap_err();
        assert!(matches!(error, Fatal::Unreachable { .. }), "{error}");
        let error = run_in(folder.path(), "--tokens-per-minute 10", &stop).await.unwrap_err();
        assert!(matches!(error, Fatal::NeverFits { .. }), "{error}");
        assert!(!folder.path().join(".rows.sqlite").exists());
    }
}
