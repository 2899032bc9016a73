//! The driver of [`crate::sampling`] and the channels of [`crate::rm`] for another program, as it is: its calls that concern the driver (openat,
//! open, and ioctl with the driver's letter) come here by seccomp's user notification, and are answered; its memory is mapped by itself, from
//! files that are put in the place of those that it has opened. All other calls go on as ever.
//!
//! ```text
//! the program: openat("/dev/nvidiactl") ─ seccomp ─ a thread here ─ a file in memory
//!              ioctl(fd, NV_ESC_RM_...)  ─ seccomp ─ a thread here ─ Rm, Driver
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nvcap_decode::samples::Sample;
use nvcap_decode::samples::stream::records;
use nvcap_decode::wire::header::Header;
use nvcap_process::rm::Os;

use crate::engine::file as memory_file;
use crate::rm::{Fields, Rm, RmView};
use crate::sampling::Driver;

/// The release that the program finds: the newest of the tables, as [`Rm`] has it.
pub const RELEASE: &str = "595.45.04";

/// UUID of the GPU that it finds.
pub const UUID: &str = "GPU-00000000-0000-0000-0000-000000000040";

/// A client of a process, and what the GPU samples of it.
#[derive(Clone, Debug)]
pub struct Known {
    /// The file by which the process has made it.
    pub file: PathBuf,
    /// The client's handle.
    pub client: u32,
    /// Its contexts, with the samples that each SM writes between two looks.
    pub contexts: Vec<(u32, Vec<Sample>)>,
}

/// The machine that programs find, which all of them share.
#[derive(Clone, Debug)]
pub struct Machine {
    folder: PathBuf,
    known: Vec<Known>,
    /// Process that has the profiler.
    holder: Arc<Mutex<Option<u32>>>,
}

impl Machine {
    /// A machine with one GPU, whose files lie in a folder.
    ///
    /// # Errors
    /// Those of writing the files.
    pub fn new(folder: &Path, known: Vec<Known>) -> io::Result<Self> {
        let gpu = folder.join("gpus/0000:01:00.0");
        std::fs::create_dir_all(&gpu)?;
        let information = format!(
            "Model: \t\t NVIDIA softgpu\nGPU UUID: \t {UUID}\nBus Location: \t 0000:01:00.0\nDevice Minor: \t 0\n"
        );
        std::fs::write(gpu.join("information"), information)?;
        std::fs::write(folder.join("version"), format!("{RELEASE}\n"))?;
        Ok(Self {
            folder: folder.to_owned(),
            known,
            holder: Arc::default(),
        })
    }

