use super::*;
use crate::account::{AccountLink, Ask, Charge, Refusal, Replenishment};
use crate::error::ConfigError;
use crate::events::Category;
use crate::limits::{CountingGate, DatabaseGate, Limits, TokenBucket};
use crate::sync::Mutex;
use crate::upstream::UpstreamFailure;
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
    ClaimsToReadNoClock,
    ClaimsToBeFresh,
    ForgetsThatItIsClosed,
    ForgetsThatItIsSlow,
    CorrectsAndAnswersTheOld,
    AnswersAndCorrectsNothing,
}

/// A gate that is closed for ten seconds after every third take, and for twenty since an upstream
/// failed, unless broken.
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
    is_slow: bool,
}

impl Shop {
    const fn closes_for(&self) -> Duration {
        Duration::from_secs(if self.is_slow { 20 } else { 10 })
    }
}

impl Faulty {
    fn fresh(fault: Fault) -> Result<Arc<Self>, ConfigError> {
        let state =
            Mutex::new(Shop { seats: 6, taken: 0, opens_at: None, count: 0, is_slow: false });
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
            state.opens_at = Some(ask.now + state.closes_for());
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
        state.taken = state.taken.saturating_sub(charge.amount.requests.saturating_sub(lost));
        if state.opens_at == Some(charge.at + state.closes_for()) {
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

    fn reads_clock(&self) -> bool {
        !self.is(Fault::ClaimsToReadNoClock)
    }

    /// Fewer may come than were announced, and not more.
    fn reconcile(&self, charge: &Charge, actual: u64, _: Instant) -> Amount {
        let announced = charge.amount.requests;
        let came = u32::try_from(actual).unwrap_or(announced).min(announced);
        if !self.is(Fault::AnswersAndCorrectsNothing) {
            let mut state = self.state.lock();
            state.taken = state.taken.saturating_sub(announced - came);
        }
        match self.fault {
            Fault::CorrectsAndAnswersTheOld => charge.amount,
            _ => Amount::permits(came),
        }
    }

    fn on_upstream_failure(&self, _: &UpstreamFailure, _: &Charge, _: Instant) {
        self.state.lock().is_slow = true;
    }

    fn is_fresh(&self, now: Instant) -> bool {
        let state = self.state.lock();
        let is_open = state.opens_at.is_none_or(|at| now >= self.really_opens_at(at));
        let is_at_the_start = state.count.is_multiple_of(3);
        let is_empty = state.taken == 0 && is_at_the_start;
        match self.fault {
            Fault::ClaimsToBeFresh => true,
            Fault::ForgetsThatItIsClosed => is_empty && !state.is_slow,
            Fault::ForgetsThatItIsSlow => is_empty && is_open,
            _ => is_empty && is_open && !state.is_slow,
        }
    }
}

#[test]
fn an_account_without_a_fault_passes() {
    for seed in [1, 10_000, 20_000] {
        Faulty::contract(Fault::None).seed(seed).assert();
    }
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
        (Fault::ClaimsToReadNoClock, Law::Honest),
        (Fault::ClaimsToBeFresh, Law::Honest),
        (Fault::ForgetsThatItIsClosed, Law::Honest),
        (Fault::ForgetsThatItIsSlow, Law::Honest),
        (Fault::CorrectsAndAnswersTheOld, Law::Balanced),
        (Fault::AnswersAndCorrectsNothing, Law::Balanced),
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
        let is_in_words = !["Ask {", "Amount {", "Instant {"].iter().any(|raw| text.contains(raw));
        assert!(is_in_words, "{fault:?}: {text}");
    }
}

#[test]
#[should_panic(expected = "`faulty` is not balanced")]
fn assert_panics_with_the_violation() {
    Faulty::contract(Fault::Leaks).assert();
}

#[test]
fn a_reservation_that_is_ignored_is_told_in_words() {
    let violation = Faulty::contract(Fault::IgnoresTheReservation).check().unwrap_err();
    assert!(violation.what.contains("reserved ahead"), "{violation}");
    assert!(violation.what.contains("`fits` must leave `reserved_ahead`"), "{violation}");
    assert!(violation.what.contains("count `ask.total()`"), "{violation}");
}

/// So much a day, which begins with the first use, and may be the last.
struct Quota {
    link: AccountLink,
    kind: QuotaKind,
    day: Mutex<Day>,
}

/// How it counts, and what it says of that.
#[derive(Clone, Copy)]
struct QuotaKind {
    most: u64,
    /// Whether there is another day.
    renews: bool,
    /// Whether it names the instant of it.
    tells: bool,
    reads_clock: bool,
}

#[derive(Default)]
struct Day {
    began: Option<Instant>,
    used: u64,
}

const DAY: Duration = Duration::from_secs(86_400);
const DAILY: QuotaKind = QuotaKind { most: 100, renews: true, tells: true, reads_clock: true };

impl Quota {
    fn contract(kind: QuotaKind) -> AccountContract<Self> {
        AccountContract::new(move || {
            let link = AccountLink::new("quota").unwrap();
            Arc::new(Self { link, kind, day: Mutex::default() })
        })
    }

    /// When the day is over that began, if it will be.
    fn ends(&self, day: &Day) -> Option<Instant> {
        day.began.filter(|_| self.kind.renews).map(|began| began + DAY)
    }

    fn used(&self, day: &Day, now: Instant) -> u64 {
        if self.ends(day).is_some_and(|end| now >= end) { 0 } else { day.used }
    }

