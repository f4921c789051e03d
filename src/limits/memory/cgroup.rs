//! What the kernel enforces on this process's own control group and those above.
//!
//! The kernel's documentation of the files: `cgroup-v2.rst` ("Memory Interface Files") and
//! `cgroup-v1/memory.rst`. A reading is the *working set*, usage less inactive file pages, because
//! those pages are given back before anything is killed.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use super::MemoryReading;
use super::kept_file::{KeptFile, figure, read, unreadable};

/// The two generations of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V2,
}

impl Version {
    const fn limit_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
        }
    }

    const fn usage_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.usage_in_bytes",
            Self::V2 => "memory.current",
        }
    }
}

/// Where the process's group is, as folders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) version: Version,
    /// Where the hierarchy is mounted: the topmost group that can be seen.
    pub(super) top: PathBuf,
    /// The process's own group, at or below the top.
    pub(super) own: PathBuf,
}

impl Place {
    /// From `/proc/self/cgroup` and `/proc/self/mountinfo`, as texts.
    ///
    /// `None` without a group for memory.
    ///
    /// A first-generation hierarchy with the memory controller wins: where both are mounted, the
    /// controller lives in exactly one of them, and then it is that one.
    pub(super) fn find(cgroup: &str, mountinfo: &str) -> Option<Self> {
        let groups = || cgroup.lines().filter_map(Membership::parse);
        let first = groups().find(|group| group.controllers.split(',').any(|one| one == "memory"));
        let (version, path) = match first {
            Some(group) => (Version::V1, group.path),
            None => (Version::V2, groups().find(|group| group.is_unified())?.path),
        };
        let mounts = mountinfo.lines().filter_map(Mount::parse);
        let mut mounts: Vec<_> = mounts.filter(|mount| mount.carries(version)).collect();
        // The mount that shows most of the way up. One that does not show the group at all is the
        // last resort: its top is all of the hierarchy a container sees.
        mounts.sort_by_key(|mount| match mount.below(path) {
            Some(_) => mount.root.len(),
            None => usize::MAX,
        });
        let mount = mounts.first()?;
        let top = PathBuf::from(mount.point.as_ref());
        let own = match mount.below(path) {
            Some(below) if !below.is_empty() => top.join(below),
            _ => top.clone(),
        };
        Some(Self { version, top, own })
    }

    /// The own group's folder, then each above it, up to the top.
    fn folders(&self) -> impl Iterator<Item = &Path> {
        self.own.ancestors().take_while(|folder| folder.starts_with(&self.top))
    }
}

/// One line of `/proc/self/cgroup`: `4:memory:/path`, or `0::/path`.
struct Membership<'a> {
    hierarchy: &'a str,
    controllers: &'a str,
    path: &'a str,
}

impl<'a> Membership<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.splitn(3, ':');
        Some(Self { hierarchy: fields.next()?, controllers: fields.next()?, path: fields.next()? })
    }

    fn is_unified(&self) -> bool {
        self.hierarchy == "0" && self.controllers.is_empty()
    }
}

/// One line of `/proc/self/mountinfo`.
struct Mount<'a> {
    /// Which group of the hierarchy is mounted: `/`, unless a part of it is.
    root: Cow<'a, str>,
    point: Cow<'a, str>,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        // A dash ends the optional fields, of which there may be any number.
        let (head, tail) = line.split_once(" - ")?;
        let mut head = head.split(' ').skip(3);
        let mut tail = tail.split(' ');
        Some(Self {
            root: unescaped(head.next()?),
            point: unescaped(head.next()?),
            kind: tail.next()?,
            options: tail.nth(1)?,
        })
    }

    fn carries(&self, version: Version) -> bool {
        match version {
            Version::V1 => {
                self.kind == "cgroup" && self.options.split(',').any(|option| option == "memory")
            }
            Version::V2 => self.kind == "cgroup2",
        }
    }

    /// The group's path below this mount; `None` when the mount does not show it.
    fn below<'p>(&self, path: &'p str) -> Option<&'p str> {
        if path.split('/').any(|part| part == "..") {
            return None;
        }
        let rest = path.strip_prefix(self.root.trim_end_matches('/'))?;
        (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_matches('/'))
    }
}

/// A field of the mount table, in which white space stands as three octal digits.
fn unescaped(field: &str) -> Cow<'_, str> {
    if !field.contains('\\') {
        return Cow::Borrowed(field);
    }
    let mut plain = String::with_capacity(field.len());
    let mut rest = field;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let code = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        rest = match code {
            Some(code) => {
                plain.push(char::from(code));
                &after[3..]
            }
            None => {
                plain.push('\\');
                after
            }
        };
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

