//! What can happen, each small enough to be read when a case fails.

use std::fmt;

use admit::Amount;
use proptest::prelude::*;
use proptest::sample::select;

use crate::model::{Life, Model};
use crate::setup::{ACCOUNTS, BUCKETS, GATES, Kind, LANES, NAMES, OWN, Part, WINDOW, kind};

pub(crate) type Job = usize;

#[derive(Clone)]
pub(crate) enum Transition {
    Admit {
        job: Job,
        parts: Vec<Part>,
        within: Option<u64>,
    },
    TryAdmit {
        job: Job,
        parts: Vec<Part>,
    },
    /// Whoever was woken takes its outcome.
    Collect,
    /// Polls one that may not have been woken.
    Poll(Job),
    /// Drops what there is of a job: its future, in the line or landed, or its grant.
    Leave(Job),
    /// Cancels its token; it hears of it when it is polled.
    Cancel(Job),
    Release(Job),
    Rollback(Job),
    ReleaseOne(Job, usize),
    Reconcile(Job, usize, u64),
    /// A report through a grant: a success, or a failure of this status.
    Report(Job, usize, Option<u16>),
    /// The same, told to the account itself.
    Record(usize, Option<u16>),
    Resize(usize, u32),
    SetLimits(usize, u32, u64),
    /// The own gate gets this size, and says so.
    ResizeOwn(u32),
    /// The own gate panics in this method from now on, for everybody or for whoever wants so many.
    Panic(&'static str, Option<u32>),
    /// The own gate panics no more.
    Calm,
    /// What memory reads from now on, in tenths of a percent.
    Memory(u64),
    Stop,
    /// The runtime under the evaluator goes away; another is there, and not used yet.
    LoseRuntime,
    Start,
    /// The evaluator does all it can without the clock.
    Rest,
    /// Milliseconds.
    Advance(u64),
}

/// The methods an account may panic in that are not read once and for all, but for `give`.
const METHODS: [&str; 11] = [
    "fits",
    "try_take",
    "earliest_fit",
    "reconcile",
    "settled",
    "on_success",
    "on_upstream_failure",
    "category",
    "capacity",
    "in_use",
    "indicator",
];

impl fmt::Debug for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = |account: &usize| NAMES[*account];
        let told = |status: &Option<u16>| {
            status.map_or_else(|| "a success".to_owned(), |status| format!("a {status}"))
        };
        match self {
            Self::Admit { job, parts, within } => {
                write!(f, "job {job} wants {}", List(parts))?;
                within.map_or(Ok(()), |ms| write!(f, " within {ms} ms"))
            }
            Self::TryAdmit { job, parts } => write!(f, "job {job} tries for {}", List(parts)),
            Self::Collect => write!(f, "whoever was woken is polled"),
            Self::Poll(job) => write!(f, "job {job} is polled"),
            Self::Leave(job) => write!(f, "job {job} is dropped"),
            Self::Cancel(job) => write!(f, "job {job} is cancelled"),
            Self::Release(job) => write!(f, "job {job} releases"),
            Self::Rollback(job) => write!(f, "job {job} rolls back"),
            Self::ReleaseOne(job, at) => write!(f, "job {job} gives back {}", on(at)),
            Self::Reconcile(job, at, used) => write!(f, "job {job} used {used} of {}", on(at)),
            Self::Report(job, at, status) => {
                write!(f, "job {job} reports {} of {}", told(status), on(at))
            }
            Self::Record(at, status) => write!(f, "{} is told {}", on(at), told(status)),
            Self::Resize(at, n) => write!(f, "{} has {n} places", on(at)),
            Self::SetLimits(at, requests, tokens) => {
                write!(f, "{} is limited to {requests}/{tokens}", on(at))
            }
            Self::ResizeOwn(n) => write!(f, "own has {n} places"),
            Self::Panic(method, None) => write!(f, "own panics in {method}"),
            Self::Panic(method, Some(n)) => write!(f, "own panics in {method} for {n}"),
            Self::Calm => write!(f, "own is calm"),
            Self::Memory(tenths) => write!(f, "memory reads {:.1} %", *tenths as f64 / 10.0),
            Self::Stop => write!(f, "stop"),
            Self::LoseRuntime => write!(f, "the runtime is lost"),
            Self::Start => write!(f, "start"),
            Self::Rest => write!(f, "rest"),
            Self::Advance(ms) => write!(f, "{ms} ms pass"),
        }
    }
}

struct List<'a>(&'a [Part]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return write!(f, "nothing");
        }
        for (index, &(account, amount)) in self.0.iter().enumerate() {
            let and = if index > 0 { " and " } else { "" };
            write!(f, "{and}{amount} of {}", NAMES[account])?;
        }
        Ok(())
    }
}

fn permits(at: usize, most: u32) -> impl Strategy<Value = Part> {
    prop_oneof![8 => 1..=2_u32, 2 => 1..=most, 1 => Just(0)]
        .prop_map(move |n| (at, Amount::permits(n)))
}

fn tokens(at: usize) -> impl Strategy<Value = Part> {
    (prop_oneof![8 => Just(1), 2 => 2..=4_u32, 1 => Just(0)], 0..=6_u64)
        .prop_map(move |(requests, units)| (at, Amount { requests, units }))
}

