//! Caps on what workflows spend.

mod book;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use rust_decimal::Decimal;

use self::book::Book;
use super::spend::{Priced, Reservation, SpendGate, SpendRefusal};
use crate::amount::JobInfo;
use crate::error::ConfigError;
use crate::money::{Cost, Currency, Money};
use crate::sync::{Arc, Mutex};

pub use self::book::SpendStatus;

/// A [`SpendGate`] that caps what a workflow spends, in each currency.
///
/// For every workflow and currency it keeps what is **spent** by jobs that have ended, what is
/// **committed** to jobs under way, and the **cap**, if there is one. A job is refused when
/// `spent + committed + reservation > cap`; what comes to exactly the cap passes. The check and the
/// commitment are one step, so that any number of jobs at once never exceed the cap together; and
/// they are one step for all the currencies of a job.
///
/// When a job ends, its reservation is replaced by what it really cost, whatever came of it, and even
/// above the cap: then the next are refused. When it never ran, its reservation is taken back.
///
/// - A workflow without any cap is admitted and counted, so that a cap set later knows what went
///   before. A [`strict`](Self::strict) ledger refuses it: a name that is misspelt is one.
/// - Under a workflow with a cap in any currency, a model without prices is refused, and so is one
///   priced in a currency without a cap: a cap that some calls pass by is none.
/// - A job of no workflow is neither refused nor counted, but by a strict ledger refused.
/// - A cap of zero lets only what is free pass, and once more is spent than the cap, not even that.
/// - What is priced below zero reserves nothing: one job's reservation makes no room for another.
/// - A reservation of [`Decimal::MAX`] is more than can be counted, and fits under no cap.
///
/// Sums are exact, and what was committed can always be taken back to the last digit.
///
/// A workflow's figures stay until [`forget`](Self::forget) is called with its name.
///
/// # Examples
///
/// ```
/// use admit::{Cost, JobInfo, ModelSpec, Money, Priced, Prices, SpendGate, SpendLedger, Usage};
///
/// let ledger = SpendLedger::new();
/// ledger.set_cap("nightly", Money::usd("0.05".parse()?))?;
///
/// let prices = Prices::per_million("10".parse()?, "30".parse()?);
/// let model = ModelSpec::new("gpt-x", 30_000).with_prices(prices);
/// let job = JobInfo::new("1", "summarise").in_workflow("nightly");
/// let calls = [Priced::of(&model, Usage::new(1_000, 1_000))];
///
/// let first = ledger.admit(&job, &calls)?; // reserves 0.04
/// assert!(ledger.admit(&job, &calls).is_err());
///
/// first.settle(&Cost::from(Money::usd("0.01".parse()?)));
/// assert_eq!(ledger.spent("nightly").to_string(), "0.010000 USD");
/// drop(ledger.admit(&job, &calls)?); // there is room again
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct SpendLedger {
    /// One lock a workflow, so that workflows do not wait for each other; this one only finds it,
    /// and is never held with the other. A reservation keeps its workflow's book itself: where that
    /// was forgotten meanwhile, it settles in a book nobody reads.
    books: Mutex<BTreeMap<Arc<str>, Arc<Mutex<Book>>>>,
    /// What has no cap is refused.
    is_strict: bool,
}

