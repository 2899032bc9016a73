//! Checks of what this machine allows. Each part of a live trace is really tried, and a refusal comes with its reason.

use nvcap_process::procfs;
use std::{fs, os::fd::AsFd as _};

use super::{
    btf::Btf,
    discover::{self, WAYS},
    load::{LoadOptions, Loaded, majors},
    perf::{self, Life},
    program::BpfPrograms,
};
use nvcap_process::error::{Error, OBSERVE, without_doctor};
use nvcap_process::host::gpu_processes;
use nvcap_process::{filtered, rights};

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// The part works.
    Works,
    /// The part does not work, and a live trace can do without it.
    Refused,
    /// The part does not work, and a live trace needs it.
    Missing,
    /// A fact worth knowing.
    Note,
}

/// Result of one examination.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Name of the examined part.
    pub what: &'static str,
    /// Result of the check.
    pub verdict: CheckOutcome,
    /// Details, or the reason of the refusal.
    pub detail: String,
}

fn finding(what: &'static str, verdict: CheckOutcome, detail: impl Into<String>) -> Finding {
    Finding {
        what,
        verdict,
        detail: without_doctor(&detail.into()).to_owned(),
    }
}

fn result(what: &'static str, result: Result<String, Error>, otherwise: CheckOutcome) -> Finding {
    match result {
        Ok(detail) => finding(what, CheckOutcome::Works, detail),
        Err(e) => finding(what, otherwise, e.to_string()),
    }
}

/// Examines everything.
pub fn examine() -> Vec<Finding> {
    let mut all = vec![kernel(), rights(), lockdown()];
    // Nothing is reported when nvcap is not in a container.
    if let Err(e) = super::precheck::namespace() {
        all.push(finding("process ids", CheckOutcome::Missing, e.to_string()));
    }
    all.push(result(
        "kernel type information",
        Btf::kernel().map(|_| "/sys/kernel/btf/vmlinux".into()),
        CheckOutcome::Missing,
    ));
    match Loaded::new(loading(1 << 20)) {
        Ok((mut loaded, _)) => {
            all.extend(programs(&mut loaded));
            all.extend(discovery());
        }
        Err(e) => all.push(finding(
            "BPF programs",
            CheckOutcome::Missing,
            e.to_string(),
        )),
    }
    all.push(observing());
    all.push(driver());
    all.push(processes());
    all.extend(lost_hits());
    all
}

/// Options of loading for a trial, with a ring buffer of this size.
fn loading(buffer: u32) -> LoadOptions {
    LoadOptions {
        buffer,
        no_bpf_loop: false,
        stack_bytes: 0,
        stack_every: 1,
        mode: nvcap_common::Mode::EACH,
    }
}

/// Checks the programs that every trace needs.
fn programs(loaded: &mut Loaded) -> [Finding; 3] {
    let loads = finding(
        "BPF programs",
        CheckOutcome::Works,
        format!("loaded, with {}", loaded.doorbell_name),
    );
    let stops = match super::stepping::check(loaded.doorbell.as_fd()) {
        Ok(()) => breakpoints(loaded),
        Err(e) => finding(BREAKPOINTS, CheckOutcome::Missing, e.to_string()),
    };
    let follows = discover::attach_process(&mut BpfPrograms::of(&mut loaded.bpf))
        .map(|()| "fork, exec, exit".to_owned());
    let follows = result("following processes", follows, CheckOutcome::Missing);
    [loads, stops, follows]
}

/// Tries each way of discovery; one is enough.
fn discovery() -> Vec<Finding> {
    let mut all = Vec::new();
    let mut any = false;
    for way in WAYS {
        // Each way uses programs of its own, so that one cannot block another.
        let tried = Loaded::new(loading(1 << 16)).and_then(|(mut l, _)| {
            discover::attach_way(&mut BpfPrograms::of(&mut l.bpf), &l.maps, way)
        });
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
            tried.map(|_| detail.to_owned()),
            CheckOutcome::Refused,
        ));
    }
    if !any {
        all.push(finding(
            "discovery",
            CheckOutcome::Missing,
            "no way is allowed; give --doorbell and --channels",
        ));
    }
    all
}

fn kernel() -> Finding {
    let release = procfs::kernel_release();
    let release = release.trim();
    let version = super::precheck::version(release);
    if version >= (5, 15) {
        finding("kernel", CheckOutcome::Works, release)
    } else {
        finding(
            "kernel",
            CheckOutcome::Note,
            format!("{release}: nvcap is tested from 5.15 on"),
        )
    }
}

