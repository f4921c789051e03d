//! The rules written out in whole millionths, against the ledger.

use proptest::prelude::*;

use super::*;

const WORKFLOWS: [&str; 2] = ["daily", "nightly"];
const CURRENCIES: [Currency; 2] = [Currency::USD, Currency::EUR];

/// What a job calls: per call a currency and millionths, or a model without prices.
type Calls = Vec<Option<(usize, u32)>>;

#[derive(Clone, Debug)]
enum Step {
    Admit { workflow: usize, calls: Calls },
    Settle { which: prop::sample::Index, actual: Vec<(usize, u32)> },
    Drop(prop::sample::Index),
    SetCap { workflow: usize, currency: usize, cap: u32 },
    LiftCap { workflow: usize, currency: usize },
    Forget(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let amount = || (0..2_usize, 0..60_u32);
    let call = prop_oneof![9 => amount().prop_map(Some), 1 => Just(None)];
    let admit = (0..2_usize, prop::collection::vec(call, 1..4));
    let settle = (any::<prop::sample::Index>(), prop::collection::vec(amount(), 0..3));
    prop_oneof![
        8 => admit.prop_map(|(workflow, calls)| Step::Admit { workflow, calls }),
        4 => settle.prop_map(|(which, actual)| Step::Settle { which, actual }),
        2 => any::<prop::sample::Index>().prop_map(Step::Drop),
        3 => (0..2_usize, 0..2_usize, 0..200_u32)
            .prop_map(|(workflow, currency, cap)| Step::SetCap { workflow, currency, cap }),
        1 => (0..2_usize, 0..2_usize)
            .prop_map(|(workflow, currency)| Step::LiftCap { workflow, currency }),
        1 => (0..2_usize).prop_map(Step::Forget),
    ]
}

/// A job under way: its workflow and the workflow's life it began in, and what it reserved.
struct Held {
    workflow: usize,
    life: u32,
    reserved: [u64; 2],
    reservation: Reservation,
}

/// Spent, committed and capped, a currency each.
#[derive(Clone, Copy, Default)]
struct Figures {
    life: u32,
    spent: [u64; 2],
    committed: [u64; 2],
    caps: [Option<u64>; 2],
}

impl Figures {
    /// Whether a job passes, and what it reserves.
    fn weigh(&self, calls: &Calls) -> Option<[u64; 2]> {
        let is_capped = self.caps.iter().any(Option::is_some);
        let mut reserved = [0; 2];
        for call in calls {
            match *call {
                None if is_capped => return None,
                None => {}
                Some((currency, _)) if is_capped && self.caps[currency].is_none() => return None,
                Some((currency, amount)) => reserved[currency] += u64::from(amount),
            }
        }
        let named = |currency| calls.iter().flatten().any(|(named, _)| *named == currency);
        let fits = |currency: usize| {
            let total = self.spent[currency] + self.committed[currency] + reserved[currency];
            !named(currency) || self.caps[currency].is_none_or(|cap| total <= cap)
        };
        (fits(0) && fits(1)).then_some(reserved)
    }
}

fn money(currency: usize, millionths: u64) -> Money {
    Money::new(Decimal::new(millionths.try_into().unwrap(), 6), CURRENCIES[currency])
}

fn cost(amounts: [u64; 2]) -> Cost {
    (0..2).map(|currency| money(currency, amounts[currency])).collect()
}

#[derive(Default)]
struct Run {
    ledger: Arc<SpendLedger>,
    figures: [Figures; 2],
    held: Vec<Held>,
}

impl Run {
    fn step(&mut self, step: Step) {
        match step {
            Step::Admit { workflow, calls } => self.admit(workflow, &calls),
            Step::Settle { which, actual } if !self.held.is_empty() => {
                let held = self.held.swap_remove(which.index(self.held.len()));
                self.end(held, Some(actual));
            }
            Step::Drop(which) if !self.held.is_empty() => {
                let held = self.held.swap_remove(which.index(self.held.len()));
                self.end(held, None);
            }
            Step::Settle { .. } | Step::Drop(_) => {}
            Step::SetCap { workflow, currency, cap } => {
                self.figures[workflow].caps[currency] = Some(cap.into());
                let cap = money(currency, cap.into());
                self.ledger.set_cap(WORKFLOWS[workflow], cap).unwrap();
            }
            Step::LiftCap { workflow, currency } => {
                let was = self.figures[workflow].caps[currency].take();
                let lifted = self.ledger.lift_cap(WORKFLOWS[workflow], CURRENCIES[currency]);
                assert_eq!(lifted, was.map(|cap| money(currency, cap)));
            }
            Step::Forget(workflow) => {
                let figures = &mut self.figures[workflow];
                let spent = self.ledger.forget(WORKFLOWS[workflow]);
                assert_eq!(spent, cost(figures.spent));
                *figures = Figures { life: figures.life + 1, ..Figures::default() };
            }
        }
        self.check();
    }

    fn admit(&mut self, workflow: usize, calls: &Calls) {
        let job = JobInfo::new("1", "job").in_workflow(WORKFLOWS[workflow]);
        let priced: Vec<_> = calls
            .iter()
            .map(|call| match *call {
                Some((currency, amount)) => costs(money(currency, amount.into())),
                None => unpriced(),
            })
            .collect();
        let figures = &mut self.figures[workflow];
        match (figures.weigh(calls), self.ledger.admit(&job, &priced)) {
            (Some(reserved), Ok(reservation)) => {
                for (committed, reserved) in figures.committed.iter_mut().zip(reserved) {
                    *committed += reserved;
                }
                self.held.push(Held { workflow, life: figures.life, reserved, reservation });
            }
            (None, Err(_)) => {}
            (weighed, answer) => panic!("{calls:?}: expected {weighed:?}, got {answer:?}"),
        }
    }

    fn end(&mut self, held: Held, actual: Option<Vec<(usize, u32)>>) {
        let Held { workflow, life, reserved, reservation } = held;
        let figures = &mut self.figures[workflow];
        let mut spent = [0; 2];
        for (currency, amount) in actual.iter().flatten() {
            spent[*currency] += u64::from(*amount);
        }
        if life == figures.life {
            for currency in 0..2 {
                figures.committed[currency] -= reserved[currency];
                figures.spent[currency] += spent[currency];
            }
        }
        match actual {
            Some(_) => reservation.settle(&cost(spent)),
            None => drop(reservation),
        }
    }

    fn check(&self) {
        for (workflow, figures) in WORKFLOWS.into_iter().zip(&self.figures) {
            assert_eq!(self.ledger.spent(workflow), cost(figures.spent));
            assert_eq!(self.ledger.committed(workflow), cost(figures.committed));
            let status = self.ledger.status(workflow);
            let caps = status.iter().filter_map(|status| status.cap);
            let expected = (0..2)
                .filter_map(|currency| figures.caps[currency].map(|cap| money(currency, cap)));
            assert!(caps.clone().all(|cap| expected.clone().any(|other| other == cap)));
            assert_eq!(caps.count(), expected.count());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// No job passes that would take spent and committed above a cap, every one that fits passes,
    /// and every figure is exact after every step.
    #[test]
    fn the_ledger_is_the_plain_sums(steps in prop::collection::vec(step(), 1..60)) {
        let mut run = Run::default();
        for step in steps {
            run.step(step);
        }
        while let Some(held) = run.held.pop() {
            run.end(held, None);
        }
        run.check();
        prop_assert!(WORKFLOWS.iter().all(|workflow| run.ledger.committed(workflow).is_zero()));
    }
}