/// One group's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) usage: u64,
    pub(super) inactive_file: u64,
    /// `None` when the group has none of its own.
    pub(super) limit: Option<u64>,
}

impl Figures {
    /// The working set against the limit, where that is below the machine's memory.
    fn reading(&self, machine: u64) -> Option<MemoryReading> {
        let limit = self.limit.filter(|&limit| limit > 0 && (machine == 0 || limit < machine))?;
        Some(MemoryReading::new(self.usage.saturating_sub(self.inactive_file), limit))
    }
}

/// The reading that is closest to its limit, over a group and those above it.
///
/// Each limit is enforced on all that is charged below it, so a group above may be the one that is
/// about to kill, though its limit is the larger. `machine` is the machine's memory in bytes, zero
/// when unknown.
pub(super) fn tightest(
    groups: impl IntoIterator<Item = Figures>,
    machine: u64,
) -> Option<MemoryReading> {
    groups.into_iter().filter_map(|group| group.reading(machine)).reduce(|tight, other| {
        // Compared as fractions; at equal shares the smaller limit leaves the fewer bytes.
        let share =
            |one: MemoryReading, of: MemoryReading| u128::from(one.used) * u128::from(of.limit);
        let (ours, theirs) = (share(tight, other), share(other, tight));
        if theirs > ours || (theirs == ours && other.limit < tight.limit) { other } else { tight }
    })
}

/// The limit a group's file tells.
///
/// `max`, and the first generation's largest count of pages, are none.
fn limit(text: &str) -> io::Result<Option<u64>> {
    // Whatever the page size, the first generation's "none" is within a page of this.
    const NONE: u64 = 1 << 62;
    match text.trim() {
        "max" => Ok(None),
        digits => {
            let limit: u64 = digits.parse().map_err(|_| unreadable("cgroup limit"))?;
            Ok((limit < NONE).then_some(limit))
        }
    }
}

/// The inactive file pages of a group and all below it.
fn inactive_file(stat: &str, version: Version) -> u64 {
    let whole = match version {
        Version::V1 => figure(stat, "total_inactive_file"),
        Version::V2 => None,
    };
    whole.or_else(|| figure(stat, "inactive_file")).unwrap_or(0)
}

/// The process's group and those above it, their files kept open.
#[derive(Debug)]
pub(super) struct Groups {
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    version: Version,
    limit: KeptFile,
    usage: KeptFile,
    stat: KeptFile,
}

impl Groups {
    /// Opens the groups that can be seen, but those without a memory controller.
    pub(super) fn open(place: &Place) -> Self {
        let mut groups = Vec::new();
        for folder in place.folders() {
            // A first-generation group may be told not to count what is below it.
            let apart = place.version == Version::V1
                && !groups.is_empty()
                && std::fs::read_to_string(folder.join("memory.use_hierarchy"))
                    .is_ok_and(|text| text.trim() == "0");
            if apart {
                break;
            }
            if let Ok(group) = Group::open(folder, place.version) {
                groups.push(group);
            }
        }
        Self { groups }
    }

    /// The groups of this process; none where the machine has no such thing.
    pub(super) fn of_this_process() -> Self {
        let read = |path| read(Path::new(path)).unwrap_or_default();
        Place::find(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
            .map_or_else(|| Self { groups: Vec::new() }, |place| Self::open(&place))
    }

    /// The tightest reading; `None` without a limit below the machine's memory.
    pub(super) fn read(&mut self, machine: u64) -> io::Result<Option<MemoryReading>> {
        let figures: io::Result<Vec<_>> =
            self.groups.iter_mut().filter_map(|group| group.read().transpose()).collect();
        Ok(tightest(figures?, machine))
    }
}

impl Group {
    fn open(folder: &Path, version: Version) -> io::Result<Self> {
        let open = |name| KeptFile::open(&folder.join(name));
        Ok(Self {
            version,
            limit: open(version.limit_file())?,
            usage: open(version.usage_file())?,
            stat: open("memory.stat")?,
        })
    }

    /// The figures; `None`, and nothing else read, when the group has no limit.
    fn read(&mut self) -> io::Result<Option<Figures>> {
        let Some(limit) = limit(&self.limit.text()?)? else {
            return Ok(None);
        };
        let usage = self.usage.text()?;
        let usage = usage.trim().parse().map_err(|_| unreadable("cgroup usage"))?;
        let inactive_file = inactive_file(&self.stat.text()?, self.version);
        Ok(Some(Figures { usage, inactive_file, limit: Some(limit) }))
    }
}

#[cfg(test)]
mod tests;
