//! A bucket against a second one that is written from the guide alone and kept to fractions.
//!
//! Budget, throttle, hold, debt, reconciliation and rollback at once, through grants of two
//! admissions and on the bucket itself.

use std::time::Duration;

use admit::{
    Admission, AdmitError, Amount, Demand, Grant, Limits, TokenBucket, TryAdmitError,
    UpstreamFailure,
};
use proptest::prelude::*;
use tokio::time::{Instant, advance};

/// Parts of a unit: the nanoseconds of a minute, times what a throttle may divide by.
const UNIT: i128 = 60_000_000_000 * FINE;
const FINE: i128 = 1 << 16;
const CALM: Duration = Duration::from_secs(300);

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Admit {
        second: bool,
        requests: u32,
        tokens: u64,
    },
    /// Of a grant, by its number.
    Success(usize),
    Failure(usize, Failed),
    Reconcile(usize, u64),
    Release(usize),
    Rollback(usize),
    Direct(Option<Failed>),
    Press(u32),
    Limits(u32, u64),
}

#[derive(Clone, Debug)]
struct Failed {
    status: u16,
    after: Option<u64>,
}

impl Failed {
    fn failure(&self) -> UpstreamFailure {
        let failure = UpstreamFailure::status(self.status, "m", "");
        match self.after {
            Some(secs) => failure.with_retry_after(Duration::from_secs(secs)),
            None => failure,
        }
    }

    /// In steps of 0.5.
    fn weight(&self) -> u32 {
        match (self.status, self.after) {
            (429, _) => 1,
            (529, _) | (503, Some(_)) => 3,
            _ => 0,
        }
    }
}

fn failed() -> impl Strategy<Value = Failed> {
    let status = prop_oneof![Just(429_u16), Just(529), Just(503), Just(500), Just(404), Just(402)];
    let after =
        prop_oneof![4 => Just(None), 2 => (0_u64..40).prop_map(Some), 1 => Just(Some(u64::MAX))];
    (status, after).prop_map(|(status, after)| Failed { status, after })
}

fn step() -> impl Strategy<Value = Step> {
    let pass = prop_oneof![
        Just(0_u64),
        Just(1),
        1_u64..1_000_000_000,
        1_000_000_000_u64..90_000_000_000,
        Just(300_000_000_000),
        Just(700_000_000_000),
    ];
    let tokens = prop_oneof![Just(0_u64), 1_u64..2_000, 1_u64..200_000];
    let cap = prop_oneof![Just(1_u64), 1_u64..2_000, Just(60_000), Just(1_000_000_000_000)];
    prop_oneof![
        6 => pass.prop_map(Step::Pass),
        8 => (any::<bool>(), 0_u32..4, tokens.clone())
            .prop_map(|(second, requests, tokens)| Step::Admit { second, requests, tokens }),
        4 => (0_usize..12).prop_map(Step::Success),
        3 => (0_usize..12, failed()).prop_map(|(of, failed)| Step::Failure(of, failed)),
        4 => (0_usize..12, tokens).prop_map(|(of, used)| Step::Reconcile(of, used)),
        2 => (0_usize..12).prop_map(Step::Release),
        2 => (0_usize..12).prop_map(Step::Rollback),
        2 => proptest::option::of(failed()).prop_map(Step::Direct),
        1 => (0_u32..25).prop_map(Step::Press),
        2 => (1_u32..700, cap).prop_map(|(requests, tokens)| Step::Limits(requests, tokens)),
    ]
}

/// A level between two bounds: what the division by a throttle leaves open, and no more.
#[derive(Debug)]
struct Exact {
    cap: i128,
    low: i128,
    high: i128,
}

impl Exact {
    const fn full(cap: i128) -> Self {
        Self { cap, low: cap * UNIT, high: cap * UNIT }
    }

    fn clamp(&mut self) {
        self.low = self.low.min(self.cap * UNIT);
        self.high = self.high.min(self.cap * UNIT);
    }

    /// `tenths` is ten plus the throttle's.
    fn refill(&mut self, nanos: i128, tenths: i128) {
        let scaled = self.cap * nanos * FINE * 10;
        self.low += scaled / tenths;
        self.high += (scaled + tenths - 1) / tenths;
        self.clamp();
    }

    fn change(&mut self, units: i128) {
        self.low += units * UNIT;
        self.high += units * UNIT;
        self.clamp();
    }

    /// The rounding that is allowed a bucket when its rate changes: a part of a part of a unit.
    fn blur(&mut self) {
        self.low -= FINE;
    }

    /// Whether so many are there; `None` on the very edge.
    fn covers(&self, units: i128) -> Option<bool> {
        match (self.low >= units * UNIT, self.high >= units * UNIT) {
            (all, any) if all == any => Some(all),
            _ => None,
        }
    }
}

