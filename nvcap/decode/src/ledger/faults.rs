//! Faults of the GPU in the ledger, and the work blamed for each.

use crate::hang::xid::{Access, REMOVAL};
use crate::record::{ChannelId, Fault, Suspect, SuspectKind};

/// The most faults that are kept; further ones are only counted.
const KEPT: usize = 256;

/// Faults of a trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    kept: Vec<Fault>,
    count: u64,
    /// Number of faults of GPUs for which no message names a process.
    of_gpus: u64,
    /// Processes whose notifiers were not read at their end: those that are kept, and the number of all.
    unread: Vec<u32>,
    unread_count: u64,
}

/// Causes of the faults of one process with one Xid number. (The driver stops all channels of a group because of one of them.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame<'a> {
    /// Process id; 0 if unknown.
    pub pid: u32,
    /// PCI address of the GPU, for an error for which no message names a process. The process may be one that is not traced.
    pub pci: Option<&'a str>,
    /// Number of the Xid.
    pub code: u32,
    /// Channels that were stopped, as far as known.
    pub channels: Vec<ChannelId>,
    /// Work that had not ended, each kernel once.
    pub suspects: Vec<&'a Suspect>,
    /// True if no other work can have caused the fault.
    pub only_these: bool,
    /// Memory access that failed, if the kernel log reported it.
    pub access: Option<Access>,
    /// Exception of an SM, in the words of the kernel log.
    pub exception: Option<&'a str>,
}

impl<'a> Blame<'a> {
    /// Makes the blame of a single fault.
    #[must_use]
    pub fn of(fault: &'a Fault) -> Self {
        let mut blame = Self {
            pid: fault.at.pid,
            pci: fault.of_gpu(),
            code: fault.code,
            channels: Vec::new(),
            suspects: Vec::new(),
            only_these: true,
            access: None,
            exception: None,
        };
        blame.add(fault);
        blame
    }

    fn add(&mut self, fault: &'a Fault) {
        self.only_these &= fault.only_these;
        for channel in fault.channel.iter().chain(&fault.group) {
            if !self.channels.contains(channel) {
                self.channels.push(*channel);
            }
        }
        if let Some(message) = &fault.message {
            self.access = self.access.take().or_else(|| message.access());
            self.exception = self.exception.or_else(|| message.exception());
        }
        for suspect in &fault.suspects {
            if !self.suspects.iter().any(|known| is_same(known, suspect)) {
                self.suspects.push(suspect);
            }
        }
    }
}

impl Blame<'_> {
    /// Returns the work that caused the fault, if only one can have.
    #[must_use]
    pub fn culprit(&self) -> Option<&Suspect> {
        match self.suspects[..] {
            [one] if self.only_these => Some(one),
            _ => None,
        }
    }
}

impl Faults {
    pub(super) fn add(&mut self, fault: &Fault) {
        self.count += 1;
        self.of_gpus += u64::from(fault.of_gpu().is_some());
        if self.kept.len() < KEPT {
            self.kept.push(fault.clone());
        }
    }

    pub(super) fn kept(&self) -> &[Fault] {
        &self.kept
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Tells whether a process had a fault.
    pub(super) fn are_of_processes(&self) -> bool {
        self.count > self.of_gpus
    }

    pub(super) fn add_unread(&mut self, pid: u32) {
        self.unread_count += 1;
        if self.unread.len() < KEPT {
            self.unread.push(pid);
        }
    }

    pub(super) fn unread(&self) -> (&[u32], u64) {
        (&self.unread, self.unread_count)
    }

    pub(super) fn each(&mut self, complete: impl FnMut(&mut Fault)) {
        self.kept.iter_mut().for_each(complete);
    }

    pub(super) fn blames(&self) -> Vec<Blame<'_>> {
        let mut all: Vec<Blame<'_>> = Vec::new();
        for fault in &self.kept {
            let of = (fault.at.pid, fault.of_gpu(), fault.code);
            match all.iter_mut().find(|b| (b.pid, b.pci, b.code) == of) {
                Some(blame) => blame.add(fault),
                None => all.push(Blame::of(fault)),
            }
        }
        let others: Vec<u32> = { all.iter() }
            .filter(|b| b.code != REMOVAL)
            .map(|b| b.pid)
            .collect();
        all.retain(|b| b.code != REMOVAL || !others.contains(&b.pid));
        all
    }
}

