//! What the field cases share: small limits, futures polled by hand, and the invariants.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use admit::{
    Account, Admission, Admit, AdmitError, Ask, Category, CountingGate, Demand, EventKind, Grant,
    LimiterEvent, Limits, RejectReason, Shortage, TokenBucket, TryAdmitError,
};
use tokio::sync::broadcast::{Receiver, error::TryRecvError};
use tokio::time::Instant;
use tokio_test::task::{Spawn, spawn};

pub(crate) use crate::own::Own;

/// A started admission whose events an [`Observer`] can keep up with.
pub(crate) fn started() -> Admission {
    let builder = Admission::builder().event_capacity(1 << 14);
    builder.start().expect("inside a runtime with a timer")
}

/// A gate of `n` permits, under a name of its own.
pub(crate) fn gate(n: u32) -> Arc<CountingGate> {
    CountingGate::new(format!("gate {} of {n}", number()), n).expect("a positive capacity")
}

/// A full bucket of `requests` and `tokens` a minute, under a name of its own.
pub(crate) fn bucket(requests: u32, tokens: u64) -> Arc<TokenBucket> {
    let limits = Limits::per_minute(requests, tokens);
    TokenBucket::new(format!("bucket {} of {requests}/{tokens}", number()), limits)
        .expect("positive limits")
}

#[allow(dead_code, reason = "for the cases about time and tokens")]
/// The same without a token; the requests are as good as full: one went with the tokens.
pub(crate) fn drained_bucket(
    admission: &Admission,
    requests: u32,
    tokens: u64,
) -> Arc<TokenBucket> {
    let bucket = bucket(requests, tokens);
    drop(admission.try_admit(tokens_of(&bucket, tokens)).expect("it is full"));
    bucket
}

/// No two accounts of a test have one name.
pub(crate) fn number() -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

pub(crate) fn permits(gate: &Arc<CountingGate>, n: u32) -> Demand {
    Demand::new().permits(gate, n)
}

pub(crate) fn tokens_of(bucket: &Arc<TokenBucket>, n: u64) -> Demand {
    Demand::new().tokens(bucket, n)
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Lets every task that can go on do so, without the clock moving.
pub(crate) async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// Moves the clock, and lets everything that became due happen.
pub(crate) async fn pass_time(span: Duration) {
    tokio::time::sleep(span).await;
    settle().await;
}

/// An admit polled once, which must park.
pub(crate) fn parked(admission: &Admission, demand: Demand) -> Spawn<Admit> {
    park(admission.admit(demand))
}

/// The same, for an admit with a token or a time limit.
pub(crate) fn park(admit: Admit) -> Spawn<Admit> {
    let mut admit = spawn(admit);
    match admit.poll() {
        Poll::Pending => admit,
        Poll::Ready(outcome) => panic!("it should wait, not be decided: {outcome:?}"),
    }
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

/// The accounts a `try_admit` would wait for.
pub(crate) fn would_wait(outcome: Result<Grant, TryAdmitError>) -> Vec<Shortage> {
    match outcome {
        Err(TryAdmitError::WouldWait { shortages }) => shortages,
        other => panic!("it should have to wait: {other:?}"),
    }
}

/// Asserts that the shortages name these accounts and no other.
pub(crate) fn assert_short_of(shortages: &[Shortage], accounts: &[&dyn Account]) {
    let named: Vec<_> = shortages.iter().map(|shortage| &*shortage.account).collect();
    let expected: Vec<_> = accounts.iter().map(|account| &**account.link().name()).collect();
    assert_eq!(named, expected);
}

/// A future that counts how often it is polled.
pub(crate) struct Counted<F> {
    future: F,
    polls: Arc<AtomicUsize>,
}

/// The future, and the count that outlives it.
pub(crate) fn counted<F>(future: F) -> (Counted<F>, Arc<AtomicUsize>) {
    let polls = Arc::new(AtomicUsize::new(0));
    (Counted { future, polls: Arc::clone(&polls) }, polls)
}

impl<F: Future + Unpin> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.future).poll(cx)
    }
}

/// Reads the invariants off one admission: made at the start of a test, asked at its end.
///
/// Buckets are watched through events. A charge happened after the last look and not later than the
/// present one, so what is summed between two looks is held against the time between them; look
/// (`look()`) before and after a step of the clock where the span matters.
pub(crate) struct Observer {
    admission: Admission,
    events: Receiver<LimiterEvent>,
    /// Events were lost, so nothing can be said from them any more.
    lost: u64,
    sequence: Option<u64>,
    looked: Instant,
    seen: Vec<LimiterEvent>,
    tallies: HashMap<Arc<str>, Tally>,
    buckets: HashMap<Arc<str>, Flow>,
    /// Accounts that were shrunk: what is in use may exceed the capacity, and only falls.
    shrunk: HashMap<Arc<str>, u64>,
}

/// The steps on one account.
#[derive(Debug, Default)]
struct Tally {
    is_release: bool,
    held: u64,
    from_hold: u64,
    rejected_from_hold: u64,
    granted: u64,
    granted_units: u64,
    released: u64,
    released_units: u64,
}

