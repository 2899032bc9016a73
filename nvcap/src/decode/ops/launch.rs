//! Grid launches: from a QMD (carried inline, or at an address that the shadow knows) or from Fermi's registers to
//! what runs with which arguments, and whose launch it is. The rules are explained, with their evidence, in
//! docs/decoding.md.

use crate::decode::{
    classes::Family,
    event::{ConstantBank, Launch, LaunchHow, LaunchKind, QmdRelease},
    plan::Reg,
    qmd,
    shadow::{Shadow, Space},
    state::Sub,
    view::{View, plausible},
};

/// Most bytes of arguments a kernel can have (32,764 since CUDA 12.1).
const MAX_ARGS: usize = 32 * 1024;
/// Longest program that the shadow is asked for.
const MAX_PROGRAM: usize = 16 << 20;

/// Offset of the arguments in constant bank 0. What lies before them is launch geometry, written by the driver for the
/// kernel's own use. Hopper's is measured (captures/h200-mixed); the others are what disassembled kernels of these
/// generations read their first parameter from.
pub(in crate::decode) fn arguments_at(class: u32) -> u64 {
    match class {
        0xa0c0..=0xc1c0 => 0x140,
        0xc3c0..=0xc9c0 => 0x160,
        0xcbc0 => 0x210,
        0xcdc0.. => 0x380,
        _ => 0x20,
    }
}

/// A launch with nothing known of it.
fn unresolved(how: LaunchHow, address: Option<u64>) -> Launch {
    Launch {
        kind: LaunchKind::Unresolved,
        how,
        qmd: address,
        qmd_version: None,
        grid: None,
        block: None,
        cluster: None,
        registers: None,
        shared_bytes: None,
        local_bytes: None,
        barriers: None,
        program: None,
        program_bytes: None,
        args: None,
        constant_banks: Vec::new(),
        releases: Vec::new(),
        dependent: None,
    }
}

/// A launch by the address of a QMD: resolved if the shadow knows the QMD.
pub(in crate::decode) fn pcas(sub: &Sub, shadow: &mut Shadow, space: Space) -> Launch {
    let address = u64::from(sub.get(Reg::PcasA)) << 8;
    let mut bytes = [0u8; qmd::MAX_BYTES];
    for len in [qmd::MAX_BYTES, 256] {
        let Some(bytes) = bytes.get_mut(..len) else {
            continue;
        };
        if shadow.read(space, address, bytes)
            && let Some(launch) = of_qmd(sub, LaunchHow::Pcas, Some(address), bytes, shadow, space)
        {
            return launch;
        }
    }
    unresolved(LaunchHow::Pcas, Some(address))
}

/// A launch whose QMD came inline.
pub(in crate::decode) fn inline(
    sub: &Sub,
    shadow: &mut Shadow,
    space: Space,
    words: u16,
) -> Launch {
    let upper = u64::from(sub.get(Reg::QmdAddressA) & 0x1ff) << 32;
    let address = (upper | u64::from(sub.get(Reg::QmdAddressB))) << 8;
    let mut bytes = Vec::with_capacity(qmd::MAX_BYTES);
    for i in 0..words {
        bytes.extend(sub.at(sub.plan.qmd_data.wrapping_add(i * 4)).to_le_bytes());
    }
    let how = LaunchHow::InlineQmd;
    carried(sub, how, address, bytes, shadow, space)
        .unwrap_or_else(|| unresolved(how, Some(address)))
}

/// A launch by a QMD that the pushbuffer carries. Of the 384 bytes that a QMD has since Hopper, 256 may be sent: the
/// others are for the hardware.
fn carried(
    sub: &Sub,
    how: LaunchHow,
    address: u64,
    mut bytes: Vec<u8>,
    shadow: &mut Shadow,
    space: Space,
) -> Option<Launch> {
    shadow.write(space, address, &bytes);
    if qmd::version_of(sub.plan.class, &bytes).is_none() {
        bytes.resize(qmd::MAX_BYTES, 0);
    }
    of_qmd(sub, how, Some(address), &bytes, shadow, space)
}

/// Most words of a macro call that a launch is looked for in.
const MAX_MACRO: usize = 160;

