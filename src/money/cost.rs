//! What something costs, in as many currencies as it takes.

use std::fmt;

use super::{Currency, Money, Sum};

/// A sum of money, per currency.
///
/// One job may call models that are priced in different currencies, and nothing here knows a rate
/// between them: so a cost has an amount for each, in the order in which they were first added.
///
/// Sums are exact: a thousand times 0.001 is 1. What is more than [`Decimal::MAX`](crate::Decimal)
/// is shown as that, and what has more digits than a decimal is shown rounded; as data it travels as
/// it is shown. Two costs are equal when they are the same amount in every currency, in
/// whatever order, and one that is not there counts as zero.
///
/// # Examples
///
/// ```
/// use admit::{Cost, Currency, Money};
///
/// let mut cost = Cost::new();
/// cost.add(Money::usd("0.02".parse().unwrap()));
/// cost.add(Money::new("0.5".parse().unwrap(), Currency::EUR));
/// cost.add(Money::usd("0.01".parse().unwrap()));
/// assert_eq!(cost.to_string(), "0.030000 USD + 0.500000 EUR");
/// assert_eq!(cost.in_currency(Currency::USD), Money::usd("0.03".parse().unwrap()));
/// ```
#[derive(Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "Vec<Money>", into = "Vec<Money>"))]
pub struct Cost {
    sums: Vec<(Currency, Sum)>,
}

impl Cost {
    /// Nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { sums: Vec::new() }
    }

    /// Adds an amount to what there is of its currency.
    pub fn add(&mut self, money: Money) {
        self.add_sum(money.currency, Sum::of(money.amount));
    }

    /// The amount of each currency that was added, in the order they were first.
    pub fn iter(&self) -> impl Iterator<Item = Money> {
        self.sums().map(|(currency, sum)| Money::new(sum.to_decimal(), currency))
    }

    /// The amount of one currency; zero when none was added.
    #[must_use]
    pub fn in_currency(&self, currency: Currency) -> Money {
        Money::new(self.sum_in(currency).to_decimal(), currency)
    }

    /// Whether it is nothing in every currency.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.sums().all(|(_, sum)| sum == Sum::ZERO)
    }

    /// The sums themselves: what is exact where a [`Money`] would be rounded.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (Currency, Sum)> {
        self.sums.iter().copied()
    }

    pub(crate) fn add_sum(&mut self, currency: Currency, sum: Sum) {
        match self.sums.iter_mut().find(|(there, _)| *there == currency) {
            Some((_, there)) => *there = there.plus(sum),
            None => self.sums.push((currency, sum)),
        }
    }

    fn sum_in(&self, currency: Currency) -> Sum {
        self.sums().find(|(there, _)| *there == currency).map_or(Sum::ZERO, |(_, sum)| sum)
    }
}

impl PartialEq for Cost {
    fn eq(&self, other: &Self) -> bool {
        let covers = |one: &Self, other: &Self| {
            one.sums().all(|(currency, sum)| other.sum_in(currency) == sum)
        };
        covers(self, other) && covers(other, self)
    }
}

impl Eq for Cost {}

impl From<Money> for Cost {
    fn from(money: Money) -> Self {
        Self { sums: vec![(money.currency, Sum::of(money.amount))] }
    }
}

impl Extend<Money> for Cost {
    fn extend<I: IntoIterator<Item = Money>>(&mut self, amounts: I) {
        amounts.into_iter().for_each(|money| self.add(money));
    }
}

impl FromIterator<Money> for Cost {
    fn from_iter<I: IntoIterator<Item = Money>>(amounts: I) -> Self {
        let mut cost = Self::new();
        cost.extend(amounts);
        cost
    }
}

impl From<Vec<Money>> for Cost {
    fn from(amounts: Vec<Money>) -> Self {
        amounts.into_iter().collect()
    }
}

impl From<Cost> for Vec<Money> {
    fn from(cost: Cost) -> Self {
        cost.iter().collect()
    }
}

/// `Cost[0.25 USD, 1 EUR]`, with every digit.
impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cost[")?;
        for (index, Money { amount, currency, .. }) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{} {currency}", amount.normalize())?;
        }
        f.write_str("]")
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.sums.is_empty() {
            return f.write_str("nothing");
        }
        for (index, money) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(" + ")?;
            }
            write!(f, "{money}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rust_decimal::Decimal;

    use super::*;

    fn usd(amount: &str) -> Money {
        Money::usd(amount.parse().unwrap())
    }

    fn eur(amount: &str) -> Money {
        Money::new(amount.parse().unwrap(), Currency::EUR)
    }

    #[test]
    fn a_thousand_times_a_thousandth_is_one() {
        let cost: Cost = (0..1_000).map(|_| usd("0.001")).collect();
        assert_eq!(cost.in_currency(Currency::USD), Money::usd(Decimal::ONE));
        assert_eq!(cost.to_string(), "1.000000 USD");
    }

    #[test]
    fn currencies_stand_in_the_order_they_came_and_the_order_makes_no_difference() {
        let cost = Cost::from_iter([eur("1"), usd("2"), eur("0.5")]);
        assert_eq!(cost.iter().collect::<Vec<_>>(), [eur("1.5"), usd("2")]);
        assert_eq!(cost.to_string(), "1.500000 EUR + 2.000000 USD");
        assert_eq!(format!("{cost:?}"), "Cost[1.5 EUR, 2 USD]");
        let francs = Money::zero("CHF".parse().unwrap());
        let other = Cost::from_iter([usd("2"), eur("1.5"), francs]);
        assert_eq!(cost, other);
        assert_eq!(other, cost);
        assert_ne!(cost, Cost::from(eur("1.5")));
        assert_ne!(Cost::from(eur("1.5")), cost);
    }

    #[test]
    fn nothing_reads_as_nothing_and_zero_as_zero() {
        assert_eq!(Cost::new().to_string(), "nothing");
        let tiny = Cost::from(usd("0.00000001"));
        assert_eq!(format!("{tiny:?}"), "Cost[0.00000001 USD]", "every digit");
        assert!(Cost::new().is_zero() && Cost::from(usd("0")).is_zero());
        assert_eq!(Cost::from(usd("0")).to_string(), "0.000000 USD");
        assert!(!Cost::from(usd("0.0000001")).is_zero());
        assert!(!Cost::from_iter([usd("0"), eur("1")]).is_zero());
        assert_eq!(Cost::new(), Cost::from(usd("0")));
    }

    #[test]
    fn past_the_maximum_a_cost_shows_the_maximum() {
        let most = Money::usd(Decimal::MAX);
        let cost = Cost::from_iter([most, most, usd("0.1")]);
        assert!(cost.in_currency(Currency::USD).is_saturated());
        assert_ne!(cost, Cost::from(most));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_cost_travels_as_a_list_of_money() {
        let cost = Cost::from_iter([usd("0.1"), eur("2")]);
        let text = serde_json::to_string(&cost).unwrap();
        let list = r#"[{"amount":"0.1","currency":"USD"},{"amount":"2","currency":"EUR"}]"#;
        assert_eq!(text, list);
        assert_eq!(serde_json::from_str::<Cost>(&text).unwrap(), cost);
    }
}
