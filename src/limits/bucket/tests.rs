use super::*;
use crate::limits::logged::logged;
use crate::testing::Announcements;
use tokio::time::advance;

const NANO: Duration = Duration::from_nanos(1);

fn new_bucket(requests: u32, tokens: u64) -> Arc<TokenBucket> {
    TokenBucket::new("gpt-x", Limits::per_minute(requests, tokens)).unwrap()
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn ask(tokens: u64) -> Ask {
    Ask::new(1, Amount::tokens(tokens), Instant::now())
}

fn take_amount(bucket: &TokenBucket, amount: Amount) -> Option<Charge> {
    let at = bucket.try_take(&Ask::new(1, amount, Instant::now())).unwrap()?;
    Some(Charge::new(1, amount, at))
}

fn take(bucket: &TokenBucket, tokens: u64) -> Option<Charge> {
    take_amount(bucket, Amount::tokens(tokens))
}

/// Takes tokens and no request.
fn drain(bucket: &TokenBucket, tokens: u64) -> Charge {
    take_amount(bucket, Amount { requests: 0, units: tokens }).unwrap()
}

fn left(bucket: &TokenBucket) -> (u64, u32) {
    let status = bucket.status();
    (status.available_tokens, status.available_requests)
}

/// When a demand of one request and so many tokens goes, checked to be exactly then.
fn goes_at(bucket: &TokenBucket, tokens: u64) -> Instant {
    let ask = ask(tokens);
    let at = bucket.earliest_fit(&ask).unwrap();
    assert!(bucket.fits(&ask.at(at)).unwrap());
    assert!(at <= ask.now || !bucket.fits(&ask.at(at - NANO)).unwrap());
    at
}

/// As the line does it: take each when it goes, on the paused clock; answers when that was.
async fn serve(bucket: &TokenBucket, tokens: u64, times: usize) -> Vec<Duration> {
    let start = Instant::now();
    let mut when = Vec::new();
    for _ in 0..times {
        let at = bucket.earliest_fit(&ask(tokens)).unwrap();
        advance(at.saturating_duration_since(Instant::now())).await;
        take(bucket, tokens).unwrap();
        when.push(start.elapsed());
    }
    when
}

fn too_many_requests() -> UpstreamFailure {
    UpstreamFailure::status(429, "gpt-x", "slow down")
}

#[tokio::test(start_paused = true)]
async fn a_bucket_starts_full_and_both_dimensions_bind() {
    let bucket = new_bucket(2, 100);
    assert!(take(&bucket, 60).is_some());
    assert!(take(&bucket, 41).is_none());
    assert!(take(&bucket, 1).is_some());
    assert!(take(&bucket, 1).is_none(), "tokens are left, requests are not");
    assert_eq!(left(&bucket), (39, 0));
    assert_eq!(goes_at(&bucket, 1), Instant::now() + secs(30), "the later dimension");
    assert_eq!(goes_at(&bucket, 100), Instant::now() + millis(36_600));
}

#[test]
fn what_a_bucket_is_to_the_monitor() {
    let bucket = new_bucket(2, 100);
    assert_eq!(bucket.category(), Category::TokenBucket);
    assert_eq!(bucket.replenishment(), Replenishment::Time);
    assert!(bucket.reads_clock());
    assert!(!bucket.needs_http());
    assert_eq!(bucket.capacity(), 100);
    assert_eq!(&**bucket.link().name(), "gpt-x");
}

#[test]
fn zero_limits_are_named_and_change_nothing() {
    let error = |requests, tokens| {
        TokenBucket::new("b", Limits::per_minute(requests, tokens)).unwrap_err().field
    };
    assert_eq!(error(0, 1), "requests_per_minute");
    assert_eq!(error(1, 0), "tokens_per_minute");
    assert_eq!(TokenBucket::new(" ", Limits::per_minute(1, 1)).unwrap_err().field, "name");
    let bucket = new_bucket(2, 100);
    let set = |limits| bucket.set_limits(limits).unwrap_err().field;
    assert_eq!(set(Limits::per_minute(0, 100)), "requests_per_minute");
    assert_eq!(set(Limits::per_minute(3, 0)), "tokens_per_minute");
    assert_eq!(bucket.status().requests_per_minute, 2);
}

#[tokio::test(start_paused = true)]
async fn the_reservation_is_set_aside_in_both_dimensions() {
    let bucket = new_bucket(3, 100);
    let behind = |tokens, ahead| bucket.fits(&ask(tokens).behind(ahead)).unwrap();
    assert!(behind(40, Amount::tokens(60)));
    assert!(!behind(41, Amount::tokens(60)));
    assert!(!behind(1, Amount { requests: 3, units: 0 }));
    assert!(
        !behind(100, Amount::tokens(100)),
        "both can never fit together, and neither is refused"
    );
    assert_eq!(bucket.earliest_fit(&ask(100).behind(Amount::tokens(100))), None);
    drain(&bucket, 100);
    let beside = ask(10).behind(Amount::tokens(20));
    assert_eq!(bucket.earliest_fit(&beside), Some(Instant::now() + secs(18)));
}

#[tokio::test(start_paused = true)]
async fn e1_an_idle_bucket_holds_one_minute_and_the_largest_never_overflows() {
    let bucket_of_60 = new_bucket(60, 60);
    advance(secs(36_000)).await;
    let when = serve(&bucket_of_60, 1, 100).await;
    assert_eq!(when[59], Duration::ZERO);
    assert_eq!(when[60], secs(1));
    assert_eq!(when[99], secs(40));

    let largest = new_bucket(u32::MAX, u64::MAX - 1);
    take(&largest, 1).unwrap();
    advance(secs(10 * 365 * 86_400)).await;
    take(&largest, u64::MAX - 1).unwrap();
    assert_eq!(left(&largest), (0, u32::MAX - 1));
}

#[tokio::test(start_paused = true)]
async fn e2_only_the_missing_token_is_waited_for() {
    let bucket = new_bucket(60, 60);
    drain(&bucket, 58);
    assert_eq!(goes_at(&bucket, 3), Instant::now() + secs(1));
}

#[tokio::test(start_paused = true)]
async fn e3_reading_every_millisecond_changes_no_grant() {
    let unread = serve(&new_bucket(20, 20_000), 1, 1_219).await;
    assert_eq!(unread[19], Duration::ZERO);
    for (index, when) in unread[20..].iter().enumerate() {
        assert_eq!(*when, secs(3) * (index as u32 + 1));
    }

    let read = new_bucket(20, 20_000);
    let start = read.status().read_at;
    let mut when = Vec::new();
    for millis in 0..3_600_000 {
        let now = start + Duration::from_millis(millis);
        assert!(read.status_at(now).available_requests <= 20);
        let ask = Ask::new(1, Amount::tokens(1), now);
        while read.try_take(&ask).unwrap().is_some() {
            when.push(now - start);
        }
    }
    assert_eq!(when, unread);
}

#[tokio::test(start_paused = true)]
async fn e6_a_huge_debt_neither_overflows_nor_stays_when_rolled_back() {
    let bucket = new_bucket(600, 60_000);
    drain(&bucket, 20_000);
    let mut charge = take(&bucket, 100).unwrap();
    charge.amount = bucket.reconcile(&charge, u64::MAX / 2, Instant::now());
    assert_eq!(charge.amount, Amount::tokens(u64::MAX / 2));
    let status = bucket.status();
    assert_eq!(status.available_tokens, 0);
    assert_eq!(status.debt_tokens, u64::MAX / 2 - 40_000);
    let at = bucket.earliest_fit(&ask(1)).unwrap();
    assert!(at > Instant::now() + secs(86_400));
    assert_eq!(bucket.in_use(Instant::now()), 60_000);
    assert_eq!(bucket.give(&charge, Instant::now()), charge.amount);
    assert_eq!(left(&bucket), (40_000, 600));

    let slowest = new_bucket(1, 1);
    let mut charge = take(&slowest, 1).unwrap();
    charge.amount = slowest.reconcile(&charge, u64::MAX, Instant::now());
    assert_eq!(slowest.earliest_fit(&ask(1)), None, "beyond any clock");
    slowest.give(&charge, Instant::now());
    assert_eq!(left(&slowest), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn f1_more_than_a_minute_allows_is_refused_and_short_now_is_not() {
    let bucket = new_bucket(600, 100);
    for refusal in [bucket.fits(&ask(101)).unwrap_err(), bucket.try_take(&ask(101)).unwrap_err()] {
        let text = refusal.text();
        assert!(text.contains("101 tokens") && text.contains("and 100 tokens"), "{text}");
    }
    let requests = Ask::new(1, Amount { requests: 601, units: 1 }, Instant::now());
    assert!(bucket.fits(&requests).unwrap_err().text().contains("601 requests"));
    assert_eq!(left(&bucket), (100, 600));
    drain(&bucket, 100);
    assert_eq!(goes_at(&bucket, 100), Instant::now() + secs(60));
    bucket.set_limits(Limits::per_minute(600, 99)).unwrap();
    assert!(bucket.fits(&ask(100)).is_err(), "a cap lowered under it refuses it at once");
}

#[tokio::test(start_paused = true)]
async fn f3_a_saturated_amount_is_refused_by_the_largest_bucket() {
    let bucket = new_bucket(u32::MAX, u64::MAX);
    for amount in [
        Amount::tokens(u64::MAX).saturating_add(Amount::tokens(1)),
        Amount { requests: u32::MAX, units: 0 },
    ] {
        let ask = Ask::new(1, amount, Instant::now());
        assert!(bucket.fits(&ask).is_err());
        assert!(bucket.try_take(&ask).is_err());
    }
    assert_eq!(left(&bucket), (u64::MAX, u32::MAX));
}

#[tokio::test(start_paused = true)]
async fn nothing_at_all_debits_nothing() {
    let bucket = new_bucket(1, 10);
    take(&bucket, 10).unwrap();
    assert!(take_amount(&bucket, Amount::NONE).is_some());
    assert_eq!(left(&bucket), (0, 0));
    let none = Ask::new(1, Amount::NONE, Instant::now());
    assert!(!bucket.fits(&none.behind(Amount::tokens(1))).unwrap());
}

#[tokio::test(start_paused = true)]
async fn g4_a_raised_cap_adds_nothing_and_a_lowered_one_clamps() {
    let bucket = new_bucket(600, 60_000);
    drain(&bucket, 60_000);
    bucket.set_limits(Limits::per_minute(600, 120_000)).unwrap();
    assert_eq!(left(&bucket).0, 0);

    let bucket = new_bucket(600, 60_000);
    drain(&bucket, 10_000);
    bucket.set_limits(Limits::per_minute(600, 10_000)).unwrap();
    assert_eq!(left(&bucket).0, 10_000);
    bucket.set_limits(Limits::per_minute(600, 60_000)).unwrap();
    assert_eq!(left(&bucket).0, 10_000);

    let heard = Announcements::of(&bucket.link);
    for _ in 0..100_000 {
        bucket.set_limits(Limits::per_minute(600, 60_000)).unwrap();
    }
    assert!(heard.take().is_nothing());
}

#[tokio::test(start_paused = true)]
async fn a_change_of_limits_announces_what_it_did() {
    let bucket = new_bucket(600, 60_000);
    let heard = Announcements::of(&bucket.link);
    let set = |requests, tokens| {
        bucket.set_limits(Limits::per_minute(requests, tokens)).unwrap();
        let heard = heard.take();
        (heard.grew, heard.may_refuse)
    };
    assert_eq!(set(601, 60_000), (true, false));
    assert_eq!(set(601, 60_001), (true, false));
    assert_eq!(set(600, 60_001), (false, true));
    assert_eq!(set(600, 60_000), (false, true));
    assert_eq!(set(601, 50_000), (true, true));
    assert_eq!(set(601, 50_000), (false, false));
}

#[tokio::test(start_paused = true)]
async fn new_limits_keep_the_throttle() {
    let bucket = new_bucket(600, 60);
    bucket.record_429();
    drain(&bucket, 60);
    bucket.set_limits(Limits::per_minute(600, 6_000)).unwrap();
    assert_eq!(bucket.status().throttle, 0.5);
    assert_eq!(goes_at(&bucket, 60), Instant::now() + millis(900));
}

#[tokio::test(start_paused = true)]
async fn g5_raised_limits_bring_the_instant_nearer() {
    let bucket = new_bucket(600, 60);
    drain(&bucket, 60);
    assert_eq!(goes_at(&bucket, 60), Instant::now() + secs(60));
    bucket.set_limits(Limits::per_minute(600, 6_000)).unwrap();
    assert_eq!(goes_at(&bucket, 60), Instant::now() + millis(600));
}

#[tokio::test(start_paused = true)]
async fn g6_lowered_limits_and_backpressure_move_the_instant_away() {
    for lowered in [true, false] {
        let bucket = new_bucket(600, 60_000);
        let start = Instant::now();
        drain(&bucket, 60_000);
        assert_eq!(goes_at(&bucket, 30_000), start + secs(30));
        advance(secs(10)).await;
        let heard = Announcements::of(&bucket.link);
        let expected = if lowered {
            bucket.set_limits(Limits::per_minute(600, 30_000)).unwrap();
            start + secs(50)
        } else {
            bucket.record_backpressure(1);
            assert!(heard.take().is_nothing(), "tightening wakes nobody");
            start + secs(40)
        };
        assert_eq!(goes_at(&bucket, 30_000), expected);
        advance(secs(20)).await;
        assert!(take(&bucket, 30_000).is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn h1_unreported_usage_stays_charged() {
    let bucket = new_bucket(600, 100);
    let when = serve(&bucket, 50, 5).await;
    assert_eq!(when, [secs(0), secs(0), secs(30), secs(60), secs(90)]);
}

#[tokio::test(start_paused = true)]
async fn h2_what_comes_back_at_rollback_and_after_a_reconcile() {
    let now = Instant::now();
    let dropped = new_bucket(600, 60_000);
    take(&dropped, 4_000).unwrap();
    assert_eq!(left(&dropped), (56_000, 599));

    let rolled_back = new_bucket(600, 60_000);
    let charge = take(&rolled_back, 4_000).unwrap();
    assert_eq!(rolled_back.give(&charge, now), Amount::tokens(4_000));
    assert_eq!(left(&rolled_back), (60_000, 600));

    let reconciled = new_bucket(600, 60_000);
    let charge = take(&reconciled, 4_000).unwrap();
    assert_eq!(reconciled.reconcile(&charge, 0, now), Amount::tokens(0));
    assert_eq!(left(&reconciled), (60_000, 599), "the request was made");

    let small = new_bucket(600, 100);
    let charges: Vec<Charge> = [15, 10, 2].map(|n| take(&small, n).unwrap()).into();
    let levels = [1, 0, 2].map(|index: usize| {
        small.give(&charges[index], now);
        left(&small).0
    });
    assert_eq!(levels, [83, 98, 100]);
}

#[tokio::test(start_paused = true)]
async fn h3_unused_tokens_serve_the_next_job_at_once() {
    let bucket = new_bucket(600, 60_000);
    let mut jobs = 0;
    while let Some(charge) = take(&bucket, 4_000) {
        bucket.reconcile(&charge, 900, Instant::now());
        jobs += 1;
    }
    assert_eq!(jobs, 63);
}

#[tokio::test(start_paused = true)]
async fn h4_a_reconcile_downwards_frees_and_upwards_owes() {
    let now = Instant::now();
    let down = new_bucket(600, 60_000);
    let charge = take(&down, 60_000).unwrap();
    assert!(!down.fits(&ask(3_000)).unwrap());
    down.reconcile(&charge, 50_000, now);
    assert!(down.fits(&ask(3_000)).unwrap());

    let up = new_bucket(600, 60_000);
    let charge = take(&up, 60_000).unwrap();
    up.reconcile(&charge, 61_200, now);
    let status = up.status();
    assert_eq!((status.available_tokens, status.debt_tokens), (0, 1_200));
    assert_eq!(status.available_requests, 599);
    assert_eq!(goes_at(&up, 300), now + millis(1_500));
    advance(millis(1_200)).await;
    assert_eq!(up.status().debt_tokens, 0);
}

#[tokio::test(start_paused = true)]
async fn h5_each_reconcile_replaces_the_last() {
    let bucket = new_bucket(600, 60_000);
    drain(&bucket, 5_000);
    let now = Instant::now();
    let mut charge = take(&bucket, 4_000).unwrap();
    assert_eq!(left(&bucket).0, 51_000);
    charge.amount = bucket.reconcile(&charge, 900, now);
    assert_eq!(left(&bucket).0, 54_100);
    charge.amount = bucket.reconcile(&charge, 1_500, now);
    assert_eq!(left(&bucket).0, 53_500);
    assert_eq!(bucket.give(&charge, now), Amount::tokens(1_500));
    assert_eq!(left(&bucket), (55_000, 600));

    let charge = take(&bucket, 4_000).unwrap();
    advance(secs(60)).await;
    bucket.reconcile(&charge, 900, Instant::now());
    assert_eq!(left(&bucket), (60_000, 600), "at a full bucket a refund adds nothing");
    assert_eq!(bucket.give(&charge, Instant::now()), Amount::NONE);
    assert_eq!(left(&bucket), (60_000, 600));
}

/// H6: an account that keeps the default `reconcile` gives back the whole reservation.
#[test]
fn h6_the_default_reconcile_changes_nothing() {
    struct Plain(Arc<TokenBucket>);
    impl Account for Plain {
        fn link(&self) -> &AccountLink {
            self.0.link()
        }
        fn category(&self) -> Category {
            self.0.category()
        }
        fn capacity(&self) -> u64 {
            self.0.capacity()
        }
        fn in_use(&self, now: Instant) -> u64 {
            self.0.in_use(now)
        }
        fn summary(&self, now: Instant) -> String {
            self.0.summary(now)
        }
        fn replenishment(&self) -> Replenishment {
            Replenishment::Time
        }
        fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
            self.0.fits(ask)
        }
        fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
            self.0.try_take(ask)
        }
        fn give(&self, charge: &Charge, now: Instant) -> Amount {
            self.0.give(charge, now)
        }
        fn earliest_fit(&self, ask: &Ask) -> Option<Instant> {
            self.0.earliest_fit(ask)
        }
    }
    let own = Plain(new_bucket(600, 60_000));
    let now = own.0.status().read_at;
    let at = own.try_take(&Ask::new(1, Amount::tokens(4_000), now)).unwrap().unwrap();
    let charge = Charge::new(1, Amount::tokens(4_000), at);
    assert_eq!(own.reconcile(&charge, 900, at), Amount::tokens(4_000));
    assert_eq!(own.give(&charge, at), Amount::tokens(4_000));
    assert_eq!(own.in_use(at), 0);
}

#[tokio::test(start_paused = true)]
async fn i2_a_hold_is_the_latest_asked_for_and_never_shortened() {
    let bucket = new_bucket(600, 60_000);
    let start = Instant::now();
    for asked in [5, 10, 3] {
        bucket.record_failure(&too_many_requests().with_retry_after(secs(asked)));
    }
    advance(secs(1)).await;
    bucket.record_failure(&too_many_requests().with_retry_after(secs(2)));
    let status = bucket.status();
    assert_eq!(status.held_until, Some(start + secs(10)));
    assert_eq!(status.throttle, 2.0);
    assert_eq!(goes_at(&bucket, 1), start + secs(10));
    assert!(take(&bucket, 1).is_none(), "full, and held");
    advance(secs(9)).await;
    assert_eq!(bucket.status().held_until, None);
    assert!(take(&bucket, 1).is_some());
}

#[tokio::test(start_paused = true)]
async fn i3_the_level_refills_during_a_hold_and_goes_on_at_the_throttled_rate() {
    let bucket = new_bucket(600, 60_000);
    take_amount(&bucket, Amount { requests: 600, units: 0 }).unwrap();
    let start = Instant::now();
    bucket.record_failure(&too_many_requests().with_retry_after(secs(10)));
    let when = serve(&bucket, 1, 100).await;
    assert!(when[..66].iter().all(|at| *at == secs(10)));
    for (index, at) in when[66..].iter().enumerate() {
        // The n-th request since the failure is there after n times 150 ms.
        assert_eq!(*at, millis(150) * (67 + index as u32));
    }
    assert!(start.elapsed() < secs(16));
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_capped_at_ten_minutes_and_none_for_zero() {
    let bucket = new_bucket(600, 60_000);
    let start = Instant::now();
    bucket.record_failure(&too_many_requests().with_retry_after(Duration::ZERO));
    assert_eq!(bucket.status().held_until, None);
    assert_eq!(bucket.status().throttle, 0.5, "the throttle rises all the same");
    bucket.record_failure(&too_many_requests().with_retry_after(Duration::MAX));
    assert_eq!(bucket.status().held_until, Some(start + secs(600)));
    assert_eq!(bucket.status().held_until, Some(start + TokenBucket::MAX_HOLD));
}

#[tokio::test(start_paused = true)]
async fn i4_failures_have_weights_by_kind() {
    let after = |failure: UpstreamFailure| {
        let (direct, granted) = (new_bucket(600, 60_000), new_bucket(600, 60_000));
        direct.record_failure(&failure);
        let charge = take(&granted, 1).unwrap();
        granted.on_upstream_failure(&failure, &charge, Instant::now());
        let throttle = direct.status().throttle;
        assert_eq!(granted.status().throttle, throttle);
        throttle
    };
    for message in ["", "insufficient capacity", "429"] {
        let status = |status| UpstreamFailure::status(status, "gpt-x", message);
        assert_eq!(after(status(429)), 0.5);
        assert_eq!(after(status(529)), 1.5);
        assert_eq!(after(status(503).with_retry_after(secs(1))), 1.5);
        assert_eq!(after(status(503)), 0.0);
        assert_eq!(after(status(500)), 0.0);
        assert_eq!(after(UpstreamFailure::no_response("gpt-x", message)), 0.0);
    }
    assert_eq!(after(UpstreamFailure::status(429, "gpt-x", "insufficient_quota")), 0.0);
}

#[tokio::test(start_paused = true)]
async fn i7_one_storm_counts_once() {
    let bucket = new_bucket(600, 60_000);
    let mut charges = Vec::new();
    for _ in 0..50 {
        charges.push(take(&bucket, 100).unwrap());
        advance(millis(20)).await;
    }
    advance(secs(1)).await;
    for (index, charge) in charges.iter().enumerate() {
        bucket.on_upstream_failure(&too_many_requests(), charge, Instant::now());
        assert_eq!(bucket.status().throttle, 0.5, "failure {index}");
        advance(millis(2)).await;
    }
    advance(millis(900)).await;
    let later = take(&bucket, 100).unwrap();
    advance(secs(2)).await;
    bucket.on_upstream_failure(&too_many_requests(), &later, Instant::now());
    assert_eq!(bucket.status().throttle, 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_an_old_storm_still_extends_the_hold() {
    let bucket = new_bucket(600, 60_000);
    let charge = take(&bucket, 1).unwrap();
    advance(secs(1)).await;
    bucket.record_429();
    let failure = too_many_requests().with_retry_after(secs(7));
    bucket.on_upstream_failure(&failure, &charge, Instant::now());
    assert_eq!(bucket.status().throttle, 0.5);
    assert_eq!(bucket.status().held_until, Some(Instant::now() + secs(7)));
}

#[tokio::test(start_paused = true)]
async fn a_charge_taken_at_the_instant_of_the_last_failure_is_news() {
    let bucket = new_bucket(600, 60_000);
    bucket.record_429();
    let charge = take(&bucket, 1).unwrap();
    bucket.on_upstream_failure(&too_many_requests(), &charge, Instant::now());
    assert_eq!(bucket.status().throttle, 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_failure_counted_at_maximum_throttle_stamps_its_instant_too() {
    let bucket = new_bucket(600, 60_000);
    bucket.record_backpressure(100);
    advance(secs(1)).await;
    let before = take(&bucket, 1).unwrap();
    advance(secs(1)).await;
    bucket.record_429();
    assert_eq!(bucket.status().throttle, TokenBucket::MAX_THROTTLE);
    for _ in 0..3 {
        bucket.record_success();
    }
    bucket.on_upstream_failure(&too_many_requests(), &before, Instant::now());
    assert_eq!(bucket.status().throttle, 8.8);
}

#[tokio::test(start_paused = true)]
async fn a_stray_fault_neither_slows_nor_stamps() {
    let bucket = new_bucket(600, 60_000);
    let charge = take(&bucket, 1).unwrap();
    advance(secs(1)).await;
    bucket.record_failure(&UpstreamFailure::status(500, "gpt-x", ""));
    bucket.record_backpressure(0);
    bucket.on_upstream_failure(&too_many_requests(), &charge, Instant::now());
    assert_eq!(bucket.status().throttle, 0.5, "the 429 is the first that counts");
}

#[tokio::test(start_paused = true)]
async fn the_throttle_stretches_the_window_from_where_the_level_stands() {
    let bucket = new_bucket(600, 60_000);
    drain(&bucket, 60_000);
    advance(secs(10)).await;
    bucket.record_backpressure(2);
    assert_eq!(bucket.indicator(Instant::now()).as_deref(), Some("throttle:2.0x"));
    assert_eq!(left(&bucket).0, 10_000);
    advance(secs(10)).await;
    assert_eq!(left(&bucket).0, 15_000);
    bucket.record_backpressure(98);
    assert_eq!(bucket.status().throttle, 9.0);
    advance(secs(10)).await;
    assert_eq!(left(&bucket).0, 16_000);
}

#[tokio::test(start_paused = true)]
async fn relaxing_wakes_and_successes_at_rest_do_nothing() {
    let bucket = new_bucket(600, 60_000);
    let heard = Announcements::of(&bucket.link);
    let charge = take(&bucket, 1).unwrap();
    bucket.record_success();
    bucket.on_success(&charge, Instant::now());
    bucket.record_429();
    assert!(heard.take().is_nothing());
    bucket.record_success();
    bucket.on_success(&charge, Instant::now());
    assert!(heard.take().is_nothing());
    bucket.on_success(&charge, Instant::now());
    assert_eq!(bucket.status().throttle, 0.3);
    let relaxed = heard.take();
    assert!(relaxed.grew && !relaxed.may_refuse);
    advance(TokenBucket::CALM_AFTER).await;
    bucket.record_success();
    assert_eq!(bucket.status().throttle, 0.0);
    assert!(heard.take().grew);
    assert_eq!(bucket.indicator(Instant::now()), None);
}

#[tokio::test(start_paused = true)]
async fn a_rollback_at_the_same_instant_leaves_the_level_bit_for_bit() {
    let bucket = new_bucket(7, 11);
    bucket.record_backpressure(3);
    take(&bucket, 9).unwrap();
    advance(Duration::from_nanos(1_234_567_891)).await;
    let before = format!("{:?}", bucket.state);
    let charge = take(&bucket, 2).unwrap();
    assert!(take(&bucket, 5).is_none());
    assert!(bucket.try_take(&ask(12)).is_err());
    bucket.give(&charge, Instant::now());
    let after = format!("{:?}", bucket.state);
    let levels = |state: &str| state[..state.find("throttle").unwrap()].to_owned();
    assert_eq!(levels(&before), levels(&after));
}

#[tokio::test(start_paused = true)]
async fn an_older_instant_counts_as_the_latest() {
    let bucket = new_bucket(60, 60);
    let start = Instant::now();
    drain(&bucket, 60);
    advance(secs(10)).await;
    take(&bucket, 5).unwrap();
    let old = Ask::new(2, Amount::tokens(5), start);
    assert!(bucket.fits(&old).unwrap());
    assert_eq!(bucket.try_take(&old).unwrap(), Some(start + secs(10)));
    assert_eq!(bucket.in_use(start), 60);
    assert!(!bucket.fits(&old).unwrap());
}

#[tokio::test(start_paused = true)]
async fn in_use_is_what_is_missing_rounded_up() {
    let bucket = new_bucket(60, 60);
    let now = Instant::now();
    assert_eq!(bucket.in_use(now), 0);
    take(&bucket, 10).unwrap();
    assert_eq!(bucket.in_use(now), 10);
    assert_eq!(bucket.in_use(now + millis(1)), 10);
    assert_eq!(bucket.in_use(now + secs(1)), 9);
}

#[tokio::test(start_paused = true)]
async fn a_status_names_its_numbers() {
    let bucket = new_bucket(500, 30_000);
    assert_eq!(
        bucket.status().summary(),
        "500 of 500 requests and 30000 of 30000 tokens a minute available"
    );
    let charge = take(&bucket, 30_000).unwrap();
    bucket.reconcile(&charge, 31_200, Instant::now());
    bucket.record_failure(&too_many_requests().with_retry_after(secs(7)));
    let status = bucket.status();
    assert!(status.has_capacity(0) && !status.has_capacity(1));
    assert_eq!(
        bucket.summary(Instant::now()),
        "499 of 500 requests and 0 of 30000 tokens a minute available, 1200 tokens of debt, \
         throttle 0.5, held for 7.0 s"
    );
}

#[tokio::test(start_paused = true)]
async fn a_bucket_is_fresh_when_forgetting_it_would_forgive_nothing() {
    let bucket = new_bucket(60, 60);
    let fresh = || bucket.is_fresh(Instant::now());
    assert!(fresh());
    take_amount(&bucket, Amount { requests: 1, units: 0 }).unwrap();
    assert!(!fresh(), "a request is missing though no token is");
    advance(secs(1)).await;
    assert!(fresh());
    bucket.record_429();
    assert!(!fresh());
    advance(TokenBucket::CALM_AFTER).await;
    bucket.record_success();
    assert!(fresh());
    let held = UpstreamFailure::status(500, "gpt-x", "").with_retry_after(secs(5));
    bucket.record_failure(&held);
    assert!(!fresh());
    advance(secs(5)).await;
    assert!(fresh());
}

#[test]
fn threads_never_overdraw_a_bucket() {
    let bucket = new_bucket(1_000_000, 1_000);
    let now = bucket.status().read_at;
    let taken: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let ask = Ask::new(1, Amount::tokens(1), now);
                    (0..1_000).filter(|_| bucket.try_take(&ask).unwrap().is_some()).count() as u64
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(taken, 1_000);
}

#[tokio::test(start_paused = true)]
async fn the_longest_hold_is_the_hosts_to_choose_and_never_endless() {
    let bucket = new_bucket(600, 60_000);
    let start = Instant::now();
    let held_until = |asked| {
        bucket.record_failure(&too_many_requests().with_retry_after(asked));
        bucket.status().held_until
    };
    bucket.set_max_hold(Duration::ZERO);
    assert_eq!(held_until(secs(7)), None, "none is believed");
    bucket.set_max_hold(secs(3_600));
    assert_eq!(held_until(secs(1_200)), Some(start + secs(1_200)));
    bucket.set_max_hold(secs(5));
    assert_eq!(held_until(secs(1_200)), Some(start + secs(1_200)), "what there is stays");
    bucket.set_max_hold(Duration::MAX);
    assert_eq!(held_until(Duration::MAX), Some(start + secs(86_400)));
}

#[test]
fn a_failure_is_logged_at_warn_with_its_summary_and_a_capped_hold_says_so() {
    let bucket = new_bucket(600, 60_000);
    let lines = logged(|| {
        let charge = take(&bucket, 1).unwrap();
        let failure = too_many_requests().with_retry_after(secs(7));
        bucket.on_upstream_failure(&failure, &charge, Instant::now());
    });
    let summary = "HTTP 429 from gpt-x: slow down (server asked for 7s)";
    assert_eq!(lines, [format!("WARN {summary} account=gpt-x")]);

    let lines = logged(|| {
        bucket.record_failure(&too_many_requests().with_retry_after(secs(86_400)));
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].contains("held for 600s") && lines[1].contains("86400s"), "{lines:?}");
    assert!(logged(|| assert!(take(&bucket, 1).is_none())).is_empty());
}

#[cfg(feature = "serde")]
#[test]
fn limits_travel_as_data_and_take_no_unknown_field() {
    let limits: Limits = serde_json::from_str(r#"{"requests": 500, "tokens": 30000}"#).unwrap();
    assert_eq!(limits, Limits::per_minute(500, 30_000));
    let text = serde_json::to_string(&limits).unwrap();
    assert_eq!(serde_json::from_str::<Limits>(&text).unwrap(), limits);
    assert!(serde_json::from_str::<Limits>(r#"{"requests": 1, "tokens": 1, "burst": 1}"#).is_err());
}
