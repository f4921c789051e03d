use std::collections::HashSet;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use super::*;
use crate::account::{AccountLink, Ask, Charge, Refusal, Replenishment};
use crate::amount::Amount;
use crate::events::Category;
use crate::limits::{CountingGate, Limits, TokenBucket};
use crate::sync::AtomicUsize;

/// A gate of one place that is also used up for a minute by every take, as a bucket is.
#[derive(Debug)]
struct Place {
    link: AccountLink,
    state: Mutex<State>,
    panics: bool,
}

#[derive(Debug, Default)]
struct State {
    held: u64,
    whole_at: Option<Instant>,
}

impl Place {
    fn build(name: &str) -> Result<Arc<Self>, ConfigError> {
        let link = AccountLink::new(name.to_owned())?;
        Ok(Arc::new(Self { link, state: Mutex::default(), panics: name == "broken" }))
    }

    fn take(&self) -> bool {
        let ask = Ask::new(0, Amount::permits(1), Instant::now());
        self.try_take(&ask).expect("never refuses").is_some()
    }

    fn give_back(&self) {
        self.state.lock().held = 0;
    }

    fn drain(&self, for_how_long: Duration) {
        self.state.lock().whole_at = Some(Instant::now() + for_how_long);
    }
}

impl Account for Place {
    fn link(&self) -> &AccountLink {
        &self.link
    }
    fn category(&self) -> Category {
        Category::Semaphore
    }
    fn capacity(&self) -> u64 {
        1
    }
    fn in_use(&self, now: Instant) -> u64 {
        assert!(!self.panics, "out of order");
        let state = self.state.lock();
        state.held.max(u64::from(state.whole_at.is_some_and(|at| at > now)))
    }
    fn summary(&self, _: Instant) -> String {
        String::new()
    }
    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }
    fn fits(&self, _: &Ask) -> Result<bool, Refusal> {
        Ok(self.state.lock().held == 0)
    }
    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        let mut state = self.state.lock();
        if state.held > 0 {
            return Ok(None);
        }
        state.held = 1;
        drop(state);
        Ok(Some(ask.now))
    }
    fn give(&self, charge: &Charge, _: Instant) -> Amount {
        self.give_back();
        charge.amount
    }
    fn earliest_fit(&self, _: &Ask) -> Option<Instant> {
        None
    }
}

fn router() -> Router<String, Place> {
    Router::new(|key: &String| Place::build(key))
}

