//! The snapshot: everything about an admission at one instant.

use admit::testing::ScriptedMemory;
use admit::{Account, Admission, Amount, Category, Demand, JobInfo, MemoryGate, Totals};
use tokio_test::task::spawn;
use tokio_util::sync::CancellationToken;

use crate::support::*;

fn labelled(demand: Demand, id: &str) -> Demand {
    demand.for_job(JobInfo::new(id, "job"))
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_tells_of_every_account_and_of_the_head() {
    let admission = started();
    let (a, b) = (named("a", 1), bucket(10, 100));
    let held = admission.try_admit(permits(&a, 1).tokens(&b, 40)).unwrap();
    let head = parked(&admission, labelled(permits(&a, 1), "head"));
    pass_time(secs(2)).await;
    let next = parked(&admission, labelled(permits(&a, 1), "next"));
    pass_time(secs(1)).await;
    let snapshot = admission.snapshot();
    assert_eq!((snapshot.waiting, snapshot.held, snapshot.unseen.count), (2, 1, 0));
    let names: Vec<_> = snapshot.accounts.iter().map(|account| &*account.name).collect();
    assert_eq!(names, ["a", "bucket of 10 and 100"], "by name");
    let account = snapshot.account("a").unwrap();
    assert_eq!((&account.category, account.capacity), (&Category::Semaphore, 1));
    assert_eq!((account.in_use, account.waiting), (1, 2));
    assert_eq!(account.oldest_wait, Some(secs(3)));
    assert_eq!((account.indicator.as_deref(), account.quarantined), (None, false));
    assert_eq!(account.summary, a.summary(tokio::time::Instant::now()));
    let of_bucket = snapshot.account(b.link().name()).unwrap();
    assert_eq!((of_bucket.waiting, of_bucket.oldest_wait), (0, None));
    let told = snapshot.head.as_ref().expect("somebody waits");
    assert_eq!(told.job.as_ref().map(|job| &*job.id), Some("head"));
    assert_eq!((told.age, told.shortages.len()), (secs(3), 1));
    let shortage = &told.shortages[0];
    assert_eq!((&*shortage.account, shortage.wanted), ("a", Amount::permits(1)));
    assert_eq!((shortage.in_use, shortage.capacity, shortage.retry_at), (1, 1, None));
    assert!(snapshot.to_string().contains("head: job (head), for 3.0s; `a` is short of 1 permit"));
    assert!(snapshot.account("no such").is_none());
    drop((head, next, held));
    assert!(admission.snapshot().head.is_none());
}

#[tokio::test(start_paused = true)]
async fn memory_comes_first_in_a_snapshot() {
    let memory = ScriptedMemory::at_percent(96.0);
    let gate = MemoryGate::with_source(memory.clone()).unwrap();
    let admission = Admission::builder().memory_gate(gate).start().unwrap();
    let a = named("a", 1);
    let waiter = parked(&admission, permits(&a, 1));
    pass_time(secs(3)).await;
    let snapshot = admission.snapshot();
    let names: Vec<_> = snapshot.accounts.iter().map(|account| &*account.name).collect();
    assert_eq!(names, ["memory", "a"]);
    let told = &snapshot.accounts[0];
    assert_eq!((told.in_use, told.capacity), (960_000_000, 1_000_000_000));
    assert_eq!((told.waiting, told.oldest_wait), (1, Some(secs(3))));
    assert_eq!(told.indicator.as_deref(), Some("blocked"));
    assert_eq!(&*snapshot.head.unwrap().shortages[0].account, "memory");
    drop(waiter);
}

#[tokio::test(start_paused = true)]
async fn grants_that_landed_and_were_not_polled_are_counted_with_the_oldest() {
    let admission = started();
    let (a, b) = (named("a", 1), named("b", 1));
    let held = (
        admission.try_admit(permits(&a, 1)).unwrap(),
        admission.try_admit(permits(&b, 1)).unwrap(),
    );
    let mut first = parked(&admission, permits(&a, 1));
    let mut second = parked(&admission, permits(&b, 1));
    drop(held.0);
    pass_time(secs(3)).await;
    let unseen = admission.snapshot().unseen;
    assert_eq!((unseen.count, unseen.oldest), (1, Some(secs(3))));
    drop(held.1);
    pass_time(secs(2)).await;
    let snapshot = admission.snapshot();
    assert_eq!((snapshot.unseen.count, snapshot.unseen.oldest), (2, Some(secs(5))));
    assert_eq!((snapshot.waiting, snapshot.held), (0, 2), "they are held, and wait no more");
    let first = granted(&mut first);
    let unseen = admission.snapshot().unseen;
    assert_eq!((unseen.count, unseen.oldest), (1, Some(secs(2))));
    drop((granted(&mut second), first));
    let unseen = admission.snapshot().unseen;
    assert_eq!((unseen.count, unseen.oldest), (0, None));
}

#[tokio::test(start_paused = true)]
async fn waits_of_the_granted_are_counted_by_decades() {
    let admission = started();
    let a = named("a", 1);
    for wait in [millis(1), millis(7), millis(70), millis(700), secs(7), secs(30), secs(300)] {
        let held = admission.admit(permits(&a, 1)).await.unwrap();
        let mut waiter = parked(&admission, permits(&a, 1));
        pass_time(wait).await;
        drop(held);
        settle().await;
        drop(granted(&mut waiter));
    }
    // Who leaves without a grant is no wait.
    let held = admission.admit(permits(&a, 1)).await.unwrap();
    let late = admission.admit(permits(&a, 1)).within(secs(7)).await;
    assert!(late.is_err());
    drop(held);
    let waits = admission.snapshot().waits;
    assert_eq!((waits.at_once, waits.up_to, waits.longer), (8, [1; 7], 0));
    assert_eq!(waits.count(), 15);
}

#[tokio::test(start_paused = true)]
async fn who_holds_what_since_when_is_told_only_when_that_was_asked_for() {
    for tracks in [false, true] {
        let admission = Admission::builder().track_holders(tracks).start().unwrap();
        let (a, b) = (named("a", 3), named("b", 9));
        let one = admission.try_admit(labelled(permits(&a, 2).permits(&b, 5), "one")).unwrap();
        pass_time(secs(2)).await;
        let two = admission.try_admit(permits(&a, 1)).unwrap();
        let mut waiter = parked(&admission, labelled(permits(&a, 1), "three"));
        pass_time(secs(1)).await;
        let holders = |name: &str| {
            let snapshot = admission.snapshot();
            let holders = &snapshot.account(name).unwrap().holders;
            let told = |holder: &admit::HolderSnapshot| {
                let id = holder.job.as_ref().map(|job| job.id.to_string());
                (id, holder.amount, holder.held_for)
            };
            holders.iter().map(told).collect::<Vec<_>>()
        };
        let one_is = |amount, held_for| (Some("one".to_owned()), amount, held_for);
        if tracks {
            let expected =
                [one_is(Amount::permits(2), secs(3)), (None, Amount::permits(1), secs(1))];
            assert_eq!(holders("a"), expected, "the longest first");
            assert_eq!(holders("b"), [one_is(Amount::permits(5), secs(3))]);
        } else {
            assert_eq!((holders("a"), holders("b")), (vec![], vec![]));
        }
        drop(two);
        pass_time(secs(1)).await;
        if tracks {
            // A grant holds from when it lands, seen or not.
            assert_eq!(holders("a")[1], (Some("three".to_owned()), Amount::permits(1), secs(1)));
        }
        assert!(one.rollback());
        drop(granted(&mut waiter));
        assert_eq!(holders("a"), [], "settled, though the grant is still there");
        drop(one);
        admission.check();
    }
}

#[tokio::test(start_paused = true)]
async fn totals_count_every_job_once_by_how_it_ended() {
    let admission = Admission::builder().max_waiting(1).start().unwrap();
    let a = named("a", 1);
    let held = admission.admit(permits(&a, 1)).await.unwrap();
    // Refused: the one that never fits, the one the line is full for.
    assert!(admission.try_admit(permits(&a, 2)).is_err());
    let late = admission.admit(permits(&a, 1)).within(secs(1));
    let mut late = spawn(late);
    assert!(late.poll().is_pending());
    assert!(admission.admit(permits(&a, 1)).await.is_err());
    pass_time(secs(1)).await;
    assert!(landed(&mut late).is_err());
    // Cancelled: the one that left the line, the one whose token was cancelled before.
    drop(parked(&admission, permits(&a, 1)));
    let token = CancellationToken::new();
    token.cancel();
    assert!(admission.admit(permits(&a, 1)).cancelled_by(token).await.is_err());
    // Neither: what would wait, and what was never polled.
    assert!(admission.try_admit(permits(&a, 1)).is_err());
    drop(admission.admit(permits(&a, 1)));
    // Granted, though nobody ever saw it.
    let unseen = parked(&admission, permits(&a, 1));
    drop(held);
    settle().await;
    drop(unseen);
    let Totals { granted, refused, cancelled, timed_out, .. } = admission.snapshot().totals;
    assert_eq!((granted, refused, cancelled, timed_out), (2, 2, 2, 1));
    admission.stop();
    assert!(admission.admit(permits(&a, 1)).await.is_err());
    assert_eq!(admission.snapshot().totals.refused, 3);
}
