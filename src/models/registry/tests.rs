use std::error::Error;
use std::sync::Barrier;
use std::thread;

use super::*;
use crate::account::{Ask, Charge};
use crate::amount::Amount;
use crate::limits::CountingGate;
use crate::sync::{AtomicBool, AtomicUsize, Ordering};
use crate::upstream::UpstreamFailure;

#[tokio::test(start_paused = true)]
async fn one_bucket_an_id_and_the_first_specs_numbers() {
    let accounts = Accounts::new();
    let first = accounts.bucket(&ModelSpec::new("m", 30_000)).unwrap();
    let second = accounts.bucket(&ModelSpec::new("m", 5).with_requests_per_minute(7)).unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    let status = second.status();
    assert_eq!((status.requests_per_minute, status.tokens_per_minute), (30, 30_000));
    assert_eq!(first.link().name().as_ref(), "m");
    // An endpoint of its own has an id of its own, and so a bucket of its own.
    let variant = accounts.bucket(&ModelSpec::new("m@eu", 30_000)).unwrap();
    assert!(!Arc::ptr_eq(&first, &variant));
}

#[test]
fn one_gate_an_id_of_the_specs_size_and_name() {
    let accounts = Accounts::new();
    let spec = ModelSpec::concurrent("llama", 2);
    let gate = accounts.gate(&spec).unwrap();
    assert!(Arc::ptr_eq(&gate, &accounts.gate(&spec).unwrap()));
    assert_eq!((gate.capacity(), gate.link().name().as_ref()), (2, "llama"));
}

#[tokio::test(start_paused = true)]
async fn a_spec_has_a_bucket_or_a_gate_and_is_refused_the_other() {
    let accounts = Accounts::new();
    let (hosted, local) = (ModelSpec::new("h", 10), ModelSpec::concurrent("l", 2));
    let no_gate = accounts.gate(&hosted).unwrap_err();
    assert!(matches!(no_gate, RegistryError::NoGate { .. }));
    assert!(no_gate.to_string().contains("take its bucket"), "{no_gate}");
    let no_bucket = accounts.bucket(&local).unwrap_err();
    assert!(matches!(no_bucket, RegistryError::NoBucket { max_concurrent: 2, .. }));
    assert_eq!(accounts.account(&hosted).unwrap().category().as_str(), "token_bucket");
    assert_eq!(accounts.account(&local).unwrap().category().as_str(), "semaphore");
}

#[tokio::test(start_paused = true)]
async fn an_id_is_one_limit_and_a_spec_of_the_other_kind_is_refused() {
    let accounts = Accounts::new();
    let (shared, alone) = (ModelSpec::new("m", 10), ModelSpec::concurrent("m", 2));
    let bucket = accounts.bucket(&shared).unwrap();
    let refused = accounts.account(&alone).unwrap_err();
    assert!(matches!(&refused, RegistryError::OtherKind { has: "bucket", .. }), "{refused:?}");
    assert!(Arc::ptr_eq(&bucket, &accounts.bucket(&shared).unwrap()), "as before");

    accounts.clear();
    let gate = accounts.gate(&alone).unwrap();
    let errors =
        [accounts.account(&shared).map(drop), accounts.update_limits(&shared, 1, 1).map(drop)];
    for refused in errors {
        assert!(
            matches!(refused, Err(RegistryError::OtherKind { has: "gate", .. })),
            "{refused:?}"
        );
    }
    assert!(accounts.status(&shared).is_none());
    assert!(Arc::ptr_eq(&gate, &accounts.gate(&alone).unwrap()), "as before");
}

#[test]
fn a_spec_that_makes_no_account_names_the_field_and_leaves_nothing_behind() {
    let accounts = Accounts::new();
    let field = |error| match error {
        RegistryError::Spec { source, .. } => source.field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(accounts.bucket(&ModelSpec::new("m", 0)).unwrap_err()), "tokens_per_minute");
    assert_eq!(field(accounts.bucket(&ModelSpec::new(" ", 1)).unwrap_err()), "name");
    let zero = ModelSpec::new("m", 1).with_requests_per_minute(0);
    assert_eq!(field(accounts.bucket(&zero).unwrap_err()), "requests_per_minute");
    assert_eq!(field(accounts.update_limits(&ModelSpec::new("", 1), 1, 1).unwrap_err()), "name");
    assert!(accounts.gate(&ModelSpec::concurrent("m", 0)).is_err());
    assert!(accounts.status(&ModelSpec::new("m", 1)).is_none());
}

