//! Token accounting.

use std::sync::{Arc, Mutex};

use admit::{
    Account, AccountLink, Admission, Amount, Ask, Category, Charge, EventKind, Refusal,
    Replenishment, TokenBucket,
};
use tokio::time::Instant;

use crate::support::*;

/// Whole tokens and requests left.
fn left(bucket: &TokenBucket) -> (u64, u32) {
    let status = bucket.status();
    (status.available_tokens, status.available_requests)
}

#[tokio::test(start_paused = true)]
async fn h1_usage_that_is_never_reported_stays_as_reserved() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let bucket = bucket(600, 100);
    for _ in 0..2 {
        drop(admission.try_admit(tokens_of(&bucket, 50)).unwrap());
    }
    let waiting: Vec<_> = (0..3).map(|_| parked(&admission, tokens_of(&bucket, 50))).collect();
    for (k, mut waiter) in (1..).zip(waiting) {
        observer.look();
        pass_time(secs(30) - millis(1)).await;
        assert!(!waiter.is_woken());
        pass_time(millis(1)).await;
        assert_eq!(granted(&mut waiter).wall_wait(), secs(30 * k));
    }
    assert_eq!(observer.count(&*bucket, EventKind::GrantedFromHold), 3);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn h2_the_end_of_a_grant_decides_what_stays_spent() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let take = |bucket: &Arc<TokenBucket>, n| admission.try_admit(tokens_of(bucket, n)).unwrap();

    let dropped = bucket(600, 60_000);
    drop(take(&dropped, 4_000));
    assert_eq!(left(&dropped), (56_000, 599));

    let rolled_back = bucket(600, 60_000);
    take(&rolled_back, 4_000).rollback();
    assert_eq!(left(&rolled_back), (60_000, 600));

    let unused = bucket(600, 60_000);
    let grant = take(&unused, 4_000);
    assert!(grant.reconcile(&unused, 0));
    observer.credited(&*unused, 4_000);
    drop(grant);
    assert_eq!(left(&unused), (60_000, 599));

    let small = bucket(600, 100);
    let [fifteen, ten, two] = [15, 10, 2].map(|n| take(&small, n));
    let levels = [ten, fifteen, two].map(|grant| {
        grant.rollback();
        left(&small).0
    });
    assert_eq!(levels, [83, 98, 100]);
    assert_eq!(left(&small).1, 600);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn h3_what_was_not_used_serves_the_next() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let bucket = bucket(600, 60_000);
    let mut went = 0;
    while let Ok(grant) = admission.try_admit(tokens_of(&bucket, 4_000)) {
        assert!(grant.reconcile(&bucket, 900));
        observer.credited(&*bucket, 3_100);
        went += 1;
    }
    assert_eq!(went, 63);
    assert_eq!(left(&bucket), (3_300, 537));
    drop(parked(&admission, tokens_of(&bucket, 4_000)));
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn h4_a_correction_downward_lets_who_waits_go_at_once() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let bucket = bucket(600, 60_000);
    let all = admission.try_admit(tokens_of(&bucket, 60_000)).unwrap();
    let mut waiter = parked(&admission, tokens_of(&bucket, 3_000));
    settle().await;
    assert!(!waiter.is_woken());
    let start = Instant::now();
    assert!(all.reconcile(&bucket, 50_000));
    observer.credited(&*bucket, 10_000);
    settle().await;
    drop(granted(&mut waiter));
    assert_eq!(Instant::now(), start);
    assert_eq!(left(&bucket).0, 7_000);
    drop(all);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn h4_a_correction_upward_is_paid_before_the_next_goes() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let bucket = bucket(600, 60_000);
    let all = admission.try_admit(tokens_of(&bucket, 60_000)).unwrap();
    assert!(all.reconcile(&bucket, 61_200));
    assert_eq!((left(&bucket).0, bucket.status().debt_tokens), (0, 1_200));
    let mut waiter = parked(&admission, tokens_of(&bucket, 300));
    observer.look();
    pass_time(millis(1_499)).await;
    assert!(!waiter.is_woken());
    pass_time(millis(1)).await;
    assert_eq!(granted(&mut waiter).wall_wait(), millis(1_500));
    drop(all);
    observer.all_gone();
}

#[tokio::test(start_paused = true)]
async fn h5_each_correction_replaces_the_last_and_a_rollback_returns_what_is_held() {
    let admission = started();
    let mut observer = Observer::of(&admission);
    let bucket = bucket(600, 60_000);
    drop(admission.try_admit(tokens_of(&bucket, 5_000)).unwrap());
    let grant = admission.try_admit(tokens_of(&bucket, 4_000)).unwrap();
    assert_eq!(left(&bucket).0, 51_000);
    assert!(grant.reconcile(&bucket, 900));
    assert_eq!(left(&bucket).0, 54_100);
    assert!(grant.reconcile(&bucket, 1_500));
    assert_eq!(left(&bucket).0, 53_500);
    assert!(grant.rollback());
    assert_eq!(left(&bucket).0, 55_000);
    assert!(!grant.rollback());
    assert!(!grant.reconcile(&bucket, 0));
    assert_eq!(left(&bucket), (55_000, 599));

    let refunded = admission.try_admit(tokens_of(&bucket, 4_000)).unwrap();
    observer.look();
    pass_time(secs(60)).await;
    assert_eq!(left(&bucket), (60_000, 600));
    refunded.rollback();
    assert_eq!(left(&bucket), (60_000, 600));
    observer.all_gone();
}

/// So many units for ever: an own time account that leaves `reconcile` as it is.
struct Stock {
    link: AccountLink,
    left: Mutex<u64>,
}

impl Account for Stock {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn category(&self) -> Category {
        // Nothing here comes back by a release: to the observer it is like a bucket without a rate.
        Category::ElasticWindow
    }

    fn capacity(&self) -> u64 {
        10_000
    }

    fn in_use(&self, _: Instant) -> u64 {
        10_000 - *self.left.lock().unwrap()
    }

    fn summary(&self, _: Instant) -> String {
        "a stock".to_owned()
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Time
    }

    fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        Ok(ask.total().units <= *self.left.lock().unwrap())
    }

    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        let mut left = self.left.lock().unwrap();
        let fits = ask.total().units <= *left;
        if fits {
            *left -= ask.mine.units;
        }
        drop(left);
        Ok(fits.then_some(ask.now))
    }

    fn give(&self, charge: &Charge, _: Instant) -> Amount {
        *self.left.lock().unwrap() += charge.amount.units;
        charge.amount
    }

    fn earliest_fit(&self, _: &Ask) -> Option<Instant> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn h6_a_correction_an_account_ignores_changes_nothing_of_what_comes_back() {
    let admission: Admission = started();
    let observer = Observer::of(&admission);
    let link = AccountLink::new("stock").unwrap();
    let stock = Arc::new(Stock { link, left: Mutex::new(10_000) });
    let grant = admission.try_admit(admit::Demand::new().tokens(&stock, 4_000)).unwrap();
    grant.reconcile(&stock, 900);
    assert_eq!(*stock.left.lock().unwrap(), 6_000);
    grant.rollback();
    assert_eq!(*stock.left.lock().unwrap(), 10_000);

    let gate = gate(1);
    let grant = admission.try_admit(permits(&gate, 1)).unwrap();
    grant.reconcile(&gate, 0);
    assert_eq!(gate.status().active, 1);
    grant.release();
    assert_eq!(gate.status().active, 0);
    observer.all_gone();
}
