//! docs/internals.md names a test for every rule, docs/security.md for every bound. Names must not rot.

use std::collections::HashMap;
use std::path::Path;

/// Every `path.rs: test_name` of the page, also where one path is followed by several names.
fn mentions(page: &str) -> Vec<(&str, &str)> {
    // Between back quotes stands every second piece.
    let quoted = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted
        .filter_map(|text| text.split_once(".rs: ").map(|(path, names)| (path, text, names)))
        .flat_map(|(path, text, names)| {
            names.split(", ").map(move |name| (&text[..path.len() + ".rs".len()], name))
        })
        .collect()
}

/// Whether a file's text has a test of this name.
fn has_test(text: &str, name: &str) -> bool {
    let Some(at) = text.find(&format!("fn {name}(")) else { return false };
    // Attributes and comments of its own stand between it and what comes before.
    let own = text[..at].rsplit(['{', '}']).next().unwrap_or_default();
    own.contains("#[test]") || own.contains("#[tokio::test")
}

#[test]
fn every_test_that_a_page_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = |name: &str| std::fs::read_to_string(root.join(name)).expect("the page is there");
    let pages = [page("docs/internals.md"), page("docs/security.md")];
    let named = pages.each_ref().map(|page| mentions(page));
    assert!(named[1].len() > 30, "only {} are read of the bounds", named[1].len());
    let mentions = named.concat();
    let mut files: HashMap<&str, String> = HashMap::new();
    let mut missing = Vec::new();
    for &(path, name) in &mentions {
        let text = files
            .entry(path)
            .or_insert_with(|| std::fs::read_to_string(root.join(path)).unwrap_or_default());
        if !has_test(text, name) {
            missing.push(format!("{path}: {name}"));
        }
    }
    assert!(missing.is_empty(), "no such tests:\n{}", missing.join("\n"));
    assert!(mentions.len() > 300, "only {} are read, the page names more", mentions.len());
}

#[test]
fn a_mention_is_read_and_a_test_told_from_what_is_none() {
    let page = "a rule (`tests/a.rs: one_test, other_test`), `no_file`, `x: y`";
    assert_eq!(mentions(page), [("tests/a.rs", "one_test"), ("tests/a.rs", "other_test")]);
    let text = "fn helper() {}\n\n/// Why.\n#[test]\nfn one_test() {\n}\n";
    assert!(has_test(text, "one_test"));
    assert!(!has_test(text, "helper") && !has_test(text, "one") && !has_test(text, "gone"));
}
