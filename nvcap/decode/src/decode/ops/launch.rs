//! Grid launches: the program, its arguments, and whether the launch is the program's or the driver's. The input is a QMD (carried inline,
//! or at an address that the shadow knows) or Fermi's registers. docs/decoding.md has the rules and their evidence.

use crate::decode::{
    class_dispatch::Reg,
    classes::Family,
    event::{Launch, LaunchHow, LaunchKind, QmdFrom},
    qmd,
    shadow::{Shadow, Space},
    state::Sub,
    view::{Needs, View, plausible},
};
use crate::wire::GpuVa;
use crate::wire::words::u64_at;

use super::driver_kernels::{self, GraphKernel};

/// The most bytes of arguments that a kernel can have (32,764 since CUDA 12.1).
const MAX_ARGS: usize = 32 * 1024;
/// The longest program that is looked up in the shadow.
const MAX_PROGRAM: usize = 16 << 20;

/// Returns the offset of the arguments in constant bank 0. Before them is launch geometry, which the driver writes for the kernel's own
/// use. Hopper's offset is measured (captures/h200-mixed). The others are the offsets at which disassembled kernels of these generations
/// read their first parameter.
pub fn arguments_at(class: u32) -> u64 {
    match class {
        0xa0c0..=0xc1c0 => 0x140,
        0xc3c0..=0xc9c0 => 0x160,
        0xcbc0 => 0x210,
        0xcdc0.. => 0x380,
        _ => 0x20,
    }
}

/// Returns the offset of the kernel's own program in the driver's part of constant bank 0. It holds even if a profiler has put another
/// program into the QMD. Measured on Hopper with driver 580.
pub fn own_program_at(class: u32) -> Option<u64> {
    (class == 0xcbc0).then_some(0x118)
}

/// Returns a launch of which nothing is known.
pub(in crate::decode) fn unresolved(how: LaunchHow, address: Option<u64>) -> Launch {
    Launch {
        kind: LaunchKind::Unresolved,
        how,
        pcas: None,
        replay: None,
        place: None,
        qmd: address.map(GpuVa),
        qmd_version: None,
        qmd_from: None,
        grid: None,
        block: None,
        cluster: None,
        cooperative: false,
        registers: None,
        shared_bytes: None,
        shared_reserved_bytes: None,
        local_bytes: None,
        barriers: None,
        program: None,
        program_bytes: None,
        stand_in: None,
        kernel: None,
        moves: None,
        args: None,
        arg_memory: Vec::new(),
        constant_banks: Vec::new(),
        releases: Vec::new(),
        dependent: None,
    }
}

/// The context for reading a QMD: the compute class, and its registers that concern programs.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::decode) struct Reader {
    /// The compute class.
    pub class: u32,
    /// Value of SET_PROGRAM_REGION, to which program addresses of old layouts are relative.
    region: u64,
}

impl Reader {
    /// Takes the context from the class and registers of a subchannel.
    pub(in crate::decode) fn of(sub: &Sub) -> Self {
        Self {
            class: sub.plan.class,
            region: sub.address(Reg::ProgramRegionA, Reg::ProgramRegionB).0,
        }
    }

    /// Returns the view of the QMD at an address, if the shadow knows it.
    pub(in crate::decode) fn view(
        self,
        address: u64,
        shadow: &mut Shadow,
        space: Space,
    ) -> Option<View> {
        read(address, shadow, space, |qmd| View::of(self.class, qmd))
    }

    /// Reads the start conditions of the QMD at an address, if the shadow knows it.
    pub(in crate::decode) fn needs(
        self,
        address: u64,
        shadow: &mut Shadow,
        space: Space,
    ) -> Option<Needs> {
        read(address, shadow, space, |qmd| Needs::of(self.class, qmd))
    }

    /// Returns a launch of the QMD at an address.
    pub(in crate::decode) fn launch(
        self,
        how: LaunchHow,
        address: u64,
        shadow: &mut Shadow,
        space: Space,
    ) -> Launch {
        match self.view(address, shadow, space) {
            Some(view) => self.launch_of(how, address, view, shadow, space),
            None => unresolved(how, Some(address)),
        }
    }