/// Enough calls for the sweep to come past everything, twice.
fn sweep_past_everything<A: ?Sized>(router: &Router<String, A>)
where
    Arc<A>: AsAccount,
{
    for i in 0..2 * router.len() + 8 {
        router.account_for(&format!("other {i}")).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_key_has_one_account_and_another_key_another() {
    let router = router();
    let a = router.account_for("a").unwrap();
    let b = router.account_for("b").unwrap();
    assert!(Arc::ptr_eq(&a, &router.account_for("a").unwrap()));
    assert!(!Arc::ptr_eq(&a, &b));
    assert_eq!(a.link().name().as_ref(), "a");
}

#[tokio::test(start_paused = true)]
async fn an_account_that_is_held_by_anybody_is_kept() {
    let router = router();
    let held = router.account_for("a").unwrap();
    let id = held.link().id();
    sweep_past_everything(&router);
    assert_eq!(router.account_for("a").unwrap().link().id(), id);
    drop(held);
    sweep_past_everything(&router);
    assert_ne!(router.account_for("a").unwrap().link().id(), id, "fresh and unheld: let go");
}

#[tokio::test(start_paused = true)]
async fn a_place_taken_and_held_by_nobody_else_is_kept() {
    let router = router();
    assert!(router.account_for("a").unwrap().take());
    sweep_past_everything(&router);
    let again = router.account_for("a").unwrap();
    assert!(!again.take(), "forgetting would have doubled the limit");
    again.give_back();
    assert!(again.take());
}

#[tokio::test(start_paused = true)]
async fn a_drained_account_is_kept_until_it_is_whole_and_no_longer() {
    let router = router();
    let id = {
        let account = router.account_for("a").unwrap();
        account.drain(Duration::from_secs(60));
        account.link().id()
    };
    for seconds in [0, 30, 29] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        sweep_past_everything(&router);
        assert_eq!(router.account_for("a").unwrap().link().id(), id, "nothing is forgiven");
    }
    tokio::time::advance(Duration::from_secs(1)).await;
    sweep_past_everything(&router);
    assert_ne!(router.account_for("a").unwrap().link().id(), id);
}

#[tokio::test(start_paused = true)]
async fn a_million_keys_used_once_leave_nothing_behind() {
    let router =
        Router::new(|key: &u32| Place::build(if key.is_multiple_of(2) { "even" } else { "odd" }));
    for key in 0..1_000_000 {
        router.account_for(&key).unwrap();
        if key % 4_096 == 0 {
            assert!(router.len() <= LOOKS + 1, "{} at {key}", router.len());
        }
    }
    assert!(router.len() <= LOOKS + 1);
}

#[tokio::test(start_paused = true)]
async fn a_drained_bucket_a_throttled_bucket_and_a_held_gate_are_kept() {
    let buckets: Router<String, TokenBucket> =
        Router::new(|key: &String| TokenBucket::new(key.as_str(), Limits::per_minute(60, 600)));
    let take = |account: &dyn Account, amount| {
        let ask = Ask::new(1, amount, Instant::now());
        account.try_take(&ask).unwrap().map(|at| Charge::new(1, amount, at))
    };
    let drained = {
        let bucket = buckets.account_for("drained").unwrap();
        take(&*bucket, Amount::tokens(600)).unwrap();
        bucket.link().id()
    };
    let throttled = {
        let bucket = buckets.account_for("throttled").unwrap();
        bucket.record_429();
        bucket.link().id()
    };
    tokio::time::advance(Duration::from_secs(59)).await;
    sweep_past_everything(&buckets);
    let again = buckets.account_for("drained").unwrap();
    assert_eq!(again.link().id(), drained);
    assert!(take(&*again, Amount::tokens(600)).is_none(), "ten tokens are still to come");
    drop(again);
    tokio::time::advance(Duration::from_secs(1)).await;
    sweep_past_everything(&buckets);
    assert_ne!(buckets.account_for("drained").unwrap().link().id(), drained, "whole again");
    assert_eq!(buckets.account_for("throttled").unwrap().link().id(), throttled);

    let gates = Router::new(|key: &String| CountingGate::new(key.as_str(), 1));
    let gate = gates.account_for("a").unwrap();
    let charge = take(&*gate, Amount::permits(1)).unwrap();
    let id = gate.link().id();
    drop(gate);
    sweep_past_everything(&gates);
    let gate = gates.account_for("a").unwrap();
    assert!(take(&*gate, Amount::permits(1)).is_none(), "a second gate would have a place");
    gate.give(&charge, charge.at);
    drop(gate);
    sweep_past_everything(&gates);
    assert_ne!(gates.account_for("a").unwrap().link().id(), id);
}

/// A hundred calls a second, each key drained for a minute: 6,000 must be kept at any time.
#[tokio::test(start_paused = true)]
async fn what_must_not_be_forgotten_bounds_what_is_held() {
    let router = Router::new(|_: &u32| Place::build("key"));
    for key in 0..60_000 {
        router.account_for(&key).unwrap().drain(Duration::from_secs(60));
        tokio::time::advance(Duration::from_millis(10)).await;
        assert!(router.len() <= 9_100, "{} at {key}", router.len());
    }
    assert!(router.len() >= 6_000);
    tokio::time::advance(Duration::from_secs(60)).await;
    for _ in 0..router.len() {
        router.account_for(&0).unwrap();
    }
    assert!(router.len() <= 2);
    let routes = router.routes.lock();
    assert!(routes.turns.capacity() <= 2 * SMALL, "{}", routes.turns.capacity());
    assert!(routes.accounts.capacity() <= 2 * SMALL, "{}", routes.accounts.capacity());
}

#[tokio::test(start_paused = true)]
async fn a_constructor_that_fails_is_reported_and_may_be_asked_again() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let router = Router::new(move |key: &String| {
        let name = if counted.fetch_add(1, Ordering::Relaxed) == 0 { "" } else { key };
        Place::build(name)
    });
    assert_eq!(router.account_for("a").unwrap_err().field, "name");
    assert!(router.is_empty());
    assert!(router.account_for("a").is_ok());
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_constructor_that_panics_wedges_nothing() {
    let router = Arc::new(Router::new(|key: &String| {
        assert_ne!(key, "bad", "no such customer");
        Place::build(key)
    }));
    let good = router.account_for("good").unwrap();
    let other = Arc::clone(&router);
    assert!(thread::spawn(move || other.account_for("bad").map(drop)).join().is_err());
    assert!(Arc::ptr_eq(&good, &router.account_for("good").unwrap()));
    assert_eq!(router.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_account_that_panics_when_asked_whether_it_is_fresh_is_kept() {
    let router = router();
    let id = router.account_for("broken").unwrap().link().id();
    sweep_past_everything(&router);
    assert_eq!(router.account_for("broken").unwrap().link().id(), id);
    assert!(router.len() <= LOOKS + 2, "and the sweep goes on past it");
}

#[tokio::test(start_paused = true)]
async fn a_constructor_may_ask_the_router_itself() {
    let router: Arc<OnceRouter> = Arc::default();
    let inner = Arc::downgrade(&router);
    router
        .0
        .set(Router::new(move |key: &u32| {
            let outer = inner.upgrade().expect("alive while it is called");
            if *key > 0 {
                outer.0.get().expect("set").account_for(&(key - 1))?;
            }
            Place::build("nested").map(|place| place.to_account())
        }))
        .expect("unset");
    assert!(router.0.get().expect("set").account_for(&5).is_ok());
}

/// Answers `Arc<dyn Account>`, the default.
#[derive(Default)]
struct OnceRouter(std::sync::OnceLock<Router<u32>>);

#[test]
fn threads_that_ask_for_one_new_key_get_one_account() {
    const THREADS: usize = 8;
    let router = router();
    let barrier = Barrier::new(THREADS);
    for round in 0..200 {
        let key = format!("key {round}");
        let ids: HashSet<_> = thread::scope(|scope| {
            let ask = || {
                barrier.wait();
                router.account_for(&key).unwrap()
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
            // Collected before any is dropped: an account let go in between may be built anew.
            let accounts: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            accounts.iter().map(|account| account.link().id()).collect()
        });
        assert_eq!(ids.len(), 1);
    }
}

/// Threads take the one place of a few keys, drop the account while they hold the place, and churn
/// other keys so that the sweep is always about. Two holders of one place would be a doubled limit.
#[test]
fn forgetting_never_doubles_a_limit_under_threads() {
    const KEYS: usize = 3;
    let router = router();
    let holders: [AtomicUsize; KEYS] = Default::default();
    let taken = AtomicUsize::new(0);
    let forgotten = Mutex::new(HashSet::new());
    thread::scope(|scope| {
        for me in 0..4_usize {
            let (router, holders, taken, forgotten) = (&router, &holders, &taken, &forgotten);
            scope.spawn(move || {
                for i in 0..20_000 {
                    let key = (i + me) % KEYS;
                    let name = format!("key {key}");
                    let account = router.account_for(&name).unwrap();
                    forgotten.lock().insert(account.link().id());
                    if account.take() {
                        drop(account);
                        taken.fetch_add(1, Ordering::Relaxed);
                        assert_eq!(holders[key].fetch_add(1, Ordering::SeqCst), 0, "{name}");
                        router.account_for(&format!("churn {me} {i}")).unwrap();
                        let again = router.account_for(&name).unwrap();
                        holders[key].fetch_sub(1, Ordering::SeqCst);
                        again.give_back();
                    }
                }
            });
        }
    });
    assert!(taken.into_inner() >= 20_000);
    assert!(forgotten.lock().len() > KEYS, "some were forgotten on the way");
}
