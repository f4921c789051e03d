mod model;

use std::sync::Barrier;

use super::*;
use crate::models::Usage;

fn decimal(text: &str) -> Decimal {
    text.parse().unwrap()
}

fn usd(amount: &str) -> Money {
    Money::usd(decimal(amount))
}

fn eur(amount: &str) -> Money {
    Money::new(decimal(amount), Currency::EUR)
}

fn job() -> JobInfo {
    JobInfo::new("1", "summarise").in_workflow("nightly")
}

fn costs(amount: Money) -> Priced {
    Priced { model: "gpt-x".into(), usage: Usage::default(), cost: Some(amount) }
}

fn unpriced() -> Priced {
    Priced { model: "mystery".into(), usage: Usage::default(), cost: None }
}

fn capped(caps: &[Money]) -> Arc<SpendLedger> {
    let ledger = SpendLedger::new();
    for cap in caps {
        ledger.set_cap("nightly", *cap).unwrap();
    }
    ledger
}

/// One more job of the workflow, with these calls.
fn admit(ledger: &SpendLedger, calls: &[Priced]) -> Result<Reservation, SpendRefusal> {
    ledger.admit(&job(), calls)
}

fn reserve(ledger: &SpendLedger, amount: Money) -> Result<Reservation, SpendRefusal> {
    admit(ledger, &[costs(amount)])
}

fn spent(ledger: &SpendLedger) -> Cost {
    ledger.spent("nightly")
}

fn committed(ledger: &SpendLedger) -> Cost {
    ledger.committed("nightly")
}

#[test]
fn what_comes_to_exactly_the_cap_passes_and_the_least_more_does_not() {
    let ledger = capped(&[usd("1")]);
    reserve(&ledger, usd("0.6")).unwrap().settle(&usd("0.5").into());
    let held = reserve(&ledger, usd("0.3")).unwrap();
    let least_more = usd("0.2000000000000000000000000001");
    assert_eq!(
        reserve(&ledger, least_more).unwrap_err(),
        SpendRefusal::OverCap {
            workflow: "nightly".into(),
            spent: usd("0.5"),
            committed: usd("0.3"),
            cap: usd("1"),
            reservation: least_more,
        }
    );
    let last = reserve(&ledger, usd("0.2")).unwrap();
    assert_eq!(committed(&ledger), usd("0.5").into());
    drop((held, last));
}

