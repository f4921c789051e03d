//! So many in any span: what fits, when, and what a rollback takes out.

use tokio::time::advance;

use super::*;

#[test]
fn a_fresh_window_is_nominal() {
    let rig = Rig::of(5);
    let status = rig.window.status();
    assert_eq!((status.max, status.available), (5, 5));
    assert_eq!(status.throttle, 0.0);
    assert_eq!(status.effective_window, SECOND);
    assert_eq!(status.circuit, CircuitState::Healthy);
    assert_eq!(status.cooldown_remaining, Duration::ZERO);
    assert_eq!(rig.window.indicator(rig.start), None);
    assert_eq!(rig.window.capacity(), 5);
    assert_eq!(rig.window.category(), Category::ElasticWindow);
    assert_eq!(rig.window.replenishment(), Replenishment::Time);
    assert!(rig.window.needs_http() && rig.window.reads_clock() && rig.window.is_fresh(rig.start));
    let summary = "5 of 5 requests left in any 1s, throttle 0.0, circuit healthy";
    assert_eq!(rig.window.summary(rig.start), summary);
}

#[test]
fn e5_five_just_before_the_second_count_against_a_sixth_just_after() {
    let rig = Rig::of(5);
    for id in 0..5 {
        assert!(rig.take_at(id, 1, rig.at(999)).is_some());
    }
    let sixth = ask(6, 1, rig.at(1_001));
    assert!(!rig.fits(&sixth));
    assert_eq!(rig.window.earliest_fit(&sixth), Some(rig.at(1_999)));
    assert!(!rig.fits(&sixth.at(rig.at(1_999) - NANO)));
    assert!(rig.fits(&sixth.at(rig.at(1_999))));
}

#[test]
fn e9_what_has_left_is_not_given_back() {
    let rig = Rig::of(1);
    let first = rig.take_at(1, 1, rig.start).unwrap();
    let second = rig.take_at(2, 1, rig.at(1_400)).unwrap();
    assert_eq!(rig.window.give(&first, rig.at(1_500)), Amount::NONE);
    let next = ask(3, 1, rig.at(1_500));
    assert!(!rig.fits(&next));
    assert_eq!(rig.window.earliest_fit(&next), Some(rig.at(2_400)));
    assert_eq!(rig.window.give(&second, rig.at(1_600)), Amount::permits(1));
    assert!(rig.fits(&next.at(rig.at(1_600))));
}

