//! Which file goes to which model, and what each reserves.

use std::path::PathBuf;

use admit::{Catalog, Currency, Decimal, ModelSpec, Prices, Usage};

use crate::cli::Args;
use crate::error::Fatal;
use crate::files::TextFile;

/// Bytes of text that count as one token in an estimate.
///
/// Tokenizers make a token of three to four bytes of prose or code, so this is on the safe side:
/// what an estimate has too much comes back with the answer's usage.
pub(crate) const BYTES_A_TOKEN: u64 = 3;

/// Tokens a model may have a minute with `--endpoint`, when nothing is said.
const TOKENS_PER_MINUTE: u64 = 200_000;
/// Requests a model may have a minute with `--endpoint`, when nothing is said.
const REQUESTS_PER_MINUTE: u32 = 500;

/// What is asked about every file.
pub(crate) const INSTRUCTION: &str = "You summarise the files of a software project for a reader \
who does not know it. Say in two or three sentences what the file is for and what is worth knowing \
about it.";

/// Tokens of a question around the file's own text: the instruction, the path, the roles.
const AROUND: u64 = INSTRUCTION.len() as u64 / BYTES_A_TOKEN + 16;

/// One file to be summarised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// Its place in path order.
    pub(crate) number: usize,
    /// Where the file is.
    pub(crate) at: PathBuf,
    /// The file's path below the folder.
    pub(crate) path: String,
    /// Which of the plan's models is asked.
    pub(crate) model: usize,
    /// What to reserve: the estimated input and the longest answer.
    pub(crate) reserved: Usage,
}

/// The models and the jobs of one run.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The models, in the order of their share.
    pub(crate) models: Vec<ModelSpec>,
    /// The jobs, in path order.
    pub(crate) jobs: Vec<Job>,
}

impl Plan {
    /// Deals the files out to the models of the command line, in consecutive runs.
    ///
    /// # Errors
    ///
    /// When one of the jobs wants more than its model has in a whole minute, or there is a cap and
    /// a model that cannot be held to it.
    pub(crate) fn new(args: &Args, files: Vec<TextFile>) -> Result<Self, Fatal> {
        let choice = Choice::of(args)?;
        let share = files.len().div_ceil(choice.len());
        let jobs: Vec<Job> = files
            .into_iter()
            .enumerate()
            .map(|(number, file)| Job {
                number,
                model: number / share,
                reserved: Usage::new(estimate(&file), u64::from(args.max_output)),
                at: file.at,
                path: file.path,
            })
            .collect();
        let models = match choice {
            Choice::Catalog(specs) => specs,
            Choice::Names(names) => names
                .into_iter()
                .enumerate()
                .map(|(index, name)| {
                    let of_it = jobs.iter().filter(|job| job.model == index);
                    spec(args, name, of_it.map(|job| job.reserved.total()))
                })
                .collect(),
        };
        let plan = Self { models, jobs };
        plan.check()?;
        if args.cap.is_some() {
            plan.models.iter().try_for_each(check_prices)?;
        }
        Ok(plan)
    }

    fn check(&self) -> Result<(), Fatal> {
        let never_fits = |job: &&Job| {
            let model = &self.models[job.model];
            model.max_concurrent.is_none() && job.reserved.total() > model.tokens_per_minute
        };
        let largest = self.jobs.iter().filter(never_fits).max_by_key(|job| job.reserved.total());
        largest.map_or(Ok(()), |job| {
            let model = &self.models[job.model];
            Err(Fatal::NeverFits {
                path: job.path.clone(),
                wanted: job.reserved.total(),
                model: model.id.clone(),
                budget: model.tokens_per_minute,
            })
        })
    }
}

/// The models a run asks: with limits of their own, or only by name.
enum Choice {
    Catalog(Vec<ModelSpec>),
    Names(Vec<String>),
}

impl Choice {
    /// The models of the catalog that were named, or all of them; without one, those named.
    fn of(args: &Args) -> Result<Self, Fatal> {
        let Some(path) = &args.catalog else { return Ok(Self::Names(args.models())) };
        let catalog = Catalog::load(path).map_err(|error| Fatal::Catalog(error.to_string()))?;
        if args.models.is_empty() {
            return Ok(Self::Catalog(catalog.models().to_vec()));
        }
        let named = args.models().into_iter().map(|name| {
            let spec = catalog.model(&name).cloned();
            spec.ok_or_else(|| Fatal::NotInCatalog { path: path.clone(), model: name })
        });
        Ok(Self::Catalog(named.collect::<Result<_, _>>()?))
    }

    const fn len(&self) -> usize {
        match self {
            Self::Catalog(specs) => specs.len(),
            Self::Names(names) => names.len(),
        }
    }
}

/// A cap is in dollars: it says nothing about a model that costs nobody knows what, or euros.
fn check_prices(model: &ModelSpec) -> Result<(), Fatal> {
    let name = || model.id.clone();
    match &model.prices {
        None => Err(Fatal::Unpriced { model: name() }),
        Some(Prices { currency, .. }) if *currency != Currency::USD => {
            Err(Fatal::OtherCurrency { model: name(), currency: *currency })
        }
        Some(_) => Ok(()),
    }
}

/// What the stand-in asks for its own models, as --help says.
fn own_prices(name: &str) -> Option<Prices> {
    match name {
        "standin-large" => Some(Prices::per_million(Decimal::new(250, 2), Decimal::TEN)),
        "standin-small" => Some(Prices::per_million(Decimal::new(15, 2), Decimal::new(60, 2))),
        _ => None,
    }
}