/// Tells whether two suspects are the same kernel, or both copies.
fn is_same(a: &Suspect, b: &Suspect) -> bool {
    a.kind == b.kind && (a.kind == SuspectKind::Copy || a.program == b.program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{At, Xid};
    use crate::wire::GpuVa;

    fn suspect(channel: u32, program: u64) -> Suspect {
        Suspect {
            channel: ChannelId(channel),
            index: 3,
            kind: SuspectKind::Kernel,
            program: Some(GpuVa(program)),
            grid: [1; 3],
            block: [32, 1, 1],
            near: None,
            kernel: None,
        }
    }

    fn fault(pid: u32, code: u32, channel: u32, suspects: Vec<Suspect>) -> Fault {
        Fault {
            channel: Some(ChannelId(channel)),
            suspects,
            ..Fault::of_notifier(At::of_process(5, pid), code)
        }
    }

    fn blamed(all: &[Fault]) -> Vec<(u32, u32, Vec<u64>, bool)> {
        let mut faults = Faults::default();
        all.iter().for_each(|f| faults.add(f));
        let of = |b: &Blame<'_>| {
            let programs = b.suspects.iter().filter_map(|s| Some(s.program?.0));
            (b.pid, b.code, programs.collect(), b.culprit().is_some())
        };
        faults.blames().iter().map(of).collect()
    }

    #[test]
    fn one_kernel_alone_is_the_culprit() {
        let one = fault(7, 31, 0, vec![suspect(0, 0x100)]);
        assert_eq!(
            blamed(std::slice::from_ref(&one)),
            [(7, 31, vec![0x100], true)]
        );
        // The same kernel twice, and the other channels of the group, which had no work.
        let again = fault(7, 31, 0, vec![suspect(0, 0x100), suspect(0, 0x100)]);
        let idle = fault(7, 31, 1, vec![]);
        assert_eq!(blamed(&[again, idle.clone()]), [(7, 31, vec![0x100], true)]);
        // A fault with two kernels, one with none, and one in which something could not be read.
        let two = fault(7, 31, 1, vec![suspect(1, 0x200)]);
        assert_eq!(
            blamed(&[one.clone(), two]),
            [(7, 31, vec![0x100, 0x200], false)]
        );
        assert_eq!(blamed(&[idle]), [(7, 31, vec![], false)]);
        let doubtful = Fault {
            only_these: false,
            ..fault(7, 31, 1, vec![])
        };
        assert_eq!(blamed(&[one, doubtful]), [(7, 31, vec![0x100], false)]);
    }

    #[test]
    fn removals_follow_from_another_fault() {
        let first = fault(7, 13, 0, vec![suspect(0, 0x100)]);
        let removed = fault(7, 45, 1, vec![suspect(1, 0x200)]);
        let other = fault(8, 45, 0, vec![]);
        assert_eq!(
            blamed(&[first, removed, other]),
            [(7, 13, vec![0x100], true), (8, 45, vec![], false)]
        );
    }

    #[test]
    fn errors_of_no_known_process_are_no_faults_of_processes() {
        let of_gpu = |pci: &str| Fault {
            message: Some(Box::new(Xid {
                pci: pci.to_owned(),
                code: 13,
                ..Xid::default()
            })),
            ..Fault::of_notifier(At::of_process(5, 0), 13)
        };
        let mut faults = Faults::default();
        for pci in ["0000:35:00", "0000:36:00", "0000:35:00"] {
            faults.add(&of_gpu(pci));
        }
        assert!(!faults.are_of_processes());
        faults.add(&fault(7, 13, 0, vec![]));
        assert!(faults.are_of_processes());
        let all = faults.blames();
        let all: Vec<_> = all.iter().map(|b| (b.pid, b.pci)).collect();
        assert_eq!(
            all,
            [(0, Some("0000:35:00")), (0, Some("0000:36:00")), (7, None)]
        );
    }

    #[test]
    fn faults_beyond_those_that_are_kept_are_counted() {
        let mut faults = Faults::default();
        for _ in 0..KEPT + 5 {
            faults.add(&fault(7, 31, 0, vec![]));
        }
        assert_eq!(
            (faults.kept().len(), faults.count()),
            (KEPT, KEPT as u64 + 5)
        );
    }
}
