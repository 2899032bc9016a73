//! fentry and fexit on the driver's functions. They give the records of the kprobe way, on kernels without kprobes.
//!
//! aya names no module when it loads such a program, and so finds only functions of the kernel itself. Therefore the object
//! is read a second time, its programs are tied to aya's maps, and bpf(2) is called directly.

use std::{
    collections::{HashMap, HashSet},
    fmt, io, mem,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use aya_obj::{Object, generated::bpf_insn};

use super::{
    bpf::{self, Tracing},
    btf::Btf,
};
use nvcap_process::error::{Error, Result};

/// The kernel's error "not supported", which libc does not know.
const ENOTSUPP: i32 = 524;

const OTHER_WAYS: &str = "use --discover kprobe or --discover tracepoint";

/// All maps of the loaded object, by name.
pub(crate) type Maps = Arc<[(String, OwnedFd)]>;

/// A program and the function that it attaches to.
#[derive(Clone, Copy, Debug)]
struct Probe {
    program: &'static str,
    function: &'static str,
    exit: bool,
    /// Number of the function's arguments. fexit finds the result behind them.
    arguments: u32,
    /// True if without the program some records are missing, but no submission.
    optional: bool,
}

/// Probes of nvidia.ko. Returns are attached before entries, so that no call is seen to begin whose return is missed.
const NVIDIA: [Probe; 4] = [
    Probe::exit("fexit_mmap", "nvidia_mmap", 2),
    Probe::exit("fexit_ioctl", "nvidia_ioctl", 4),
    Probe::entry("fentry_ioctl", "nvidia_ioctl", 4),
    Probe {
        optional: true,
        ..Probe::entry("fentry_unmap", "nvidia_vma_release", 1)
    },
];

const UVM: [Probe; 2] = [
    Probe::exit("fexit_uvm", "uvm_unlocked_ioctl_entry", 3),
    Probe::entry("fentry_uvm", "uvm_unlocked_ioctl_entry", 3),
];

impl Probe {
    const fn entry(program: &'static str, function: &'static str, arguments: u32) -> Self {
        Self {
            program,
            function,
            exit: false,
            arguments,
            optional: false,
        }
    }

    const fn exit(program: &'static str, function: &'static str, arguments: u32) -> Self {
        Self {
            exit: true,
            ..Self::entry(program, function, arguments)
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.exit { "fexit" } else { "fentry" };
        write!(f, "{kind} on {}", self.function)
    }
}

/// An attached program. Closing both descriptors detaches and unloads it.
#[derive(Debug)]
struct Attached {
    program: OwnedFd,
    _link: OwnedFd,
}

/// The attached programs, which run until this value is dropped. Meanwhile the modules cannot be unloaded.
#[derive(Debug)]
pub(crate) struct Fentry {
    /// Maps that the code names by descriptor.
    _maps: Maps,
    code: HashMap<String, Vec<bpf_insn>>,
    attached: Vec<Attached>,
    uvm: bool,
}

impl Fentry {
    /// Attaches to nvidia.ko's functions, and to nvidia-uvm.ko's if that module is loaded. `object`: the BPF object from
    /// which `maps` were made.
    ///
    /// # Errors
    /// When nvidia.ko is not loaded or has no BTF, or the kernel refuses. Nothing then stays attached.
    pub(crate) fn new(object: &[u8], maps: Maps) -> Result<Self> {
        if !is_loaded("nvidia") {
            return Err(Error::new(
                "using fentry",
                "nvidia.ko is not loaded",
                "load it (modprobe nvidia) or use --discover tracepoint",
            ));
        }
        let mut fentry = Self::ready(object, maps)?;
        fentry.attach("nvidia", &NVIDIA)?;
        fentry.attach_uvm()?;
        Ok(fentry)
    }

    fn ready(object: &[u8], maps: Maps) -> Result<Self> {
        Ok(Self {
            code: code(object, &maps)?,
            _maps: maps,
            attached: Vec::new(),
            uvm: false,
        })
    }

    /// Attaches to nvidia-uvm.ko's functions, once it is loaded.
    ///
    /// # Errors
    /// When the module has no BTF or the kernel refuses. A module that is not loaded is no error.
    pub(crate) fn attach_uvm(&mut self) -> Result<()> {
        if !self.uvm && is_loaded("nvidia_uvm") {
            self.attach("nvidia_uvm", &UVM)?;
            self.uvm = true;
        }
        Ok(())
    }

    /// Returns the number of driver calls that the kernel let pass unseen. (When a thread of a preemptible kernel takes the
    /// processor in the middle of a program, that program is skipped for the thread.) Calls of processes that are not
    /// traced count too, because they cannot be distinguished.
    pub(crate) fn left_out(&self) -> u64 {
        let each = self.attached.iter();
        each.filter_map(|a| bpf::left_out(a.program.as_fd()).ok())
            .sum()
    }

    fn attach(&mut self, module: &str, probes: &[Probe]) -> Result<()> {
        let btf = types(module)?;
        let descriptor = bpf::module_btf(module).map_err(|e| {
            let next = match e.raw_os_error() {
                Some(libc::EPERM) => format!(
                    "fentry needs root (CAP_SYS_ADMIN), and CAP_BPF with CAP_PERFMON is not enough; {OTHER_WAYS}"
                ),
                _ => OTHER_WAYS.to_owned(),
            };
            Error::new(format!("finding the BTF of {module}.ko"), e, next)
        })?;
        let descriptor = descriptor.ok_or_else(|| no_btf(module))?;
        let mut attached = Vec::new();
        for probe in probes {
            let Some(function) = btf.function(probe.function) else {
                if probe.optional {
                    continue;
                }
                return Err(Error::new(
                    format!("using {probe}"),
                    format!(
                        "it is not in the BTF of {module}.ko (the compiler may have changed it)"
                    ),
                    OTHER_WAYS,
                ));
            };
            if function.arguments != probe.arguments {
                return Err(Error::new(
                    format!("using {probe}"),
                    format!(
                        "it takes {} arguments in this driver, not {}",
                        function.arguments, probe.arguments
                    ),
                    format!("please report the driver's version, and {OTHER_WAYS}"),
                ));
            }
            let code = self.code.get(probe.program).ok_or_else(|| {
                Error::new(
                    format!("finding program {}", probe.program),
                    "it is not in the object",
                    "rebuild nvcap",
                )
            })?;
            let program = bpf::load(&Tracing {
                name: probe.program,
                code,
                exit: probe.exit,
                btf: descriptor.as_fd(),
                function: function.id,
            })
            .map_err(|(e, log)| refused(&format!("loading {probe}"), &e, &log))?;
            let link = bpf::attach(program.as_fd())
                .map_err(|e| refused(&format!("attaching {probe}"), &e, ""))?;
            attached.push(Attached {
                program,
                _link: link,
            });
        }
        self.attached.append(&mut attached);
        Ok(())
    }
}

fn is_loaded(module: &str) -> bool {
    Path::new("/sys/module").join(module).is_dir()
}

fn types(module: &str) -> Result<Btf> {
    if module == "vmlinux" {
        return Btf::kernel();
    }
    if !Path::new("/sys/kernel/btf").join(module).exists() {
        return Err(no_btf(module));
    }
    Btf::module(module)
}

fn no_btf(module: &str) -> Error {
    Error::new(
        "using fentry",
        format!(
            "{module}.ko is loaded but has no BTF (built without the kernel's vmlinux at hand, or kernel before 5.11)"
        ),
        OTHER_WAYS,
    )
}

fn refused(what: &str, e: &io::Error, log: &str) -> Error {
    let why = match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) if log.is_empty() => {
            format!("the kernel does not allow it ({e})")
        }
        Some(ENOTSUPP | libc::EOPNOTSUPP) => {
            "this kernel cannot (it needs CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS and the BPF JIT)"
                .to_owned()
        }
        Some(libc::EBUSY) => {
            format!("the function cannot be patched, or another tracer has it ({e})")
        }
        _ => e.to_string(),
    };
    let said: Vec<&str> = log
        .lines()
        .filter(|l| !l.trim().is_empty() && !l.starts_with("processed "))
        .collect();
    let why = match said.last_chunk::<3>().map_or(&said[..], |l| l) {
        [] => why,
        end => format!("{why}: {}", end.join(" | ")),
    };
    Error::new(what, why, OTHER_WAYS)
}