#[tokio::test(start_paused = true)]
async fn reported_ceilings_are_applied_in_place_and_keep_the_throttle() {
    let accounts = Accounts::new();
    let spec = ModelSpec::new("m", 10_000);
    let bucket = accounts.bucket(&spec).unwrap();
    bucket.record_failure(&UpstreamFailure::status(429, "m", ""));
    assert!(accounts.update_limits(&spec, 500, 60_000).unwrap());
    assert!(Arc::ptr_eq(&bucket, &accounts.bucket(&spec).unwrap()));
    let status = accounts.status(&spec).unwrap();
    assert_eq!((status.requests_per_minute, status.tokens_per_minute), (500, 60_000));
    assert_eq!(status.throttle, 0.5);
}

#[tokio::test(start_paused = true)]
async fn reported_ceilings_make_the_bucket_where_there_is_none() {
    let accounts = Accounts::new();
    let spec = ModelSpec::new("m", 10_000);
    assert!(accounts.status(&spec).is_none());
    assert!(accounts.update_limits(&spec, 500, 60_000).unwrap());
    let status = accounts.bucket(&spec).unwrap().status();
    assert_eq!((status.available_requests, status.available_tokens), (500, 60_000));
}

#[tokio::test(start_paused = true)]
async fn a_pair_with_a_zero_and_a_model_with_a_gate_are_ignored() {
    let accounts = Accounts::new();
    let spec = ModelSpec::new("m", 10_000);
    accounts.bucket(&spec).unwrap();
    assert!(!accounts.update_limits(&spec, 0, 60_000).unwrap());
    assert!(!accounts.update_limits(&spec, 500, 0).unwrap());
    assert_eq!(accounts.status(&spec).unwrap().tokens_per_minute, 10_000);
    let local = ModelSpec::concurrent("l", 2);
    assert!(!accounts.update_limits(&local, 500, 60_000).unwrap());
    assert!(accounts.status(&local).is_none());
}

#[tokio::test(start_paused = true)]
async fn clear_empties_the_registry_and_holders_go_on() {
    let accounts = Accounts::new();
    let spec = ModelSpec::new("m", 10);
    let bucket = accounts.bucket(&spec).unwrap();
    let geocoder = accounts.get::<Geocoder>().unwrap();
    accounts.clear();
    assert!(accounts.status(&spec).is_none());
    assert!(!Arc::ptr_eq(&bucket, &accounts.bucket(&spec).unwrap()));
    assert!(!Arc::ptr_eq(&geocoder, &accounts.get::<Geocoder>().unwrap()));
    assert_eq!(bucket.status().available_tokens, 10);
}

struct Geocoder;

impl Singleton for Geocoder {
    type Account = CountingGate;
    fn build() -> Result<Arc<CountingGate>, BoxError> {
        Ok(CountingGate::new(Self::name(), 5)?)
    }
}

#[test]
fn a_declared_type_has_one_account_in_a_registry_and_registries_share_none() {
    let accounts = Accounts::new();
    let geocoder = accounts.get::<Geocoder>().unwrap();
    assert!(Arc::ptr_eq(&geocoder, &accounts.get::<Geocoder>().unwrap()));
    assert!(!Arc::ptr_eq(&geocoder, &Accounts::new().get::<Geocoder>().unwrap()));
    assert_eq!(geocoder.link().name().as_ref(), "Geocoder");
    let ask = Ask::new(1, Amount::permits(5), tokio::time::Instant::now());
    let at = geocoder.try_take(&ask).unwrap().unwrap();
    assert_eq!(accounts.get::<Geocoder>().unwrap().in_use(at), 5);
    geocoder.give(&Charge::new(1, Amount::permits(5), at), at);
}

#[test]
fn the_process_has_a_registry_for_convenience() {
    struct Everywhere;
    impl Singleton for Everywhere {
        type Account = CountingGate;
        fn build() -> Result<Arc<CountingGate>, BoxError> {
            Ok(CountingGate::new("everywhere", 1)?)
        }
    }
    let here = Accounts::global().get::<Everywhere>().unwrap();
    let there = thread::spawn(|| Accounts::global().get::<Everywhere>().unwrap()).join().unwrap();
    assert!(Arc::ptr_eq(&here, &there));
}

