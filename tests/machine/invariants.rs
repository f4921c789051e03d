//! What must hold after every step, at rest, and in the end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use admit::{Amount, Ask, Snapshot};
use tokio::time::Instant;

use crate::ledger::ensure;
use crate::model::{Life, Model};
use crate::setup::{ACCOUNTS, GATES, Kind, LANES, MEMORY, NAMES, OWN, comes_back, kind};
use crate::transition::{Job, Transition};
use crate::world::World;

impl World {
    /// After every step: nothing is overdrawn or lost, and every count agrees with the others.
    pub(crate) fn check(&self, model: &Model) -> Result<(), String> {
        let runtime = self.runtime.as_ref().expect("it is there between two steps");
        let _inside = runtime.enter();
        self.admission.check();
        let (snapshot, line) = (self.admission.snapshot(), self.line());
        let (is, right) = (snapshot.waiting, line.len());
        ensure!(is == right && self.admission.queue_len() == is, "{is} wait, should be {right}");
        ensure!(snapshot.head.is_some() == (is > 0), "a head, and nobody waits, or none");
        let held = self.holding.values().filter(|holding| !holding.is_settled).count();
        let (is, right) = (snapshot.held, held + snapshot.unseen.count);
        ensure!(is == right, "{is} are held, should be {right}");
        for (job, waiting) in &self.waiting {
            let is = waiting.wakes.0.load(Ordering::Relaxed);
            let most = 1 + u32::from(waiting.token.is_cancelled());
            ensure!(is <= most, "job {job} was woken {is} times, should be {most} at the most");
        }
        self.check_places(model, snapshot.unseen.count)?;
        if model.setup.is_tracked {
            self.check_holders(&snapshot)?;
        }
        if self.is_watched() {
            self.check_ledger(model, &snapshot, &line)?;
        }
        if self.is_at_rest && model.life == Life::Running && !self.is_closed {
            self.nobody_could_go(model, &line)?;
        }
        Ok(())
    }

    /// What was told is what is.
    fn check_ledger(&self, model: &Model, snapshot: &Snapshot, line: &[Job]) -> Result<(), String> {
        let told = &self.ledger.line;
        ensure!(told == line, "{line:?} wait, and told was of {told:?}");
        let totals = snapshot.totals;
        let ends = self.ledger.ends;
        let is = (totals.granted, totals.refused, totals.cancelled, totals.timed_out);
        let granted = ends.granted + self.empty_granted;
        let right = (granted, ends.refused + self.empty_refused, ends.cancelled, ends.timed_out);
        ensure!(is == right, "(granted, refused, cancelled, timed out) {is:?}, told {right:?}");
        let landed = self.waiting.keys().filter(|&&job| self.ledger.has_begun(job)).count();
        ensure!(snapshot.unseen.count == landed, "unseen: {:?}, not {landed}", snapshot.unseen);
        for at in (0..ACCOUNTS).filter(|&at| self.comes_back(model, at)) {
            let (is, right) = (self.in_use(at), self.ledger.used(at));
            ensure!(is == right, "{is} of {} in use, {right} by what was told", NAMES[at]);
        }
        Ok(())
    }

    /// What release accounts say is in use is what the grants hold, seen or not.
    fn check_places(&self, model: &Model, unseen: usize) -> Result<(), String> {
        for at in (0..ACCOUNTS).filter(|&at| self.comes_back(model, at)) {
            let is = self.in_use(at);
            let held = self.holding.values().filter_map(|holding| holding.places.get(&at)).sum();
            let agrees = if unseen > 0 { is >= held } else { is == held };
            ensure!(agrees, "{is} of {} in use, grants hold {held}", NAMES[at]);
        }
        Ok(())
    }

    /// Every grant that is not settled is listed once on every account it names, unseen ones too.
    fn check_holders(&self, snapshot: &Snapshot) -> Result<(), String> {
        for account in &snapshot.accounts {
            let names = |job: &Job| {
                let mut parts = self.ledger.demand(*job).iter();
                parts.any(|part| NAMES[part.0] == &*account.name)
            };
            let held = self.holding.iter().filter(|(_, holding)| !holding.is_settled);
            let (is, right) = (account.holders.len(), held.filter(|(job, _)| names(job)).count());
            let agrees = is >= right && is <= right + snapshot.unseen.count;
            ensure!(agrees, "{is} hold some of {}, should be {right}", account.name);
        }
        Ok(())
    }

