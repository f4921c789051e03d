//! One run, from the command line to the report.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::baseline::OneAtATime;
use crate::cli::Args;
use crate::client::Client;
use crate::error::Fatal;
use crate::figures::count;
use crate::files;
use crate::gauge::Gauges;
use crate::jobs::Work;
use crate::ledger::{Ledger, Outcome};
use crate::plan::{BYTES_A_TOKEN, Job, Model, Plan};
use crate::progress::{Progress, Show};
use crate::provider::{Character, StandIn};
use crate::report::Report;
use crate::store::Store;

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
    let store = Store::open(&args.database(), &folder, args.database_connections).await?;

    let (stand_in, client) = match &args.endpoint {
        Some(endpoint) => (None, Client::new(endpoint, args.key()?, args.call_timeout())?),
        None => {
            let stand_in = open_stand_in(args, &models, &jobs).await?;
            let client = Client::new(&stand_in.url, None, args.call_timeout())?;
            (Some(stand_in), client)
        }
    };
    client.check().await?;
    if show != Show::Nothing {
        let whom = args.endpoint.as_deref().unwrap_or("a stand-in provider");
        let (files, models) = (count(jobs.len(), "file"), count(models.len(), "model"));
        eprintln!("{files} under {}, {models} of {whom}", folder.display());
    }

    let limits = OneAtATime::new(&models, args.http, args.database_connections);
    let limits = Arc::new(limits);
    let accounts = limits.read().into_iter().map(|gauge| gauge.name);
    let work = Arc::new(Work {
        client,
        store,
        ledger: Ledger::new(models.len(), accounts),
        models,
        max_bytes,
        max_output: args.max_output,
        attempts: args.attempts,
        seed: args.seed,
        stop,
    });
    let progress = Progress::start(show, jobs.len(), &work, Arc::<OneAtATime>::clone(&limits) as _);
    let start = Instant::now();
    run_all(jobs, &work, |work, job| {
        let limits = Arc::clone(&limits);
        async move { limits.run(&work, &job).await }
    })
    .await;
    let wall = start.elapsed();
    drop(progress);

    let rows = work.store.rows().await;
    work.store.close().await;
    Ok(Report {
        way: "one at a time, holding the earlier ones",
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

/// A task for each job, all at once: how many go at a time is for the limits to say.
async fn run_all<F>(jobs: Vec<Job>, work: &Arc<Work>, one: impl Fn(Arc<Work>, Arc<Job>) -> F)
where
    F: Future<Output = Outcome> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for job in jobs {
        let job = Arc::new(job);
        let running = one(Arc::clone(work), Arc::clone(&job));
        let work = Arc::clone(work);
        tasks.spawn(async move {
            // A task of its own, so that a panic in a job is that job's failure.
            let outcome = tokio::spawn(running).await;
            let outcome = outcome.unwrap_or_else(|error| Outcome::Failed(error.to_string()));
            work.ledger.ended(&job.path, outcome);
        });
    }
    while tasks.join_next().await.is_some() {}
}

/// Starts the stand-in with the budgets the run believes in, or with the share of them it is to have.
async fn open_stand_in(args: &Args, models: &[Model], jobs: &[Job]) -> Result<StandIn, Fatal> {
    let percent = u64::from(args.true_budget);
    let largest = jobs.iter().map(|job| job.reservation).max().unwrap_or(0);
    let models: Vec<_> = models
        .iter()
        .map(|model| {
            let requests = u64::from(model.requests_per_minute) * percent / 100;
            Model {
                name: model.name.clone(),
                requests_per_minute: u32::try_from(requests.max(1)).unwrap_or(u32::MAX),
                // Never so little that a job could not be done at all.
                tokens_per_minute: (model.tokens_per_minute * percent / 100).max(largest),
            }
        })
        .collect();
    let character = Character {
        latency: Duration::from_millis(args.latency),
        chaos: args.chaos,
        seed: args.seed,
    };
    StandIn::start(&models, character).await.map_err(Fatal::StandIn)
}
