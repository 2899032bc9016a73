//! Copy-engine transfers: LAUNCH_DMA of the copy classes, and of Fermi's memory to memory format.

use crate::decode::{
    class_dispatch::{Bits, ClassDispatch, Reg},
    classes::Family,
    event::{
        Copy, CopyEngine, CopyMode, Direction, Engine, Evidence, Operation, Place, Reduction,
        Semaphore, SemaphoreAction, SemaphoreUnit, SemaphoreWrite,
    },
    state::Sub,
};

/// The reductions of a copy class, by value.
const REDUCTIONS: [Reduction; 16] = [
    Reduction::IMin,
    Reduction::IMax,
    Reduction::IXor,
    Reduction::IAnd,
    Reduction::IOr,
    Reduction::IAdd,
    Reduction::Inc,
    Reduction::Dec,
    Reduction::Invalid,
    Reduction::Invalid,
    Reduction::FAdd,
    Reduction::FMin,
    Reduction::FMax,
    Reduction::Invalid,
    Reduction::Invalid,
    Reduction::Invalid,
];

/// Returns the operation that LAUNCH_DMA with `data` triggers: a transfer, a semaphore operation of its own, or one that moves no bytes.
pub(in crate::decode) fn launch(sub: &Sub, data: u32, engine: Engine) -> Operation {
    let plan = &*sub.plan;
    let m2mf = plan.family == Family::MemoryToMemory;
    let semaphore = if m2mf {
        m2mf_semaphore(sub, data)
    } else {
        semaphore(sub, data)
    };
    let transfers = m2mf || plan.bits(Bits::DmaTransfer, data) != 0;
    if !transfers && let Some(write) = semaphore {
        let reduces = plan.bits(Bits::DmaReductionEnable, data) != 0;
        return Operation::Semaphore(Semaphore {
            unit: SemaphoreUnit::Copy,
            action: if reduces {
                SemaphoreAction::Reduction
            } else {
                SemaphoreAction::Release
            },
            address: write.address,
            payload: write.payload,
            wide: plan.bits(Bits::DmaSemaphorePayloadSize, data) != 0,
            timestamp: write.timestamp,
            reduction: reduces.then(|| reduction(plan, data)),
            wait_for_idle: false,
            execute: data,
        });
    }
    Operation::Copy(Box::new(transfer(sub, data, engine, transfers, semaphore)))
}

fn reduction(plan: &ClassDispatch, data: u32) -> Reduction {
    REDUCTIONS
        .get(plan.bits(Bits::DmaReduction, data) as usize)
        .copied()
        .unwrap_or(Reduction::Invalid)
}

fn semaphore(sub: &Sub, data: u32) -> Option<SemaphoreWrite> {
    let plan = &*sub.plan;
    let kind = plan.bits(Bits::DmaSemaphoreType, data);
    let wide = plan.bits(Bits::DmaSemaphorePayloadSize, data) != 0;
    let upper = if wide {
        sub.get(Reg::DmaPayloadUpper)
    } else {
        0
    };
    (kind != 0).then(|| SemaphoreWrite {
        address: sub.address(Reg::DmaSemaphoreUpper, Reg::DmaSemaphore),
        payload: u64::from(sub.get(Reg::DmaPayload)) | u64::from(upper) << 32,
        timestamp: kind == 2,
    })
}

fn m2mf_semaphore(sub: &Sub, data: u32) -> Option<SemaphoreWrite> {
    (sub.plan.bits(Bits::DmaCompletion, data) == 2).then(|| SemaphoreWrite {
        address: sub.address(Reg::DmaSemaphoreUpper, Reg::DmaSemaphore),
        payload: u64::from(sub.get(Reg::DmaPayload)),
        timestamp: sub.plan.bits(Bits::DmaStructSize, data) == 0,
    })
}