/// What flowed out of a bucket and may still count against its budget: the most that any span that
/// ends now holds above what the rate brought in it, in tokens times nanoseconds a minute.
#[derive(Debug, Default)]
struct Flow {
    excess: i128,
    since_look: i128,
    cap: i128,
}

const MINUTE: i128 = 60_000_000_000;

impl Observer {
    pub(crate) fn of(admission: &Admission) -> Self {
        Self {
            admission: admission.clone(),
            events: admission.subscribe(),
            lost: 0,
            sequence: None,
            looked: Instant::now(),
            seen: Vec::new(),
            tallies: HashMap::new(),
            buckets: HashMap::new(),
            shrunk: HashMap::new(),
        }
    }

    /// A gate was made smaller: until it is below its capacity it may be overfull, never rising.
    #[allow(dead_code, reason = "for the cases that resize")]
    pub(crate) fn shrunk(&mut self, account: &dyn Account) {
        self.look();
        let in_use = account.in_use(Instant::now());
        self.shrunk.insert(Arc::clone(account.link().name()), in_use);
    }

    /// A bucket was credited in a way no event tells of: a reconcile downward.
    #[allow(dead_code, reason = "for the cases that reconcile")]
    pub(crate) fn credited(&mut self, account: &dyn Account, tokens: u64) {
        self.look();
        let flow = self.buckets.entry(Arc::clone(account.link().name())).or_default();
        flow.excess = (flow.excess - i128::from(tokens) * MINUTE).max(0);
    }

    /// The events so far, in order.
    pub(crate) fn events(&mut self) -> &[LimiterEvent] {
        self.look();
        &self.seen
    }

    /// How many events of a kind there were on an account.
    pub(crate) fn count(&mut self, account: &dyn Account, kind: EventKind) -> usize {
        let name = Arc::clone(account.link().name());
        self.events().iter().filter(|event| event.account == name && event.kind == kind).count()
    }

    /// How many `Rejected` for this reason there were on an account.
    pub(crate) fn rejected(&mut self, account: &dyn Account, reason: RejectReason) -> usize {
        let name = Arc::clone(account.link().name());
        let is_it = |event: &&LimiterEvent| event.account == name && event.reason == Some(reason);
        self.events().iter().filter(is_it).count()
    }

