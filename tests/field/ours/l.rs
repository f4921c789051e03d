//! L. Nested use and databases: who holds while it waits, and who holds nothing.

use std::sync::Arc;

use admit::{AdmitError, DatabaseGate, Demand};

use crate::support::*;

fn database(n: u32) -> Arc<DatabaseGate> {
    DatabaseGate::new(format!("l {}", number()), n).expect("a positive capacity")
}

fn connection(db: &Arc<DatabaseGate>) -> Demand {
    Demand::new().permit(db)
}

#[tokio::test(start_paused = true)]
async fn l_children_of_a_parent_that_holds_nothing_all_get_through() {
    let admission = started();
    let watch = Observer::of(&admission);
    let db = database(2);
    let parent = admission.try_admit(Demand::new()).unwrap();
    let children: Vec<_> = (0..50)
        .map(|_| {
            let (admission, one) = (admission.clone(), connection(&db));
            tokio::spawn(async move {
                let work = tokio::time::sleep(millis(5));
                admission.run(one, work).await.unwrap();
            })
        })
        .collect();
    for child in children {
        child.await.unwrap();
    }
    drop(parent);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn l_an_inner_job_on_another_account_goes_beside_the_outer() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (db, g) = (database(1), gate(1));
    let inner = || admission.run(permits(&g, 1), async { 7 });
    let outer = admission.run(connection(&db), async { inner().await.unwrap() });
    assert_eq!(outer.await.unwrap(), 7);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn l_three_levels_go_on_when_each_lets_go_before_it_descends() {
    let admission = started();
    let watch = Observer::of(&admission);
    let db = database(1);
    let mut levels = Vec::new();
    for _ in 0..3 {
        let grant = admission.admit(connection(&db)).within(secs(1)).await.unwrap();
        assert!(grant.release_one(&db));
        levels.push(grant);
    }
    assert_eq!(db.status().active, 0);
    while let Some(grant) = levels.pop() {
        drop(grant);
        assert_eq!(db.status().active, 0, "nothing comes back twice");
    }
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn l_a_child_that_times_out_leaves_its_parents_grant_alone() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (db, b) = (database(1), bucket(10, 100));
    let parent = admission.try_admit(connection(&db).tokens(&b, 10)).unwrap();
    let child = admission.admit(connection(&db).tokens(&b, 10)).within(millis(50)).await;
    assert!(matches!(child, Err(AdmitError::TimedOut { .. })));
    assert_eq!((db.status().active, b.status().available_tokens), (1, 90));
    assert!(parent.report_success(&b));
    drop(parent);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn l_an_outer_job_that_is_aborted_takes_its_inner_one_with_it() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (db, g) = (database(1), gate(1));
    let held = admission.try_admit(permits(&g, 1)).unwrap();
    let nested = {
        let (admission, outer, inner) = (admission.clone(), connection(&db), permits(&g, 1));
        tokio::spawn(async move {
            let _outer = admission.admit(outer).await.unwrap();
            let _inner = admission.admit(inner).await.unwrap();
            std::future::pending::<()>().await;
        })
    };
    settle().await;
    assert_eq!((db.status().active, admission.queue_len()), (1, 1));
    nested.abort();
    assert!(nested.await.unwrap_err().is_cancelled());
    assert_eq!((db.status().active, admission.queue_len()), (0, 0));
    drop(held);
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn l_what_the_outer_gives_back_early_goes_to_the_line_before_its_inner_job() {
    let admission = started();
    let watch = Observer::of(&admission);
    let db = database(1);
    let outer = admission.try_admit(connection(&db)).unwrap();
    let mut first = parked(&admission, connection(&db));
    assert!(outer.release_one(&db));
    let mut inner = parked(&admission, connection(&db));
    settle().await;
    let first = granted(&mut first);
    assert!(!inner.is_woken());
    drop(first);
    settle().await;
    drop((granted(&mut inner), outer));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn l_two_databases_wanted_in_either_order_never_lock_each_other_out() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (p, q) = (database(1), database(1));
    let jobs: Vec<_> = (0..40)
        .map(|at| {
            let both =
                if at % 2 == 0 { connection(&p).permit(&q) } else { connection(&q).permit(&p) };
            let admission = admission.clone();
            tokio::spawn(async move {
                admission.run(both, tokio::time::sleep(millis(2))).await.unwrap();
            })
        })
        .collect();
    for job in jobs {
        job.await.unwrap();
    }
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn l_a_read_that_needs_no_connection_is_not_kept_by_those_that_do() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (db, g) = (database(1), gate(3));
    let held = admission.try_admit(connection(&db)).unwrap();
    let line: Vec<_> = (0..2).map(|_| parked(&admission, connection(&db).permit(&g))).collect();
    // The head keeps one place; the other two are anybody's.
    let others: Vec<_> = (0..2).map(|_| admission.try_admit(permits(&g, 1)).unwrap()).collect();
    drop(would_wait(admission.try_admit(permits(&g, 1))));
    drop((others, line, held));
    watch.all_gone();
}

#[tokio::test(start_paused = true)]
async fn l_a_rollback_of_the_outer_after_the_inner_ended_returns_only_its_own() {
    let admission = started();
    let watch = Observer::of(&admission);
    let (db, b) = (database(2), bucket(10, 100));
    let outer = admission.try_admit(connection(&db).tokens(&b, 30)).unwrap();
    let inner = admission.try_admit(connection(&db).tokens(&b, 20)).unwrap();
    inner.release();
    outer.rollback();
    assert_eq!((db.status().active, b.status().available_tokens), (0, 80));
    assert_eq!(b.status().available_requests, 9);
    watch.all_gone();
}
