//! Responses of an upstream: `cargo +nightly fuzz run headers`.
#![no_main]

// The checks are those of the ordinary test.
#[path = "../../tests/hostile/response.rs"]
mod response;

libfuzzer_sys::fuzz_target!(|input: &[u8]| response::hold(input));
