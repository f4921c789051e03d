use std::io;
use std::sync::mpsc;
use std::thread;

use super::super::MemoryReading;
use super::*;
use crate::testing::ScriptedMemory;

mod logging;
mod model;

const FREE: Turn = Turn::new(false, false);
const DRAIN: Turn = Turn::new(true, false);
const EARNED: Turn = Turn::new(true, true);

fn scripted(percent: f64) -> (Arc<ScriptedMemory>, Arc<MemoryGate>) {
    let memory = ScriptedMemory::at_percent(percent);
    let gate = MemoryGate::builder()
        .source(Arc::clone(&memory))
        .reading_age(Duration::ZERO)
        .build()
        .unwrap();
    (memory, gate)
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One line as the monitor keeps it, as far as memory goes.
struct Line {
    gate: Arc<MemoryGate>,
    waiting: usize,
    draining: bool,
    earned: bool,
}

impl Line {
    fn new(gate: &Arc<MemoryGate>) -> Self {
        Self { gate: Arc::clone(gate), waiting: 0, draining: false, earned: false }
    }

    /// A job with entries arrives; whether it went at once.
    fn arrives(&mut self, now: Instant) -> bool {
        self.waiting += 1;
        self.gate.link().count_waiting(true);
        let went = self.pass(now) == 1;
        self.draining |= !went;
        went
    }

    /// How many went.
    fn pass(&mut self, now: Instant) -> usize {
        self.gate.look(now);
        let before = self.waiting;
        while self.waiting > 0 && self.gate.willing(Turn::new(self.draining, self.earned), now) {
            self.gate.released(now);
            self.gate.link().count_waiting(false);
            self.waiting -= 1;
            self.earned = false;
        }
        self.draining &= self.waiting > 0;
        before - self.waiting
    }

    fn completes(&mut self, now: Instant) -> bool {
        let earns = self.gate.completed(now);
        self.earned |= earns;
        earns
    }

    fn next(&self, now: Instant) -> Duration {
        self.gate.earliest(Turn::new(self.draining, self.earned), now).unwrap() - now
    }

    /// Follows the gate's own deadlines until somebody goes; how long that took.
    fn until_one_goes(&mut self, from: Instant) -> Duration {
        let mut now = from;
        loop {
            now += self.next(now);
            if self.pass(now) > 0 {
                return now - from;
            }
            assert!(now - from < Duration::from_secs(7_200), "nobody goes");
        }
    }
}

#[test]
fn k1_a_latched_line_goes_when_the_latch_clears_and_then_by_the_delay() {
    let (memory, gate) = scripted(95.0);
    let mut line = Line::new(&gate);
    let start = Instant::now();
    assert!(!line.arrives(start) && !line.arrives(start));
    memory.set_percent(90.0);
    let mut now = start;
    for _ in 0..5 {
        let step = line.next(now);
        assert_eq!(step, MemoryGate::RECHECK);
        now += step;
        assert_eq!(line.pass(now), 0);
    }
    memory.set_percent(89.0);
    let took = line.until_one_goes(now);
    assert!(took <= MemoryGate::RECHECK, "{took:?}");
    assert_eq!(line.waiting, 1);
    assert_eq!(line.until_one_goes(now + took), ms(6_480));
}

#[test]
fn k2_completions_under_the_latch_earn_nothing_and_later_ones_a_turn() {
    let (memory, gate) = scripted(85.0);
    let mut line = Line::new(&gate);
    let start = Instant::now();
    for _ in 0..5 {
        assert!(line.arrives(start));
    }
    memory.set_percent(96.0);
    let mut now = start + ms(2_000);
    for _ in 0..3 {
        assert!(!line.arrives(now));
    }
    for _ in 0..4 {
        assert!(!line.completes(now));
        assert_eq!(line.pass(now), 0);
    }
    memory.set_percent(85.0);
    now += line.next(now);
    assert_eq!(line.pass(now), 1);
    now += ms(100);
    assert!(line.completes(now));
    assert_eq!(line.pass(now), 1);
    assert_eq!(line.until_one_goes(now), ms(1_111));
}

#[test]
fn k3_outside_a_drain_everybody_goes_at_once_below_the_latch() {
    let (_, gate) = scripted(94.0);
    let mut line = Line::new(&gate);
    let now = Instant::now();
    assert!((0..10).all(|_| line.arrives(now)));
}

#[test]
fn k4_a_limit_that_grows_clears_the_latch_and_no_limit_is_no_pressure() {
    let memory = ScriptedMemory::new(96, 100);
    let gate = MemoryGate::with_source(Arc::clone(&memory)).unwrap();
    let mut line = Line::new(&gate);
    let now = Instant::now();
    assert!(!line.arrives(now));
    memory.set(96, 200);
    assert!(line.until_one_goes(now) <= MemoryGate::RECHECK);

    let gate = MemoryGate::with_source(ScriptedMemory::new(u64::MAX, 0)).unwrap();
    gate.look(now);
    assert!(gate.willing(FREE, now) && gate.willing(DRAIN, now));
    let status = gate.status();
    assert_eq!((status.ratio, status.zone), (0.0, MemoryZone::Green));
}

fn idle_and_latched(builder: MemoryGateBuilder) -> (Line, Instant) {
    let memory = ScriptedMemory::at_percent(96.0);
    let gate = builder.source(memory).build().unwrap();
    let mut line = Line::new(&gate);
    let now = Instant::now();
    assert!(!line.arrives(now) && !line.arrives(now));
    (line, now)
}

#[test]
fn k6_progress_lets_one_go_under_the_latch_and_the_other_not_while_it_runs() {
    let (mut line, start) = idle_and_latched(MemoryGate::builder().progress_after(ms(30_000)));
    assert_eq!(line.until_one_goes(start), ms(30_000));
    assert_eq!(line.waiting, 1);
    let mut now = start + ms(30_000);
    for _ in 0..1_000 {
        now += line.next(now);
        assert_eq!(line.pass(now), 0);
    }
    assert!(!line.completes(now), "a completion under the latch earns nothing");
    assert_eq!(line.pass(now), 1, "but nothing is in flight any more");
}

#[test]
fn k6_without_progress_nobody_goes_under_the_latch() {
    let (mut line, start) = idle_and_latched(MemoryGate::builder());
    let mut now = start;
    for _ in 0..1_000 {
        now += line.next(now);
        assert_eq!(line.pass(now), 0);
    }
}

#[test]
fn progress_is_for_whoever_has_nothing_in_flight() {
    let memory = ScriptedMemory::at_percent(50.0);
    let builder = MemoryGate::builder().source(Arc::clone(&memory)).progress_after(ms(30_000));
    let gate = builder.build().unwrap();
    let start = Instant::now();
    let mut line = Line::new(&gate);
    assert!(line.arrives(start));
    memory.set_percent(96.0);
    let now = start + ms(1_000);
    assert!(!line.arrives(now));
    assert_eq!(line.pass(now + ms(100_000)), 0);
    gate.rolled_back(now + ms(100_000));
    assert_eq!(line.pass(now + ms(100_000)), 1);
}

#[test]
fn whoever_waits_for_progress_is_asked_again_before_it() {
    let memory = ScriptedMemory::at_percent(96.0);
    let builder = MemoryGate::builder().source(Arc::clone(&memory)).progress_after(ms(3_600_000));
    let gate = builder.build().unwrap();
    let mut line = Line::new(&gate);
    let start = Instant::now();
    assert!(!line.arrives(start));
    assert_eq!(line.next(start), MemoryGate::RECHECK);
    memory.set_percent(50.0);
    assert_eq!(line.until_one_goes(start), MemoryGate::RECHECK);
}

#[test]
fn the_latch_holds_everybody_whatever_the_turn() {
    let (memory, gate) = scripted(95.0);
    let now = Instant::now();
    gate.look(now);
    for turn in [FREE, DRAIN, EARNED] {
        assert!(!gate.willing(turn, now));
        assert_eq!(gate.earliest(turn, now), Some(now + MemoryGate::RECHECK));
    }
    memory.set_percent(90.0);
    gate.look(now);
    assert!(!gate.willing(FREE, now));
    memory.set_percent(89.99);
    gate.look(now);
    assert!(gate.willing(FREE, now) && gate.willing(EARNED, now));
}

#[test]
fn a_drain_lets_the_next_go_by_a_completion_or_the_delay() {
    let (_, gate) = scripted(85.0);
    let now = Instant::now();
    gate.look(now);
    assert!(gate.willing(DRAIN, now), "no release yet");
    gate.released(now);
    assert!(!gate.willing(DRAIN, now) && gate.willing(EARNED, now) && gate.willing(FREE, now));
    assert!(!gate.willing(DRAIN, now + ms(1_110)));
    assert!(gate.willing(DRAIN, now + ms(1_111)));
    assert_eq!(gate.earliest(DRAIN, now), Some(now + ms(1_111)));
}

#[test]
fn a_release_told_late_does_not_move_the_last_one_back() {
    let (_, gate) = scripted(85.0);
    let now = Instant::now();
    gate.look(now);
    gate.released(now + ms(500));
    gate.released(now);
    assert!(!gate.willing(DRAIN, now + ms(500 + 1_110)));
    assert!(gate.willing(DRAIN, now + ms(500 + 1_111)));
}

#[test]
fn the_delay_follows_the_reading_of_now() {
    let (memory, gate) = scripted(92.0);
    let now = Instant::now();
    gate.look(now);
    gate.released(now);
    assert!(!gate.willing(DRAIN, now + ms(15_359)));
    memory.set_percent(82.0);
    gate.look(now + ms(71));
    assert!(gate.willing(DRAIN, now + ms(71)));
}

#[test]
fn a_draining_line_asks_again_within_two_seconds_and_a_past_instant_is_told_as_it_is() {
    let (_, gate) = scripted(89.0);
    let now = Instant::now();
    gate.look(now);
    gate.released(now);
    assert_eq!(gate.earliest(DRAIN, now), Some(now + MemoryGate::RECHECK));
    let near = now + ms(6_000);
    assert_eq!(gate.earliest(DRAIN, near), Some(now + ms(6_480)));
    assert_eq!(gate.earliest(DRAIN, now + ms(60_000)), Some(now + ms(6_480)));
}

#[test]
fn a_growing_floor_penalizes_the_drain_while_something_is_in_flight() {
    let (memory, gate) = scripted(80.0);
    let start = Instant::now();
    gate.look(start);
    gate.released(start);
    for floor in [83.0, 86.0] {
        memory.set_percent(94.0);
        gate.look(start);
        memory.set_percent(floor);
        gate.look(start);
        if floor == 83.0 {
            gate.released(start);
        }
    }
    assert_eq!(gate.status().growth_penalty, 64.0);
    assert_eq!(gate.status().pacing, ms(1_920 * 64));
    assert!(!gate.willing(DRAIN, start + ms(1_920 * 64 - 1)));
    assert!(gate.willing(DRAIN, start + ms(1_920 * 64)));
    gate.completed(start);
    gate.rolled_back(start);
    assert_eq!(gate.status().pacing, ms(1_920), "idle: only the curve");
    assert!(gate.willing(DRAIN, start + ms(1_920)));
}

#[test]
fn every_release_counts_in_a_drain_or_not() {
    let (memory, gate) = scripted(80.0);
    let now = Instant::now();
    let mut found = Vec::new();
    for floor in [80.0, 83.0, 86.0, 89.0, 89.0, 89.0] {
        memory.set_percent(94.0);
        gate.look(now);
        memory.set_percent(floor);
        gate.look(now);
        found.push(gate.status().growth_penalty);
        gate.released(now);
    }
    assert_eq!(found, [1.0, 1.0, 64.0, 4_096.0, 32_768.0, 32_768.0]);
    memory.set_percent(40.0);
    gate.look(now);
    assert_eq!(gate.status().growth_penalty, 1.0);
}

#[test]
fn one_completion_too_many_does_not_freeze_an_idle_line() {
    let (_, gate) = scripted(85.0);
    let now = Instant::now();
    gate.look(now);
    gate.completed(now);
    assert!(gate.is_idle());
}

#[test]
fn a_reading_serves_for_twenty_milliseconds() {
    let memory = ScriptedMemory::at_percent(50.0);
    let gate = MemoryGate::with_source(Arc::clone(&memory)).unwrap();
    let now = Instant::now();
    for (at, reads) in [(0, 1), (0, 1), (19, 1), (20, 2), (39, 2), (40, 3), (10, 3)] {
        gate.look(now + ms(at));
        assert_eq!(memory.reads(), reads, "at {at} ms");
    }
}

#[test]
fn a_status_and_a_question_read_nothing() {
    let memory = ScriptedMemory::at_percent(50.0);
    let gate = MemoryGate::with_source(Arc::clone(&memory)).unwrap();
    let now = Instant::now();
    assert_eq!(gate.status().limit, 0);
    gate.look(now);
    memory.set_percent(96.0);
    let later = now + ms(5_000);
    assert!(gate.willing(FREE, later));
    assert_eq!((gate.capacity(), gate.in_use()), (1_000_000_000, 500_000_000));
    assert_eq!(gate.status().ratio, 0.5);
    assert_eq!(memory.reads(), 1);
}

#[test]
fn a_source_that_fails_or_panics_keeps_the_last_reading() {
    let (memory, gate) = scripted(96.0);
    let now = Instant::now();
    gate.look(now);
    for _ in 0..3 {
        memory.fail();
        gate.look(now);
        memory.panic();
        gate.look(now);
    }
    assert_eq!(memory.reads(), 7);
    assert!(!gate.willing(FREE, now));
    memory.set_percent(50.0);
    gate.look(now);
    assert!(gate.willing(FREE, now));
}

#[test]
fn a_source_that_fails_from_the_start_holds_nobody() {
    let (memory, gate) = scripted(96.0);
    memory.panic();
    let now = Instant::now();
    gate.look(now);
    gate.released(now);
    assert!(gate.willing(FREE, now) && !gate.willing(DRAIN, now));
    assert_eq!(gate.status().pacing, ms(50));
}

#[test]
fn relief_is_asked_once_each_time_the_latch_sets() {
    let (memory, gate) = scripted(96.0);
    let now = Instant::now();
    for (percent, relieved) in [(96.0, 1), (99.0, 1), (91.0, 1), (97.0, 1), (80.0, 1), (95.0, 2)] {
        memory.set_percent(percent);
        gate.look(now);
        assert_eq!(memory.relieved(), relieved, "at {percent} %");
    }
}

#[test]
fn the_zone_and_the_indicator_follow_latch_and_line() {
    let (memory, gate) = scripted(85.0);
    let now = Instant::now();
    let seen = || (gate.status().zone, gate.status().held, gate.indicator(now));
    gate.look(now);
    assert_eq!(seen(), (MemoryZone::Green, 0, None));
    gate.link().count_waiting(true);
    assert_eq!(seen(), (MemoryZone::Draining, 1, Some("pace:1111ms".to_owned())));
    memory.set_percent(95.0);
    gate.look(now);
    assert_eq!(seen(), (MemoryZone::Critical, 1, Some("blocked".to_owned())));
    assert!(gate.summary(now).starts_with("CRITICAL: 95.0 % used"), "{}", gate.summary(now));
    gate.stop();
    assert_eq!(seen(), (MemoryZone::Green, 1, None));
}

#[test]
fn a_stopped_gate_says_yes_to_everyone_and_reads_no_more() {
    let (memory, gate) = scripted(96.0);
    let now = Instant::now();
    gate.look(now);
    gate.released(now);
    gate.stop();
    for turn in [FREE, DRAIN, EARNED] {
        assert!(gate.willing(turn, now));
        assert_eq!(gate.earliest(turn, now), Some(now));
    }
    assert!(gate.completed(now));
    gate.look(now + ms(1_000));
    assert_eq!(memory.reads(), 1);
}

#[test]
fn level_and_delay_are_shared_by_two_lines() {
    let (memory, gate) = scripted(96.0);
    let (mut one, mut other) = (Line::new(&gate), Line::new(&gate));
    let now = Instant::now();
    assert!(!one.arrives(now) && !other.arrives(now) && !one.arrives(now));
    memory.set_percent(85.0);
    assert_eq!((one.pass(now), other.pass(now)), (1, 0));
    // The completion is the first line's own; the other goes by the delay.
    assert!(one.completes(now + ms(10)));
    assert_eq!((other.pass(now + ms(10)), one.pass(now + ms(10))), (0, 1));
    assert_eq!(other.pass(now + ms(10 + 1_110)), 0);
    assert_eq!(other.pass(now + ms(10 + 1_111)), 1);
}

#[test]
fn an_impossible_configuration_is_refused_by_name() {
    let memory = ScriptedMemory::at_percent(1.0);
    let slow = MemoryGate::builder().source(memory).reading_age(ms(2_001)).build().unwrap_err();
    assert_eq!(slow.field, "reading_age");
    #[cfg(feature = "memory")]
    assert_eq!(MemoryGate::with_budget(0).unwrap_err().field, "budget");
}

#[cfg(feature = "memory")]
#[test]
fn the_gates_of_the_crates_own_sources_read_here() {
    let now = Instant::now();
    for gate in [MemoryGate::new().unwrap(), MemoryGate::with_budget(1 << 50).unwrap()] {
        gate.look(now);
        assert!(gate.in_use() > 0 && gate.in_use() < gate.capacity(), "{gate:?}");
    }
}

/// Runs the questions of a healthy line on another thread; whether they came back.
fn answers_without_the_lock(gate: &Arc<MemoryGate>) -> bool {
    let held = gate.pressure.lock();
    let (told, answered) = mpsc::channel();
    let other = Arc::clone(gate);
    let now = Instant::now();
    let thread = thread::spawn(move || {
        other.look(now);
        let willing = other.willing(FREE, now) && other.willing(EARNED, now);
        other.released(now);
        let earned = other.completed(now);
        other.released(now);
        other.rolled_back(now);
        let _ = told.send(willing && earned);
    });
    let answer = answered.recv_timeout(Duration::from_secs(2));
    drop(held);
    thread.join().unwrap();
    answer == Ok(true)
}

#[test]
fn steady_memory_takes_no_lock() {
    let memory = ScriptedMemory::at_percent(50.0);
    let builder = MemoryGate::builder().source(memory).reading_age(MemoryGate::RECHECK);
    let gate = builder.build().unwrap();
    let now = Instant::now();
    gate.look(now);
    gate.released(now);
    gate.released(now);
    assert!(answers_without_the_lock(&gate));
}

/// A source that stays in its reading until it is let go, for two seconds at most.
struct Slow {
    entered: mpsc::SyncSender<()>,
    leave: Mutex<mpsc::Receiver<u64>>,
}

impl MemorySource for Slow {
    fn read(&self) -> io::Result<MemoryReading> {
        self.entered.send(()).map_err(io::Error::other)?;
        let used = self.leave.lock().recv_timeout(ms(2_000)).map_err(io::Error::other)?;
        Ok(MemoryReading::new(used, 100))
    }
}

#[test]
fn while_one_reads_the_others_go_on_with_the_old_reading() {
    let (entered, has_entered) = mpsc::sync_channel(16);
    let (leave, may_leave) = mpsc::channel();
    let gate = MemoryGate::with_source(Slow { entered, leave: Mutex::new(may_leave) }).unwrap();
    let now = Instant::now();
    leave.send(50).unwrap();
    gate.look(now);
    has_entered.recv().unwrap();

    let later = now + ms(20);
    let reader = {
        let gate = Arc::clone(&gate);
        thread::spawn(move || gate.look(later))
    };
    has_entered.recv().unwrap();
    // Returns although the source is still busy, with what was read before, and reads nothing.
    gate.look(later);
    assert!(gate.willing(FREE, later));
    assert!(has_entered.try_recv().is_err());
    leave.send(96).unwrap();
    reader.join().unwrap();
    assert!(!gate.willing(FREE, later));
    gate.look(later);
    assert!(has_entered.try_recv().is_err());
}

#[test]
fn before_the_first_reading_everybody_waits_for_it_and_it_is_one() {
    let (entered, has_entered) = mpsc::sync_channel(16);
    let (leave, may_leave) = mpsc::channel();
    let gate = MemoryGate::with_source(Slow { entered, leave: Mutex::new(may_leave) }).unwrap();
    let now = Instant::now();
    let lookers: Vec<_> = (0..8)
        .map(|_| {
            let gate = Arc::clone(&gate);
            thread::spawn(move || {
                gate.look(now);
                gate.willing(FREE, now)
            })
        })
        .collect();
    has_entered.recv().unwrap();
    leave.send(96).unwrap();
    assert!(lookers.into_iter().all(|looker| !looker.join().unwrap()));
    assert!(has_entered.try_recv().is_err());
}

#[test]
fn counts_balance_under_threads() {
    let (memory, gate) = scripted(80.0);
    let start = Instant::now();
    thread::scope(|scope| {
        for worker in 0..4_u64 {
            let (gate, memory) = (&gate, &memory);
            scope.spawn(move || {
                for round in 0..2_000_u64 {
                    let now = start + Duration::from_micros(round);
                    if round % 16 == worker {
                        memory.set_percent(f64::from((round % 94) as u32));
                    }
                    gate.look(now);
                    gate.willing(DRAIN, now);
                    gate.released(now);
                    if round % 3 == 0 {
                        gate.rolled_back(now);
                    } else {
                        gate.completed(now);
                    }
                    let penalty = gate.status().growth_penalty;
                    assert!((1.0..=72_000.0).contains(&penalty));
                }
            });
        }
    });
    assert!(gate.is_idle());
    assert_eq!(gate.in_flight.load(Ordering::SeqCst), 0);
    let last = gate.origin.instant(gate.last_release.load(Ordering::SeqCst));
    assert_eq!(last, Some(start + Duration::from_micros(1_999)));
}