    /// Returns a launch of a QMD at an address, whose view has already been read.
    pub(in crate::decode) fn launch_of(
        self,
        how: LaunchHow,
        address: u64,
        view: View,
        shadow: &mut Shadow,
        space: Space,
    ) -> Launch {
        of_view(self, how, Some(address), view, shadow, space)
    }

    /// Returns the arguments of the launch that a QMD describes, as far as their writes were seen.
    pub(in crate::decode) fn arguments(
        self,
        view: &View,
        shadow: &mut Shadow,
        space: Space,
    ) -> Option<Vec<u8>> {
        let bank = view.constant_banks.iter().find(|b| b.index == 0)?;
        arguments(self.class, bank.address.0, bank.size, shadow, space)
    }
}

impl Reader {
    /// Returns the kernel's own program, if `named` is a stand-in for it.
    fn own_program(
        self,
        view: &View,
        named: u64,
        shadow: &mut Shadow,
        space: Space,
    ) -> Option<u64> {
        let fetched = view.prefetch.0;
        if fetched == 0 || fetched == named & !0xff {
            return None;
        }
        let bank = view.constant_banks.iter().find(|b| b.index == 0)?;
        let mut constants = vec![0; arguments_at(self.class) as usize];
        let known = shadow.read(space, bank.address, &mut constants);
        let words = constants.chunks_exact(8).filter_map(|w| u64_at(w, 0));
        known.then_some(words)?.find(|w| w & !0xff == fetched)
    }
}

/// Applies `of` to the QMD at an address, of the long or the short size, if the shadow knows it.
fn read<T>(
    address: u64,
    shadow: &mut Shadow,
    space: Space,
    of: impl Fn(&[u8]) -> Option<T>,
) -> Option<T> {
    let mut bytes = [0u8; qmd::MAX_BYTES];
    [qmd::MAX_BYTES, 256].into_iter().find_map(|len| {
        let bytes = bytes.get_mut(..len)?;
        let known = shadow.read(space, GpuVa(address), bytes);
        known.then(|| of(bytes)).flatten()
    })
}

/// Returns a launch whose QMD came inline.
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

/// Returns a launch by a QMD that the pushbuffer carries. Of the 384 bytes of a QMD since Hopper, sometimes only 256 are sent: the others
/// are for the hardware.
fn carried(
    sub: &Sub,
    how: LaunchHow,
    address: u64,
    mut bytes: Vec<u8>,
    shadow: &mut Shadow,
    space: Space,
) -> Option<Launch> {
    shadow.write(space, GpuVa(address), &bytes);
    if qmd::version_of(sub.plan.class, &bytes).is_none() {
        bytes.resize(qmd::MAX_BYTES, 0);
    }
    let view = View::of(sub.plan.class, &bytes)?;
    Some(of_view(
        Reader::of(sub),
        how,
        Some(address),
        view,
        shadow,
        space,
    ))
}

/// The most words of a macro call that are searched for a launch.
const MAX_MACRO: usize = 160;

/// Takes one more word for a macro. Returns a launch if the words end with a QMD preceded by its address. Graphics drivers have such
/// macros. The macro itself is not run, so the form alone decides.
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
    if view.program.0 == 0 || view.grid.contains(&0) {
        return None;
    }
    sub.macro_words.clear();
    carried(sub, LaunchHow::Macro, address, bytes, shadow, space)
}

