//! What would get this process killed: its group's limit, else the machine's.

use std::io;
use std::path::Path;

use sysinfo::{MemoryRefreshKind, System};

use super::cgroup::Groups;
use super::kept_file::{KeptFile, figure, unreadable};
use super::{MemoryReading, MemorySource};
use crate::sync::Mutex;

/// The default source: the memory whose end would be this process's end.
///
/// On Linux that is the working set (usage less inactive file pages) of the process's own control
/// group, or of one above it, against the limit set there, of whichever is closest to its limit;
/// both generations are read. Without a limit below the machine's memory, and on other platforms,
/// it is what the machine has no longer available, against all it has. The kernel's files are kept
/// open; which groups those are is found at the first reading, and again when one goes away.
#[derive(Debug, Default)]
pub struct SystemMemory {
    meters: Mutex<Meters>,
}

#[derive(Debug, Default)]
struct Meters {
    groups: Option<Groups>,
    machine: Option<Meter>,
    /// The machine's memory in bytes, as last read; it hardly ever changes.
    total: u64,
}

#[derive(Debug)]
enum Meter {
    /// Linux: the one file that says it, kept open.
    Meminfo(KeptFile),
    /// Elsewhere.
    System(Box<System>),
}

/// The machine's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Machine {
    total: u64,
    available: u64,
}

impl Machine {
    const fn reading(self) -> MemoryReading {
        MemoryReading::new(self.total.saturating_sub(self.available), self.total)
    }

    /// From the text of `/proc/meminfo`.
    fn parse(meminfo: &str) -> Option<Self> {
        let bytes = |key| figure(meminfo, key).map(|kib| kib.saturating_mul(1_024));
        Some(Self { total: bytes("MemTotal")?, available: bytes("MemAvailable")? })
    }
}

impl SystemMemory {
    /// The source; it opens nothing before it is first read.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl MemorySource for SystemMemory {
    fn read(&self) -> io::Result<MemoryReading> {
        self.meters.lock().read()
    }
}

impl Meters {
    fn read(&mut self) -> io::Result<MemoryReading> {
        if self.total == 0 {
            self.total = self.machine()?.total;
        }
        let group = match self.group() {
            Ok(reading) => reading,
            // The group went away under us: the process was moved. Find it once more.
            Err(_) => {
                self.groups = None;
                self.group()?
            }
        };
        if let Some(reading) = group {
            return Ok(reading);
        }
        let machine = self.machine()?;
        self.total = machine.total;
        Ok(machine.reading())
    }

    fn group(&mut self) -> io::Result<Option<MemoryReading>> {
        if !cfg!(target_os = "linux") {
            return Ok(None);
        }
        self.groups.get_or_insert_with(Groups::of_this_process).read(self.total)
    }

    fn machine(&mut self) -> io::Result<Machine> {
        let meter = match &mut self.machine {
            Some(meter) => meter,
            None => self.machine.insert(Meter::open()?),
        };
        meter.read()
    }
}

impl Meter {
    fn open() -> io::Result<Self> {
        if cfg!(target_os = "linux")
            && let Ok(mut file) = KeptFile::open(Path::new("/proc/meminfo"))
            && file.text().is_ok_and(|text| Machine::parse(&text).is_some())
        {
            return Ok(Self::Meminfo(file));
        }
        // Also for a kernel too old to say what is available: sysinfo estimates it.
        Ok(Self::System(Box::new(System::new().map_err(io::Error::other)?)))
    }

    fn read(&mut self) -> io::Result<Machine> {
        match self {
            Self::Meminfo(file) => {
                Machine::parse(&file.text()?).ok_or_else(|| unreadable("machine memory"))
            }
            Self::System(system) => {
                system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
                let machine =
                    Machine { total: system.total_memory(), available: system.available_memory() };
                if machine.total == 0 { Err(unreadable("machine memory")) } else { Ok(machine) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_machine_reads_what_is_no_longer_available() {
        let text = "MemTotal:       16777216 kB\nMemFree:          123456 kB\n\
                    MemAvailable:    4194304 kB\nBuffers: 1 kB\n";
        let machine = Machine::parse(text).unwrap();
        assert_eq!(machine.reading(), MemoryReading::new(12 * GIB, 16 * GIB));
        assert_eq!(Machine::parse("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn both_meters_see_the_same_machine() {
        let mut own = Meter::open().unwrap();
        let mut sysinfo = Meter::System(Box::new(System::new().unwrap()));
        let (own, other) = (own.read().unwrap(), sysinfo.read().unwrap());
        assert_eq!(own.total, other.total);
        assert!(own.available.abs_diff(other.available) < own.total / 10, "{own:?} {other:?}");
    }

    #[test]
    fn the_default_source_reads_here_and_never_more_than_the_machine() {
        let source = SystemMemory::new();
        let reading = source.read().unwrap();
        let machine = Meter::open().unwrap().read().unwrap();
        assert!(reading.used > 0 && reading.limit > 0 && reading.limit <= machine.total);
        assert_eq!(source.read().unwrap().limit, reading.limit);
    }
}