fn transfer(
    sub: &Sub,
    data: u32,
    engine: Engine,
    transfers: bool,
    semaphore: Option<SemaphoreWrite>,
) -> Copy {
    let plan = &*sub.plan;
    let multi = plan.family == Family::MemoryToMemory || plan.bits(Bits::DmaMultiLine, data) != 0;
    let lines = if multi { sub.get(Reg::LineCount) } else { 1 };
    let remap = (plan.bits(Bits::DmaRemap, data) != 0).then(|| Remap::of(sub));
    // With remapping, LINE_LENGTH_IN counts elements.
    let element = remap.as_ref().map_or(1, |r| r.dst_bytes);
    let line_bytes = sub.get(Reg::LineLength).saturating_mul(element);
    let pitch_of = |bits| plan.bits(bits, data) != 0;
    let (src_pitch, dst_pitch) = (pitch_of(Bits::DmaSrcPitch), pitch_of(Bits::DmaDstPitch));
    let fill = remap.as_ref().is_some_and(|r| r.constant);
    let mode = match () {
        () if !transfers => CopyMode::None,
        () if plan.bits(Bits::DmaScrub, data) != 0 => CopyMode::Scrub,
        () if plan.bits(Bits::DmaCompress, data) != 0 => match sub.get(Reg::Compression) & 1 {
            0 => CopyMode::Decompress,
            _ => CopyMode::Compress,
        },
        () if plan.bits(Bits::DmaCopyType, data) == 1 => match sub.get(Reg::SecureCopy) & 1 {
            0 => CopyMode::Encrypt,
            _ => CopyMode::Decrypt,
        },
        () if fill && dst_pitch => CopyMode::Fill,
        () if fill => CopyMode::FillBlockLinear,
        () if !src_pitch && !dst_pitch => CopyMode::BlockLinear,
        () if !src_pitch => CopyMode::BlockLinearToPitch,
        () if !dst_pitch => CopyMode::PitchToBlockLinear,
        () if remap.is_some() => CopyMode::Remap,
        () if multi => CopyMode::Pitch,
        () => CopyMode::Linear,
    };
    let no_source = fill || matches!(mode, CopyMode::Scrub | CopyMode::None);
    Copy {
        bytes: if transfers {
            u64::from(line_bytes) * u64::from(lines)
        } else {
            0
        },
        src: (!no_source).then(|| sub.address(Reg::InUpper, Reg::In)),
        dst: transfers.then(|| sub.address(Reg::OutUpper, Reg::Out)),
        physical: (
            plan.bits(Bits::DmaSrcPhysical, data) != 0,
            plan.bits(Bits::DmaDstPhysical, data) != 0,
        ),
        mode,
        engine: engine_of(engine),
        direction: None,
        direction_from: None,
        line_bytes,
        lines,
        pitch: multi.then(|| (sub.get(Reg::PitchIn) as i32, sub.get(Reg::PitchOut) as i32)),
        pattern: remap.filter(|_| fill).map(|r| r.pattern),
        semaphore,
        launch_dma: data,
        src_memory: None,
        dst_memory: None,
    }
}

fn engine_of(engine: Engine) -> CopyEngine {
    match engine {
        Engine::Copy(number) => CopyEngine::Copy(number),
        Engine::Graphics => CopyEngine::Graphics,
        _ => CopyEngine::Copy(None),
    }
}

/// The meaning of SET_REMAP_COMPONENTS.
struct Remap {
    /// Length of a destination element, bytes.
    dst_bytes: u32,
    /// True if no component comes from the source.
    constant: bool,
    /// Value of a constant element, component by component.
    pattern: Vec<u32>,
}

impl Remap {
    fn of(sub: &Sub) -> Self {
        // The layout is the same in every copy class: DST_X..W in 2:0, 6:4, 10:8, 14:12; COMPONENT_SIZE 17:16; NUM_DST 25:24.
        let word = sub.get(Reg::RemapComponents);
        let components = (word >> 24 & 3) + 1;
        let size = (word >> 16 & 3) + 1;
        let mut constant = true;
        let mut pattern = Vec::new();
        for i in 0..components {
            match word >> (4 * i) & 7 {
                4 => pattern.push(sub.get(Reg::RemapA)),
                5 => pattern.push(sub.get(Reg::RemapB)),
                6 => {}
                _ => constant = false,
            }
        }
        Self {
            dst_bytes: size * components,
            constant,
            pattern,
        }
    }
}

/// Returns the direction of a transfer, from the places of its addresses.
pub(in crate::decode) fn direction(src: Option<Place>, dst: Option<Place>) -> Option<Direction> {
    use Place::{Device, Host, Peer};
    Some(match (src?, dst?) {
        (Peer, _) | (_, Peer) => Direction::PeerToPeer,
        (Host, Device) => Direction::HostToDevice,
        (Device, Host) => Direction::DeviceToHost,
        (Device, Device) => Direction::DeviceToDevice,
        (Host, Host) => Direction::HostToHost,
    })
}

/// Returns the direction of a transfer whose block-linear sides are arrays, which are in the device's memory.
fn with_arrays(way: Direction, mode: CopyMode) -> Direction {
    use Direction::{
        ArrayToArray, ArrayToDevice, ArrayToHost, DeviceToArray, DeviceToDevice, DeviceToHost,
        HostToArray, HostToDevice,
    };
    match (mode, way) {
        (CopyMode::PitchToBlockLinear, HostToDevice) => HostToArray,
        (CopyMode::PitchToBlockLinear, DeviceToDevice) => DeviceToArray,
        (CopyMode::BlockLinearToPitch, DeviceToHost) => ArrayToHost,
        (CopyMode::BlockLinearToPitch, DeviceToDevice) => ArrayToDevice,
        (CopyMode::BlockLinear, DeviceToDevice) => ArrayToArray,
        _ => way,
    }
}