#[test]
fn concurrent_first_uses_build_one() {
    static BUILT: AtomicUsize = AtomicUsize::new(0);
    struct Slow;
    impl Singleton for Slow {
        type Account = CountingGate;
        fn build() -> Result<Arc<CountingGate>, BoxError> {
            BUILT.fetch_add(1, Ordering::SeqCst);
            // Long enough for the others to arrive at the lock; they are right however few do.
            for _ in 0..1_000 {
                thread::yield_now();
            }
            Ok(CountingGate::new("slow", 1)?)
        }
    }
    const THREADS: usize = 8;
    let accounts = Accounts::new();
    let barrier = Barrier::new(THREADS);
    let all: Vec<_> = thread::scope(|scope| {
        let first_use = || {
            barrier.wait();
            accounts.get::<Slow>().unwrap()
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(first_use)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(BUILT.load(Ordering::SeqCst), 1);
    assert!(all.iter().all(|account| Arc::ptr_eq(account, &all[0])));
}

#[test]
fn a_constructor_that_fails_or_panics_is_reported_and_may_be_tried_again() {
    static TRIES: AtomicUsize = AtomicUsize::new(0);
    struct Fickle;
    impl Singleton for Fickle {
        type Account = CountingGate;
        fn build() -> Result<Arc<CountingGate>, BoxError> {
            match TRIES.fetch_add(1, Ordering::SeqCst) {
                0 => Ok(CountingGate::new("fickle", 0)?),
                1 => panic!("no configuration"),
                _ => Ok(CountingGate::new("fickle", 1)?),
            }
        }
    }
    let accounts = Accounts::new();

    let failed = accounts.get::<Fickle>().unwrap_err();
    let said = failed.to_string();
    assert!(
        said.contains("Fickle") && said.contains("could not be built: `fickle`: capacity"),
        "{said}"
    );
    assert!(failed.source().unwrap().downcast_ref::<ConfigError>().is_some());

    let panicked = accounts.get::<Fickle>().unwrap_err();
    assert!(panicked.to_string().contains("no configuration"), "{panicked}");
    let cause = panicked.source().unwrap().downcast_ref::<AccountPanic>().unwrap();
    assert_eq!(cause.method, "build");

    assert!(accounts.get::<Fickle>().is_ok());
    assert_eq!(TRIES.load(Ordering::SeqCst), 3);
}

#[test]
fn a_constructor_may_use_another_and_one_that_needs_itself_is_told_so() {
    static OPEN: AtomicBool = AtomicBool::new(false);
    struct Chicken;
    struct Egg;
    impl Singleton for Chicken {
        type Account = CountingGate;
        fn build() -> Result<Arc<CountingGate>, BoxError> {
            Accounts::global().get::<Egg>()?;
            Ok(CountingGate::new(Self::name(), 1)?)
        }
    }
    impl Singleton for Egg {
        type Account = CountingGate;
        fn build() -> Result<Arc<CountingGate>, BoxError> {
            if !OPEN.load(Ordering::SeqCst) {
                Accounts::global().get::<Chicken>()?;
            }
            Ok(CountingGate::new(Self::name(), 1)?)
        }
    }
    // Two threads enter the circle from both ends: neither waits for the other.
    thread::scope(|scope| {
        let chicken = scope.spawn(|| Accounts::global().get::<Chicken>().unwrap_err());
        let egg = scope.spawn(|| Accounts::global().get::<Egg>().unwrap_err());
        for error in [chicken.join().unwrap(), egg.join().unwrap()] {
            let said = error.to_string();
            assert!(said.contains("needs itself") && said.matches(" → ").count() == 2, "{said}");
        }
    });
    OPEN.store(true, Ordering::SeqCst);
    assert!(Accounts::global().get::<Chicken>().is_ok());
}

#[test]
fn a_circle_is_of_one_registry_and_told_with_who_is_in_it() {
    struct Own;
    impl Singleton for Own {
        type Account = CountingGate;
        fn build() -> Result<Arc<CountingGate>, BoxError> {
            Ok(Accounts::global().get::<Self>()?)
        }
    }
    let error = Accounts::global().get::<Own>().unwrap_err().to_string();
    assert_eq!(error.matches(" → ").count(), 1, "{error}");

    static OTHER: OnceLock<Accounts> = OnceLock::new();
    static IS_INNER: AtomicBool = AtomicBool::new(false);
    /// In one registry, it is the other's.
    struct Shared;
    impl Singleton for Shared {
        type Account = CountingGate;
        fn build() -> Result<Arc<CountingGate>, BoxError> {
            if IS_INNER.swap(true, Ordering::SeqCst) {
                return Ok(CountingGate::new(Self::name(), 1)?);
            }
            Ok(OTHER.get_or_init(Accounts::new).get::<Self>()?)
        }
    }
    let outer = Accounts::new().get::<Shared>().unwrap();
    assert!(Arc::ptr_eq(&outer, &OTHER.get().unwrap().get::<Shared>().unwrap()));
}
