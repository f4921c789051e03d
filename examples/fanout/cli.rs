//! The command line: what can be asked for, and what is refused before anything starts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use admit::Decimal;
use clap::error::ErrorKind;
use clap::{Parser, ValueHint, value_parser};

use crate::error::Fatal;

/// Summarise every text file under a folder, as many at once as the limits allow.
///
/// One job a file. Each job needs three limits at the same time: tokens of a model, a place in
/// the HTTP pool and a database permit. It takes all three at once or waits holding none. Without
/// --endpoint it talks to a stand-in provider on a loopback port, which takes its time, counts
/// usage and enforces requests and tokens per minute, or calls at once, exactly. Nothing leaves
/// the machine then.
#[derive(Clone, Debug, Parser)]
#[command(name = "fanout", version, after_help = AFTER_HELP)]
#[command(allow_negative_numbers = true, verbatim_doc_comment)]
pub(crate) struct Args {
    /// Folder whose text files are summarised [default: the sources and docs of this crate]
    ///
    /// Folders named `target` or `node_modules`, hidden files and folders, and symbolic links are
    /// left out. A file that is empty or not UTF-8 text is skipped and counted.
    #[arg(verbatim_doc_comment, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,

    /// Take the limits one after another, holding the earlier ones, to see the difference
    ///
    /// The same jobs on two semaphores and a plain bucket: a place, then a permit, then tokens.
    #[arg(verbatim_doc_comment, long)]
    pub(crate) one_at_a_time: bool,

    /// Take at most N files, in path order
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,

    /// No progress, only the table at the end
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Base URL of an OpenAI-compatible API, such as https://api.openai.com/v1
    #[arg(long, value_name = "URL", help_heading = "Provider", value_hint = ValueHint::Url)]
    pub(crate) endpoint: Option<String>,

