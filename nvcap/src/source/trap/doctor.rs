//! What this machine allows: each part of a live trace is tried for real, and what is refused says why.

use std::{fs, os::fd::AsFd as _};

use super::{
    btf::Btf,
    discover::{self, WAYS},
    error::Error,
    load::{LoadOptions, Loaded, majors},
    perf::{self, Life},
};
use crate::source::memory::maps;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It works.
    Works,
    /// It does not, and a live trace can do without it.
    Refused,
    /// It does not, and there is no live trace without it.
    Missing,
    /// Something to know.
    Note,
}

/// One thing looked at.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What it is.
    pub what: &'static str,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found, or why it was refused.
    pub detail: String,
}

fn finding(what: &'static str, verdict: Verdict, detail: impl Into<String>) -> Finding {
    Finding {
        what,
        verdict,
        detail: detail.into(),
    }
}

fn result(what: &'static str, result: Result<String, Error>, otherwise: Verdict) -> Finding {
    match result {
        Ok(detail) => finding(what, Verdict::Works, detail),
        Err(e) => finding(what, otherwise, e.to_string()),
    }
}

/// Looks at everything.
pub fn examine() -> Vec<Finding> {
    let mut all = vec![kernel(), rights(), lockdown()];
    // Nothing to say where nvcap is not in a container.
    if let Err(e) = super::precheck::namespace() {
        all.push(finding("process ids", Verdict::Missing, e.to_string()));
    }
    all.push(result(
        "kernel type information",
        Btf::kernel().map(|_| "/sys/kernel/btf/vmlinux".into()),
        Verdict::Missing,
    ));
    match Loaded::new(LoadOptions {
        buffer: 1 << 20,
        no_bpf_loop: false,
    }) {
        Ok(mut loaded) => {
            all.push(finding(
                "BPF programs",
                Verdict::Works,
                format!("loaded, with {}", loaded.doorbell_name),
            ));
            all.push(breakpoints(&loaded));
            let process =
                discover::attach_process(&mut loaded.bpf).map(|()| "fork, exec, exit".to_owned());
            all.push(result("following processes", process, Verdict::Missing));
            let mut any = false;
            for way in WAYS {
                // Each way on programs of its own, so that one cannot stand in another's way.
                let tried = Loaded::new(LoadOptions {
                    buffer: 1 << 16,
                    no_bpf_loop: false,
                })
                .and_then(|mut l| discover::attach_way(&mut l, way));
                let name = match way {
                    discover::Way::Kprobe => "discovery by kprobe",
                    discover::Way::Fentry => "discovery by fentry",
                    discover::Way::Tracepoint => "discovery by tracepoint",
                };
                let detail = if any {
                    "allowed"
                } else {
                    "allowed; what --discover auto takes"
                };
                any |= tried.is_ok();
                all.push(result(
                    name,
                    tried.map(|()| detail.to_owned()),
                    Verdict::Refused,
                ));
            }
            if !any {
                all.push(finding(
                    "discovery",
                    Verdict::Missing,
                    "no way is allowed; give --doorbell and --channels",
                ));
            }
        }
        Err(e) => all.push(finding("BPF programs", Verdict::Missing, e.to_string())),
    }
    all.push(observing());
    all.push(driver());
    all.push(processes());
    all.extend(lost_hits());
    all
}

fn kernel() -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let version = super::precheck::version(release);
    if version >= (5, 15) {
        finding("kernel", Verdict::Works, release)
    } else {
        finding(
            "kernel",
            Verdict::Note,
            format!("{release}: nvcap is tested from 5.15 on"),
        )
    }
}

/// Capabilities by bit: the ones that a trace uses.
const RIGHTS: [(&str, u32); 4] = [
    ("cap_bpf", 39),
    ("cap_perfmon", 38),
    ("cap_sys_ptrace", 19),
    ("cap_sys_admin", 21),
];

fn rights() -> Finding {
    let effective = super::precheck::capabilities();
    let has = |bit: u32| effective >> bit & 1 == 1;
    let names = |wanted: bool| {
        let list: Vec<&str> = RIGHTS
            .iter()
            .filter(|r| has(r.1) == wanted)
            .map(|r| r.0)
            .collect();
        list.join(",")
    };
    if has(21) || has(39) && has(38) {
        let lack = if has(19) {
            ""
        } else {
            "; without cap_sys_ptrace only your own processes can be traced"
        };
        finding("rights", Verdict::Works, format!("{}{lack}", names(true)))
    } else {
        finding(
            "rights",
            Verdict::Missing,
            format!(
                "{} are lacking: run it as root (sudo nvcap ...)",
                names(false)
            ),
        )
    }
}

