//! Semaphores of every unit, memory operations and host operations, formed by hand and read back.

use crate::decode_common::{Bench, copy, named};
use nvcap_decode::decode::event::Reduction;
use nvcap_decode::decode::event::{Operation, SemaphoreAction, SemaphoreUnit};
use nvcap_decode::wire::GpuVa;

#[test]
fn semaphores_of_a_copy_class() {
    let at = [
        ("SET_SEMAPHORE_A", 3),
        ("SET_SEMAPHORE_B", 0x40),
        ("SET_SEMAPHORE_PAYLOAD", 9),
        ("SET_SEMAPHORE_PAYLOAD_UPPER", 1),
    ];
    let Operation::Semaphore(s) = copy(&at, 0x14) else {
        panic!()
    };
    assert_eq!(
        (s.unit, s.action, s.address, s.payload),
        (
            SemaphoreUnit::Copy,
            SemaphoreAction::Release,
            GpuVa(0x3_0000_0040),
            9
        )
    );
    assert!(s.timestamp && !s.wide);
    let Operation::Semaphore(s) = copy(&at, 0x0c | 1 << 27 | 1 << 19 | 5 << 14) else {
        panic!()
    };
    assert_eq!(
        (s.action, s.reduction, s.payload, s.timestamp),
        (
            SemaphoreAction::Reduction,
            Some(Reduction::IAdd),
            0x1_0000_0009,
            false
        )
    );
    // With a transfer it is the copy's.
    let Operation::Copy(c) = copy(&[at[0], at[1], at[2], ("LINE_LENGTH_IN", 4)], 0x18a) else {
        panic!()
    };
    let write = c.semaphore.expect("released");
    assert_eq!(
        (write.address, write.payload, write.timestamp),
        (GpuVa(0x3_0000_0040), 9, false)
    );
}

#[test]
fn semaphores_of_the_channel() {
    let execute = |list: &[(&str, u32)]| {
        let mut b = Bench::new();
        b.words(|p| named(p, 0, 0xc86f, list));
        match b.one() {
            Operation::Semaphore(s) => s,
            o => panic!("{o:?}"),
        }
    };
    let at = |data| {
        [
            ("SEM_ADDR_LO", 0x80),
            ("SEM_ADDR_HI", 1),
            ("SEM_PAYLOAD_LO", 7),
            ("SEM_PAYLOAD_HI", 2),
            ("SEM_EXECUTE", data),
        ]
    };
    let s = execute(&at(1 | 1 << 20 | 1 << 24 | 1 << 25));
    assert_eq!(
        (s.action, s.address, s.payload),
        (
            SemaphoreAction::Release,
            GpuVa(0x1_0000_0080),
            0x2_0000_0007
        )
    );
    assert!(s.wide && s.timestamp && s.wait_for_idle && s.unit == SemaphoreUnit::Host);
    let actions = [
        (0, SemaphoreAction::AcquireEqual),
        (2, SemaphoreAction::AcquireGreaterEqual),
        (3, SemaphoreAction::AcquireGreaterEqual),
        (4, SemaphoreAction::AcquireAnd),
        (5, SemaphoreAction::AcquireNor),
        (7, SemaphoreAction::Other(7)),
    ];
    for (data, action) in actions {
        let s = execute(&at(data));
        assert_eq!((s.action, s.payload, s.timestamp), (action, 7, false));
    }
    let s = execute(&at(6 | 5 << 27));
    assert_eq!(
        (s.action, s.reduction),
        (SemaphoreAction::Reduction, Some(Reduction::IAdd))
    );
    let old = |data| {
        execute(&[
            ("SEMAPHOREA", 1),
            ("SEMAPHOREB", 0x40),
            ("SEMAPHOREC", 3),
            ("SEMAPHORED", data),
        ])
    };
    let s = old(2);
    assert_eq!(
        (s.action, s.address, s.payload),
        (SemaphoreAction::Release, GpuVa(0x1_0000_0040), 3)
    );
    assert!(s.timestamp && s.wait_for_idle);
    let s = old(2 | 1 << 20 | 1 << 24);
    assert!(!s.timestamp && !s.wait_for_idle);
    assert_eq!(old(4).action, SemaphoreAction::AcquireGreaterEqual);
    assert_eq!(old(0x10 | 6 << 27).reduction, Some(Reduction::Inc));
}

