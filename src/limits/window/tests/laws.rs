//! The window against a naive model of it, and the account's laws in whatever state it gets into.

use proptest::prelude::*;

use super::*;

const MAX: u32 = 4;
const PER: Duration = Duration::from_millis(1_000);

/// No half-open span of `length` holds more than `max` of the slots kept, oldest first.
pub(super) fn assert_no_span_holds_more(kept: &[(Instant, u32)], max: u32, length: Duration) {
    for (first, (start, _)) in kept.iter().enumerate() {
        let within = kept[first..].iter().take_while(|(at, _)| *at < *start + length);
        let held: u32 = within.map(|(_, n)| n).sum();
        assert!(held <= max, "{held} of {max} in the span from {start:?}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Milliseconds: multiples of 50, so that edges are met often.
    Wait(u64),
    Take(u32),
    /// A reservation is set aside.
    TakeBehind(u32, u32),
    /// Gives back the charge of that place, counted from the newest.
    GiveBack(usize),
    Succeed(Option<usize>),
    Fail(Option<usize>),
    Settle(usize),
    Advise,
    /// Asks about a later instant, which must change nothing.
    Peek(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let charge = || prop::option::of(0..6_usize);
    prop_oneof![
        4 => (0..30_u64).prop_map(|n| Step::Wait(n * 50)),
        6 => (0..=MAX + 1).prop_map(Step::Take),
        2 => (0..=MAX, 0..=MAX).prop_map(|(mine, ahead)| Step::TakeBehind(mine, ahead)),
        3 => (0..6_usize).prop_map(Step::GiveBack),
        3 => charge().prop_map(Step::Succeed),
        2 => charge().prop_map(Step::Fail),
        1 => (0..6_usize).prop_map(Step::Settle),
        1 => Just(Step::Advise),
        1 => (0..100_u64).prop_map(|n| Step::Peek(n * 50)),
    ]
}

/// A slot as the naive model keeps it: for ever, with a flag.
#[derive(Clone, Copy, Debug)]
struct Slot {
    at: Instant,
    n: u32,
    left: bool,
    taken_back: bool,
}

/// A window driven on a clock of its own, beside the slots it should hold.
struct Drive {
    rig: Rig,
    now: Instant,
    charges: Vec<Charge>,
    slots: Vec<Slot>,
}

impl Drive {
    fn new(builder: ElasticWindowBuilder) -> Self {
        let rig = Rig::new(builder.max(MAX).per(PER));
        Self { now: rig.start, rig, charges: Vec::new(), slots: Vec::new() }
    }

    fn window(&self) -> &ElasticWindow {
        &self.rig.window
    }

    fn length(&self) -> Duration {
        self.window().status_at(self.now).effective_window
    }

    /// Marks what has left by now, under the length there is now.
    fn age(&mut self) {
        let (now, length) = (self.now, self.length());
        for slot in &mut self.slots {
            slot.left |= now >= slot.at + length;
        }
    }

    fn live(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| !slot.left && !slot.taken_back)
    }

    fn held(&self) -> u32 {
        self.live().map(|slot| slot.n).sum()
    }

    /// When `total` fits, found by walking.
    fn room_at(&self, total: u32) -> Option<Instant> {
        if total > MAX {
            return None;
        }
        let mut held = self.held();
        let mut at = self.now;
        for slot in self.live() {
            if held + total <= MAX {
                break;
            }
            held -= slot.n;
            at = slot.at + self.length();
        }
        Some(at)
    }

    fn charge(&self, from_newest: usize) -> Option<Charge> {
        let index = self.charges.len().checked_sub(from_newest + 1)?;
        Some(self.charges[index])
    }

    /// Takes one step; answers whether it was the clock's, or a give, neither of which announces.
    fn step(&mut self, step: &Step) -> bool {
        let window = Arc::clone(&self.rig.window);
        let failure = slow_down();
        match *step {
            Step::Wait(millis) => self.now += Duration::from_millis(millis),
            Step::Take(mine) => self.take(mine, 0),
            Step::TakeBehind(mine, ahead) => self.take(mine, ahead),
            Step::GiveBack(index) => self.give_back(index),
            Step::Succeed(None) => window.succeeded(Reporter::Unattributed, self.now),
            Step::Fail(None) => window.failed(&failure, None, self.now),
            Step::Succeed(Some(index)) => {
                self.charge(index).inspect(|charge| window.on_success(charge, self.now));
            }
            Step::Fail(Some(index)) => {
                self.charge(index)
                    .inspect(|charge| window.on_upstream_failure(&failure, charge, self.now));
            }
            Step::Settle(index) => {
                self.charge(index).inspect(|charge| window.settled(charge, false, self.now));
            }
            Step::Advise => window.advised(self.now),
            Step::Peek(millis) => {
                let later = self.now + Duration::from_millis(millis);
                let _ = (window.fits(&ask(0, 1, later)), window.status_at(later));
            }
        }
        self.age();
        matches!(step, Step::Wait(_) | Step::GiveBack(_))
    }

    fn take(&mut self, mine: u32, ahead: u32) {
        let id = self.charges.len() as u64 + 1;
        let ask = ask(id, mine, self.now).behind(Amount::permits(ahead));
        let fits = self.window().fits(&ask);
        let taken = self.window().try_take(&ask);
        assert_eq!(fits.clone().ok(), taken.clone().ok().map(|at| at.is_some()), "{ask:?}");
        assert_eq!(fits.err(), taken.clone().err());
        if let Ok(Some(at)) = taken {
            assert_eq!(at, self.now);
            self.charges.push(Charge::new(id, ask.mine, at));
            self.slots.push(Slot { at, n: mine, left: false, taken_back: false });
        }
    }

    fn give_back(&mut self, from_newest: usize) {
        let Some(charge) = self.charge(from_newest) else { return };
        let index = self.charges.len() - from_newest - 1;
        self.charges.remove(index);
        let slot = self.slots.iter_mut().filter(|slot| !slot.taken_back);
        let slot = slot.into_iter().nth(index).expect("one slot a charge");
        let expected = if slot.left { Amount::NONE } else { charge.amount };
        // One that has left stays in the model, where the spans count it.
        slot.taken_back = !slot.left;
        let kept = *slot;
        assert_eq!(self.rig.window.give(&charge, self.now), expected);
        if kept.left {
            // Keep the places of charges and slots in step: it is not given back twice.
            self.charges.insert(index, charge);
        }
    }

    fn kept(&self) -> Vec<(Instant, u32)> {
        let kept = self.slots.iter().filter(|slot| !slot.taken_back);
        kept.map(|slot| (slot.at, slot.n)).collect()
    }

    fn asks(&self) -> impl Iterator<Item = Ask> + use<> {
        let now = self.now;
        let pairs = (0..=MAX + 1).flat_map(|mine| (0..=MAX + 1).map(move |ahead| (mine, ahead)));
        pairs.map(move |(mine, ahead)| ask(999_999, mine, now).behind(Amount::permits(ahead)))
    }

    /// A yes; a no; or a refusal.
    fn answers(&self) -> Vec<Option<bool>> {
        self.asks().map(|ask| self.window().fits(&ask).ok()).collect()
    }

    fn check_monotone(&self) {
        let yes = |ask: &Ask| self.window().fits(ask) == Ok(true);
        for larger in self.asks().filter(yes) {
            for smaller in self.asks() {
                if larger.mine.covers(smaller.mine)
                    && larger.reserved_ahead.covers(smaller.reserved_ahead)
                {
                    assert!(yes(&smaller), "yes to {larger:?}, no to {smaller:?}");
                }
            }
        }
    }

    fn check_punctual(&self) {
        let yes = |ask: &Ask, at: Instant| self.window().fits(&ask.at(at)) == Ok(true);
        for ask in self.asks() {
            let named = self.window().earliest_fit(&ask);
            if yes(&ask, self.now) {
                assert!(named.is_some_and(|at| at <= self.now), "a yes is now: {ask:?}");
                continue;
            }
            // Every instant up to an hour at which something of the window could change, and the
            // nanosecond before it.
            let grid = (0..80).map(|n| self.now + Duration::from_millis(n * 50));
            let far = [30, 60, 120, 600, 3_600].map(|n| self.now + n * SECOND);
            for at in grid.chain(far).chain(named).flat_map(|at| [at - NANO, at]) {
                if at > self.now && named.is_none_or(|named| at < named) {
                    assert!(!yes(&ask, at), "{ask:?} fits at {at:?}, before {named:?}");
                }
            }
            if let Some(named) = named {
                assert!(named > self.now, "{ask:?} does not fit, but {named:?} is no later");
                assert!(yes(&ask, named), "{ask:?} does not fit at {named:?}, which was named");
            }
        }
    }

    /// Compares what was announced with how the answers changed.
    fn check_announced(&self, before: &[Option<bool>], announced: Announced) {
        for (was, (is, ask)) in before.iter().zip(self.answers().iter().zip(self.asks())) {
            if *was != Some(true) && *is == Some(true) {
                assert!(announced.grew, "fits, unannounced: {ask:?}");
            }
            if was.is_some() && is.is_none() {
                assert!(announced.may_refuse, "refused, unannounced: {ask:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_window_equals_the_naive_model(steps in prop::collection::vec(step(), 1..80)) {
        // Without a circuit: the model knows none.
        let builder = ElasticWindow::builder("geo").failures_to_open(u32::MAX).max_throttle(3.0);
        let mut drive = Drive::new(builder);
        for step in &steps {
            drive.step(step);
            prop_assert_eq!(drive.window().in_use(drive.now), u64::from(drive.held()));
            for ask in drive.asks() {
                let total = ask.total().requests;
                let mine = ask.mine.requests;
                match drive.window().fits(&ask) {
                    Err(_) => prop_assert!(mine > MAX),
                    Ok(fits) => prop_assert_eq!(fits, drive.held() + total <= MAX, "{:?}", ask),
                }
                let room = drive.room_at(total).filter(|_| mine <= MAX);
                prop_assert_eq!(drive.window().earliest_fit(&ask), room, "{:?}", ask);
            }
        }
        assert_no_span_holds_more(&drive.kept(), MAX, PER);
    }

    #[test]
    fn no_span_holds_more_than_the_maximum_whatever_the_circuit_does(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut drive = Drive::new(short_circuit());
        for step in &steps {
            drive.step(step);
        }
        assert_no_span_holds_more(&drive.kept(), MAX, PER);
    }

    #[test]
    fn the_laws_hold_in_every_state(steps in prop::collection::vec(step(), 1..60)) {
        let mut drive = Drive::new(short_circuit());
        for step in &steps {
            let before = drive.answers();
            let is_silent = drive.step(step);
            let announced = drive.rig.announced();
            if !is_silent {
                drive.check_announced(&before, announced);
            }
            drive.check_monotone();
            drive.check_punctual();
        }
    }
}

/// A window whose circuit goes through all its states within a few steps.
fn short_circuit() -> ElasticWindowBuilder {
    ElasticWindow::builder("geo")
        .max_throttle(1.0)
        .failures_to_open(2)
        .initial_cooldown(Duration::from_millis(500))
        .max_cooldown(Duration::from_millis(1_500))
        .probe_timeout(Duration::from_millis(750))
}
