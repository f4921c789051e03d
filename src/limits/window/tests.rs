use std::sync::Barrier;
use std::thread;

use tokio::time::advance;

use super::*;
use crate::account::{Inbox, Marks};

mod laws;

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

/// A window of `max` in a second, and what it announces.
struct Rig {
    window: Arc<ElasticWindow>,
    inbox: Arc<Inbox>,
    start: Instant,
}

/// What was announced since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Announced {
    grew: bool,
    may_refuse: bool,
}

const NOTHING: Announced = Announced { grew: false, may_refuse: false };
const GREW: Announced = Announced { grew: true, may_refuse: false };
const MAY_REFUSE: Announced = Announced { grew: false, may_refuse: true };

impl Rig {
    fn new(builder: ElasticWindowBuilder) -> Self {
        let window = builder.build().expect("a window");
        let inbox = Arc::new(Inbox::new(1));
        window.link().attach(&inbox);
        Self { window, inbox, start: Instant::now() }
    }

    fn of(max: u32) -> Self {
        Self::new(ElasticWindow::builder("geo").max(max))
    }

    /// The window of the circuit's cases: 100 in 1 s, never stretched, probes given up after 10 s.
    fn brittle() -> Self {
        let builder = ElasticWindow::builder("geo").max(100);
        Self::new(builder.max_throttle(0.0).probe_timeout(10 * SECOND))
    }

    /// The same, blocked just now.
    fn blocked() -> Self {
        let rig = Self::brittle();
        for _ in 0..3 {
            rig.window.record_failure(&slow_down());
        }
        assert_eq!(rig.circuit(), CircuitState::Blocked);
        assert_eq!(rig.announced(), MAY_REFUSE);
        rig
    }

    /// The same, its cooldown over and its probe out.
    async fn probing() -> (Self, Charge) {
        let rig = Self::blocked();
        advance(30 * SECOND).await;
        let probe = rig.take(7, 1).expect("the probe");
        assert_eq!(rig.circuit(), CircuitState::Probing);
        assert_eq!(rig.announced(), MAY_REFUSE);
        (rig, probe)
    }

    fn announced(&self) -> Announced {
        let mut announced = NOTHING;
        self.inbox.take(|_, marks| {
            announced.grew |= marks.has(Marks::GREW);
            announced.may_refuse |= marks.has(Marks::MAY_REFUSE);
        });
        announced
    }

    fn circuit(&self) -> CircuitState {
        self.window.status().circuit
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    /// Takes `n` slots for `id` at `now`, or answers that they do not fit.
    fn take_at(&self, id: u64, n: u32, now: Instant) -> Option<Charge> {
        let ask = ask(id, n, now);
        let at = self.window.try_take(&ask).expect("no refusal")?;
        Some(Charge::new(id, ask.mine, at))
    }

    fn take(&self, id: u64, n: u32) -> Option<Charge> {
        self.take_at(id, n, Instant::now())
    }

    fn fits(&self, ask: &Ask) -> bool {
        self.window.fits(ask).expect("no refusal")
    }

    fn refusal(&self) -> Refusal {
        self.window.fits(&ask(99, 1, Instant::now())).expect_err("a refusal")
    }

    fn succeed(&self, charge: &Charge) {
        self.window.on_success(charge, Instant::now());
    }

    fn fail(&self, charge: &Charge) {
        self.window.on_upstream_failure(&slow_down(), charge, Instant::now());
    }
}

fn ask(id: u64, n: u32, now: Instant) -> Ask {
    Ask::new(id, Amount::permits(n), now)
}

fn slow_down() -> UpstreamFailure {
    UpstreamFailure::status(429, "geo", "slow down")
}

// The window itself.

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
        let behind = self::ask(1, 1, rig.start).behind(amount);
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

// The throttle.

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

// The circuit.

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
    let rig = Rig::blocked();
    rig.window.record_failure(&UpstreamFailure::status(500, "geo", "still \"down\"\n"));
    let refusal = rig.refusal();
    assert!(refusal.text().contains("\"HTTP 500 from geo: still 'down'\""), "{refusal}");
}

#[test]
fn j3_sixty_four_threads_that_fail_at_once_open_it_once() {
    let rig = Rig::brittle();
    let barrier = Barrier::new(64);
    let before = Instant::now();
    thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                barrier.wait();
                rig.window.record_failure(&slow_down());
            });
        }
    });
    let until = rig.refusal().retry_instant().expect("blocked");
    assert!(until >= before + 30 * SECOND && until <= Instant::now() + 30 * SECOND);
    assert_eq!(rig.circuit(), CircuitState::Blocked);
    assert_eq!(rig.announced(), MAY_REFUSE);
}

#[test]
fn j3_sixty_four_threads_that_come_as_the_cooldown_ends_send_one_probe() {
    let rig = Rig::blocked();
    let end = rig.refusal().retry_instant().expect("blocked");
    let barrier = Barrier::new(64);
    let answers: Vec<_> = thread::scope(|scope| {
        let (rig, barrier) = (&rig, &barrier);
        let take = |id| {
            move || {
                barrier.wait();
                rig.window.try_take(&ask(id, 1, end))
            }
        };
        let threads: Vec<_> = (0..64).map(|id| scope.spawn(take(id))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let probes = answers.iter().filter(|answer| **answer == Ok(Some(end))).count();
    let refused = answers.iter().filter(|answer| answer.is_err()).count();
    assert_eq!((probes, refused), (1, 63));
    assert_eq!(rig.window.in_use(end), 1);
    assert_eq!(rig.window.indicator(end).as_deref(), Some("probing"));
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

// Threads.

#[test]
fn threads_never_put_more_than_the_maximum_into_any_span() {
    let rig = Rig::new(ElasticWindow::builder("geo").max(7).per(Duration::from_millis(2)));
    let barrier = Barrier::new(8);
    let worker = |worker: u64| {
        let (rig, barrier) = (&rig, &barrier);
        move || {
            let mut kept = Vec::new();
            barrier.wait();
            for round in 0..5_000_u64 {
                let id = worker * 10_000 + round;
                let n = 1 + (round % 3) as u32;
                let _ = rig.window.status();
                let Some(charge) = rig.take(id, n) else { continue };
                match round % 5 {
                    0 => drop(rig.window.give(&charge, Instant::now())),
                    1 => rig.window.record_advisory_pressure(),
                    _ => rig.window.record_success(),
                }
                if round % 5 != 0 {
                    kept.push((charge.at, n));
                }
            }
            kept
        }
    };
    let mut kept: Vec<(Instant, u32)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|id| scope.spawn(worker(id))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    kept.sort_unstable();
    laws::assert_no_span_holds_more(&kept, 7, Duration::from_millis(2));
    assert!(!kept.is_empty());
    let status = rig.window.status();
    assert!(status.available <= 7 && (0.0..=9.0).contains(&status.throttle));
}
