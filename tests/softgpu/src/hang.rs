//! Hangs made by hand, as they look in memory: what is fetched, what is not, and what the semaphores hold.
//!
//! A GPU runs what its host fetches; here nothing runs, so a kernel "that does not end" is one whose release never
//! comes. Only with [`Memory::map_files`] are there semaphores to see it by.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nvcap::decode::encode::Pushbuffer;
use nvcap::decode::stream::Step;
use nvcap::decode::view::View;

use crate::layout::{Channel, EVENTS, Unit};
use crate::memory::Memory;
use crate::plan::Plan;
use crate::store::Site;
use crate::stream::{
    COMPUTE, COMPUTE_CLASS, COPY, COPY_CLASS, Op, Piece, Work, inline, put, qmd, semaphore,
};

/// How to hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hang {
    /// A kernel that does not end, [`QUEUED`] launches behind it, a channel that waits for it and one that waits for
    /// that.
    Spin,
    /// A kernel that does not end and nothing behind it: all is fetched.
    Lost,
    /// A wait for a semaphore that nobody releases.
    Wait,
    /// Two channels that wait for each other.
    Cycle,
    /// No hang: kernels of 50 ms one after the other, until the process is ended or 20 s have passed.
    Slow,
}

/// Launches behind the kernel that does not end.
pub const QUEUED: u64 = 5;
/// Grid of that kernel.
pub const GRID: [u32; 3] = [7, 5, 3];
/// Its block.
pub const BLOCK: [u32; 3] = [32, 4, 2];
/// Its program's address.
pub const PROGRAM: u64 = 0x7f4f_4f7a_0a00;
/// The semaphore that nobody releases.
pub const ORPHAN: u64 = EVENTS + 0xf00;
/// What is waited for there.
pub const ORPHAN_PAYLOAD: u32 = 0x7777_0001;

/// A kernel's launch, its constant bank and QMD written inline before it.
fn launch(pb: &mut Pushbuffer, number: u64) {
    let at = 0x2_04f0_0000 + 0x800 * (number % 64);
    let constants = 0x7f4f_4e30_0000 + 0x1000 * (number % 64);
    let fields = View {
        version: (4, 0),
        grid: GRID,
        block: BLOCK,
        registers: 24,
        shared_bytes: 1024,
        barriers: 1,
        program: PROGRAM + 0x100 * number,
        constant_banks: vec![(0, constants, 0x300)],
        ..View::default()
    };
    let mut bank = vec![0; 0x210];
    for (i, value) in fields.block.iter().chain(&fields.grid).enumerate() {
        bank[4 * i..4 * i + 4].copy_from_slice(&value.to_le_bytes());
    }
    inline(pb, constants, &bank);
    inline(pb, constants + 0x210, &number.to_le_bytes());
    inline(pb, at, qmd(&fields).bytes());
    put(
        pb,
        COMPUTE,
        COMPUTE_CLASS,
        "SEND_PCAS_A",
        &[(at >> 8) as u32],
    );
    put(pb, COMPUTE, COMPUTE_CLASS, "SEND_SIGNALING_PCAS2_B", &[0xa]);
}

fn acquire(pb: &mut Pushbuffer, address: u64, payload: u32) {
    // SEM_ADDR_LO.. SEM_EXECUTE: ACQ_STRICT_GEQ, ACQUIRE_SWITCH_TSG.
    let words = [address as u32, (address >> 32) as u32, payload, 0, 0x1002];
    pb.method(Step::Increment, 0, 0x005c, &words);
}

/// The channel's own release, by its class.
fn release(pb: &mut Pushbuffer, channel: Channel, payload: u32) {
    let address = semaphore(channel);
    let words = [(address >> 32) as u32, address as u32, payload];
    match channel.unit() {
        Unit::Compute => {
            let words = [words[0], words[1], words[2], 0];
            put(pb, COMPUTE, COMPUTE_CLASS, "SET_REPORT_SEMAPHORE_A", &words);
        }
        Unit::Copy => {
            put(pb, COPY, COPY_CLASS, "SET_SEMAPHORE_A", &words);
            put(pb, COPY, COPY_CLASS, "LAUNCH_DMA", &[0x14]);
        }
    }
}

/// Submits one entry; it is fetched if `fetched`. Returns the payload of its release and its ring position.
fn submit(
    memory: &Memory,
    channel: Channel,
    fetched: bool,
    form: impl FnOnce(&mut Pushbuffer, u32),
) -> (u32, u64) {
    let locked = memory.lock(channel);
    let mut cursor = locked.done().cursor;
    let position = cursor.position;
    let payload = (cursor.number + 1) as u32;
    let mut pb = Pushbuffer::new();
    form(&mut pb, payload);
    release(&mut pb, channel, payload);
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

/// Hangs; what is returned says how.
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
    let (a, b) = (of(Unit::Compute, 0)?, of(Unit::Compute, 1)?);
    let text = match kind {
        Hang::Spin | Hang::Lost => {
            let (payload, position) = submit(memory, a, true, |pb, _| launch(pb, 0));
            let mut text = format!(
                "hung channel={:#x} position={position} semaphore={:#x} payload={payload}",
                a.token(),
                semaphore(a)
            );
            if kind == Hang::Spin {
                for number in 1..=QUEUED {
                    submit(memory, a, false, |pb, _| launch(pb, number));
                }
                let (next, _) =
                    submit(memory, b, false, |pb, _| acquire(pb, semaphore(a), payload));
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
            let next = |c: Channel| (memory.lock(c).done().cursor.number + 1) as u32;
            let (of_a, of_b) = (next(a), next(b));
            submit(memory, a, false, |pb, _| acquire(pb, semaphore(b), of_b));
            submit(memory, b, false, |pb, _| acquire(pb, semaphore(a), of_a));
            format!("hung channel={:#x} other={:#x}", a.token(), b.token())
        }
        Hang::Slow => {
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(20) {
                let (payload, _) = submit(memory, a, true, |pb, n| launch(pb, u64::from(n)));
                std::thread::sleep(Duration::from_millis(50));
                memory.release(semaphore(a), payload);
            }
            format!("slow channel={:#x}", a.token())
        }
    };
    Ok(text)
}
