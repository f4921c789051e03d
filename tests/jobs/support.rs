//! A provider that writes down what is asked of it and fails where it is told to, and a world to
//! run jobs in.

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use admit::{
    Account, Accounts, Admission, CountingGate, DatabaseGate, DbProvider, DbVerb, HttpGate,
    JobRunner, JobRunnerBuilder, ModelSpec, ProviderError, Requirements, TokenBucket, Usage,
};
use tokio::time::Instant;

/// What was asked of all providers of a world, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn write(&self, line: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.into());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The lines in one, for comparison.
    pub(crate) fn text(&self) -> String {
        self.lines().join(" ")
    }
}

/// What a verb does instead of succeeding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Fails,
    Hangs,
    Panics,
}

/// A provider that writes down what is asked of it.
pub(crate) struct Recording {
    name: Arc<str>,
    account: Arc<DatabaseGate>,
    log: Log,
    faults: Mutex<HashMap<DbVerb, Fault>>,
    abort_panics: AtomicBool,
    /// Sessions out now.
    pub(crate) out: Arc<AtomicI64>,
}

/// A session of a [`Recording`].
pub(crate) struct RecordedHandle {
    out: Arc<AtomicI64>,
    is_closed: AtomicBool,
}

impl RecordedHandle {
    fn give_up(&self) {
        if !self.is_closed.swap(true, Ordering::AcqRel) {
            self.out.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Recording {
    pub(crate) fn new(name: &str, capacity: u32, log: &Log) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            account: DatabaseGate::new(name, capacity).unwrap(),
            log: log.clone(),
            faults: Mutex::default(),
            abort_panics: AtomicBool::new(false),
            out: Arc::default(),
        })
    }

    pub(crate) fn make(&self, verb: DbVerb, fault: Fault) {
        self.faults.lock().unwrap().insert(verb, fault);
    }

    pub(crate) fn make_abort_panic(&self) {
        self.abort_panics.store(true, Ordering::Release);
    }

    /// Writes it down, takes two turns, and then does what it is told to.
    async fn verb(&self, verb: DbVerb, said: &str) -> Result<(), ProviderError> {
        self.log.write(format!("{}.{said}", self.name));
        assert!(self.account.status().active > 0, "{said} without a permit");
        let fault = self.faults.lock().unwrap().get(&verb).copied();
        tokio::task::yield_now().await;
        match fault {
            Some(Fault::Fails) => {
                return Err(ProviderError::failed(&*self.name, verb, "told to fail"));
            }
            Some(Fault::Hangs) => pending().await,
            Some(Fault::Panics) => panic!("{} told to panic at {verb}", self.name),
            None => {}
        }
        tokio::task::yield_now().await;
        Ok(())
    }
}

impl DbProvider for Recording {
    type Handle = RecordedHandle;
    type Session = Arc<str>;

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn account(&self) -> &Arc<DatabaseGate> {
        &self.account
    }

    fn acquire_timeout(&self) -> Duration {
        Duration::from_secs(7)
    }

    async fn acquire(&self, read_only: bool) -> Result<RecordedHandle, ProviderError> {
        let said = if read_only { "acquire(read-only)" } else { "acquire" };
        self.verb(DbVerb::Acquire, said).await?;
        self.out.fetch_add(1, Ordering::AcqRel);
        Ok(RecordedHandle { out: Arc::clone(&self.out), is_closed: AtomicBool::new(false) })
    }

    fn session(&self, handle: &RecordedHandle) -> Result<Arc<str>, ProviderError> {
        if handle.is_closed.load(Ordering::Acquire) {
            return Err(ProviderError::Closed { provider: Arc::clone(&self.name) });
        }
        Ok(Arc::clone(&self.name))
    }

    async fn begin(&self, _: &RecordedHandle) -> Result<(), ProviderError> {
        self.verb(DbVerb::Begin, "begin").await
    }

    async fn commit(&self, _: &RecordedHandle) -> Result<(), ProviderError> {
        self.verb(DbVerb::Commit, "commit").await
    }

    async fn await_completion(&self, _: &RecordedHandle) -> Result<(), ProviderError> {
        self.verb(DbVerb::AwaitCompletion, "await").await
    }

    async fn rollback(&self, _: &RecordedHandle) -> Result<(), ProviderError> {
        self.verb(DbVerb::Rollback, "rollback").await
    }

    async fn close(&self, handle: &RecordedHandle) -> Result<(), ProviderError> {
        let closed = self.verb(DbVerb::Close, "close").await;
        if closed.is_ok() {
            handle.give_up();
        }
        closed
    }

    fn abort(&self, handle: &RecordedHandle) {
        let has_permit = self.account.status().active > 0;
        let said = if has_permit { "abort" } else { "abort(without a permit)" };
        self.log.write(format!("{}.{said}", self.name));
        handle.give_up();
        assert!(!self.abort_panics.load(Ordering::Acquire), "told to panic at abort");
    }
}

/// Three databases, a model, a gate of a job's own, and a runner.
pub(crate) struct World {
    pub(crate) admission: Admission,
    pub(crate) runner: JobRunner,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) http: Arc<HttpGate>,
    pub(crate) model: ModelSpec,
    pub(crate) own: Arc<CountingGate>,
    pub(crate) databases: [Arc<Recording>; 3],
    pub(crate) log: Log,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(crate) fn with(configure: impl FnOnce(JobRunnerBuilder) -> JobRunnerBuilder) -> Self {
        let admission = Admission::builder().track_holders(true).start().unwrap();
        let (accounts, http) = (Arc::new(Accounts::new()), HttpGate::new(8).unwrap());
        let builder =
            JobRunner::builder(&admission).accounts(Arc::clone(&accounts)).http(&http).seed(7);
        let log = Log::default();
        Self {
            runner: configure(builder).build().unwrap(),
            admission,
            accounts,
            http,
            model: ModelSpec::new("gpt-x", 60_000),
            own: CountingGate::new("own", 4).unwrap(),
            databases: ["a", "b", "c"].map(|name| Recording::new(name, 2, &log)),
            log,
        }
    }

    pub(crate) fn bucket(&self) -> Arc<TokenBucket> {
        self.accounts.bucket(&self.model).unwrap()
    }

    /// A call of the model of 1,000 tokens, the own gate, and all three databases.
    pub(crate) fn everything(&self) -> Requirements {
        let requirements =
            Requirements::new().call(&self.model, Usage::new(600, 400)).permit(&self.own);
        self.databases.iter().fold(requirements, |all, database| all.database(database))
    }

    /// The tokens the model's bucket has left.
    pub(crate) fn tokens_left(&self) -> u64 {
        60_000 - self.bucket().in_use(Instant::now())
    }

    /// Sessions out of all three databases.
    pub(crate) fn out(&self) -> i64 {
        self.databases.iter().map(|database| database.out.load(Ordering::Acquire)).sum()
    }

    /// Permits in use of everything that comes back with the job's end.
    pub(crate) fn permits_in_use(&self) -> u64 {
        let now = Instant::now();
        let databases = self.databases.iter().map(|database| database.account.in_use(now));
        self.own.in_use(now) + self.http.in_use(now) + databases.sum::<u64>()
    }

    /// Nothing is held, nobody waits, no session is out.
    pub(crate) async fn settled(&self) {
        self.admission.drained().await;
        assert_eq!(self.permits_in_use(), 0, "{}", self.log.text());
        assert_eq!(self.out(), 0, "{}", self.log.text());
        assert_eq!(self.admission.queue_len(), 0);
        self.admission.check();
    }
}
