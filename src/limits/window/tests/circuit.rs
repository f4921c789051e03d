//! The circuit of a window: opening, probing, closing, and who is told.

use tokio::time::advance;

use super::*;
use crate::limits::logged::logged;

#[tokio::test(start_paused = true)]
async fn j1_only_three_failures_in_a_row_open_it() {
    let rig = Rig::brittle();
    for _ in 0..2 {
        rig.window.record_429();
        rig.window.record_429();
        assert_eq!(rig.circuit(), CircuitState::Healthy);
        assert_eq!(rig.announced(), NOTHING);
        rig.window.record_success();
    }
    rig.window.record_429();
    rig.window.record_429();
    assert_eq!(rig.circuit(), CircuitState::Healthy);
    rig.window.record_429();
    assert_eq!(rig.circuit(), CircuitState::Blocked);
    assert_eq!(rig.announced(), MAY_REFUSE);
}

#[tokio::test(start_paused = true)]
async fn j1_advisory_pressure_never_opens_it() {
    let rig = Rig::of(100);
    for _ in 0..100 {
        rig.window.record_advisory_pressure();
    }
    assert_eq!(rig.window.status().throttle, 9.0);
    assert_eq!(rig.circuit(), CircuitState::Healthy);
    for _ in 0..2 {
        rig.window.record_429();
    }
    rig.window.record_advisory_pressure();
    assert_eq!(rig.circuit(), CircuitState::Healthy, "nor does it count towards it");
    rig.window.record_429();
    assert_eq!(rig.circuit(), CircuitState::Blocked, "nor does it break the row");
}

#[tokio::test(start_paused = true)]
async fn the_failure_that_reaches_the_maximum_throttle_counts() {
    let rig = Rig::of(5);
    for _ in 0..10 {
        rig.window.record_429();
    }
    assert_eq!(rig.window.status().throttle, 9.0);
    assert_eq!(rig.circuit(), CircuitState::Healthy, "the ninth reached it, the tenth is second");
    rig.window.record_429();
    assert_eq!(rig.circuit(), CircuitState::Blocked);
}

