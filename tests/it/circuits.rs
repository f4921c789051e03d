//! A window and its circuit against a second one that is written from the guide alone.
//!
//! Probes are reported, late and never, dropped, rolled back and given up, by two admissions, beside
//! what is told the window itself.

use std::time::Duration;

use admit::{
    Admission, AdmitError, CircuitState, Demand, ElasticWindow, Grant, TryAdmitError,
    UpstreamFailure,
};
use proptest::prelude::*;
use tokio::time::{Instant, advance};

use crate::support::{millis, secs};

const MAX: usize = 2;
/// In tenths.
const MOST_THROTTLE: u32 = 20;

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    /// By the first admission or the second.
    Try(usize),
    /// Of a grant, counted from the newest.
    Success(usize),
    Failure(usize),
    Release(usize),
    ReleaseOne(usize),
    Rollback(usize),
    DirectSuccess,
    DirectFailure,
    Advisory,
}

fn step() -> impl Strategy<Value = Step> {
    let pass = prop::sample::select(vec![0, 1, 100, 1_000, 4_999, 5_000, 10_000, 20_000, 300_000]);
    let of = 0_usize..6;
    prop_oneof![
        4 => pass.prop_map(Step::Pass),
        2 => (0_u64..70_000).prop_map(Step::Pass),
        7 => (0_usize..2).prop_map(Step::Try),
        3 => of.clone().prop_map(Step::Success),
        5 => of.clone().prop_map(Step::Failure),
        2 => of.clone().prop_map(Step::Release),
        1 => of.clone().prop_map(Step::ReleaseOne),
        2 => of.prop_map(Step::Rollback),
        1 => Just(Step::DirectSuccess),
        4 => Just(Step::DirectFailure),
        1 => Just(Step::Advisory),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Circuit {
    Healthy { streak: u32 },
    Blocked { until: Instant, cooldown: Duration },
    Probing { grant: usize, since: Instant, cooldown: Duration },
}

struct Granted {
    grant: Grant,
    at: Instant,
    settled: bool,
    reported: bool,
}

struct World {
    window: std::sync::Arc<ElasticWindow>,
    admissions: [Admission; 2],
    grants: Vec<Granted>,
    circuit: Circuit,
    /// In tenths.
    throttle: u32,
    successes: u32,
    pressed: Option<Instant>,
    counted: Option<Instant>,
    /// When each slot was taken, and by which grant.
    slots: Vec<(Instant, usize)>,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let window = ElasticWindow::builder("geocoder")
            .max(MAX as u32)
            .max_throttle(2.0)
            .initial_cooldown(secs(5))
            .max_cooldown(secs(20))
            .probe_timeout(secs(10))
            .build()
            .unwrap();
        Self {
            window,
            admissions: [(); 2].map(|()| Admission::builder().start().unwrap()),
            grants: Vec::new(),
            circuit: Circuit::Healthy { streak: 0 },
            throttle: 0,
            successes: 0,
            pressed: None,
            counted: None,
            slots: Vec::new(),
            now: Instant::now(),
        }
    }

    /// What time alone does.
    fn pass(&mut self) {
        let now = Instant::now();
        self.now = now;
        if let Circuit::Probing { since, cooldown, .. } = self.circuit
            && now >= since + secs(10)
        {
            self.circuit = Circuit::Blocked { until: since, cooldown };
        }
        let length = secs(1) * (10 + self.throttle) / 10;
        self.slots.retain(|(at, _)| now < *at + length);
    }

    fn press(&mut self) {
        self.throttle = (self.throttle + 10).min(MOST_THROTTLE);
        self.pressed = Some(self.now);
    }

    /// Whether a report of this grant, or of none, is the probe's.
    fn decides(of: Option<usize>, probe: usize) -> bool {
        of.is_none_or(|grant| grant == probe)
    }

    fn fail(&mut self, of: Option<usize>) {
        let taken = of.map(|of| self.grants[of].at);
        let counts = taken.is_none_or(|at| self.counted.is_none_or(|last| at >= last));
        if counts {
            self.press();
            self.counted = Some(self.now);
        }
        let cooldown = match self.circuit {
            Circuit::Healthy { streak } if counts => {
                let streak = if self.throttle == MOST_THROTTLE { streak + 1 } else { 0 };
                self.circuit = Circuit::Healthy { streak };
                (streak == 3).then_some(secs(5))
            }
            Circuit::Probing { grant, cooldown, .. } if Self::decides(of, grant) => {
                Some((cooldown * 2).min(secs(20)))
            }
            _ => None,
        };
        if let Some(cooldown) = cooldown {
            self.circuit = Circuit::Blocked { until: self.now + cooldown, cooldown };
        }
    }

    fn succeed(&mut self, of: Option<usize>) {
        if self.throttle > 0 {
            if self.pressed.is_none_or(|last| self.now - last >= secs(300)) {
                self.throttle = self.throttle.saturating_sub(5);
            } else {
                self.successes += 1;
                if self.successes == 3 {
                    self.successes = 0;
                    self.throttle = self.throttle.saturating_sub(2);
                }
            }
            if self.throttle == 0 {
                self.successes = 0;
            }
        }
        match self.circuit {
            Circuit::Probing { grant, .. } if !Self::decides(of, grant) => {}
            Circuit::Blocked { .. } => {}
            _ => self.circuit = Circuit::Healthy { streak: 0 },
        }
    }

    /// The work under this grant came to nothing, as far as anybody said.
    fn lose(&mut self, of: usize) {
        if let Circuit::Probing { grant, since, cooldown } = self.circuit
            && grant == of
        {
            self.circuit = Circuit::Blocked { until: since, cooldown };
        }
    }

    fn ask(&mut self, by: usize) {
        let shut = match self.circuit {
            Circuit::Healthy { .. } => false,
            Circuit::Blocked { until, .. } => self.now < until,
            Circuit::Probing { .. } => true,
        };
        let room = self.slots.len() < MAX;
        match self.admissions[by].try_admit(Demand::new().permit(&self.window)) {
            Ok(grant) => {
                assert!(!shut && room, "{:?}, {} slots", self.circuit, self.slots.len());
                let number = self.grants.len();
                self.slots.push((self.now, number));
                if let Circuit::Blocked { cooldown, .. } = self.circuit {
                    self.circuit = Circuit::Probing { grant: number, since: self.now, cooldown };
                }
                self.grants.push(Granted { grant, at: self.now, settled: false, reported: false });
            }
            Err(TryAdmitError::Admit(AdmitError::Refused { .. })) => {
                assert!(shut, "{:?}", self.circuit);
            }
            Err(TryAdmitError::WouldWait { .. }) => assert!(!shut && !room, "{:?}", self.circuit),
            Err(other) => panic!("{other}"),
        }
    }

    fn step(&mut self, step: &Step) {
        let count = self.grants.len();
        let (Step::Success(of)
        | Step::Failure(of)
        | Step::Release(of)
        | Step::ReleaseOne(of)
        | Step::Rollback(of)) = step
        else {
            match step {
                Step::Try(by) => self.ask(*by),
                Step::DirectSuccess => {
                    self.window.record_success();
                    self.succeed(None);
                }
                Step::DirectFailure => {
                    self.window.record_429();
                    self.fail(None);
                }
                Step::Advisory => {
                    self.window.record_advisory_pressure();
                    self.press();
                }
                _ => {}
            }
            return;
        };
        let Some(of) = (count > 0).then(|| count - 1 - of % count) else { return };
        let Granted { grant, settled, reported, .. } = &mut self.grants[of];
        let open = !*settled;
        match step {
            Step::Success(_) => {
                assert_eq!(grant.report_success(&self.window), open);
                if open {
                    *reported = true;
                    self.succeed(Some(of));
                }
            }
            Step::Failure(_) => {
                let failure = UpstreamFailure::status(503, "geocoder", "");
                assert_eq!(grant.report_failure(&self.window, &failure), open);
                if open {
                    *reported = true;
                    self.fail(Some(of));
                }
            }
            Step::ReleaseOne(_) => assert!(!grant.release_one(&self.window), "time brings it back"),
            Step::Release(_) => {
                assert_eq!(grant.release(), open);
                *settled = true;
                if open && !*reported {
                    self.lose(of);
                }
            }
            _ => {
                assert_eq!(grant.rollback(), open);
                *settled = true;
                if open {
                    self.lose(of);
                    self.slots.retain(|(_, by)| *by != of);
                }
            }
        }
    }

    fn check(&self) {
        let status = self.window.status();
        let (circuit, left) = match self.circuit {
            Circuit::Healthy { .. } => (CircuitState::Healthy, Duration::ZERO),
            Circuit::Probing { .. } => (CircuitState::Probing, Duration::ZERO),
            Circuit::Blocked { until, .. } => {
                (CircuitState::Blocked, until.saturating_duration_since(self.now))
            }
        };
        assert_eq!((status.circuit, status.cooldown_remaining), (circuit, left));
        assert_eq!((status.throttle * 10.0).round() as u32, self.throttle);
        assert_eq!(status.available as usize, MAX.saturating_sub(self.slots.len()));
        for admission in &self.admissions {
            admission.check();
        }
    }
}

proptest! {
    #[test]
    fn a_window_and_its_circuit_are_what_the_guide_says_of_them(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            for step in &steps {
                if let Step::Pass(span) = step {
                    advance(millis(*span)).await;
                }
                world.pass();
                world.step(step);
                world.pass();
                world.check();
            }
        });
    }
}