    fn answer(&self, day: &Day, ask: &Ask) -> Result<bool, Refusal> {
        let most = self.kind.most;
        if ask.mine.units > most || ask.mine.is_saturated() {
            return Err(Refusal::never_fits(ask.mine, most));
        }
        let (total, used) = (ask.total(), self.used(day, ask.now));
        Ok(!total.is_saturated() && used.saturating_add(total.units) <= most)
    }
}

impl Account for Quota {
    fn link(&self) -> &AccountLink {
        &self.link
    }

    fn category(&self) -> Category {
        Category::Other("quota".into())
    }

    fn capacity(&self) -> u64 {
        self.kind.most
    }

    fn in_use(&self, now: Instant) -> u64 {
        self.used(&self.day.lock(), now)
    }

    fn summary(&self, now: Instant) -> String {
        format!("{} of {}", self.in_use(now), self.kind.most)
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Time
    }

    fn reads_clock(&self) -> bool {
        self.kind.reads_clock
    }

    fn fits(&self, ask: &Ask) -> Result<bool, Refusal> {
        self.answer(&self.day.lock(), ask)
    }

    fn try_take(&self, ask: &Ask) -> Result<Option<Instant>, Refusal> {
        let mut day = self.day.lock();
        if !self.answer(&day, ask)? {
            return Ok(None);
        }
        if ask.mine.units > 0 {
            day.used = self.used(&day, ask.now) + ask.mine.units;
            if self.ends(&day).is_none_or(|end| ask.now >= end) {
                day.began = Some(ask.now);
            }
        }
        drop(day);
        Ok(Some(ask.now))
    }

    fn give(&self, charge: &Charge, now: Instant) -> Amount {
        let mut day = self.day.lock();
        let is_of_today = day.began.is_some_and(|began| charge.at >= began);
        if charge.amount.units == 0 || !is_of_today || self.used(&day, now) == 0 {
            return Amount { units: 0, ..charge.amount };
        }
        day.used -= charge.amount.units;
        if day.used == 0 {
            day.began = None;
        }
        drop(day);
        charge.amount
    }

    fn earliest_fit(&self, ask: &Ask) -> Option<Instant> {
        let is_never = ask.total().is_saturated() || ask.total().units > self.kind.most;
        self.ends(&self.day.lock()).filter(|_| self.kind.tells && !is_never)
    }
}

fn expect_untested<A: Account>(contract: &AccountContract<A>, hints: &[&str]) {
    let violation = contract.check().unwrap_err();
    assert_eq!(violation.law, Law::Tested, "{violation}");
    let text = violation.to_string();
    assert!(hints.iter().all(|hint| text.contains(hint)), "{text}");
    assert!(!text.contains("step 0"), "{text}");
}

#[test]
fn a_limit_that_no_history_reached_is_told_with_what_to_set() {
    let fresh = || CountingGate::new("gate", 1_000).unwrap();
    expect_untested(
        &AccountContract::new(fresh).permits_up_to(4),
        &["`gate` is not tested", "heard a no", "`permits_up_to`", "capacity is 1000"],
    );
    AccountContract::new(fresh).permits_up_to(4).never_says_no().assert();
    expect_untested(
        &AccountContract::new(fresh)
            .amounts(|draw| Amount::permits(draw.between(2_000..=3_000) as u32)),
        &["heard a yes", "Ask for less"],
    );
    // A repeat of one history is not a test.
    AccountContract::new(fresh).permits_up_to(4).sequences(1).assert();
}

#[test]
fn a_limit_whose_size_is_not_named_is_reached_by_its_capacity() {
    AccountContract::new(|| CountingGate::new("gate", 1_000_000).unwrap()).assert();
    AccountContract::new(|| TokenBucket::new("bucket", Limits::per_minute(10, 90_000)).unwrap())
        .assert();
    Quota::contract(QuotaKind { most: 1_000_000, ..DAILY }).assert();
    Quota::contract(QuotaKind { most: u64::MAX - 1, ..DAILY }).assert();
}

#[test]
fn a_span_too_short_to_see_anything_come_back_is_told_with_what_to_set() {
    let silent = || Quota::contract(QuotaKind { tells: false, ..DAILY });
    expect_untested(&silent(), &["`quota` is not tested", "Set `span` (it is 120s)"]);
    let violation = silent().span(DAY + DAY / 4).check().unwrap_err();
    assert_eq!(violation.law, Law::Punctual, "{violation}");
    assert!(violation.what.contains("`earliest_fit` named no instant"), "{violation}");
}

#[test]
fn a_budget_for_good_says_that_nothing_comes_back() {
    let budget = || Quota::contract(QuotaKind { renews: false, ..DAILY });
    expect_untested(&budget(), &["`never_comes_back`"]);
    budget().never_comes_back().assert();
}

/// A new one's day begins later, so it recovers later.
#[test]
fn a_day_that_began_before_a_new_ones_is_no_breach() {
    for seed in [1, 10_000, 20_000] {
        Quota::contract(DAILY).seed(seed).assert();
        Quota::contract(DAILY).seed(seed).span(DAY + DAY / 4).assert();
    }
}

#[test]
fn a_clock_that_is_read_against_an_accounts_word_is_found_whatever_the_span() {
    for tells in [false, true] {
        let secretive = QuotaKind { tells, reads_clock: false, ..DAILY };
        for span in [Duration::from_millis(1), Duration::from_secs(120), DAY * 2] {
            let violation = Quota::contract(secretive).span(span).check().unwrap_err();
            assert_eq!(violation.law, Law::Honest, "{violation}");
            assert!(violation.what.contains("`reads_clock` says false"), "{violation}");
        }
    }
}
