//! Models from a TOML file.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;
use toml::Spanned;

use super::spec::{ModelSpec, Prices};
use crate::error::{BoxError, ConfigError};
use crate::one_line::OneLine;

/// Where in a catalog something is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CatalogPlace {
    /// The file, as it was named; `catalog` for a text that came from no file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for CatalogPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}", OneLine(&self.file), self.line)
    }
}

/// Why a catalog was not taken: where, what, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// The file cannot be read.
    #[error(
        "cannot read the catalog {}: {source}; name a TOML file that may be read",
        OneLine(path.display())
    )]
    Read {
        /// The path as it was given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is no TOML, or no catalog: a key is unknown, missing, or of the wrong type.
    #[error(
        "{place}: {}; a catalog is a list of [[model]] tables with id, tokens_per_minute \
         or max_concurrent, and optionally requests_per_minute and prices",
        OneLine(message)
    )]
    Syntax {
        /// Where.
        place: CatalogPlace,
        /// What is wrong.
        message: String,
        /// The parser's own error, with the excerpt.
        source: BoxError,
    },
    /// A model has a value it cannot have.
    #[error(
        "{place}: model `{}`: {}; correct the value or remove the model",
        OneLine(model),
        source.bare()
    )]
    Invalid {
        /// Where.
        place: CatalogPlace,
        /// The model's id.
        model: String,
        /// Which field, and what it must be.
        source: ConfigError,
    },
    /// Two models have one id.
    #[error(
        "{place}: model `{}` is there already, on line {first_line}; give one of them another \
         id: each id is a limit of its own",
        OneLine(model)
    )]
    Duplicate {
        /// Where it is for the second time.
        place: CatalogPlace,
        /// The id.
        model: String,
        /// Where it was first.
        first_line: usize,
    },
    /// There is no model in it.
    #[error(
        "{} names no model; add a [[model]] table with id and tokens_per_minute",
        OneLine(file)
    )]
    Empty {
        /// The file, as it was named.
        file: String,
    },
}

/// The models a TOML file lists, in its order.
///
/// Everything is checked when it is read: a catalog that was taken can be made accounts of.
///
/// # Examples
///
/// ```
/// use admit::Catalog;
///
/// let catalog: Catalog = r#"
///     [[model]]
///     id = "gpt-x"
///     tokens_per_minute = 30000
///     requests_per_minute = 500
///     prices = { input = "2.50", output = 10.0, cached_read_multiplier = 0.5, currency = "EUR" }
///
///     [[model]]
///     id = "llama-local"
///     max_concurrent = 2
/// "#
/// .parse()?;
/// assert_eq!(catalog.models().len(), 2);
/// assert_eq!(catalog.model("gpt-x").unwrap().requests_per_minute, Some(500));
/// # Ok::<(), admit::CatalogError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalog {
    models: Vec<ModelSpec>,
}

impl Catalog {
    /// Reads a catalog from a file.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or [`parse`](Self::from_str) refuses what it says.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, CatalogError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|source| CatalogError::Read { path: path.to_owned(), source })?;
        Self::read(&text, &path.display().to_string())
    }

    /// The models, in the file's order.
    #[must_use]
    pub fn models(&self) -> &[ModelSpec] {
        &self.models
    }

    /// The model of this id.
    #[must_use]
    pub fn model(&self, id: &str) -> Option<&ModelSpec> {
        self.models.iter().find(|model| model.id == id)
    }

    fn read(text: &str, file: &str) -> Result<Self, CatalogError> {
        let place = |offset| CatalogPlace { file: file.to_owned(), line: line_of(text, offset) };
        let tables: Tables = toml::from_str(text).map_err(|error| CatalogError::Syntax {
            place: place(error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
            source: error.into(),
        })?;
        let mut models = Vec::with_capacity(tables.model.len());
        let mut first_lines: HashMap<String, usize> = HashMap::new();
        for entry in tables.model {
            let (id, place) = (entry.id.get_ref().clone(), |offset| place(offset));
            let spec = entry.into_spec().map_err(|(offset, source)| CatalogError::Invalid {
                place: place(offset),
                model: id.clone(),
                source,
            })?;
            let at = place(spec.1);
            if let Some(first_line) = first_lines.insert(id.clone(), at.line) {
                return Err(CatalogError::Duplicate { place: at, model: id, first_line });
            }
            models.push(spec.0);
        }
        if models.is_empty() {
            return Err(CatalogError::Empty { file: file.to_owned() });
        }
        Ok(Self { models })
    }
}

