//! Capabilities that a user who is not root needs: one table for doctor, errors and documents.

/// A capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Name in the form of setcap and getcap.
    pub name: &'static str,
    /// Number of the bit in `/proc/PID/status`.
    pub bit: u32,
}

/// Loads BPF programs.
pub const BPF: Capability = Capability {
    name: "cap_bpf",
    bit: 39,
};
/// Attaches BPF programs, allows them to read memory, and sets breakpoints.
pub const PERFMON: Capability = Capability {
    name: "cap_perfmon",
    bit: 38,
};
/// Reads the memory of other processes.
pub const SYS_PTRACE: Capability = Capability {
    name: "cap_sys_ptrace",
    bit: 19,
};
/// Reads the tracing file system, which contains the numbers of probes and tracepoints.
pub(crate) const DAC_READ_SEARCH: Capability = Capability {
    name: "cap_dac_read_search",
    bit: 2,
};
/// Includes cap_bpf and cap_perfmon, and is needed by the fentry way of discovery.
pub const SYS_ADMIN: Capability = Capability {
    name: "cap_sys_admin",
    bit: 21,
};

/// Signals the command that nvcap started, as another user.
const KILL: Capability = Capability {
    name: "cap_kill",
    bit: 5,
};
/// Writes files into folders of the user who called sudo.
const DAC_OVERRIDE: Capability = Capability {
    name: "cap_dac_override",
    bit: 1,
};
/// Keeps the buffers of perf events in memory.
const IPC_LOCK: Capability = Capability {
    name: "cap_ipc_lock",
    bit: 14,
};
/// Runs the observing thread before other threads.
const SYS_NICE: Capability = Capability {
    name: "cap_sys_nice",
    bit: 23,
};
/// Reads the kernel's log, and the addresses of the kernel's symbols.
const SYSLOG: Capability = Capability {
    name: "cap_syslog",
    bit: 34,
};

/// Opens files in the form in which a process has them mapped (`/proc/PID/map_files`).
const CHECKPOINT_RESTORE: Capability = Capability {
    name: "cap_checkpoint_restore",
    bit: 40,
};

/// All capabilities that a live trace may need. Root's other capabilities are given up before the trace begins.
pub const TRACING: [Capability; 11] = [
    BPF,
    PERFMON,
    SYS_PTRACE,
    DAC_READ_SEARCH,
    SYS_ADMIN,
    KILL,
    DAC_OVERRIDE,
    IPC_LOCK,
    SYS_NICE,
    SYSLOG,
    CHECKPOINT_RESTORE,
];
/// Capabilities of the thread that decodes and shows the captured data: it reads the traced program's files and stacks, and writes the
/// output.
pub const SHOWING: [Capability; 5] = [
    SYS_PTRACE,
    DAC_READ_SEARCH,
    DAC_OVERRIDE,
    SYSLOG,
    CHECKPOINT_RESTORE,
];

/// All capabilities that the trap needs, for any process.
pub const NEEDED: [Capability; 4] = [BPF, PERFMON, SYS_PTRACE, DAC_READ_SEARCH];

/// Advice for a process that lacks [`NEEDED`], with the command to type. It is a macro so that it can be joined with other texts at compile
/// time.
#[doc(hidden)]
#[macro_export]
macro_rules! rights_remedy {
    () => {
        "run it as root (sudo nvcap ...) or give it cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep (setcap)"
    };
}
pub use rights_remedy as remedy;

impl Capability {
    /// Tells whether the capability is among these effective ones.
    #[must_use]
    pub fn is_in(self, effective: u64) -> bool {
        effective >> self.bit & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::remedy_for_refusal;

    fn document(path: &str) -> String {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        std::fs::read_to_string(format!("{root}/{path}")).unwrap()
    }

    /// Returns the capabilities that a text names, in its order.
    fn named(text: &str) -> Vec<String> {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let words = words.map(str::to_ascii_lowercase);
        words.filter(|w| w.starts_with("cap_")).collect()
    }

    #[test]
    fn errors_and_documents_name_what_is_needed() {
        let needed = NEEDED.map(|c| c.name.to_owned()).to_vec();
        assert_eq!(named(remedy!()), needed);
        for errno in [libc::EPERM, libc::EACCES] {
            let refused = std::io::Error::from_raw_os_error(errno);
            assert_eq!(named(remedy_for_refusal(&refused)), needed);
        }
        let readme = document("README.md");
        let row = readme
            .lines()
            .find(|l| l.starts_with("| rights |"))
            .unwrap();
        let (all, beyond) = row.split_once('(').unwrap();
        assert_eq!(named(all), needed, "README.md");
        assert_eq!(named(beyond), [SYS_ADMIN.name], "README.md");
        let kernels = document("docs/kernels.md");
        let row = kernels.lines().find(|l| l.starts_with("| user |")).unwrap();
        assert_eq!(named(row), needed, "docs/kernels.md");
        let observe = document("docs/observe.md");
        let row = observe
            .lines()
            .find(|l| l.starts_with("| needs |"))
            .unwrap();
        assert_eq!(named(row), needed, "docs/observe.md");
    }

    #[test]
    fn bits_are_the_kernel_s() {
        let bits = [39, 38, 19, 2, 21, 5, 1, 14, 23, 34, 40];
        assert_eq!(TRACING.map(|c| c.bit), bits);
        let names = TRACING.map(|c| c.name.to_ascii_uppercase().parse::<caps::Capability>());
        assert_eq!(names.map(|c| u32::from(c.unwrap().index())), bits);
        assert!(BPF.is_in(1 << 39) && !BPF.is_in(1 << 38));
    }
}