#[test]
fn semaphores_of_compute_3d_and_video() {
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(1, 0xcbc0);
        let address = [
            ("SET_REPORT_SEMAPHORE_PAYLOAD_LOWER", 1),
            ("SET_REPORT_SEMAPHORE_PAYLOAD_UPPER", 2),
            ("SET_REPORT_SEMAPHORE_ADDRESS_LOWER", 0x10),
            ("SET_REPORT_SEMAPHORE_ADDRESS_UPPER", 5),
        ];
        named(p, 1, 0xcbc0, &address);
        named(
            p,
            1,
            0xcbc0,
            &[
                ("REPORT_SEMAPHORE_EXECUTE", 1 << 12 | 2 << 3),
                ("REPORT_SEMAPHORE_EXECUTE", 1 << 3 | 1),
                ("REPORT_SEMAPHORE_EXECUTE", 1 << 3 | 1 << 6 | 3 << 7),
            ],
        );
        p.bind(0, 0xcb97);
        named(
            p,
            0,
            0xcb97,
            &[
                ("SET_REPORT_SEMAPHORE_C", 4),
                ("SET_REPORT_SEMAPHORE_D", 1 | 1 << 16),
                ("SET_REPORT_SEMAPHORE_D", 2),
            ],
        );
        p.bind(5, 0xc9d1);
        named(
            p,
            5,
            0xc9d1,
            &[
                ("SEMAPHORE_A", 1),
                ("SEMAPHORE_B", 0x20),
                ("SEMAPHORE_C", 6),
                ("SEMAPHORE_D", 0),
            ],
        );
    });
    let told: Vec<_> = b
        .told()
        .into_iter()
        .map(|o| match o {
            Operation::Semaphore(s) => (
                s.action,
                s.address,
                s.payload,
                s.wide,
                s.timestamp,
                s.reduction,
            ),
            o => panic!("{o:?}"),
        })
        .collect();
    use SemaphoreAction::{AcquireEqual, AcquireGreaterEqual, Other, Release};
    let expected = [
        (
            Release,
            GpuVa(0x5_0000_0010),
            0x2_0000_0001,
            true,
            false,
            None,
        ),
        (AcquireEqual, GpuVa(0x5_0000_0010), 1, false, false, None),
        (
            SemaphoreAction::Reduction,
            GpuVa(0x5_0000_0010),
            1,
            false,
            false,
            Some(Reduction::Inc),
        ),
        (AcquireGreaterEqual, GpuVa(0), 4, false, false, None),
        (Other(2), GpuVa(0), 4, false, false, None),
        (Release, GpuVa(0x1_0000_0020), 6, false, false, None),
    ];
    assert_eq!(told[..], expected);
}

#[test]
fn memory_operations_and_host_operations() {
    let told = |class: u32, list: &[(&str, u32)]| {
        let mut b = Bench::new().channel(class, 1);
        b.words(|p| named(p, 0, class, list));
        b.told()
            .into_iter()
            .map(|o| match o {
                Operation::Barrier(b) => (b.what, b.address),
                Operation::Host(h) => (h.what, None),
                o => panic!("{o:?}"),
            })
            .collect::<Vec<_>>()
    };
    let late = [
        ("MEM_OP_A", 0x1234_5000 | 1 << 11),
        ("MEM_OP_B", 7),
        ("MEM_OP_C", 0),
        ("MEM_OP_D", 0x0a << 27),
        ("MEM_OP_D", 0x05 << 27),
        ("MEM_OP_C", 1),
        ("MEM_OP_D", 0x05 << 27),
        ("MEM_OP_D", 0x09 << 27),
        ("MEM_OP_D", 0x1f << 27),
        ("WFI", 0),
        ("FB_FLUSH", 0),
        ("YIELD", 3),
        ("NON_STALL_INTERRUPT", 0),
        ("SET_REFERENCE", 1),
        ("CLEAR_FAULTED", 1),
    ];
    let expected = [
        ("tlb_invalidate_targeted", Some(GpuVa(0x7_1234_5000))),
        ("membar_sys", None),
        ("membar", None),
        ("tlb_invalidate", None),
        ("mem_op", None),
        ("wfi", None),
        ("fb_flush", None),
        ("yield", None),
        ("non_stall_interrupt", None),
        ("set_reference", None),
        ("clear_faulted", None),
    ];
    assert_eq!(told(0xc86f, &late), expected);
    // Kepler: MEM_OP_B sets it off.
    assert_eq!(
        told(
            0xa16f,
            &[
                ("MEM_OP_A", 0),
                ("MEM_OP_B", 0x10 << 27),
                ("MEM_OP_B", 5 << 27)
            ]
        ),
        [("l2_flush_dirty", None), ("sysmembar_flush", None)]
    );
    // Maxwell has both pairs; MEM_OP_D sets it off.
    assert_eq!(
        told(0xb06f, &[("MEM_OP_C", 1), ("MEM_OP_D", 9 << 27)]),
        [("tlb_invalidate", None)]
    );
}
