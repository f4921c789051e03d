use std::collections::HashSet;
use std::path::Path;

use admit::{Currency, Decimal, Usage};
use clap::Parser as _;
use sqlx::Row as _;
use sqlx::sqlite::SqlitePool;
use tempfile::TempDir;

use super::*;

/// A folder of so many files, one that is no text, and no database yet.
fn folder(files: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..files {
        let path = folder.path().join(format!("{number:02}.txt"));
        std::fs::write(path, format!("This is the file number {number}.\n")).unwrap();
    }
    std::fs::write(folder.path().join("binary"), b"\0\xff").unwrap();
    folder
}

async fn run_in(folder: &Path, line: &str, stop: &CancellationToken) -> Result<Report, Fatal> {
    let words = ["fanout", folder.to_str().unwrap(), "--database"];
    let database = folder.join(".rows.sqlite");
    let words = words.into_iter().chain([database.to_str().unwrap()]);
    let says = |flag| line.contains(flag);
    let fast = if says("--latency") || says("--endpoint") { "" } else { " --latency 1" };
    let line = format!("{line}{fast}");
    let args = Args::try_parse_from(words.chain(line.split_whitespace())).unwrap();
    run(&args, Show::Nothing, stop.clone()).await
}

/// What the stand-in sold, by its own count, at the models' prices.
fn sold(report: &Report) -> Cost {
    let seen = report.seen.as_ref().unwrap();
    let cost = |(name, usage): (&String, &Usage)| {
        let model = report.models.iter().find(|model| model.id == *name).unwrap();
        model.prices.as_ref().unwrap().cost(*usage)
    };
    seen.sold.iter().map(cost).collect()
}

/// Cancels half a second after the store was opened, when the first calls are in flight.
async fn stop_while_it_runs(folder: &Path, stop: &CancellationToken) {
    while !folder.join(".rows.sqlite").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    stop.cancel();
}

