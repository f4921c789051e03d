//! Why a run could not start: one line each.

use std::path::PathBuf;

use admit::Currency;

/// What keeps a run from starting. Each is one line that says what to change.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fatal {
    #[error("no such folder: {}", .0.display())]
    NoFolder(PathBuf),
    #[error("not a folder: {}", .0.display())]
    NotAFolder(PathBuf),
    #[error("cannot read the folder {}: {reason}", .folder.display())]
    UnreadableFolder { folder: PathBuf, reason: std::io::Error },
    #[error("no text files under {} ({skipped} skipped)", .folder.display())]
    NothingToDo { folder: PathBuf, skipped: usize },
    #[error(
        "`{path}` wants {wanted} tokens of {model}, which has {budget} a minute: raise \
         --tokens-per-minute, or lower --max-input or --max-output"
    )]
    NeverFits { path: String, wanted: u64, model: String, budget: u64 },
    #[error("{0}")]
    Catalog(String),
    #[error("the catalog {} has no model `{model}`", .path.display())]
    NotInCatalog { path: PathBuf, model: String },
    #[error("cannot use the database {}: {reason}", .path.display())]
    Database { path: PathBuf, reason: String },
    #[error("not a URL with http or https: {0}")]
    BadEndpoint(String),
    #[error("the environment variable {variable} (--key-env) is not set")]
    NoKey { variable: String },
    #[error("cannot reach {url}: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("{url} refuses the key: HTTP {status}")]
    KeyRefused { url: String, status: u16 },
    #[error("cannot start the stand-in provider: {0}")]
    StandIn(std::io::Error),
    #[error("cannot set up the HTTP client: {0}")]
    Client(String),
    #[error(
        "--cap needs to know what a model costs, and `{model}` has no prices: name it in a \
         --catalog, with prices = {{ input = \"2.50\", output = \"10\" }}, say"
    )]
    Unpriced { model: String },
    #[error(
        "--cap is in {}, and model `{model}` is priced in {currency}: choose another with \
         --model, or leave the cap out",
        Currency::USD
    )]
    OtherCurrency { model: String, currency: Currency },
    #[error("cannot set up admission: {0}")]
    Admission(String),
}

/// The innermost reason of an error: the part that says what happened.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
