//! The monitor under a model checker: thousands of interleavings of each small scene.
//!
//! [shuttle] runs a scene again and again, on one thread, and decides at every lock and every atomic
//! operation who goes on: at random, or by priorities that change at a few random moments, which
//! finds what needs an unlikely order of few steps. A scene says what must be true whatever the order.
//! That somebody waits for ever is found by the checker itself, as a deadlock: so a wake-up that is
//! lost fails every scene.
//!
//! The crate is built with `--cfg admit_shuttle`, under which `src/sync.rs` of `admit` names shuttle's
//! lock and atomics instead of `std`'s, and the evaluator is a task of shuttle's. `.cargo/config.toml`
//! sets it, so that in this folder
//!
//! ```text
//! cargo test                                       # the same schedules every time
//! ADMIT_SHUTTLE_ITERATIONS=1000000 cargo test      # so many of each kind, and others every time
//! ```
//!
//! is all there is to it. A failure prints its schedule, and `shuttle::replay` runs that again.
//!
//! What is not seen here:
//!
//! - Tokio's own primitives (`Notify`, `broadcast`, the cancellation token, the timer) are opaque: what
//!   happens inside of them is one step. None of them blocks a thread, so nothing gets stuck there.
//!   Before each step of a `Notify` others may come in between.
//! - Orderings weaker than sequential consistency. Every atomic operation is taken for `SeqCst`.
//! - `Arc`, `Weak` and `OnceLock` are `std`'s. Where the monitor decides by a reference count, it says
//!   by `sync::step` that others may come in between.
//! - What stands in a `static` is `std`'s, or must not be touched: a scene asks for no empty demand and
//!   no registry.
//!
//! [shuttle]: https://docs.rs/shuttle

#![cfg(test)]

#[cfg(not(admit_shuttle))]
compile_error!("run it in its own folder, or with RUSTFLAGS=\"--cfg admit_shuttle\"");

mod announcements;
mod ends;
mod explore;
mod leaving;
mod line;
mod passages;
mod place;
mod settling;
mod shared;
mod storm;
mod watching;
