//! Simulated hangs, as they look in memory: which entries are fetched, and which values the semaphores hold.
//!
//! A GPU runs the entries that its host fetches; here nothing runs, so a kernel that "does not end" is one whose release
//! never comes. Only [`Memory::map_files`] maps the semaphores that show it.

use nvcap_decode::decode::event::{ConstantBank, QmdRelease};
use nvcap_decode::wire::GpuVa;
use std::time::Duration;

use anyhow::{Context, Result};

use nvcap_decode::decode::encode::Pushbuffer;
use nvcap_decode::decode::view::View;

use crate::form::{self, acquire};
use crate::kernels;
use crate::layout::{Channel, EVENTS, Unit};
use crate::memory::Memory;
use crate::plan::Plan;
use crate::say::say;
use crate::store::Site;
use crate::stream::{Op, Piece, Work, semaphore};

/// Way to hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hang {
    /// A kernel that does not end, [`QUEUED`] launches behind it, a channel that waits for it and one that waits for that
    /// channel.
    Spin,
    /// A kernel that does not end and nothing behind it: everything is fetched.
    Lost,
    /// A wait for a semaphore that nobody releases.
    Wait,
    /// Two channels that wait for each other.
    Cycle,
    /// A fault: a kernel each on so many channels of compute that does not end, and the driver has stopped these channels with an error
    /// of this number.
    Fault {
        /// The number of the Xid.
        code: u32,
        /// Channels.
        channels: usize,
    },
    /// No hang: kernels of 50 ms one after the other, until the process is ended.
    Slow,
}

/// Launches behind the kernel that does not end.
pub const QUEUED: u64 = 5;
/// Grid of that kernel.
pub const GRID: [u32; 3] = [7, 5, 3];
/// Its block.
pub const BLOCK: [u32; 3] = [32, 4, 2];
/// Number of the function whose kernel faults first, of those that have names.
pub const FAULTING: u64 = 3;
/// Its program's address.
pub const PROGRAM: u64 = 0x7f4f_4f7a_0a00;
/// The semaphore that nobody releases.
pub const ORPHAN: u64 = EVENTS + 0xf00;
/// The payload that the wait needs.
pub const ORPHAN_PAYLOAD: u32 = 0x7777_0001;

/// The semaphore that kernel number `n` of a hang releases at its end, and its payload; before that it holds one less. As
/// in CUDA, the channel's own semaphore is released as soon as the launch is past the front end.
pub const fn end_of(n: u64) -> (u64, u32) {
    (EVENTS + 0xe00 + 8 * n, 6)
}

/// A kernel's launch, its constant bank and QMD written inline before it. It releases `end` at its end.
fn launch(pb: &mut Pushbuffer, number: u64, end: Option<(u64, u32)>) {
    launch_of(pb, number, (PROGRAM + 0x100 * number, 24), end);
}

/// The launch of a program with so many registers.
fn launch_of(pb: &mut Pushbuffer, number: u64, program: (u64, u32), end: Option<(u64, u32)>) {
    let qmd = 0x2_04f0_0000 + 0x800 * (number % 64);
    let constants = 0x7f4f_4e30_0000 + 0x1000 * (number % 64);
    let fields = View {
        version: (4, 0),
        grid: GRID,
        block: BLOCK,
        registers: program.1,
        shared_bytes: 1024,
        barriers: 1,
        program: GpuVa(program.0),
        constant_banks: vec![ConstantBank {
            index: 0,
            address: GpuVa(constants),
            size: 0x300,
        }],
        releases: end
            .iter()
            .map(|e| QmdRelease {
                address: GpuVa(e.0),
                payload: u64::from(e.1),
            })
            .collect(),
        ..View::default()
    };
    let mut bank = [0; form::ARGUMENTS as usize];
    form::kernel(pb, qmd, &fields, &mut bank, &number.to_le_bytes());
    form::send(pb, qmd);
}

/// Submits one entry, fetched if `fetched`. Returns the payload of its release and its ring position.
fn submit(
    memory: &Memory,
    channel: Channel,
    fetched: bool,
    words: impl FnOnce(&mut Pushbuffer, u32),
) -> (u32, u64) {
    let locked = memory.lock(channel);
    let mut cursor = locked.done().cursor;
    let position = cursor.position;
    let payload = (cursor.number + 1) as u32;
    let mut pb = Pushbuffer::new();
    words(&mut pb, payload);
    form::release(&mut pb, channel.unit(), semaphore(channel), payload);
    let work = Work {
        pieces: vec![Piece::Segment(pb.bytes())],
        ops: vec![Op::Release {
            address: semaphore(channel),
            payload,
        }],
    };
    let submission = cursor.place(channel, work);
    locked.write(&submission, cursor);
    if fetched {
        memory.fetch(channel, cursor.position);
    }
    drop(locked);
    memory.ring(channel, 1, Site::Plain);
    (payload, position)
}