fn of_view(
    reader: Reader,
    how: LaunchHow,
    address: Option<u64>,
    view: View,
    shadow: &mut Shadow,
    space: Space,
) -> Launch {
    let region = if view.program_relative {
        reader.region
    } else {
        0
    };
    let named = region.wrapping_add(view.program.0);
    // Under CUPTI the program of every QMD is one of CUPTI's. The kernel's own program is prefetched, and its address is in the driver's
    // part of the constants, where CUPTI's program finds it.
    let own = reader.own_program(&view, named, shadow, space);
    let (program, stand_in) = match own {
        Some(own) => (own, Some(GpuVa(named))),
        None => (named, None),
    };
    let args = reader.arguments(&view, shadow, space);
    let known = args.as_deref().unwrap_or(&[]);
    let (mut kind, moves) = driver_kernels::kind(reader.class, &view, known);
    if let Some(qmd) = address
        && GraphKernel::of(qmd, &view, known, shadow, space).is_some()
    {
        kind = LaunchKind::DriverGraph;
    }
    let (shared, reserved) = driver_kernels::split_shared(reader.class, view.shared_bytes);
    Launch {
        kind,
        qmd_version: Some(view.version),
        qmd_from: Some(QmdFrom::Stream),
        grid: Some(view.grid),
        block: Some(view.block),
        cluster: view.cluster,
        cooperative: view.cooperative,
        registers: Some(view.registers),
        shared_bytes: Some(shared),
        shared_reserved_bytes: Some(reserved),
        local_bytes: Some(view.local_bytes),
        barriers: Some(view.barriers),
        program: Some(GpuVa(program)),
        stand_in,
        program_bytes: program_bytes(program, shadow, space),
        moves,
        args,
        dependent: view.dependents.first().map(|d| d.address),
        constant_banks: view.constant_banks,
        releases: view.releases,
        ..unresolved(how, address)
    }
}

/// Low half of a NOP of Volta and later.
const NOP: u64 = 0x7918;
/// Low 12 bits of BRA.
const BRA: u64 = 0x947;

/// Returns the length of the program, bytes, if its upload was seen. A program uploaded by itself has the upload's length. Otherwise it
/// ends at a branch to itself with padding behind it.
pub(in crate::decode) fn program_bytes(
    program: u64,
    shadow: &mut Shadow,
    space: Space,
) -> Option<u64> {
    if let Some(upload) = shadow.extent(space, GpuVa(program)) {
        return Some(u64::from(upload.len));
    }
    let known = shadow.known(space, GpuVa(program), MAX_PROGRAM) & !15;
    let mut line = [0u8; 128];
    let mut last = 0;
    let mut padded = false;
    for at in (0..known).step_by(line.len()) {
        let take = line.len().min(known - at);
        let Some(line) = line.get_mut(..take) else {
            break;
        };
        if !shadow.read(space, GpuVa(program.wrapping_add(at as u64)), line) {
            break;
        }
        for (i, instruction) in line.chunks_exact(16).enumerate() {
            let low = u64_at(instruction, 0).unwrap_or(0);
            if padded && low != NOP {
                return Some((at + i * 16) as u64);
            }
            padded = low == NOP && (padded || last & 0xfff == BRA);
            last = low;
        }
    }
    (known > 0).then_some(known as u64)
}

/// Returns the arguments: the last write to their place in constant bank 0. If the launch geometry before them was written later, this
/// kernel has no arguments. If the arguments were a write of their own, they have its length; otherwise they extend to the end of the write
/// of the whole bank, or of the bank.
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
    let geometry = shadow.extent(space, GpuVa(bank));
    let own = shadow.extent(space, GpuVa(at));
    let written = match (own, geometry) {
        (Some(own), Some(geometry)) if own.order > geometry.order => own.len as usize,
        (Some(own), None) => own.len as usize,
        (_, Some(geometry)) => (geometry.len as usize).saturating_sub(offset as usize),
        (None, None) => room,
    };
    let len = shadow.known(space, GpuVa(at), written.min(room));
    if len == 0 {
        return None;
    }
    let mut args = vec![0; len];
    shadow.read(space, GpuVa(at), &mut args).then_some(args)
}

/// Returns a launch by Fermi's LAUNCH, whose parameters are all in registers.
pub(in crate::decode) fn fermi(sub: &Sub, shadow: &mut Shadow, space: Space) -> Launch {
    let raster = sub.get(Reg::CtaRasterA);
    let threads = sub.get(Reg::CtaThreadA);
    let region = sub.address(Reg::ProgramRegionA, Reg::ProgramRegionB).0;
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
        shared_reserved_bytes: Some(0),
        local_bytes: Some(sub.get(Reg::LocalSize) & 0xff_ffff),
        barriers: Some(sub.get(Reg::CtaBarriers) & 0xff),
        program: Some(GpuVa(program)),
        program_bytes: program_bytes(program, shadow, space),
        ..unresolved(LaunchHow::Launch, None)
    }
}
