//! L. Nested use and databases: jobs inside jobs, and permits given back early.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use admit::{Account, AdmitError, DatabaseGate, Demand};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn l1_a_place_is_held_only_together_with_the_database() {
    for gate_first in [true, false] {
        let admission = started();
        let watch = Observer::of(&admission);
        let (g, db) = (gate(4), DatabaseGate::new(format!("l1 {gate_first}"), 1).unwrap());
        let demand = if gate_first {
            permits(&g, 1).permit(&db)
        } else {
            Demand::new().permit(&db).permit(&g)
        };
        let finished = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let (admission, demand) = (admission.clone(), demand.clone());
            let finished = Arc::clone(&finished);
            tokio::spawn(async move {
                let grant = admission.admit(demand).await.unwrap();
                tokio::time::sleep(millis(3)).await;
                drop(grant);
                finished.fetch_add(1, Ordering::Relaxed);
            });
        }
        settle().await;
        while finished.load(Ordering::Relaxed) < 100 {
            let snapshot = admission.snapshot();
            let in_use = |account: &dyn Account| {
                snapshot.account(account.link().name()).map_or(0, |account| account.in_use)
            };
            assert!(in_use(&*g) <= in_use(&*db), "{snapshot}");
            tokio::time::sleep(millis(1)).await;
        }
        watch.all_gone();
    }
}

#[tokio::test(start_paused = true)]
async fn l2_who_holds_what_it_waits_for_times_out_and_keeps_what_it_holds() {
    let admission = started();
    let mut watch = Observer::of(&admission);
    let db = DatabaseGate::new("main", 10).unwrap();
    let demand = Demand::new().permit(&db);
    let held: Vec<_> = (0..10).map(|_| admission.try_admit(demand.clone()).unwrap()).collect();
    let start = tokio::time::Instant::now();
    let inner: Vec<_> =
        (0..10).map(|_| tokio::spawn(admission.admit(demand.clone()).within(secs(1)))).collect();
    for inner in inner {
        let error = inner.await.unwrap().unwrap_err();
        assert!(matches!(error, AdmitError::TimedOut { waited, .. } if waited == secs(1)));
        assert!(error.to_string().contains("db:main"), "{error}");
        assert_eq!(start.elapsed(), secs(1));
    }
    assert_eq!(db.status().active, 10);
    watch.at_rest();
    for (outer, left) in held.iter().zip((0..10).rev()) {
        assert!(outer.release_one(&db));
        let inner = admission.admit(demand.clone()).within(secs(1)).await.unwrap();
        assert_eq!(db.status().active, left + 1);
        drop(inner);
        assert_eq!(db.status().active, left);
        assert!(!outer.release_one(&db));
    }
    assert_eq!(db.status().active, 0);
    drop(held);
    assert_eq!(db.status().active, 0, "nothing is given back twice");
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn l3_what_was_given_back_early_does_not_come_back_again() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (db, g, b) = (DatabaseGate::new("l3", 3).unwrap(), gate(2), bucket(10, 1_000));
    let other = admission.try_admit(Demand::new().permit(&db)).unwrap();
    let demand = Demand::new().permit(&db).permit(&g).tokens(&b, 100);
    let grant = admission.try_admit(demand).unwrap();
    assert_eq!(db.status().active, 2);
    assert!(grant.release_one(&db));
    assert_eq!(db.status().active, 1);
    assert!(!grant.release_one(&db));
    assert!(!grant.release_one(&b));
    assert!(!grant.report_success(&db), "after release_one nothing is reported on it");
    assert_eq!((db.status().active, b.status().available_tokens), (1, 900));
    assert!(grant.rollback());
    assert_eq!((db.status().active, g.status().active), (1, 0));
    assert_eq!((b.status().available_tokens, b.status().available_requests), (1_000, 10));
    assert!(!grant.release_one(&g) && !grant.release());
    drop((grant, other));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn l3_a_place_given_back_early_lets_the_next_go() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (db, g) = (DatabaseGate::new("l3 next", 1).unwrap(), gate(2));
    let grant = admission.try_admit(Demand::new().permit(&db).permit(&g)).unwrap();
    let mut next = parked(&admission, Demand::new().permit(&db).permit(&g));
    assert!(grant.release_one(&db));
    settle().await;
    let next = granted(&mut next);
    assert_eq!((db.status().active, g.status().active), (1, 2));
    drop(grant);
    assert_eq!((db.status().active, g.status().active), (1, 1));
    drop(next);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn l4_a_loop_that_never_waits_lets_others_run() {
    let admission = started();
    let watch = Observer::of(&admission);
    let g = gate(1);
    let rounds = Arc::new(AtomicUsize::new(0));
    let other = {
        let rounds = Arc::clone(&rounds);
        tokio::spawn(async move { rounds.load(Ordering::Relaxed) })
    };
    let looping = {
        let (admission, demand, rounds) = (admission.clone(), permits(&g, 1), Arc::clone(&rounds));
        tokio::spawn(async move {
            for _ in 0..10_000 {
                drop(admission.admit(demand.clone()).await.unwrap());
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let again = {
        let rounds = Arc::clone(&rounds);
        tokio::spawn(async move { rounds.load(Ordering::Relaxed) })
    };
    assert!(again.await.unwrap() < 500, "it ran within a few hundred admits");
    assert!(other.await.unwrap() < 500);
    looping.await.unwrap();
    assert_eq!(rounds.load(Ordering::Relaxed), 10_000);
    watch.all_gone();
}