impl SpendLedger {
    /// A ledger without caps.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// A ledger that refuses whatever calls a model and has no cap: a workflow without one, and a job
    /// of no workflow.
    ///
    /// # Examples
    ///
    /// ```
    /// use admit::{JobInfo, Money, ModelSpec, Priced, SpendGate, SpendLedger, Usage};
    ///
    /// let ledger = SpendLedger::strict();
    /// ledger.set_cap("nightly", Money::usd("5".parse()?))?;
    ///
    /// let misspelt = JobInfo::new("1", "summarise").in_workflow("nigthly");
    /// let calls = [Priced::of(&ModelSpec::new("gpt-x", 30_000), Usage::new(1_000, 1_000))];
    /// assert!(ledger.admit(&misspelt, &calls).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn strict() -> Arc<Self> {
        Arc::new(Self { is_strict: true, ..Self::default() })
    }

    /// Sets what a workflow may spend in the cap's currency, in place of what was set before.
    ///
    /// It holds from the next job on. A cap below what is spent already is no mistake: it lets
    /// those who run end, and admits nobody more.
    ///
    /// # Errors
    ///
    /// When the cap is negative.
    pub fn set_cap(&self, workflow: &str, cap: Money) -> Result<(), ConfigError> {
        if cap.amount < Decimal::ZERO {
            return Err(ConfigError::new("cap", cap, "must not be negative").of(workflow));
        }
        self.open(workflow).lock().set_cap(cap);
        Ok(())
    }

    /// Lifts a workflow's cap in one currency, and says what it was. Spending is counted on.
    ///
    /// With its last cap lifted, the workflow is uncapped.
    pub fn lift_cap(&self, workflow: &str, currency: Currency) -> Option<Money> {
        self.book(workflow)?.lock().lift_cap(currency)
    }

    /// What the workflow's jobs that have ended cost.
    #[must_use]
    pub fn spent(&self, workflow: &str) -> Cost {
        self.book(workflow).map_or_else(Cost::new, |book| book.lock().spent())
    }

    /// What the workflow's jobs under way have reserved.
    #[must_use]
    pub fn committed(&self, workflow: &str) -> Cost {
        self.book(workflow).map_or_else(Cost::new, |book| book.lock().committed())
    }

    /// All figures of a workflow at one moment, one entry a currency; empty when there are none.
    #[must_use]
    pub fn status(&self, workflow: &str) -> Vec<SpendStatus> {
        self.book(workflow).map_or_else(Vec::new, |book| book.lock().status())
    }

    /// The workflows it knows, by the alphabet: those that a cap was set for, and those of whose jobs it
    /// admitted one, until they are [forgotten](Self::forget).
    #[must_use]
    pub fn workflows(&self) -> Vec<Arc<str>> {
        self.books.lock().keys().cloned().collect()
    }

    /// Forgets a workflow that is over, its caps too, and says what it spent.
    ///
    /// Jobs of it that are still under way settle without a trace. One that comes later under the
    /// same name starts anew, without a cap.
    pub fn forget(&self, workflow: &str) -> Cost {
        let forgotten = self.books.lock().remove(workflow);
        forgotten.map_or_else(Cost::new, |book| book.lock().spent())
    }

    fn book(&self, workflow: &str) -> Option<Arc<Mutex<Book>>> {
        self.books.lock().get(workflow).cloned()
    }

    /// The workflow's book, a new one where there is none.
    fn open(&self, workflow: &str) -> Arc<Mutex<Book>> {
        let mut books = self.books.lock();
        if let Some(book) = books.get(workflow) {
            return Arc::clone(book);
        }
        let book = Arc::default();
        books.insert(workflow.into(), Arc::clone(&book));
        book
    }
}

impl SpendGate for SpendLedger {
    fn admit(&self, job: &JobInfo, priced: &[Priced]) -> Result<Reservation, SpendRefusal> {
        let must_be_capped = self.is_strict && !priced.is_empty();
        let uncapped = || SpendRefusal::Uncapped { workflow: job.workflow.clone() };
        let Some(workflow) = &job.workflow else {
            return if must_be_capped { Err(uncapped()) } else { Ok(Reservation::none()) };
        };
        let book = match self.book(workflow) {
            Some(book) => book,
            // Nothing is kept of a name that is refused.
            None if must_be_capped => return Err(uncapped()),
            None => self.open(workflow),
        };
        let reserved = {
            let mut book = book.lock();
            if must_be_capped && !book.is_capped() {
                return Err(uncapped());
            }
            book.commit(workflow, priced)?
        };
        Ok(Reservation::new(move |actual| book.lock().settle(&reserved, actual)))
    }
}
