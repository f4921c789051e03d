//! Demands: templates, labels, and what is merged.

use std::sync::Arc;

use admit::{Account, Amount, Demand, JobInfo};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn an_account_named_twice_is_one_entry_at_its_first_place() {
    let (a, b) = (named("a", 9), bucket(10, 100));
    let same: Arc<dyn Account> = a.clone();
    let demand = Demand::new().permit(&a).tokens(&b, 5).permits(&same, 2).tokens(&b, 6);
    let entries: Vec<_> = demand
        .entries()
        .iter()
        .map(|entry| (entry.account().link().id(), entry.amount()))
        .collect();
    let expected =
        [(a.link().id(), Amount::permits(3)), (b.link().id(), Amount { requests: 2, units: 11 })];
    assert_eq!(entries, expected);
    assert!(!demand.is_empty() && Demand::new().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_label_or_an_entry_more_does_not_reach_the_template() {
    let (a, b) = (named("a", 9), named("b", 9));
    let template = permits(&a, 1);
    let labelled = template.clone().for_job(JobInfo::new("1", "one"));
    let larger = labelled.clone().permit(&b).permit(&a);
    assert!(template.job().is_none() && template.entries().len() == 1);
    assert_eq!(labelled.entries()[0].amount(), Amount::permits(1));
    assert_eq!(larger.job().map(|job| &*job.id), Some("1"));
    assert_eq!((larger.entries().len(), larger.entries()[0].amount()), (2, Amount::permits(2)));
}

/// A template remembers one admission that knows its accounts; the other must be told each time.
#[tokio::test(start_paused = true)]
async fn a_template_serves_two_admissions_in_turn() {
    let (one, other) = (started(), started());
    let a = named("a", 1);
    let template = permits(&a, 1);
    for _ in 0..3 {
        for (here, there) in [(&one, &other), (&other, &one)] {
            let held = here.admit(template.clone()).await.unwrap();
            let mut waiter = parked(there, template.clone());
            drop(held);
            settle().await;
            drop(granted(&mut waiter));
        }
    }
    for admission in [&one, &other] {
        assert_eq!(admission.snapshot().account("a").unwrap().in_use, 0);
        admission.check();
    }
}

/// What a demand was told of is looked at again when something is added to it.
#[tokio::test(start_paused = true)]
async fn an_account_added_to_a_known_template_is_known_too() {
    let admission = started();
    let (a, b) = (named("a", 1), named("b", 1));
    let template = permits(&a, 1);
    drop(admission.admit(template.clone()).await.unwrap());
    let held = admission.admit(template.permit(&b)).await.unwrap();
    assert_eq!(admission.snapshot().accounts.len(), 2);
    let mut waiter = parked(&admission, permits(&b, 1));
    b.resize(2).unwrap();
    settle().await;
    drop((granted(&mut waiter), held));
}
