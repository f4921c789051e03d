//! Summarises every text file under a folder, as many at once as the limits allow.
//!
//! ```text
//! cargo run --release --example fanout                      # this crate's own sources and docs
//! cargo run --release --example fanout -- --one-at-a-time   # the same without the crate
//! cargo run --release --example fanout -- --help
//! ```
//!
//! One job a file. It asks a chat-completions endpoint for a summary and stores the answer as a row
//! of a SQLite file, and needs three limits at the same time: the model's tokens (the estimated input
//! and the longest answer), a place in the HTTP pool, a database permit. With `--cap` it sets its
//! money aside before that. Without `--endpoint` a stand-in provider on a loopback port answers.

mod admitted;
mod baseline;
mod cli;
mod client;
mod dice;
mod error;
mod figures;
mod files;
mod jobs;
mod ledger;
mod meter;
mod plan;
mod progress;
mod provider;
mod purse;
mod report;
mod run;
mod store;
mod way;

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use tokio_util::sync::CancellationToken;

use crate::cli::Args;
use crate::progress::Show;

#[tokio::main]
async fn main() -> ExitCode {
    let args = match Args::read() {
        Ok(args) => args,
        Err(status) => return ExitCode::from(status),
    };
    let stop = CancellationToken::new();
    tokio::spawn(watch_for_interrupts(stop.clone()));
    match run::run(&args, Show::suitable(args.quiet), stop).await {
        Ok(report) => {
            let mut out = std::io::stdout().lock();
            match write!(out, "{report}").and_then(|()| out.flush()) {
                // Whoever reads along may have read enough.
                Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                    eprintln!("fanout: cannot print the table: {error}");
                    ExitCode::FAILURE
                }
                _ => ExitCode::from(report.status()),
            }
        }
        Err(fatal) => {
            eprintln!("fanout: {fatal}");
            ExitCode::FAILURE
        }
    }
}

/// The first Ctrl-C, or request to terminate, stops the run; the second leaves it.
async fn watch_for_interrupts(stop: CancellationToken) {
    interrupted().await;
    stop.cancel();
    interrupted().await;
    std::process::exit(130);
}

#[cfg(unix)]
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        },
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}

#[cfg(not(unix))]
async fn interrupted() {
    drop(tokio::signal::ctrl_c().await);
}
