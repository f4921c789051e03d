//! Who waits too long is told of, once.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::Once;
use std::time::Duration;

use admit::{Admission, CountingGate, Demand, JobInfo};
use tokio::time::sleep;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Writes down the warnings of each thread, and so of each test. Installed for good: who listens is
/// remembered by tracing for the whole process.
struct Witness;

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl<S: Subscriber> Layer<S> for Witness {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() == Level::WARN {
            let mut message = Message(String::new());
            event.record(&mut message);
            WARNINGS.with_borrow_mut(|warnings| warnings.push(message.0));
        }
    }
}

fn listen() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let subscriber = tracing_subscriber::registry().with(Witness);
        tracing::subscriber::set_global_default(subscriber).unwrap();
    });
    WARNINGS.take();
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_too_long_is_told_of_once_with_who_holds_what() {
    listen();
    let builder = Admission::builder().warn_after(secs(10)).track_holders(true);
    let admission = builder.start().unwrap();
    let gate = CountingGate::new("render", 2).unwrap();
    let demand = |name: &str, n| Demand::new().permits(&gate, n).for_job(JobInfo::new(name, "job"));
    let held = admission.admit(demand("1", 2)).await.unwrap();
    sleep(secs(5)).await;
    let waiting = tokio::spawn(admission.admit(demand("2", 1)));
    sleep(Duration::from_millis(9_999)).await;
    assert!(WARNINGS.take().is_empty());
    sleep(secs(3_600)).await;
    assert_eq!(
        WARNINGS.take(),
        ["job (2) has waited for 10.0 s: `render` is short of 1 permit (2 of 2 permits in use, 0 \
          available, fits when some is given back); `render` is held by job (1) (2 permits, for 15.0 s)"]
    );
    drop(held);
    drop(waiting.await.unwrap().unwrap());
    sleep(secs(3_600)).await;
    assert!(WARNINGS.take().is_empty());
    admission.check();
}

#[tokio::test(start_paused = true)]
async fn a_line_that_waits_too_long_is_one_warning_a_period() {
    listen();
    let admission = Admission::builder().warn_after(secs(10)).start().unwrap();
    let gate = CountingGate::new("render", 1).unwrap();
    let mut held = admission.admit(Demand::new().permit(&gate)).await.unwrap();
    let mut waiting: Vec<_> =
        (0..100).map(|_| tokio::spawn(admission.admit(Demand::new().permit(&gate)))).collect();
    sleep(secs(11)).await;
    let first = WARNINGS.take();
    assert_eq!(first.len(), 1, "{first:?}");
    assert!(first[0].starts_with("a job has waited for 10.0 s: `render`"), "{}", first[0]);
    assert!(first[0].ends_with("; 99 behind it have waited as long"), "{}", first[0]);
    // A new head every second, each of which has waited too long.
    for waiter in waiting.drain(..40) {
        drop(held);
        held = waiter.await.unwrap().unwrap();
        sleep(secs(1)).await;
    }
    let later = WARNINGS.take();
    assert_eq!(later.len(), 4, "{later:?}");
    assert!(later[0].contains("has waited for 20.0 s"), "{}", later[0]);
    drop(held);
    drop(waiting);
}

#[tokio::test(start_paused = true)]
async fn without_a_bound_on_patience_nothing_is_armed_and_none_of_zero_is_taken() {
    listen();
    let admission = Admission::builder().start().unwrap();
    let gate = CountingGate::new("render", 1).unwrap();
    let held = admission.admit(Demand::new().permit(&gate)).await.unwrap();
    let waiting = tokio::spawn(admission.admit(Demand::new().permit(&gate)));
    sleep(secs(86_400)).await;
    assert_eq!(admission.counters().timers, 0);
    assert!(WARNINGS.take().is_empty());
    drop(held);
    drop(waiting.await.unwrap().unwrap());

    let error = Admission::builder().warn_after(Duration::ZERO).build().unwrap_err();
    assert_eq!(error.to_string(), "warn_after is 0s, but must be more than nothing");
    // Longer than the clock goes: nobody is ever told of.
    let admission = Admission::builder().warn_after(Duration::MAX).start().unwrap();
    let _held = admission.admit(Demand::new().permit(&gate)).await.unwrap();
    let waiting = tokio::spawn(admission.admit(Demand::new().permit(&gate)));
    sleep(secs(1)).await;
    assert_eq!(admission.counters().timers, 0);
    drop(waiting);
}