struct Charged {
    grant: Option<Grant>,
    at: Instant,
    requests: i128,
    tokens: i128,
    released: bool,
    gone: bool,
}

struct World {
    bucket: std::sync::Arc<TokenBucket>,
    admissions: [Admission; 2],
    grants: Vec<Charged>,
    requests: Exact,
    tokens: Exact,
    /// Ten plus the throttle's.
    tenths: i128,
    successes: u32,
    pressed: Option<Instant>,
    counted: Option<Instant>,
    held: Option<Instant>,
    now: Instant,
    decided: usize,
}

impl World {
    fn new() -> Self {
        let limits = Limits::per_minute(60, 60_000);
        Self {
            bucket: TokenBucket::new("m", limits).unwrap(),
            admissions: [(); 2].map(|()| Admission::builder().start().unwrap()),
            grants: Vec::new(),
            requests: Exact::full(60),
            tokens: Exact::full(60_000),
            tenths: 10,
            successes: 0,
            pressed: None,
            counted: None,
            held: None,
            now: Instant::now(),
            decided: 0,
        }
    }

    fn pass(&mut self) {
        let now = Instant::now();
        let nanos = (now - self.now).as_nanos() as i128;
        self.now = now;
        self.requests.refill(nanos, self.tenths);
        self.tokens.refill(nanos, self.tenths);
    }

    fn is_held(&self) -> bool {
        self.held.is_some_and(|until| self.now < until)
    }

    fn throttle_to(&mut self, tenths: i128) {
        if tenths != self.tenths {
            self.requests.blur();
            self.tokens.blur();
            self.tenths = tenths;
        }
    }

    fn press(&mut self, weight: u32) {
        if weight > 0 {
            self.counted = Some(self.now);
            self.pressed = Some(self.now);
            self.throttle_to((self.tenths + 5 * i128::from(weight)).min(100));
        }
    }

    fn fail(&mut self, failed: &Failed, taken: Option<Instant>) {
        let asked = Duration::from_secs(failed.after.unwrap_or(0).min(600));
        if !asked.is_zero() {
            self.held = self.held.max(Some(self.now + asked));
        }
        if taken.is_none_or(|at| self.counted.is_none_or(|last| at >= last)) {
            self.press(failed.weight());
        }
    }

    fn succeed(&mut self) {
        if self.tenths == 10 {
            return;
        }
        if self.pressed.is_none_or(|last| self.now - last >= CALM) {
            self.throttle_to((self.tenths - 5).max(10));
        } else {
            self.successes += 1;
            if self.successes == 3 {
                self.successes = 0;
                self.throttle_to((self.tenths - 2).max(10));
            }
        }
        if self.tenths == 10 {
            self.successes = 0;
        }
    }

    fn admit(&mut self, second: bool, requests: u32, tokens: u64) {
        let demand = Demand::new().add(&self.bucket, Amount { requests, units: tokens });
        let admission = &self.admissions[usize::from(second)];
        let answer = admission.try_admit(demand.clone());
        let (r, t) = (i128::from(requests), i128::from(tokens));
        if r > self.requests.cap || t > self.tokens.cap {
            assert!(
                matches!(answer, Err(TryAdmitError::Admit(AdmitError::Refused { .. }))),
                "{answer:?}"
            );
            return;
        }
        let fits = match (self.is_held(), self.requests.covers(r), self.tokens.covers(t)) {
            (true, _, _) | (_, Some(false), _) | (_, _, Some(false)) => Some(false),
            (false, Some(true), Some(true)) => Some(true),
            _ => None,
        };
        if let Some(fits) = fits {
            self.decided += 1;
            assert_eq!(answer.is_ok(), fits, "{requests} and {tokens}: {answer:?}");
        }
        if let Ok(grant) = answer {
            self.requests.change(-r);
            self.tokens.change(-t);
            self.grants.push(Charged {
                grant: Some(grant),
                at: self.now,
                requests: r,
                tokens: t,
                released: false,
                gone: false,
            });
        } else if let Some(at) = answer.unwrap_err().retry_at() {
            // By then, and not a nanosecond sooner but for the rounding, everything has refilled.
            let nanos = (at - self.now).as_nanos() as i128;
            if self.held != Some(at) {
                let refilled = |level: &Exact, nanos: i128| {
                    level.high + (level.cap * nanos * FINE * 10 + self.tenths - 1) / self.tenths
                };
                assert!(refilled(&self.requests, nanos) >= r * UNIT, "too early");
                assert!(refilled(&self.tokens, nanos) >= t * UNIT, "too early");
                let sooner =
                    |level: &Exact| level.low + level.cap * (nanos - 1) * FINE * 10 / self.tenths;
                let both = sooner(&self.requests) >= r * UNIT && sooner(&self.tokens) >= t * UNIT;
                assert!(!both, "it fits sooner than {nanos} ns");
            }
            assert!(self.held.is_none_or(|until| until <= self.now || at >= until));
        }
    }

