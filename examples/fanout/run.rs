//! One run, from the command line to the report.

use std::sync::Arc;
use std::time::Duration;

use admit::{Cost, ModelSpec, Money};
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
use crate::jobs::{Work, retries};
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
        retries: retries(args.attempts),
        seed: args.seed,
        stop,
    });
    let (http, database) = (args.http, args.database_connections);
    let (way, waits_are, (wall, spent)) = if args.one_at_a_time {
        let way = OneAtATime::new(&work.models, http, database);
        (OneAtATime::NAME, OneAtATime::WAITS, carry_out(way, jobs, &work, show).await)
    } else {
        let way = AllAtOnce::start(&work, http, database, !args.no_memory_gate, args.cap)?;
        (AllAtOnce::NAME, AllAtOnce::WAITS, carry_out(way, jobs, &work, show).await)
    };

    let rows = work.store.rows().await;
    work.store.close().await;
    Ok(Report {
        way,
        waits_are,
        totals: work.ledger.totals(),
        wall,
        spent,
        cap: args.cap.map(Money::usd),
        models: work.models.clone(),
        skipped: found.skipped,
        cut: found.cut,
        seen: stand_in.map(|stand_in| stand_in.seen()),
        database: work.store.path().to_owned(),
        rows,
        interrupted: work.stop.is_cancelled(),
    })
}

/// Does all the jobs, one way, and answers how long it took and what it cost.
async fn carry_out<W: Way>(
    way: W,
    jobs: Vec<Job>,
    work: &Arc<Work>,
    show: Show,
) -> (Duration, Option<Cost>) {
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
    (start.elapsed(), way.spent())
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
    let largest = jobs.iter().map(|job| job.reserved.total()).max().unwrap_or(0);
    let models: Vec<_> = models
        .iter()
        .map(|model| {
            let mut model = model.clone();
            let limits = model.limits();
            let requests = u64::from(limits.requests) * percent / 100;
            model.requests_per_minute = Some(u32::try_from(requests.max(1)).unwrap_or(u32::MAX));
            // Never so little that a job could not be done at all.
            model.tokens_per_minute = (limits.tokens * percent / 100).max(largest);
            let share = |calls| u32::try_from(u64::from(calls) * percent / 100).unwrap_or(u32::MAX);
            model.max_concurrent = model.max_concurrent.map(|calls| share(calls).max(1));
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
mod tests;
