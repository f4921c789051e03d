//! Catalogs: `cargo +nightly fuzz run catalog`.
#![no_main]

// The checks are those of the ordinary test.
#[path = "../../tests/hostile/catalog.rs"]
mod catalog;

libfuzzer_sys::fuzz_target!(|input: &str| catalog::hold(input));
