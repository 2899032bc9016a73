//! Semaphore operations: of the channel itself, of compute and 3D, of inline transfers and of the Falcon engines.

use crate::decode::{
    class_dispatch::{Bits, Reg},
    event::{Reduction, Semaphore, SemaphoreAction, SemaphoreUnit},
    state::Sub,
};
use crate::wire::GpuVa;

/// Operations of the field REDUCTION of SEM_EXECUTE, by value.
const HOST_REDUCTIONS: [Reduction; 8] = [
    Reduction::IMin,
    Reduction::IMax,
    Reduction::IXor,
    Reduction::IAnd,
    Reduction::IOr,
    Reduction::IAdd,
    Reduction::Inc,
    Reduction::Dec,
];
/// Operations of the field REDUCTION of SEMAPHORED, by value.
const OLD_HOST_REDUCTIONS: [Reduction; 8] = [
    Reduction::Min,
    Reduction::Max,
    Reduction::Xor,
    Reduction::And,
    Reduction::Or,
    Reduction::Add,
    Reduction::Inc,
    Reduction::Dec,
];
/// Operations of the fields RED_* of the report semaphores, by value.
const ENGINE_REDUCTIONS: [Reduction; 8] = [
    Reduction::Add,
    Reduction::Min,
    Reduction::Max,
    Reduction::Inc,
    Reduction::Dec,
    Reduction::And,
    Reduction::Or,
    Reduction::Xor,
];

fn reduction_of(all: &[Reduction; 8], value: u32) -> Reduction {
    all.get(value as usize)
        .copied()
        .unwrap_or(Reduction::Invalid)
}

/// Returns the operation of SEM_EXECUTE (Volta and later).
pub(in crate::decode) fn host(sub: &Sub, data: u32) -> Semaphore {
    let action = match data & 7 {
        0 => SemaphoreAction::AcquireEqual,
        1 => SemaphoreAction::Release,
        // The plain comparison, and its circular form, which takes wrapping into account.
        2 | 3 => SemaphoreAction::AcquireGreaterEqual,
        4 => SemaphoreAction::AcquireAnd,
        5 => SemaphoreAction::AcquireNor,
        6 => SemaphoreAction::Reduction,
        other => SemaphoreAction::Other(other),
    };
    let wide = data >> 24 & 1 != 0;
    let high = if wide { sub.get(Reg::SemPayloadHi) } else { 0 };
    let release = action == SemaphoreAction::Release;
    Semaphore {
        unit: SemaphoreUnit::Host,
        action,
        address: GpuVa(sub.address(Reg::SemHi, Reg::SemLo).0 & !3),
        payload: u64::from(sub.get(Reg::SemPayloadLo)) | u64::from(high) << 32,
        wide,
        timestamp: release && data >> 25 & 1 != 0,
        reduction: (action == SemaphoreAction::Reduction)
            .then(|| reduction_of(&HOST_REDUCTIONS, data >> 27 & 15)),
        wait_for_idle: release && data >> 20 & 1 != 0,
        execute: data,
    }
}

/// Returns the operation of SEMAPHORED (before Volta; headers name it up to Hopper).
pub(in crate::decode) fn old_host(sub: &Sub, data: u32) -> Semaphore {
    let action = match data & 0x1f {
        0x01 => SemaphoreAction::AcquireEqual,
        0x02 => SemaphoreAction::Release,
        0x04 => SemaphoreAction::AcquireGreaterEqual,
        0x08 => SemaphoreAction::AcquireAnd,
        0x10 => SemaphoreAction::Reduction,
        other => SemaphoreAction::Other(other),
    };
    let release = action == SemaphoreAction::Release;
    Semaphore {
        unit: SemaphoreUnit::Host,
        action,
        address: GpuVa(
            u64::from(sub.get(Reg::SemaphoreA) & 0xff) << 32
                | u64::from(sub.get(Reg::SemaphoreB) & !3),
        ),
        payload: u64::from(sub.get(Reg::SemaphoreC)),
        wide: false,
        // A release of 16 bytes includes the time.
        timestamp: release && data >> 24 & 1 == 0,
        reduction: (action == SemaphoreAction::Reduction)
            .then(|| reduction_of(&OLD_HOST_REDUCTIONS, data >> 27 & 15)),
        // RELEASE_WFI: EN is 0 here.
        wait_for_idle: release && data >> 20 & 1 == 0,
        execute: data,
    }
}

/// Returns the action for the field OPERATION of the report semaphores; `greater` is true if COMPARISON is GE.
fn report_action(operation: u32, reduction: bool, greater: bool) -> SemaphoreAction {
    match operation {
        0 if reduction => SemaphoreAction::Reduction,
        0 => SemaphoreAction::Release,
        1 if greater => SemaphoreAction::AcquireGreaterEqual,
        1 => SemaphoreAction::AcquireEqual,
        other => SemaphoreAction::Other(other),
    }
}

