//! The rules written out over the whole history, against the gate's few words.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A reading, in tenths of a percent.
    Read(u32),
    Release,
    Complete,
    RollBack,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (700_u32..1_000).prop_map(Step::Read),
        2 => (780_u32..=950).prop_map(Step::Read),
        4 => Just(Step::Release),
        2 => Just(Step::Complete),
        1 => Just(Step::RollBack),
        3 => (0_u64..5_000).prop_map(Step::Wait),
    ]
}

/// Everything that happened, kept; every answer worked out from it anew.
#[derive(Default)]
struct History {
    now: u64,
    readings: Vec<(u32, u64)>,
    /// Floor and instant of each release.
    releases: Vec<(u32, u64)>,
    in_flight: u32,
}

impl History {
    fn floor(&self) -> u32 {
        let (mut floor, mut before) = (self.readings[0].0, self.readings[0].0);
        for &(reading, _) in &self.readings {
            if reading >= before {
                before = reading;
            } else if before - reading >= 2 {
                (floor, before) = (reading, reading);
            }
        }
        floor
    }

    fn latched_since(&self) -> Option<u64> {
        let mut since = None;
        for &(reading, at) in &self.readings {
            if since.is_none() && reading >= 950 {
                since = Some(at);
            } else if reading < 900 {
                since = None;
            }
        }
        since
    }

    fn penalty(&self) -> f64 {
        let floors: Vec<u32> = self.releases.iter().map(|&(floor, _)| floor).collect();
        let mut committed = 1.0;
        for n in 0..=floors.len() {
            let look = if n == floors.len() { self.floor() } else { floors[n] };
            if n >= 2 {
                let rise = (f64::from(look) - f64::from(floors[n - 2])) / 10.0;
                committed = f64::clamp(committed * 2_f64.powf(rise), 1.0, 72_000.0);
            }
        }
        committed
    }

    fn delay(&self) -> f64 {
        let reading = self.readings.last().unwrap().0;
        let way = u64::from(reading.clamp(800, 950) - 800);
        let plain = (30_000 * way.pow(3) / 150_u64.pow(3)).max(50);
        let penalty = if self.in_flight == 0 { 1.0 } else { self.penalty() };
        (plain as f64 * penalty).min(3_600_000.0)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_gate_answers_as_its_history_demands(
        first in 700_u32..1_000,
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let (memory, gate) = scripted(f64::from(first) / 10.0);
        let start = Instant::now();
        let mut history = History::default();
        let read = |history: &mut History, tenths: u32| {
            memory.set_percent(f64::from(tenths) / 10.0);
            gate.look(start + ms(history.now));
            history.readings.push((tenths, history.now));
        };
        read(&mut history, first);
        for step in steps {
            let now = start + ms(history.now);
            match step {
                Step::Read(tenths) => read(&mut history, tenths),
                Step::Release => {
                    let floor = history.floor();
                    gate.released(now);
                    history.releases.push((floor, history.now));
                    history.in_flight += 1;
                }
                Step::Complete if history.in_flight > 0 => {
                    let earns = gate.completed(now);
                    prop_assert_eq!(earns, history.latched_since().is_none());
                    history.in_flight -= 1;
                }
                Step::RollBack if history.in_flight > 0 => {
                    gate.rolled_back(now);
                    history.in_flight -= 1;
                }
                Step::Complete | Step::RollBack => {}
                Step::Wait(millis) => history.now += millis,
            }
            let status = gate.status();
            let near = |found: f64, expected: f64| (found - expected).abs() <= expected * 1e-9;
            prop_assert!(near(status.growth_penalty, history.penalty()), "{:?}", status);
            prop_assert!(near(status.floor, f64::from(history.floor()) / 1_000.0));
            // A product just below a whole millisecond may be cut on one side and not the other.
            let pacing = status.pacing.as_millis() as f64;
            prop_assert!((pacing - history.delay()).abs() <= 1.0, "{} {}", pacing, history.delay());
            let now = start + ms(history.now);
            let latched = history.latched_since().is_some();
            let due = history.releases.last().map(|&(_, at)| start + ms(at) + status.pacing);
            prop_assert_eq!(gate.willing(FREE, now), !latched);
            prop_assert_eq!(gate.willing(EARNED, now), !latched);
            let paced = due.is_none_or(|due| due <= now);
            prop_assert_eq!(gate.willing(DRAIN, now), !latched && paced);
            let again = now + MemoryGate::RECHECK;
            let earliest = if latched { again } else { due.unwrap_or(now).min(again) };
            prop_assert_eq!(gate.earliest(DRAIN, now), Some(earliest));
        }
    }

    #[test]
    fn a_draining_line_lets_everybody_go_whatever_memory_reads(
        readings in proptest::collection::vec(0_u32..1_100, 1..60),
        jobs in 1_usize..12,
        lasts in 1_u64..20_000,
    ) {
        let (memory, gate) = scripted(96.0);
        let mut line = Line::new(&gate);
        let start = Instant::now();
        for _ in 0..jobs {
            line.arrives(start);
        }
        let (mut now, mut running, mut went) = (start, std::collections::VecDeque::new(), 0);
        // Readings as they come, and then memory that has room.
        for tenths in readings.into_iter().chain(std::iter::repeat(895)) {
            memory.set_percent(f64::from(tenths) / 10.0);
            while running.front().is_some_and(|&end| end <= now) {
                running.pop_front();
                line.completes(now);
                went += line.pass(now);
            }
            let freed = line.pass(now);
            went += freed;
            running.extend(std::iter::repeat_n(now + ms(lasts), freed));
            if line.waiting == 0 {
                break;
            }
            let step = line.next(now);
            prop_assert!(step <= MemoryGate::RECHECK);
            now += step.max(ms(1));
            prop_assert!(now - start < Duration::from_secs(3_600 * 14));
        }
        prop_assert_eq!(line.waiting, 0);
        prop_assert!(went <= jobs);
    }
}