/// A further word for a macro: a launch, where the words end with a QMD and its address before it. Drivers of graphics
/// have such macros; the macro itself is not run, so the form must say it all.
pub(in crate::decode) fn by_macro(
    sub: &mut Sub,
    data: u32,
    shadow: &mut Shadow,
    space: Space,
) -> Option<Launch> {
    let class = sub.plan.class;
    if sub.plan.family != Family::Compute || sub.macro_words.len() >= MAX_MACRO {
        return None;
    }
    sub.macro_words.push(data);
    let late = qmd::versions_of(class).first().is_some_and(|v| v.0 >= 5);
    let words = if late { 96 } else { 64 };
    let first = sub.macro_words.len().checked_sub(words)?;
    let address = u64::from(*sub.macro_words.get(first.checked_sub(1)?)?) << 8;
    let sent = sub.macro_words.get(first..)?;
    let bytes: Vec<u8> = sent.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut whole = bytes.clone();
    if qmd::version_of(class, &whole).is_none() {
        whole.resize(qmd::MAX_BYTES, 0);
    }
    if address == 0 || !plausible(class, &whole) {
        return None;
    }
    let view = View::of(class, &whole)?;
    if view.program == 0 || view.grid.contains(&0) {
        return None;
    }
    sub.macro_words.clear();
    carried(sub, LaunchHow::Macro, address, bytes, shadow, space)
}

fn of_qmd(
    sub: &Sub,
    how: LaunchHow,
    address: Option<u64>,
    bytes: &[u8],
    shadow: &mut Shadow,
    space: Space,
) -> Option<Launch> {
    let view = View::of(sub.plan.class, bytes)?;
    let region = if view.program_relative {
        sub.address(Reg::ProgramRegionA, Reg::ProgramRegionB)
    } else {
        0
    };
    let program = region.wrapping_add(view.program);
    let bank0 = view.constant_banks.iter().find(|b| b.0 == 0);
    let args = bank0.and_then(|&(_, at, size)| arguments(sub.plan.class, at, size, shadow, space));
    let mut launch = Launch {
        kind: LaunchKind::User,
        qmd_version: Some(view.version),
        grid: Some(view.grid),
        block: Some(view.block),
        cluster: view.cluster,
        registers: Some(view.registers),
        shared_bytes: Some(view.shared_bytes),
        local_bytes: Some(view.local_bytes),
        barriers: Some(view.barriers),
        program: Some(program),
        program_bytes: program_bytes(program, shadow, space),
        args,
        constant_banks: view
            .constant_banks
            .iter()
            .map(|&(index, address, size)| ConstantBank {
                index,
                address,
                size,
            })
            .collect(),
        releases: view
            .releases
            .iter()
            .map(|&(address, payload)| QmdRelease { address, payload })
            .collect(),
        dependent: view.dependents.first().copied(),
        ..unresolved(how, address)
    };
    launch.kind = kind(sub.plan.class, &view, launch.args.as_deref().unwrap_or(&[]));
    Some(launch)
}

/// Whose launch it is.
///
/// The driver's own kernels are told by two things together: their arguments, block and grid fit exactly, and they
/// have no shared memory at all, where every kernel that nvcc compiles for Ampere and later has at least the 1 KiB
/// that is reserved for the system. On older classes nothing was measured, so nothing is claimed.
fn kind(class: u32, view: &View, args: &[u8]) -> LaunchKind {
    if view.null || view.grid.contains(&0) {
        return LaunchKind::Companion;
    }
    if class < 0xc6c0 || view.shared_bytes != 0 {
        return LaunchKind::User;
    }
    driver_kernel(view.grid, view.block, args).unwrap_or(LaunchKind::User)
}

/// The shapes of libcuda's memset and copy kernels (CUDA 13.0, captures/h200-mixed).
fn driver_kernel(grid: [u32; 3], block: [u32; 3], args: &[u8]) -> Option<LaunchKind> {
    let word = |i: usize| -> u64 {
        let bytes = args.get(i * 8..).and_then(|b| b.first_chunk::<8>());
        bytes.map_or(0, |b| u64::from_le_bytes(*b))
    };
    let blocks = |work: u64, each: u64| u64::from(grid[0]) == work.div_ceil(each);
    let address = |a: u64| (0x1_0000..1 << 57).contains(&a);
    match args.len() {
        // Memset: address, pattern (32 bits), elements, pitch; 1D: 512 threads of 4 elements, 2D: a row a block.
        32 if address(word(0)) && word(1) >> 32 == 0 && word(2) > 0 => {
            let fitting = u64::from(grid[0]) == (word(2) / 2048).max(1);
            let one = word(3) == 0 && block == [512, 1, 1] && grid[1..] == [1, 1] && fitting;
            let two = word(3) != 0
                && block[1..] == [1, 1]
                && block[0] <= 512
                && grid[2] == 1
                && grid[1] > 1;
            (one || two).then_some(LaunchKind::DriverMemset)
        }
        // Copy: destination, source, elements; a thread an element.
        24 if address(word(0)) && address(word(1)) && word(2) > 0 => {
            let fits = block == [256, 1, 1] && grid[1..] == [1, 1] && blocks(word(2), 256);
            fits.then_some(LaunchKind::DriverCopy)
        }
        // Copy of whole 4 KiB: destination and source.
        16 if address(word(0)) && address(word(1)) => {
            let fits = block == [256, 1, 1] && grid[1..] == [1, 1] && grid[0] >= 256;
            fits.then_some(LaunchKind::DriverCopy)
        }
        _ => None,
    }
}