impl FromStr for Catalog {
    type Err = CatalogError;

    /// Reads a catalog from a text.
    fn from_str(text: &str) -> Result<Self, CatalogError> {
        Self::read(text, "catalog")
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    #[serde(default)]
    model: Vec<Entry>,
}

/// A [`ModelSpec`] whose fields know where they are.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    id: Spanned<String>,
    tokens_per_minute: Option<Spanned<u64>>,
    requests_per_minute: Option<Spanned<u32>>,
    max_concurrent: Option<Spanned<u32>>,
    prices: Option<Spanned<Prices>>,
}

impl Entry {
    /// The spec and where its id is; or where it is wrong, and why.
    fn into_spec(self) -> Result<(ModelSpec, usize), (usize, ConfigError)> {
        let at_id = self.id.span().start;
        if self.tokens_per_minute.is_none() && self.max_concurrent.is_none() {
            let requirement = "a model needs it, or max_concurrent";
            return Err((at_id, ConfigError::new("tokens_per_minute", "missing", requirement)));
        }
        let spans = [
            ("tokens_per_minute", self.tokens_per_minute.as_ref().map(Spanned::span)),
            ("requests_per_minute", self.requests_per_minute.as_ref().map(Spanned::span)),
            ("max_concurrent", self.max_concurrent.as_ref().map(Spanned::span)),
            ("prices", self.prices.as_ref().map(Spanned::span)),
        ];
        let at = |field: &str| {
            spans
                .iter()
                .find(|(name, _)| field.starts_with(name))
                .and_then(|(_, span)| span.as_ref())
                .map_or(at_id, |span| span.start)
        };
        // A token limit of zero that was written is a mistake, also where it is of no account.
        if self.tokens_per_minute.as_ref().is_some_and(|tokens| *tokens.get_ref() == 0) {
            let error = ConfigError::new("tokens_per_minute", 0, "must be at least 1");
            return Err((at("tokens_per_minute"), error));
        }
        let spec = ModelSpec {
            id: self.id.into_inner(),
            tokens_per_minute: self.tokens_per_minute.map_or(0, Spanned::into_inner),
            requests_per_minute: self.requests_per_minute.map(Spanned::into_inner),
            max_concurrent: self.max_concurrent.map(Spanned::into_inner),
            prices: self.prices.map(Spanned::into_inner),
        };
        match spec.validate() {
            Ok(()) => Ok((spec, at_id)),
            Err(error) => Err((at(error.field), error)),
        }
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::Currency;
    use std::error::Error;
    use std::io::Write;

    fn refused(text: &str) -> (String, CatalogError) {
        let error = text.parse::<Catalog>().expect_err(text);
        (error.to_string(), error)
    }

    #[test]
    fn a_whole_catalog_is_read_in_order_with_exact_prices() {
        let catalog: Catalog = r#"
[[model]]
id = "a"
tokens_per_minute = 30_000
prices = { input = 0.075, output = "0.30", cached_read_multiplier = 0.1, cached_write_multiplier = 1.25 }

[[model]]
id = "b"
max_concurrent = 2
[model.prices]
input = 1
output = 2
currency = "EUR"
"#
        .parse()
        .unwrap();
        let [a, b] = catalog.models() else { panic!("two models") };
        assert_eq!((a.id.as_str(), b.id.as_str()), ("a", "b"));
        let prices = a.prices.as_ref().unwrap();
        let decimals = [
            prices.input,
            prices.output,
            prices.cached_read_multiplier,
            prices.cached_write_multiplier,
        ];
        assert_eq!(decimals.map(|decimal| decimal.to_string()), ["0.075", "0.30", "0.1", "1.25"]);
        assert_eq!(prices.currency, Currency::USD);
        assert_eq!(b.prices.as_ref().unwrap().currency, Currency::EUR);
        assert_eq!((b.tokens_per_minute, b.max_concurrent), (0, Some(2)));
        assert_eq!(catalog.model("b"), Some(b));
        assert_eq!(catalog.model("c"), None);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, line, words) in [
            ("[[model]\nid = 1", 1, &["[[model]]"][..]),
            ("\n[[model]]\nid = \"a\"\ntpm = 3\ntokens_per_minute = 1", 4, &["tpm", "unknown"]),
            ("[[models]]\nid = \"a\"", 1, &["models", "unknown"]),
            ("[[model]]\ntokens_per_minute = 1", 1, &["missing", "id"]),
            ("[[model]]\nid = \"a\"\ntokens_per_minute = \"many\"", 3, &["string", "u64"]),
            ("[[model]]\nid = \"a\"\ntokens_per_minute = -5", 3, &["-5"]),
            ("[[model]]\nid = \"a\"\nrequests_per_minute = 4294967296", 3, &["4294967296"]),
            ("[[model]]\nid = \"a\"\nid = \"b\"", 3, &["duplicate"]),
            ("[[model]]\nid = \"a\"\nprices = { input = 1 }", 3, &["output"]),
            ("[[model]]\nid = \"a\"\nprices = { input = \"x\", output = 1 }", 3, &["x"]),
            ("[[model]]\nid = \"a\"\nprices = { input = nan, output = 1 }", 3, &[]),
            (
                "[[model]]\nid = \"a\"\nprices = { input = 1, output = 1, currency = \"eur\" }",
                3,
                &["currency", "\"eur\"", "such as USD"],
            ),
            (
                "[[model]]\nid = \"a\"\n[model.prices]\ninput = 1\noutput = 1\ncurrency = 3",
                6,
                &["string"],
            ),
            ("model = 3", 1, &[]),
        ] {
            let (said, error) = refused(text);
            assert!(matches!(error, CatalogError::Syntax { .. }), "{error:?}");
            assert!(said.starts_with(&format!("catalog, line {line}: ")), "{text:?}: {said}");
            assert!(said.contains("[[model]] tables"), "what to do: {said}");
            for word in words {
                assert!(said.contains(word), "{word}: {said}");
            }
        }
    }

