//! This process's own memory, against a budget of the host's.

use std::io;
use std::path::Path;

use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, get_current_pid};

use super::kept_file::{KeptFile, figure, unreadable};
use super::{MemoryReading, MemorySource};
use crate::error::ConfigError;
use crate::sync::Mutex;

/// What this process keeps resident, against a budget in bytes.
///
/// For a process that shares its machine with others and should stay within its part. What it maps
/// but does not touch costs nothing; what it shares with other processes counts whole.
#[derive(Debug)]
pub struct ResidentMemory {
    budget: u64,
    meter: Mutex<Meter>,
}

#[derive(Debug)]
enum Meter {
    /// Linux: the one file that says it, kept open.
    Status(KeptFile),
    /// Elsewhere; `None` before the first reading.
    System(Option<Box<System>>),
}

impl ResidentMemory {
    /// The resident set against so many bytes.
    ///
    /// # Errors
    ///
    /// When the budget is zero.
    pub fn new(budget: u64) -> Result<Self, ConfigError> {
        if budget == 0 {
            return Err(ConfigError::new("budget", budget, "must be positive"));
        }
        let status = Path::new("/proc/self/status");
        let meter = match KeptFile::open(status) {
            Ok(file) if cfg!(target_os = "linux") => Meter::Status(file),
            _ => Meter::System(None),
        };
        Ok(Self { budget, meter: Mutex::new(meter) })
    }
}

impl MemorySource for ResidentMemory {
    fn read(&self) -> io::Result<MemoryReading> {
        let used = self.meter.lock().read()?;
        Ok(MemoryReading::new(used, self.budget))
    }
}

impl Meter {
    fn read(&mut self) -> io::Result<u64> {
        match self {
            Self::Status(file) => resident(&file.text()?),
            Self::System(system) => {
                let system = match system {
                    Some(system) => system,
                    None => system.insert(Box::new(System::new().map_err(io::Error::other)?)),
                };
                let own = get_current_pid().map_err(io::Error::other)?;
                system.refresh_processes_specifics(
                    ProcessesToUpdate::Some(&[own]),
                    false,
                    ProcessRefreshKind::nothing().with_memory(),
                );
                let own = system.process(own).ok_or_else(|| unreadable("resident set"))?;
                Ok(own.memory())
            }
        }
    }
}

/// The resident set in bytes, from the text of `/proc/self/status`.
fn resident(status: &str) -> io::Result<u64> {
    figure(status, "VmRSS")
        .map(|kib| kib.saturating_mul(1_024))
        .ok_or_else(|| unreadable("resident set"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_of_nothing_is_refused_by_name() {
        let error = ResidentMemory::new(0).unwrap_err();
        assert_eq!((error.field, &*error.value), ("budget", "0"));
    }

    #[test]
    fn the_status_gives_kibibytes() {
        let text = "Name:\tcat\nVmHWM:\t    9000 kB\nVmRSS:\t    1800 kB\nRssAnon:\t 100 kB\n";
        assert_eq!(resident(text).unwrap(), 1_800 * 1_024);
        assert!(resident("Name:\tkthread\n").is_err());
    }

    #[test]
    fn both_meters_see_this_process_grow() {
        for meter in [
            ResidentMemory::new(1 << 40).unwrap(),
            ResidentMemory { budget: 1 << 40, meter: Mutex::new(Meter::System(None)) },
        ] {
            let before = meter.read().unwrap();
            let block = std::hint::black_box(vec![1_u8; 64 << 20]);
            let after = meter.read().unwrap();
            drop(block);
            assert_eq!(before.limit, 1 << 40);
            assert!(before.used > 0);
            // Other tests run beside this one and may free something of theirs.
            assert!(after.used > before.used + (32 << 20), "{before:?} {after:?}");
        }
    }
}
