//! What a spend gate set aside for one job, until the job has ended.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::caught::say;
use crate::error::panic_message;
use crate::money::Cost;

type End = Box<dyn FnOnce(Option<&Cost>) + Send>;

/// What a [`SpendGate`](crate::SpendGate) set aside for one job.
///
/// It ends once: [settled](Self::settle) with what the work really cost, whatever came of it, or
/// dropped, when the work never happened and nothing was spent.
///
/// The end is told a [`Cost`] and not one amount, because one job may call models that are priced in
/// different currencies.
///
/// A panic in the gate's closure is caught and logged as an error: a reservation ends while a job
/// cleans up, and that must go on.
///
/// # Examples
///
/// ```
/// use admit::{Cost, Decimal, Money, Reservation};
/// use std::sync::mpsc;
///
/// let (told, ends) = mpsc::channel();
/// let settled = told.clone();
/// let reservation = Reservation::new(move |end| settled.send(end.cloned()).unwrap());
/// reservation.settle(&Cost::from(Money::usd(Decimal::ONE)));
/// assert_eq!(ends.recv(), Ok(Some(Cost::from(Money::usd(Decimal::ONE)))));
///
/// drop(Reservation::new(move |end| told.send(end.cloned()).unwrap()));
/// assert_eq!(ends.recv(), Ok(None));
/// ```
#[must_use = "dropped, it gives back at once what was set aside"]
pub struct Reservation {
    /// Taken when it is called: that is what makes it once.
    end: Option<End>,
}

impl Reservation {
    /// A reservation whose end is told to `end`: `Some` when it is settled, `None` when it is dropped.
    ///
    /// `end` is called exactly once, unless the reservation is leaked, and outside every lock of
    /// this crate. It must not block.
    pub fn new(end: impl FnOnce(Option<&Cost>) + Send + 'static) -> Self {
        Self { end: Some(Box::new(end)) }
    }

    /// A reservation that nobody wants to hear of again.
    pub const fn none() -> Self {
        Self { end: None }
    }

    /// The work is over and cost this much: less or more than was set aside, or nothing.
    pub fn settle(mut self, actual: &Cost) {
        self.finish(Some(actual));
    }

    fn finish(&mut self, actual: Option<&Cost>) {
        let Some(end) = self.end.take() else { return };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| end(actual))) {
            let message = panic_message(payload);
            say(|| tracing::error!("a spend gate panicked when a reservation ended: {message}"));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.finish(None);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("to_settle", &self.end.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use rust_decimal::Decimal;

    use super::*;
    use crate::money::Money;
    use crate::sync::{Arc, Mutex};

    /// A reservation that writes down its ends.
    fn heard() -> (Reservation, Arc<Mutex<Vec<Option<Cost>>>>) {
        let ends = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&ends);
        (Reservation::new(move |end| told.lock().push(end.cloned())), ends)
    }

    #[test]
    fn a_reservation_ends_once_settled_or_dropped() {
        let cost = Cost::from(Money::usd(Decimal::ONE));
        let (reservation, ends) = heard();
        reservation.settle(&cost);
        assert_eq!(*ends.lock(), [Some(cost)]);

        let (reservation, ends) = heard();
        drop(reservation);
        assert_eq!(*ends.lock(), [None]);

        let (reservation, ends) = heard();
        reservation.settle(&Cost::new());
        assert_eq!(*ends.lock(), [Some(Cost::new())]);

        Reservation::none().settle(&Cost::new());
        drop(Reservation::none());
    }

    #[test]
    fn a_panic_at_the_end_of_a_reservation_is_contained() {
        let ended = Arc::new(Mutex::new(0));
        let broken = || {
            let ended = Arc::clone(&ended);
            Reservation::new(move |_| {
                *ended.lock() += 1;
                panic!("a gate's own mistake");
            })
        };
        broken().settle(&Cost::new());
        drop(broken());
        // A panic while one panics already would abort the process.
        let reservation = broken();
        let job = catch_unwind(AssertUnwindSafe(move || {
            let _held = reservation;
            panic!("the job's own");
        }));
        assert_eq!(panic_message(job.unwrap_err()), "the job's own");
        assert_eq!(*ended.lock(), 3);
    }

    #[test]
    fn a_payload_that_panics_when_dropped_is_contained() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("and again");
            }
        }
        let reached = Arc::new(Mutex::new(false));
        let reaches = Arc::clone(&reached);
        drop(Reservation::new(move |_| {
            *reaches.lock() = true;
            std::panic::panic_any(Bomb);
        }));
        assert!(*reached.lock());
    }
}