    /// Reads what was told since the last look.
    pub(crate) fn look(&mut self) {
        let now = Instant::now();
        let nanos = now.saturating_duration_since(self.looked).as_nanos();
        let nanos = i128::try_from(nanos).expect("a test does not last for ages");
        self.looked = now;
        loop {
            match self.events.try_recv() {
                Ok(event) => self.hear(event),
                Err(TryRecvError::Lagged(lost)) => self.lost += lost,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        for (name, flow) in &mut self.buckets {
            let refill = flow.cap.saturating_mul(nanos);
            // A charge may have come at the start of the span between the looks or at its end: at
            // the most, the whole refill of the span came before it.
            let charged = flow.excess.saturating_add(flow.since_look);
            flow.since_look = 0;
            flow.excess = charged.saturating_sub(refill).max(0);
            assert!(
                flow.excess <= flow.cap.saturating_mul(MINUTE),
                "INV2: `{name}` was charged more than its budget and what came in since"
            );
        }
    }

    fn hear(&mut self, event: LimiterEvent) {
        if let Some(last) = self.sequence.replace(event.sequence)
            && self.lost == 0
        {
            assert_eq!(event.sequence, last + 1, "events come whole and in order");
        }
        let tally = self.tallies.entry(Arc::clone(&event.account)).or_default();
        tally.is_release = is_release(&event.category);
        match event.kind {
            EventKind::Held => tally.held += 1,
            EventKind::GrantedImmediate | EventKind::GrantedFromHold => {
                tally.from_hold += u64::from(event.kind == EventKind::GrantedFromHold);
                tally.granted += 1;
                tally.granted_units = tally.granted_units.wrapping_add(event.amount);
            }
            EventKind::Rejected => tally.rejected_from_hold += u64::from(event.wait.is_some()),
            EventKind::Released => {
                tally.released += 1;
                tally.released_units = tally.released_units.wrapping_add(event.amount);
            }
            other => panic!("a kind of event unknown here: {other:?}"),
        }
        if tally.is_release {
            match self.shrunk.get_mut(&event.account) {
                None => assert!(event.in_use <= event.capacity, "INV1: overdrawn: {event:?}"),
                Some(most) => {
                    let bound = event.capacity.max(*most);
                    assert!(event.in_use <= bound, "INV1: a shrunk account rises: {event:?}");
                    *most = event.in_use;
                }
            }
        }
        if event.category == Category::TokenBucket {
            let flow = self.buckets.entry(Arc::clone(&event.account)).or_default();
            flow.cap = flow.cap.max(i128::from(event.capacity));
            let amount = i128::from(event.amount).saturating_mul(MINUTE);
            match event.kind {
                EventKind::GrantedImmediate | EventKind::GrantedFromHold => {
                    flow.since_look = flow.since_look.saturating_add(amount);
                }
                EventKind::Released => flow.since_look = flow.since_look.saturating_sub(amount),
                _ => {}
            }
        }
        self.seen.push(event);
    }

    /// What must hold at any moment of rest, whoever waits and whatever is held.
    pub(crate) fn at_rest(&mut self) {
        self.look();
        self.admission.check();
        let snapshot = self.admission.snapshot();
        for account in &snapshot.accounts {
            if is_release(&account.category) && !self.shrunk.contains_key(&account.name) {
                assert!(account.in_use <= account.capacity, "INV1: overdrawn: {account:?}");
            }
        }
        if let Some(head) = &snapshot.head {
            assert!(!head.shortages.is_empty(), "INV3: the head could go: {snapshot}");
        }
        assert_eq!(snapshot.waiting, self.admission.queue_len());
        assert_eq!(snapshot.waiting == 0, snapshot.head.is_none());
        if self.lost == 0 && snapshot.waiting == 0 {
            for (name, tally) in &self.tallies {
                let ended = tally.from_hold + tally.rejected_from_hold;
                assert_eq!(tally.held, ended, "every hold on `{name}` ends once: {tally:?}");
            }
        }
    }

    /// INV3 for those behind the head too: these demands wait, in this order.
    #[track_caller]
    pub(crate) fn nobody_could_go(&mut self, waiting: &[Demand]) {
        self.at_rest();
        let now = Instant::now();
        for (place, demand) in waiting.iter().enumerate() {
            let fits = demand.entries().iter().all(|entry| {
                let id = entry.account().link().id();
                let ask = Ask::new(0, entry.amount(), now);
                let head = waiting[0].entries().iter().filter(|_| place > 0);
                let ahead = head.filter(|ahead| ahead.account().link().id() == id);
                let ask = ahead.fold(ask, |ask, ahead| ask.behind(ahead.amount()));
                entry.account().fits(&ask).expect("nobody is refused")
            });
            assert!(!fits, "INV3: place {place} could go: {demand:?}");
        }
    }

    /// The end of a test: nobody waits, every grant is gone, and everything is back.
    pub(crate) fn all_gone(mut self) {
        self.at_rest();
        let snapshot = self.admission.snapshot();
        assert_eq!(snapshot.waiting, 0, "INV1: nobody waits: {snapshot}");
        assert_eq!(snapshot.held, 0, "INV1: nothing is held: {snapshot}");
        assert_eq!(snapshot.unseen.count, 0);
        for account in snapshot.accounts.iter().filter(|account| !account.quarantined) {
            assert_eq!(account.waiting, 0, "INV5: nobody waits on it: {account:?}");
            if is_release(&account.category) {
                assert_eq!(account.in_use, 0, "INV1: everything is back: {account:?}");
            }
        }
        if self.lost == 0 {
            for (name, tally) in self.tallies.iter().filter(|(_, tally)| tally.is_release) {
                assert_eq!(tally.granted, tally.released, "INV1: `{name}`: {tally:?}");
                assert_eq!(tally.granted_units, tally.released_units, "INV1: `{name}`: {tally:?}");
            }
        }
    }
}

/// Whether an account's amounts come back when the work ends; own accounts of the tests do.
fn is_release(category: &Category) -> bool {
    !matches!(category, Category::TokenBucket | Category::ElasticWindow | Category::Memory)
}

impl Own {
    /// Under a name of its own.
    pub(crate) fn new(capacity: u32) -> Arc<Self> {
        Self::named(&format!("own {}", number()), capacity)
    }
}

/// A waker that runs something when it is woken, and something when the last of its clones drops.
pub(crate) struct Hook {
    woken: AtomicUsize,
    on_wake: Mutex<Option<Act>>,
    on_drop: Mutex<Option<Act>>,
}

type Act = Box<dyn FnOnce() + Send>;

impl Hook {
    /// A waker that only counts.
    pub(crate) fn new() -> Arc<Self> {
        let (on_wake, on_drop) = (Mutex::new(None), Mutex::new(None));
        Arc::new(Self { woken: AtomicUsize::new(0), on_wake, on_drop })
    }

    /// Run at the first wake.
    pub(crate) fn on_wake(self: &Arc<Self>, act: impl FnOnce() + Send + 'static) {
        *self.on_wake.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(act));
    }

    /// Run as the last clone drops.
    pub(crate) fn on_drop(self: &Arc<Self>, act: impl FnOnce() + Send + 'static) {
        *self.on_drop.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(act));
    }

    pub(crate) fn wakes(&self) -> usize {
        self.woken.load(Ordering::SeqCst)
    }

    /// Polls with this as the waker.
    pub(crate) fn poll<F: Future + Unpin>(self: &Arc<Self>, future: &mut F) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(self));
        Pin::new(future).poll(&mut Context::from_waker(&waker))
    }
}

impl Wake for Hook {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        let act = self.on_wake.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(act) = act {
            act();
        }
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        if let Some(act) = self.on_drop.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            act();
        }
    }
}
