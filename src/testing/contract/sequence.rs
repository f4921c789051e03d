//! One random history of one account, with every law looked at on the way.

use std::time::Duration;

use tokio::time::{Instant, advance};

use super::{AccountContract, ContractViolation, Law};
use crate::account::{Account, Ask, Charge, Replenishment};
use crate::amount::Amount;
use crate::error::AccountPanic;
use crate::sync::Arc;
use crate::testing::Draw;
use crate::testing::announcements::{Announced, Announcements};
use crate::upstream::UpstreamFailure;

type Checked<T = ()> = Result<T, ContractViolation>;

/// Further ahead than this nobody waits for a deadline.
const HORIZON: Duration = Duration::from_secs(7 * 86_400);
const NANO: Duration = Duration::from_nanos(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
    Refused,
}

/// What an account said about an ask, to be compared later.
#[derive(Clone, Copy, Debug)]
struct Opinion {
    ask: Ask,
    answer: Answer,
    earliest: Option<Instant>,
}

pub(super) struct Sequence<'a, A> {
    contract: &'a AccountContract<A>,
    account: Arc<A>,
    ear: Announcements,
    draw: Draw,
    seed: u64,
    step: u32,
    next_id: u64,
    held: Vec<Charge>,
    nature: (Replenishment, bool),
}