    /// Process that has the profiler.
    #[must_use]
    pub fn holder(&self) -> Option<u32> {
        *self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the profiler for a process that is none of those that are served.
    pub fn hold(&self, pid: Option<u32>) {
        *self.holder.lock().unwrap_or_else(PoisonError::into_inner) = pid;
    }

    /// The file in whose place another is opened.
    fn replaced(&self, path: &str) -> Option<PathBuf> {
        let gpus = path.strip_prefix("/proc/driver/nvidia/gpus");
        match (gpus, path) {
            (Some(rest), _) => Some(self.folder.join(format!("gpus{rest}"))),
            (_, "/sys/module/nvidia/version") => Some(self.folder.join("version")),
            _ => None,
        }
    }
}

/// Descriptor by which the program's notifications are reached.
const LISTENER: i32 = 923;

/// Makes the calls of this process, and of what it will execute, be answered: for a child before its exec.
///
/// # Errors
/// Where the kernel allows no such filter.
pub fn ask_before_exec() -> io::Result<()> {
    const NUMBER: u32 = 0;
    // The lower half of the second argument, little-endian.
    const REQUEST: u32 = 24;
    const LETTER: u32 = b'F' as u32;
    let (load, equal, result) = (0x20, 0x15, 0x06);
    let op = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let filter = [
        op(load, NUMBER, 0, 0),
        op(equal, libc::SYS_openat as u32, 6, 0),
        op(equal, OPEN, 5, 0),
        op(equal, libc::SYS_ioctl as u32, 0, 5),
        op(load, REQUEST, 0, 0),
        // BPF_ALU | BPF_RSH, BPF_ALU | BPF_AND.
        op(0x74, 8, 0, 0),
        op(0x54, 0xff, 0, 0),
        op(equal, LETTER, 0, 1),
        op(result, libc::SECCOMP_RET_USER_NOTIF, 0, 0),
        op(result, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the program lies in this frame; the new descriptor is nobody's yet.
    unsafe {
        let listener = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        ) as i32;
        if listener < 0 || libc::dup2(listener, LISTENER) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(target_arch = "x86_64")]
const OPEN: u32 = libc::SYS_open as u32;
#[cfg(not(target_arch = "x86_64"))]
const OPEN: u32 = libc::SYS_openat as u32;

/// A program that is served. Dropped, it is served no more.
pub struct Served {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers the calls of a program that was started with [`ask_before_exec`].
///
/// # Errors
/// Where its descriptor cannot be had.
pub fn serve(pid: u32, machine: &Machine) -> io::Result<Served> {
    // SAFETY: no pointers.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let process = descriptor(process)?;
    // SAFETY: no pointers.
    let listener =
        unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), LISTENER, 0) };
    let listener = descriptor(listener)?;
    let end = Arc::new(AtomicBool::new(false));
    let machine = machine.clone();
    let ends = Arc::clone(&end);
    let thread = std::thread::spawn(move || {
        let mut server = Server::new(pid, machine.clone());
        while !ends.load(Ordering::SeqCst) {
            if !server.step(&listener) {
                break;
            }
        }
        // The kernel has closed its files: the driver frees what was theirs.
        if machine.holder() == Some(pid) {
            machine.hold(None);
        }
    });
    Ok(Served {
        end,
        thread: Some(thread),
    })
}

fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(result) {
        // SAFETY: the kernel has just made it, and nobody else has it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Numbers of the notifications' ioctls (linux/seccomp.h).
const RECEIVE: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;
const ADD_FILE: libc::c_ulong = 0x4018_2103;
const SET_FILE: u32 = 1;

#[repr(C)]
#[derive(Default)]
struct Notification {
    id: u64,
    pid: u32,
    flags: u32,
    number: i32,
    arch: u32,
    ip: u64,
    args: [u64; 6],
}

#[repr(C)]
#[derive(Default)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct AddFile {
    id: u64,
    flags: u32,
    from: u32,
    to: u32,
    to_flags: u32,
}

/// Answer to a call.
enum Answer {
    /// The kernel carries it out.
    GoOn,
    /// The call returns this.
    Value(i64),
    /// The call fails with this error.
    Error(i32),
}

struct Server {
    pid: u32,
    machine: Machine,
    rm: Rm,
    view: RmView,
    driver: Driver,
    /// Submissions in which triggers were looked for.
    looked: usize,
    triggers: usize,
    /// Client whose profiler is bound.
    bound: Option<u32>,
}

impl Server {
    fn new(pid: u32, machine: Machine) -> Self {
        let (rm, view) = Rm::new(None, true);
        let driver = Driver::new();
        for (number, known) in machine.known.iter().enumerate() {
            let groups: Vec<u32> = known.contexts.iter().map(|(group, _)| *group).collect();
            driver.process(number as u32, known.client, &groups);
        }
        Self {
            pid,
            machine,
            rm,
            view,
            driver,
            looked: 0,
            triggers: 0,
            bound: None,
        }
    }

    /// Answers one call, or waits for it a little; false where none will come.
    fn step(&mut self, listener: &OwnedFd) -> bool {
        let mut poll = libc::pollfd {
            fd: listener.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd.
        unsafe { libc::poll(&raw mut poll, 1, 20) };
        if poll.revents & libc::POLLIN == 0 {
            return poll.revents & libc::POLLHUP == 0;
        }
        let mut call = Notification::default();
        // SAFETY: room for one notification.
        if unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE as _, &raw mut call) } < 0 {
            // It was killed meanwhile.
            return true;
        }
        let answer = match self.answer(listener, &call) {
            Ok(answer) => answer,
            Err(error) => Answer::Error(error.raw_os_error().unwrap_or(libc::EIO)),
        };
        let mut response = Response {
            id: call.id,
            ..Response::default()
        };
        match answer {
            // SECCOMP_USER_NOTIF_FLAG_CONTINUE.
            Answer::GoOn => response.flags = 1,
            Answer::Value(value) => response.value = value,
            Answer::Error(error) => response.error = -error,
        }
        // SAFETY: one response.
        unsafe { libc::ioctl(listener.as_raw_fd(), SEND as _, &raw const response) };
        true
    }

