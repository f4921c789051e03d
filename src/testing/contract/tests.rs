use super::*;
use crate::account::{AccountLink, Ask, Charge, Refusal, Replenishment};
use crate::error::ConfigError;
use crate::events::Category;
use crate::limits::{CountingGate, DatabaseGate, Limits, TokenBucket};
use crate::sync::Mutex;
use tokio::time::Instant;

#[test]
fn the_counting_gate_keeps_the_contract() {
    AccountContract::new(|| CountingGate::new("gate", 8).unwrap())
        .permits_up_to(10)
        .event("resize", |gate, draw| gate.resize(draw.between(1..=12) as u32).unwrap())
        .assert();
    AccountContract::new(|| CountingGate::builder("gate", 3).track_activity(true).build().unwrap())
        .assert();
    AccountContract::new(|| DatabaseGate::new("main", 3).unwrap())
        .event("resize", |gate, draw| gate.resize(draw.between(1..=4) as u32).unwrap())
        .assert();
}

#[test]
fn the_token_bucket_keeps_the_contract() {
    AccountContract::new(|| TokenBucket::new("bucket", Limits::per_minute(10, 1_000)).unwrap())
        .tokens_up_to(1_100)
        .sequences(300)
        .event("set_limits", |bucket, draw| {
            let (requests, tokens) = (draw.between(1..=20) as u32, draw.between(1..=2_000));
            bucket.set_limits(Limits::per_minute(requests, tokens)).unwrap();
        })
        .event("record_backpressure", |bucket, draw| {
            bucket.record_backpressure(draw.between(0..=3) as u32);
        })
        .event("record_success", |bucket, _| bucket.record_success())
        .event("status", |bucket, _| drop(bucket.status()))
        .assert();
}

#[test]
fn a_bucket_of_the_largest_caps_keeps_the_contract() {
    let limits = Limits::per_minute(u32::MAX, u64::MAX);
    AccountContract::new(move || TokenBucket::new("bucket", limits).unwrap())
        .amounts(|draw| Amount {
            requests: draw.any() as u32 / 2,
            units: draw.between(0..=u64::MAX - 1) >> draw.between(0..=8),
        })
        .span(Duration::from_secs(10 * 365 * 86_400))
        .assert();
}

#[tokio::test]
async fn the_contract_may_be_run_inside_a_runtime() {
    AccountContract::new(|| CountingGate::new("gate", 2).unwrap()).sequences(3).assert();
}

/// How the [`Faulty`] account breaks the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    FavoursTheLarge,
    IgnoresTheReservation,
    OpensTooEarly,
    OpensTooLate,
    OpensUntold,
    NamesThePast,
    GrowsSilently,
    ComesNearerSilently,
    RefusesSilently,
    AnnouncesAGive,
    Leaks,
    LeaksAtTheEnd,
    TakesWhatDoesNotFit,
    ChangesItsNature,
    PanicsAtNothing,
    GrantsTheUncountable,
}

/// A gate that is closed for ten seconds after every take, unless broken.
struct Faulty {
    link: AccountLink,
    fault: Fault,
    state: Mutex<Shop>,
}

#[derive(Debug)]
struct Shop {
    seats: u32,
    taken: u32,
    opens_at: Option<Instant>,
    /// Takes so far.
    count: u32,
}

impl Faulty {
    fn fresh(fault: Fault) -> Result<Arc<Self>, ConfigError> {
        let state = Mutex::new(Shop { seats: 6, taken: 0, opens_at: None, count: 0 });
        Ok(Arc::new(Self { link: AccountLink::new("faulty")?, fault, state }))
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn contract(fault: Fault) -> AccountContract<Self> {
        AccountContract::new(move || Self::fresh(fault).unwrap())
            .permits_up_to(7)
            .event("hire", |shop, draw| shop.hire(draw.between(1..=8) as u32))
            .event("open", |shop, draw| shop.open(draw.between(0..=9)))
    }

    fn hire(&self, seats: u32) {
        let before = std::mem::replace(&mut self.state.lock().seats, seats);
        if seats > before && !self.is(Fault::GrowsSilently) {
            self.link.grew();
        }
        if seats < before && !self.is(Fault::RefusesSilently) {
            self.link.may_refuse();
        }
    }

    /// Opens in so many seconds at the latest.
    fn open(&self, seconds: u64) {
        let mut state = self.state.lock();
        let at = Instant::now() + Duration::from_secs(seconds);
        let nearer = state.opens_at.is_some_and(|opens| at < opens);
        if nearer {
            state.opens_at = Some(at);
        }
        drop(state);
        if nearer && !(seconds > 0 && self.is(Fault::ComesNearerSilently)) {
            self.link.grew();
        }
    }

    fn has_room(&self, ask: &Ask, state: &Shop) -> bool {
        let wanted = match self.fault {
            Fault::FavoursTheLarge if ask.mine.requests < 2 && state.taken > 0 => return false,
            Fault::IgnoresTheReservation => ask.mine.requests,
            _ => ask.total().requests,
        };
        state.taken.saturating_add(wanted) <= state.seats
    }

    /// When the doors really open.
    fn really_opens_at(&self, opens_at: Instant) -> Instant {
        match self.fault {
            Fault::OpensTooEarly => opens_at - Duration::from_secs(1),
            Fault::OpensTooLate => opens_at + Duration::from_millis(1),
            _ => opens_at,
        }
    }
}

impl Account for Faulty {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn category(&self) -> Category {
        Category::Other("shop".into())
    }