/// A NOP of Volta and later, its low half.
const NOP: u64 = 0x7918;
/// Low 12 bits of BRA.
const BRA: u64 = 0x947;

/// Bytes of the program that were seen being written: the upload's length where it was uploaded by itself, else up to
/// its end, which is a branch to itself with padding behind it.
fn program_bytes(program: u64, shadow: &mut Shadow, space: Space) -> Option<u64> {
    if let Some(upload) = shadow.extent(space, program) {
        return Some(u64::from(upload.len));
    }
    let known = shadow.known(space, program, MAX_PROGRAM) & !15;
    let mut line = [0u8; 128];
    let mut last = 0;
    let mut padded = false;
    for at in (0..known).step_by(line.len()) {
        let take = line.len().min(known - at);
        let Some(line) = line.get_mut(..take) else {
            break;
        };
        if !shadow.read(space, program.wrapping_add(at as u64), line) {
            break;
        }
        for (i, instruction) in line.chunks_exact(16).enumerate() {
            let low = instruction
                .first_chunk::<8>()
                .map_or(0, |b| u64::from_le_bytes(*b));
            if padded && low != NOP {
                return Some((at + i * 16) as u64);
            }
            padded = low == NOP && (padded || last & 0xfff == BRA);
            last = low;
        }
    }
    (known > 0).then_some(known as u64)
}

/// The arguments: what was last written at their place in constant bank 0, unless the launch geometry before them was
/// written later (then this kernel has none). Where that was one write of its own its length is theirs; else they go on
/// to the end of the write of the whole bank, or of the bank.
fn arguments(
    class: u32,
    bank: u64,
    size: u32,
    shadow: &mut Shadow,
    space: Space,
) -> Option<Vec<u8>> {
    let offset = arguments_at(class);
    let room = u64::from(size).saturating_sub(offset).min(MAX_ARGS as u64) as usize;
    let at = bank.checked_add(offset)?;
    let geometry = shadow.extent(space, bank);
    let own = shadow.extent(space, at);
    let written = match (own, geometry) {
        (Some(own), Some(geometry)) if own.order > geometry.order => own.len as usize,
        (Some(own), None) => own.len as usize,
        (_, Some(geometry)) => (geometry.len as usize).saturating_sub(offset as usize),
        (None, None) => room,
    };
    let len = shadow.known(space, at, written.min(room));
    if len == 0 {
        return None;
    }
    let mut args = vec![0; len];
    shadow.read(space, at, &mut args).then_some(args)
}

/// LAUNCH of Fermi: everything is in registers.
pub(in crate::decode) fn fermi(sub: &Sub, shadow: &mut Shadow, space: Space) -> Launch {
    let raster = sub.get(Reg::CtaRasterA);
    let threads = sub.get(Reg::CtaThreadA);
    let region = sub.address(Reg::ProgramRegionA, Reg::ProgramRegionB);
    let program = region.wrapping_add(u64::from(sub.get(Reg::CtaProgram)));
    Launch {
        kind: LaunchKind::User,
        grid: Some([
            raster & 0xffff,
            raster >> 16,
            sub.get(Reg::CtaRasterB) & 0xffff,
        ]),
        block: Some([
            threads & 0xffff,
            threads >> 16,
            sub.get(Reg::CtaThreadB) & 0xffff,
        ]),
        registers: Some(sub.get(Reg::CtaRegisters) & 0xff),
        shared_bytes: Some(sub.get(Reg::SharedSize) & 0x3_ffff),
        local_bytes: Some(sub.get(Reg::LocalSize) & 0xff_ffff),
        barriers: Some(sub.get(Reg::CtaBarriers) & 0xff),
        program: Some(program),
        program_bytes: program_bytes(program, shadow, space),
        ..unresolved(LaunchHow::Launch, None)
    }
}