    #[test]
    fn a_value_that_makes_no_account_is_named_with_its_line() {
        for (text, line, field) in [
            ("[[model]]\n\nid = \"a\"", 3, "tokens_per_minute"),
            ("[[model]]\nid = \"\"\ntokens_per_minute = 1", 2, "id"),
            ("[[model]]\nid = \"a\"\ntokens_per_minute = 0", 3, "tokens_per_minute"),
            (
                "[[model]]\nmax_concurrent = 1\ntokens_per_minute = 0\nid = \"a\"",
                3,
                "tokens_per_minute",
            ),
            (
                "[[model]]\nid = \"a\"\ntokens_per_minute = 1\nrequests_per_minute = 0",
                4,
                "requests_per_minute",
            ),
            ("[[model]]\nid = \"a\"\nmax_concurrent = 0", 3, "max_concurrent"),
            (
                "[[model]]\nid = \"a\"\ntokens_per_minute = 1\n\nprices = { input = -1, output = 1 }",
                5,
                "prices.input",
            ),
        ] {
            let (said, error) = refused(text);
            let CatalogError::Invalid { place, source, .. } = error else { panic!("{error:?}") };
            assert_eq!((place.line, source.field), (line, field), "{text:?}: {said}");
            assert!(said.contains("correct the value"), "{said}");
        }
    }

    #[test]
    fn two_models_of_one_id_are_named_with_both_lines() {
        let one = "[[model]]\nid = \"a\"\ntokens_per_minute = 1\n";
        let (said, error) = refused(&format!("{one}{one}"));
        assert!(matches!(error, CatalogError::Duplicate { first_line: 2, .. }), "{error:?}");
        assert!(said.starts_with("catalog, line 5: model `a`"), "{said}");
    }

    #[test]
    fn an_id_of_two_lines_is_told_on_one() {
        let (said, _) = refused("[[model]]\nid = \"a\\nb\"\ntokens_per_minute = 0");
        assert!(said.starts_with("catalog, line 3: model `a b`: "), "{said}");
        let (said, _) = refused("[[model]]\n\"a\\nb\" = 1");
        assert!(said.starts_with("catalog, line 2: ") && !said.contains('\n'), "{said}");
    }

    #[test]
    fn an_empty_catalog_says_what_to_add() {
        for text in ["", "# nothing yet", "model = []"] {
            assert!(refused(text).0.contains("add a [[model]]"));
        }
    }

    #[test]
    fn a_file_is_named_in_every_error() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"[[model]]\nid = 3\n").unwrap();
        let name = file.path().display().to_string();
        let said = Catalog::load(file.path()).unwrap_err().to_string();
        assert!(said.starts_with(&format!("{name}, line 2: ")), "{said}");

        file.write_all(b"\xff\xfe").unwrap();
        assert!(Catalog::load(file.path()).unwrap_err().to_string().contains(&name));

        let gone = file.path().with_extension("gone");
        let error = Catalog::load(&gone).unwrap_err();
        assert!(error.to_string().contains("cannot read the catalog"));
        assert!(error.source().is_some());
    }
}
