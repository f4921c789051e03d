//! A catalog as anybody may write it. `fuzz/fuzz_targets/catalog.rs` reads the same.

use std::collections::HashSet;

use admit::{Accounts, Catalog, CatalogError};

/// Whatever it says: nothing panics, what is taken can be made accounts of, and what is not is
/// named with its file and its line, on one line.
///
/// # Panics
///
/// When that does not hold.
pub(crate) fn hold(text: &str) {
    match text.parse::<Catalog>() {
        Ok(catalog) => makes_accounts(&catalog),
        Err(error) => says_where(&error, text),
    }
}

fn makes_accounts(catalog: &Catalog) {
    assert!(!catalog.models().is_empty(), "it is taken, and lists nothing");
    let accounts = Accounts::new();
    let mut ids = HashSet::new();
    for spec in catalog.models() {
        assert!(ids.insert(&spec.id), "`{}` is there twice", spec.id);
        assert!(spec.validate().is_ok(), "{spec:?}");
        assert!(accounts.account(spec).is_ok(), "{spec:?}");
    }
}

fn says_where(error: &CatalogError, text: &str) {
    let told = error.to_string();
    assert!(!told.chars().any(char::is_control), "not one line: {told:?}");
    let lines = 1 + text.bytes().filter(|byte| *byte == b'\n').count();
    let line = match error {
        CatalogError::Empty { file } => {
            assert!(told.starts_with("catalog names no model") && file == "catalog", "{told}");
            return;
        }
        CatalogError::Syntax { place, .. }
        | CatalogError::Invalid { place, .. }
        | CatalogError::Duplicate { place, .. } => place.line,
        other => panic!("a text is not read from a file: {other:?}"),
    };
    assert!((1..=lines).contains(&line), "line {line} of {lines}: {told}");
    assert!(told.starts_with(&format!("catalog, line {line}: ")), "{told}");
}
