//! A small text file that is read again and again.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// A file of the kernel's, kept open.
///
/// Reading it again costs a seek and a read, and no walk along its path.
#[derive(Debug)]
pub(super) struct KeptFile {
    file: File,
    text: String,
}

impl KeptFile {
    /// More than any file read here has; a bound in case it is no file of the kernel's.
    const LONGEST: u64 = 256 * 1024;

    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(path)?, text: String::with_capacity(4 * 1024) })
    }

    /// The file's text as it is now.
    pub(super) fn text(&mut self) -> io::Result<&str> {
        self.text.clear();
        self.file.seek(SeekFrom::Start(0))?;
        // Through `take`, which does not ask the file for its size first.
        (&mut self.file).take(Self::LONGEST).read_to_string(&mut self.text)?;
        Ok(&self.text)
    }
}

/// The number after `key`, in lines of `key number` or `key: number kB`.
pub(super) fn figure(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let value = line.strip_prefix(key)?;
        let value = value.strip_prefix(':').or_else(|| value.strip_prefix(' '))?;
        value.split_ascii_whitespace().next()?.parse().ok()
    })
}

/// What the kernel's file should have said.
pub(super) fn unreadable(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no {what} to be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_file_shows_what_is_written_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.current");
        std::fs::write(&path, "12345\n").unwrap();
        let mut kept = KeptFile::open(&path).unwrap();
        assert_eq!(kept.text().unwrap(), "12345\n");
        std::fs::write(&path, "7\n").unwrap();
        assert_eq!(kept.text().unwrap(), "7\n");
    }

    #[test]
    fn a_figure_is_found_by_its_whole_key() {
        let text = "inactive_file_x 1\ninactive_file 4096\nVmRSS:\t  1234 kB\nbroken x\n";
        assert_eq!(figure(text, "inactive_file"), Some(4_096));
        assert_eq!(figure(text, "VmRSS"), Some(1_234));
        assert_eq!(figure(text, "broken"), None);
        assert_eq!(figure(text, "active_file"), None);
    }
}
