//! One random history of one account, with every law looked at on the way.

use std::time::Duration;

use tokio::time::Instant;

use super::coverage::Met;
use super::sizes::Sizes;
use super::subject::{Answer, Checked, Opinion, Subject};
use super::twins::Twins;
use super::words::of;
use super::{AccountContract, Law};
use crate::account::{Account, Ask, Charge};
use crate::amount::Amount;
use crate::testing::Draw;
use crate::testing::announcements::Announced;
use crate::upstream::UpstreamFailure;

pub(super) struct Sequence<'a, A> {
    pub(super) contract: &'a AccountContract<A>,
    pub(super) subject: Subject<A>,
    pub(super) twins: Twins<A>,
    pub(super) draw: Draw,
    pub(super) sizes: Sizes,
    next_id: u64,
    held: Vec<Charge>,
}

impl<'a, A: Account> Sequence<'a, A> {
    pub(super) fn new(contract: &'a AccountContract<A>, seed: u64) -> Self {
        Self {
            contract,
            subject: Subject::new((contract.fresh)(), seed),
            twins: Twins::new((contract.fresh)(), (contract.fresh)()),
            sizes: Sizes::default(),
            draw: Draw::new(seed),
            next_id: 1,
            held: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) -> Checked<Met> {
        self.sizes.capacity = self.subject.capacity()?;
        let of_tokens = self.fresh_ask(Amount::tokens(0));
        self.sizes.in_tokens =
            self.draw.one_in(2) && self.subject.answer(&of_tokens)? != Answer::Refused;
        // Some histories end where the account first says it is fresh, from some step on.
        let ends_fresh_from = match self.draw.one_in(3) {
            true => self.draw.between(1..=u64::from(self.contract.steps)),
            false => u64::MAX,
        };
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
                _ => self.pass_time().await?,
            }
            self.subject.read()?;
            let is_fresh = self.subject.is_fresh()?;
            if is_fresh && self.draw.one_in(2) {
                self.compare_with_a_new_one("")?;
            }
            if is_fresh && u64::from(step) >= ends_fresh_from {
                break;
            }
        }
        self.pass_ages().await?;
        self.give_all()?;
        self.use_beside_a_new_one().await?;
        Ok(self.subject.met())
    }

    fn compare_sizes(&mut self) -> Checked {
        let large = self.ask();
        let (mine, ahead) = (self.at_most(large.mine), self.at_most(large.reserved_ahead));
        let small = Ask { mine, reserved_ahead: ahead, ..large };
        let alone = Ask::new(large.id, large.reserved_ahead, large.now);
        if self.subject.answer(&large)? != Answer::Yes {
            return Ok(());
        }
        let answer = self.subject.answer(&alone)?;
        if answer != Answer::Yes {
            let what = format!(
                "it grants {}, and says {answer} to those {} alone: `fits` must leave \
                 `reserved_ahead` for the head of the line, so count `ask.total()`, not `ask.mine`",
                of(&large),
                of(&alone),
            );
            return self.subject.breach(Law::Monotone, what);
        }
        let answer = self.subject.answer(&small)?;
        if answer != Answer::Yes {
            let what = format!(
                "it grants {}, and in the same state says {answer} to {}, which is no more: \
                 `fits` must grant all that is smaller than what it grants",
                of(&large),
                of(&small),
            );
            return self.subject.breach(Law::Monotone, what);
        }
        Ok(())
    }

    fn take_and_undo(&mut self) -> Checked {
        let ask = self.ask();
        let (before, in_use) = (self.opinions()?, self.subject.in_use()?);
        self.subject.ear.take();
        let mut did = format!("the try to take {}", of(&ask));
        let mut hint = "`give` must put back what `try_take` took, and one that answers no \
                        must take nothing";
        if let Some(mut charge) = self.subject.try_take(&ask)? {
            did = format!("a take of {}, given back at once,", of(&ask));
            if self.draw.one_in(2) {
                let actual = self.amount().units;
                let was = charge.amount;
                charge.amount = self.subject.reconcile(&charge, actual)?;
                did = format!(
                    "a take of {}, corrected by `reconcile` from {was} to {actual} units, which \
                     answered {}, and given back at once,",
                    of(&ask),
                    charge.amount,
                );
                hint = "`reconcile` must answer what the account now holds for the charge, and \
                        `give` must put that back";
            }
            let back = self.subject.call("give", |account| account.give(&charge, ask.now))?;
            if back != charge.amount {
                let what = format!("of {did} `give` answered {back}: {hint}");
                return self.subject.breach(Law::Balanced, what);
            }
            if self.subject.ear.take().grew {
                let what = "`give` announced `grew`; a failed attempt would wake itself for ever: \
                            the monitor knows of a give, so announce nothing";
                return self.subject.breach(Law::Announced, what.to_owned());
            }
        }
        let now_in_use = self.subject.in_use()?;
        if now_in_use != in_use {
            let what =
                format!("{did} left {now_in_use} in use, where {in_use} were before: {hint}");
            return self.subject.breach(Law::Balanced, what);
        }
        for opinion in before {
            let after = self.subject.opinion(opinion.ask)?;
            if (after.answer, after.earliest) != (opinion.answer, opinion.earliest) {
                let what = format!(
                    "{did} turned its {opinion} to {} into {after}: {hint}",
                    of(&opinion.ask)
                );
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
            let what = format!(
                "everything was given back, and {in_use} are in use: `give` must credit all that \
                 the charge holds"
            );
            return self.subject.breach(Law::Balanced, what);
        }
        Ok(())
    }

    fn correct_one(&mut self) -> Checked {
        let Some(index) = self.pick() else { return Ok(()) };
        let charge = self.held[index];
        let actual = match self.draw.one_in(8) {
            true => u64::MAX / 2,
            false => self.amount().units,
        };
        self.held[index].amount = self.subject.reconcile(&charge, actual)?;
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
        self.twins.tell(name, |account| event(account, &mut draw.clone()));
        let before = self.subject.capacity()?;
        let heard = self.watch(name, |account| event(account, &mut draw))?;
        if heard.may_refuse || self.subject.capacity()? != before {
            self.twins.follow_events();
        }
        Ok(())
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
                })?;
            }
            1 => {
                let failure = UpstreamFailure::status(429, "contract", "slow down")
                    .with_retry_after(Duration::from_secs(self.draw.between(0..=20)));
                self.watch("on_upstream_failure", |account| {
                    account.on_upstream_failure(&failure, &charge, now);
                })?;
            }
            _ => {
                self.held.swap_remove(index);
                if self.subject.is_released() {
                    self.subject.give(&charge)?;
                }
                let reported = self.draw.one_in(2);
                self.watch("settled", |account| account.settled(&charge, reported, now))?;
            }
        }
        Ok(())
    }

    /// Lets something happen, and compares what it changed with what it announced.
    fn watch(&mut self, event: &'static str, happen: impl FnOnce(&A)) -> Checked<Announced> {
        let before = self.opinions()?;
        self.subject.ear.take();
        self.subject.call(event, happen)?;
        let heard = self.subject.ear.take();
        self.subject.compare(event, &before, heard)?;
        Ok(heard)
    }

    fn ask_for_oddities(&mut self) -> Checked {
        let most = Amount { requests: u32::MAX, units: u64::MAX };
        let fair = self.amount();
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
                let (law, hint) = match mine.is_saturated() {
                    true => (Law::Steady, "refuse an amount that `is_saturated`"),
                    false => (
                        Law::Monotone,
                        "`fits` must leave `reserved_ahead` for the head of the line, so count \
                         `ask.total()`, and sums must not wrap",
                    ),
                };
                let what = format!("it grants {}, which nothing can cover: {hint}", of(&ask));
                return self.subject.breach(law, what);
            }
        }
        let (none, in_use) = (self.fresh_ask(Amount::NONE), self.subject.in_use()?);
        if let Some(charge) = self.subject.try_take(&none)? {
            let during = self.subject.in_use()?;
            let back = self.subject.call("give", |account| account.give(&charge, none.now))?;
            if during != in_use || !back.is_none() {
                let what = format!(
                    "a take of nothing left {during} in use, where {in_use} were before, and gave \
                     {back} back: an ask for nothing must take and give nothing"
                );
                return self.subject.breach(Law::Balanced, what);
            }
        }
        Ok(())
    }

    /// What the account thinks of some asks now.
    fn opinions(&mut self) -> Checked<Vec<Opinion>> {
        self.some_opinions(10)
    }

    pub(super) fn some_opinions(&mut self, count: usize) -> Checked<Vec<Opinion>> {
        let mut opinions = Vec::with_capacity(count);
        for _ in 0..count {
            let ask = self.ask();
            opinions.push(self.subject.opinion(ask)?);
        }
        Ok(opinions)
    }

    pub(super) fn ask(&mut self) -> Ask {
        let mine = self.amount();
        let ask = self.fresh_ask(mine);
        match self.draw.one_in(2) {
            true => ask.behind(self.amount()),
            false => ask,
        }
    }

    pub(super) fn amount(&mut self) -> Amount {
        match &self.contract.amounts {
            Some(amounts) => amounts(&mut self.draw),
            None => self.sizes.draw(&mut self.draw),
        }
    }

    pub(super) fn fresh_ask(&mut self, mine: Amount) -> Ask {
        self.next_id += 1;
        Ask::new(self.next_id, mine, Instant::now())
    }

    /// An amount that makes sense and is not larger.
    pub(super) fn at_most(&mut self, amount: Amount) -> Amount {
        (0..4).map(|_| self.amount()).find(|&less| amount.covers(less)).unwrap_or(Amount::NONE)
    }

    fn pick(&mut self) -> Option<usize> {
        let last = (self.held.len() as u64).checked_sub(1)?;
        Some(self.draw.between(0..=last) as usize)
    }
}
