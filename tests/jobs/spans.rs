//! What a run leaves in the host's traces.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::panic::AssertUnwindSafe;
use std::sync::Once;

use admit::{DbVerb, Demand, JobInfo, UpstreamFailure};
use futures::FutureExt;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

use crate::support::{Fault, World};

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Writes down each span as it closes, with its fields, and each event with the span it is in: for
/// each thread its own, since each test has one. It is installed for good, because what tracing
/// remembers of who listens is the process's.
struct Witness;

fn write(line: String) {
    LINES.with_borrow_mut(|lines| lines.push(line));
}

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Fields {
    fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.0 {
            write!(text, " {name}={value}").unwrap();
        }
        text
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Witness {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        context.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        values.record(span.extensions_mut().get_mut::<Fields>().unwrap());
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let of = context.lookup_current().map_or("nothing", |span| span.name());
        write(format!("{} in {of}", event.metadata().level()));
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        if span.metadata().target().starts_with("admit") {
            let fields = span.extensions().get::<Fields>().unwrap().text();
            write(format!("{}{fields}", span.name()));
        }
    }
}

/// Runs the future with its traces written down.
async fn traced(run: impl Future<Output = ()>) -> Vec<String> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let subscriber = tracing_subscriber::registry().with(Witness);
        tracing::subscriber::set_global_default(subscriber).unwrap();
    });
    LINES.take();
    run.await;
    LINES.take()
}

#[tokio::test(start_paused = true)]
async fn a_run_is_a_span_and_each_of_its_waits_is_one_within() {
    let lines = traced(async {
        let world = World::new();
        let info = JobInfo::new("17", "summarise").in_workflow("nightly");
        let held = world.admission.admit(Demand::new().permits(&world.own, 4)).await.unwrap();
        let first = std::cell::Cell::new(true);
        let job = async |_| {
            if first.take() { Err(UpstreamFailure::status(500, "elsewhere", "")) } else { Ok(()) }
        };
        let run = world.runner.run(world.everything().for_job(info), job);
        let (ran, ()) = tokio::join!(run, async {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            drop(held);
        });
        ran.unwrap();
        world.settled().await;
    });
    assert_eq!(
        lines.await,
        [
            "admit.wait attempt=1",
            // The bucket's word on the failure, and the runner's on the retry.
            "WARN in admit.job",
            "DEBUG in admit.job",
            "admit.wait attempt=2",
            "admit.job attempts=2 id=17 name=summarise outcome=\"done\" workflow=\"nightly\"",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_logged_of_runs_that_go_well_or_are_refused() {
    let lines = traced(async {
        let world = World::new();
        let done =
            world.runner.run(world.everything().transactional(), async |_| Ok::<_, String>(()));
        done.await.unwrap();
        world.admission.stop();
        let refused = world.runner.run(world.everything(), async |_| Ok::<_, String>(()));
        refused.await.unwrap_err();
    });
    let lines = lines.await;
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines[1].ends_with("outcome=\"done\"") && lines[3].ends_with("outcome=\"refused\""));
}

#[tokio::test(start_paused = true)]
async fn a_clean_up_that_fails_is_a_warning_in_its_jobs_span() {
    let warning = format!("{} in admit.job", Level::WARN);
    for dropped in [false, true] {
        let lines = traced(async {
            let world = World::new();
            world.databases[1].make(DbVerb::Rollback, Fault::Fails);
            let job = async |_| {
                tokio::time::sleep(std::time::Duration::from_secs(9)).await;
                Err::<(), _>("no".to_owned())
            };
            let run = world.runner.run(world.everything().transactional(), job);
            let limit = std::time::Duration::from_secs(if dropped { 5 } else { 10 });
            assert_eq!(tokio::time::timeout(limit, run).await.is_err(), dropped);
            world.settled().await;
        });
        let lines = lines.await;
        assert_eq!(lines.iter().filter(|line| **line == warning).count(), 1, "{lines:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_or_panics_says_so_in_its_span() {
    let lines = traced(async {
        let world = World::new();
        let forever = async |_| std::future::pending::<Result<(), String>>().await;
        let dropped = world.runner.run(world.everything(), forever);
        let limit = std::time::Duration::from_secs(1);
        assert!(tokio::time::timeout(limit, dropped).await.is_err());
        world.settled().await;
        let panics = async |_| -> Result<(), String> { std::panic::resume_unwind(Box::new("")) };
        let panicked = AssertUnwindSafe(world.runner.run(world.everything(), panics));
        assert!(panicked.catch_unwind().await.is_err());
        world.settled().await;
        // Somebody beside it panics, and it is dropped as that unwinds.
        let beside = async { std::panic::resume_unwind(Box::new("")) };
        let both = async { tokio::join!(world.runner.run(world.everything(), forever), beside) };
        assert!(AssertUnwindSafe(both).catch_unwind().await.is_err());
        world.settled().await;
    });
    let jobs: Vec<_> =
        lines.await.into_iter().filter(|line| line.starts_with("admit.job")).collect();
    assert_eq!(jobs.len(), 3, "{jobs:?}");
    assert!(jobs[0].contains("attempts=1") && jobs[0].contains("outcome=\"dropped\""), "{jobs:?}");
    assert!(jobs[1].contains("attempts=1") && jobs[1].contains("outcome=\"panicked\""), "{jobs:?}");
    assert!(jobs[2].contains("attempts=1") && jobs[2].contains("outcome=\"dropped\""), "{jobs:?}");
}