/// Estimated tokens of the question about a file.
fn estimate(file: &TextFile) -> u64 {
    (file.bytes + file.path.len() as u64).div_ceil(BYTES_A_TOKEN) + AROUND
}

/// The limits a model is used under; of the stand-in, by default, in proportion to the work.
fn spec(args: &Args, name: String, reservations: impl Iterator<Item = u64>) -> ModelSpec {
    let (mut jobs, mut work, mut largest) = (0_u32, 0, 0);
    for reservation in reservations {
        jobs = jobs.saturating_add(1);
        work += reservation;
        largest = largest.max(reservation);
    }
    let (requests, tokens) = if args.endpoint.is_some() {
        (REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE)
    } else {
        (jobs.max(60), (work / 2).max(largest).max(1).div_ceil(1_000) * 1_000)
    };
    let prices = if args.endpoint.is_some() { None } else { own_prices(&name) };
    let mut spec = ModelSpec::new(name, args.tokens_per_minute.unwrap_or(tokens))
        .with_requests_per_minute(args.requests_per_minute.unwrap_or(requests));
    spec.prices = prices;
    spec
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn files(count: usize, bytes: u64) -> Vec<TextFile> {
        (0..count)
            .map(|n| TextFile { at: PathBuf::new(), path: format!("{n:03}"), bytes })
            .collect()
    }

    fn plan(line: &str, files: Vec<TextFile>) -> Result<Plan, Fatal> {
        let words = std::iter::once("fanout").chain(line.split_whitespace());
        Plan::new(&Args::try_parse_from(words).unwrap(), files)
    }

    #[test]
    fn the_models_share_the_files_in_consecutive_runs() {
        let shares = |models: &str, count| {
            let plan = plan(models, files(count, 30)).unwrap();
            plan.jobs.iter().map(|job| job.model).collect::<Vec<_>>()
        };
        assert_eq!(shares("", 5), [0, 0, 0, 1, 1]);
        assert_eq!(shares("--model a --model b --model c", 4), [0, 0, 1, 1]);
        assert_eq!(shares("--model a", 3), [0, 0, 0]);
        assert_eq!(shares("--model a --model b", 1), [0]);
    }

    #[test]
    fn a_reservation_is_the_estimated_input_and_the_longest_answer() {
        let plan = plan("--max-output 100", files(1, 300)).unwrap();
        assert_eq!(plan.jobs[0].reserved, Usage::new(101 + AROUND, 100));
    }

    #[test]
    fn the_stand_in_sells_half_of_the_work_but_always_the_largest_job() {
        let many = plan("--model a", files(100, 3_000)).unwrap();
        let work: u64 = many.jobs.iter().map(|job| job.reserved.total()).sum();
        assert_eq!(many.models[0].tokens_per_minute, (work / 2).div_ceil(1_000) * 1_000);
        assert_eq!(many.models[0].requests_per_minute, Some(100));
        let one = plan("--model a", files(1, 9_000)).unwrap();
        assert!(one.models[0].tokens_per_minute >= one.jobs[0].reserved.total());
    }

    #[test]
    fn a_job_that_can_never_fit_is_refused_before_anything_starts() {
        let error = plan("--tokens-per-minute 500", files(3, 3_000)).unwrap_err().to_string();
        assert!(error.contains("--tokens-per-minute") && error.contains("500"), "{error}");
        assert_eq!(error.lines().count(), 1);
    }

    #[test]
    fn a_cap_needs_a_price_in_its_currency_for_every_model() {
        assert!(plan("--cap 1", files(4, 30)).is_ok(), "the stand-in's own models have prices");
        for line in ["--cap 1 --model m", "--cap 1 --endpoint http://localhost/v1"] {
            let error = plan(line, files(4, 30)).unwrap_err().to_string();
            assert!(error.contains("--cap") && error.contains("has no prices"), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("models.toml");
        let priced = "max_concurrent = 2\nprices = { input = 1, output = 2, currency = ";
        let model = |id, code| format!("[[model]]\nid = \"{id}\"\n{priced}\"{code}\" }}\n\n");
        std::fs::write(&path, model("a", "USD") + &model("b", "EUR")).unwrap();
        let with = |more: &str| {
            let line = format!("--cap 1 --catalog {} {more}", path.display());
            plan(&line, files(4, 30))
        };
        assert_eq!(with("--model a").unwrap().models[0].id, "a");
        let error = with("").unwrap_err().to_string();
        assert!(error.contains("`b`") && error.contains("EUR"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }

    #[test]
    fn a_catalog_names_the_models_and_their_limits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("models.toml");
        let text = "[[model]]\nid = \"a\"\ntokens_per_minute = 9000\n\n\
                    [[model]]\nid = \"b\"\nmax_concurrent = 2\n";
        std::fs::write(&path, text).unwrap();
        let with =
            |more: &str| plan(&format!("--catalog {} {more}", path.display()), files(4, 30_000));
        let error = with("").unwrap_err().to_string();
        assert!(error.contains("9000"), "{error}");
        let local = with("--model b").unwrap();
        assert_eq!(local.models[0].max_concurrent, Some(2));
        let error = with("--model c").unwrap_err().to_string();
        assert!(error.contains('c') && error.contains("models.toml"), "{error}");

        std::fs::write(&path, "[[model]]\nname = 3").unwrap();
        let error = with("").unwrap_err().to_string();
        assert!(error.contains("models.toml, line"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