async fn rows(folder: &Path) -> Vec<(String, String, u32)> {
    let url = format!("sqlite://{}", folder.join(".rows.sqlite").display());
    let pool = SqlitePool::connect(&url).await.unwrap();
    let rows = sqlx::query("SELECT path, summary, attempts FROM summaries ORDER BY path")
        .fetch_all(&pool)
        .await
        .unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

const AMPLE: &str = "--tokens-per-minute 1000000 --requests-per-minute 1000";

#[tokio::test]
async fn every_text_file_gets_its_row_either_way() {
    for way in ["", "--one-at-a-time"] {
        let folder = folder(20);
        let line = format!("{AMPLE} {way}");
        let report = run_in(folder.path(), &line, &CancellationToken::new()).await.unwrap();
        assert_eq!(report.status(), 0, "{report}");
        assert_eq!((report.totals.done, report.skipped.not_text), (20, 1), "{report}");
        assert_eq!(report.rows, Ok(20));
        let seen = report.seen.as_ref().unwrap();
        assert_eq!((seen.answered, seen.refused), (20, 0));
        let tokens: u64 = report.totals.models.iter().map(|share| share.tokens).sum();
        assert_eq!(tokens, seen.tokens(), "what was reconciled is what the provider counted");
        let kept_books = way.is_empty();
        assert_eq!(report.spent, kept_books.then(|| sold(&report)));
        assert_eq!(report.to_string().contains("\nspent "), kept_books);
        let rows = rows(folder.path()).await;
        let paths: HashSet<_> = rows.iter().map(|(path, ..)| path.as_str()).collect();
        assert_eq!(paths.len(), 20);
        assert!(rows.iter().all(|(_, summary, attempts)| !summary.is_empty() && *attempts == 1));
    }
}

#[tokio::test]
async fn a_provider_that_fails_now_and_then_costs_attempts_but_no_row() {
    let folder = folder(12);
    let line = format!("{AMPLE} --chaos 30 --attempts 50");
    let report = run_in(folder.path(), &line, &CancellationToken::new()).await.unwrap();
    assert_eq!((report.status(), report.rows.clone()), (0, Ok(12)), "{report}");
    let totals = &report.totals;
    assert!(totals.overloaded + totals.other_failures > 0, "{report}");
    assert_eq!(totals.calls, 12 + totals.overloaded + totals.other_failures);
    assert_eq!(report.spent, Some(sold(&report)), "what failed cost nothing");
    let attempts: u32 = rows(folder.path()).await.iter().map(|row| row.2).sum();
    assert_eq!(u64::from(attempts), totals.calls);
}

#[tokio::test]
async fn a_job_that_is_given_up_is_told_and_changes_the_status() {
    let folder = folder(12);
    let line = format!("{AMPLE} --chaos 50 --attempts 1");
    let report = run_in(folder.path(), &line, &CancellationToken::new()).await.unwrap();
    assert_eq!(report.status(), 1);
    assert!(report.totals.failed > 0);
    assert_eq!(report.totals.done + report.totals.failed, 12);
    assert_eq!(report.rows, Ok(report.totals.done as u64));
    assert!(report.totals.told[0].contains("given up after 1 call"), "{report}");
}

#[tokio::test]
async fn stopping_lets_what_is_in_flight_end_and_loses_no_row() {
    for way in ["", "--one-at-a-time"] {
        let folder = folder(40);
        let stop = CancellationToken::new();
        let line = format!("{AMPLE} --latency 300 --http 4 {way}");
        let (report, ()) = tokio::join!(
            run_in(folder.path(), &line, &stop),
            stop_while_it_runs(folder.path(), &stop)
        );
        let report = report.unwrap();
        assert_eq!(report.status(), 130);
        let totals = &report.totals;
        assert!(totals.done > 0 && totals.unfinished > 0, "{report}");
        assert_eq!((totals.done + totals.unfinished, totals.failed), (40, 0), "{report}");
        assert_eq!(report.rows, Ok(totals.done as u64));
        assert_eq!(report.seen.unwrap().answered, totals.done as u64, "no answer is lost");
    }
}

#[tokio::test]
async fn stopping_waits_for_nobody_who_is_to_be_tried_again() {
    for way in ["", "--one-at-a-time"] {
        let folder = folder(8);
        let stop = CancellationToken::new();
        // The stand-in lets one in, and sends the others away for a minute.
        let line = "--model m --requests-per-minute 10 --true-budget 10 --latency 10";
        let line = format!("{line} --tokens-per-minute 1000000 {way}");
        let (report, ()) = tokio::join!(
            run_in(folder.path(), &line, &stop),
            stop_while_it_runs(folder.path(), &stop)
        );
        let report = report.unwrap();
        assert_eq!((report.status(), report.totals.done), (130, 1), "{report}");
        assert_eq!((report.totals.unfinished, report.totals.failed), (7, 0), "{report}");
        assert!(report.totals.rate_limited > 0, "{report}");
        assert!(report.wall < Duration::from_secs(20), "{report}");
    }
}

/// What may be set aside for a file of `folder`, in millionths of a dollar: of the large model
/// 256 tokens out at 10 and a hundred in at 2.50, at most; of the small one a sixteenth of that.
const ONE_LARGE: i64 = 256 * 10 + 250;

fn capped_at(millionths: i64) -> (Money, String) {
    let cap = Decimal::new(millionths, 6);
    (Money::usd(cap), format!("{AMPLE} --cap {cap}"))
}

#[tokio::test]
async fn a_capped_run_spends_what_it_may_and_never_more() {
    let folder = folder(40);
    // Three of the large model can set their money aside at once. No answer has more than 160
    // tokens, so a fourth comes to its turn, and far from all twenty do.
    let (cap, line) = capped_at(3 * ONE_LARGE);
    let report = run_in(folder.path(), &line, &CancellationToken::new()).await.unwrap();
    let spent = report.spent.as_ref().unwrap();
    assert_eq!(*spent, sold(&report), "{report}");
    let spent = spent.in_currency(Currency::USD);
    assert!(spent.amount <= cap.amount, "{report}");
    let room = cap.amount - spent.amount;
    assert!(room < Decimal::new(ONE_LARGE, 6), "one more would have fitted: {report}");
    let totals = &report.totals;
    assert!(totals.done > 3 && totals.unpaid > 0, "{report}");
    assert_eq!((totals.done + totals.unpaid, totals.failed), (40, 0), "{report}");
    assert_eq!((report.status(), report.rows.clone()), (1, Ok(totals.done as u64)));
    assert_eq!(report.seen.as_ref().unwrap().answered, totals.done as u64);
    let left_out = format!("{} left out because of --cap", totals.unpaid);
    assert!(report.to_string().contains(&left_out), "{report}");
}

#[tokio::test]
async fn a_file_that_only_has_to_wait_for_its_money_is_not_left_out() {
    let folder = folder(40);
    // At once they would set aside 20 * 2,560 and more. No answer has more than 160 tokens, so
    // in the end they cost 20 * 1,850 of the large model and 20 * 111 of the small at most.
    let (cap, line) = capped_at(45_000);
    let report = run_in(folder.path(), &line, &CancellationToken::new()).await.unwrap();
    assert_eq!((report.status(), report.totals.done), (0, 40), "{report}");
    let spent = report.spent.as_ref().unwrap();
    assert_eq!(*spent, sold(&report));
    assert!(spent.in_currency(Currency::USD).amount <= cap.amount, "{report}");
}

#[tokio::test]
async fn failing_calls_under_a_cap_are_paid_for_once() {
    let folder = folder(20);
    let (cap, line) = capped_at(2 * ONE_LARGE);
    let line = format!("{line} --chaos 30 --attempts 20");
    let report = run_in(folder.path(), &line, &CancellationToken::new()).await.unwrap();
    let totals = &report.totals;
    assert!(totals.overloaded + totals.other_failures > 0 && totals.unpaid > 0, "{report}");
    assert_eq!((totals.done + totals.unpaid, totals.failed), (20, 0), "{report}");
    let spent = report.spent.as_ref().unwrap();
    assert_eq!(*spent, sold(&report));
    assert!(spent.in_currency(Currency::USD).amount <= cap.amount, "{report}");
    let attempts: u32 = rows(folder.path()).await.iter().map(|row| row.2).sum();
    assert!(u64::from(attempts) <= totals.calls, "{report}");
}

#[tokio::test]
async fn a_cap_of_nothing_calls_nobody() {
    let folder = folder(3);
    let (_, line) = capped_at(0);
    let report = run_in(folder.path(), &line, &CancellationToken::new()).await.unwrap();
    assert_eq!((report.status(), report.totals.unpaid), (1, 3), "{report}");
    assert_eq!((report.totals.calls, report.rows.clone()), (0, Ok(0)));
}

#[tokio::test]
async fn stopping_leaves_those_behind_who_wait_for_money() {
    let folder = folder(40);
    let stop = CancellationToken::new();
    // Room for two of the large model: the others wait until these have ended.
    let (_, line) = capped_at(2 * ONE_LARGE + 1_000);
    let line = format!("{line} --latency 2000");
    let (report, ()) =
        tokio::join!(run_in(folder.path(), &line, &stop), stop_while_it_runs(folder.path(), &stop));
    let report = report.unwrap();
    let totals = &report.totals;
    assert_eq!(report.status(), 130);
    assert!(totals.done > 0 && totals.unfinished > 0, "{report}");
    assert_eq!((totals.done + totals.unfinished, totals.failed), (40, 0), "{report}");
    assert_eq!(report.rows, Ok(totals.done as u64));
    assert_eq!(report.spent, Some(sold(&report)));
}

#[tokio::test]
async fn a_model_with_calls_at_once_is_never_asked_for_more() {
    for way in ["", "--one-at-a-time"] {
        let folder = folder(12);
        let catalog = folder.path().join(".models.toml");
        std::fs::write(&catalog, "[[model]]\nid = \"m\"\nmax_concurrent = 2\n").unwrap();
        let line = format!("--catalog {} --max-output 20 {way}", catalog.display());
        let report = run_in(folder.path(), &line, &CancellationToken::new()).await.unwrap();
        assert_eq!((report.status(), report.totals.done), (0, 12), "{report}");
        assert_eq!((report.seen.unwrap().refused, report.totals.rate_limited), (0, 0));
    }
}

#[tokio::test]
async fn a_panic_in_a_job_is_that_jobs_failure() {
    for one_at_a_time in [false, true] {
        let folder = folder(10);
        let args = Args::try_parse_from(["fanout", "--tokens-per-minute", "1000000"]).unwrap();
        let found = files::collect(folder.path(), 1_000, None).unwrap();
        let Plan { models, jobs } = Plan::new(&args, found.files).unwrap();
        let character = Character { latency: Duration::ZERO, chaos: 0, seed: 1 };
        let stand_in = StandIn::start(&models, character).await.unwrap();
        let database = folder.path().join(".rows.sqlite");
        let work = Arc::new(Work {
            client: Client::new(&stand_in.url, None, args.call_timeout()).unwrap(),
            store: Store::open(&database, folder.path(), 4).await.unwrap(),
            // It has no page for the second model, and panics when one is looked for.
            ledger: Ledger::new(1),
            models,
            max_bytes: 1_000,
            max_output: 256,
            retries: retries(1),
            seed: 1,
            stop: CancellationToken::new(),
        });
        // It ends only when nothing is held any more.
        if one_at_a_time {
            let way = OneAtATime::new(&work.models, 2, 4);
            carry_out(way, jobs, &work, Show::Nothing).await;
        } else {
            let way = AllAtOnce::start(&work, 2, 4, false, None).unwrap();
            carry_out(way, jobs, &work, Show::Nothing).await;
        }
        let totals = work.ledger.totals();
        assert_eq!((totals.done, totals.failed, totals.running), (5, 5, 0));
        assert!(totals.told.iter().all(|told| told.contains("panicked")), "{totals:?}");
        assert_eq!(work.store.rows().await, Ok(5));
    }
}

#[tokio::test]
async fn a_budget_that_is_smaller_than_believed_is_learned_from_the_answers() {
    let folder = folder(30);
    let line = "--model m --requests-per-minute 1200 --true-budget 50 --attempts 50";
    let line = format!("{line} --tokens-per-minute 100000 --http 30");
    let report = run_in(folder.path(), &line, &CancellationToken::new()).await.unwrap();
    assert_eq!((report.status(), report.totals.done), (0, 30), "{report}");
}

#[tokio::test]
async fn what_keeps_a_run_from_starting_leaves_nothing_behind() {
    let folder = folder(2);
    let stop = CancellationToken::new();
    let line = "--endpoint http://127.0.0.1:1/v1";
    let error = run_in(folder.path(), line, &stop).await.unwrap_err();
    assert!(matches!(error, Fatal::Unreachable { .. }), "{error}");
    let error = run_in(folder.path(), "--tokens-per-minute 10", &stop).await.unwrap_err();
    assert!(matches!(error, Fatal::NeverFits { .. }), "{error}");
    assert!(!folder.path().join(".rows.sqlite").exists());
}