#[tokio::test(start_paused = true)]
async fn e10_a_stretch_revives_nothing_whether_or_not_a_status_was_read() {
    for read in [false, true] {
        let rig = Rig::of(5);
        assert!(rig.take(1, 5).is_some());
        advance(Duration::from_millis(1_100)).await;
        if read {
            assert_eq!(rig.window.status().available, 5);
        }
        advance(Duration::from_millis(100)).await;
        rig.window.record_advisory_pressure();
        assert_eq!(rig.window.status().effective_window, 2 * SECOND);
        assert!(rig.take(2, 5).is_some());
        assert!(rig.take(3, 1).is_none());
        assert_eq!(rig.window.earliest_fit(&ask(3, 1, Instant::now())), Some(rig.at(3_200)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stamp_that_is_still_live_stays_for_the_longer_window() {
    let rig = Rig::of(5);
    rig.take(1, 5);
    advance(SECOND - NANO).await;
    rig.window.record_advisory_pressure();
    advance(NANO).await;
    assert_eq!(rig.window.in_use(Instant::now()), 5);
    assert_eq!(rig.window.earliest_fit(&ask(2, 1, Instant::now())), Some(rig.at(2_000)));
}

#[test]
fn the_deadline_is_when_the_kth_oldest_leaves() {
    let rig = Rig::of(5);
    for (id, n, at) in [(1, 2, 0), (2, 1, 100), (3, 2, 200)] {
        assert!(rig.take_at(id, n, rig.at(at)).is_some());
    }
    let now = rig.at(300);
    for (n, at) in [(1, 1_000), (2, 1_000), (3, 1_100), (4, 1_200), (5, 1_200)] {
        assert_eq!(rig.window.earliest_fit(&ask(9, n, now)), Some(rig.at(at)), "{n}");
    }
    let behind = ask(9, 1, now).behind(Amount::permits(2));
    assert_eq!(rig.window.earliest_fit(&behind), Some(rig.at(1_100)));
    let beyond = ask(9, 3, now).behind(Amount::permits(3));
    assert_eq!(rig.window.earliest_fit(&beyond), None, "together they can never fit");
    assert!(!rig.fits(&beyond));
    let fitting = ask(9, 5, rig.at(5_000));
    assert!(rig.window.earliest_fit(&fitting).is_some_and(|at| at <= fitting.now));
}

#[test]
fn a_rollback_takes_out_its_own_stamps_not_the_newest() {
    let rig = Rig::of(3);
    let first = rig.take_at(1, 2, rig.start).unwrap();
    rig.take_at(2, 1, rig.at(500));
    assert_eq!(rig.window.give(&first, rig.at(600)), Amount::permits(2));
    assert_eq!(rig.window.give(&first, rig.at(600)), Amount::NONE, "only once");
    assert_eq!(rig.window.in_use(rig.at(600)), 1);
    assert_eq!(rig.window.earliest_fit(&ask(3, 3, rig.at(600))), Some(rig.at(1_500)));
}

#[test]
fn a_give_of_more_than_is_held_is_clamped() {
    let rig = Rig::of(5);
    let charge = rig.take_at(1, 2, rig.start).unwrap();
    let bogus = Charge::new(1, Amount::permits(4), charge.at);
    assert_eq!(rig.window.give(&bogus, rig.start), Amount::permits(2));
    assert_eq!(rig.window.in_use(rig.start), 0);
}

#[test]
fn what_can_never_fit_is_refused_on_the_check_and_on_the_take() {
    let rig = Rig::of(5);
    for amount in [Amount::permits(6), Amount::permits(u32::MAX), Amount::tokens(u64::MAX)] {
        let ask = Ask::new(1, amount, rig.start);
        let refusal = rig.window.fits(&ask).unwrap_err();
        assert_eq!(rig.window.try_take(&ask), Err(refusal.clone()));
        assert_eq!(refusal.retry_instant(), None);
        assert!(refusal.text().contains("5 requests in any 1s"), "{refusal}");
        assert_eq!(rig.window.earliest_fit(&ask), None);
        let behind = super::ask(1, 1, rig.start).behind(amount);
        assert!(!rig.fits(&behind));
        assert_eq!(rig.window.earliest_fit(&behind), None);
    }
    let text = rig.window.fits(&ask(1, 6, rig.start)).unwrap_err().to_string();
    assert!(text.contains("6 permits"), "{text}");
    assert_eq!(rig.window.in_use(rig.start), 0);
}

#[test]
fn a_window_counts_requests_and_ignores_units() {
    let rig = Rig::of(2);
    let tokens = Ask::new(1, Amount::tokens(1_800), rig.start);
    let at = rig.window.try_take(&tokens).unwrap().unwrap();
    assert_eq!(rig.window.in_use(rig.start), 1);
    let charge = Charge::new(1, tokens.mine, at);
    assert_eq!(rig.window.give(&charge, rig.start), Amount::tokens(1_800));
    assert_eq!(rig.window.in_use(rig.start), 0);
}

#[test]
fn an_older_now_counts_as_the_windows_own_latest() {
    let rig = Rig::of(2);
    let now = rig.at(1_000);
    rig.take_at(1, 1, now);
    assert_eq!(rig.take_at(2, 1, rig.start).unwrap().at, now);
    assert_eq!(rig.window.earliest_fit(&ask(3, 1, rig.start)), Some(rig.at(2_000)));
}

#[test]
fn asking_about_a_later_instant_changes_nothing() {
    let rig = Rig::of(1);
    rig.take_at(1, 1, rig.start);
    let next = ask(2, 1, rig.start);
    assert!(rig.fits(&next.at(rig.at(1_000))));
    assert_eq!(rig.window.in_use(rig.at(9_000)), 0);
    assert!(!rig.fits(&next));
    assert_eq!(rig.window.in_use(rig.start), 1);
}

#[test]
fn f4_nothing_is_always_room_for_but_waits_with_the_head() {
    let rig = Rig::of(1);
    rig.take_at(1, 1, rig.start);
    let none = Ask::new(2, Amount::NONE, rig.start);
    assert!(rig.fits(&none));
    assert_eq!(rig.window.try_take(&none), Ok(Some(rig.start)));
    assert_eq!(rig.window.in_use(rig.start), 1);
    let charge = Charge::new(2, Amount::NONE, rig.start);
    assert_eq!(rig.window.give(&charge, rig.start), Amount::NONE);
    assert_eq!(rig.window.in_use(rig.start), 1);
    let behind = none.behind(Amount::permits(1));
    assert!(!rig.fits(&behind));
    assert_eq!(rig.window.earliest_fit(&behind), Some(rig.at(1_000)));
}

#[tokio::test(start_paused = true)]
async fn f4_nothing_is_refused_by_a_blocked_window() {
    let rig = Rig::blocked();
    let none = Ask::new(2, Amount::NONE, Instant::now());
    assert!(rig.window.fits(&none).is_err() && rig.window.try_take(&none).is_err());
}

#[test]
fn f5_a_window_of_nothing_is_a_config_error() {
    let field = |builder: ElasticWindowBuilder| builder.build().unwrap_err().field;
    let builder = || ElasticWindow::builder("geo").max(1).per(SECOND);
    assert_eq!(field(builder().max(0)), "max");
    assert_eq!(field(builder().per(Duration::ZERO)), "per");
    assert_eq!(field(builder().probe_timeout(Duration::ZERO)), "probe_timeout");
    assert_eq!(field(builder().initial_cooldown(Duration::ZERO)), "initial_cooldown");
    assert_eq!(field(builder().max_cooldown(SECOND)), "max_cooldown");
    assert_eq!(field(builder().max_throttle(-1.0)), "max_throttle");
    assert_eq!(field(builder().failures_to_open(0)), "failures_to_open");
    assert_eq!(field(builder().successes_per_decrease(0)), "successes_per_decrease");
    assert_eq!(field(ElasticWindow::builder(" ")), "name");
}

#[test]
fn the_largest_window_there_can_be_does_not_overflow() {
    let config = WindowConfig {
        max: u32::MAX,
        per: Duration::MAX,
        max_throttle: f64::MAX,
        max_cooldown: Duration::MAX,
        ..WindowConfig::default()
    };
    let rig = Rig::new(ElasticWindow::builder("geo").config(config));
    let most = u32::MAX - 1;
    assert!(rig.take_at(1, most, rig.start).is_some());
    assert!(rig.take_at(2, 1, rig.start).is_some());
    let next = ask(3, 1, rig.start).behind(Amount::permits(most));
    assert!(!rig.fits(&next));
    for _ in 0..1_000 {
        rig.window.record_429();
    }
    assert_eq!(rig.window.status().available, 0);
    assert_eq!(rig.window.status().circuit, CircuitState::Healthy);
}
