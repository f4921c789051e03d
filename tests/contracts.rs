//! The account contract, on every account the crate has and on one written as a user would.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use admit::testing::{AccountContract, Draw, Law};
use admit::{
    Account, AccountLink, Accounts, Amount, Ask, Category, Charge, ConfigError, CountingGate,
    DatabaseGate, ElasticWindow, ElasticWindowBuilder, HttpGate, Limits, ModelGate, ModelSpec,
    Refusal, Replenishment, Router, TokenBucket, UpstreamFailure, WindowConfig,
};
use tokio::time::Instant;

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn failure(draw: &mut Draw) -> UpstreamFailure {
    let status = [429, 500, 503, 529][draw.between(0..=3) as usize];
    let failure = UpstreamFailure::status(status, "contract", "no");
    match draw.one_in(2) {
        true => failure.with_retry_after(secs(draw.between(0..=90))),
        false => failure,
    }
}

#[test]
fn gates_keep_the_contract() {
    for capacity in [1, 2, 8] {
        AccountContract::new(move || CountingGate::new("gate", capacity).unwrap())
            .permits_up_to(capacity + 2)
            .event("resize", |gate, draw| gate.resize(draw.between(1..=12) as u32).unwrap())
            .event("status", |gate, _| drop(gate.status()))
            .assert();
    }
    AccountContract::new(|| CountingGate::builder("gate", 3).track_activity(true).build().unwrap())
        .event("resize", |gate, draw| gate.resize(draw.between(1..=6) as u32).unwrap())
        .assert();
    AccountContract::new(|| CountingGate::new("gate", u32::MAX).unwrap())
        .amounts(|draw| Amount::permits((draw.any() as u32) >> draw.between(0..=8)))
        .assert();
}

#[test]
fn named_gates_keep_the_contract() {
    AccountContract::new(|| DatabaseGate::new("main", 3).unwrap())
        .event("resize", |gate, draw| gate.resize(draw.between(1..=5) as u32).unwrap())
        .assert();
    AccountContract::new(|| HttpGate::new(5).unwrap())
        .permits_up_to(6)
        .event("resize", |gate, draw| gate.resize(draw.between(1..=7) as u32).unwrap())
        .assert();
    AccountContract::new(|| ModelGate::new("large", 2).unwrap())
        .event("resize", |gate, draw| gate.resize(draw.between(1..=3) as u32).unwrap())
        .assert();
}

/// What may happen to a bucket other than by the monitor's doing.
fn bucket_contract(
    fresh: impl Fn() -> Arc<TokenBucket> + Send + Sync + 'static,
    most: u64,
) -> AccountContract<TokenBucket> {
    AccountContract::new(fresh)
        .tokens_up_to(most + most / 10 + 1)
        .event("record_failure", |bucket, draw| bucket.record_failure(&failure(draw)))
        .event("record_429", |bucket, _| bucket.record_429())
        .event("record_backpressure", |bucket, draw| {
            bucket.record_backpressure(draw.between(0..=3) as u32);
        })
        .event("record_success", |bucket, draw| {
            (0..draw.between(1..=6)).for_each(|_| bucket.record_success());
        })
        .event("status", |bucket, _| drop(bucket.status()))
        .event("set_limits", move |bucket, draw| {
            let requests = draw.between(1..=20) as u32;
            let tokens = draw.between(1..=most.saturating_mul(2));
            bucket.set_limits(Limits::per_minute(requests, tokens)).unwrap();
        })
}

#[test]
fn a_small_bucket_keeps_the_contract() {
    let fresh = || TokenBucket::new("bucket", Limits::per_minute(10, 1_000)).unwrap();
    bucket_contract(fresh, 1_000).assert();
}

#[test]
fn a_bucket_of_one_request_and_one_token_keeps_the_contract() {
    let fresh = || TokenBucket::new("bucket", Limits::per_minute(1, 1)).unwrap();
    bucket_contract(fresh, 2).span(secs(700)).assert();
}

#[test]
fn a_throttled_bucket_keeps_the_contract() {
    for weight in [1, 7, 1_000] {
        let fresh = move || {
            let bucket = TokenBucket::new("bucket", Limits::per_minute(7, 997)).unwrap();
            bucket.record_backpressure(weight);
            bucket
        };
        bucket_contract(fresh, 997).span(secs(700)).sequences(80).assert();
    }
}

