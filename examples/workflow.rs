//! An orchestrator that fans out jobs under a cap on its money, and stops when the cap refuses one.
//!
//! ```text
//! cargo run --example workflow
//! ```
//!
//! The orchestrator is a job without requirements, so it never waits for a limit: were it to hold
//! one, its own children could not get it. Its children each call a model, which is stood in for by
//! a short sleep. What a child reserves is set aside before it waits for anything; what it used
//! replaces that when it ends. When a reservation would pass the cap the child is refused, the
//! orchestrator submits nothing more, and what runs already is finished.

use std::time::Duration;

use admit::{
    Admission, BoxError, JobInfo, JobRunner, ModelSpec, Money, Prices, Requirements, Resources,
    RunError, SpendLedger, UpstreamFailure, Usage,
};
use tokio::task::JoinSet;
use tokio::time::sleep;

const WORKFLOW: &str = "survey";
const TOPICS: usize = 40;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let admission = Admission::builder().start()?;
    let ledger = SpendLedger::new();
    ledger.set_cap(WORKFLOW, Money::usd("0.05".parse()?))?;
    let runner = JobRunner::builder(&admission).spend_gate(&ledger).build()?;

    // Two dollars and a half a million tokens in, ten out; four calls at once.
    let prices = Prices::per_million("2.50".parse()?, "10".parse()?);
    let model = ModelSpec::concurrent("standin", 4).with_prices(prices);

    let job = JobInfo::new("0", "orchestrator").in_workflow(WORKFLOW);
    let orchestrator = Requirements::new().for_job(job);
    let report = runner.run(orchestrator, async |_| fan_out(&runner, &model).await).await?;

    let left = ledger.committed(WORKFLOW);
    println!("{} of {TOPICS} topics done, {} not submitted", report.done, report.left_out);
    println!("why it stopped: {}", report.refusal.as_deref().unwrap_or("it had done them all"));
    println!("spent {}, set aside for running jobs {left}", ledger.spent(WORKFLOW));
    admission.drained().await;
    Ok(())
}

/// What became of the topics.
struct Report {
    done: usize,
    left_out: usize,
    refusal: Option<String>,
}

/// Submits topic after topic until one is refused, then waits for those that run.
async fn fan_out(runner: &JobRunner, model: &ModelSpec) -> Result<Report, BoxError> {
    let mut report = Report { done: 0, left_out: 0, refusal: None };
    let mut children = JoinSet::new();
    for topic in 0..TOPICS {
        // The money of a child is asked for when it is first polled, so the next one is submitted
        // only once it has begun or has been refused.
        children.spawn(summarise(runner.clone(), model.clone(), topic));
        sleep(Duration::from_millis(5)).await;
        while let Some(ended) = children.try_join_next() {
            report.note(ended?)?;
        }
        if report.refusal.is_some() {
            report.left_out += TOPICS - topic - 1;
            break;
        }
    }
    while let Some(ended) = children.join_next().await {
        report.note(ended?)?;
    }
    Ok(report)
}

impl Report {
    /// # Errors
    ///
    /// What went wrong with a child, unless it was refused its money.
    fn note(&mut self, ended: Result<(), RunError<UpstreamFailure>>) -> Result<(), BoxError> {
        match ended {
            Ok(()) => self.done += 1,
            Err(refused) if refused.is_spend_refusal() => {
                self.left_out += 1;
                self.refusal.get_or_insert(refused.to_string());
            }
            Err(other) => return Err(other.into()),
        }
        Ok(())
    }
}

/// One child: a call of at most 1,000 tokens in and 400 out.
async fn summarise(
    runner: JobRunner,
    model: ModelSpec,
    topic: usize,
) -> Result<(), RunError<UpstreamFailure>> {
    let job = JobInfo::new(topic.to_string(), "summarise").in_workflow(WORKFLOW);
    let requirements = Requirements::new().call(&model, Usage::new(1_000, 400)).for_job(job);
    let call = async |resources: Resources| {
        sleep(Duration::from_millis(20)).await;
        // Most answers are shorter than what was reserved for them.
        let used = Usage::new(940, 60 + (topic as u64 % 5) * 40);
        resources.record_usage(&model, used).expect("the job requires the model");
        Ok(())
    };
    runner.run(requirements, call).await
}
