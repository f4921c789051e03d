//! What is not ours, and its panic a value or a line in the log.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::Poll;

use crate::error::end_panic;

/// What something panicked with, held back until it may go on. Where it never does, it ends here: its
/// drop may panic, and we may be unwinding by then.
pub(crate) struct Payload(Option<Box<dyn Any + Send>>);

impl Payload {
    pub(crate) const fn of(payload: Box<dyn Any + Send>) -> Self {
        Self(Some(payload))
    }

    pub(crate) fn into_inner(mut self) -> Box<dyn Any + Send> {
        self.0.take().expect("taken once, with all of it")
    }

    /// The panic goes on.
    pub(crate) fn resume(self) -> ! {
        resume_unwind(self.into_inner())
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        if let Some(payload) = self.0.take() {
            end_panic(payload);
        }
    }
}

/// The future's output, or what it panicked with. It is not polled again after that.
///
/// It is pinned by the caller: taken by value, there would be room for it twice.
pub(crate) async fn caught<F: Future + ?Sized>(
    mut future: Pin<&mut F>,
) -> Result<F::Output, Payload> {
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(payload) => Poll::Ready(Err(Payload::of(payload))),
    })
    .await
}

/// Runs code that is not ours and whose panic must end here.
pub(crate) fn contain(whose: &'static str, call: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        end_panic(payload);
        say(|| tracing::error!("{whose} panicked; it is contained here"));
    }
}

/// Says something in the log, where a panic must not come of it: who listens there is not ours
/// either, and we may be unwinding already.
pub(crate) fn say(line: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(line)) {
        end_panic(payload);
    }
}