    fn comes_back(&self, model: &Model, at: usize) -> bool {
        comes_back(at) && !(model.spoilt && at == OWN)
    }

    fn in_use(&self, at: usize) -> u64 {
        match kind(at) {
            Kind::Own => u64::from(self.limits.own.used()),
            _ => self.limits.account(at).in_use(Instant::now()),
        }
    }

    /// Asks the real accounts: at rest nobody waits who could go, nor who is refused.
    fn nobody_could_go(&self, model: &Model, line: &[Job]) -> Result<(), String> {
        let memory = self.limits.memory.as_ref();
        if model.panics || memory.is_some_and(|(gate, _)| gate.status().held > 0) {
            // To ask would be to panic; and what memory says is no matter of the accounts.
            return Ok(());
        }
        let head = line.first().map(|&head| self.ledger.demand(head));
        for (place, &job) in line.iter().enumerate() {
            let mut fits = true;
            for &(at, mine) in self.ledger.demand(job) {
                let heads = head.into_iter().flatten().filter(|part| place > 0 && part.0 == at);
                let ahead = heads.map(|part| part.1).next().unwrap_or(Amount::NONE);
                let ask = Ask::new(0, mine, Instant::now()).behind(ahead);
                match self.limits.account(at).fits(&ask) {
                    Ok(answer) => fits &= answer,
                    Err(refusal) => return Err(format!("job {job} waits for: {refusal}")),
                }
            }
            ensure!(!fits, "job {job} waits and could go");
        }
        Ok(())
    }

    /// Everything is opened, released and waited for: everybody who waits goes, and nothing is left.
    pub(crate) fn end(mut self, model: &Model) -> Result<Self, String> {
        self.inside(async |world| {
            if model.life == Life::Unstarted {
                world.act(model, &Transition::Start).await?;
            }
            world.act(model, &Transition::Calm).await?;
            world.act(model, &Transition::Memory(100)).await?;
            // As large as anything that may wait for them.
            world.act(model, &Transition::ResizeOwn(100)).await?;
            for at in GATES {
                world.act(model, &Transition::Resize(at, 100)).await?;
            }
            for _ in 0..=model.next {
                world.rest().await?;
                world.collect(model)?;
                world.holding.clear();
                world.rest().await?;
                if world.waiting.is_empty() {
                    break;
                }
                // Long enough for the deepest debt there can be, and a budget on top.
                world.pass_time(3_600_000).await?;
            }
            ensure!(
                world.waiting.is_empty(),
                "{:?} could go, and wait for ever",
                world.ledger.line
            );
            world.ledger.end(model.spoilt)?;
            let drained = world.admission.drained();
            let drained = tokio::time::timeout(Duration::from_secs(1), drained).await;
            ensure!(drained.is_ok(), "nobody is left, and it is not drained");
            world.pass_time(3_600_000).await?;
            let snapshot = world.admission.snapshot();
            for account in &snapshot.accounts {
                let name = &account.name;
                ensure!(account.waiting == 0, "{} wait for {name}", account.waiting);
                let is_spoilt = model.spoilt && &**name == NAMES[OWN];
                let is_memory = &**name == NAMES[MEMORY];
                ensure!(
                    account.in_use == 0 || is_spoilt || is_memory,
                    "{} of {name} in use",
                    account.in_use
                );
            }
            Ok(())
        })?;
        self.check(model)?;
        Ok(self)
    }

    /// The accounts, the evaluator and the lanes go with their owners.
    pub(crate) fn vanish(mut self) -> Result<(), String> {
        let runtime = self.runtime.take().expect("it is there between two steps");
        let metrics = runtime.metrics();
        let (accounts, lanes) = runtime.block_on(async {
            let accounts = self.limits.weak();
            // The gates are fresh by now, and go; a bucket that was slowed down is kept.
            for _ in 0..8 {
                drop(self.limits.account(LANES[0]));
            }
            let lanes = self.limits.lanes.len();
            drop(self);
            for _ in 0..16 {
                tokio::task::yield_now().await;
            }
            (accounts, lanes)
        });
        ensure!(lanes <= 2, "{lanes} lanes are kept, and nobody uses them");
        let alive = metrics.num_alive_tasks();
        ensure!(alive == 0, "{alive} tasks are left");
        for (at, account) in accounts.iter().enumerate() {
            ensure!(account.upgrade().is_none(), "{} is left", NAMES[at]);
        }
        Ok(())
    }
}
