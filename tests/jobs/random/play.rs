//! Plays a scene, and writes down what its jobs saw.

use std::future::pending;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use admit::{
    Currency, Decimal, Finished, JobError, JobInfo, ModelSpec, Money, Prices, Replenishment,
    Requirements, Resources, RetryPolicy, SpendLedger, UpstreamFailure, Usage,
};
use futures::FutureExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::books::Books;
use super::{End, PRICES, Part, Scene, Script, Turn, currency};
use crate::listener::Listener;
use crate::support::World;

const CURRENCIES: [Currency; 2] = [Currency::USD, Currency::EUR];

/// How failed jobs are run again here.
pub(super) fn policy(max_retries: u32) -> RetryPolicy {
    let millis = Duration::from_millis;
    RetryPolicy {
        max_retries,
        usual: millis(100)..=millis(300),
        overload: millis(500)..=millis(900),
        max_multiplier: 2,
        max_wait: millis(1_500),
        refusals: false,
    }
}

/// So many millionths of a currency.
pub(super) fn money(currency: usize, millionths: u64) -> Money {
    Money::new(Decimal::new(millionths.try_into().unwrap(), 6), CURRENCIES[currency])
}

#[derive(Debug)]
pub(super) enum Failure {
    Own,
    Upstream(UpstreamFailure),
}

impl JobError for Failure {
    fn upstream(&self) -> Option<&UpstreamFailure> {
        match self {
            Self::Own => None,
            Self::Upstream(failure) => Some(failure),
        }
    }
}

/// What was recorded of one model.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorded {
    pub(super) tokens: u64,
    /// Whether there is a usage of it, for each call.
    pub(super) calls: Vec<bool>,
}

/// What one attempt saw.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) began: Instant,
    /// Of each model.
    pub(super) recorded: [Recorded; PRICES.len()],
    pub(super) was_late: bool,
    /// It told the time account itself.
    pub(super) has_reported: bool,
    /// It returned the permit.
    pub(super) has_returned: bool,
    /// How its future ended by itself, and when.
    pub(super) ended: Option<(End, Instant)>,
}

pub(super) type Trace = Arc<Mutex<Vec<Attempt>>>;

/// How a run ended; `None` when it was dropped, `Err` when it panicked.
pub(super) type Outcome = Option<Result<Finished<(), Failure>, ()>>;

/// What all jobs of a scene share.
struct Stage {
    world: World,
    ledger: Arc<SpendLedger>,
    models: Vec<ModelSpec>,
    time: Arc<Listener>,
    permit: Arc<Listener>,
    /// The caps, where no honest job may pass them.
    caps: [Option<u64>; 2],
}

impl Stage {
    fn new(scene: &Scene) -> Self {
        let ledger = SpendLedger::new();
        let world = World::with(|builder| builder.spend_gate(&ledger));
        for (at, cap) in scene.caps.iter().enumerate() {
            cap.map(|cap| ledger.set_cap("w", money(at, cap)).unwrap());
        }
        if let Some((verb, fault)) = scene.fault {
            world.databases[0].make(verb, fault);
        }
        let model = |at: usize| {
            let price = Decimal::from(PRICES[at]);
            let prices = Prices::per_million(price, price).in_currency(CURRENCIES[currency(at)]);
            match at {
                1 => ModelSpec::concurrent("m1", 2),
                _ => ModelSpec::new(format!("m{at}"), 1_000_000),
            }
            .with_prices(prices)
        };
        Self {
            models: (0..PRICES.len()).map(model).collect(),
            time: Listener::new("time", Replenishment::Time, &world.log),
            permit: Listener::new("permit", Replenishment::Release, &world.log),
            caps: if scene.is_honest { scene.caps } else { [None; 2] },
            ledger,
            world,
        }
    }

    fn requirements(&self, script: &Script) -> Requirements {
        let job = JobInfo::new("1", "j").in_workflow("w");
        let mut all = Requirements::new().permit(&self.time).permit(&self.permit).for_job(job);
        for &(model, tokens) in &script.calls {
            all = all.call(&self.models[model], Usage::new(tokens, 0));
        }
        if script.has_database {
            all = all.database(&self.world.databases[0]).transactional();
        }
        all
    }

    fn check_caps(&self) {
        for (at, cap) in self.caps.iter().enumerate() {
            let used = |cost: admit::Cost| cost.in_currency(CURRENCIES[at]).amount;
            let total = used(self.ledger.spent("w")) + used(self.ledger.committed("w"));
            let passed = cap.filter(|cap| total > money(at, *cap).amount);
            assert!(passed.is_none(), "{total} pass a cap of {passed:?} millionths");
        }
    }

    /// What a part is of: the model, its call, and the tokens.
    fn part(&self, calls: &[(usize, u64)], part: &Part) -> (usize, usize, u64) {
        let at = part.which.index(calls.len());
        let (model, reserved) = calls[at];
        let call = calls[..at].iter().filter(|call| call.0 == model).count();
        // A usage that is not said to be of a call is taken for that of the next, whichever it was of:
        // so an honest one is a part of the least that was reserved for any.
        let least = calls.iter().filter(|call| call.0 == model).map(|call| call.1).min().unwrap();
        let reserved = if part.is_named { reserved } else { least };
        (model, call, reserved * part.hundredths / 100)
    }