/// Returns the operation of SET_REPORT_SEMAPHORE_D of compute and 3D.
pub(in crate::decode) fn report(sub: &Sub, data: u32) -> Semaphore {
    let plan = &*sub.plan;
    let reduction = plan.bits(Bits::ReportReduction, data) != 0;
    let greater = plan.bits(Bits::ReportComparison, data) != 0;
    let action = report_action(plan.bits(Bits::ReportOperation, data), reduction, greater);
    Semaphore {
        unit: SemaphoreUnit::Engine,
        action,
        address: sub.address(Reg::ReportUpper, Reg::ReportLower),
        payload: u64::from(sub.get(Reg::ReportPayload)),
        wide: false,
        timestamp: action == SemaphoreAction::Release
            && plan.bits(Bits::ReportStructSize, data) == 0,
        reduction: (action == SemaphoreAction::Reduction)
            .then(|| reduction_of(&ENGINE_REDUCTIONS, plan.bits(Bits::ReportReductionOp, data))),
        wait_for_idle: false,
        execute: data,
    }
}

/// Returns the operation of REPORT_SEMAPHORE_EXECUTE of compute and 3D (Ampere and later).
pub(in crate::decode) fn report_execute(sub: &Sub, data: u32) -> Semaphore {
    let plan = &*sub.plan;
    let reduction = plan.bits(Bits::ExecuteReduction, data) != 0;
    let action = report_action(plan.bits(Bits::ExecuteOperation, data), reduction, false);
    let wide = plan.bits(Bits::ExecutePayload64, data) != 0;
    let high = if wide {
        sub.get(Reg::ReportPayloadUpper)
    } else {
        0
    };
    Semaphore {
        unit: SemaphoreUnit::Engine,
        action,
        address: sub.address(Reg::ReportAddressUpper, Reg::ReportAddressLower),
        payload: u64::from(sub.get(Reg::ReportPayloadLower)) | u64::from(high) << 32,
        wide,
        timestamp: action == SemaphoreAction::Release
            && plan.bits(Bits::ExecuteStructSize, data) == 0,
        reduction: (action == SemaphoreAction::Reduction).then(|| {
            reduction_of(
                &ENGINE_REDUCTIONS,
                plan.bits(Bits::ExecuteReductionOp, data),
            )
        }),
        wait_for_idle: false,
        execute: data,
    }
}

/// Returns the operation of SEMAPHORE_D of the Falcon engines (video, SEC2).
pub(in crate::decode) fn falcon(sub: &Sub, data: u32) -> Semaphore {
    let plan = &*sub.plan;
    let wide = plan.bits(Bits::FalconPayload64, data) != 0;
    // A payload of 32 bits is in SEMAPHORE_C, if the class has that method.
    let (low, high) = match (wide, plan.reg(Reg::FalconC)) {
        (true, _) => (sub.get(Reg::DmaPayload), sub.get(Reg::DmaPayloadUpper)),
        (false, u16::MAX) => (sub.get(Reg::DmaPayload), 0),
        (false, c) => (sub.at(c), 0),
    };
    let action = match plan.bits(Bits::FalconOperation, data) {
        0 => SemaphoreAction::Release,
        other => SemaphoreAction::Other(other),
    };
    Semaphore {
        unit: SemaphoreUnit::Engine,
        action,
        address: sub.address(Reg::DmaSemaphoreUpper, Reg::DmaSemaphore),
        payload: u64::from(low) | u64::from(high) << 32,
        wide,
        // In video classes, a structure of four words (FOUR = 1) includes the time; SEC2 has a bit for it.
        timestamp: plan.bits(Bits::FalconTimestamp, data) != 0
            || plan.bits(Bits::FalconStructSize, data) == 1,
        reduction: None,
        wait_for_idle: false,
        execute: data,
    }
}

/// Returns the semaphore that an inline transfer releases when it is done (COMPLETION_TYPE RELEASE_SEMAPHORE).
pub(in crate::decode) fn inline(sub: &Sub, launch: u32) -> Option<Semaphore> {
    let plan = &*sub.plan;
    (plan.bits(Bits::DmaCompletion, launch) == 2).then(|| Semaphore {
        unit: SemaphoreUnit::Engine,
        action: SemaphoreAction::Release,
        address: sub.address(Reg::DmaSemaphoreUpper, Reg::DmaSemaphore),
        payload: u64::from(sub.get(Reg::DmaPayload)),
        wide: false,
        timestamp: plan.bits(Bits::DmaStructSize, launch) == 0,
        reduction: None,
        wait_for_idle: false,
        execute: launch,
    })
}