    fn step(&mut self, step: &Step) {
        self.pass();
        let count = self.grants.len();
        let pick = |of: &usize| (count > 0).then(|| count - 1 - of % count);
        match step {
            Step::Pass(_) => {}
            Step::Admit { second, requests, tokens } => self.admit(*second, *requests, *tokens),
            Step::Success(of) => {
                let Some(of) = pick(of) else { return };
                let open = !self.grants[of].released && !self.grants[of].gone;
                let heard = self.grants[of].grant.as_ref().unwrap().report_success(&self.bucket);
                assert_eq!(heard, open);
                if open {
                    self.succeed();
                }
            }
            Step::Failure(of, failed) => {
                let Some(of) = pick(of) else { return };
                let open = !self.grants[of].released && !self.grants[of].gone;
                let grant = self.grants[of].grant.as_ref().unwrap();
                assert_eq!(grant.report_failure(&self.bucket, &failed.failure()), open);
                if open {
                    self.fail(failed, Some(self.grants[of].at));
                }
            }
            Step::Reconcile(of, used) => {
                let Some(of) = pick(of) else { return };
                let charged = &mut self.grants[of];
                let heard = charged.grant.as_ref().unwrap().reconcile(&self.bucket, *used);
                assert_eq!(heard, !charged.gone);
                if heard {
                    self.tokens.change(charged.tokens - i128::from(*used));
                    charged.tokens = i128::from(*used);
                }
            }
            Step::Release(of) => {
                let Some(of) = pick(of) else { return };
                let charged = &mut self.grants[of];
                let settled = charged.grant.as_ref().unwrap().release();
                assert_eq!(settled, !charged.released && !charged.gone);
                charged.released = true;
            }
            Step::Rollback(of) => {
                let Some(of) = pick(of) else { return };
                let charged = &mut self.grants[of];
                let settled = charged.grant.as_ref().unwrap().rollback();
                assert_eq!(settled, !charged.released && !charged.gone);
                if settled {
                    charged.gone = true;
                    self.requests.change(charged.requests);
                    self.tokens.change(charged.tokens);
                }
            }
            Step::Direct(None) => {
                self.bucket.record_success();
                self.succeed();
            }
            Step::Direct(Some(failed)) => {
                self.bucket.record_failure(&failed.failure());
                self.fail(failed, None);
            }
            Step::Press(weight) => {
                self.bucket.record_backpressure(*weight);
                self.press(*weight);
            }
            Step::Limits(requests, tokens) => {
                self.bucket.set_limits(Limits::per_minute(*requests, *tokens)).unwrap();
                for (level, cap) in [
                    (&mut self.requests, i128::from(*requests)),
                    (&mut self.tokens, i128::from(*tokens)),
                ] {
                    level.blur();
                    level.cap = cap;
                    level.clamp();
                }
            }
        }
    }

    fn check(&self) {
        let status = self.bucket.status();
        assert_eq!((status.throttle * 10.0).round() as i128, self.tenths - 10);
        assert_eq!(status.held_until, self.held.filter(|_| self.is_held()));
        let whole = |parts: i128| parts.max(0) / UNIT;
        let owed =
            |parts: i128| (-parts).max(0).div_euclid(UNIT) + i128::from((-parts).max(0) % UNIT > 0);
        let within = |name: &str, told: i128, one: i128, other: i128| {
            assert!(
                (one.min(other)..=one.max(other)).contains(&told),
                "{name} {told}: {one} to {other}"
            );
        };
        let (r, t) = (&self.requests, &self.tokens);
        within("requests", status.available_requests.into(), whole(r.low), whole(r.high));
        within("tokens", status.available_tokens.into(), whole(t.low), whole(t.high));
        within("debt", status.debt_tokens.into(), owed(t.low), owed(t.high));
        assert!(t.high - t.low < UNIT / 1_000, "the model itself stays sharp");
        for admission in &self.admissions {
            admission.check();
        }
    }
}

proptest! {
    #[test]
    fn a_bucket_is_what_the_guide_says_of_it_to_a_thousandth_of_a_token(
        steps in prop::collection::vec(step(), 1..90)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            for step in &steps {
                if let Step::Pass(nanos) = step {
                    advance(Duration::from_nanos(*nanos)).await;
                }
                world.step(step);
                world.check();
            }
        });
    }
}