/// Returns the instructions of this module's programs, tied to the maps.
fn code(object: &[u8], maps: &[(String, OwnedFd)]) -> Result<HashMap<String, Vec<bpf_insn>>> {
    let wrong = |e: &dyn fmt::Display| Error::new("reading the BPF object", e, "rebuild nvcap");
    let mut object = Object::parse(object).map_err(|e| wrong(&e))?;
    let text: HashSet<usize> = object
        .functions
        .keys()
        .map(|(section, _)| *section)
        .collect();
    let definitions = mem::take(&mut object.maps);
    let tied = maps.iter().filter_map(|(name, fd)| {
        let definition = definitions.get(name)?;
        Some((name.as_str(), fd.as_raw_fd(), definition))
    });
    object.relocate_maps(tied, &text).map_err(|e| wrong(&e))?;
    object.relocate_calls(&text).map_err(|e| wrong(&e))?;
    let wanted = NVIDIA.iter().chain(&UVM);
    let found = wanted.filter_map(|p| {
        let program = object.programs.get(p.program)?;
        let function = object.functions.get(&program.function_key())?;
        Some((p.program.to_owned(), function.instructions.clone()))
    });
    Ok(found.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trap::load::{LoadOptions, Loaded, OBJECT};

    /// Loads the programs and their maps, if this machine can; otherwise prints that the test did not run.
    fn loaded(test: &str) -> Option<Loaded> {
        let loaded = Loaded::new(LoadOptions {
            buffer: 1 << 16,
            no_bpf_loop: true,
            stack_bytes: 0,
            stack_every: 1,
            mode: nvcap_common::Mode::EACH,
        });
        let loaded = loaded.map_err(|e| println!("NOT RUN {test}: {e}"));
        loaded.ok().map(|(loaded, _)| loaded)
    }

    #[test]
    #[ignore = "needs the BPF object: cargo xtask test builds it"]
    fn every_program_is_in_the_object() {
        if OBJECT.is_empty() {
            println!("NOT RUN every_program_is_in_the_object: built without the BPF object");
            return;
        }
        let object = Object::parse(OBJECT).unwrap();
        for probe in NVIDIA.iter().chain(&UVM) {
            assert!(object.programs.contains_key(probe.program), "{probe:?}");
        }
    }

    /// Tests a kernel function with the signature of `nvidia_mmap`: it attaches wherever the kernel allows fentry.
    #[test]
    #[ignore = "needs BPF programs: cargo xtask test runs it as root"]
    fn attaches_or_says_why() {
        let Some(loaded) = loaded("attaches_or_says_why") else {
            return;
        };
        let mut fentry = Fentry::ready(OBJECT, loaded.maps.clone()).unwrap();
        let probe = Probe::exit("fexit_mmap", "generic_file_mmap", 2);
        match fentry.attach("vmlinux", &[probe]) {
            Ok(()) => assert_eq!((fentry.attached.len(), fentry.left_out()), (1, 0)),
            Err(e) => {
                let text = e.to_string();
                assert!(text.contains("fexit on generic_file_mmap: "), "{text}");
                assert!(text.ends_with(OTHER_WAYS), "{text}");
                assert!(!text.contains("R1"), "not the verifier: {text}");
                println!("refused here: {text}");
            }
        }
    }

    #[test]
    #[ignore = "needs BPF programs: cargo xtask test runs it as root"]
    fn another_shape_is_refused() {
        let Some(loaded) = loaded("another_shape_is_refused") else {
            return;
        };
        let mut fentry = Fentry::ready(OBJECT, loaded.maps.clone()).unwrap();
        for (probe, why) in [
            (
                Probe::exit("fexit_ioctl", "generic_file_mmap", 4),
                "it takes 2 arguments",
            ),
            (
                Probe::exit("fexit_ioctl", "no_such_function", 4),
                "not in the BTF",
            ),
        ] {
            let e = fentry.attach("vmlinux", &[probe]).unwrap_err().to_string();
            assert!(e.contains(why), "{e}");
        }
        assert!(fentry.attached.is_empty());
    }

    #[test]
    fn what_is_said_when_refused() {
        let said = |code, log| refused("loading x", &io::Error::from_raw_os_error(code), log);
        for (code, log, why) in [
            (libc::EPERM, "", "the kernel does not allow it"),
            (ENOTSUPP, "", "this kernel cannot"),
            (libc::EBUSY, "", "another tracer has it"),
            (
                libc::EACCES,
                "0: r1\nR2 bad\nprocessed 2 insns\n",
                "(os error 13): 0: r1 | R2 bad; ",
            ),
        ] {
            let text = said(code, log).to_string();
            assert!(text.contains(why), "{text}");
        }
    }
}
