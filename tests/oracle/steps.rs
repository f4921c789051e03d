//! What can happen: drawn from a seed, and small enough to be read when it fails.

use std::time::Duration;

use admit::testing::Draw;
use admit::{Amount, Limits, UpstreamFailure, WindowConfig};

use crate::switch::Position;

/// What one job wants of one account, by position.
pub(crate) type Part = (usize, Amount);

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Gate(u32),
    Bucket(Limits),
    Window(WindowConfig),
    Switch(u32),
}

#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) tenths: u64,
    pub(crate) progress_after: Option<Duration>,
}

/// What a case begins with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) kinds: Vec<Kind>,
    pub(crate) memory: Option<Memory>,
    pub(crate) max_waiting: usize,
    /// How many the monitor looks at in one hold, where that is not as many as it does for its hosts.
    pub(crate) looks: Option<usize>,
    /// Demands that come again and again.
    pub(crate) templates: Vec<Vec<Part>>,
    /// How often nothing arrives, of ten.
    pub(crate) calm: u64,
}

/// Something that happens to an account other than by a job.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Resize(u32),
    Limits(Limits),
    Success,
    Failure(UpstreamFailure),
    Pressure,
    Turn(Position),
}

/// One thing that happens. Jobs, grants and the parts of a grant are named by a number, taken modulo
/// those there are.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Admit {
        parts: Want,
        within: Option<u64>,
        with_token: bool,
    },
    TryAdmit {
        parts: Want,
    },
    /// Whoever has an outcome takes it.
    Collect,
    /// A future is dropped, in the line or landed.
    Leave(usize),
    /// A token is cancelled, and its job polled.
    Cancel(usize),
    Release(usize),
    Rollback(usize),
    DropGrant(usize),
    ReleaseOne(usize, usize),
    Reconcile(usize, usize, u64),
    Report(usize, usize, Option<UpstreamFailure>),
    ReportAll(usize, Option<UpstreamFailure>),
    Change(usize, Change),
    /// A reading of memory, in tenths of a percent.
    Memory(u64),
    /// Milliseconds.
    Advance(u64),
}

/// A demand: one of the templates, or one of its own.
#[derive(Clone, Debug)]
pub(crate) enum Want {
    Template(usize),
    Own(Vec<Part>),
}

/// A step: what happens, and whether the evaluator runs before the next.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) op: Op,
    pub(crate) rests: bool,
}

pub(crate) fn setup(draw: &mut Draw) -> Setup {
    let mut kinds = Vec::new();
    for _ in 0..draw.between(1..=2) {
        kinds.push(Kind::Gate(draw.between(1..=5) as u32));
    }
    for _ in 0..draw.between(1..=2) {
        kinds.push(Kind::Bucket(limits(draw)));
    }
    for _ in 0..draw.between(0..=2) {
        kinds.push(Kind::Window(window(draw)));
    }
    if !draw.one_in(3) {
        kinds.push(Kind::Switch(draw.between(1..=3) as u32));
    }
    let memory = draw.one_in(2).then(|| Memory {
        tenths: draw.between(700..=960),
        progress_after: draw.one_in(3).then(|| Duration::from_millis(draw.between(100..=20_000))),
    });
    let max_waiting = if draw.one_in(8) { draw.between(0..=12) as usize } else { usize::MAX };
    let looks = draw.one_in(2).then(|| draw.between(1..=8) as usize);
    let templates = (0..draw.between(1..=5)).map(|_| parts(&kinds, draw)).collect();
    let calm = draw.between(4..=8);
    Setup { kinds, memory, max_waiting, looks, templates, calm }
}

fn limits(draw: &mut Draw) -> Limits {
    Limits::per_minute(draw.between(1..=12) as u32, draw.between(3..=40))
}

fn window(draw: &mut Draw) -> WindowConfig {
    let initial_cooldown = Duration::from_millis(draw.between(100..=20_000));
    WindowConfig {
        max: draw.between(1..=5) as u32,
        per: Duration::from_millis(draw.between(1..=10_000)),
        max_throttle: draw.between(0..=2) as f64,
        successes_per_decrease: draw.between(1..=3) as u32,
        failures_to_open: draw.between(1..=3) as u32,
        initial_cooldown,
        max_cooldown: initial_cooldown * draw.between(1..=4) as u32,
        probe_timeout: (!draw.one_in(3)).then(|| Duration::from_millis(draw.between(100..=30_000))),
        max_hold: Duration::from_millis(draw.between(0..=1) * draw.between(1..=20_000)),
    }
}

