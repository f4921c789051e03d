//! The account contract as a test, for authors of accounts.

mod coverage;
mod sequence;
mod sizes;
mod subject;
mod twins;
mod waiting;
mod words;

use std::error::Error;
use std::fmt;
use std::panic::resume_unwind;
use std::time::Duration;

use self::coverage::Met;
use self::sequence::Sequence;
use super::Draw;
use crate::account::Account;
use crate::amount::Amount;
use crate::sync::Arc;

type Fresh<A> = Box<dyn Fn() -> Arc<A> + Send + Sync>;
type Amounts = Box<dyn Fn(&mut Draw) -> Amount + Send + Sync>;
type Event<A> = Box<dyn Fn(&A, &mut Draw) + Send + Sync>;

/// The laws of [`Account`], checked on an account of your own by random histories.
///
/// Every history starts from a fresh account and takes, gives, corrects, reports, waits and asks
/// at random, on a paused clock of its own, so it takes no time and can be repeated by its seed.
/// Checked are [all the laws](Law): those the monitor relies on; that a change of the account's own
/// (an [*event*](Self::event), such as a resize) announces what the monitor has to know; and what
/// the account says of itself with `reads_clock`, `is_fresh` and `reconcile`. For `is_fresh`, two
/// more accounts of the same constructor stay unused beside it.
///
/// A breach says what the account answered and what to change. Histories that never came to the
/// limit, or never saw time bring anything back, test nothing: that is [a breach](Law::Tested), too,
/// and says what to set. Mostly it is the amounts, or the [`span`](Self::span).
///
/// The account under test must measure time by the `now` it is given, or by
/// [`tokio::time::Instant`] in methods users call.
///
/// # Examples
///
/// ```
/// use admit::testing::AccountContract;
/// use admit::CountingGate;
///
/// AccountContract::new(|| CountingGate::new("seats", 8).unwrap())
///     .permits_up_to(10)
///     .event("resize", |gate, draw| gate.resize(draw.between(1..=12) as u32).unwrap())
///     .assert();
/// ```
pub struct AccountContract<A> {
    fresh: Fresh<A>,
    /// Without, of whatever size the capacity suggests.
    amounts: Option<Amounts>,
    events: Vec<(&'static str, Event<A>)>,
    span: Duration,
    never_says_no: bool,
    never_comes_back: bool,
    seed: u64,
    sequences: u64,
    steps: u32,
}

impl<A: Account> AccountContract<A> {
    /// The contract of the accounts that `fresh` makes, each equal to the last and unused.
    ///
    /// It is called three times a history: two accounts stay unused, to compare with.
    ///
    /// Asks are for permits in some histories and for tokens in others, for a few and for up to
    /// somewhat more than the [`capacity`](Account::capacity) the account says it has, until told
    /// otherwise.
    pub fn new(fresh: impl Fn() -> Arc<A> + Send + Sync + 'static) -> Self {
        Self {
            fresh: Box::new(fresh),
            amounts: None,
            events: Vec::new(),
            span: Duration::from_secs(120),
            never_says_no: false,
            never_comes_back: false,
            seed: 1,
            sequences: 150,
            steps: 80,
        }
    }

    /// Asks for 0 to `n` permits: for gates and windows. A little more than the account can ever
    /// grant is a good `n`.
    #[must_use]
    pub fn permits_up_to(self, n: u32) -> Self {
        self.amounts(permits(n))
    }

    /// Asks for 0 to 3 requests of 0 to `n` tokens together: for buckets.
    #[must_use]
    pub fn tokens_up_to(self, n: u64) -> Self {
        self.amounts(move |draw| Amount {
            requests: draw.between(0..=3) as u32,
            units: draw.between(0..=n),
        })
    }

    /// Asks for whatever `amounts` makes: amounts that make sense to the account, small ones,
    /// ones that just fit, and some that never can.
    #[must_use]
    pub fn amounts(
        mut self,
        amounts: impl Fn(&mut Draw) -> Amount + Send + Sync + 'static,
    ) -> Self {
        self.amounts = Some(Box::new(amounts));
        self
    }

    /// Adds something that may happen to the account other than by the monitor's doing.
    ///
    /// It also happens to one of the accounts that stay unused, with the same draws. One that
    /// changes what [`capacity`](Account::capacity) says, or announces `may_refuse`, is taken for a
    /// change of what the account is configured to, which [`is_fresh`](Account::is_fresh) need not
    /// know of.
    #[must_use]
    pub fn event(
        mut self,
        name: &'static str,
        event: impl Fn(&A, &mut Draw) + Send + Sync + 'static,
    ) -> Self {
        self.events.push((name, Box::new(event)));
        self
    }

    /// The longest a history waits at once; two minutes, until told otherwise. Somewhat longer
    /// than the account takes to come back to itself is a good span: for a daily quota, a day and
    /// some hours.
    #[must_use]
    pub const fn span(mut self, span: Duration) -> Self {
        self.span = span;
        self
    }

    /// The account is not expected to say no: it only counts, or it refuses whom it does not grant.
    ///
    /// Without this, histories that never heard a no are a breach: they tested no limit.
    #[must_use]
    pub const fn never_says_no(mut self) -> Self {
        self.never_says_no = true;
        self
    }

