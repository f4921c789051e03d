//! A bar and a live line for each account; plain lines where there is no terminal.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval};

use crate::figures::{count, grouped, seconds};
use crate::jobs::Work;
use crate::ledger::Totals;
use crate::way::{Gauge, Way};

/// How often the live lines are renewed.
const FRAME: Duration = Duration::from_millis(100);
/// How often a plain line is printed.
const LINE: Duration = Duration::from_secs(5);

/// How a run is shown while it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// Not at all.
    Nothing,
    /// A line every few seconds.
    Lines,
    /// A bar and live lines.
    Bars,
}

impl Show {
    /// What suits standard error.
    pub(crate) fn suitable(quiet: bool) -> Self {
        match (quiet, std::io::stderr().is_terminal()) {
            (true, _) => Self::Nothing,
            (false, true) => Self::Bars,
            (false, false) => Self::Lines,
        }
    }
}

/// The showing of one run; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    task: Option<JoinHandle<()>>,
    bars: Option<MultiProgress>,
}

impl Progress {
    /// Begins to show a run of so many jobs.
    pub(crate) fn start(show: Show, jobs: usize, work: &Arc<Work>, way: Arc<impl Way>) -> Self {
        let work = Arc::clone(work);
        match show {
            Show::Nothing => Self { task: None, bars: None },
            Show::Lines => Self { task: Some(tokio::spawn(lines(jobs, work, way))), bars: None },
            Show::Bars => {
                let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
                let task = tokio::spawn(live(bars.clone(), jobs, work, way));
                Self { task: Some(task), bars: Some(bars) }
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        if let Some(bars) = &self.bars {
            // A terminal that has gone away needs no clearing.
            let _ = bars.clear();
        }
    }
}

async fn lines(jobs: usize, work: Arc<Work>, way: Arc<impl Way>) {
    let start = Instant::now();
    let mut ticks = interval(LINE);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let totals = work.ledger.totals();
        let mut line = format!(
            "{:>6}  {} of {jobs} files, {}",
            seconds(start.elapsed()),
            totals.done,
            state(&totals, work.stop.is_cancelled())
        );
        for gauge in way.gauges() {
            let _ = write!(line, " | {} {}", gauge.name, reading(&gauge));
        }
        eprintln!("{line}");
    }
}

async fn live(bars: MultiProgress, jobs: usize, work: Arc<Work>, way: Arc<impl Way>) {
    let widest = way.gauges().iter().map(|gauge| gauge.name.chars().count()).max().unwrap_or(0);
    let style = |colour: &str| {
        let template = format!("{{prefix:<{widest}}} {{bar:24.{colour}/dim}} {{wide_msg}}");
        let style = ProgressStyle::with_template(&template);
        style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─")
    };
    let bar = |length: u64, name: String, colour: &str| {
        bars.add(ProgressBar::new(length).with_style(style(colour)).with_prefix(name))
    };
    let files = bar(jobs as u64, "files".to_owned(), "green");
    let accounts: Vec<_> =
        way.gauges().into_iter().map(|gauge| bar(gauge.capacity, gauge.name, "cyan")).collect();
    let start = Instant::now();
    let mut ticks = interval(FRAME);
    loop {
        ticks.tick().await;
        let totals = work.ledger.totals();
        let state = state(&totals, work.stop.is_cancelled());
        files.set_position((totals.done + totals.failed + totals.unpaid) as u64);
        files.set_message(format!("{}/{jobs}, {}, {state}", totals.done, seconds(start.elapsed())));
        for (bar, gauge) in accounts.iter().zip(way.gauges()) {
            bar.set_length(gauge.capacity);
            bar.set_position(gauge.in_use);
            bar.set_message(reading(&gauge));
        }
    }
}

/// What the run is about.
fn state(totals: &Totals, stopping: bool) -> String {
    let mut text = format!("{} in flight", totals.running);
    if stopping {
        text.push_str(", stopping when they end");
    }
    if totals.pausing > 0 {
        let _ = write!(text, ", {} to be retried", totals.pausing);
    }
    if totals.failed > 0 {
        let _ = write!(text, ", {} failed", totals.failed);
    }
    if totals.unpaid > 0 {
        let _ = write!(text, ", {} left out by the cap", totals.unpaid);
    }
    let trouble = totals.rate_limited + totals.overloaded + totals.other_failures;
    if trouble > 0 {
        let _ = write!(text, ", {}", count(trouble as usize, "refused call"));
    }
    text
}

/// An account's numbers.
fn reading(gauge: &Gauge) -> String {
    let (in_use, capacity) = (grouped(gauge.in_use), grouped(gauge.capacity));
    let mut text = format!("{in_use} of {capacity}{}", gauge.unit);
    if gauge.waiting > 0 {
        let _ = write!(text, ", {} waiting", gauge.waiting);
    }
    if let Some(oldest) = gauge.oldest {
        let _ = write!(text, " ({})", seconds(oldest));
    }
    if let Some(note) = &gauge.note {
        let _ = write!(text, ", {note}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accounts_line_says_only_what_there_is() {
        let mut gauge = Gauge {
            name: "m".to_owned(),
            in_use: 1_200,
            capacity: 20_000,
            unit: "",
            waiting: 0,
            oldest: None,
            note: None,
        };
        assert_eq!(reading(&gauge), "1,200 of 20,000");
        gauge.waiting = 3;
        gauge.oldest = Some(Duration::from_millis(2_500));
        gauge.note = Some("throttle:1.5x".to_owned());
        assert_eq!(reading(&gauge), "1,200 of 20,000, 3 waiting (2.5 s), throttle:1.5x");
    }
}