/// A demand over one to six accounts.
fn parts(kinds: &[Kind], draw: &mut Draw) -> Vec<Part> {
    let mut left: Vec<usize> = (0..kinds.len()).collect();
    let most = if draw.one_in(3) { 6 } else { 2 };
    let count = draw.between(1..=most).min(left.len() as u64);
    (0..count)
        .map(|_| {
            let account = left.swap_remove(any_of(left.len(), draw));
            (account, amount(&kinds[account], draw))
        })
        .collect()
}

/// Small amounts, ones that just fit, and a few that never can.
fn amount(kind: &Kind, draw: &mut Draw) -> Amount {
    let permits = |draw: &mut Draw, most: u32| {
        let n = match draw.between(0..=79) {
            0 => u64::from(most) + 1,
            1..=4 => u64::from(most),
            5..=7 => 0,
            _ => draw.between(1..=u64::from(most.div_ceil(2))),
        };
        Amount::permits(n as u32)
    };
    match kind {
        Kind::Gate(n) | Kind::Switch(n) => permits(draw, *n),
        Kind::Window(config) => permits(draw, config.max),
        Kind::Bucket(limits) => Amount {
            requests: if draw.one_in(5) { draw.between(0..=3) as u32 } else { 1 },
            units: match draw.between(0..=79) {
                0 => limits.tokens + 1,
                1..=3 => limits.tokens,
                4..=6 => 0,
                _ => draw.between(1..=limits.tokens.div_ceil(2)),
            },
        },
    }
}

fn failure(draw: &mut Draw) -> UpstreamFailure {
    let failure = match draw.between(0..=3) {
        0 => UpstreamFailure::status(500, "a service", "broken"),
        1 => UpstreamFailure::status(529, "a service", "overloaded"),
        _ => UpstreamFailure::status(429, "a service", "slow down"),
    };
    if draw.one_in(3) {
        failure.with_retry_after(Duration::from_millis(draw.between(1..=30_000)))
    } else {
        failure
    }
}

fn report(draw: &mut Draw) -> Option<UpstreamFailure> {
    if draw.one_in(3) { Some(failure(draw)) } else { None }
}

fn change(kind: &Kind, draw: &mut Draw) -> Change {
    match kind {
        Kind::Gate(n) => Change::Resize(draw.between(1..=u64::from(*n) + 1) as u32),
        Kind::Bucket(_) if draw.one_in(2) => Change::Limits(limits(draw)),
        Kind::Switch(_) => Change::Turn(match draw.between(0..=11) {
            0 => Position::Broken,
            1..=3 => Position::Closed,
            _ => Position::Open,
        }),
        Kind::Bucket(_) | Kind::Window(_) => match draw.between(0..=5) {
            0 => Change::Failure(failure(draw)),
            1 => Change::Pressure,
            _ => Change::Success,
        },
    }
}

pub(crate) fn step(setup: &Setup, draw: &mut Draw) -> Step {
    let any = |draw: &mut Draw| draw.between(0..=255) as usize;
    let want = |draw: &mut Draw| {
        if draw.one_in(2) {
            Want::Template(any_of(setup.templates.len(), draw))
        } else if draw.one_in(40) {
            Want::Own(Vec::new())
        } else {
            Want::Own(parts(&setup.kinds, draw))
        }
    };
    let op = if draw.between(0..=9) >= setup.calm {
        if draw.one_in(8) {
            Op::TryAdmit { parts: want(draw) }
        } else {
            let within = match draw.between(0..=9) {
                0 => Some(0),
                1..=3 => Some(draw.between(1..=40_000)),
                _ => None,
            };
            Op::Admit { parts: want(draw), within, with_token: draw.one_in(4) }
        }
    } else {
        match draw.between(0..=49) {
            0..=7 => Op::Collect,
            8 => Op::Leave(any(draw)),
            9 => Op::Cancel(any(draw)),
            10..=12 => Op::Release(any(draw)),
            13..=14 => Op::Rollback(any(draw)),
            15..=20 => Op::DropGrant(any(draw)),
            21..=22 => Op::ReleaseOne(any(draw), any(draw)),
            23..=25 => Op::Reconcile(any(draw), any(draw), draw.between(0..=30)),
            26..=28 => Op::Report(any(draw), any(draw), report(draw)),
            29..=30 => Op::ReportAll(any(draw), report(draw)),
            31..=34 => {
                let account = any_of(setup.kinds.len(), draw);
                Op::Change(account, change(&setup.kinds[account], draw))
            }
            35..=36 if setup.memory.is_some() => Op::Memory(draw.between(600..=990)),
            _ => Op::Advance(match draw.between(0..=3) {
                0 => 1,
                1 => draw.between(1..=50),
                2 => draw.between(100..=5_000),
                _ => draw.between(5_000..=40_000),
            }),
        }
    };
    Step { op, rests: !draw.one_in(4) }
}

fn any_of(n: usize, draw: &mut Draw) -> usize {
    draw.between(0..=n as u64 - 1) as usize
}
