//! The table at the end.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use admit::{Cost, ModelSpec, Money};

use crate::figures::{count, grouped, seconds};
use crate::files::Skipped;
use crate::ledger::Totals;
use crate::provider::Seen;

/// What a run came to. Its `Display` is the table.
#[derive(Debug)]
pub(crate) struct Report {
    /// How the limits were taken.
    pub(crate) way: &'static str,
    /// What a wait on an account is, that way.
    pub(crate) waits_are: &'static str,
    /// The counts.
    pub(crate) totals: Totals,
    /// From the first job's start to the last one's end.
    pub(crate) wall: Duration,
    /// What it cost; `None` where nobody kept books.
    pub(crate) spent: Option<Cost>,
    /// What it was to cost at most.
    pub(crate) cap: Option<Money>,
    /// The models and their budgets.
    pub(crate) models: Vec<ModelSpec>,
    /// Files that were passed over.
    pub(crate) skipped: Skipped,
    /// Files that were sent in part.
    pub(crate) cut: usize,
    /// What the stand-in counted, if it was asked.
    pub(crate) seen: Option<Seen>,
    /// Where the rows are.
    pub(crate) database: PathBuf,
    /// Rows of the folder, there.
    pub(crate) rows: Result<u64, String>,
    /// Whether Ctrl-C ended it.
    pub(crate) interrupted: bool,
}

impl Report {
    /// The exit status of the program.
    pub(crate) const fn status(&self) -> u8 {
        let Totals { failed, unfinished, unpaid, .. } = self.totals;
        if self.interrupted {
            130
        } else if failed > 0 || unfinished > 0 || unpaid > 0 || self.rows.is_err() {
            1
        } else {
            0
        }
    }

    fn jobs(&self) -> String {
        let mut text = format!("{} done", grouped(self.totals.done as u64));
        for (number, word) in [
            (self.totals.failed, "failed"),
            (self.totals.unpaid, "left out because of --cap"),
            (self.totals.unfinished, "not done"),
        ] {
            if number > 0 {
                text.push_str(&format!(", {} {word}", grouped(number as u64)));
            }
        }
        text
    }

    fn files_left_out(&self) -> Option<String> {
        let Skipped { not_text, empty, unreadable } = self.skipped;
        let parts: Vec<_> = [
            (not_text, "not UTF-8 text"),
            (empty, "empty"),
            (unreadable, "unreadable"),
            (self.cut, "sent in part"),
        ]
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, word)| format!("{} {word}", grouped(number as u64)))
        .collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    fn calls(&self) -> String {
        let Totals { calls, rate_limited, overloaded, other_failures, .. } = self.totals;
        let mut text = format!("{}, {} answered 429", grouped(calls), grouped(rate_limited));
        if overloaded > 0 {
            text.push_str(&format!(", {} overloaded (529)", grouped(overloaded)));
        }
        if other_failures > 0 {
            text.push_str(&format!(", {} failed otherwise", grouped(other_failures)));
        }
        text
    }

    /// What the run cost, if that can be told: a model without prices costs nobody knows what.
    fn spent(&self) -> Option<String> {
        let (priced, unpriced): (Vec<_>, Vec<_>) =
            self.models.iter().partition(|model| model.prices.is_some());
        if priced.is_empty() {
            return None;
        }
        let mut text = self.spent.as_ref()?.to_string();
        if let Some(cap) = self.cap {
            text.push_str(&format!(" of {cap}"));
        }
        if !unpriced.is_empty() {
            let names: Vec<_> = unpriced.iter().map(|model| &*model.id).collect();
            text.push_str(&format!(", and what {} cost, without prices", names.join(" and ")));
        }
        Some(text)
    }

    /// What a model's budget was worth: it is full at the start, and fills as time goes by.
    fn budget(&self, model: &ModelSpec) -> u64 {
        let minutes = 1.0 + self.wall.as_secs_f64() / 60.0;
        (model.tokens_per_minute as f64 * minutes) as u64
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, text: &dyn fmt::Display| writeln!(f, "{name:<12} {text}");
        row("limits", &self.way)?;
        row("jobs", &self.jobs())?;
        if let Some(left_out) = self.files_left_out() {
            row("files", &left_out)?;
        }
        row("wall time", &seconds(self.wall))?;
        row("calls", &self.calls())?;

        if let Some(spent) = self.spent() {
            row("spent", &spent)?;
        }

        let names = self.models.iter().map(|model| &model.id);
        let names = names.chain(self.totals.waits.iter().map(|(name, _)| name));
        let widest = names.map(|name| name.chars().count()).max().unwrap_or(0);
        let heads = |head: &'static str| std::iter::once(head).chain(std::iter::repeat(""));
        for (head, (model, share)) in
            heads("tokens").zip(self.models.iter().zip(&self.totals.models))
        {
            let of_budget = match model.max_concurrent {
                None => {
                    let budget = self.budget(model);
                    let percent = share.tokens as f64 * 100.0 / budget.max(1) as f64;
                    format!(" of {} ({percent:.0} %)", grouped(budget))
                }
                Some(_) => String::new(),
            };
            let last = match share.last_answer {
                Duration::ZERO => String::new(),
                last => format!(", done after {}", seconds(last)),
            };
            let (name, used) = (&model.id, grouped(share.tokens));
            let uncounted = match share.uncounted {
                0 => String::new(),
                calls => format!(", {} without usage", count(calls as usize, "answer")),
            };
            let text = format!("{name:<widest$}  {used:>9} used{of_budget}{last}{uncounted}");
            row(head, &text)?;
        }
        for (head, (name, waits)) in heads("waits").zip(&self.totals.waits) {
            let text = if waits.count == 0 {
                "nobody".to_owned()
            } else {
                let jobs = count(waits.count as usize, "job");
                let (mean, longest) = (seconds(waits.mean()), seconds(waits.longest));
                format!("{jobs:>9}, {mean} on average, {longest} at most")
            };
            row(head, &format!("{name:<widest$}  {text:>9}"))?;
        }
        if self.totals.waits.iter().any(|(_, waits)| waits.count > 0) {
            row("", &self.waits_are)?;
        }
        let idle =
            format!("{} of HTTP places, while waiting for the rest", seconds(self.totals.idle));
        row("held idle", &idle)?;
        if let Some(seen) = &self.seen {
            let text = format!(
                "answered {}, refused {}, failed {}, counted {} tokens",
                grouped(seen.answered),
                grouped(seen.refused),
                grouped(seen.failed),
                grouped(seen.tokens())
            );
            row("stand-in", &text)?;
        }
        let path = self.database.display();
        match &self.rows {
            Ok(rows) => row("database", &format!("{path}, {}", rows_of(*rows)))?,
            Err(reason) => row("database", &format!("{path}, cannot be read: {reason}"))?,
        }
        for failure in &self.totals.told {
            row("failed", failure)?;
        }
        let untold = self.totals.failed - self.totals.told.len();
        if untold > 0 {
            row("", &format!("and {} more", grouped(untold as u64)))?;
        }
        Ok(())
    }
}

