//! Who may say no to what a job would cost, and what it is told.

mod refusal;
mod reservation;

pub use refusal::SpendRefusal;
pub use reservation::Reservation;

use crate::amount::JobInfo;
use crate::models::{ModelSpec, Usage};
use crate::money::Money;
use crate::sync::Arc;

/// One model a job will call, and what is set aside for it.
///
/// # Examples
///
/// ```
/// use admit::{Decimal, ModelSpec, Money, Priced, Prices, Usage};
///
/// let model = ModelSpec::new("gpt-x", 30_000)
///     .with_prices(Prices::per_million(Decimal::ONE, Decimal::TWO));
/// let priced = Priced::of(&model, Usage::new(1_000, 500));
/// assert_eq!(priced.cost, Some(Money::usd("0.002".parse().unwrap())));
///
/// assert_eq!(Priced::of(&ModelSpec::new("unpriced", 1), Usage::new(1, 1)).cost, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Priced {
    /// The model's id.
    pub model: Arc<str>,
    /// The tokens set aside.
    pub usage: Usage,
    /// What these tokens cost; `None` when the model has no prices, which is not the same as free.
    pub cost: Option<Money>,
}

impl Priced {
    /// The tokens of a model at its prices.
    #[must_use]
    pub fn of(model: &ModelSpec, usage: Usage) -> Self {
        let cost = model.prices.as_ref().map(|prices| prices.cost(usage));
        Self { model: model.id.as_str().into(), usage, cost }
    }
}

/// What a job would cost is shown to it before the job waits for anything, and it may refuse.
///
/// Several gates are asked one after the other. A refusal ends the asking, and what the gates before
/// had set aside is dropped. [`SpendLedger`](crate::SpendLedger) is one: a cap per workflow.
///
/// # Laws
///
/// - **One step.** Whether there is room is found out, and the room is taken, under one lock of the
///   gate's own: of a hundred jobs that ask at once, only those get a [`Reservation`] that fit
///   together.
/// - **All or nothing.** A refusal has taken nothing.
/// - **No blocking.** It is called from a job's future, and other jobs are on that thread. It does no
///   input or output and waits for nobody.
/// - **Free to call back.** It is called outside every lock of this crate, and so is what it gives to
///   [`Reservation::new`].
///
/// # Examples
///
/// ```
/// use admit::{Decimal, JobInfo, Priced, Reservation, SpendGate, SpendRefusal};
///
/// /// No single job above a dollar. It remembers nothing, so there is nothing to settle.
/// struct OneDollar;
///
/// impl SpendGate for OneDollar {
///     fn admit(&self, _: &JobInfo, priced: &[Priced]) -> Result<Reservation, SpendRefusal> {
///         for cost in priced.iter().filter_map(|priced| priced.cost) {
///             if cost.amount > Decimal::ONE {
///                 let reason = format!("{cost} for one call are above 1.000000");
///                 return Err(SpendRefusal::other("one-dollar", reason));
///             }
///         }
///         Ok(Reservation::none())
///     }
/// }
/// ```
pub trait SpendGate: Send + Sync + 'static {
    /// Takes the job's cost into account, or refuses the job.
    ///
    /// `priced` has one entry a model the job calls, and is not empty.
    ///
    /// # Errors
    ///
    /// The refusal is what the job ends with, as it is.
    fn admit(&self, job: &JobInfo, priced: &[Priced]) -> Result<Reservation, SpendRefusal>;
}

#[cfg(test)]
mod tests {
    use rust_decimal::Decimal;

    use super::*;
    use crate::models::Prices;

    #[test]
    fn a_model_without_prices_is_unpriced_and_one_at_zero_is_free() {
        let usage = Usage::new(10, 20);
        let model = ModelSpec::new("m", 1);
        let unpriced = Priced::of(&model, usage);
        assert_eq!((&*unpriced.model, unpriced.usage, unpriced.cost), ("m", usage, None));
        let free = model.with_prices(Prices::per_million(Decimal::ZERO, Decimal::ZERO));
        assert_eq!(Priced::of(&free, usage).cost, Some(Money::usd(Decimal::ZERO)));
    }
}
