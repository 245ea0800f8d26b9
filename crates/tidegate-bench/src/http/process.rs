//! Processor time and affinity of processes, from the kernel.

use std::io;
use std::time::Duration;

#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Time on a processor and time waiting for one, over all threads of a process.
///
/// The source is `schedstat`, which counts nanoseconds. The ticks of `stat` are 10 ms, a percent
/// of a pass. The times of ended threads are lost, but no thread ends while a server is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTimes {
    pub ran: Duration,
    pub queued: Duration,
}

impl CpuTimes {
    /// Returns the times of a process (an id or `self`) up to now.
    pub fn of(process: &str) -> io::Result<Self> {
        let mut times = CpuTimes::default();
        for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
            // A thread may end between listing and reading it.
            if let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) {
                let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
                times.ran += Duration::from_nanos(numbers.next().unwrap_or(0));
                times.queued += Duration::from_nanos(numbers.next().unwrap_or(0));
            }
        }
        Ok(times)
    }

    pub fn since(self, earlier: CpuTimes) -> CpuTimes {
        CpuTimes {
            ran: self.ran.saturating_sub(earlier.ran),
            queued: self.queued.saturating_sub(earlier.queued),
        }
    }
}

/// Runs `start` with this thread pinned to one processor. Processes it starts inherit the pinning.
#[cfg(target_os = "linux")]
pub fn pinned_to<T>(processor: Option<usize>, start: impl FnOnce() -> T) -> io::Result<T> {
    let Some(processor) = processor else { return Ok(start()) };
    let before = sched_getaffinity(None)?;
    let mut only = CpuSet::new();
    only.set(processor);
    sched_setaffinity(None, &only)?;
    let started = start();
    sched_setaffinity(None, &before)?;
    Ok(started)
}

/// Returns the processors that this process may use.
#[cfg(target_os = "linux")]
pub fn processors() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
}

/// Runs `start`; pinning is supported on Linux only.
#[cfg(not(target_os = "linux"))]
pub fn pinned_to<T>(_: Option<usize>, start: impl FnOnce() -> T) -> io::Result<T> {
    Ok(start())
}

/// Returns no processors: they are known on Linux only.
#[cfg(not(target_os = "linux"))]
pub fn processors() -> Vec<usize> {
    Vec::new()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn child_inherits_pinning() {
        let first = processors()[0];
        let spawn = || std::process::Command::new("nproc").output();
        let pinned =
            pinned_to(Some(first), spawn).expect("affinity can be set").expect("nproc runs");
        assert_eq!(String::from_utf8_lossy(&pinned.stdout).trim(), "1");
        assert!(processors().contains(&first), "the pinning was not undone");
    }

    #[test]
    fn cpu_times_increase_while_the_process_runs() {
        let before = CpuTimes::of("self").expect("schedstat is readable");
        let mut sum = 0_u64;
        (0..20_000_000_u64).for_each(|n| sum = std::hint::black_box(sum ^ n));
        let took = CpuTimes::of("self").expect("schedstat is readable").since(before);
        assert!(took.ran > Duration::ZERO, "{took:?}");
    }
}
