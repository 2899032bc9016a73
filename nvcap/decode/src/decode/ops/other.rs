//! Barriers, memory operations, host operations, draws and video jobs.

use crate::decode::{
    class_dispatch::{Bits, Reg},
    classes,
    event::{Barrier, Draw, HostOp, Operation, Video},
    state::Sub,
};
use crate::wire::GpuVa;

/// Returns a wait or cache operation that consists of one method.
pub(in crate::decode) fn barrier(sub: &Sub, address: u16, data: u32) -> Operation {
    Operation::Barrier(Barrier {
        what: sub.plan.name(address),
        class: sub.plan.class,
        method: address,
        data,
        address: None,
    })
}

/// Returns the operation of MEM_OP_D (Pascal and later) or MEM_OP_B (before Pascal); `None` if the method is only an operand.
pub(in crate::decode) fn mem_op(sub: &Sub, address: u16, data: u32) -> Option<Operation> {
    let late = sub.plan.has(Bits::MemOpDOperation);
    if late == (address == sub.plan.reg(Reg::MemOpB)) {
        return None;
    }
    let a = sub.get(Reg::MemOpA);
    let operation = data >> 27;
    let what = match (operation, late) {
        (0x05, true) => match sub.get(Reg::MemOpC) & 7 {
            0 => "membar_sys",
            _ => "membar",
        },
        (0x05, false) => "sysmembar_flush",
        (0x06, false) => "soft_flush",
        (0x09, _) => "tlb_invalidate",
        (0x0a, _) => "tlb_invalidate_targeted",
        (0x0b, _) => "mmu_operation",
        (0x0d, _) => "l2_peermem_invalidate",
        (0x0e, _) => "l2_sysmem_invalidate",
        (0x0f, _) => "l2_clean_comptags",
        (0x10, _) => "l2_flush_dirty",
        (0x15, _) => "l2_wait_for_sys_pending_reads",
        (0x16, _) => "access_counter_clear",
        _ => "mem_op",
    };
    let target = (late && operation == 0x0a)
        .then(|| GpuVa(u64::from(sub.get(Reg::MemOpB)) << 32 | u64::from(a & !0xfff)));
    Some(Operation::Barrier(Barrier {
        what,
        class: sub.plan.class,
        method: address,
        data,
        address: target,
    }))
}

/// Returns an operation of the channel that touches no memory.
pub(in crate::decode) fn host_op(sub: &Sub, address: u16, data: u32) -> Operation {
    Operation::Host(HostOp {
        what: sub.plan.name(address),
        data,
    })
}

/// Returns a draw, clear or blit.
pub(in crate::decode) fn draw(sub: &Sub, address: u16, data: u32) -> Operation {
    let method = classes::method(sub.plan.class, address);
    let count = method.and_then(|m| m.field("COUNT")).map(|f| f.value(data));
    Operation::Draw(Draw {
        what: sub.plan.name(address),
        class: sub.plan.class,
        method: address,
        data,
        count,
    })
}

/// Returns the operation of EXECUTE of a Falcon engine.
pub(in crate::decode) fn video(sub: &Sub, address: u16, data: u32) -> Operation {
    Operation::Video(Video {
        what: sub.plan.name(address),
        class: sub.plan.class,
        data,
    })
}
