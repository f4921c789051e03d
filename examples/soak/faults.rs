//! What goes wrong, and how often.

use std::panic::{panic_any, set_hook, take_hook};
use std::sync::Once;
use std::time::Duration;

use admit::UpstreamFailure;
use admit::testing::Draw;

/// A panic that was meant to be.
struct Planned;

/// Others are told as ever.
pub(crate) fn keep_planned_panics_quiet() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |panic| {
            if !panic.payload().is::<Planned>() {
                hook(panic);
            }
        }));
    });
}

pub(crate) fn panic() -> ! {
    panic_any(Planned)
}

/// How a job leaves before it has what it waits for.
pub(crate) enum Impatience {
    None,
    /// A limit in time.
    Within(Duration),
    /// Its future is dropped.
    Dropped(Duration),
    /// Its token is cancelled.
    Cancelled(Duration),
}

pub(crate) fn impatience(draw: &mut Draw, pace: u32) -> Impatience {
    let soon = |draw: &mut Draw| Duration::from_micros(draw.between(0..=400_000)) * pace;
    match draw.between(0..=29) {
        0..=4 => Impatience::Within(soon(draw)),
        5..=6 => Impatience::Dropped(soon(draw)),
        7..=8 => Impatience::Cancelled(soon(draw)),
        _ => Impatience::None,
    }
}

pub(crate) fn failure(draw: &mut Draw) -> UpstreamFailure {
    match draw.between(0..=3) {
        0 => UpstreamFailure::status(500, "upstream", "broken"),
        1 => UpstreamFailure::status(529, "upstream", "overloaded"),
        2 => UpstreamFailure::status(429, "upstream", "slow down")
            .with_retry_after(Duration::from_millis(draw.between(1..=200))),
        _ => UpstreamFailure::no_response("upstream", "connection reset"),
    }
}

/// What memory reads next, in tenths of a percent: mostly room, now and then a spike.
pub(crate) fn weather(draw: &mut Draw) -> u64 {
    match draw.between(0..=19) {
        0 => draw.between(950..=990),
        1..=2 => draw.between(800..=949),
        _ => draw.between(300..=799),
    }
}
