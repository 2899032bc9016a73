//! The registers with which threads entered the kernel, read without stopping the threads. A BPF iterator over all threads (`iter/task`, Linux 5.8)
//! writes the registers of one process (`bpf_task_pt_regs`, Linux 5.15).
//!
//! The program has 25 instructions, which are made here with the member offsets of the running kernel. It needs no map, changes nothing, and is
//! gone with the descriptors. For a thread that runs in user mode, the registers are those of its last entry; callers must check that the thread
//! sits in the kernel.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use super::btf::Btf;
use nvcap_decode::wire::words::u64_at;

/// Registers of a thread at its entry into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer register.
    pub fp: u64,
    /// Link register, on processors that have one.
    pub lr: u64,
}

/// Offsets in `struct pt_regs`, in the order of [`Registers`] (arch/*/include/asm/ptrace.h). x86-64 has no link register: the first word stands for
/// it.
#[cfg(target_arch = "x86_64")]
const PT_REGS: [i16; 4] = [128, 152, 32, 0];
#[cfg(target_arch = "aarch64")]
const PT_REGS: [i16; 4] = [256, 248, 29 * 8, 30 * 8];

/// Number of bytes that the program writes for each thread: its id, and the registers.
const WRITTEN: usize = 40;

// Commands, types and helpers of bpf(2), by include/uapi/linux/bpf.h.
const BPF_PROG_LOAD: i32 = 5;
const BPF_LINK_CREATE: i32 = 28;
const BPF_ITER_CREATE: i32 = 33;
const BPF_PROG_TYPE_TRACING: u32 = 26;
const BPF_TRACE_ITER: u32 = 28;
const SEQ_WRITE: i32 = 127;
const TASK_PT_REGS: i32 = 175;

/// Encodes an instruction: opcode, destination and source register, offset, immediate.
fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    u64::from(code)
        | u64::from(from << 4 | to) << 8
        | u64::from(offset as u16) << 16
        | u64::from(value as u32) << 32
}

/// `to = *(u64 *)(from + offset)`.
fn load(to: u8, from: u8, offset: i16) -> u64 {
    instruction(0x79, to, from, offset, 0)
}

/// `to = *(u32 *)(from + offset)`.
fn load_u32(to: u8, from: u8, offset: i16) -> u64 {
    instruction(0x61, to, from, offset, 0)
}

/// `*(u64 *)(stack + offset) = from`.
fn store(offset: i16, from: u8) -> u64 {
    instruction(0x7b, 10, from, offset, 0)
}

/// `to = from`.
fn copy(to: u8, from: u8) -> u64 {
    instruction(0xbf, to, from, 0, 0)
}

/// `to = value`.
fn set(to: u8, value: i32) -> u64 {
    instruction(0xb7, to, 0, 0, value)
}

fn call(helper: i32) -> u64 {
    instruction(0x85, 0, 0, 0, helper)
}

/// Makes the program for a process. Its context is the iterator's: a description, then the task, which is null at the end.
fn program(pid: u32, tgid_at: i16, pid_at: i16) -> Vec<u64> {
    let mut code = vec![
        copy(6, 1),
        load(7, 6, 8),
        // Jumps to the end are filled in below.
        instruction(0x15, 7, 0, 0, 0),
        load_u32(3, 7, tgid_at),
        instruction(0x55, 3, 0, 0, pid as i32),
        load_u32(8, 7, pid_at),
        copy(1, 7),
        call(TASK_PT_REGS),
        store(-(WRITTEN as i16), 8),
    ];
    for (nth, offset) in PT_REGS.into_iter().enumerate() {
        code.push(load(1, 0, offset));
        code.push(store(8 * (nth as i16 + 1) - WRITTEN as i16, 1));
    }
    code.extend([
        load(1, 6, 0),
        // The description's first member: the file that is written.
        load(1, 1, 0),
        copy(2, 10),
        instruction(0x07, 2, 0, 0, -(WRITTEN as i32)),
        set(3, WRITTEN as i32),
        call(SEQ_WRITE),
    ]);
    let end = code.len();
    for (at, instruction) in code.iter_mut().enumerate() {
        if matches!(*instruction as u8, 0x15 | 0x55) {
            let over = (end - at - 1) as u64;
            *instruction |= over << 16;
        }
    }
    code.extend([set(0, 0), instruction(0x95, 0, 0, 0, 0)]);
    code
}

