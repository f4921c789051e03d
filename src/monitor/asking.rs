//! Putting questions to accounts, with their panics contained.
//!
//! Free functions over a demand: they know neither the line nor the lock, and decide nothing. "Not
//! now" and "never" come back as different things.

use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio::time::Instant;

use super::taken::Taken;
use crate::account::{Ask, Refusal};
use crate::demand::{Demand, Entry};
use crate::error::{AccountPanic, AdmitError, Defect, Shortage};
use crate::sync::Arc;

/// Who asks, when, and behind whom.
#[derive(Clone, Copy)]
pub(crate) struct Asking<'a> {
    pub(crate) id: u64,
    pub(crate) now: Instant,
    /// The head of the line, whose amounts are set aside; `None` when the asker stands first.
    pub(crate) head: Option<&'a Demand>,
}

impl Asking<'_> {
    fn ask(&self, entry: &Entry) -> Ask {
        let ask = Ask::new(self.id, entry.amount(), self.now);
        match self.head {
            Some(head) => ask.behind(head.amount_on(entry.id())),
            None => ask,
        }
    }
}

/// A "never", and the entry it comes from.
#[derive(Debug)]
pub(crate) struct Never {
    pub(crate) index: u32,
    pub(crate) error: AdmitError,
}

/// Whether a take of any of these accounts has an effect that giving it back does not undo.
pub(crate) fn is_delicate(demand: &Demand) -> bool {
    demand.entries().iter().any(|entry| entry.link().is_delicate())
}

/// What is known before any account is asked: an overflowed sum, a broken or quarantined account.
pub(crate) fn precheck(demand: &Demand) -> Result<(), Never> {
    let list = demand.list();
    if let Some((index, source)) = &list.fault {
        return Err(faulty(&list.entries[*index as usize], *index, source.clone()));
    }
    if let Some(index) = list.saturated {
        let refusal = Refusal::new(
            "the amounts add up to more than can be counted, which can never be granted; ask for less",
        );
        return Err(refused(&list.entries[index as usize], index, refusal));
    }
    Ok(())
}

/// Surveys every entry: fills `short` with the positions that do not fit now.
pub(crate) fn survey(
    demand: &Demand,
    asking: Asking<'_>,
    short: &mut Vec<u32>,
) -> Result<(), Never> {
    short.clear();
    for (entry, index) in demand.entries().iter().zip(0..) {
        if entry.link().is_quarantined() {
            return Err(quarantined(entry, index));
        }
        match AccountPanic::catch("fits", || entry.fits(&asking.ask(entry))) {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => short.push(index),
            Ok(Err(refusal)) => return Err(refused(entry, index, refusal)),
            Err(panic) => return Err(faulty(entry, index, panic)),
        }
    }
    Ok(())
}

/// When the clock alone makes one account say yes.
pub(crate) fn earliest(
    entry: &Entry,
    index: u32,
    asking: Asking<'_>,
) -> Result<Option<Instant>, Never> {
    AccountPanic::catch("earliest_fit", || entry.account().earliest_fit(&asking.ask(entry)))
        .map_err(|panic| faulty(entry, index, panic))
}

/// What came of an attempt to take a whole demand.
pub(crate) enum Take {
    /// All of it is taken.
    All,
    /// Nothing is: the entry at this position did not fit.
    Short(u32),
    /// Nothing is, and waiting would not help.
    Never(Box<Never>),
    /// Of one account something may be: it panicked while it was given back to.
    Defect(Box<Defect>),
}

/// Debits a demand whole, in order of account id, or leaves everything as it was.
///
/// What a failed attempt had taken is given back before this returns, so the caller's critical
/// section hides it from this admission; other admissions may have asked an account meanwhile, so
/// they are told.
/// What was taken is noted in `taken`, which is to be made for this instant.
pub(crate) fn take_all(
    demand: &Demand,
    asking: Asking<'_>,
    admission: u64,
    taken: &mut Taken,
) -> Take {
    let list = demand.list();
    let mut done = 0;
    // One net under all takes: it costs the same as one under each of them only when it is needed.
    let attempt = catch_unwind(AssertUnwindSafe(|| {
        for &index in &list.order {
            let entry = &list.entries[index as usize];
            if entry.link().is_quarantined() {
                return Some(Take::Never(Box::new(quarantined(entry, index))));
            }
            match entry.try_take(&asking.ask(entry)) {
                Ok(Some(at)) if at == asking.now => {}
                Ok(Some(at)) => taken.part_mut(index as usize, demand).at = at,
                Ok(None) => return Some(Take::Short(index)),
                Err(refusal) => {
                    return Some(Take::Never(Box::new(refused(entry, index, refusal))));
                }
            }
            done += 1;
        }
        None
    }));
    let failed = match attempt {
        Ok(None) => return Take::All,
        Ok(Some(failed)) => failed,
        Err(payload) => {
            let index = list.order[done];
            let entry = &list.entries[index as usize];
            Take::Never(Box::new(faulty(entry, index, AccountPanic::of("try_take", payload))))
        }
    };
    let mut defect = None;
    for &index in list.order[..done].iter().rev() {
        let entry = &list.entries[index as usize];
        let charge = taken.part(index as usize, demand).charge(asking.id);
        if let Err(panic) = AccountPanic::catch("give", || entry.give(&charge, asking.now)) {
            // The others still get back what is theirs: they may serve other admissions.
            let what = format!("`{}` could not take back a failed attempt", entry.name());
            defect.get_or_insert_with(|| Box::new(Defect::new(what, panic.message)));
        }
        entry.link().tell_others(admission);
    }
    defect.map_or(failed, Take::Defect)
}

/// The shortage of one entry, for an error or a snapshot.
pub(crate) fn shortage(entry: &Entry, asking: Asking<'_>) -> Shortage {
    let ask = asking.ask(entry);
    let account = entry.account();
    Shortage {
        account: Arc::clone(entry.name()),
        wanted: ask.mine,
        reserved_ahead: ask.reserved_ahead,
        in_use: AccountPanic::catch("in_use", || account.in_use(asking.now)).unwrap_or_default(),
        capacity: AccountPanic::catch("capacity", || account.capacity()).unwrap_or_default(),
        summary: AccountPanic::catch("summary", || account.summary(asking.now)).unwrap_or_default(),
        retry_at: AccountPanic::catch("earliest_fit", || account.earliest_fit(&ask))
            .unwrap_or_default(),
    }
}

fn refused(entry: &Entry, index: u32, refusal: Refusal) -> Never {
    Never { index, error: AdmitError::Refused { account: Arc::clone(entry.name()), refusal } }
}

fn faulty(entry: &Entry, index: u32, source: AccountPanic) -> Never {
    Never { index, error: AdmitError::AccountFault { account: Arc::clone(entry.name()), source } }
}

fn quarantined(entry: &Entry, index: u32) -> Never {
    let message = "it could not take back what a job held, and is out of use since".to_owned();
    faulty(entry, index, AccountPanic { method: "give", message })
}