#[tokio::test(start_paused = true)]
async fn j2_everyone_is_refused_with_the_time_left_what_was_said_and_advice() {
    let rig = Rig::blocked();
    let end = Instant::now() + 30 * SECOND;
    for (left, text) in [(30, "another 30 s"), (20, "another 20 s"), (10, "another 10 s")] {
        let refusal = rig.refusal();
        assert!(refusal.text().contains(text), "{refusal}");
        assert!(refusal.text().contains("\"HTTP 429 from geo: slow down\""), "{refusal}");
        assert!(refusal.text().ends_with("do not retry yet"), "{refusal}");
        assert_eq!(refusal.retry_instant(), Some(end));
        let behind = ask(1, 1, Instant::now()).behind(Amount::permits(1));
        assert!(rig.window.try_take(&behind).is_err());
        assert_eq!(rig.window.status().cooldown_remaining, left * SECOND);
        assert_eq!(rig.window.indicator(Instant::now()).as_deref(), Some("blocked"));
        advance(10 * SECOND).await;
    }
    assert!(rig.fits(&ask(1, 1, end)));
    assert_eq!(rig.window.status().cooldown_remaining, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn what_the_upstream_says_last_is_repeated_though_it_counts_for_nothing() {
    let rig = Rig::brittle();
    let older = rig.take(1, 1).unwrap();
    advance(NANO).await;
    for _ in 0..3 {
        rig.window.record_failure(&slow_down());
    }
    let last = UpstreamFailure::status(500, "geo", "still \"down\"\n");
    rig.window.on_upstream_failure(&last, &older, Instant::now());
    let refusal = rig.refusal();
    assert!(refusal.text().contains("\"HTTP 500 from geo: still 'down'\""), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn j4_every_failed_probe_doubles_the_cooldown_up_to_an_hour() {
    let rig = Rig::blocked();
    let mut served = 30;
    for expected in [60, 120, 240, 480, 960, 1_920, 3_600, 3_600, 3_600] {
        advance(served * SECOND).await;
        let probe = rig.take(expected, 1).expect("the probe");
        rig.fail(&probe);
        rig.window.settled(&probe, true, Instant::now());
        assert_eq!(rig.window.status().cooldown_remaining, Duration::from_secs(expected));
        served = u32::try_from(expected).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_probes_success_closes_the_circuit_and_wakes() {
    let (rig, probe) = Rig::probing().await;
    assert!(rig.window.link().is_delicate());
    rig.succeed(&probe);
    assert_eq!(rig.circuit(), CircuitState::Healthy);
    assert_eq!(rig.announced(), GREW);
    assert!(!rig.window.link().is_delicate());
    rig.window.settled(&probe, true, Instant::now());
    assert_eq!(rig.circuit(), CircuitState::Healthy);
    assert!(rig.take(8, 50).is_some());
    for _ in 0..3 {
        rig.window.record_429();
    }
    let first = rig.window.status().cooldown_remaining;
    assert_eq!(first, 30 * SECOND, "a later outage starts over");
}

#[tokio::test(start_paused = true)]
async fn while_it_is_not_healthy_demands_are_surveyed_first() {
    let rig = Rig::brittle();
    assert!(!rig.window.link().is_delicate());
    let (rig, probe) = Rig::probing().await;
    assert!(rig.window.link().is_delicate());
    rig.fail(&probe);
    assert!(rig.window.link().is_delicate());
    advance(60 * SECOND).await;
    assert!(rig.window.link().is_delicate(), "the cooldown's end changes nothing");
    rig.take(8, 1).expect("the next probe");
    rig.window.record_success();
    assert!(!rig.window.link().is_delicate());
}

#[tokio::test(start_paused = true)]
async fn j5_a_probe_rolled_back_lets_the_next_probe_at_once() {
    let (rig, probe) = Rig::probing().await;
    let now = Instant::now();
    assert_eq!(rig.window.give(&probe, now), probe.amount);
    assert_eq!(rig.announced(), NOTHING, "a give never announces");
    assert_eq!(rig.circuit(), CircuitState::Blocked);
    rig.window.settled(&probe, false, now);
    assert_eq!(rig.circuit(), CircuitState::Blocked);
    assert_eq!(rig.window.in_use(now), 0);
    let next = rig.take(8, 1).expect("the next probe");
    rig.window.settled(&probe, false, now);
    assert_eq!(rig.circuit(), CircuitState::Probing, "the old one has no say in it");
    rig.fail(&next);
    assert_eq!(rig.window.status().cooldown_remaining, 60 * SECOND, "30 s doubled once");
}

#[tokio::test(start_paused = true)]
async fn j5_a_probe_settled_without_a_report_lets_the_next_probe_at_once() {
    let (rig, probe) = Rig::probing().await;
    rig.window.settled(&probe, false, Instant::now());
    assert_eq!(rig.announced(), GREW);
    assert_eq!(rig.circuit(), CircuitState::Blocked);
    let next = rig.take(8, 1).expect("the next probe");
    rig.fail(&next);
    assert_eq!(rig.window.status().cooldown_remaining, 60 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn j5_a_probe_that_is_held_expires_ten_seconds_after_its_claim() {
    let (rig, probe) = Rig::probing().await;
    let expiry = Instant::now() + 10 * SECOND;
    let next = ask(8, 1, Instant::now());
    let refusal = rig.window.fits(&next).unwrap_err();
    assert_eq!(refusal.retry_instant(), Some(expiry));
    assert!(refusal.text().contains("10 s at the longest"), "{refusal}");
    assert!(refusal.text().ends_with("do not retry yet"), "{refusal}");
    assert_eq!(rig.window.earliest_fit(&next), Some(expiry));
    assert!(rig.window.fits(&next.at(expiry - NANO)).is_err());
    assert!(rig.fits(&next.at(expiry)));
    advance(10 * SECOND).await;
    assert_eq!(rig.circuit(), CircuitState::Blocked);
    rig.succeed(&probe);
    assert_eq!(rig.circuit(), CircuitState::Blocked, "it is the probe no more");
    assert!(rig.take(8, 1).is_some());
    assert_eq!(rig.announced(), MAY_REFUSE);
    rig.fail(&probe);
    assert_eq!(rig.circuit(), CircuitState::Probing);
}

#[tokio::test(start_paused = true)]
async fn j5_reports_of_other_grants_only_move_the_throttle() {
    let builder = ElasticWindow::builder("geo").max(100).failures_to_open(1).max_throttle(1.0);
    let rig = Rig::new(builder);
    let older = rig.take(1, 1).unwrap();
    rig.window.record_429();
    assert_eq!(rig.circuit(), CircuitState::Blocked);
    advance(30 * SECOND).await;
    let probe = rig.take(2, 1).unwrap();
    for _ in 0..3 {
        rig.succeed(&older);
    }
    assert_eq!(rig.window.status().throttle, 0.8);
    rig.fail(&older);
    rig.window.settled(&older, false, Instant::now());
    assert_eq!(rig.window.give(&older, Instant::now()), Amount::NONE);
    assert_eq!(rig.circuit(), CircuitState::Probing);
    rig.succeed(&probe);
    assert_eq!(rig.circuit(), CircuitState::Healthy);
}

#[tokio::test(start_paused = true)]
async fn unattributed_records_decide_a_probing_circuit() {
    let (rig, _) = Rig::probing().await;
    rig.window.record_failure(&slow_down());
    assert_eq!(rig.window.status().cooldown_remaining, 60 * SECOND);
    advance(60 * SECOND).await;
    rig.window.record_success();
    assert_eq!(rig.circuit(), CircuitState::Blocked, "nothing was probing");
    rig.take(8, 1).expect("the probe");
    rig.window.record_success();
    assert_eq!(rig.circuit(), CircuitState::Healthy);
}

#[tokio::test(start_paused = true)]
async fn failures_while_blocked_do_not_put_the_probe_off() {
    let rig = Rig::blocked();
    advance(29 * SECOND).await;
    for _ in 0..10 {
        rig.window.record_failure(&slow_down());
    }
    assert_eq!(rig.window.status().cooldown_remaining, SECOND);
    advance(SECOND).await;
    rig.window.record_failure(&slow_down());
    assert!(rig.take(1, 1).is_some());
}

#[tokio::test(start_paused = true)]
async fn j6_past_the_cooldown_the_first_with_nothing_ahead_probes_and_the_second_is_refused() {
    let rig = Rig::blocked();
    advance(30 * SECOND).await;
    let now = Instant::now();
    assert!(rig.fits(&ask(1, 1, now)) && rig.fits(&ask(2, 1, now)));
    assert!(rig.take(1, 1).is_some());
    assert!(rig.window.try_take(&ask(2, 1, now)).is_err());
}

#[tokio::test(start_paused = true)]
async fn j6_followers_of_one_who_wants_the_window_wait() {
    let rig = Rig::blocked();
    let waiting = ask(2, 1, Instant::now()).behind(Amount::permits(1));
    assert!(rig.window.fits(&waiting).is_err(), "not yet: everyone is refused");
    advance(30 * SECOND).await;
    let now = Instant::now();
    let waiting = waiting.at(now);
    for _ in 0..2 {
        assert!(!rig.fits(&waiting));
        assert_eq!(rig.window.try_take(&waiting), Ok(None));
        assert_eq!(rig.window.earliest_fit(&waiting), None, "only the probe's end helps");
    }
    assert!(rig.fits(&ask(1, 1, now)));
    assert_eq!(rig.circuit(), CircuitState::Blocked);
}

#[tokio::test(start_paused = true)]
async fn a_probe_needs_room_like_anyone() {
    let builder = ElasticWindow::builder("geo").max(2).per(60 * SECOND).max_throttle(0.0);
    let rig = Rig::new(builder);
    rig.take(1, 2);
    for _ in 0..3 {
        rig.window.record_429();
    }
    let next = ask(2, 1, Instant::now());
    assert_eq!(rig.window.earliest_fit(&next), Some(rig.at(60_000)), "room comes after");
    advance(30 * SECOND).await;
    assert_eq!(rig.window.try_take(&next.at(Instant::now())), Ok(None));
    assert_eq!(rig.circuit(), CircuitState::Blocked, "no claim without a take");
    advance(30 * SECOND).await;
    assert!(rig.take(2, 1).is_some());
    assert_eq!(rig.circuit(), CircuitState::Probing);
}

#[tokio::test(start_paused = true)]
async fn j7_what_is_reported_elsewhere_touches_nothing() {
    let rig = Rig::brittle();
    let other = ElasticWindow::builder("model").max_throttle(0.0).build().unwrap();
    let charge = rig.take(1, 1).unwrap();
    for _ in 0..4 {
        let failure = UpstreamFailure::status(500, "model", "");
        other.record_failure(&failure);
    }
    rig.window.settled(&charge, false, Instant::now());
    assert_eq!(other.status().circuit, CircuitState::Blocked);
    assert_eq!(rig.window.status().throttle, 0.0);
    assert_eq!(rig.circuit(), CircuitState::Healthy);
    assert_eq!(rig.announced(), NOTHING);
}

#[tokio::test(start_paused = true)]
async fn a_window_is_fresh_when_forgetting_it_would_forgive_nothing() {
    let rig = Rig::of(5);
    rig.take(1, 1);
    assert!(!rig.window.is_fresh(Instant::now()), "a live stamp");
    advance(SECOND).await;
    assert!(rig.window.is_fresh(Instant::now()));
    rig.window.record_advisory_pressure();
    assert!(!rig.window.is_fresh(Instant::now()), "a throttle");
    let rig = Rig::brittle();
    rig.window.record_429();
    assert!(!rig.window.is_fresh(Instant::now()), "a failure that counts towards the circuit");
    rig.window.record_success();
    assert!(rig.window.is_fresh(Instant::now()));
    let rig = Rig::blocked();
    advance(3_600 * SECOND).await;
    assert!(!rig.window.is_fresh(Instant::now()), "a circuit that is not healthy");
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_opens_is_logged_at_warn_and_one_that_closes_at_info() {
    let rig = Rig::brittle();
    let fails = || rig.window.record_failure(&slow_down());
    assert!(logged(|| (0..2).for_each(|_| fails())).is_empty());
    let opened = |cooldown: u32| {
        format!(
            "WARN circuit blocked; the upstream said \"HTTP 429 from geo: slow down\" account=geo \
             cooldown={cooldown}s"
        )
    };
    assert_eq!(logged(fails), [opened(30)]);
    assert!(logged(fails).is_empty(), "it is open already");
    advance(30 * SECOND).await;
    rig.take(1, 1).expect("the probe");
    assert_eq!(logged(fails), [opened(60)]);
    advance(60 * SECOND).await;
    rig.take(2, 1).expect("the probe");
    let closed = "INFO the upstream has recovered: circuit closed account=geo";
    assert_eq!(logged(|| (0..2).for_each(|_| rig.window.record_success())), [closed]);
}
