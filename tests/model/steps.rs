//! What can happen: drawn at random, and small enough to be read when it fails.

use crate::switch::Position;
use proptest::prelude::*;

use crate::reference::{Ms, Want};

/// The accounts of a case, by position.
pub(crate) const GATES: [usize; 2] = [0, 1];
pub(crate) const BUCKETS: [usize; 2] = [2, 3];
pub(crate) const SWITCH: usize = 4;
pub(crate) const TURNSTILE: usize = 5;
pub(crate) const ACCOUNTS: usize = 6;

/// The limits a case begins with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) gates: [u32; 2],
    pub(crate) buckets: [(u32, u64); 2],
    pub(crate) switch: u32,
    pub(crate) gap: Ms,
    pub(crate) max_waiting: usize,
}

/// What one job wants of one account, by position.
pub(crate) type Part = (usize, Want);

/// An account as seen from a grant: one of its entries, or any account at all.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of {
    Entry(usize),
    Account(usize),
}

/// One thing that happens. Jobs and grants are named by a number, taken modulo those there are.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Admit {
        parts: Vec<Part>,
        within: Option<Ms>,
    },
    TryAdmit {
        parts: Vec<Part>,
    },
    /// Polls a job that has not got its outcome yet.
    Poll(usize),
    /// Drops one, in the line or landed.
    Leave(usize),
    /// Cancels the token of one; it hears of it when it is polled.
    Cancel(usize),
    Release(usize),
    Rollback(usize),
    DropGrant(usize),
    ReleaseOne(usize, Of),
    Reconcile(usize, Of, u64),
    Resize(usize, u32),
    SetLimits(usize, u32, u64),
    Turn(Position),
    Advance(Ms),
}

/// A step: what happens, and whether the evaluator runs before the next.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) op: Op,
    pub(crate) rest: bool,
}

pub(crate) fn setup() -> impl Strategy<Value = Setup> {
    let bucket = || (1..=6_u32, 3..=20_u64);
    (
        [1..=4_u32, 1..=4],
        (bucket(), bucket()),
        1..=3_u32,
        prop_oneof![Just(1), 1..=9_000_u64],
        prop_oneof![4 => Just(usize::MAX), 1 => 0..=6_usize],
    )
        .prop_map(|(gates, buckets, switch, gap, max_waiting)| Setup {
            gates,
            buckets: [buckets.0, buckets.1],
            switch,
            gap,
            max_waiting,
        })
}

fn part() -> impl Strategy<Value = Part> {
    let permits = |n: u32| Want { requests: n, units: u64::from(n) };
    prop_oneof![
        8 => (0..=1_usize, prop_oneof![8 => 1..=2_u32, 3 => 3..=5_u32, 1 => Just(0)])
            .prop_map(move |(gate, n)| (GATES[gate], permits(n))),
        6 => (0..=1_usize, prop_oneof![8 => Just(1), 2 => 2..=4_u32, 1 => Just(0)], 0..=12_u64)
            .prop_map(|(bucket, requests, units)| (BUCKETS[bucket], Want { requests, units })),
        2 => (0..=3_u32).prop_map(move |n| (SWITCH, permits(n))),
        2 => prop_oneof![8 => Just(1), 1 => Just(2), 1 => Just(0)]
            .prop_map(move |n| (TURNSTILE, permits(n))),
    ]
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let some = |n| prop::collection::vec(part(), n);
    prop_oneof![10 => some(1..=1), 8 => some(2..=2), 4 => some(3..=4), 1 => some(0..=0)]
}

fn within() -> impl Strategy<Value = Option<Ms>> {
    prop_oneof![6 => Just(None), 1 => Just(Some(0)), 3 => (1..=20_000_u64).prop_map(Some)]
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let any = || 0..64_usize;
    let of_grant = || prop_oneof![6 => (0..4_usize).prop_map(Of::Entry), 1 => (0..ACCOUNTS).prop_map(Of::Account)];
    let op = prop_oneof![
        5 => any().prop_map(Op::Poll),
        14 => (parts(), within()).prop_map(|(parts, within)| Op::Admit { parts, within }),
        3 => parts().prop_map(|parts| Op::TryAdmit { parts }),
        3 => any().prop_map(Op::Leave),
        2 => any().prop_map(Op::Cancel),
        5 => any().prop_map(Op::Release),
        3 => any().prop_map(Op::Rollback),
        2 => any().prop_map(Op::DropGrant),
        2 => (any(), of_grant()).prop_map(|(job, account)| Op::ReleaseOne(job, account)),
        5 => (any(), of_grant(), prop_oneof![4 => 0..=8_u64, 1 => 0..=40_u64])
            .prop_map(|(job, account, used)| Op::Reconcile(job, account, used)),
        2 => (0..=1_usize, 1..=5_u32).prop_map(|(gate, n)| Op::Resize(GATES[gate], n)),
        2 => (0..=1_usize, 1..=6_u32, 3..=24_u64)
            .prop_map(|(bucket, requests, tokens)| Op::SetLimits(BUCKETS[bucket], requests, tokens)),
        2 => prop_oneof![3 => Just(Position::Open), 2 => Just(Position::Closed), 1 => Just(Position::Broken)]
            .prop_map(Op::Turn),
        5 => prop_oneof![Just(1), 1..=50_u64, 100..=5_000_u64, 5_000..=70_000_u64]
            .prop_map(Op::Advance),
    ];
    (op, prop::bool::weighted(0.75)).prop_map(|(op, rest)| Step { op, rest })
}
