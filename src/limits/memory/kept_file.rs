//! A small text file that is read again and again.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// A file of the kernel's, kept open.
///
/// Reading it again costs a seek and a read, and no walk along its path.
#[derive(Debug)]
pub(super) struct KeptFile {
    file: File,
    text: Vec<u8>,
}

impl KeptFile {
    /// More than any file read here has; a bound in case it is no file of the kernel's.
    const LONGEST: u64 = 256 * 1024;

    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(path)?, text: Vec::with_capacity(4 * 1024) })
    }

    /// The file's text as it is now.
    ///
    /// What is no UTF-8 is replaced: names are among it, and the figures beside them still count.
    pub(super) fn text(&mut self) -> io::Result<Cow<'_, str>> {
        self.text.clear();
        self.file.seek(SeekFrom::Start(0))?;
        // Through `take`, which does not ask the file for its size first.
        (&mut self.file).take(Self::LONGEST).read_to_end(&mut self.text)?;
        Ok(String::from_utf8_lossy(&self.text))
    }
}

/// The text of a file that is read once, with what is no UTF-8 replaced.
pub(super) fn read(path: &Path) -> io::Result<String> {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
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
    fn a_name_cut_in_the_middle_of_a_character_hides_no_figure() {
        // The kernel keeps fifteen bytes of a process's name, and mounts may have any.
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, b"Name:\ta\xe3\x81\nVmRSS:\t 12 kB\n").unwrap();
        let mut kept = KeptFile::open(file.path()).unwrap();
        assert_eq!(figure(&kept.text().unwrap(), "VmRSS"), Some(12));
        let mounts = b"9 8 0:1 / /mnt/\xff rw - ext4 /dev/sdb rw\n\
            31 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        std::fs::write(file.path(), mounts).unwrap();
        assert!(read(file.path()).unwrap().contains(" - cgroup2 "));
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