#[test]
fn a_held_bucket_keeps_the_contract() {
    let fresh = || {
        let bucket = TokenBucket::new("bucket", Limits::per_minute(7, 997)).unwrap();
        let failure = UpstreamFailure::status(529, "contract", "").with_retry_after(secs(45));
        bucket.record_failure(&failure);
        bucket
    };
    bucket_contract(fresh, 997).assert();
}

#[test]
fn a_bucket_of_the_largest_caps_keeps_the_contract() {
    let limits = Limits::per_minute(u32::MAX, u64::MAX);
    AccountContract::new(move || TokenBucket::new("bucket", limits).unwrap())
        .amounts(|draw| Amount {
            requests: draw.any() as u32 / 2,
            units: draw.between(0..=u64::MAX - 1) >> draw.between(0..=8),
        })
        .event("record_backpressure", |bucket, draw| {
            bucket.record_backpressure(draw.any() as u32);
        })
        .event("record_success", |bucket, _| bucket.record_success())
        .span(secs(10 * 365 * 86_400))
        .assert();
}

/// What may happen to a window other than by the monitor's doing.
fn window_contract(builder: ElasticWindowBuilder) -> AccountContract<ElasticWindow> {
    AccountContract::new(move || builder.clone().build().unwrap())
        .event("record_failure", |window, draw| window.record_failure(&failure(draw)))
        .event("record_429", |window, draw| {
            (0..draw.between(1..=4)).for_each(|_| window.record_429());
        })
        .event("record_success", |window, draw| {
            (0..draw.between(1..=6)).for_each(|_| window.record_success());
        })
        .event("record_advisory_pressure", |window, _| window.record_advisory_pressure())
        .event("status", |window, _| drop(window.status()))
}

#[test]
fn a_window_keeps_the_contract() {
    window_contract(ElasticWindow::builder("default")).span(secs(40)).assert();
    let five = ElasticWindow::builder("five").max(5).per(secs(1));
    window_contract(five).permits_up_to(6).span(secs(12)).assert();
    let hour = ElasticWindow::builder("hour").max(30).per(secs(3_600));
    window_contract(hour).permits_up_to(32).span(secs(7_200)).assert();
}

#[test]
fn a_window_whose_circuit_opens_all_the_time_keeps_the_contract() {
    let short = ElasticWindow::builder("short")
        .max(4)
        .per(secs(1))
        .max_throttle(1.0)
        .failures_to_open(1)
        .initial_cooldown(Duration::from_millis(500))
        .max_cooldown(secs(3))
        .probe_timeout(Duration::from_millis(700));
    window_contract(short.clone()).permits_up_to(5).span(secs(4)).sequences(400).assert();
    // Its slots outlast the cooldown: the door is open and there is no room.
    window_contract(short.per(secs(20))).permits_up_to(5).span(secs(30)).sequences(400).assert();
}

#[test]
fn a_window_that_never_stretches_keeps_the_contract() {
    let stiff = ElasticWindow::builder("stiff").max(3).per(secs(10)).max_throttle(0.0);
    window_contract(stiff).span(secs(40)).sequences(300).assert();
}

#[test]
fn a_window_that_believes_a_retry_after_keeps_the_contract() {
    let held = ElasticWindow::builder("held").max(4).per(secs(2)).max_hold(secs(30));
    window_contract(held.clone()).permits_up_to(5).span(secs(60)).sequences(300).assert();
    let brittle = held.max_throttle(0.0).failures_to_open(1).initial_cooldown(secs(5));
    window_contract(brittle).permits_up_to(5).span(secs(60)).sequences(300).assert();
}

#[test]
fn a_window_of_the_largest_numbers_keeps_the_contract() {
    let config = WindowConfig {
        max: u32::MAX,
        per: Duration::MAX,
        initial_cooldown: Duration::MAX,
        max_cooldown: Duration::MAX,
        ..WindowConfig::default()
    };
    window_contract(ElasticWindow::builder("endless").config(config))
        .amounts(|draw| Amount::permits((draw.any() as u32) >> draw.between(0..=8)))
        .never_comes_back()
        .assert();
}

#[test]
fn accounts_that_a_router_made_keep_the_contract() {
    let keys = AtomicU32::new(0);
    let router = Router::new(|key: &u32| {
        TokenBucket::new(format!("customer {key}"), Limits::per_minute(10, 1_000))
    });
    let fresh = move || router.account_for(&keys.fetch_add(1, Ordering::Relaxed)).unwrap();
    bucket_contract(fresh, 1_000).assert();
}