/// A side of a transfer: the place of its memory, if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::decode) enum Side {
    At(Place),
    /// No mapping of the driver's in the process ([`Places::is_unmapped`](crate::decode::Places::is_unmapped)).
    Unmapped,
    /// Addresses that a process with one GPU reserves for the GPU's memory ([`Places::is_reserved`](crate::decode::Places::is_reserved)).
    Reserved,
    Unknown,
}

impl Side {
    fn place(self) -> Option<Place> {
        match self {
            Self::At(place) => Some(place),
            _ => None,
        }
    }
}

/// Sets the direction of a copy. It comes from the places of both sides, as far as they tell it. Otherwise, for a transfer with a source,
/// it follows libcuda's habits (docs/decoding.md): by the mappings of the process, or else by the runlist in the token, if neither side
/// contradicts it.
pub(in crate::decode) fn conclude(copy: &mut Copy, src: Side, dst: Side, token: Option<u32>) {
    let told = match (src.place(), dst.place()) {
        (Some(Place::Peer), _) | (_, Some(Place::Peer)) => Some(Direction::PeerToPeer),
        (src, dst) => direction(src, dst),
    };
    if let Some(way) = told {
        let way = with_arrays(way, copy.mode);
        (copy.direction, copy.direction_from) = (Some(way), Some(Evidence::Mappings));
        return;
    }
    if copy.src.is_none() {
        return;
    }
    let habit = by_mappings(src, dst).or_else(|| by_runlist(src, dst, token));
    let habit = habit.map(|way| with_arrays(way, copy.mode));
    (copy.direction, copy.direction_from) = (habit, habit.map(|_| Evidence::Habit));
}

/// Returns the direction by the mappings of a process. A side in no mapping is the device's if the other side is the host's (the processor
/// makes copies within the host), and the host's if the other side is reserved for the device.
fn by_mappings(src: Side, dst: Side) -> Option<Direction> {
    use Side::{At, Reserved, Unmapped};
    const HOST: Side = At(Place::Host);
    const DEVICE: Side = At(Place::Device);
    match (src, dst) {
        (HOST, Unmapped | Reserved) | (Unmapped, Reserved) => Some(Direction::HostToDevice),
        (Unmapped | Reserved, HOST) | (Reserved, Unmapped) => Some(Direction::DeviceToHost),
        (Reserved, Reserved | DEVICE) | (DEVICE, Reserved) => Some(Direction::DeviceToDevice),
        _ => None,
    }
}

/// Returns the direction for which libcuda uses a runlist on an H200, unless the known facts about a side contradict it.
fn by_runlist(src: Side, dst: Side, token: Option<u32>) -> Option<Direction> {
    let is_host = |side| side == Side::At(Place::Host);
    let is_device = |side| matches!(side, Side::At(Place::Device) | Side::Reserved);
    match token? >> 16 & 0x7f {
        1 if !is_device(src) && !is_host(dst) => Some(Direction::HostToDevice),
        3 if !is_host(src) && !is_device(dst) => Some(Direction::DeviceToHost),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_arrays_are_called_so() {
        use Direction::{
            ArrayToArray, ArrayToDevice, ArrayToHost, DeviceToArray, DeviceToDevice, DeviceToHost,
            HostToArray, HostToDevice, PeerToPeer,
        };
        for (mode, way, expected) in [
            (CopyMode::Linear, HostToDevice, HostToDevice),
            (CopyMode::Pitch, DeviceToHost, DeviceToHost),
            (CopyMode::PitchToBlockLinear, HostToDevice, HostToArray),
            (CopyMode::PitchToBlockLinear, DeviceToDevice, DeviceToArray),
            (CopyMode::BlockLinearToPitch, DeviceToHost, ArrayToHost),
            (CopyMode::BlockLinearToPitch, DeviceToDevice, ArrayToDevice),
            (CopyMode::BlockLinear, DeviceToDevice, ArrayToArray),
            // That another GPU takes part is more important than the array on the other side.
            (CopyMode::BlockLinear, PeerToPeer, PeerToPeer),
            (CopyMode::PitchToBlockLinear, DeviceToHost, DeviceToHost),
        ] {
            assert_eq!(with_arrays(way, mode), expected, "{mode:?} {way:?}");
        }
    }
}
