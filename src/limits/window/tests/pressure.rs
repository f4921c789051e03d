//! The throttle of a window: what raises it, what lowers it, who hears of it.

use tokio::time::advance;

use super::*;

#[tokio::test(start_paused = true)]
async fn every_failure_of_whatever_kind_is_one_pressure_signal() {
    for status in [429, 529, 503, 500, 404, 402] {
        let rig = Rig::of(5);
        rig.window.record_failure(&UpstreamFailure::status(status, "geo", ""));
        assert_eq!(rig.window.status().throttle, 1.0, "{status}");
        assert_eq!(rig.window.status().effective_window, 2 * SECOND);
    }
    let rig = Rig::of(5);
    rig.window.record_failure(&UpstreamFailure::no_response("geo", "reset"));
    rig.window.record_429();
    rig.window.record_advisory_pressure();
    assert_eq!(rig.window.status().throttle, 3.0);
    assert_eq!(rig.window.indicator(Instant::now()).as_deref(), Some("throttle:4.0x"));
    for _ in 0..20 {
        rig.window.record_advisory_pressure();
    }
    assert_eq!(rig.window.status().throttle, 9.0);
    assert_eq!(rig.window.status().effective_window, 10 * SECOND);
    assert_eq!(rig.announced(), NOTHING, "tightening wakes nobody");
}

#[tokio::test(start_paused = true)]
async fn three_successes_take_two_tenths_off_and_wake() {
    let rig = Rig::of(5);
    let charge = rig.take(1, 1).unwrap();
    rig.window.record_429();
    for (throttle, announced) in [(1.0, NOTHING), (1.0, NOTHING), (0.8, GREW), (0.8, NOTHING)] {
        rig.succeed(&charge);
        assert_eq!(rig.window.status().throttle, throttle);
        assert_eq!(rig.announced(), announced);
    }
    assert_eq!(rig.window.status().effective_window, Duration::from_millis(1_800));
    for _ in 0..30 {
        rig.window.record_success();
    }
    assert_eq!(rig.window.status().throttle, 0.0, "exactly, and never below");
    assert_eq!(rig.announced(), GREW);
    rig.window.record_success();
    assert_eq!(rig.announced(), NOTHING);
}

#[tokio::test(start_paused = true)]
async fn five_minutes_after_the_last_pressure_every_success_takes_half_off() {
    let rig = Rig::of(5);
    rig.window.record_429();
    advance(60 * SECOND).await;
    rig.window.record_advisory_pressure();
    advance(300 * SECOND - NANO).await;
    rig.window.record_success();
    assert_eq!(rig.window.status().throttle, 2.0);
    advance(NANO).await;
    rig.window.record_success();
    assert_eq!(rig.window.status().throttle, 1.5);
}

#[tokio::test(start_paused = true)]
async fn the_most_throttle_and_the_successes_are_configurable() {
    let rig = Rig::new(ElasticWindow::builder("geo").max_throttle(1.5).successes_per_decrease(1));
    for _ in 0..2 {
        rig.window.record_advisory_pressure();
    }
    assert_eq!(rig.window.status().throttle, 1.5);
    rig.window.record_success();
    assert_eq!(rig.window.status().throttle, 1.3);
}

#[tokio::test(start_paused = true)]
async fn one_storm_counts_once() {
    let rig = Rig::of(100);
    let flying: Vec<Charge> = (0..50).map(|id| rig.take(id, 1).unwrap()).collect();
    advance(2 * SECOND).await;
    for charge in &flying {
        rig.fail(charge);
        advance(Duration::from_millis(2)).await;
    }
    assert_eq!(rig.window.status().throttle, 1.0);
    advance(SECOND).await;
    let later = rig.take(51, 1).unwrap();
    advance(SECOND).await;
    rig.fail(&later);
    assert_eq!(rig.window.status().throttle, 2.0);
    rig.window.record_429();
    assert_eq!(rig.window.status().throttle, 3.0, "a direct record always counts");
}

#[tokio::test(start_paused = true)]
async fn a_report_older_than_the_last_counted_failure_does_not_touch_the_streak() {
    let rig = Rig::brittle();
    let flying: Vec<Charge> = (0..50).map(|id| rig.take(id, 1).unwrap()).collect();
    advance(SECOND).await;
    for charge in &flying {
        rig.fail(charge);
        advance(NANO).await;
    }
    assert_eq!(rig.circuit(), CircuitState::Healthy);
    for id in 50..52 {
        let charge = rig.take(id, 1).unwrap();
        advance(NANO).await;
        rig.fail(&charge);
    }
    assert_eq!(rig.circuit(), CircuitState::Blocked, "one storm and two more are three");
}

fn asks_for(seconds: u32) -> UpstreamFailure {
    slow_down().with_retry_after(seconds * SECOND)
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_is_read_only_where_the_host_believes_it_and_no_further() {
    let deaf = Rig::of(5);
    deaf.window.record_failure(&asks_for(60));
    assert!(deaf.take(1, 1).is_some());
    assert_eq!(deaf.window.status().hold_remaining, Duration::ZERO);

    let builder = ElasticWindow::builder("geo").max(5).max_throttle(0.0).failures_to_open(99);
    let rig = Rig::new(builder.max_hold(60 * SECOND));
    rig.window.record_failure(&asks_for(20));
    rig.window.record_failure(&asks_for(10));
    assert_eq!(rig.window.status().hold_remaining, 20 * SECOND, "never shortened");
    let one = ask(1, 1, Instant::now());
    assert!(!rig.fits(&one), "waits, and is not refused");
    assert_eq!(rig.window.earliest_fit(&one), Some(rig.at(20_000)));
    assert!(!rig.window.is_fresh(Instant::now()));
    assert_eq!(rig.announced(), NOTHING, "tightening wakes nobody");

    advance(20 * SECOND - NANO).await;
    assert!(rig.take(1, 1).is_none());
    advance(NANO).await;
    let charge = rig.take(1, 5).expect("the time it asked for is over");
    rig.window.on_upstream_failure(&asks_for(3_600), &charge, Instant::now());
    assert_eq!(rig.window.status().hold_remaining, 60 * SECOND, "at most what is believed");
    // Told by a storm that is over, it extends the hold all the same.
    advance(30 * SECOND).await;
    rig.window.on_upstream_failure(&asks_for(45), &charge, Instant::now());
    assert_eq!(rig.window.status().hold_remaining, 45 * SECOND);

    let endless = Rig::new(ElasticWindow::builder("geo").max_hold(Duration::MAX));
    endless.window.record_failure(&slow_down().with_retry_after(Duration::MAX));
    assert_eq!(endless.window.status().hold_remaining, 86_400 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_hold_keeps_the_probe_as_well() {
    let builder = ElasticWindow::builder("geo").max(5).max_throttle(0.0).failures_to_open(1);
    let rig = Rig::new(builder.max_hold(600 * SECOND));
    rig.window.record_failure(&asks_for(90));
    assert_eq!(rig.circuit(), CircuitState::Blocked);
    advance(30 * SECOND).await;
    let one = ask(1, 1, Instant::now());
    assert!(!rig.fits(&one), "the cooldown is over, the hold is not");
    assert_eq!(rig.window.earliest_fit(&one), Some(rig.at(90_000)));
    advance(60 * SECOND).await;
    let probe = rig.take(1, 1).expect("the probe");
    assert_eq!(rig.circuit(), CircuitState::Probing);
    rig.succeed(&probe);
    assert_eq!(rig.circuit(), CircuitState::Healthy);
}