    /// Environment variable that holds the API key
    ///
    /// When the flag is not given and OPENAI_API_KEY is not set, no key is sent: local servers
    /// need none.
    #[arg(
        verbatim_doc_comment,
        long,
        value_name = "VAR",
        help_heading = "Provider",
        requires = "endpoint"
    )]
    pub(crate) key_env: Option<String>,

    /// Model to ask; give it several times to share the files among several
    ///
    /// The files, in path order, are dealt out in as many runs as there are models: with two, the
    /// first half goes to the first and the second half to the second. Each has its own budget.
    /// [default: gpt-4o-mini with --endpoint, else standin-large and standin-small]
    #[arg(verbatim_doc_comment, long = "model", value_name = "NAME", help_heading = "Provider", value_parser = not_blank)]
    pub(crate) models: Vec<String>,

    /// TOML file of models with their limits, in place of the two flags that follow
    ///
    /// A list of [[model]] tables with id, tokens_per_minute or max_concurrent, and optionally
    /// requests_per_minute and prices = { input = "2.50", output = "10" }, in US dollars a million
    /// tokens. --model chooses among them; without it each gets its share.
    #[arg(
        verbatim_doc_comment,
        long,
        value_name = "FILE",
        help_heading = "Limits",
        value_hint = ValueHint::FilePath,
        conflicts_with_all = ["requests_per_minute", "tokens_per_minute"]
    )]
    pub(crate) catalog: Option<PathBuf>,

    /// US dollars the run may spend, such as 0.25
    ///
    /// What a file could cost at most is set aside before it waits for anything: its input by the
    /// estimate, its answer at --max-output. What it did cost takes that place when it ends. A file
    /// that would go over waits until others have cost less than was set aside for them, and is
    /// left out when that can help no more. Nothing that runs is stopped. Every model needs prices:
    /// of the --catalog, or the stand-in's own, which are 2.50 in and 10 out a million tokens of
    /// standin-large, 0.15 in and 0.60 out of standin-small.
    #[arg(
        verbatim_doc_comment,
        long,
        value_name = "USD",
        help_heading = "Limits",
        conflicts_with = "one_at_a_time",
        value_parser = dollars
    )]
    pub(crate) cap: Option<Decimal>,

    /// Start jobs without a look at the memory that is in use
    #[arg(long, help_heading = "Limits")]
    pub(crate) no_memory_gate: bool,

    /// Requests each model may take a minute [default: 500; of the stand-in: one for each job]
    #[arg(
        long,
        value_name = "N",
        help_heading = "Limits",
        value_parser = value_parser!(u32).range(1..)
    )]
    pub(crate) requests_per_minute: Option<u32>,

    /// Tokens each model may take a minute [default: 200000; of the stand-in: half of the work]
    ///
    /// By default a minute of the stand-in is worth half of what its jobs will reserve, so that a
    /// run of any size shows the waiting and is over in about a minute.
    #[arg(
        verbatim_doc_comment,
        long,
        value_name = "N",
        help_heading = "Limits",
        value_parser = value_parser!(u64).range(1..=MOST_TOKENS)
    )]
    pub(crate) tokens_per_minute: Option<u64>,

    /// Calls in flight at once
    #[arg(
        long,
        value_name = "N",
        help_heading = "Limits",
        default_value_t = 6,
        value_parser = value_parser!(u32).range(1..=100_000)
    )]
    pub(crate) http: u32,

    /// Connections of the database pool, and the permits that stand for them
    #[arg(
        long,
        value_name = "N",
        help_heading = "Limits",
        default_value_t = 16,
        value_parser = value_parser!(u32).range(1..=1_000)
    )]
    pub(crate) database_connections: u32,

    /// Tokens of a file that are sent at most; the rest is cut off
    #[arg(
        long,
        value_name = "TOKENS",
        help_heading = "Limits",
        default_value_t = 6_000,
        value_parser = value_parser!(u32).range(1..=10_000_000)
    )]
    pub(crate) max_input: u32,

    /// Tokens an answer may have; reserved with the input, given back when the answer is shorter
    #[arg(
        long,
        value_name = "TOKENS",
        help_heading = "Limits",
        default_value_t = 256,
        value_parser = value_parser!(u32).range(1..=1_000_000)
    )]
    pub(crate) max_output: u32,

    /// Calls made for one file before it counts as failed
    #[arg(
        long,
        value_name = "N",
        help_heading = "Limits",
        default_value_t = 6,
        value_parser = value_parser!(u32).range(1..=100)
    )]
    pub(crate) attempts: u32,

    /// Longest time one call may take, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "Limits",
        default_value_t = 60,
        value_parser = value_parser!(u64).range(1..=86_400)
    )]
    pub(crate) timeout: u64,

    /// SQLite file for the summaries [default: fanout.sqlite in the temporary folder]
    ///
    /// It is made when it is not there. A row for each file, under its folder and path; another run
    /// replaces the rows it renews.
    #[arg(verbatim_doc_comment, long, value_name = "PATH", help_heading = "Output", value_hint = ValueHint::FilePath)]
    pub(crate) database: Option<PathBuf>,

    /// Seed of everything random: the stand-in's answers and faults, the retries' jitter
    #[arg(long, value_name = "N", help_heading = "Stand-in", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Share of calls the stand-in fails, half with 529 and half with 500, in percent
    #[arg(
        long,
        value_name = "PERCENT",
        help_heading = "Stand-in",
        default_value_t = 0,
        conflicts_with = "endpoint",
        value_parser = value_parser!(u8).range(0..=90)
    )]
    pub(crate) chaos: u8,

    /// The stand-in's true budget, in percent of what the run was told: below 100 it answers 429
    #[arg(
        long,
        value_name = "PERCENT",
        help_heading = "Stand-in",
        default_value_t = 100,
        conflicts_with = "endpoint",
        value_parser = value_parser!(u8).range(10..=200)
    )]
    pub(crate) true_budget: u8,

    /// Time the stand-in thinks about a call before it writes, in milliseconds
    #[arg(
        long,
        value_name = "MS",
        help_heading = "Stand-in",
        default_value_t = 400,
        conflicts_with = "endpoint",
        value_parser = value_parser!(u64).range(0..=600_000)
    )]
    pub(crate) latency: u64,
}

const MOST_TOKENS: u64 = 1_000_000_000_000;

const AFTER_HELP: &str = "\
Exit status: 0 when every file has its row, 1 when one has not, if only for --cap, or nothing could
start, 2 for a command line that makes no sense, 130 after Ctrl-C. Ctrl-C grants nothing more and
lets the calls in flight end and be stored; a second one leaves at once.

Examples:
  cargo run --release --example fanout
  cargo run --release --example fanout -- --one-at-a-time
  cargo run --release --example fanout -- --cap 0.25
  cargo run --release --example fanout -- ~/notes --chaos 10 --database notes.sqlite
  cargo run --release --example fanout -- src --endpoint http://localhost:11434/v1 --model qwen3";