/// Launches on `channels` channels of compute a kernel that does not end, and stops these channels as the driver does. With functions that
/// have names the kernels are those from [`FAULTING`] on.
fn fault(plan: &Plan, memory: &Memory, code: u32, channels: usize) -> Result<String> {
    let all = plan.channels.iter();
    let compute = all.filter(|c| c.gpu == 0 && c.unit() == Unit::Compute);
    let all: Vec<Channel> = compute.take(channels).copied().collect();
    anyhow::ensure!(all.len() == channels, "--fault needs more channels");
    let mut text = format!("faulted code={code} channels=");
    for (n, channel) in (0..).zip(&all) {
        let (end, ended) = end_of(n);
        memory.release(end, ended - 1);
        let number = FAULTING + n;
        let program = match plan.shape.kernels {
            true => (kernels::program(number), kernels::registers(number)),
            false => (PROGRAM + 0x100 * n, 24),
        };
        let words = |pb: &mut Pushbuffer, _| launch_of(pb, n, program, Some(end_of(n)));
        let (payload, _) = submit(memory, *channel, true, words);
        memory.release(semaphore(*channel), payload);
        text.push_str(&format!("{:#x},", channel.token()));
    }
    for channel in all {
        memory.fault(channel, code);
    }
    Ok(text)
}

/// Hangs; returns a description.
pub fn hang(plan: &Plan, memory: &Memory, kind: Hang) -> Result<String> {
    let of = |unit, n| {
        let mut all = plan
            .channels
            .iter()
            .filter(|c| c.gpu == 0 && c.unit() == unit);
        all.nth(n)
            .copied()
            .with_context(|| format!("--hang needs more channels of {unit:?}"))
    };
    let (a, b) = (of(Unit::Compute, 0)?, of(Unit::Compute, 1));
    let text = match kind {
        Hang::Fault { code, channels } => fault(plan, memory, code, channels)?,
        Hang::Spin | Hang::Lost => {
            let (end, ended) = end_of(0);
            for n in 0..=QUEUED {
                memory.release(end_of(n).0, ended - 1);
            }
            let (payload, position) =
                submit(memory, a, true, |pb, _| launch(pb, 0, Some(end_of(0))));
            memory.release(semaphore(a), payload);
            let mut text = format!(
                "hung channel={:#x} position={position} semaphore={end:#x} payload={ended}",
                a.token(),
            );
            if kind == Hang::Spin {
                let b = b?;
                // The first of them is fetched, and waits; each waits for the end of the one before.
                for n in 1..=QUEUED {
                    submit(memory, a, n == 1, |pb, _| {
                        acquire(pb, end_of(n - 1).0, ended);
                        launch(pb, n, Some(end_of(n)));
                    });
                }
                let (next, _) = submit(memory, b, true, |pb, _| acquire(pb, end, ended));
                let c = of(Unit::Copy, 0)?;
                submit(memory, c, false, |pb, _| acquire(pb, semaphore(b), next));
                text.push_str(&format!(" waits={:#x},{:#x}", b.token(), c.token()));
            }
            text
        }
        Hang::Wait => {
            let (_, position) = submit(memory, a, false, |pb, _| {
                acquire(pb, ORPHAN, ORPHAN_PAYLOAD)
            });
            format!(
                "hung channel={:#x} position={position} semaphore={ORPHAN:#x}",
                a.token()
            )
        }
        Hang::Cycle => {
            let b = b?;
            let next = |c: Channel| (memory.lock(c).done().cursor.number + 1) as u32;
            let (of_a, of_b) = (next(a), next(b));
            submit(memory, a, false, |pb, _| acquire(pb, semaphore(b), of_b));
            submit(memory, b, false, |pb, _| acquire(pb, semaphore(a), of_a));
            format!("hung channel={:#x} other={:#x}", a.token(), b.token())
        }
        Hang::Slow => {
            say(&format!("slow channel={:#x}", a.token()));
            loop {
                let (payload, _) = submit(memory, a, true, |pb, n| launch(pb, u64::from(n), None));
                std::thread::sleep(Duration::from_millis(50));
                memory.release(semaphore(a), payload);
            }
        }
    };
    Ok(text)
}