#[test]
fn accounts_of_the_registry_keep_the_contract() {
    let accounts = Accounts::new();
    let models = AtomicU32::new(0);
    let fresh = move || {
        let id = format!("model {}", models.fetch_add(1, Ordering::Relaxed));
        accounts.bucket(&ModelSpec::new(id, 5_000)).unwrap()
    };
    bucket_contract(fresh, 5_000).assert();
}

/// So many in a row, and then one per interval: a smooth rate, as an author of an account of
/// their own would write it. Kept is one instant, at which the row would be forgotten.
struct Pacer {
    link: AccountLink,
    burst: u32,
    interval: Duration,
    /// When it will be as if nobody had ever come; `None` before anybody did.
    clear_at: Mutex<Option<Instant>>,
    breaks_its_word: bool,
}

impl Pacer {
    fn new(
        name: &'static str,
        burst: u32,
        interval: Duration,
        breaks_its_word: bool,
    ) -> Result<Arc<Self>, ConfigError> {
        let link = AccountLink::new(name)?;
        Ok(Arc::new(Self { link, burst, interval, clear_at: Mutex::default(), breaks_its_word }))
    }

    /// Forgets who came, which lets others go sooner.
    fn forgive(&self) {
        *self.clear_at() = None;
        self.link.grew();
    }

    fn clear_at(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.clear_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When so many fit: the row may reach no further ahead than the burst is long.
    fn fits_at(&self, clear_at: Option<Instant>, n: u32, now: Instant) -> Option<Instant> {
        let spare = self.burst.checked_sub(n)? * self.interval;
        Some(clear_at.map_or(now, |at| at.checked_sub(spare).unwrap_or(now)).max(now))
    }

    fn total(ask: &Ask) -> u32 {
        ask.mine.requests.saturating_add(ask.reserved_ahead.requests)
    }
}

impl Account for Pacer {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn category(&self) -> Category {
        Category::Other("pacer".into())
    }

    fn capacity(&self) -> u64 {
        u64::from(self.burst)
    }

    fn in_use(&self, now: Instant) -> u64 {
        let ahead = self.clear_at().map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        ahead.as_nanos().div_ceil(self.interval.as_nanos()) as u64
    }

    fn summary(&self, now: Instant) -> String {
        format!("{} of {} in a row", self.in_use(now), self.burst)
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Time
    }

    fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        if ask.mine.requests > self.burst || ask.mine.is_saturated() {
            return Err(Refusal::never_fits(ask.mine, self.burst));
        }
        Ok(self.fits_at(*self.clear_at(), Self::total(ask), ask.now) == Some(ask.now))
    }

    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        let fits = self.fits(ask)?;
        if fits && ask.mine.requests > 0 {
            let mut clear_at = self.clear_at();
            let from = clear_at.map_or(ask.now, |at| at.max(ask.now));
            *clear_at = Some(from + ask.mine.requests * self.interval);
        }
        Ok(fits.then_some(ask.now))
    }

    fn give(&self, charge: &Charge, now: Instant) -> Amount {
        let mut clear_at = self.clear_at();
        let ahead = clear_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let back = (charge.amount.requests * self.interval).min(ahead);
        *clear_at = clear_at.and_then(|at| at.checked_sub(back));
        drop(clear_at);
        let whole = back == charge.amount.requests * self.interval;
        if whole { charge.amount } else { Amount::NONE }
    }

    fn earliest_fit(&self, ask: &Ask) -> Option<Instant> {
        let at = self.fits_at(*self.clear_at(), Self::total(ask), ask.now)?;
        Some(if self.breaks_its_word { at + self.interval / 2 } else { at })
    }
}

#[test]
fn an_account_of_ones_own_keeps_the_contract() {
    for (burst, interval) in [(1, secs(1)), (4, Duration::from_millis(333)), (10, secs(60))] {
        AccountContract::new(move || Pacer::new("pacer", burst, interval, false).unwrap())
            .permits_up_to(burst + 1)
            .span(interval * (burst + 2))
            .event("forgive", |pacer, _| pacer.forgive())
            .assert();
    }
}

/// So that the test above is worth something.
#[test]
fn an_account_of_ones_own_that_breaks_its_word_is_found_out() {
    let contract = AccountContract::new(|| Pacer::new("late", 2, secs(1), true).unwrap());
    assert_eq!(contract.span(secs(4)).check().unwrap_err().law, Law::Punctual);
}