    fn answer(&mut self, listener: &OwnedFd, call: &Notification) -> io::Result<Answer> {
        // A command that the program has started has the filter, too.
        if !Path::new(&format!("/proc/{}/task/{}", self.pid, call.pid)).exists() {
            return Ok(Answer::GoOn);
        }
        if i64::from(call.number) == libc::SYS_ioctl {
            return self.ioctl(listener, call);
        }
        let at = if call.number as u32 == OPEN { 0 } else { 1 };
        let at = if i64::from(call.number) == libc::SYS_openat {
            1
        } else {
            at
        };
        let path = self.path(call.args[at])?;
        let opened = if path.starts_with("/dev/nvidia") {
            memory_file(4096)?
        } else if let Some(other) = self.machine.replaced(&path) {
            File::open(other)?
        } else {
            return Ok(Answer::GoOn);
        };
        let fd = add(listener, call.id, &opened, None)?;
        self.driver.is_own_file(fd);
        Ok(Answer::Value(fd.into()))
    }

    fn path(&self, at: u64) -> io::Result<String> {
        let mut bytes = [0; 512];
        let first = (4096 - at % 4096).min(512) as usize;
        let mut read = self.read(at, &mut bytes[..first])?;
        if !bytes[..read].contains(&0) {
            read += self.read(at + read as u64, &mut bytes[read..]).unwrap_or(0);
        }
        let len = bytes[..read].iter().position(|byte| *byte == 0);
        Ok(String::from_utf8_lossy(&bytes[..len.unwrap_or(read)]).into_owned())
    }

    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        self.copy(at, to.as_mut_ptr(), to.len(), libc::SYS_process_vm_readv)
    }

    fn write(&self, at: u64, from: &mut [u8]) -> io::Result<usize> {
        self.copy(
            at,
            from.as_mut_ptr(),
            from.len(),
            libc::SYS_process_vm_writev,
        )
    }

    fn copy(&self, at: u64, own: *mut u8, len: usize, call: libc::c_long) -> io::Result<usize> {
        let iov_len = len;
        let own = libc::iovec {
            iov_base: own.cast(),
            iov_len,
        };
        let other = libc::iovec {
            iov_base: at as *mut libc::c_void,
            iov_len,
        };
        // SAFETY: the caller's slice has so many bytes; the other side is the other process's.
        let done = unsafe {
            libc::syscall(
                call,
                self.pid,
                &raw const own,
                1usize,
                &raw const other,
                1usize,
                0usize,
            )
        };
        usize::try_from(done).map_err(|_| io::Error::last_os_error())
    }

    fn ioctl(&mut self, listener: &OwnedFd, call: &Notification) -> io::Result<Answer> {
        let (fd, request, at) = (call.args[0] as i32, call.args[1] as u32, call.args[2]);
        let link = std::fs::read_link(format!("/proc/{}/fd/{fd}", self.pid))?;
        let owner = self
            .machine
            .known
            .iter()
            .position(|known| known.file == link);
        match owner {
            Some(number) => self.driver.is_file_of(fd, number as u32),
            None if link.to_string_lossy().starts_with("/memfd:") => self.driver.is_own_file(fd),
            None => return Ok(Answer::GoOn),
        }
        let mut argument = vec![0; (request >> 16) as usize & 0x3fff];
        let len = self.read(at, &mut argument)?;
        argument.truncate(len);
        // What the argument points to is brought here, and back.
        let pointer = match request as u8 {
            0x2a => Some(("NVOS54_PARAMETERS", "params", Some("paramsSize"))),
            0x2b => Some(("NVOS64_PARAMETERS", "pAllocParms", None)),
            _ => None,
        };
        let mut parameters = vec![0; 4096];
        let mut theirs = 0;
        if let Some((name, pointer, size)) = pointer {
            let fields = Fields::of(name, None)?;
            theirs = fields.get(&argument, pointer)?;
            let len = match size {
                Some(size) => fields.get(&argument, size)? as usize,
                None => 4096,
            };
            parameters.resize(len, 0);
            if theirs != 0 {
                let (first, second) =
                    parameters.split_at_mut(len.min(4096 - (theirs % 4096) as usize));
                self.read(theirs, first)?;
                // The next page is there where the structure reaches so far.
                let _ = self.read(theirs + first.len() as u64, second);
                fields.set(&mut argument, pointer, parameters.as_mut_ptr() as u64)?;
            }
        }
        // SAFETY: a number alone, of the other process's table; nothing uses it as a file here.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        self.of_driver(file, request, &mut argument)?;
        if request as u8 == 0x4e {
            let (fd, file) = self.rm.file_to_map(&argument)?;
            add(listener, call.id, &file, Some(fd))?;
        }
        if let Some((name, pointer, size)) = pointer {
            if theirs != 0 && size.is_some() {
                self.write(theirs, &mut parameters)?;
            }
            Fields::of(name, None)?.set(&mut argument, pointer, theirs)?;
        }
        self.write(at, &mut argument)?;
        Ok(Answer::Value(0))
    }

    fn of_driver(
        &mut self,
        file: BorrowedFd<'_>,
        request: u32,
        argument: &mut [u8],
    ) -> io::Result<()> {
        match request as u8 {
            0x29 => {
                let root = Fields::of("NVOS00_PARAMETERS", None)?.get(argument, "hRoot")? as u32;
                if self.bound == Some(root) {
                    self.bound = None;
                    self.release();
                    self.driver.ioctl(file, request, argument)?;
                }
                self.rm.ioctl(file, request, argument)
            }
            0x2b => {
                let call = Fields::of("NVOS64_PARAMETERS", None)?;
                if call.get(argument, "hClass")? == 0xb2cc {
                    self.bound = Some(call.get(argument, "hRoot")? as u32);
                    return self.driver.ioctl(file, request, argument);
                }
                self.rm.ioctl(file, request, argument)
            }
            0x2a => {
                let call = Fields::of("NVOS54_PARAMETERS", None)?;
                let command = call.get(argument, "cmd")? as u32;
                match command {
                    // The profiler is reserved, and given back.
                    0xb0cc_0101 => {
                        let other = self.machine.holder().filter(|pid| *pid != self.pid);
                        self.driver.hold(other.is_some());
                        if other.is_none() {
                            self.machine.hold(Some(self.pid));
                        }
                    }
                    0xb0cc_0102 => self.release(),
                    0xb0cc_0105 => {
                        let pointer = call.get(argument, "params")?;
                        // SAFETY: `ioctl` has put the parameters there.
                        let handle = unsafe { (pointer as *const u32).read_unaligned() };
                        let (address, len, file) = self.rm.memory_of(handle)?;
                        self.driver.knows_memory(handle, address, len, file)?;
                    }
                    0xb0cc_0109 => self.samples(),
                    _ => {}
                }
                match command {
                    0xd02 | 0x2080_0142 | 0xb0cc_0000..=0xb0cc_ffff => {
                        self.driver.ioctl(file, request, argument)
                    }
                    _ => self.rm.ioctl(file, request, argument),
                }
            }
            0xc8 => self.driver.ioctl(file, request, argument),
            _ => self.rm.ioctl(file, request, argument),
        }
    }

    fn release(&self) {
        if self.machine.holder() == Some(self.pid) {
            self.machine.hold(None);
        }
    }

    /// The GPU writes what it has sampled since the last look, if it samples.
    fn samples(&mut self) {
        let executed = self.view.executed();
        for submission in &executed[self.looked..] {
            self.triggers += triggers(&submission.bytes);
        }
        self.looked = executed.len();
        if self.triggers.is_multiple_of(2) {
            return;
        }
        let Some((client, group)) = self.driver.bound() else {
            return;
        };
        let known = self.machine.known.iter().find(|k| k.client == client);
        let contexts: BTreeMap<u32, &[Sample]> = { known.iter() }
            .flat_map(|known| &known.contexts)
            .map(|(group, samples)| (*group, &samples[..]))
            .collect();
        if let Some(samples) = contexts.get(&group) {
            for sm in [20, 21] {
                self.driver.writes(&records(sm, samples));
            }
        }
    }
}

/// Counts the triggers (PM_TRIGGER, 0x140 of the compute engine) in a pushbuffer.
fn triggers(bytes: &[u8]) -> usize {
    let mut words = { bytes.as_chunks::<4>().0.iter() }.map(|word| u32::from_le_bytes(*word));
    let mut found = 0;
    while let Some(word) = words.next() {
        let Header::Method {
            count,
            subchannel,
            address,
            ..
        } = Header::read(word)
        else {
            continue;
        };
        found += usize::from((subchannel, address) == (1, 0x140));
        for _ in 0..count {
            words.next();
        }
    }
    found
}

/// Puts a file into the program's table: at a free place, or in place of another.
fn add(listener: &OwnedFd, id: u64, file: &File, at: Option<i32>) -> io::Result<i32> {
    let add = AddFile {
        id,
        flags: if at.is_some() { SET_FILE } else { 0 },
        from: file.as_raw_fd() as u32,
        to: at.unwrap_or(0) as u32,
        to_flags: libc::O_CLOEXEC as u32,
    };
    // SAFETY: one structure.
    let fd = unsafe { libc::ioctl(listener.as_raw_fd(), ADD_FILE as _, &raw const add) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}