impl<'a, A: Account> Sequence<'a, A> {
    pub(super) fn new(contract: &'a AccountContract<A>, seed: u64) -> Self {
        let account = (contract.fresh)();
        Self {
            contract,
            ear: Announcements::of(account.link()),
            nature: (account.replenishment(), account.reads_clock()),
            account,
            draw: Draw::new(seed),
            seed,
            step: 0,
            next_id: 1,
            held: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) -> Checked {
        for step in 1..=self.contract.steps {
            self.step = step;
            match self.draw.between(0..=11) {
                0 | 1 => self.compare_sizes()?,
                2 => self.take_and_undo()?,
                3..=5 => self.take()?,
                6 => self.give_one()?,
                7 => self.correct_one()?,
                8 => self.let_something_happen()?,
                9 => self.ask_for_oddities()?,
                10 => self.wait_for_a_yes().await?,
                _ => self.pass_time().await,
            }
            self.read()?;
        }
        self.give_all()
    }

    fn compare_sizes(&mut self) -> Checked {
        let large = self.ask();
        let (mine, ahead) = (self.at_most(large.mine), self.at_most(large.reserved_ahead));
        let small = Ask { mine, reserved_ahead: ahead, ..large };
        let alone = Ask::new(large.id, large.reserved_ahead, large.now);
        if self.answer(&large)? != Answer::Yes {
            return Ok(());
        }
        for less in [small, alone] {
            let answer = self.answer(&less)?;
            if answer != Answer::Yes {
                let what =
                    format!("it says {answer:?} to {less:?}, but Yes to the larger {large:?}");
                return self.breach(Law::Monotone, what);
            }
        }
        Ok(())
    }

    fn take_and_undo(&mut self) -> Checked {
        let ask = self.ask();
        let (before, in_use) = (self.opinions()?, self.in_use()?);
        self.ear.take();
        if let Some(charge) = self.try_take(&ask)? {
            let back = self.call("give", |account| account.give(&charge, ask.now))?;
            if back != ask.mine {
                let what = format!("of {ask:?}, taken and given at once, {back:?} came back");
                return self.breach(Law::Balanced, what);
            }
            if self.ear.take().grew {
                let what = "`give` announced `grew`; a failed attempt would wake itself for ever";
                return self.breach(Law::Announced, what.to_owned());
            }
        }
        let now_in_use = self.in_use()?;
        if now_in_use != in_use {
            let what = format!("{in_use} were in use, and after {ask:?} undone {now_in_use} are");
            return self.breach(Law::Balanced, what);
        }
        for opinion in before {
            let after = self.opinion(opinion.ask)?;
            if (after.answer, after.earliest) != (opinion.answer, opinion.earliest) {
                let what = format!("{ask:?} undone changed {opinion:?} to {after:?}");
                return self.breach(Law::Balanced, what);
            }
        }
        Ok(())
    }

    fn take(&mut self) -> Checked {
        let ask = self.ask();
        let before = self.opinions()?;
        self.ear.take();
        if let Some(charge) = self.try_take(&ask)? {
            self.held.push(charge);
            let heard = self.ear.take();
            return self.compare("a take", &before, heard);
        }
        Ok(())
    }

    fn give_one(&mut self) -> Checked {
        let Some(index) = self.pick() else { return Ok(()) };
        let charge = self.held.swap_remove(index);
        self.give(&charge)
    }

    fn give_all(&mut self) -> Checked {
        for charge in std::mem::take(&mut self.held) {
            self.give(&charge)?;
        }
        let in_use = self.in_use()?;
        if self.nature.0 == Replenishment::Release && in_use != 0 {
            let what = format!("everything was given back, and {in_use} are in use");
            return self.breach(Law::Balanced, what);
        }
        Ok(())
    }

    fn correct_one(&mut self) -> Checked {
        let Some(index) = self.pick() else { return Ok(()) };
        let (charge, now) = (self.held[index], Instant::now());
        let actual = match self.draw.one_in(8) {
            true => u64::MAX / 2,
            false => (self.contract.amounts)(&mut self.draw).units,
        };
        self.ear.take();
        self.held[index].amount =
            self.call("reconcile", |account| account.reconcile(&charge, actual, now))?;
        if self.ear.take().grew {
            return self.breach(Law::Announced, "`reconcile` announced `grew`".to_owned());
        }
        Ok(())
    }

    /// An event of the author's, or feedback: whatever changes the account but the monitor.
    fn let_something_happen(&mut self) -> Checked {
        let contract = self.contract;
        let own = contract.events.len() as u64;
        let choice = self.draw.between(0..=own + 2);
        if choice >= own {
            return self.report(choice - own);
        }
        let (name, event) = &contract.events[choice as usize];
        let mut draw = Draw::new(self.draw.any());
        self.watch(name, |account| event(account, &mut draw))
    }

    /// What comes back from the work under a charge.
    fn report(&mut self, choice: u64) -> Checked {
        let Some(index) = self.pick() else { return Ok(()) };
        let (charge, now) = (self.held[index], Instant::now());
        match choice {
            0 => {
                let successes = self.draw.between(1..=4);
                self.watch("on_success", |account| {
                    (0..successes).for_each(|_| account.on_success(&charge, now));
                })
            }
            1 => {
                let failure = UpstreamFailure::status(429, "contract", "slow down")
                    .with_retry_after(Duration::from_secs(self.draw.between(0..=20)));
                self.watch("on_upstream_failure", |account| {
                    account.on_upstream_failure(&failure, &charge, now);
                })
            }
            _ => {
                self.held.swap_remove(index);
                if self.nature.0 == Replenishment::Release {
                    self.give(&charge)?;
                }
                let reported = self.draw.one_in(2);
                self.watch("settled", |account| account.settled(&charge, reported, now))
            }
        }
    }

    /// Lets something happen, and compares what it changed with what it announced.
    fn watch(&mut self, event: &'static str, happen: impl FnOnce(&A)) -> Checked {
        let before = self.opinions()?;
        self.ear.take();
        self.call(event, happen)?;
        let heard = self.ear.take();
        self.compare(event, &before, heard)
    }

    /// Whether what was announced covers what changed.
    fn compare(&self, event: &'static str, before: &[Opinion], heard: Announced) -> Checked {
        for opinion in before {
            let after = self.opinion(opinion.ask)?;
            let was_no = opinion.answer == Answer::No;
            let became_yes = was_no && after.answer == Answer::Yes;
            let came_nearer = was_no
                && after.answer == Answer::No
                && after.earliest.is_some_and(|at| opinion.earliest.is_none_or(|was| at < was));
            let refuses = opinion.answer != Answer::Refused && after.answer == Answer::Refused;
            if (became_yes || came_nearer) && !heard.grew {
                let what = format!("{event} turned {opinion:?} into {after:?} without `grew`");
                return self.breach(Law::Announced, what);
            }
            if refuses && !heard.may_refuse {
                let what =
                    format!("{event} turned {opinion:?} into {after:?} without `may_refuse`");
                return self.breach(Law::Announced, what);
            }
        }
        Ok(())
    }

    fn ask_for_oddities(&mut self) -> Checked {
        let most = Amount { requests: u32::MAX, units: u64::MAX };
        let fair = (self.contract.amounts)(&mut self.draw);
        for (mine, ahead) in [
            (most, Amount::NONE),
            (Amount { requests: 1, ..most }, Amount::NONE),
            (Amount::permits(u32::MAX), Amount::NONE),
            (most, most),
            (fair, most),
            (Amount::NONE, most),
        ] {
            let ask = self.fresh_ask(mine).behind(ahead);
            self.opinion(ask)?;
            if self.answer(&ask)? == Answer::Yes || self.try_take(&ask)?.is_some() {
                let law = if mine.is_saturated() { Law::Steady } else { Law::Monotone };
                return self.breach(law, format!("it grants {ask:?}, which nothing can cover"));
            }
        }
        let (none, in_use) = (self.fresh_ask(Amount::NONE), self.in_use()?);
        if let Some(charge) = self.try_take(&none)? {
            let during = self.in_use()?;
            let back = self.call("give", |account| account.give(&charge, none.now))?;
            if during != in_use || !back.is_none() {
                let what = format!("a take of nothing put {during} in use from {in_use}");
                return self.breach(Law::Balanced, what);
            }
        }
        Ok(())
    }

    async fn wait_for_a_yes(&mut self) -> Checked {
        let ask = self.ask();
        let opinion = self.opinion(ask)?;
        if opinion.answer != Answer::No {
            return Ok(());
        }
        let Some(at) = opinion.earliest else {
            for _ in 0..3 {
                self.pass_time().await;
                self.expect_not_yet(&ask, "without an event, though it named no instant")?;
            }
            return Ok(());
        };
        let wait = at.saturating_duration_since(ask.now);
        if wait.is_zero() {
            let what = format!("it says No to {ask:?}, and names an instant that has come");
            return self.breach(Law::Punctual, what);
        }
        if wait > HORIZON {
            return Ok(());
        }
        for _ in 0..self.draw.between(0..=3) {
            let left = at.saturating_duration_since(Instant::now());
            let some = self.draw.between(0..=u64::try_from(left.as_nanos()).unwrap_or(0));
            advance(Duration::from_nanos(some).min(left.saturating_sub(NANO))).await;
            self.expect_not_yet(&ask, "before the instant it named")?;
            self.read()?;
        }
        let left = at.saturating_duration_since(Instant::now());
        advance(left.saturating_sub(NANO)).await;
        self.expect_not_yet(&ask, "a nanosecond before the instant it named")?;
        advance(at.saturating_duration_since(Instant::now())).await;
        let answer = self.answer(&ask.at(at))?;
        if answer != Answer::Yes {
            let what = format!("it says {answer:?} to {ask:?} at {at:?}, the instant it named");
            return self.breach(Law::Punctual, what);
        }
        Ok(())
    }

    fn expect_not_yet(&self, ask: &Ask, when: &str) -> Checked {
        let ask = ask.at(Instant::now());
        if self.answer(&ask)? == Answer::Yes {
            let what = format!("its No became Yes {when}, for {ask:?}");
            return self.breach(Law::Punctual, what);
        }
        Ok(())
    }

    async fn pass_time(&mut self) {
        let most = u64::try_from(self.contract.span.as_nanos()).unwrap_or(u64::MAX);
        // As often a moment as a long while.
        let most = most >> self.draw.between(0..=30);
        let nanos = self.draw.between(0..=most);
        advance(Duration::from_nanos(nanos)).await;
    }

    /// Reads everything there is to read, which must change nothing and say the same of itself.
    fn read(&self) -> Checked {
        let now = Instant::now();
        let nature = self.call("replenishment or reads_clock", |account| {
            (account.replenishment(), account.reads_clock())
        })?;
        if nature != self.nature {
            let what = format!(
                "`replenishment` and `reads_clock` said {:?}, and now {nature:?}",
                self.nature
            );
            return self.breach(Law::Steady, what);
        }
        self.call("a reading", |account| {
            let _ = (account.category(), account.capacity(), account.indicator(now));
            let _ = (account.summary(now), account.needs_http(), account.is_fresh(now));
        })?;
        self.in_use().map(drop)
    }

    /// What the account thinks of some asks now.
    fn opinions(&mut self) -> Checked<Vec<Opinion>> {
        (0..10)
            .map(|_| {
                let ask = self.ask();
                self.opinion(ask)
            })
            .collect()
    }

    fn opinion(&self, ask: Ask) -> Checked<Opinion> {
        let answer = self.answer(&ask)?;
        let earliest = self.call("earliest_fit", |account| account.earliest_fit(&ask))?;
        // Where the answer is not a no, nobody asks for the instant.
        Ok(Opinion { ask, answer, earliest: earliest.filter(|_| answer == Answer::No) })
    }

    fn answer(&self, ask: &Ask) -> Checked<Answer> {
        self.call("fits", |account| match account.fits(ask) {
            Ok(true) => Answer::Yes,
            Ok(false) => Answer::No,
            Err(_) => Answer::Refused,
        })
    }

    fn try_take(&self, ask: &Ask) -> Checked<Option<Charge>> {
        let said = self.answer(ask)?;
        let taken = self.call("try_take", |account| account.try_take(ask))?;
        let (did, at) = match taken {
            Ok(Some(at)) => (Answer::Yes, Some(at)),
            Ok(None) => (Answer::No, None),
            Err(_) => (Answer::Refused, None),
        };
        if did != said {
            let what = format!("`fits` says {said:?} to {ask:?}, and `try_take` {did:?}");
            return self.breach(Law::Balanced, what);
        }
        if self.nature.1 && at.is_some_and(|at| at < ask.now) {
            let what = format!("it filed the take of {ask:?} at {at:?}, before it was asked");
            return self.breach(Law::Balanced, what);
        }
        Ok(at.map(|at| Charge::new(ask.id, ask.mine, at)))
    }

    fn give(&self, charge: &Charge) -> Checked {
        self.ear.take();
        let back = self.call("give", |account| account.give(charge, Instant::now()))?;
        let whole = self.nature.0 == Replenishment::Release;
        if !charge.amount.covers(back) || (whole && back != charge.amount) {
            let what = format!("of {charge:?} it gave back {back:?}");
            return self.breach(Law::Balanced, what);
        }
        if self.ear.take().grew {
            return self.breach(Law::Announced, "`give` announced `grew`".to_owned());
        }
        Ok(())
    }

    fn in_use(&self) -> Checked<u64> {
        self.call("in_use", |account| account.in_use(Instant::now()))
    }

    fn ask(&mut self) -> Ask {
        let mine = (self.contract.amounts)(&mut self.draw);
        let ask = self.fresh_ask(mine);
        match self.draw.one_in(2) {
            true => ask.behind((self.contract.amounts)(&mut self.draw)),
            false => ask,
        }
    }

    fn fresh_ask(&mut self, mine: Amount) -> Ask {
        self.next_id += 1;
        Ask::new(self.next_id, mine, Instant::now())
    }

    /// An amount that makes sense and is not larger.
    fn at_most(&mut self, amount: Amount) -> Amount {
        (0..4)
            .map(|_| (self.contract.amounts)(&mut self.draw))
            .find(|&less| amount.covers(less))
            .unwrap_or(Amount::NONE)
    }

    fn pick(&mut self) -> Option<usize> {
        let last = (self.held.len() as u64).checked_sub(1)?;
        Some(self.draw.between(0..=last) as usize)
    }

    fn call<R>(&self, method: &'static str, call: impl FnOnce(&A) -> R) -> Checked<R> {
        AccountPanic::catch(method, || call(&self.account))
            .or_else(|panic| self.breach(Law::Steady, panic.to_string()))
    }

    fn breach<T>(&self, law: Law, what: String) -> Checked<T> {
        let account = Arc::clone(self.account.link().name());
        Err(ContractViolation { account, law, what, seed: self.seed, step: self.step })
    }
}
