//! What is known of a case without asking the monitor: who asked, how limits stand, what lives.

use std::collections::BTreeSet;
use std::fmt;

use proptest::prelude::*;
use proptest_state_machine::ReferenceStateMachine;

use crate::setup::{BUCKETS, GATES, LANES, OWN, Part, Setup, WINDOW, setup};
use crate::transition::{Job, Transition, is_possible, transitions};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Running,
    Unstarted,
    Stopped,
}

#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) setup: Setup,
    pub(crate) gates: [u32; 2],
    pub(crate) buckets: [(u32, u64); 2],
    pub(crate) own: u32,
    /// Whether the own gate panics somewhere at present, and whether it ever did.
    pub(crate) panics: bool,
    pub(crate) has_panicked: bool,
    /// Whether it ever was told to panic where something is given back to it.
    pub(crate) spoilt: bool,
    pub(crate) life: Life,
    /// Whether a runtime was ever lost.
    pub(crate) lost: bool,
    /// Who asked and was not dropped since.
    pub(crate) jobs: BTreeSet<Job>,
    pub(crate) next: Job,
}

impl Model {
    pub(crate) fn new(setup: Setup) -> Self {
        Self {
            gates: setup.gates,
            buckets: setup.buckets,
            own: setup.own,
            setup,
            panics: false,
            has_panicked: false,
            spoilt: false,
            life: Life::Running,
            lost: false,
            jobs: BTreeSet::new(),
            next: 0,
        }
    }

    /// The most of an account that can be granted at once: requests, units.
    pub(crate) fn most(&self, account: usize) -> (u32, u64) {
        let places = |n: u32| (n, u64::from(n));
        match account {
            at if at == GATES[0] => places(self.gates[0]),
            at if at == GATES[1] => places(self.gates[1]),
            at if at == BUCKETS[0] => self.buckets[0],
            at if at == BUCKETS[1] => self.buckets[1],
            WINDOW => (self.setup.window.max, u64::MAX),
            OWN => places(self.own),
            at if at == LANES[2] => self.setup.lane_limits,
            _ => places(self.setup.lane_places),
        }
    }

    /// Whether an account of these can never grant what is wanted of it. The own gate never says so.
    pub(crate) fn can_never_fit(&self, parts: &[Part]) -> bool {
        parts.iter().any(|&(account, amount)| {
            let (requests, units) = self.most(account);
            account != OWN && (amount.requests > requests || amount.units > units)
        })
    }
}

/// A failing case begins with its limits only.
impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.setup.fmt(f)
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Transition;

    fn init_state() -> BoxedStrategy<Self> {
        setup().prop_map(Self::new).boxed()
    }

    fn transitions(state: &Self) -> BoxedStrategy<Transition> {
        transitions(state)
    }

    fn preconditions(state: &Self, transition: &Transition) -> bool {
        is_possible(state, transition)
    }

    fn apply(mut state: Self, transition: &Transition) -> Self {
        match *transition {
            Transition::Admit { job, .. } | Transition::TryAdmit { job, .. } => {
                state.jobs.insert(job);
                state.next = job + 1;
            }
            Transition::Leave(job) => {
                state.jobs.remove(&job);
            }
            Transition::Resize(at, n) => state.gates[at - GATES[0]] = n,
            Transition::SetLimits(at, requests, tokens) => {
                state.buckets[at - BUCKETS[0]] = (requests, tokens);
            }
            Transition::ResizeOwn(n) => state.own = n,
            Transition::Panic(method, _) => {
                state.panics = true;
                state.has_panicked = true;
                state.spoilt |= method == "give";
            }
            Transition::Calm => state.panics = false,
            Transition::Stop => state.life = Life::Stopped,
            Transition::LoseRuntime => {
                state.life = Life::Unstarted;
                state.lost = true;
            }
            Transition::Start => state.life = Life::Running,
            _ => {}
        }
        state
    }
}
