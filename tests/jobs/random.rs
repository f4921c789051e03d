//! Random jobs beside one another, against books kept by hand.
//!
//! Each job has a script: what it reserves, how long each attempt works, what it records and reports,
//! how it ends; and what ends it from outside: its time, its token, a drop, a database that fails,
//! hangs or panics. From what the jobs themselves saw it follows what each attempt cost, what every account
//! heard, how often the grant was spent and how often rolled back, and what the run must answer. The
//! books are whole millionths and share no arithmetic with the crate.
//!
//! `ADMIT_JOBS_CASES=100000 cargo test --release --test jobs random` runs more of it.

mod books;
mod play;

use std::collections::BTreeMap;
use std::time::Duration;

use admit::DbVerb;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::Fault;

/// Cases in an ordinary run: enough to meet every end of a job in all but one of many thousands.
const CASES: u32 = 700;

/// A model's price of a million tokens, in whole units of its currency; the second is in euros.
const PRICES: [u64; 3] = [1, 2, 3];

/// Which of two currencies a model is priced in.
const fn currency(model: usize) -> usize {
    (model == 1) as usize
}

#[derive(Clone, Debug)]
struct Scene {
    /// In millionths, of either currency.
    caps: [Option<u64>; 2],
    /// No job records more than it reserved.
    is_honest: bool,
    fault: Option<(DbVerb, Fault)>,
    scripts: Vec<Script>,
}

#[derive(Clone, Debug)]
struct Script {
    starts_at: Duration,
    /// Which model, and how many tokens are reserved.
    calls: Vec<(usize, u64)>,
    has_database: bool,
    within: Option<Duration>,
    cancelled_at: Option<Duration>,
    dropped_at: Option<Duration>,
    max_retries: u32,
    /// One an attempt; the last for all that come after it.
    turns: Vec<Turn>,
}

#[derive(Clone, Debug)]
struct Turn {
    works_for: Duration,
    records: Vec<Part>,
    /// A task of the job's records this late, when the job may have ended.
    records_late: Option<(Duration, Part)>,
    reports: bool,
    returns_permit: bool,
    end: End,
}

/// What is recorded of a call.
#[derive(Clone, Debug)]
struct Part {
    /// Of the job's calls.
    which: prop::sample::Index,
    /// Of what was reserved.
    hundredths: u64,
    /// It is said of which call it is.
    is_named: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Fails,
    /// A status, the account it names, and when to come back.
    Upstream(u16, &'static str, Option<Duration>),
    Panics,
    Hangs,
    /// Hangs until it is told.
    Waits,
}

fn millis(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> + Clone {
    range.prop_map(Duration::from_millis)
}

fn end() -> impl Strategy<Value = End> {
    let status = prop::sample::select(vec![429, 529, 500, 400]);
    let service = prop::sample::select(vec!["time", "permit", "elsewhere"]);
    let upstream = (status, service, prop::option::of(millis(0..3_000)));
    prop_oneof![
        4 => Just(End::Done),
        1 => Just(End::Fails),
        5 => upstream.prop_map(|(status, service, after)| End::Upstream(status, service, after)),
        1 => Just(End::Panics),
        1 => Just(End::Hangs),
        1 => Just(End::Waits),
    ]
}

fn part(most: u64) -> impl Strategy<Value = Part> {
    (any::<prop::sample::Index>(), 0..=most, any::<bool>())
        .prop_map(|(which, hundredths, is_named)| Part { which, hundredths, is_named })
}

fn turn(most: u64) -> impl Strategy<Value = Turn> {
    let late = (millis(0..400), part(most));
    let records = prop::collection::vec(part(most), 0..3);
    let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    (millis(0..300), records, prop::option::weighted(0.3, late), flags, end()).prop_map(
        |(works_for, records, records_late, (reports, returns_permit), end)| Turn {
            works_for,
            records,
            records_late,
            reports,
            returns_permit,
            end,
        },
    )
}

fn script(most: u64) -> impl Strategy<Value = Script> {
    let calls = prop::collection::vec((0..PRICES.len(), 1..50_u64), 0..3);
    let stops = (
        prop::option::weighted(0.3, millis(0..2_000)),
        prop::option::weighted(0.2, millis(0..2_000)),
        prop::option::weighted(0.2, millis(0..2_000)),
    );
    let turns = prop::collection::vec(turn(most), 1..4);
    (millis(0..500), calls, any::<bool>(), stops, 0..4_u32, turns).prop_map(
        |(starts_at, calls, has_database, stops, max_retries, turns)| Script {
            starts_at,
            calls: calls.into_iter().map(|(model, tokens)| (model, tokens * 100)).collect(),
            has_database,
            within: stops.0,
            cancelled_at: stops.1,
            dropped_at: stops.2,
            max_retries,
            turns,
        },
    )
}

fn scene() -> impl Strategy<Value = Scene> {
    // Three records of a third each are no more than what was reserved.
    any::<bool>().prop_flat_map(|is_honest| {
        let cap = || prop::option::of(0..60_000_u64);
        let verbs = vec![DbVerb::Acquire, DbVerb::Begin, DbVerb::Commit, DbVerb::AwaitCompletion];
        let verbs = prop::sample::select([verbs, vec![DbVerb::Rollback, DbVerb::Close]].concat());
        let fault = (verbs, prop::sample::select(vec![Fault::Fails, Fault::Hangs, Fault::Panics]));
        let scripts = prop::collection::vec(script(if is_honest { 33 } else { 150 }), 1..8);
        (cap(), cap(), prop::option::weighted(0.4, fault), scripts).prop_map(
            move |(usd, eur, fault, scripts)| Scene { caps: [usd, eur], is_honest, fault, scripts },
        )
    })
}

#[test]
fn whatever_jobs_do_the_money_the_reports_and_the_records_are_what_the_books_say() {
    let cases = std::env::var("ADMIT_JOBS_CASES").or_else(|_| std::env::var("PROPTEST_CASES"));
    let cases = cases.map_or(CASES, |text| text.parse().expect("a number"));
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let seen = std::cell::RefCell::new(BTreeMap::new());
    let run = TestRunner::new(config).run(&scene(), |scene| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        for word in runtime.block_on(play::play(&scene)) {
            *seen.borrow_mut().entry(word).or_insert(0) += 1;
        }
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
    // Of every way to end there were some.
    let seen = seen.into_inner();
    for word in [
        "done",
        "failed",
        "exhausted",
        "panicked",
        "panicked in a database",
        "cancelled",
        "timed out",
        "dropped",
        "spend",
        "provider",
        "commit",
        "again",
        "late usage",
    ] {
        assert!(cases < CASES || seen.contains_key(word), "no {word}: {seen:?}");
    }
}
