//! What every error says, word for word: the account, the amounts, the limit, what to do, and when.
//!
//! The sentences are read by people and by language models; whoever changes one changes it here.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use admit::testing::ScriptedMemory;
use admit::{
    Accounts, Admission, AdmitError, BoxError, BuildError, Catalog, CatalogError, Category,
    ConfigError, CountingGate, CountingProvider, DbProviders, DbProvidersError, DbVerb, Demand,
    ElasticWindow, JobInfo, Limits, MemoryGate, ModelSpec, Money, Priced, ProviderError, Refusal,
    RegistryError, RunError, RunStage, Singleton, SpendGate, SpendLedger, StartError, TimeoutCause,
    TokenBucket, TryAdmitError, UpstreamFailure, Usage, UsageError, WindowConfig,
};
use tokio_util::sync::CancellationToken;

use crate::support::{Own, parked, started};

/// A sentence in one line, without the print of a struct, and nothing of a host's secrets.
#[track_caller]
fn says(error: &dyn Error, sentence: &str) {
    let text = error.to_string();
    assert_eq!(text, sentence);
    assert!(!text.contains('\n') && !text.contains(" { ") && !text.contains("Some("), "{text}");
    assert!(!text.ends_with('.') && !text.is_empty(), "{text}");
}

fn gate(n: u32) -> Arc<CountingGate> {
    CountingGate::new("http", n).unwrap()
}

fn bucket() -> Arc<TokenBucket> {
    TokenBucket::new("gpt-x", Limits::per_minute(10, 600)).unwrap()
}

fn tries(admission: &Admission, demand: Demand) -> TryAdmitError {
    admission.try_admit(demand).expect_err("it cannot go")
}

#[tokio::test(start_paused = true)]
async fn what_can_never_fit_says_the_amount_the_most_and_what_to_do() {
    let (admission, gate, bucket) = (started(), gate(2), bucket());
    let window = ElasticWindow::builder("maps").max(2).per(Duration::from_secs(1)).build().unwrap();
    for (demand, sentence) in [
        (
            Demand::new().permits(&gate, 3),
            "`http` refuses: 3 permits can never be granted, the most at once is 2 permits; ask for \
             less, or raise the limit",
        ),
        (
            Demand::new().tokens(&bucket, 601),
            "`gpt-x` refuses: 1 request of 601 tokens can never be granted, the most at once is 10 \
             requests and 600 tokens a minute; ask for less, or raise the limit",
        ),
        (
            Demand::new().permits(&window, 3),
            "`maps` refuses: 3 permits can never be granted, the most at once is 2 requests in any \
             1s; ask for less, or raise the limit",
        ),
        (
            Demand::new().permits(&gate, u32::MAX).permits(&gate, 7),
            "`http` refuses: the amounts add up to more than can be counted, which can never be \
             granted; ask for less",
        ),
        (
            Demand::new().tokens(&gate, 40),
            "`http` refuses: 1 request of 40 tokens asked of a gate, which counts permits: tokens \
             asked of a gate are a mistake; ask for permits",
        ),
    ] {
        says(&tries(&admission, demand), sentence);
    }
}

#[tokio::test(start_paused = true)]
async fn what_would_wait_says_how_much_is_in_use_and_when_it_fits() {
    let (admission, gate, bucket) = (started(), gate(2), bucket());
    let both = Demand::new().permits(&gate, 2).tokens(&bucket, 600);
    let held = admission.try_admit(both.clone()).unwrap();
    says(
        &tries(&admission, both.clone()),
        "would have to wait: `http` is short of 2 permits (2 of 2 permits in use, 0 available, fits \
         when some is given back); `gpt-x` is short of 1 request of 600 tokens (9 of 10 requests and \
         0 of 600 tokens a minute available, fits in 60.0 s)",
    );
    let _head = parked(&admission, both);
    drop(held);
    tokio::time::sleep(Duration::from_secs(1)).await;
    says(
        &tries(&admission, Demand::new().permit(&gate)),
        "would have to wait: `http` is short of 1 permit (0 of 2 permits in use, 2 available, \
         2 permits set aside for the job ahead, fits when some is given back)",
    );
}

