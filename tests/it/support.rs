//! What the tests share: small limits, and futures polled by hand.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use admit::{
    Account, AccountLink, Admission, Admit, AdmitError, Amount, Ask, Category, Charge,
    CountingGate, Demand, Grant, Limits, Refusal, Replenishment, TokenBucket,
};
use tokio::time::Instant;
use tokio_test::task::{Spawn, spawn};

pub(crate) fn started() -> Admission {
    Admission::builder().start().expect("inside a runtime with a timer")
}

pub(crate) fn gate(n: u32) -> Arc<CountingGate> {
    CountingGate::new(format!("gate of {n}"), n).expect("a positive capacity")
}

pub(crate) fn bucket(requests: u32, tokens: u64) -> Arc<TokenBucket> {
    let limits = Limits::per_minute(requests, tokens);
    TokenBucket::new(format!("bucket of {requests} and {tokens}"), limits).expect("positive limits")
}

pub(crate) fn permits(gate: &Arc<CountingGate>, n: u32) -> Demand {
    Demand::new().permits(gate, n)
}

/// Lets every task that can go on do so, without the clock moving.
pub(crate) async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// An admit polled once, which must park.
pub(crate) fn parked(admission: &Admission, demand: Demand) -> Spawn<Admit> {
    let mut admit = spawn(admission.admit(demand));
    assert!(admit.poll().is_pending(), "it does not fit");
    admit
}

/// The outcome of a parked admit that must have landed.
pub(crate) fn landed(admit: &mut Spawn<Admit>) -> Result<Grant, AdmitError> {
    assert!(admit.is_woken(), "it was woken for its outcome");
    match admit.poll() {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("it was woken for nothing"),
    }
}

pub(crate) fn granted(admit: &mut Spawn<Admit>) -> Grant {
    landed(admit).expect("it is granted")
}

/// A gate under this name.
pub(crate) fn named(name: &str, n: u32) -> Arc<CountingGate> {
    CountingGate::new(name, n).expect("a positive capacity")
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Moves the clock, and lets everything that became due happen.
pub(crate) async fn pass_time(span: Duration) {
    tokio::time::sleep(span).await;
    settle().await;
}

/// An account of ours that does what a test says.
pub(crate) struct Own {
    link: AccountLink,
    pub(crate) script: Mutex<Script>,
    /// How often `fits` was asked.
    pub(crate) asked: AtomicUsize,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Script {
    /// This method panics.
    pub(crate) panics: Option<&'static str>,
    /// What `fits` and `earliest_fit` name as the time to wait; the answer is then no.
    pub(crate) names: Option<Duration>,
    /// `fits` says yes and `try_take` no.
    pub(crate) takes_nothing: bool,
    /// `give` credits nothing.
    pub(crate) credits_nothing: bool,
    /// Everybody is refused.
    pub(crate) refuses: bool,
    /// It announces that it may refuse, whenever it is asked.
    pub(crate) warns: bool,
}

impl Own {
    pub(crate) fn new(name: &str) -> Arc<Self> {
        let link = AccountLink::new(name).expect("a name");
        Arc::new(Self { link, script: Mutex::default(), asked: AtomicUsize::new(0) })
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn script(&self, method: &str) -> Script {
        let script = *self.script.lock().unwrap_or_else(PoisonError::into_inner);
        if script.panics == Some(method) {
            panic!("told to panic in {method}");
        }
        script
    }
}

impl Account for Own {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn category(&self) -> Category {
        Category::Other("own".into())
    }

    fn capacity(&self) -> u64 {
        7
    }

    fn in_use(&self, _: Instant) -> u64 {
        self.script("in_use");
        3
    }

    fn summary(&self, _: Instant) -> String {
        self.script("summary");
        "3 of 7 oars,\nas told".to_owned()
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn fits(&self, _: &Ask) -> Result<bool, Refusal> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let script = self.script("fits");
        if script.warns {
            self.link.may_refuse();
        }
        if script.refuses { Err(Refusal::new("closed")) } else { Ok(script.names.is_none()) }
    }

    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        let script = self.script("try_take");
        if script.refuses {
            return Err(Refusal::new("closed"));
        }
        Ok((script.names.is_none() && !script.takes_nothing).then_some(ask.now))
    }

    fn give(&self, charge: &Charge, _: Instant) -> Amount {
        let script = self.script("give");
        if script.credits_nothing { Amount::NONE } else { charge.amount }
    }

    fn earliest_fit(&self, ask: &Ask) -> Option<Instant> {
        self.script("earliest_fit").names.map(|wait| ask.now + wait)
    }

    fn on_success(&self, _: &Charge, _: Instant) {
        self.script("on_success");
    }
}

/// What is logged by this thread, line by line, while it lives.
pub(crate) struct Log {
    text: Text,
    _subscriber: tracing::subscriber::DefaultGuard,
}

#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn start() -> Self {
        let text = Text::default();
        let writer = text.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .finish();
        Self { text, _subscriber: tracing::subscriber::set_default(subscriber) }
    }

    /// The lines that contain these words.
    pub(crate) fn with(&self, words: &str) -> Vec<String> {
        let bytes = self.text.0.lock().expect("nobody panics there").clone();
        let text = String::from_utf8_lossy(&bytes);
        text.lines().filter(|line| line.contains(words)).map(|line| line.trim().into()).collect()
    }
}

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics there").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
