//! Spans that whoever listens to them cannot break what is done in them.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tracing::Span;
use tracing::span::Entered;

use crate::caught::say;
use crate::error::end_panic;

/// A span whose listener may panic at anything it is told of it: that ends there. Where it panics as
/// the span is made, there is none.
pub(crate) struct Quiet(Span);

impl Quiet {
    pub(crate) fn new(make: impl FnOnce() -> Span) -> Self {
        Self(catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|payload| {
            end_panic(payload);
            Span::none()
        }))
    }

    pub(crate) fn span(&self) -> &Span {
        &self.0
    }

    fn enter(&self) -> Inside<'_> {
        let mut inside = Inside(None);
        say(|| inside.0 = Some(self.0.enter()));
        if inside.0.is_none() {
            // It may be the current one by now, and would be for whatever this thread does next.
            say(|| {
                self.0.with_subscriber(|(id, subscriber)| subscriber.exit(id));
            });
        }
        inside
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let span = std::mem::replace(&mut self.0, Span::none());
        say(move || drop(span));
    }
}

/// Until this drops, a span is the current one.
struct Inside<'a>(Option<Entered<'a>>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let entered = self.0.take();
        say(move || drop(entered));
    }
}

/// A future that is polled and dropped inside a span.
///
/// It is pinned by the caller: taken by value, there would be room for it twice.
pub(crate) struct Spanned<'a, F> {
    span: &'a Quiet,
    /// `None` once dropped.
    future: Pin<&'a mut Option<F>>,
}

impl<'a, F> Spanned<'a, F> {
    pub(crate) const fn new(span: &'a Quiet, future: Pin<&'a mut Option<F>>) -> Self {
        Self { span, future }
    }
}

impl<F: Future> Future for Spanned<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _inside = self.span.enter();
        let future = self.future.as_mut().as_pin_mut();
        future.expect("it is there until this drops").poll(cx)
    }
}

impl<F> Drop for Spanned<'_, F> {
    fn drop(&mut self) {
        let _inside = self.span.enter();
        self.future.set(None);
    }
}