/// Who comes back when the text says must not come too early.
#[tokio::test(start_paused = true)]
async fn the_wait_that_is_told_is_rounded_up() {
    let admission = started();
    for (millis, told) in [(1, "0.1 s"), (101, "0.2 s"), (1_000, "1.0 s"), (1_049, "1.1 s")] {
        let bucket = bucket();
        let failure = UpstreamFailure::status(429, "gpt-x", "slow down");
        bucket.record_failure(&failure.with_retry_after(Duration::from_millis(millis)));
        says(
            &tries(&admission, Demand::new().tokens(&bucket, 2)),
            &format!(
                "would have to wait: `gpt-x` is short of 1 request of 2 tokens (10 of 10 requests and \
                 600 of 600 tokens a minute available, throttle 0.5, held for {told}, fits in {told})"
            ),
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_bucket_is_short_of_is_told_in_the_unit_that_is_short() {
    let (admission, bucket) = (started(), bucket());
    let ten = (0..10).fold(Demand::new(), |demand, _| demand.tokens(&bucket, 2));
    drop(admission.try_admit(ten).unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    says(
        &tries(&admission, Demand::new().tokens(&bucket, 2)),
        "would have to wait: `gpt-x` is short of 1 request of 2 tokens (0 of 10 requests and 590 of \
         600 tokens a minute available, fits in 5.0 s)",
    );
}

#[tokio::test(start_paused = true)]
async fn an_account_of_the_hosts_own_tells_its_numbers_on_one_line_or_is_told_by_ours() {
    let (admission, own) = (started(), Own::new("boat"));
    own.set(|script| script.names = Some(Duration::from_secs(5)));
    let one = || tries(&admission, Demand::new().permit(&own));
    says(
        &one(),
        "would have to wait: `boat` is short of 1 permit (3 of 7 oars, as told, fits in 5.0 s)",
    );
    own.set(|script| script.panics = Some("summary"));
    says(&one(), "would have to wait: `boat` is short of 1 permit (3 of 7 in use, fits in 5.0 s)");
}

#[tokio::test(start_paused = true)]
async fn a_time_out_says_how_long_it_waited_and_what_for() {
    let (admission, bucket) = (started(), bucket());
    drop(admission.try_admit(Demand::new().tokens(&bucket, 600)).unwrap());
    let within = |seconds| {
        let admit = admission.admit(Demand::new().tokens(&bucket, 300));
        admit.within(Duration::from_secs(seconds))
    };
    says(
        &within(0).await.unwrap_err(),
        "not granted within 0ns: `gpt-x` is short of 1 request of 300 tokens (9 of 10 requests and \
         0 of 600 tokens a minute available, fits in 30.0 s)",
    );
    says(
        &within(10).await.unwrap_err(),
        "not granted within 10s: `gpt-x` is short of 1 request of 300 tokens (10 of 10 requests and \
         100 of 600 tokens a minute available, fits in 20.0 s)",
    );
}

#[tokio::test(start_paused = true)]
async fn memory_that_holds_somebody_is_named_with_its_bytes() {
    let memory = MemoryGate::with_source(ScriptedMemory::at_percent(96.0)).unwrap();
    let admission = Admission::builder().memory_gate(memory).start().unwrap();
    let error = tries(&admission, Demand::new().permit(&gate(1)));
    says(
        &error,
        "would have to wait: `memory` lets nobody go now (CRITICAL: 96.0 % used (915.5 MiB of \
         953.7 MiB), floor 96.0 %, 0 waiting, pace 30000 ms, growth penalty 1.0, asked again in 2.0 s)",
    );
}

#[tokio::test(start_paused = true)]
async fn a_shut_circuit_says_for_how_long_what_was_said_and_not_to_retry() {
    let admission = started();
    let window = ElasticWindow::builder("maps").max_throttle(0.0).build().unwrap();
    let failure = UpstreamFailure::status(429, "maps.example", "slow\r\ndown, \"please\"");
    (0..3).for_each(|_| window.record_failure(&failure));
    says(
        &tries(&admission, Demand::new().permit(&window)),
        "`maps` refuses: blocked for another 30 s after repeated failures; the upstream last said \
         \"HTTP 429 from maps.example: slow down, 'please'\"; do not retry yet",
    );
    tokio::time::sleep(Duration::from_secs(30)).await;
    let _probe = admission.try_admit(Demand::new().permit(&window)).unwrap();
    says(
        &tries(&admission, Demand::new().permit(&window)),
        "`maps` refuses: one probe is out to see whether the upstream has recovered, and all others \
         are refused until it ends, 3600 s at the longest; the upstream last said \"HTTP 429 from \
         maps.example: slow down, 'please'\"; do not retry yet",
    );
}

#[tokio::test(start_paused = true)]
async fn a_full_line_says_how_many_wait_and_how_many_may() {
    let admission = Admission::builder().max_waiting(1).start().unwrap();
    let gate = gate(1);
    let _held = admission.try_admit(Demand::new().permit(&gate)).unwrap();
    let _waiter = parked(&admission, Demand::new().permit(&gate));
    says(
        &admission.admit(Demand::new().permit(&gate)).await.unwrap_err(),
        "the line is full: 1 waiting, and no more than 1 may; try again when some have gone",
    );
}

#[tokio::test(start_paused = true)]
async fn the_ends_of_an_admission_say_what_to_do_next() {
    let (admission, gate) = (started(), gate(1));
    let token = CancellationToken::new();
    token.cancel();
    let cancelled = admission.admit(Demand::new().permit(&gate)).cancelled_by(token);
    says(&cancelled.await.unwrap_err(), "cancelled before it was granted");
    admission.stop();
    says(
        &admission.admit(Demand::new().permit(&gate)).await.unwrap_err(),
        "admission has been shut down, nothing more is granted: start it again if its runtime went \
         away, else build another",
    );
}

#[tokio::test(start_paused = true)]
async fn a_broken_account_is_named_with_its_panic() {
    let (admission, own) = (started(), Own::new("own"));
    own.set(|script| script.panics = Some("try_take"));
    let error = tries(&admission, Demand::new().permit(&own));
    says(
        &error,
        "`own` is out of order (its `try_take` panicked: told to panic in try_take): a bug in the \
         account, not in the job; jobs that do not name it go on",
    );
    let TryAdmitError::Admit(error) = error else { panic!("{error}") };
    says(error.source().expect("the panic"), "its `try_take` panicked: told to panic in try_take");
}

#[tokio::test(start_paused = true)]
async fn a_defect_says_where_it_was_and_that_it_is_final() {
    let (admission, own) = (started(), Own::new("own"));
    own.set(|script| script.panics = Some("give"));
    let gate = gate(1);
    let _held = admission.try_admit(Demand::new().permit(&gate)).unwrap();
    // Debited first, for it is the elder, and cannot take it back.
    let error = tries(&admission, Demand::new().permit(&gate).permit(&own));
    says(
        &error,
        "admission closed after a defect (`own` could not take back a failed attempt: told to panic \
         in give); nothing more is granted by it: report the defect, and build another",
    );
}

#[test]
fn what_cannot_be_configured_says_its_name_the_field_the_value_and_what_it_must_be() {
    says(
        &CountingGate::new("http", 0).unwrap_err(),
        "`http`: capacity is 0, but must be at least 1",
    );
    says(&CountingGate::new(" ", 1).unwrap_err(), "name is \" \", but must not be empty");
    // A lane's name may come from a key that somebody else chose.
    says(
        &CountingGate::new("a\n2026-01-01 ERROR forged", 1).unwrap_err(),
        "name is \"a\\n2026-01-01 ERROR forged\", but must be one line without control characters",
    );
    says(
        &TokenBucket::new("gpt-x", Limits::per_minute(0, 1)).unwrap_err(),
        "`gpt-x`: requests_per_minute is 0, but must be at least 1",
    );
    let per = WindowConfig { per: Duration::ZERO, ..WindowConfig::default() };
    says(&ElasticWindow::new("maps", per).unwrap_err(), "`maps`: per is 0ns, but must be positive");
    let short = WindowConfig { max_cooldown: Duration::from_secs(1), ..WindowConfig::default() };
    says(
        &ElasticWindow::new("maps", short).unwrap_err(),
        "`maps`: max_cooldown is 1s, but must be at least the initial cooldown, 30s",
    );
    let reading_age = Duration::from_secs(3);
    let gate = MemoryGate::builder().source(ScriptedMemory::at_percent(1.0));
    says(
        &gate.reading_age(reading_age).build().unwrap_err(),
        "`memory`: reading_age is 3s, but must be at most 2s",
    );
    let gate = CountingGate::new("http", 1).unwrap();
    says(&gate.resize(0).unwrap_err(), "`http`: capacity is 0, but must be at least 1");
    says(
        &ModelSpec::new("gpt-x", 0).validate().unwrap_err(),
        "`gpt-x`: tokens_per_minute is 0, but must be at least 1 where max_concurrent is not set",
    );
    let error = Admission::builder().event_capacity(0).build().unwrap_err();
    says(&error, "event_capacity is 0, but must be from 1 to 16777216");
    says(&BuildError::from(error), "event_capacity is 0, but must be from 1 to 16777216");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_started_says_what_is_missing() {
    for (error, sentence) in [
        (StartError::AlreadyStarted, "admission is started already; use the handle there is"),
        (
            StartError::NoRuntime,
            "no Tokio runtime here: call start inside one (for instance in an async main)",
        ),
        (
            StartError::NoTimer,
            "the Tokio runtime here has no timer: build it with `enable_time` or `enable_all`",
        ),
        (StartError::Stopped, "admission was stopped, which is final: build another"),
    ] {
        says(&error, sentence);
        says(&BuildError::from(error), sentence);
    }
}

/// Never built.
struct Locked;

impl Singleton for Locked {
    type Account = CountingGate;

    fn build() -> Result<Arc<CountingGate>, BoxError> {
        Err("its server cannot be reached".into())
    }
}

#[test]
fn a_registry_names_the_model_or_the_type_and_the_other_way() {
    let accounts = Accounts::new();
    let (hosted, local) = (ModelSpec::new("gpt-x", 1_000), ModelSpec::concurrent("llama", 2));
    says(
        &accounts.gate(&hosted).unwrap_err(),
        "model `gpt-x` declares no max_concurrent, so it has no gate; take its bucket",
    );
    says(
        &accounts.bucket(&local).unwrap_err(),
        "model `llama` is limited to 2 calls at once, so it has no bucket; take its gate",
    );
    says(
        &accounts.bucket(&ModelSpec::new("gpt-x", 0)).unwrap_err(),
        "model `gpt-x` cannot be limited as specified: tokens_per_minute is 0, but must be at least 1",
    );
    accounts.bucket(&hosted).unwrap();
    says(
        &accounts.gate(&ModelSpec::concurrent("gpt-x", 2)).unwrap_err(),
        "model `gpt-x` has a bucket already, made of a spec without max_concurrent; set it in both \
         specs or in neither, or give them two ids: each id is a limit of its own",
    );
    let error = accounts.get::<Locked>().unwrap_err();
    assert!(matches!(error, RegistryError::Build { .. }));
    let text = error.to_string();
    assert!(text.ends_with("Locked` could not be built: its server cannot be reached"), "{text}");
}

#[test]
fn a_catalog_names_file_and_line_and_what_to_write_instead() {
    for (text, sentence) in [
        ("", "catalog names no model; add a [[model]] table with id and tokens_per_minute"),
        (
            "[[model]]\nid = \"a\"\ntpm = 3",
            "catalog, line 3: unknown field `tpm`, expected one of `id`, `tokens_per_minute`, \
             `requests_per_minute`, `max_concurrent`, `prices`; a catalog is a list of [[model]] \
             tables with id, tokens_per_minute or max_concurrent, and optionally \
             requests_per_minute and prices",
        ),
        (
            "[[model]]\nid = \"a\"\ntokens_per_minute = 0",
            "catalog, line 3: model `a`: tokens_per_minute is 0, but must be at least 1; correct \
             the value or remove the model",
        ),
        (
            "[[model]]\nid = \"a\"",
            "catalog, line 2: model `a`: tokens_per_minute is missing, but a model needs it, or \
             max_concurrent; correct the value or remove the model",
        ),
        (
            "[[model]]\nid = \"a\"\nmax_concurrent = 1\n[[model]]\nid = \"a\"\nmax_concurrent = 1",
            "catalog, line 5: model `a` is there already, on line 2; give one of them another id: \
             each id is a limit of its own",
        ),
    ] {
        says(&text.parse::<Catalog>().unwrap_err(), sentence);
    }
    let text = Catalog::load("no/such/catalog.toml").unwrap_err().to_string();
    assert!(text.starts_with("cannot read the catalog no/such/catalog.toml: "), "{text}");
    assert!(text.ends_with("; name a TOML file that may be read"), "{text}");
}

#[test]
fn a_failure_of_an_upstream_reads_as_one_line() {
    let failure = UpstreamFailure::status(429, "api.example", "Rate limit reached")
        .with_retry_after(Duration::from_secs(7));
    says(&failure, "HTTP 429 from api.example: Rate limit reached (server asked for 7s)");
    let failure = UpstreamFailure::status(429, "api.example", "insufficient_quota");
    says(
        &failure,
        "HTTP 429 from api.example: insufficient_quota (the quota is used up; trying again does \
         not help)",
    );
    says(&UpstreamFailure::no_response("api.example", ""), "no response from api.example");
}

/// An own refusal is told as its account words it, under the account's name.
#[tokio::test(start_paused = true)]
async fn an_own_refusal_is_told_in_the_accounts_own_words() {
    let refusal = admit::Refusal::new("closed on Sundays; come back on Monday");
    let error = AdmitError::Refused { account: "archive".into(), refusal };
    says(&error, "`archive` refuses: closed on Sundays; come back on Monday");
}

/// Names, labels and reasons a host may have made of what somebody else chose.
const FORGED: &str = "a\n2026-01-01 ERROR forged\u{1b}[2J";
const TOLD: &str = "a 2026-01-01 ERROR forged [2J";

#[tokio::test(start_paused = true)]
async fn whatever_a_label_a_name_or_a_reason_holds_is_told_on_one_line() {
    let job = JobInfo::new(FORGED, FORGED).in_workflow(FORGED);
    assert_eq!(job.to_string(), format!("{TOLD} ({TOLD})"));
    assert_eq!(Category::Other(FORGED.into()).to_string(), TOLD);
    assert_eq!(format!("{:>31}|", Category::Other(FORGED.into())), format!("  {TOLD}|"));

    let spec = ModelSpec::new(FORGED, 100);
    let (accounts, ledger) = (Accounts::new(), SpendLedger::new());
    ledger.set_cap(FORGED, Money::usd("1".parse().unwrap())).unwrap();
    let unpriced = Priced::of(&ModelSpec::new("m", 100), Usage::new(1, 1));
    let name: Arc<str> = FORGED.into();
    let database = || Arc::clone(&name);
    let not_held = |held| ProviderError::NotHeld { provider: database(), held };
    let (verb, limit) = (DbVerb::Acquire, Duration::from_secs(1));
    let (kind, wanted) = ("One", "Another");
    let build = RegistryError::Build { type_name: "One", reason: FORGED.into(), source: "".into() };
    let calls = vec![database()];
    let out_of_time = RunError::<String>::TimedOut {
        limit,
        stage: RunStage::Databases,
        cause: Some(TimeoutCause::Database { database: database(), verb }),
    };
    let errors: [Box<dyn Error>; 24] = [
        Box::new(Refusal::new(FORGED)),
        Box::new(ConfigError::new("field", FORGED, "must be other").of(FORGED)),
        Box::new(accounts.bucket(&spec).unwrap_err()),
        Box::new(accounts.gate(&spec).unwrap_err()),
        Box::new(DbProviders::new().get::<CountingProvider>(FORGED).unwrap_err()),
        Box::new(ledger.admit(&job, &[unpriced]).unwrap_err()),
        Box::new(build),
        Box::new(Catalog::load(FORGED).unwrap_err()),
        Box::new(CatalogError::Empty { file: FORGED.into() }),
        Box::new(UsageError::NotRequired { model: FORGED.into(), calls: Vec::new() }),
        Box::new(UsageError::NotRequired { model: "m".into(), calls }),
        Box::new(UsageError::NoSuchCall { model: FORGED.into(), call: 2, named: 2 }),
        Box::new(UsageError::Ended { model: FORGED.into() }),
        Box::new(DbProvidersError::Taken { name: database(), kind }),
        Box::new(DbProvidersError::OtherType { name: database(), kind, wanted }),
        Box::new(ProviderError::failed("orders", verb, FORGED)),
        Box::new(ProviderError::failed(FORGED, verb, "disk full")),
        Box::new(ProviderError::TimedOut { provider: database(), verb, limit }),
        Box::new(ProviderError::Foreign { provider: database() }),
        Box::new(ProviderError::Closed { provider: database() }),
        Box::new(ProviderError::InUse { provider: database() }),
        Box::new(not_held(Vec::new())),
        Box::new(not_held(vec![database()])),
        Box::new(out_of_time),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.contains(TOLD) && !text.contains(char::is_control), "{text:?}");
    }

    let admission = started();
    let gate = gate(1);
    let held = admission.try_admit(Demand::new().permit(&gate)).unwrap();
    let waits = parked(&admission, Demand::new().permit(&gate).for_job(job));
    let table = admission.snapshot().to_string();
    assert!(table.lines().count() == 4 && table.contains(TOLD), "{table}");
    drop((waits, held));
}