    fn capacity(&self) -> u64 {
        u64::from(self.state.lock().seats)
    }

    fn in_use(&self, _: Instant) -> u64 {
        u64::from(self.state.lock().taken)
    }

    fn summary(&self, _: Instant) -> String {
        format!("{:?}", self.state.lock())
    }

    fn replenishment(&self) -> Replenishment {
        match self.is(Fault::ChangesItsNature) && self.state.lock().count > 3 {
            true => Replenishment::Time,
            false => Replenishment::Release,
        }
    }

    fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        let state = self.state.lock();
        assert!(!(self.is(Fault::PanicsAtNothing) && ask.mine.is_none()), "nothing asked");
        if self.is(Fault::GrantsTheUncountable) && ask.mine.units == u64::MAX {
            return Ok(true);
        }
        if ask.mine.requests > state.seats || ask.mine.is_saturated() {
            return Err(Refusal::never_fits(ask.mine, Amount::permits(state.seats)));
        }
        if state.opens_at.is_some_and(|at| ask.now < self.really_opens_at(at)) {
            return Ok(false);
        }
        let has_room = self.has_room(ask, &state);
        drop(state);
        Ok(has_room)
    }

    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        let fits = self.fits(ask)?;
        let greedy = self.is(Fault::TakesWhatDoesNotFit);
        let mut state = self.state.lock();
        let takes_anyway = greedy && state.count % 4 == 1;
        if !fits && !takes_anyway {
            return Ok(None);
        }
        state.taken = state.taken.saturating_add(ask.mine.requests);
        state.count += 1;
        if state.count.is_multiple_of(3) {
            state.opens_at = Some(ask.now + Duration::from_secs(10));
        }
        drop(state);
        Ok(Some(ask.now))
    }

    fn give(&self, charge: &Charge, now: Instant) -> Amount {
        let mut state = self.state.lock();
        let lost = match self.fault {
            Fault::Leaks => 1,
            Fault::LeaksAtTheEnd => u32::from(now > charge.at),
            _ => 0,
        };
        state.taken -= charge.amount.requests.saturating_sub(lost);
        if state.opens_at == Some(charge.at + Duration::from_secs(10)) {
            state.opens_at = None;
            state.count -= 1;
        }
        drop(state);
        if self.is(Fault::AnnouncesAGive) {
            self.link.grew();
        }
        charge.amount
    }

    fn earliest_fit(&self, ask: &Ask) -> Option<Instant> {
        let state = self.state.lock();
        let fits = self.has_room(ask, &state);
        let at = state.opens_at.filter(|at| fits && ask.now < *at)?;
        drop(state);
        match self.fault {
            Fault::OpensUntold => None,
            Fault::NamesThePast => Some(ask.now),
            _ => Some(at),
        }
    }
}

#[test]
fn an_account_without_a_fault_passes() {
    Faulty::contract(Fault::None).assert();
}

#[test]
fn every_fault_is_caught_and_named() {
    for (fault, law) in [
        (Fault::FavoursTheLarge, Law::Monotone),
        (Fault::IgnoresTheReservation, Law::Monotone),
        (Fault::OpensTooEarly, Law::Punctual),
        (Fault::OpensTooLate, Law::Punctual),
        (Fault::OpensUntold, Law::Punctual),
        (Fault::NamesThePast, Law::Punctual),
        (Fault::GrowsSilently, Law::Announced),
        (Fault::ComesNearerSilently, Law::Announced),
        (Fault::RefusesSilently, Law::Announced),
        (Fault::AnnouncesAGive, Law::Announced),
        (Fault::Leaks, Law::Balanced),
        (Fault::LeaksAtTheEnd, Law::Balanced),
        (Fault::TakesWhatDoesNotFit, Law::Balanced),
        (Fault::ChangesItsNature, Law::Steady),
        (Fault::PanicsAtNothing, Law::Steady),
        (Fault::GrantsTheUncountable, Law::Steady),
    ] {
        let violation = match Faulty::contract(fault).check() {
            Err(violation) => violation,
            Ok(()) => panic!("{fault:?} passes"),
        };
        assert_eq!(violation.law, law, "{fault:?}: {violation}");
        let seed = violation.seed;
        let again = Faulty::contract(fault).seed(seed).sequences(1).check().unwrap_err();
        assert_eq!(again.step, violation.step, "{fault:?} is not repeated by its seed");
        let text = violation.to_string();
        let named = format!("`faulty` is not {law}");
        assert!(text.starts_with(&named) && text.contains(&format!("seed {seed}")), "{text}");
    }
}

#[test]
#[should_panic(expected = "`faulty` is not balanced")]
fn assert_panics_with_the_violation() {
    Faulty::contract(Fault::Leaks).assert();
}