    /// What is taken is not expected to come back by the clock while a test waits, though the
    /// account is of [`Replenishment::Time`](crate::Replenishment::Time): a budget for good.
    ///
    /// Without this, histories in which time never made a yes of a no are a breach: they tested
    /// nothing of how the account recovers.
    #[must_use]
    pub const fn never_comes_back(mut self) -> Self {
        self.never_comes_back = true;
        self
    }

    /// The seed of the first history; the next has the next seed.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How many histories; 150, until told otherwise. With fewer than 20, it is taken for a repeat
    /// of some, and not asked whether the limit was reached.
    #[must_use]
    pub const fn sequences(mut self, sequences: u64) -> Self {
        self.sequences = sequences;
        self
    }

    /// How many steps each has; 80, until told otherwise.
    #[must_use]
    pub const fn steps(mut self, steps: u32) -> Self {
        self.steps = steps;
        self
    }

    /// Runs the histories up to the first breach.
    ///
    /// # Errors
    ///
    /// The breach: which law, in which history, and what happened.
    ///
    /// # Panics
    ///
    /// When the author's own closures panic. A panic of the account is a breach.
    pub fn check(&self) -> Result<(), ContractViolation> {
        // A thread of its own, so that a test inside a runtime may run it, too.
        std::thread::scope(|scope| scope.spawn(|| self.run()).join())
            .unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Runs the histories, as the last line of a test.
    ///
    /// # Panics
    ///
    /// With the [violation](ContractViolation), if there is one.
    #[track_caller]
    pub fn assert(&self) {
        if let Err(violation) = self.check() {
            panic!("{violation}");
        }
    }

    fn run(&self) -> Result<(), ContractViolation> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime of one thread needs nothing that could be missing");
        let met = (0..self.sequences).try_fold(Met::default(), |met, index| {
            let seed = self.seed.wrapping_add(index);
            runtime.block_on(async { Ok(met.and(Sequence::new(self, seed).run().await?)) })
        })?;
        runtime.block_on(async { self.see_that_it_was_tested(met) })
    }
}

impl<A> fmt::Debug for AccountContract<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events: Vec<_> = self.events.iter().map(|(name, _)| name).collect();
        f.debug_struct("AccountContract")
            .field("events", &events)
            .field("seed", &self.seed)
            .field("sequences", &self.sequences)
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

fn permits(n: u32) -> impl Fn(&mut Draw) -> Amount + Send + Sync {
    move |draw| Amount::permits(draw.between(0..=u64::from(n)) as u32)
}

/// A law of the account contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Law {
    /// A yes to an ask is a yes to every smaller one in the same state, and a yes beside a
    /// reservation is a yes to the reservation alone.
    Monotone,
    /// A change of the account's own that turns a no into a yes, or brings the instant of one
    /// nearer, is announced with `grew`; one that turns an answer into a refusal with
    /// `may_refuse`. `give` and `reconcile` announce nothing.
    Announced,
    /// With no event, a no stays a no until the instant `earliest_fit` named, and then it is a
    /// yes.
    Punctual,
    /// `try_take` does what `fits` said; a take that is given back at the same instant, or did not
    /// happen, leaves the account as it was; so does one that was corrected in between, given back
    /// as what `reconcile` answered; a permit comes back whole.
    Balanced,
    /// No method panics, whatever the amount; a saturated one never fits; `replenishment` and
    /// `reads_clock` always say the same.
    Steady,
    /// What it says of itself is true. Where `reads_clock` says no, nothing changes with the clock.
    /// Where `is_fresh` says yes, it grants what a new one would, then and later, and used as that
    /// one is, it is no slower to recover.
    Honest,
    /// The histories met what they are for: a yes; a no, unless it
    /// [never says one](AccountContract::never_says_no); and of an account of
    /// [`Replenishment::Time`](crate::Replenishment::Time) a no that time made a yes, unless
    /// [none is expected](AccountContract::never_comes_back). A breach is one of the test and not
    /// of the account, and says what to set.
    Tested,
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Monotone => "monotone",
            Self::Announced => "announced",
            Self::Punctual => "punctual",
            Self::Balanced => "balanced",
            Self::Steady => "steady",
            Self::Honest => "honest",
            Self::Tested => "tested",
        })
    }
}

/// A breach of the account contract.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContractViolation {
    /// The account's name.
    pub account: Arc<str>,
    /// The law it broke.
    pub law: Law,
    /// What it answered, and what to change.
    pub what: String,
    /// The seed of the history; of the first, where it is the whole test that is not
    /// [tested](Law::Tested).
    pub seed: u64,
    /// The step in it, counted from 1; 0 before the first, and where it is the whole test.
    pub step: u32,
}

impl fmt::Display for ContractViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { account, law, what, seed, step } = self;
        write!(f, "`{account}` is not {law}: {what}")?;
        match law {
            Law::Tested => Ok(()),
            _ => write!(f, " (repeat with seed {seed}, it is step {step})"),
        }
    }
}

impl Error for ContractViolation {}

#[cfg(test)]
mod tests;
