use tokio::time::advance;

use super::*;
use crate::account::{Inbox, Marks};

mod circuit;
mod laws;
mod pressure;
mod span;
mod threads;

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

/// A window of `max` in a second, and what it announces.
struct Rig {
    window: Arc<ElasticWindow>,
    inbox: Arc<Inbox>,
    start: Instant,
}

/// What was announced since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Announced {
    grew: bool,
    may_refuse: bool,
}

const NOTHING: Announced = Announced { grew: false, may_refuse: false };
const GREW: Announced = Announced { grew: true, may_refuse: false };
const MAY_REFUSE: Announced = Announced { grew: false, may_refuse: true };

impl Rig {
    fn new(builder: ElasticWindowBuilder) -> Self {
        let window = builder.build().expect("a window");
        let inbox = Arc::new(Inbox::new(1));
        window.link().attach(&inbox);
        Self { window, inbox, start: Instant::now() }
    }

    fn of(max: u32) -> Self {
        Self::new(ElasticWindow::builder("geo").max(max))
    }

    /// The window of the circuit's cases: 100 in 1 s, never stretched, probes given up after 10 s.
    fn brittle() -> Self {
        let builder = ElasticWindow::builder("geo").max(100);
        Self::new(builder.max_throttle(0.0).probe_timeout(10 * SECOND))
    }

    /// The same, blocked just now.
    fn blocked() -> Self {
        let rig = Self::brittle();
        for _ in 0..3 {
            rig.window.record_failure(&slow_down());
        }
        assert_eq!(rig.circuit(), CircuitState::Blocked);
        assert_eq!(rig.announced(), MAY_REFUSE);
        rig
    }

    /// The same, its cooldown over and its probe out.
    async fn probing() -> (Self, Charge) {
        let rig = Self::blocked();
        advance(30 * SECOND).await;
        let probe = rig.take(7, 1).expect("the probe");
        assert_eq!(rig.circuit(), CircuitState::Probing);
        assert_eq!(rig.announced(), MAY_REFUSE);
        (rig, probe)
    }

    fn announced(&self) -> Announced {
        let mut announced = NOTHING;
        self.inbox.take(|_, marks| {
            announced.grew |= marks.has(Marks::GREW);
            announced.may_refuse |= marks.has(Marks::MAY_REFUSE);
        });
        announced
    }

    fn circuit(&self) -> CircuitState {
        self.window.status().circuit
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    /// Takes `n` slots for `id` at `now`, or answers that they do not fit.
    fn take_at(&self, id: u64, n: u32, now: Instant) -> Option<Charge> {
        let ask = ask(id, n, now);
        let at = self.window.try_take(&ask).expect("no refusal")?;
        Some(Charge::new(id, ask.mine, at))
    }

    fn take(&self, id: u64, n: u32) -> Option<Charge> {
        self.take_at(id, n, Instant::now())
    }

    fn fits(&self, ask: &Ask) -> bool {
        self.window.fits(ask).expect("no refusal")
    }

    fn refusal(&self) -> Refusal {
        self.window.fits(&ask(99, 1, Instant::now())).expect_err("a refusal")
    }

    fn succeed(&self, charge: &Charge) {
        self.window.on_success(charge, Instant::now());
    }

    fn fail(&self, charge: &Charge) {
        self.window.on_upstream_failure(&slow_down(), charge, Instant::now());
    }
}

fn ask(id: u64, n: u32, now: Instant) -> Ask {
    Ask::new(id, Amount::permits(n), now)
}

fn slow_down() -> UpstreamFailure {
    UpstreamFailure::status(429, "geo", "slow down")
}
