//! One random history of one account, with every law looked at on the way.

use std::time::Duration;

use tokio::time::{Instant, advance};

use super::subject::{Answer, Checked, Opinion, Subject};
use super::{AccountContract, Law};
use crate::account::{Account, Ask, Charge};
use crate::amount::Amount;
use crate::testing::Draw;
use crate::upstream::UpstreamFailure;

/// Further ahead than this nobody waits for a deadline.
const HORIZON: Duration = Duration::from_secs(7 * 86_400);
const NANO: Duration = Duration::from_nanos(1);

pub(super) struct Sequence<'a, A> {
    contract: &'a AccountContract<A>,
    subject: Subject<A>,
    draw: Draw,
    next_id: u64,
    held: Vec<Charge>,
}

impl<'a, A: Account> Sequence<'a, A> {
    pub(super) fn new(contract: &'a AccountContract<A>, seed: u64) -> Self {
        Self {
            contract,
            subject: Subject::new((contract.fresh)(), seed),
            draw: Draw::new(seed),
            next_id: 1,
            held: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) -> Checked {
        for step in 1..=self.contract.steps {
            self.subject.step = step;
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
            self.subject.read()?;
        }
        self.give_all()
    }

    fn compare_sizes(&mut self) -> Checked {
        let large = self.ask();
        let (mine, ahead) = (self.at_most(large.mine), self.at_most(large.reserved_ahead));
        let small = Ask { mine, reserved_ahead: ahead, ..large };
        let alone = Ask::new(large.id, large.reserved_ahead, large.now);
        if self.subject.answer(&large)? != Answer::Yes {
            return Ok(());
        }
        for less in [small, alone] {
            let answer = self.subject.answer(&less)?;
            if answer != Answer::Yes {
                let what =
                    format!("it says {answer:?} to {less:?}, but Yes to the larger {large:?}");
                return self.subject.breach(Law::Monotone, what);
            }
        }
        Ok(())
    }

    fn take_and_undo(&mut self) -> Checked {
        let ask = self.ask();
        let (before, in_use) = (self.opinions()?, self.subject.in_use()?);
        self.subject.ear.take();
        if let Some(charge) = self.subject.try_take(&ask)? {
            let back = self.subject.call("give", |account| account.give(&charge, ask.now))?;
            if back != ask.mine {
                let what = format!("of {ask:?}, taken and given at once, {back:?} came back");
                return self.subject.breach(Law::Balanced, what);
            }
            if self.subject.ear.take().grew {
                let what = "`give` announced `grew`; a failed attempt would wake itself for ever";
                return self.subject.breach(Law::Announced, what.to_owned());
            }
        }
        let now_in_use = self.subject.in_use()?;
        if now_in_use != in_use {
            let what = format!("{in_use} were in use, and after {ask:?} undone {now_in_use} are");
            return self.subject.breach(Law::Balanced, what);
        }
        for opinion in before {
            let after = self.subject.opinion(opinion.ask)?;
            if (after.answer, after.earliest) != (opinion.answer, opinion.earliest) {
                let what = format!("{ask:?} undone changed {opinion:?} to {after:?}");
                return self.subject.breach(Law::Balanced, what);
            }
        }
        Ok(())
    }

    fn take(&mut self) -> Checked {
        let ask = self.ask();
        let before = self.opinions()?;
        self.subject.ear.take();
        if let Some(charge) = self.subject.try_take(&ask)? {
            self.held.push(charge);
            let heard = self.subject.ear.take();
            return self.subject.compare("a take", &before, heard);
        }
        Ok(())
    }

    fn give_one(&mut self) -> Checked {
        let Some(index) = self.pick() else { return Ok(()) };
        let charge = self.held.swap_remove(index);
        self.subject.give(&charge)
    }

    fn give_all(&mut self) -> Checked {
        for charge in std::mem::take(&mut self.held) {
            self.subject.give(&charge)?;
        }
        let in_use = self.subject.in_use()?;
        if self.subject.is_released() && in_use != 0 {
            let what = format!("everything was given back, and {in_use} are in use");
            return self.subject.breach(Law::Balanced, what);
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
        self.subject.ear.take();
        self.held[index].amount =
            self.subject.call("reconcile", |account| account.reconcile(&charge, actual, now))?;
        if self.subject.ear.take().grew {
            return self.subject.breach(Law::Announced, "`reconcile` announced `grew`".to_owned());
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
                if self.subject.is_released() {
                    self.subject.give(&charge)?;
                }
                let reported = self.draw.one_in(2);
                self.watch("settled", |account| account.settled(&charge, reported, now))
            }
        }
    }

    /// Lets something happen, and compares what it changed with what it announced.
    fn watch(&mut self, event: &'static str, happen: impl FnOnce(&A)) -> Checked {
        let before = self.opinions()?;
        self.subject.ear.take();
        self.subject.call(event, happen)?;
        let heard = self.subject.ear.take();
        self.subject.compare(event, &before, heard)
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
            self.subject.opinion(ask)?;
            if self.subject.answer(&ask)? == Answer::Yes || self.subject.try_take(&ask)?.is_some() {
                let law = if mine.is_saturated() { Law::Steady } else { Law::Monotone };
                return self
                    .subject
                    .breach(law, format!("it grants {ask:?}, which nothing can cover"));
            }
        }
        let (none, in_use) = (self.fresh_ask(Amount::NONE), self.subject.in_use()?);
        if let Some(charge) = self.subject.try_take(&none)? {
            let during = self.subject.in_use()?;
            let back = self.subject.call("give", |account| account.give(&charge, none.now))?;
            if during != in_use || !back.is_none() {
                let what = format!("a take of nothing put {during} in use from {in_use}");
                return self.subject.breach(Law::Balanced, what);
            }
        }
        Ok(())
    }

    async fn wait_for_a_yes(&mut self) -> Checked {
        let ask = self.ask();
        let opinion = self.subject.opinion(ask)?;
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
            return self.subject.breach(Law::Punctual, what);
        }
        if wait > HORIZON {
            return Ok(());
        }
        for _ in 0..self.draw.between(0..=3) {
            let left = at.saturating_duration_since(Instant::now());
            let some = self.draw.between(0..=u64::try_from(left.as_nanos()).unwrap_or(0));
            advance(Duration::from_nanos(some).min(left.saturating_sub(NANO))).await;
            self.expect_not_yet(&ask, "before the instant it named")?;
            self.subject.read()?;
        }
        let left = at.saturating_duration_since(Instant::now());
        advance(left.saturating_sub(NANO)).await;
        self.expect_not_yet(&ask, "a nanosecond before the instant it named")?;
        advance(at.saturating_duration_since(Instant::now())).await;
        let answer = self.subject.answer(&ask.at(at))?;
        if answer != Answer::Yes {
            let what = format!("it says {answer:?} to {ask:?} at {at:?}, the instant it named");
            return self.subject.breach(Law::Punctual, what);
        }
        Ok(())
    }

    fn expect_not_yet(&self, ask: &Ask, when: &str) -> Checked {
        let ask = ask.at(Instant::now());
        if self.subject.answer(&ask)? == Answer::Yes {
            let what = format!("its No became Yes {when}, for {ask:?}");
            return self.subject.breach(Law::Punctual, what);
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

    /// What the account thinks of some asks now.
    fn opinions(&mut self) -> Checked<Vec<Opinion>> {
        (0..10)
            .map(|_| {
                let ask = self.ask();
                self.subject.opinion(ask)
            })
            .collect()
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
}