impl Args {
    /// Reads the command line; help and version go to standard output.
    ///
    /// # Errors
    ///
    /// The exit status to leave with, after one line on standard error (or the help) was printed.
    pub(crate) fn read() -> Result<Self, u8> {
        Self::try_parse().map_err(|error| {
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
                // Nothing is left to be said to whoever closed the pipe.
                let _ = error.print();
                return 0;
            }
            eprintln!("fanout: {}", one_line(&error));
            2
        })
    }

    /// The folder to walk: the one named, else this crate's own, else the current one.
    pub(crate) fn folder(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(|| {
            // A binary may outlive the checkout it was built from.
            let own = Path::new(env!("CARGO_MANIFEST_DIR"));
            if own.is_dir() { own.to_owned() } else { PathBuf::from(".") }
        })
    }

    /// Where the rows go.
    pub(crate) fn database(&self) -> PathBuf {
        self.database.clone().unwrap_or_else(|| std::env::temp_dir().join("fanout.sqlite"))
    }

    /// The models to ask, in the order of their share of the files.
    pub(crate) fn models(&self) -> Vec<String> {
        let default: &[&str] = match self.endpoint {
            Some(_) => &["gpt-4o-mini"],
            None => &["standin-large", "standin-small"],
        };
        if self.models.is_empty() {
            return default.iter().map(ToString::to_string).collect();
        }
        let mut models = self.models.clone();
        let mut seen = std::collections::HashSet::new();
        models.retain(|model| seen.insert(model.clone()));
        models
    }

    /// The API key, from the environment.
    ///
    /// # Errors
    ///
    /// When a variable was named and is not set, or is not text.
    pub(crate) fn key(&self) -> Result<Option<String>, Fatal> {
        match &self.key_env {
            Some(variable) => match std::env::var(variable) {
                Ok(key) if !key.trim().is_empty() => Ok(Some(key.trim().to_owned())),
                _ => Err(Fatal::NoKey { variable: variable.clone() }),
            },
            None => Ok(std::env::var("OPENAI_API_KEY").ok().filter(|key| !key.trim().is_empty())),
        }
    }

    /// The longest a call may take.
    pub(crate) fn call_timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// What is wrong with the command line, without the usage that clap adds.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("the command line makes no sense");
    let mut line = first.strip_prefix("error: ").unwrap_or(first).to_owned();
    // Some of clap's errors name the arguments they are about on lines of their own.
    if line.ends_with(':') {
        for argument in lines.take_while(|line| !line.starts_with("Usage")) {
            line.push(' ');
            line.push_str(argument);
        }
    }
    line.push_str(" (--help lists what there is)");
    line
}

fn dollars(text: &str) -> Result<Decimal, String> {
    match text.trim().parse::<Decimal>() {
        Ok(amount) if amount < Decimal::ZERO => Err("must not be negative".to_owned()),
        Ok(amount) => Ok(amount),
        Err(_) => Err("must be a number of US dollars, such as 0.25".to_owned()),
    }
}

fn not_blank(text: &str) -> Result<String, String> {
    let name = text.trim();
    if name.is_empty() { Err("a model needs a name".to_owned()) } else { Ok(name.to_owned()) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        let words = std::iter::once("fanout").chain(line.split_whitespace());
        Args::try_parse_from(words).map_err(|error| one_line(&error))
    }

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn no_flags_are_needed() {
        let args = parse("").unwrap();
        assert!(args.folder().join("Cargo.toml").is_file());
        assert_eq!(args.models(), ["standin-large", "standin-small"]);
        assert_eq!(args.database().file_name().unwrap(), "fanout.sqlite");
    }

    #[test]
    fn a_bad_number_is_one_line_that_names_the_flag_and_the_range() {
        for line in [
            "--http 0",
            "--http -1",
            "--http many",
            "--database-connections 0",
            "--tokens-per-minute 0",
            "--tokens-per-minute 99999999999999999999999",
            "--requests-per-minute 4294967296",
            "--requests-per-minute 0.5",
            "--max-output 0",
            "--max-input 0",
            "--limit 0",
            "--attempts 0",
            "--timeout 0",
            "--chaos 91",
            "--true-budget 9",
            "--seed x",
            "--cap -0.01",
            "--cap much",
            "--cap nan",
            "--cap 0,25",
            "--cap $1",
        ] {
            let error = parse(line).unwrap_err();
            let flag = line.split_whitespace().next().unwrap();
            assert!(error.contains(flag), "{line}: {error}");
            assert_eq!(error.lines().count(), 1, "{line}: {error}");
        }
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused_by_name() {
        let error = parse("--endpoint http://localhost/v1 --chaos 5").unwrap_err();
        assert!(error.contains("--chaos") && error.contains("--endpoint"), "{error}");
        let error = parse("--cap 1 --one-at-a-time").unwrap_err();
        assert!(error.contains("--cap") && error.contains("--one-at-a-time"), "{error}");
        let error = parse("--key-env KEY").unwrap_err();
        assert!(error.contains("--endpoint"), "{error}");
        assert!(parse("--model").is_err());
        assert!(parse("a b").is_err());
    }

    #[test]
    fn a_cap_is_an_exact_decimal() {
        assert_eq!(parse("").unwrap().cap, None);
        assert_eq!(parse("--cap 0.1").unwrap().cap, Some(Decimal::new(1, 1)));
        assert_eq!(parse("--cap 0").unwrap().cap, Some(Decimal::ZERO));
    }

    #[test]
    fn a_model_given_twice_is_one_model() {
        let args = parse("--model a --model b --model a").unwrap();
        assert_eq!(args.models(), ["a", "b"]);
    }

    #[test]
    fn a_key_variable_that_was_named_must_be_set() {
        let args = parse("--endpoint http://localhost/v1 --key-env FANOUT_NO_SUCH_KEY").unwrap();
        let error = args.key().unwrap_err().to_string();
        assert!(error.contains("FANOUT_NO_SUCH_KEY"), "{error}");
    }
}
