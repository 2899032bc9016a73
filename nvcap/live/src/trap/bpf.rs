//! Calls of bpf(2) for the commands that aya does not offer: programs on a module's functions, running a program, the kernel's
//! counters of a program. Knows the system call only.

use std::{
    ffi::{CStr, CString},
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

use aya_obj::generated::{
    bpf_attach_type, bpf_attr, bpf_btf_info, bpf_cmd, bpf_insn, bpf_prog_info, bpf_prog_type,
};

/// Bytes for the verifier's log; only its end is of interest.
const LOG: usize = 1 << 20;

fn bpf(cmd: bpf_cmd, attr: &mut bpf_attr) -> io::Result<i32> {
    // SAFETY: attr is a whole bpf_attr, and the callers' pointers in it outlive the call.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            cmd as libc::c_long,
            ptr::from_mut(attr),
            size_of::<bpf_attr>(),
        )
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc as i32)
    }
}

/// Makes a bpf(2) command that returns a descriptor.
fn open(cmd: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    let fd = bpf(cmd, attr)?;
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn attr() -> bpf_attr {
    // SAFETY: a union of plain integers and arrays of them.
    unsafe { mem::zeroed() }
}

/// Reads information on an object. `T`: the structure for that kind of object.
fn info<T: Copy>(object: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    let mut attr = attr();
    attr.info.bpf_fd = object.as_raw_fd() as u32;
    attr.info.info_len = size_of::<T>() as u32;
    attr.info.info = ptr::from_mut(info) as u64;
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr).map(drop)
}

/// Returns the kernel's type information of a module (or of `vmlinux`), which programs on its functions refer to. `None` when there
/// is none of that name.
///
/// # Errors
/// Those of bpf(2): EPERM without CAP_SYS_ADMIN, which is needed to walk over all type information.
pub(crate) fn module_btf(module: &str) -> io::Result<Option<OwnedFd>> {
    let mut last = 0;
    loop {
        let mut next = attr();
        next.__bindgen_anon_6.__bindgen_anon_1.start_id = last;
        match bpf(bpf_cmd::BPF_BTF_GET_NEXT_ID, &mut next) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            done => done?,
        };
        // SAFETY: the kernel wrote it.
        last = unsafe { next.__bindgen_anon_6.next_id };
        let mut by_id = attr();
        by_id.__bindgen_anon_6.__bindgen_anon_1.btf_id = last;
        let btf = match open(bpf_cmd::BPF_BTF_GET_FD_BY_ID, &mut by_id) {
            // It went away meanwhile.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => continue,
            opened => opened?,
        };
        let mut name = [0u8; 64];
        // SAFETY: plain integers.
        let mut about: bpf_btf_info = unsafe { mem::zeroed() };
        about.name = name.as_mut_ptr() as u64;
        about.name_len = name.len() as u32;
        match info(btf.as_fd(), &mut about) {
            // A name longer than a module's can be.
            Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => continue,
            done => done?,
        }
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        if about.kernel_btf == 1 && name.to_bytes() == module.as_bytes() {
            return Ok(Some(btf));
        }
    }
}

/// A program to be loaded on a kernel function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tracing<'a> {
    /// Name of the program.
    pub name: &'a str,
    /// Instructions of the program.
    pub code: &'a [bpf_insn],
    /// True for a program at the function's return, false for one at its entry.
    pub exit: bool,
    /// The type information that has the function.
    pub btf: BorrowedFd<'a>,
    /// The function's number in the type information.
    pub function: u32,
}

/// Loads a program. The error comes with the verifier's log.
///
/// # Errors
/// Those of bpf(2).
pub(crate) fn load(program: &Tracing<'_>) -> Result<OwnedFd, (io::Error, String)> {
    load_with(program, &mut []).or_else(|e| {
        // The log is requested only after a failure: it makes loading slower.
        let mut log = vec![0u8; LOG];
        load_with(program, &mut log).map_err(|_| {
            let text = CStr::from_bytes_until_nul(&log).unwrap_or_default();
            (e, text.to_string_lossy().into_owned())
        })
    })
}

fn load_with(program: &Tracing<'_>, log: &mut [u8]) -> io::Result<OwnedFd> {
    let license = c"Dual MIT/GPL";
    let mut attr = attr();
    // SAFETY: a view of the union that is all plain integers.
    let load = unsafe { &mut attr.__bindgen_anon_3 };
    load.prog_type = bpf_prog_type::BPF_PROG_TYPE_TRACING as u32;
    load.expected_attach_type = if program.exit {
        bpf_attach_type::BPF_TRACE_FEXIT
    } else {
        bpf_attach_type::BPF_TRACE_FENTRY
    } as u32;
    load.insns = program.code.as_ptr() as u64;
    load.insn_cnt = program.code.len() as u32;
    load.license = license.as_ptr() as u64;
    load.attach_btf_id = program.function;
    load.__bindgen_anon_1.attach_btf_obj_fd = program.btf.as_raw_fd() as u32;
    let name = CString::new(program.name).unwrap_or_default();
    for (to, from) in load.prog_name[..15].iter_mut().zip(name.as_bytes()) {
        *to = *from as _;
    }
    if !log.is_empty() {
        load.log_level = 1;
        load.log_buf = log.as_mut_ptr() as u64;
        load.log_size = log.len() as u32;
    }
    open(bpf_cmd::BPF_PROG_LOAD, &mut attr)
}

/// Attaches a loaded program: it runs at each call of its function until the returned link is closed.
///
/// # Errors
/// Those of bpf(2).
pub(crate) fn attach(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr = attr();
    attr.raw_tracepoint.prog_fd = program.as_raw_fd() as u32;
    open(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr)
}

/// Runs a program of a raw tracepoint once, now.
///
/// # Errors
/// Those of bpf(2).
pub(crate) fn run(program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = attr();
    attr.test.prog_fd = program.as_raw_fd() as u32;
    bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr).map(drop)
}

/// Returns the number of times that the kernel skipped the program. It does so when the program is already running on that processor
/// or, for a program on a kprobe, when another BPF program is. Kernels before 5.12 do not count the first case, those before 6.7 not
/// the second.
///
/// # Errors
/// Those of bpf(2).
pub(crate) fn left_out(program: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: plain integers.
    let mut about: bpf_prog_info = unsafe { mem::zeroed() };
    info(program, &mut about)?;
    Ok(about.recursion_misses)
}