fn part() -> BoxedStrategy<Part> {
    prop_oneof![
        5 => select(&GATES[..]).prop_flat_map(|at| permits(at, 5)),
        4 => select(&BUCKETS[..]).prop_flat_map(tokens),
        3 => permits(WINDOW, 4),
        4 => permits(OWN, 3),
        2 => select(&LANES[..2]).prop_flat_map(|at| permits(at, 2)),
        1 => tokens(LANES[2]),
    ]
    .boxed()
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let some = |n| prop::collection::vec(part(), n);
    prop_oneof![10 => some(1..=1), 8 => some(2..=2), 4 => some(3..=4), 1 => some(0..=0)]
}

fn status() -> impl Strategy<Value = Option<u16>> {
    prop_oneof![2 => Just(None), 3 => Just(Some(429)), 1 => Just(Some(529)), 1 => Just(Some(500))]
}

/// Whatever can happen in a state.
pub(crate) fn transitions(model: &Model) -> BoxedStrategy<Transition> {
    let job = model.next;
    let mut any: Vec<(u32, BoxedStrategy<Transition>)> = vec![
        (
            22,
            (parts(), prop_oneof![6 => Just(None), 1 => Just(Some(0)), 3 => (1..=20_000_u64).prop_map(Some)])
                .prop_map(move |(parts, within)| Transition::Admit { job, parts, within })
                .boxed(),
        ),
        (4, parts().prop_map(move |parts| Transition::TryAdmit { job, parts }).boxed()),
        (8, Just(Transition::Collect).boxed()),
        (24, Just(Transition::Rest).boxed()),
        (
            12,
            prop_oneof![Just(1), 1..=50_u64, 100..=5_000_u64, 5_000..=70_000_u64]
                .prop_map(Transition::Advance)
                .boxed(),
        ),
        (3, (select(&GATES[..]), 1..=5_u32).prop_map(|(at, n)| Transition::Resize(at, n)).boxed()),
        (2, (1..=3_u32).prop_map(Transition::ResizeOwn).boxed()),
        (
            3,
            (select(&BUCKETS[..]), 1..=6_u32, 3..=24_u64)
                .prop_map(|(at, requests, tokens)| Transition::SetLimits(at, requests, tokens))
                .boxed(),
        ),
        (
            3,
            (select(&[WINDOW, BUCKETS[0], BUCKETS[1]][..]), status())
                .prop_map(|(at, status)| Transition::Record(at, status))
                .boxed(),
        ),
    ];
    if model.setup.memory.is_some() {
        any.push((5, (600..=990_u64).prop_map(Transition::Memory).boxed()));
    }
    if model.panics {
        any.push((6, Just(Transition::Calm).boxed()));
    } else {
        let whom = prop_oneof![3 => Just(None), 2 => (1..=2_u32).prop_map(Some)];
        // The gravest, as often as all others.
        let method = prop_oneof![Just("give"), select(&METHODS[..])];
        let panic = (method, whom);
        any.push((4, panic.prop_map(|(method, whom)| Transition::Panic(method, whom)).boxed()));
    }
    match model.life {
        Life::Running => {
            any.push((1, Just(Transition::LoseRuntime).boxed()));
            if model.next > 12 {
                any.push((1, Just(Transition::Stop).boxed()));
            }
        }
        Life::Unstarted => any.push((20, Just(Transition::Start).boxed())),
        Life::Stopped => {}
    }
    if !model.jobs.is_empty() {
        let jobs = || select(model.jobs.iter().copied().collect::<Vec<_>>());
        let accounts = || 0..ACCOUNTS;
        any.extend([
            (3, jobs().prop_map(Transition::Poll).boxed()),
            (12, jobs().prop_map(Transition::Leave).boxed()),
            (2, jobs().prop_map(Transition::Cancel).boxed()),
            (8, jobs().prop_map(Transition::Release).boxed()),
            (5, jobs().prop_map(Transition::Rollback).boxed()),
            (4, (jobs(), accounts()).prop_map(|(job, at)| Transition::ReleaseOne(job, at)).boxed()),
            (
                6,
                (jobs(), accounts(), prop_oneof![4 => 0..=8_u64, 1 => 0..=40_u64])
                    .prop_map(|(job, at, used)| Transition::Reconcile(job, at, used))
                    .boxed(),
            ),
            (
                8,
                (jobs(), accounts(), status())
                    .prop_map(|(job, at, status)| Transition::Report(job, at, status))
                    .boxed(),
            ),
        ]);
    }
    proptest::strategy::Union::new_weighted(any).boxed()
}

/// Whether a transition can happen in a state: shrinking takes out what others need.
pub(crate) fn is_possible(model: &Model, transition: &Transition) -> bool {
    use Transition as T;
    match transition {
        T::Admit { job, .. } | T::TryAdmit { job, .. } => *job >= model.next,
        T::Poll(job)
        | T::Leave(job)
        | T::Cancel(job)
        | T::Release(job)
        | T::Rollback(job)
        | T::ReleaseOne(job, _)
        | T::Reconcile(job, ..)
        | T::Report(job, ..) => model.jobs.contains(job),
        T::LoseRuntime => model.life == Life::Running,
        T::Start => model.life == Life::Unstarted,
        T::Stop => model.life != Life::Stopped,
        T::Record(at, _) => kind(*at) != Kind::Gate,
        _ => true,
    }
}