fn rights() -> Finding {
    let effective = procfs::capabilities();
    let names = |wanted: bool| {
        let all = rights::NEEDED.into_iter();
        let list = all.filter(|c| c.is_in(effective) == wanted);
        list.map(|c| c.name).collect::<Vec<_>>().join(",")
    };
    if super::precheck::may_load(effective) {
        if let Some(why) = filtered::trap_refused() {
            let text = format!("{why}; {}, or {OBSERVE}", filtered::REMEDY);
            return finding("rights", CheckOutcome::Missing, text);
        }
        let lack = if rights::SYS_PTRACE.is_in(effective) {
            ""
        } else {
            "; without cap_sys_ptrace only your own processes can be traced"
        };
        finding(
            "rights",
            CheckOutcome::Works,
            format!("{}{lack}", names(true)),
        )
    } else {
        finding(
            "rights",
            CheckOutcome::Missing,
            format!("{} are lacking: {}", names(false), rights::remedy!()),
        )
    }
}

fn lockdown() -> Finding {
    let text = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    let mode = text
        .split('[')
        .nth(1)
        .and_then(|t| t.split(']').next())
        .unwrap_or("none or unknown");
    match mode {
        "confidentiality" => finding(
            "kernel lockdown",
            CheckOutcome::Missing,
            "confidentiality: BPF programs may not read memory; boot without lockdown=confidentiality",
        ),
        _ => finding("kernel lockdown", CheckOutcome::Works, mode),
    }
}

/// Checks whether memory may be read, and of which processes: this is all that `--how observe` and `nvcap dump` need.
fn observing() -> Finding {
    let what = "observing without a trap";
    if rights::SYS_PTRACE.is_in(procfs::capabilities()) {
        return finding(what, CheckOutcome::Works, "--how observe: any process");
    }
    let yama = procfs::ptrace_scope();
    match yama.trim() {
        "1" => finding(
            what,
            CheckOutcome::Works,
            "--how observe -- COMMAND; -p PID needs cap_sys_ptrace (kernel.yama.ptrace_scope = 1)",
        ),
        "2" | "3" => finding(
            what,
            CheckOutcome::Refused,
            format!("kernel.yama.ptrace_scope = {}: run it as root", yama.trim()),
        ),
        _ => finding(
            what,
            CheckOutcome::Works,
            "--how observe: your own processes",
        ),
    }
}

const BREAKPOINTS: &str = "hardware breakpoints";

static WATCHED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Opens breakpoints on this thread until no register is left, and triggers one.
fn breakpoints(loaded: &Loaded) -> Finding {
    let what = BREAKPOINTS;
    // SAFETY: gettid has no preconditions.
    let tid = unsafe { libc::gettid() } as u32;
    let life = Life {
        children: false,
        until_exec: true,
        from_exec: false,
    };
    let mut open = Vec::new();
    let refusal = loop {
        match perf::watch(
            tid,
            (perf::Stops::AfterWrite, WATCHED.as_ptr() as u64),
            life,
            loaded.doorbell.as_fd(),
        ) {
            Ok((_, event)) => open.push(event),
            Err(e) => break e,
        }
        if open.len() > 64 {
            break std::io::Error::from_raw_os_error(libc::ENOSPC);
        }
    };
    let Some(first) = open.first() else {
        return finding(
            what,
            CheckOutcome::Missing,
            format!(
                "{refusal}: {}",
                nvcap_process::error::remedy_for_refusal(&refusal)
            ),
        );
    };
    WATCHED.store(1, std::sync::atomic::Ordering::SeqCst);
    let hits = perf::counted(first).unwrap_or_default().hits;
    if hits == 1 {
        finding(
            what,
            CheckOutcome::Works,
            format!("{} free in this thread", open.len()),
        )
    } else {
        let why = format!("a store that should have hit once was counted {hits} times");
        finding(
            what,
            CheckOutcome::Missing,
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
                CheckOutcome::Works,
                format!("{}{uvm}", v.trim()),
            )
        }
        Err(_) => finding(
            "NVIDIA driver",
            CheckOutcome::Note,
            "nvidia.ko is not loaded: there is nothing to trace yet",
        ),
    }
}

fn processes() -> Finding {
    let found = gpu_processes();
    let using: Vec<String> = found.mapped().map(|pid| pid.to_string()).collect();
    let hidden = found.hidden.len();
    let hidden = if hidden > 0 {
        format!("; processes that could not be looked into: {hidden}")
    } else {
        String::new()
    };
    if using.is_empty() {
        finding("GPU processes", CheckOutcome::Note, format!("none{hidden}"))
    } else {
        finding(
            "GPU processes",
            CheckOutcome::Note,
            format!("{}{hidden}", using.join(" ")),
        )
    }
}

/// Tells whether this machine can lose a hit. Guests of KVM before Linux 6.14 can, and the process then gets SIGTRAP
/// instead ([`super::lost_hits`]).
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
            CheckOutcome::Note,
            "some hypervisors (KVM before Linux 6.14) lose a breakpoint hit now and then, and the program gets a SIGTRAP that ends it \
             unless it handles it: nvcap doctor --trap 60 measures how often; --how observe sets no breakpoint",
        )
    })
}
