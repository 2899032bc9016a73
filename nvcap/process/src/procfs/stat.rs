//! Fields of `/proc/PID/stat`: state, parent and flags of a process or of a thread.

use std::io;

use super::lossy::text;

/// PF_EXITING: the thread is exiting.
const EXITING: u64 = 4;
/// PF_SIGNALED: a signal has killed the thread.
const SIGNALED: u64 = 0x400;
/// PF_FORKNOEXEC: the process was forked and still runs its parent's program.
const FORKED: u64 = 0x40;

/// PF_KTHREAD: a thread of the kernel.
const KERNEL: u64 = 0x20_0000;

/// A line of `stat`, with the fields that are present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The name, with U+FFFD for bytes that are not UTF-8.
    pub name: String,
    /// R running, S sleeping, D waiting in the kernel without being woken by signals, T stopped, Z ended.
    pub state: char,
    /// The parent process.
    pub parent: Option<u32>,
    /// Flags PF_* of the kernel.
    flags: Option<u64>,
    /// Clock ticks for which the thread or process has run, in the program and in the kernel.
    pub ticks: Option<u64>,
    /// Number of threads of the process.
    pub threads: Option<u64>,
    /// Start of the process, in clock ticks since the machine's start.
    pub start: Option<u64>,
}

impl Stat {
    /// Reads the line of a process: the line of its first thread, with the ticks of all threads.
    ///
    /// # Errors
    /// The errors of reading the file; `InvalidData` if the text is no such line.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::read(format!("/proc/{pid}/stat"))
    }

    /// Reads the line of a thread.
    ///
    /// # Errors
    /// As [`Stat::of_process`].
    pub fn of_thread(pid: u32, tid: u32) -> io::Result<Self> {
        Self::read(format!("/proc/{pid}/task/{tid}/stat"))
    }

    fn read(path: String) -> io::Result<Self> {
        Self::parse(&text(path)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses a line. The name may contain any characters, including parentheses: it ends at the line's last parenthesis.
    pub fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.rsplit_once(')')?;
        let fields: Vec<&str> = after.split_whitespace().collect();
        // proc(5) counts from 1; the state is field 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            name: before.split_once('(')?.1.to_owned(),
            state: fields.first()?.chars().next()?,
            parent: field(4).and_then(|p| u32::try_from(p).ok()),
            flags: field(9),
            ticks: field(14).zip(field(15)).map(|(user, system)| user + system),
            threads: field(20),
            start: field(22),
        })
    }

    /// Tells whether it has ended and waits to be reaped.
    pub fn is_over(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Tells whether it is a thread of the kernel.
    pub(crate) fn is_of_kernel(&self) -> bool {
        self.flags.is_some_and(|f| f & KERNEL != 0)
    }

    /// Tells whether it is exiting, or has ended.
    pub(crate) fn is_exiting(&self) -> bool {
        self.flags.is_none_or(|f| f & EXITING != 0)
    }

    /// Tells whether it runs no more instructions of its program: a signal has killed it, it is exiting, or it has ended. Its memory may
    /// still exist, for a core dump.
    pub(crate) fn is_stopped_for_good(&self) -> bool {
        self.flags.is_none_or(|f| f & (EXITING | SIGNALED) != 0)
    }

    /// Tells whether it still runs its parent's program.
    pub fn is_forked(&self) -> bool {
        self.flags.is_some_and(|f| f & FORKED != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_as_the_kernel_writes_them() {
        let line = "4711 (a) b (c) S 1 2 3 0 -1 4194628 100 0 0 0 17 5 0 0 20 0 9 0 100";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.name.as_str(), stat.state), ("a) b (c", 'S'));
        assert_eq!(
            (stat.parent, stat.ticks, stat.threads),
            (Some(1), Some(22), Some(9))
        );
        assert!(stat.is_exiting() && stat.is_forked() && !stat.is_over());
        let killed = Stat::parse("4711 (x) R 1 2 3 0 -1 4195392 100 0 0").unwrap();
        assert!(killed.is_stopped_for_good() && !killed.is_exiting());
        let kernel = Stat::parse("2 (kthreadd) S 0 0 0 0 -1 2129984 0").unwrap();
        assert!(kernel.is_of_kernel() && !stat.is_of_kernel());
        assert!(stat.is_stopped_for_good() && !kernel.is_stopped_for_good());
        let cut = Stat::parse("4711 (x) Z 1").unwrap();
        assert!(cut.is_over() && cut.is_exiting() && !cut.is_forked() && cut.ticks.is_none());
        for wrong in ["", "4711 (x", "4711 (x)", "4711 x) S"] {
            assert_eq!(Stat::parse(wrong), None, "{wrong:?}");
        }
    }
}