fn lockdown() -> Finding {
    let text = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    let mode = text
        .split('[')
        .nth(1)
        .and_then(|t| t.split(']').next())
        .unwrap_or("none or not told");
    match mode {
        "confidentiality" => finding(
            "kernel lockdown",
            Verdict::Missing,
            "confidentiality: BPF programs may not read memory; boot without lockdown=confidentiality",
        ),
        _ => finding("kernel lockdown", Verdict::Works, mode),
    }
}

/// Whose memory may be read: what `--how observe` and `nvcap dump` need, and no more.
fn observing() -> Finding {
    let what = "observing without a trap";
    if super::precheck::capabilities() >> 19 & 1 == 1 {
        return finding(what, Verdict::Works, "--how observe: any process");
    }
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match yama.trim() {
        "1" => finding(
            what,
            Verdict::Works,
            "--how observe -- COMMAND; -p PID needs cap_sys_ptrace (kernel.yama.ptrace_scope = 1)",
        ),
        "2" | "3" => finding(
            what,
            Verdict::Refused,
            format!("kernel.yama.ptrace_scope = {}: run it as root", yama.trim()),
        ),
        _ => finding(what, Verdict::Works, "--how observe: your own processes"),
    }
}

static WATCHED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Opens breakpoints on this thread until there is no register left, and rings one.
fn breakpoints(loaded: &Loaded) -> Finding {
    let what = "hardware breakpoints";
    // SAFETY: gettid has no preconditions.
    let tid = unsafe { libc::gettid() } as u32;
    let life = Life {
        children: false,
        until_exec: true,
        from_exec: false,
    };
    let mut open = Vec::new();
    let refusal = loop {
        match perf::watch(tid, WATCHED.as_ptr() as u64, life, loaded.doorbell.as_fd()) {
            Ok(event) => open.push(event),
            Err(e) => break e,
        }
        if open.len() > 64 {
            break std::io::Error::from_raw_os_error(libc::ENOSPC);
        }
    };
    let Some(first) = open.first() else {
        return finding(
            what,
            Verdict::Missing,
            format!("{refusal}: {}", super::error::remedy_for_refusal(&refusal)),
        );
    };
    WATCHED.store(1, std::sync::atomic::Ordering::SeqCst);
    let hits = perf::hits(first).unwrap_or(0);
    if hits == 1 {
        finding(
            what,
            Verdict::Works,
            format!("{} free in this thread", open.len()),
        )
    } else {
        let why = format!("a store that should have hit once was counted {hits} times");
        finding(
            what,
            Verdict::Missing,
            format!("{why}; a virtual machine without debug registers cannot be traced"),
        )
    }
}

fn driver() -> Finding {
    let version = fs::read_to_string("/sys/module/nvidia/version");
    let (_, uvm) = majors();
    match version {
        Ok(v) => {
            let uvm = if uvm == 0 {
                "; nvidia-uvm is not loaded yet"
            } else {
                ""
            };
            finding(
                "NVIDIA driver",
                Verdict::Works,
                format!("{}{uvm}", v.trim()),
            )
        }
        Err(_) => finding(
            "NVIDIA driver",
            Verdict::Note,
            "nvidia.ko is not loaded: there is nothing to trace yet",
        ),
    }
}

fn processes() -> Finding {
    let mut using = Vec::new();
    let mut hidden = 0;
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        match maps::areas(pid) {
            Ok(areas) if areas.iter().any(maps::Area::is_doorbell_shape) => {
                using.push(pid.to_string())
            }
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => hidden += 1,
            _ => {}
        }
    }
    let hidden = if hidden > 0 {
        format!("; {hidden} processes could not be looked into")
    } else {
        String::new()
    };
    if using.is_empty() {
        finding("GPU processes", Verdict::Note, format!("none{hidden}"))
    } else {
        finding(
            "GPU processes",
            Verdict::Note,
            format!("{}{hidden}", using.join(" ")),
        )
    }
}

/// KVM guests before Linux 6.14 on the host can lose a hit, which the process then gets as SIGTRAP (stale DR6).
fn lost_hits() -> Option<Finding> {
    let cpu = fs::read_to_string("/proc/cpuinfo").ok()?;
    let guest = cpu
        .lines()
        .find(|l| l.starts_with("flags"))?
        .split_whitespace()
        .any(|f| f == "hypervisor");
    guest.then(|| {
        finding(
            "virtual machine",
            Verdict::Note,
            "some hypervisors (KVM before Linux 6.14) lose a breakpoint hit now and then, and the program gets a \
             SIGTRAP that kills it unless it handles it; do not trace what must not die in such a guest",
        )
    })
}
