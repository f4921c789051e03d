//! A future whose panic is a value.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

/// The future's output, or what it panicked with. It is not polled again after that.
///
/// It is pinned by the caller: taken by value, there would be room for it twice.
pub(crate) async fn caught<F: Future + ?Sized>(
    mut future: Pin<&mut F>,
) -> Result<F::Output, Box<dyn Any + Send>> {
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(payload) => Poll::Ready(Err(payload)),
    })
    .await
}
