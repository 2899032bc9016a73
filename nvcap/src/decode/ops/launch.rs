//! Grid launches: from a QMD (carried inline, or at an address that the shadow knows) or from Fermi's registers to
//! what runs with which arguments, and whose launch it is. The rules are explained, with their evidence, in
//! docs/decoding.md.

use crate::decode::{
    event::{ConstantBank, Launch, LaunchHow, LaunchKind, QmdRelease},
    plan::Reg,
    qmd,
    shadow::{Shadow, Space},
    state::Sub,
    view::View,
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
    shadow.write(space, address, &bytes);
    of_qmd(
        sub,
        LaunchHow::InlineQmd,
        Some(address),
        &bytes,
        shadow,
        space,
    )
    .unwrap_or_else(|| unresolved(LaunchHow::InlineQmd, Some(address)))
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
    launch.kind = kind(&view, &launch);
    Some(launch)
}

/// Whose launch it is.
fn kind(view: &View, _launch: &Launch) -> LaunchKind {
    if view.null || view.grid.contains(&0) {
        return LaunchKind::Companion;
    }
    LaunchKind::User
}

/// Bytes of the program that were seen being written: the length of the write that began at its address, else what is
/// known from there on.
fn program_bytes(program: u64, shadow: &Shadow, space: Space) -> Option<u64> {
    if let Some(len) = shadow.extent(space, program) {
        return Some(u64::from(len));
    }
    match shadow.known(space, program, MAX_PROGRAM) {
        0 => None,
        known => Some(known as u64),
    }
}

/// The arguments: what was last written at their place in constant bank 0. Where that was one write of its own its
/// length is theirs; else they go on to the end of the write of the whole bank, or of the bank.
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
    let written = shadow.extent(space, at).map(|n| n as usize).or_else(|| {
        let whole = shadow.extent(space, bank)? as usize;
        whole.checked_sub(offset as usize).filter(|n| *n > 0)
    });
    let len = shadow.known(space, at, written.unwrap_or(room).min(room));
    if len == 0 {
        return None;
    }
    let mut args = vec![0; len];
    shadow.read(space, at, &mut args).then_some(args)
}

/// LAUNCH of Fermi: everything is in registers.
pub(in crate::decode) fn fermi(sub: &Sub, shadow: &Shadow, space: Space) -> Launch {
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