fn rows_of(rows: u64) -> String {
    count(usize::try_from(rows).unwrap_or(usize::MAX), "row") + " of this folder"
}

#[cfg(test)]
mod tests {
    use admit::{Currency, Decimal, Prices};

    use super::*;
    use crate::ledger::{Share, Waits};

    fn usd(amount: &str) -> Money {
        Money::usd(amount.parse().unwrap())
    }

    fn eur(amount: &str) -> Money {
        Money::new(amount.parse().unwrap(), Currency::EUR)
    }

    fn report() -> Report {
        let mut waits = Waits::default();
        waits.add(Duration::from_secs(2));
        let prices = Prices::per_million(Decimal::ONE, Decimal::ONE);
        Report {
            way: "all at once",
            waits_are: "(they overlap)",
            totals: Totals {
                done: 3,
                calls: 4,
                rate_limited: 1,
                models: vec![Share {
                    tokens: 1_500,
                    last_answer: Duration::from_secs(29),
                    uncounted: 2,
                }],
                waits: vec![("m".to_owned(), waits), ("http".to_owned(), Waits::default())],
                ..Totals::default()
            },
            wall: Duration::from_secs(30),
            spent: Some(Cost::from_iter([usd("0.1234564"), eur("2")])),
            cap: None,
            models: vec![ModelSpec::new("m", 2_000).with_prices(prices)],
            skipped: Skipped { not_text: 1, ..Skipped::default() },
            cut: 0,
            seen: None,
            database: "rows.sqlite".into(),
            rows: Ok(3),
            interrupted: false,
        }
    }

    #[test]
    fn the_table_names_every_figure() {
        let text = report().to_string();
        for part in [
            "3 done",
            "1 not UTF-8 text",
            "30.0 s",
            "spent        0.123457 USD + 2.000000 EUR\n",
            "4, 1 answered 429",
            "1,500 used of 3,000 (50 %), done after 29.0 s, 2 answers without usage",
            "(they overlap)",
            "1 job, 2.0 s on average, 2.0 s at most",
            "nobody",
            "rows.sqlite, 3 rows of this folder",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn what_was_spent_is_told_where_it_is_known() {
        let line = |report: &Report| {
            let text = report.to_string();
            text.lines().find(|line| line.starts_with("spent")).map(str::to_owned)
        };
        let mut report = report();
        report.spent = Some(Cost::new());
        assert_eq!(line(&report).unwrap(), "spent        nothing");
        report.spent = Some(usd("0.2").into());
        report.cap = Some(usd("0.25"));
        assert_eq!(line(&report).unwrap(), "spent        0.200000 USD of 0.250000 USD");
        report.cap = None;
        report.models.push(ModelSpec::new("n", 1));
        let unpriced = "spent        0.200000 USD, and what n cost, without prices";
        assert_eq!(line(&report).unwrap(), unpriced);
        report.models.remove(0);
        assert_eq!(line(&report), None, "no model has prices");
    }

    #[test]
    fn the_status_tells_what_went_wrong() {
        assert_eq!(report().status(), 0);
        let mut failed = report();
        failed.totals.failed = 1;
        assert_eq!(failed.status(), 1);
        let mut capped = report();
        capped.totals.unpaid = 2;
        assert_eq!(capped.status(), 1);
        assert!(capped.to_string().contains("3 done, 2 left out because of --cap\n"));
        failed.interrupted = true;
        assert_eq!(failed.status(), 130);
    }
}