#[test]
fn a_hundred_threads_at_once_never_exceed_the_cap_together() {
    let ledger = capped(&[usd("1")]);
    let barrier = Barrier::new(100);
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let ask = || {
            barrier.wait();
            reserve(&ledger, usd("0.07"))
        };
        let threads: Vec<_> = (0..100).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let admitted: Vec<_> = outcomes.into_iter().filter_map(Result::ok).collect();
    assert_eq!(admitted.len(), 14);
    assert_eq!(committed(&ledger), usd("0.98").into());
    admitted.into_iter().for_each(|reservation| reservation.settle(&usd("0.07").into()));
    assert_eq!((spent(&ledger), committed(&ledger)), (usd("0.98").into(), Cost::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_tasks_that_ask_and_settle_never_exceed_the_cap_together() {
    let ledger = capped(&[usd("1")]);
    let barrier = Arc::new(tokio::sync::Barrier::new(100));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..100 {
        let (ledger, barrier) = (Arc::clone(&ledger), Arc::clone(&barrier));
        tasks.spawn(async move {
            barrier.wait().await;
            let Ok(reservation) = reserve(&ledger, usd("0.07")) else { return Cost::new() };
            tokio::task::yield_now().await;
            let status = ledger.status("nightly")[0];
            let used = Cost::from_iter([status.spent, status.committed]);
            assert!(used.in_currency(Currency::USD).amount <= Decimal::ONE, "{used}");
            // A third never ran, and the others cost less than they reserved.
            if number % 3 == 0 {
                return Cost::new();
            }
            let actual = Cost::from(usd("0.03"));
            reservation.settle(&actual);
            actual
        });
    }
    let actual: Cost = tasks.join_all().await.iter().flat_map(Cost::iter).collect();
    assert!(!actual.is_zero());
    assert_eq!((spent(&ledger), committed(&ledger)), (actual, Cost::new()));
}

#[test]
fn a_refusal_of_a_later_gate_leaves_nothing_behind() {
    let first = capped(&[usd("1")]);
    let second = capped(&[usd("0.1")]);
    let gates: [&dyn SpendGate; 2] = [&*first, &*second];
    let calls = [costs(usd("0.5"))];
    for _ in 0..3 {
        let asked: Result<Vec<_>, _> =
            gates.iter().map(|gate| gate.admit(&job(), &calls)).collect();
        assert!(matches!(asked, Err(SpendRefusal::OverCap { .. })), "{asked:?}");
        for ledger in [&first, &second] {
            assert!(committed(ledger).is_zero() && spent(ledger).is_zero());
        }
    }
}

#[test]
fn a_settled_reservation_is_replaced_by_what_it_cost() {
    let ledger = capped(&[usd("1")]);
    reserve(&ledger, usd("0.9")).unwrap().settle(&usd("0.2").into());
    assert_eq!((spent(&ledger), committed(&ledger)), (usd("0.2").into(), Cost::new()));

    // It cost more than was set aside, and more than may be spent: that is written down, and the
    // next is refused.
    reserve(&ledger, usd("0.8")).unwrap().settle(&usd("0.9").into());
    assert_eq!((spent(&ledger), committed(&ledger)), (usd("1.1").into(), Cost::new()));
    let refusal = reserve(&ledger, usd("0.000001")).unwrap_err();
    assert!(!refusal.is_retryable());
    assert!(refusal.to_string().contains("1.100000 USD are spent"), "{refusal}");
    assert_eq!(ledger.status("nightly")[0].remaining(), Some(usd("0")));
    // What is free does not fit under a cap that is passed either.
    assert!(reserve(&ledger, usd("0")).is_err());
    ledger.set_cap("nightly", usd("0")).unwrap();
    assert_eq!(ledger.status("nightly")[0].remaining(), Some(usd("0")));

    // A job may have called what it had not announced.
    let ledger = capped(&[usd("1")]);
    reserve(&ledger, usd("0.5")).unwrap().settle(&eur("3").into());
    assert_eq!(spent(&ledger).to_string(), "0.000000 USD + 3.000000 EUR");
}

#[test]
fn the_currencies_of_a_job_are_taken_all_or_none() {
    let ledger = capped(&[usd("1"), eur("1")]);
    let calls = |euros| [costs(usd("0.4")), costs(eur(euros)), costs(usd("0.1"))];
    let refusal = admit(&ledger, &calls("1.1")).unwrap_err();
    assert!(matches!(refusal, SpendRefusal::OverCap { cap, .. } if cap == eur("1")), "{refusal}");
    assert!(committed(&ledger).is_zero());

    let held = admit(&ledger, &calls("1")).unwrap();
    assert_eq!(committed(&ledger), Cost::from_iter([usd("0.5"), eur("1")]));
    held.settle(&Cost::from_iter([usd("0.3"), eur("0.2")]));
    assert_eq!(spent(&ledger), Cost::from_iter([usd("0.3"), eur("0.2")]));
    assert!(committed(&ledger).is_zero());
}

#[test]
fn of_two_currencies_refused_the_one_that_waiting_does_not_help_is_told() {
    let ledger = capped(&[usd("1"), eur("1")]);
    let held = reserve(&ledger, usd("0.5")).unwrap();
    let refused = |dollars, euros| {
        let calls = [costs(usd(dollars)), costs(eur(euros))];
        let refusal = admit(&ledger, &calls).unwrap_err();
        let SpendRefusal::OverCap { cap, .. } = &refusal else { panic!("{refusal}") };
        (cap.currency, refusal.is_retryable())
    };
    // There may be room for the dollars when the other job has ended, and never for the euros.
    assert_eq!(refused("0.6", "1.1"), (Currency::EUR, false));
    assert_eq!(refused("0.6", "0.9"), (Currency::USD, true));
    assert_eq!(refused("1.1", "1.1"), (Currency::USD, false));
    drop(held);
}

#[test]
fn calls_of_one_job_are_weighed_together() {
    let ledger = capped(&[usd("1")]);
    let refusal = admit(&ledger, &[costs(usd("0.6")), costs(usd("0.6"))]).unwrap_err();
    assert!(
        matches!(refusal, SpendRefusal::OverCap { reservation, .. } if reservation == usd("1.2"))
    );
}

#[test]
fn under_a_cap_a_model_without_prices_is_refused() {
    let ledger = capped(&[usd("1")]);
    let refusal = admit(&ledger, &[costs(usd("0.1")), unpriced()]).unwrap_err();
    let (workflow, model) = ("nightly".into(), "mystery".into());
    assert_eq!(refusal, SpendRefusal::Unpriced { workflow, model });
    assert!(committed(&ledger).is_zero());

    let uncapped = SpendLedger::new();
    let held = admit(&uncapped, &[costs(usd("0.1")), unpriced()]).unwrap();
    assert_eq!(committed(&uncapped), usd("0.1").into());
    drop(held);
}

#[test]
fn under_a_cap_a_model_in_a_currency_without_one_is_refused() {
    let ledger = capped(&[usd("1")]);
    let refusal = admit(&ledger, &[costs(usd("0.1")), costs(eur("0.1"))]).unwrap_err();
    assert_eq!(
        refusal,
        SpendRefusal::NoCap {
            workflow: "nightly".into(),
            currency: Currency::EUR,
            model: "gpt-x".into(),
            caps: vec![Currency::USD],
        }
    );
    assert!(committed(&ledger).is_zero());
    // Also when euros were spent before there was a cap.
    let ledger = SpendLedger::new();
    reserve(&ledger, eur("1")).unwrap().settle(&eur("1").into());
    ledger.set_cap("nightly", usd("1")).unwrap();
    assert!(matches!(reserve(&ledger, eur("0.1")), Err(SpendRefusal::NoCap { .. })));
}

#[test]
fn a_workflow_without_a_cap_is_counted_so_that_a_cap_set_later_knows() {
    let ledger = SpendLedger::new();
    reserve(&ledger, usd("0.7")).unwrap().settle(&usd("0.6").into());
    let running = reserve(&ledger, usd("0.3")).unwrap();
    ledger.set_cap("nightly", usd("1")).unwrap();
    let status = ledger.status("nightly");
    assert_eq!(status.len(), 1);
    assert_eq!(status[0].spent, usd("0.6"));
    assert_eq!(status[0].committed, usd("0.3"));
    assert_eq!(status[0].cap, Some(usd("1")));
    assert_eq!(status[0].remaining(), Some(usd("0.1")));
    assert!(reserve(&ledger, usd("0.11")).is_err());
    running.settle(&usd("0.3").into());
    assert_eq!(spent(&ledger), usd("0.9").into());
}

#[test]
fn caps_are_set_and_lifted_while_jobs_run() {
    let ledger = capped(&[usd("1")]);
    let running = reserve(&ledger, usd("0.9")).unwrap();
    // Below what is committed: nobody is stopped, nobody more is admitted.
    ledger.set_cap("nightly", usd("0.5")).unwrap();
    assert!(reserve(&ledger, usd("0.01")).is_err());
    ledger.set_cap("nightly", usd("2")).unwrap();
    drop(reserve(&ledger, usd("1.1")).unwrap());

    assert_eq!(ledger.lift_cap("nightly", Currency::EUR), None);
    assert_eq!(ledger.lift_cap("nightly", Currency::USD), Some(usd("2")));
    assert_eq!(ledger.lift_cap("nightly", Currency::USD), None);
    drop(admit(&ledger, &[costs(usd("100")), unpriced()]).unwrap());
    running.settle(&usd("0.9").into());
    assert_eq!(spent(&ledger), usd("0.9").into());
    assert_eq!(ledger.status("nightly")[0].remaining(), None);

    // A cap below what is spent is allowed, and admits nobody more.
    ledger.set_cap("nightly", usd("0.1")).unwrap();
    assert!(reserve(&ledger, usd("0")).is_err());
}

#[test]
fn a_cap_of_zero_lets_only_what_is_free_pass() {
    let ledger = capped(&[usd("0")]);
    reserve(&ledger, usd("0")).unwrap().settle(&Cost::new());
    assert!(reserve(&ledger, usd("0.0000000000000000000000000001")).is_err());
}

#[test]
fn a_negative_cap_is_refused_and_changes_nothing() {
    let ledger = SpendLedger::new();
    let error = ledger.set_cap("nightly", usd("-0.5")).unwrap_err();
    assert_eq!(error.to_string(), "`nightly`: cap is -0.500000 USD, but must not be negative");
    assert!(ledger.workflows().is_empty());
}

#[test]
fn a_price_below_zero_makes_no_room_for_others() {
    let ledger = capped(&[usd("1")]);
    let _rebate = reserve(&ledger, usd("-5")).unwrap();
    assert!(reserve(&ledger, usd("1.1")).is_err());
    let _whole = reserve(&ledger, usd("1")).unwrap();
    assert_eq!(committed(&ledger), usd("1").into());
}

#[test]
fn a_job_of_no_workflow_is_neither_refused_nor_counted() {
    let ledger = capped(&[usd("0")]);
    let alone = JobInfo::new("1", "alone");
    ledger.admit(&alone, &[costs(usd("5")), unpriced()]).unwrap().settle(&usd("5").into());
    assert!(spent(&ledger).is_zero());
    assert_eq!(ledger.workflows(), ["nightly".into()]);
}

#[test]
fn a_strict_ledger_admits_only_what_has_a_cap() {
    let ledger = SpendLedger::strict();
    let refused = |admitted: Result<Reservation, SpendRefusal>, of: Option<&str>| {
        let workflow = of.map(Into::into);
        assert_eq!(admitted.err(), Some(SpendRefusal::Uncapped { workflow }));
    };
    let nobody = JobInfo::new("1", "summarise");
    refused(reserve(&ledger, usd("0")), Some("nightly"));
    refused(admit(&ledger, &[unpriced()]), Some("nightly"));
    refused(ledger.admit(&nobody, &[costs(usd("0.1"))]), None);
    assert!(ledger.workflows().is_empty(), "nothing is kept of a name that is refused");

    // What calls nothing costs nothing.
    assert!(admit(&ledger, &[]).is_ok() && ledger.admit(&nobody, &[]).is_ok());

    ledger.set_cap("nightly", usd("1")).unwrap();
    reserve(&ledger, usd("0.4")).unwrap().settle(&usd("0.4").into());
    let under_way = reserve(&ledger, usd("0.5")).unwrap();
    assert!(matches!(reserve(&ledger, usd("0.2")), Err(SpendRefusal::OverCap { .. })));
    // With its last cap lifted it is uncapped: who runs goes on.
    ledger.lift_cap("nightly", Currency::USD);
    refused(reserve(&ledger, usd("0.1")), Some("nightly"));
    under_way.settle(&usd("0.5").into());
    assert_eq!(spent(&ledger), usd("0.9").into());
}

#[test]
fn workflows_do_not_share_their_caps() {
    let ledger = capped(&[usd("1")]);
    let _all = reserve(&ledger, usd("1")).unwrap();
    let other = JobInfo::new("2", "other").in_workflow("daily");
    let _more = ledger.admit(&other, &[costs(usd("5"))]).unwrap();
    assert_eq!(ledger.committed("daily"), usd("5").into());
    assert_eq!(committed(&ledger), usd("1").into());
    assert_eq!(ledger.workflows(), ["daily".into(), "nightly".into()]);
    assert!(ledger.status("weekly").is_empty() && ledger.spent("weekly").is_zero());
    assert_eq!(ledger.workflows().len(), 2, "asking about a workflow does not open a book");
    // One whose jobs have nothing to count is known all the same, so that it can be forgotten.
    let free = JobInfo::new("3", "free").in_workflow("hourly");
    drop(ledger.admit(&free, &[unpriced()]).unwrap());
    assert_eq!(ledger.workflows(), ["daily".into(), "hourly".into(), "nightly".into()]);
    assert!(ledger.status("hourly").is_empty());
}

#[test]
fn a_forgotten_workflow_leaves_nothing_and_what_runs_settles_into_nothing() {
    let ledger = capped(&[usd("1")]);
    reserve(&ledger, usd("0.2")).unwrap().settle(&usd("0.2").into());
    let [settled, dropped] = [usd("0.3"), usd("0.4")].map(|cost| reserve(&ledger, cost).unwrap());
    assert_eq!(ledger.forget("nightly"), usd("0.2").into());
    assert!(ledger.workflows().is_empty());
    assert!(ledger.forget("nightly").is_zero());

    // Another of the same name starts anew, and what is left of the old one does not touch it.
    let anew = reserve(&ledger, usd("7")).unwrap();
    settled.settle(&usd("0.3").into());
    drop(dropped);
    assert_eq!((spent(&ledger), committed(&ledger)), (Cost::new(), usd("7").into()));
    anew.settle(&usd("6").into());
    assert_eq!((spent(&ledger), committed(&ledger)), (usd("6").into(), Cost::new()));
}

#[test]
fn a_reservation_outlives_its_ledger() {
    let ledger = capped(&[usd("1")]);
    let [settled, dropped] = [usd("0.3"), usd("0.4")].map(|cost| reserve(&ledger, cost).unwrap());
    drop(ledger);
    settled.settle(&usd("0.3").into());
    drop(dropped);
}

#[test]
fn a_thousand_thousandths_fill_a_cap_of_one() {
    let ledger = capped(&[usd("1")]);
    for _ in 0..1_000 {
        reserve(&ledger, usd("0.001")).unwrap().settle(&usd("0.001").into());
    }
    assert_eq!(spent(&ledger).in_currency(Currency::USD), usd("1"));
    assert!(reserve(&ledger, usd("0.001")).is_err());
}

#[test]
fn at_the_maximum_nothing_overflows_and_nothing_is_lost() {
    let most = Money::usd(Decimal::MAX);
    let ledger = capped(&[most]);
    // More than can be counted is under no cap, not even under the largest.
    let refusal = reserve(&ledger, most).unwrap_err();
    assert!(!refusal.is_retryable(), "{refusal}");
    let nearly = Money::usd(Decimal::MAX - Decimal::ONE);
    let held = reserve(&ledger, nearly).unwrap();
    assert!(reserve(&ledger, usd("1.1")).is_err());
    let last = reserve(&ledger, usd("1")).unwrap();
    drop((held, last));
    assert!(committed(&ledger).is_zero());

    // Without a cap, sums pass the maximum, and come back to the last digit.
    let ledger = SpendLedger::new();
    let small = reserve(&ledger, usd("0.0000001")).unwrap();
    let large: Vec<_> = (0..3).map(|_| reserve(&ledger, most).unwrap()).collect();
    assert_eq!(committed(&ledger).in_currency(Currency::USD), most);
    drop(large);
    assert_eq!(committed(&ledger), usd("0.0000001").into());
    small.settle(&most.into());
    reserve(&ledger, usd("1")).unwrap().settle(&most.into());
    assert_eq!(spent(&ledger).in_currency(Currency::USD), most);
    ledger.set_cap("nightly", most).unwrap();
    assert!(reserve(&ledger, usd("0")).is_err(), "what was spent is above every cap");
}
