//! What the kernel says about this process, where there is a `/proc`.

use std::fs;
use std::time::Duration;

/// Ticks per second in `/proc`: the kernel shows times in these to programs,
/// whatever it counts in itself.
const TICKS_PER_SECOND: u64 = 100;

/// What is known; the rest is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    pub cpu: Option<Duration>,
    pub resident_bytes: Option<u64>,
    pub virtual_bytes: Option<u64>,
    pub open_fds: Option<u64>,
    pub max_fds: Option<u64>,
}

impl Process {
    /// As of now.
    pub fn read() -> Self {
        let text =
            |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let status = text("status");
        Process {
            cpu: cpu(&text("stat")),
            resident_bytes: kilobytes(&status, "VmRSS:"),
            virtual_bytes: kilobytes(&status, "VmSize:"),
            // The directory itself is open while it is read.
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|all| (all.count() as u64).max(1) - 1),
            max_fds: max_fds(&text("limits")),
        }
    }
}

/// User and system time: fields 14 and 15, counted behind the program's name,
/// which may hold anything.
fn cpu(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    let ticks = times.next()?.ok()? + times.next()?.ok()?;
    Some(Duration::from_millis(ticks * (1_000 / TICKS_PER_SECOND)))
}

fn kilobytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

fn max_fds(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 31 0 0 20 0 4 0 100 1 2 3";
        assert_eq!(cpu(stat), Some(Duration::from_millis(2_810)));
        let status = "Name:\tx\nVmSize:\t  2048 kB\nVmRSS:\t   12 kB\n";
        assert_eq!(kilobytes(status, "VmRSS:"), Some(12 * 1024));
        assert_eq!(kilobytes(status, "VmSwap:"), None);
        let limits =
            "Limit   Soft Limit   Hard Limit   Units\nMax open files   1024   4096   files\n";
        assert_eq!(max_fds(limits), Some(1024));
        for nothing in ["", "7 (x", "7 (x) S 1", "Max open files unlimited"] {
            assert_eq!((cpu(nothing), max_fds(nothing)), (None, None), "{nothing}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_known() {
        let process = Process::read();
        assert!(process.resident_bytes > Some(100_000), "{process:?}");
        assert!(process.virtual_bytes >= process.resident_bytes, "{process:?}");
        assert!(process.cpu.is_some() && process.max_fds.is_some(), "{process:?}");
        assert!(process.open_fds >= Some(3), "{process:?}");
    }
}
