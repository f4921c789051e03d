//! The runner: every order of its steps, every way to fail or to be dropped, and money.

mod asks;
mod attack;
mod drops;
mod ends;
mod listener;
mod money;
mod orders;
mod random;
mod reports;
mod retries;
mod spans;
mod support;