/// Calls bpf(2) with arguments as words at byte offsets; the rest is 0.
fn bpf(command: i32, arguments: &[(usize, u32)]) -> io::Result<OwnedFd> {
    let mut words = [0_u32; 36];
    for (at, value) in arguments {
        if let Some(word) = words.get_mut(at / 4) {
            *word = *value;
        }
    }
    // SAFETY: the arguments live through the call, and so does what they point to, which the callers hold.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, words.as_ptr(), size_of_val(&words)) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Splits a pointer into its two halves, at a byte offset.
fn pointer<T>(at: usize, to: *const T) -> [(usize, u32); 2] {
    let address = to as u64;
    [(at, address as u32), (at + 4, (address >> 32) as u32)]
}

/// Returns the registers of a process's threads, by thread id.
///
/// # Errors
/// When the rights to load BPF programs are missing, and on a kernel without such an iterator.
pub fn of_process(pid: u32) -> io::Result<BTreeMap<u32, Registers>> {
    let missing = |what: &str| io::Error::other(format!("the kernel has no {what}"));
    let btf = Btf::kernel().map_err(io::Error::other)?;
    let iterator = btf
        .function("bpf_iter_task")
        .ok_or_else(|| missing("iterator over threads"))?;
    let member = |name| {
        let offset = btf.offset("task_struct", name).map_err(io::Error::other)?;
        i16::try_from(offset).map_err(io::Error::other)
    };
    let code = program(pid, member("tgid")?, member("pid")?);
    let licence = c"GPL";
    let mut arguments = vec![
        (0, BPF_PROG_TYPE_TRACING),
        (4, code.len() as u32),
        // expected_attach_type and attach_btf_id.
        (68, BPF_TRACE_ITER),
        (108, iterator.id),
    ];
    arguments.extend(pointer(8, code.as_ptr()));
    arguments.extend(pointer(16, licence.as_ptr()));
    let program = bpf(BPF_PROG_LOAD, &arguments)?;
    let fd = |fd: &OwnedFd| fd.as_raw_fd() as u32;
    // The program, no target, the kind of attachment.
    let link = bpf(
        BPF_LINK_CREATE,
        &[(0, fd(&program)), (4, 0), (8, BPF_TRACE_ITER)],
    )?;
    let mut file = File::from(bpf(BPF_ITER_CREATE, &[(0, fd(&link))])?);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes.chunks_exact(WRITTEN).filter_map(parse).collect())
}

fn parse(written: &[u8]) -> Option<(u32, Registers)> {
    let word = |nth: usize| u64_at(written, 8 * nth);
    Some((
        word(0)? as u32,
        Registers {
            ip: word(1)?,
            sp: word(2)?,
            fp: word(3)?,
            lr: word(4)?,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_process::procfs::mem::Ordinary;
    use nvcap_process::procfs::tasks::{Position, position};
    use nvcap_process::stacks::snapshot::{Entries, of_threads};

    #[inline(never)]
    fn waits_here(gate: &mut std::io::PipeReader) {
        let _ = gate.read(&mut [0]);
        std::hint::black_box(());
    }

    /// Looks at a thread of this process that sits in the kernel, with the registers of all its threads.
    fn with_a_thread_that_waits(
        test: &str,
        look: impl FnOnce(u32, u32, &BTreeMap<u32, Registers>),
    ) {
        let pid = std::process::id();
        let (tell, told) = std::sync::mpsc::channel();
        let (mut gate, open) = std::io::pipe().unwrap();
        let waits = std::thread::spawn(move || {
            // SAFETY: reads an id.
            tell.send(unsafe { libc::gettid() } as u32).unwrap();
            waits_here(&mut gate);
        });
        let tid = told.recv().unwrap();
        nvcap_waiting::sits_in(pid, tid, libc::SYS_read);
        match of_process(pid) {
            Err(e) => println!("NOT RUN {test}: no BPF iterator: {e}"),
            Ok(all) => look(pid, tid, &all),
        }
        drop(open);
        waits.join().unwrap();
    }

    #[test]
    #[ignore = "needs BPF iterators: cargo xtask test runs it as root"]
    fn a_thread_that_waits_has_its_function_on_the_stack() {
        with_a_thread_that_waits("the frames of a thread that waits", |pid, tid, all| {
            let r = all.get(&tid).expect("the thread that waits");
            let entries = Entries::from([(tid, [r.ip, r.sp, r.fp, r.lr])]);
            let memory = Ordinary::open(pid).unwrap();
            let (stacks, _) = of_threads(pid, &memory, &[tid], &entries);
            let frames = &stacks[&tid].frames;
            let names: Vec<&str> = frames.iter().filter_map(|f| f.symbol.as_deref()).collect();
            assert!(names.iter().any(|n| n.contains("waits_here")), "{names:#?}");
        });
    }

    /// A thread of this process that sits in the kernel has the registers that `/proc` shows for it. No thread of another process is among the
    /// threads of this one.
    #[test]
    #[ignore = "needs BPF iterators: cargo xtask test runs it as root"]
    fn threads_that_wait() {
        with_a_thread_that_waits("threads_that_wait", |pid, tid, all| {
            let registers = all.get(&tid).expect("the thread that waits");
            let Position::InKernel { sp, ip } = position(pid, tid) else {
                panic!("it sits in the kernel: {:?}", position(pid, tid));
            };
            assert_eq!((registers.sp, registers.ip), (sp, ip));
            let others = nvcap_process::procfs::threads(pid).unwrap();
            assert!(
                all.keys()
                    .all(|tid| others.contains(tid) || position(pid, *tid) == Position::Hidden)
            );
        });
    }
}