    fn record(&self, resources: &Resources, script: &Script, part: &Part, trace: &Trace) -> bool {
        let (model, call, tokens) = self.part(&script.calls, part);
        let (spec, usage) = (&self.models[model], Usage::new(0, tokens));
        let cost = match part.is_named {
            true => resources.record_usage_of(spec, call, usage),
            false => resources.record_usage(spec, usage),
        };
        let Ok(cost) = cost else { return false };
        assert_eq!(cost, Some(money(currency(model), tokens * PRICES[model])));
        let at = resources.attempt() as usize - 1;
        let recorded = &mut trace.lock().unwrap()[at].recorded[model];
        recorded.tokens += tokens;
        let next = recorded.calls.iter().position(|is_recorded| !is_recorded);
        let of = if part.is_named { Some(call) } else { next };
        if let Some(call) = of {
            recorded.calls[call] = true;
        }
        self.check_caps();
        true
    }
}

/// One attempt of a job.
async fn attempt(
    stage: Arc<Stage>,
    script: Arc<Script>,
    trace: Trace,
    resources: Resources,
) -> Result<(), Failure> {
    let at = resources.attempt() as usize - 1;
    let turn: &Turn = script.turns.get(at).unwrap_or_else(|| script.turns.last().unwrap());
    let begun = Attempt {
        began: Instant::now(),
        recorded: std::array::from_fn(|model| Recorded {
            tokens: 0,
            calls: script.calls.iter().filter(|call| call.0 == model).map(|_| false).collect(),
        }),
        was_late: false,
        has_reported: false,
        has_returned: false,
        ended: None,
    };
    trace.lock().unwrap().push(begun);
    assert_eq!(trace.lock().unwrap().len(), at + 1, "attempts are told in order");
    stage.check_caps();
    if let Some((after, part)) = turn.records_late.clone()
        && !script.calls.is_empty()
    {
        let (stage, script) = (Arc::clone(&stage), Arc::clone(&script));
        let (trace, resources) = (Arc::clone(&trace), resources.clone());
        tokio::spawn(async move {
            sleep(after).await;
            let was_heard = stage.record(&resources, &script, &part, &trace);
            trace.lock().unwrap()[at].was_late |= !was_heard;
        });
    }
    sleep(turn.works_for / 2).await;
    for part in turn.records.iter().filter(|_| !script.calls.is_empty()) {
        assert!(stage.record(&resources, &script, part, &trace), "while the job runs");
    }
    if turn.reports {
        let failure = UpstreamFailure::status(500, "aside", "");
        assert!(resources.report_failure(&stage.time, &failure));
        trace.lock().unwrap()[at].has_reported = true;
    }
    if turn.returns_permit {
        assert!(resources.release_one(&stage.permit));
        trace.lock().unwrap()[at].has_returned = true;
    }
    sleep(turn.works_for / 2).await;
    match turn.end {
        End::Hangs => pending().await,
        End::Waits => resources.cancelled().await,
        _ => {}
    }
    trace.lock().unwrap()[at].ended = Some((turn.end, Instant::now()));
    match turn.end {
        End::Upstream(status, service, after) => {
            let failure = UpstreamFailure::status(status, service, "");
            Err(Failure::Upstream(match after {
                Some(after) => failure.with_retry_after(after),
                None => failure,
            }))
        }
        End::Fails => Err(Failure::Own),
        End::Panics => resume_unwind(Box::new("as scripted")),
        _ => Ok(()),
    }
}

async fn perform(stage: Arc<Stage>, script: Arc<Script>, trace: Trace) -> Outcome {
    sleep(script.starts_at).await;
    let token = CancellationToken::new();
    let mut job = stage.world.runner.job(stage.requirements(&script));
    job = job.retries(policy(script.max_retries)).cancelled_by(token.clone());
    if let Some(limit) = script.within {
        job = job.within(limit);
    }
    if let Some(after) = script.cancelled_at {
        tokio::spawn(async move {
            sleep(after).await;
            token.cancel();
        });
    }
    let (shared, of_job) = (Arc::clone(&stage), Arc::clone(&script));
    let run = job.run_recorded(move |resources| {
        attempt(Arc::clone(&shared), Arc::clone(&of_job), Arc::clone(&trace), resources)
    });
    // One that hangs is dropped in the end.
    let limit = script.dropped_at.unwrap_or(Duration::from_secs(60));
    timeout(limit, AssertUnwindSafe(run).catch_unwind()).await.ok().map(|ran| ran.map_err(drop))
}

/// Plays a scene; says what was seen of it.
pub(super) async fn play(scene: &Scene) -> Vec<&'static str> {
    let stage = Arc::new(Stage::new(scene));
    let mut jobs = JoinSet::new();
    for script in &scene.scripts {
        let (stage, script, trace) =
            (Arc::clone(&stage), Arc::new(script.clone()), Trace::default());
        jobs.spawn(async move {
            let outcome = perform(stage, Arc::clone(&script), Arc::clone(&trace)).await;
            (script, trace, outcome)
        });
    }
    let mut books = Books::of(scene);
    while let Some(job) = jobs.join_next().await {
        let (script, trace, outcome) = job.unwrap();
        // Its clean-up may go on, but nothing of it costs or is heard any more.
        stage.check_caps();
        books.close(&script, &trace.lock().unwrap(), &outcome);
    }
    stage.world.settled().await;
    stage.check_caps();
    books.check(&stage.ledger, &stage.world.log, &[&stage.time, &stage.permit]);
    books.seen
}
