//! The text files under a folder.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::error::Fatal;

/// Folders that hold what was made, not what was written.
const LEFT_OUT: [&str; 2] = ["target", "node_modules"];

/// One text file that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextFile {
    /// Where it is.
    pub(crate) at: PathBuf,
    /// Its path below the folder, with `/`.
    pub(crate) path: String,
    /// Bytes of it that are sent.
    pub(crate) bytes: u64,
}

/// What the walk found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The text files, in path order.
    pub(crate) files: Vec<TextFile>,
    /// Files that were passed over.
    pub(crate) skipped: Skipped,
    /// How many files are longer than what is sent of them.
    pub(crate) cut: usize,
}

/// How many files were passed over, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Skipped {
    /// Not UTF-8, or binary.
    pub(crate) not_text: usize,
    /// Nothing but white space.
    pub(crate) empty: usize,
    /// The system would not let them, or a folder of them, be read.
    pub(crate) unreadable: usize,
}

impl Skipped {
    /// All of them.
    pub(crate) const fn total(self) -> usize {
        self.not_text + self.empty + self.unreadable
    }
}

/// A file's text, as far as it is sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The text; `cut` when the file goes on after it.
    Text { text: String, cut: bool },
    /// Nothing in it.
    Empty,
    /// Not UTF-8, or with zero bytes in it.
    NotText,
}

/// Walks `folder` for text files, at most `limit` of them; of each, `most` bytes count.
///
/// # Errors
///
/// When the folder is not there, is no folder, cannot be read, or has no text file.
pub(crate) fn collect(folder: &Path, most: u64, limit: Option<u32>) -> Result<Found, Fatal> {
    if !folder.exists() {
        return Err(Fatal::NoFolder(folder.to_owned()));
    }
    if !folder.is_dir() {
        return Err(Fatal::NotAFolder(folder.to_owned()));
    }
    let limit = limit.map_or(usize::MAX, |limit| limit as usize);
    let mut found = Found::default();
    // The folder itself must be readable; one below it that is not is a skip.
    let mut open = entries(folder)
        .map_err(|reason| Fatal::UnreadableFolder { folder: folder.to_owned(), reason })?;
    while let Some(path) = open.pop() {
        if found.files.len() == limit {
            break;
        }
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => match entries(&path) {
                Ok(below) => open.extend(below),
                Err(_) => found.skipped.unreadable += 1,
            },
            Ok(meta) if meta.is_file() => look_at(folder, path, most, &mut found),
            // A link could lead round in circles; a pipe or a socket would never end.
            Ok(_) => {}
            Err(_) => found.skipped.unreadable += 1,
        }
    }
    if found.files.is_empty() {
        let skipped = found.skipped.total();
        return Err(Fatal::NothingToDo { folder: folder.to_owned(), skipped });
    }
    Ok(found)
}

fn look_at(folder: &Path, at: PathBuf, most: u64, found: &mut Found) {
    match read(&at, most) {
        Ok(Content::Text { text, cut }) => {
            let below = at.strip_prefix(folder).unwrap_or(&at);
            let parts: Vec<_> = below.iter().map(|part| part.to_string_lossy()).collect();
            let path = parts.join("/");
            found.cut += usize::from(cut);
            found.files.push(TextFile { at, path, bytes: text.len() as u64 });
        }
        Ok(Content::Empty) => found.skipped.empty += 1,
        Ok(Content::NotText) => found.skipped.not_text += 1,
        Err(_) => found.skipped.unreadable += 1,
    }
}

/// A folder's entries that are looked at, the last by name first.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with('.') && !LEFT_OUT.contains(&name.as_ref()) {
            entries.push(entry.path());
        }
    }
    entries.sort_unstable_by(|a, b| b.cmp(a));
    Ok(entries)
}

/// Reads the first `most` bytes of a file, back to the last whole character.
///
/// # Errors
///
/// Whatever the system says.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Content> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    let cut = bytes.len() as u64 > most;
    if cut {
        bytes.pop();
    }
    if bytes.contains(&0) {
        return Ok(Content::NotText);
    }
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            // Only the cut may have split a character; anywhere else it was none.
            let whole = error.utf8_error().valid_up_to();
            let split = cut && error.utf8_error().error_len().is_none();
            let mut bytes = error.into_bytes();
            bytes.truncate(whole);
            match String::from_utf8(bytes) {
                Ok(text) if split => text,
                _ => return Ok(Content::NotText),
            }
        }
    };
    Ok(if text.trim().is_empty() { Content::Empty } else { Content::Text { text, cut } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, bytes) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        folder
    }

    fn paths(found: &Found) -> Vec<&str> {
        found.files.iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn text_files_are_found_in_path_order_and_the_others_counted() {
        let folder = folder(&[
            ("b/two.rs", b"fn two() {}"),
            ("a.md", b"# A"),
            ("b/image.png", b"\x89PNG\r\n\x1a\n\0\0"),
            ("latin1.txt", b"caf\xe9"),
            ("blank.txt", b"  \n"),
            ("empty.txt", b""),
            ("target/made.txt", b"made"),
            (".git/config", b"hidden"),
            (".hidden", b"hidden"),
        ]);
        let found = collect(folder.path(), 1_000, None).unwrap();
        assert_eq!(paths(&found), ["a.md", "b/two.rs"]);
        assert_eq!(found.skipped, Skipped { not_text: 2, empty: 2, unreadable: 0 });
        assert_eq!(found.cut, 0);
    }

    #[test]
    fn a_long_file_is_cut_at_a_whole_character() {
        let folder = folder(&[("umlauts.txt", "aüüü".as_bytes())]);
        let path = folder.path().join("umlauts.txt");
        let cut = |text: &str| Content::Text { text: text.to_owned(), cut: true };
        assert_eq!(read(&path, 4).unwrap(), cut("aü"));
        assert_eq!(read(&path, 5).unwrap(), cut("aüü"));
        let whole = Content::Text { text: "aüüü".to_owned(), cut: false };
        assert_eq!(read(&path, 7).unwrap(), whole);
    }

    #[test]
    fn a_file_that_ends_inside_a_character_is_not_text() {
        let folder = folder(&[("broken.txt", &"aü".as_bytes()[..2])]);
        let path = folder.path().join("broken.txt");
        assert_eq!(read(&path, 100).unwrap(), Content::NotText);
    }

    #[test]
    fn the_limit_takes_the_first_by_path() {
        let folder = folder(&[("c", b"3"), ("a", b"1"), ("b", b"2")]);
        assert_eq!(paths(&collect(folder.path(), 10, Some(2)).unwrap()), ["a", "b"]);
    }

    #[test]
    fn a_folder_that_is_not_one_is_named() {
        let folder = folder(&[("file", b"x"), ("sub/blank", b"")]);
        let error = |path: PathBuf| collect(&path, 10, None).unwrap_err().to_string();
        assert!(error(folder.path().join("none")).starts_with("no such folder: "));
        assert!(error(folder.path().join("file")).starts_with("not a folder: "));
        assert!(error(folder.path().join("sub")).contains("(1 skipped)"));
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed() {
        let folder = folder(&[("a/file", b"x")]);
        std::os::unix::fs::symlink(folder.path(), folder.path().join("a/up")).unwrap();
        assert_eq!(paths(&collect(folder.path(), 10, None).unwrap()), ["a/file"]);
    }
}
