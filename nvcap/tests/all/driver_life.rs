//! Life and death in the driver model: what comes, goes, is shared and is used again.

use crate::driver_common::{
    CHANNEL, Machine, announced, at, doorbells, doorbells_gone, gone, mmap, munmap, process, rm,
};
use nvcap_decode::{
    decode::event::Place,
    driver::{Aperture, Change, ObjectRef, is_doorbell_shape},
    record::{Channel, ChannelId, CpuVa, Device, How, Life, Origin, Record, Submission},
    wire::GpuVa,
};

const PID: u32 = 100;
const C: u64 = 0xc1d0_0001;
const BASE: u64 = 0x2_0000_0000;
const DOORBELL: u64 = BASE + 0x1000_0000;

fn machine() -> Machine {
    Machine::new("580.159.04", true)
}

#[test]
fn a_channel_is_announced_once_ring_and_userd_are_mapped() {
    let mut m = machine();
    m.client(PID, C, 0);
    m.memory(PID, C, 10, 0x40, 0x20_0000);
    m.memory(PID, C, 11, 0x40, 0x1000);
    // The channel first, then USERD, then the ring.
    m.channel(PID, C, 1, 12, BASE, (11, 0x800), &[]);
    assert!(announced(&m.said()).is_empty());
    m.map(PID, C, 11, Device::Gpu(0), 0x7000_0000, 0x1000);
    assert!(announced(&m.said()).is_empty());
    m.map(PID, C, 10, Device::Gpu(0), BASE, 0x20_0000);
    let said = m.said();
    assert_eq!(announced(&said), [0]);
    let Some(Change::Channel(c)) = said.iter().find(|c| matches!(c, Change::Channel(_))) else {
        unreachable!()
    };
    assert_eq!(c.ring, Some(CpuVa(BASE)));
    assert_eq!(c.userd, Some(CpuVa(0x7000_0800)));
    assert_eq!(c.gpu, Some(0));
    assert_eq!(c.engine, Some(1));
    assert_eq!(c.origin, Origin::Allocated);
    assert_eq!(c.at.pid, PID);
    // The second channel finds all in place.
    m.channel(PID, C, 1, 13, BASE + 0x3000, (11, 0), &[]);
    assert_eq!(announced(&m.said()), [1]);
    m.token(PID, C, 13, 0x10007);
    m.token(PID, C, 13, 0x10007);
    assert_eq!(
        m.said(),
        [Change::Token {
            channel: ChannelId(1),
            token: 0x10007
        }]
    );
    assert_eq!(
        m.model.channel_by_token(Some(PID), Some(0), 0x10007),
        Some(ChannelId(1))
    );
}

#[test]
fn a_token_known_before_the_mapping_comes_with_the_channel() {
    let mut m = machine();
    m.client(PID, C, 0);
    m.memory(PID, C, 10, 0x40, 0x20_0000);
    m.channel(PID, C, 1, 12, BASE, (10, 0x2000), &[]);
    m.token(PID, C, 12, 5);
    m.said();
    m.map(PID, C, 10, Device::Gpu(0), BASE, 0x20_0000);
    let said = m.said();
    assert!(
        said.iter()
            .any(|c| matches!(c, Change::Channel(c) if c.token == Some(5)))
    );
}

#[test]
fn freeing_takes_the_whole_subtree() {
    let mut m = machine();
    m.cuda(PID, C, 0, 0, BASE);
    assert_eq!(announced(&m.said()), [0]);
    // The channel's group.
    m.free(PID, C, 1, 11);
    let said = m.said();
    assert_eq!(gone(&said), [0]);
    assert_eq!(m.model.channels().count(), 0);
    assert!(m.model.groups().is_empty());
    // The usermode object.
    assert!(doorbells_gone(&said).is_empty());
    m.free(PID, C, 2, 5);
    assert_eq!(doorbells_gone(&m.said()), [DOORBELL]);
    // The client: everything else.
    m.free(PID, C, C, C);
    assert!(
        m.model
            .resolve(PID, GpuVa(BASE))
            .is_none_or(|r| r.object.is_none())
    );
}

#[test]
fn a_handle_used_again_is_another_channel() {
    let mut m = machine();
    m.cuda(PID, C, 0, 0, BASE);
    m.free(PID, C, 11, 12);
    m.channel(PID, C, 11, 12, BASE + 0x3000, (10, 0x5000), &[]);
    let said = m.said();
    assert_eq!(announced(&said), [0, 1]);
    assert_eq!(gone(&said), [0]);
    // And where the free was not seen.
    m.channel(PID, C, 11, 12, BASE + 0x6000, (10, 0x8000), &[]);
    let said = m.said();
    assert_eq!(gone(&said), [1]);
    assert_eq!(announced(&said), [2]);
    assert_eq!(m.model.channels().count(), 1);
}

#[test]
fn a_client_handle_used_again_is_another_client() {
    let mut m = machine();
    m.cuda(PID, C, 0, 0, BASE);
    m.said();
    m.client(PID, C, 0);
    assert_eq!(gone(&m.said()), [0]);
    assert!(m.model.groups().is_empty());
}

#[test]
fn duplicated_memory_lives_until_its_last_handle() {
    let (c2, pid2) = (0xc1d0_0002, 200);
    let mut m = machine();
    m.client(PID, C, 0);
    m.client(pid2, c2, 0);
    m.memory(PID, C, 10, 0x3e, 0x1000);
    m.dup(pid2, (c2, 1, 77), (C, 10));
    m.map(pid2, c2, 77, Device::Control, 0x5000, 0x1000);
    m.map_dma(pid2, c2, 1, 77, 0x40_0000, 0x1000);
    let resolved = |m: &Machine| m.model.resolve(pid2, GpuVa(0x40_0010));
    assert_eq!(resolved(&m).unwrap().cpu, Some(CpuVa(0x5010)));
    assert_eq!(resolved(&m).unwrap().class, Some(0x3e));
    m.free(PID, C, 1, 10);
    let left = resolved(&m).unwrap();
    assert_eq!(left.cpu, Some(CpuVa(0x5010)));
    m.free(pid2, c2, 1, 77);
    assert!(resolved(&m).is_none());
}

#[test]
fn exec_and_exit_take_all_of_a_process() {
    for life in [
        Life::Exec { name: "new".into() },
        Life::Exit { process: true },
    ] {
        let mut m = machine();
        m.cuda(PID, C, 0, 0, BASE);
        m.cuda(PID + 1, C + 1, 0, 0, BASE);
        m.said();
        m.give(&process(PID, Life::Thread { child: 101 }));
        m.give(&process(PID, Life::Exit { process: false }));
        assert!(m.said().is_empty());
        m.give(&process(PID, life));
        let said = m.said();
        assert_eq!(gone(&said), [0]);
        assert_eq!(doorbells_gone(&said), [DOORBELL]);
        let left: Vec<_> = m.model.channels().map(|c| (c.id.0, c.pid)).collect();
        assert_eq!(left, [(1, PID + 1)]);
        assert!(m.model.mappings(PID).is_empty());
    }
}

#[test]
fn a_forked_child_shares_until_both_are_gone() {
    let mut m = machine();
    m.cuda(PID, C, 0, 0, BASE);
    m.said();
    m.give(&process(PID, Life::Fork { child: 150 }));
    let said = m.said();
    assert_eq!(doorbells(&said), [DOORBELL]);
    assert!(said.contains(&Change::ChannelShared {
        channel: ChannelId(0),
        pid: 150
    }));
    // The parent ends: the channel is the child's now.
    m.give(&process(PID, Life::Exit { process: true }));
    let said = m.said();
    assert!(gone(&said).is_empty());
    assert_eq!(m.model.channels().next().unwrap().pid, 150);
    m.give(&process(150, Life::Exec { name: "x".into() }));
    assert_eq!(gone(&m.said()), [0]);
    assert_eq!(m.model.channels().count(), 0);
}

#[test]
fn the_same_handles_in_two_clients_are_different_objects() {
    let mut m = machine();
    m.client(PID, C, 0);
    m.client(PID, C + 1, 0);
    m.memory(PID, C, 10, 0x3e, 0x1000);
    m.memory(PID, C + 1, 10, 0x40, 0x1000);
    m.map_dma(PID, C, 1, 10, 0x10_0000, 0x1000);
    m.map_dma(PID, C + 1, 1, 10, 0x20_0000, 0x1000);
    assert_eq!(m.model.place(PID, GpuVa(0x10_0000)), Some(Place::Host));
    assert_eq!(m.model.place(PID, GpuVa(0x20_0000)), Some(Place::Device));
    m.free(PID, C, 1, 10);
    assert!(m.model.place(PID, GpuVa(0x10_0000)).is_none());
    assert_eq!(m.model.place(PID, GpuVa(0x20_0000)), Some(Place::Device));
}

#[test]
fn a_graphics_client_has_its_ring_at_another_address_than_the_gpu() {
    // As Vulkan does it: memory from the heap, a virtual memory object, RM's own GPU mappings.
    let mut m = machine();
    m.client(PID, C, 0);
    let heap = |m: &mut Machine, handle: u64, function: u64, flags: u64, attr: u64, size: u64| {
        let arg = m.fill(
            "NVOS32_PARAMETERS",
            &[
                ("hRoot", C),
                ("hObjectParent", 1),
                ("function", function),
                ("data.AllocSize.hMemory", handle),
                ("data.AllocSize.flags", flags),
                ("data.AllocSize.attr", attr),
                ("data.AllocSize.size", size),
            ],
        );
        m.ioctl(rm(PID, 0x4a, arg, None));
    };
    const SYSTEM: u64 = 1 << 25;
    m.alloc(PID, C, 1, 9, 0x90f1, None);
    m.alloc(
        PID,
        C,
        1,
        20,
        0x70,
        Some(("NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS", &[("hVASpace", 9)])),
    );
    heap(&mut m, 30, 2, 0, SYSTEM, 0x4_0000);
    heap(&mut m, 31, 2, 0, 0, 0x1000);
    m.channel(PID, C, 1, 40, 0x402_0000, (31, 0x200), &[("hVASpace", 9)]);
    m.map(PID, C, 31, Device::Gpu(1), 0x7f00_0000_0000, 0x1000);
    m.map(PID, C, 30, Device::Control, 0x7f00_1000_0000, 0x4_0000);
    assert!(announced(&m.said()).is_empty());
    m.map_dma(PID, C, 20, 30, 0x402_0000, 0x4_0000);
    let said = m.said();
    assert_eq!(announced(&said), [0]);
    assert!(said.contains(&Change::Translations { pid: PID }));
    let c = m.model.channels().next().unwrap();
    assert_eq!(c.ring_gpu, Some(GpuVa(0x402_0000)));
    assert_eq!(c.ring, Some(CpuVa(0x7f00_1000_0000)));
    assert_eq!(c.userd, Some(CpuVa(0x7f00_0000_0200)));
    assert_eq!(c.gpu, Some(1));
    assert_eq!(
        m.model.cpu_address(PID, GpuVa(0x402_1234)),
        CpuVa(0x7f00_1000_1234)
    );
    assert_eq!(m.model.cpu_address(PID, GpuVa(0x999)), CpuVa(0x999));
    let all = m.model.translations(PID);
    assert_eq!(all.len(), 1);
    assert_eq!(
        (all[0].gpu.0, all[0].len, all[0].cpu.0),
        (0x402_0000, 0x4_0000, 0x7f00_1000_0000)
    );
    assert_eq!(m.model.translations_for(c.id), all);
    let found = m.model.resolve_for(c.id, GpuVa(0x402_0010)).unwrap();
    assert_eq!(found.aperture, Some(Aperture::System));
    assert_eq!(found.size, Some(0x4_0000));
    assert!(found.stated);

    let map = m.model.address_map(c.id);
    assert!(map.complete);
    assert_eq!(map.at(0x402_1234), Some((0x7f00_1000_1234, 0x3_edcc)));
    // A number that happens to be an address of the process, too, is not its memory.
    assert_eq!(map.at(0x40_0000), None);
    assert_eq!((map.at(0x401_ffff), map.at(0x406_0000)), (None, None));

    m.unmap_dma(PID, C, 20, 0x402_0000);
    assert!(m.model.translations(PID).is_empty());
    // Freeing the virtual memory takes its mappings too.
    m.map_dma(PID, C, 20, 30, 0x500_0000, 0x1000);
    assert_eq!(m.model.translations(PID).len(), 1);
    m.free(PID, C, 1, 20);
    assert!(m.model.translations(PID).is_empty());
    // The heap's own way to free.
    let arg = m.fill(
        "NVOS32_PARAMETERS",
        &[
            ("hRoot", C),
            ("hObjectParent", 1),
            ("function", 3),
            ("data.Free.hMemory", 30),
        ],
    );
    m.ioctl(rm(PID, 0x4a, arg, None));
    assert!(
        m.model
            .class_of(ObjectRef {
                client: C as u32,
                handle: 30
            })
            .is_none()
    );
}

#[test]
fn equal_addresses_of_two_spaces_are_told_apart_by_channel() {
    let mut m = machine();
    for (client, cpu) in [(C, 0x1_0000_0000u64), (C + 1, 0x2_0000_0000)] {
        m.client(PID, client, 0);
        m.memory(PID, client, 30, 0x3e, 0x1_0000);
        m.map(PID, client, 30, Device::Control, cpu, 0x1_0000);
        m.map_dma(PID, client, 1, 30, 0x40_0000, 0x1_0000);
        m.channel(PID, client, 1, 40, 0x40_0000, (30, 0x8000), &[]);
    }
    assert_eq!(announced(&m.said()), [0, 1]);
    let cpu = |id| {
        m.model
            .resolve_for(ChannelId(id), GpuVa(0x40_0100))
            .unwrap()
            .cpu
            .unwrap()
            .0
    };
    assert_eq!((cpu(0), cpu(1)), (0x1_0000_0100, 0x2_0000_0100));
}

#[test]
fn uvm_ranges_are_mapped_unmapped_and_freed() {
    let mut m = machine();
    m.client(PID, C, 0);
    m.memory(PID, C, 10, 0x40, 0x20_0000);
    let map = [
        ("base", 0x7000_0000_0000),
        ("length", 0x20_0000),
        ("hClient", C),
        ("hMemory", 10),
        ("gpuAttributesCount", 1),
    ];
    m.uvm(PID, 0x21, "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", &map);
    let found = m.model.resolve(PID, GpuVa(0x7000_0010_0000)).unwrap();
    assert_eq!(found.object.unwrap().handle, 10);
    assert_eq!(found.offset, 0x10_0000);
    assert!(found.stated);
    m.uvm(
        PID,
        0x42,
        "UVM_UNMAP_EXTERNAL_PARAMS",
        &[("base", 0x7000_0010_0000), ("length", 0x10_0000)],
    );
    assert!(m.model.resolve(PID, GpuVa(0x7000_0010_0000)).is_none());
    assert!(m.model.resolve(PID, GpuVa(0x7000_000f_ffff)).is_some());
    m.uvm(
        PID,
        0x22,
        "UVM_FREE_PARAMS",
        &[("base", 0x7000_0000_0000), ("length", 0x20_0000)],
    );
    assert!(m.model.resolve(PID, GpuVa(0x7000_0000_0000)).is_none());
    // Freeing the memory takes its ranges.
    m.uvm(PID, 0x21, "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", &map);
    m.free(PID, C, 1, 10);
    assert!(m.model.resolve(PID, GpuVa(0x7000_0000_0000)).is_none());
}

#[test]
fn two_gpus_are_told_apart() {
    let mut m = machine();
    // Device instances and minors need not agree: the mapping tells.
    m.client(PID, C, 0);
    m.cuda(PID, C + 0x10, 0, 3, BASE);
    m.cuda(PID, C + 0x20, 1, 2, BASE + 0x4000_0000);
    m.token(PID, C + 0x10, 12, 0xa);
    m.token(PID, C + 0x20, 12, 0xa);
    let gpus: Vec<_> = m.model.channels().map(|c| c.gpu).collect();
    assert_eq!(gpus, [Some(3), Some(2)]);
    assert_eq!(
        m.model.channel_by_token(Some(PID), Some(3), 0xa),
        Some(ChannelId(0))
    );
    assert_eq!(
        m.model.channel_by_token(Some(PID), Some(2), 0xa),
        Some(ChannelId(1))
    );
    let said = m.said();
    let pages: Vec<_> = said
        .iter()
        .filter_map(|c| match c {
            Change::DoorbellPage {
                gpu_minor, bar1, ..
            } => Some((*gpu_minor, *bar1)),
            _ => None,
        })
        .collect();
    assert_eq!(pages, [(Some(3), Some(true)), (Some(2), Some(true))]);
    // Memory of the other GPU.
    m.memory(PID, C + 0x20, 50, 0x40, 0x1000);
    m.uvm(
        PID,
        0x21,
        "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS",
        &[
            ("base", 0x7100_0000_0000),
            ("length", 0x1000),
            ("hClient", C + 0x20),
            ("hMemory", 50),
            ("gpuAttributesCount", 2),
        ],
    );
    let va = GpuVa(0x7100_0000_0000);
    assert_eq!(m.model.place_for(ChannelId(0), va), Some(Place::Peer));
    assert_eq!(m.model.place_for(ChannelId(1), va), Some(Place::Device));
}

#[test]
fn an_mmap_without_descriptor_is_matched_by_open_file() {
    let mut m = machine();
    m.client(PID, C, 0);
    m.alloc(PID, C, 2, 5, 0xc461, None);
    let arg = m.fill(
        "nv_ioctl_nvos33_parameters_with_fd",
        &[
            ("hClient", C),
            ("hMemory", 5),
            ("length", 0x10000),
            ("fd", 16),
        ],
    );
    let mut map = rm(PID, 0x4e, arg, None);
    map.fd = None;
    map.named_file = 0xabc;
    m.ioctl(map);
    // Another file's mapping comes between.
    let mut other = mmap(PID, Device::Gpu(0), -1, 0x9000_0000, 0x10000);
    other.fd = None;
    other.file = 0xdef;
    m.give(&Record::Mapping(other.clone()));
    assert!(doorbells(&m.said()).is_empty());
    other.file = 0xabc;
    other.start = CpuVa(0x9100_0000);
    m.give(&Record::Mapping(other));
    let said = m.said();
    assert_eq!(doorbells(&said), [0x9100_0000]);
    // Before Hopper there is no BAR1 form.
    assert!(said.iter().any(|c| matches!(
        c,
        Change::DoorbellPage {
            bar1: Some(false),
            ..
        }
    )));
}

#[test]
fn a_usermode_object_without_parameters_is_the_bar0_form() {
    let mut m = machine();
    m.client(PID, C, 0);
    m.alloc(PID, C, 2, 5, 0xc661, None);
    m.map(PID, C, 5, Device::Gpu(0), 0x9000_0000, 0x10000);
    assert!(m.said().iter().any(|c| matches!(
        c,
        Change::DoorbellPage {
            bar1: Some(false),
            ..
        }
    )));
}

#[test]
fn unmapped_doorbells_go_and_moved_rings_are_announced_again() {
    let mut m = machine();
    m.cuda(PID, C, 0, 0, BASE);
    m.said();
    m.give(&munmap(PID, DOORBELL - 0x1000, 0x2000));
    assert_eq!(doorbells_gone(&m.said()), [DOORBELL]);
    assert_eq!(m.model.doorbells().count(), 0);
    m.give(&munmap(PID, BASE, 0x20_0000));
    assert_eq!(m.model.channels().next().unwrap().ring, None);
    m.map(PID, C, 10, Device::Gpu(0), BASE, 0x20_0000);
    // At the same place: nothing new to say. Nothing was read meanwhile that could be wrong.
    assert!(announced(&m.said()).is_empty());
    assert_eq!(m.model.channels().next().unwrap().ring, Some(CpuVa(BASE)));
}

#[test]
fn a_part_unmapped_leaves_the_rest() {
    let mut m = machine();
    m.client(PID, C, 0);
    m.memory(PID, C, 10, 0x3e, 0x10_0000);
    m.map(PID, C, 10, Device::Control, 0x10_0000_0000, 0x10_0000);
    m.map_dma(PID, C, 1, 10, 0x40_0000, 0x10_0000);
    m.give(&munmap(PID, 0x10_0004_0000, 0x1_0000));
    let all: Vec<_> = m
        .model
        .translations(PID)
        .iter()
        .map(|t| (t.gpu.0, t.len, t.cpu.0))
        .collect();
    assert_eq!(
        all,
        [
            (0x40_0000, 0x4_0000, 0x10_0000_0000),
            (0x45_0000, 0xb_0000, 0x10_0005_0000)
        ]
    );
}

#[test]
fn what_failed_changes_nothing() {
    let mut m = machine();
    m.client(PID, C, 0);
    let arg = |m: &Machine, status| {
        m.fill(
            "NVOS64_PARAMETERS",
            &[
                ("hRoot", C),
                ("hObjectParent", 1),
                ("hObjectNew", 12),
                ("hClass", CHANNEL),
                ("status", status),
            ],
        )
    };
    let by_status = rm(PID, 0x2b, arg(&m, 0x1b), None);
    m.ioctl(by_status);
    let mut by_errno = rm(PID, 0x2b, arg(&m, 0), None);
    by_errno.result = Some(-22);
    m.ioctl(by_errno);
    assert_eq!(m.model.channels().count(), 0);
    assert_eq!(m.model.stats().failed, 2);
}

#[test]
fn attaching_late_gives_doorbells_by_shape_and_channels_by_others() {
    let mut m = machine();
    let mut found = mmap(PID, Device::Gpu(0), -1, 0x7000_0000, 0x10000);
    found.found = true;
    found.fd = None;
    found.read = false;
    assert!(is_doorbell_shape(&found));
    m.give(&Record::Mapping(found.clone()));
    assert_eq!(doorbells(&m.said()), [0x7000_0000]);
    // A readable page of that shape is taken only where there is no better one.
    let mut readable = found.clone();
    readable.start = CpuVa(0x7100_0000);
    readable.read = true;
    m.give(&Record::Mapping(readable.clone()));
    assert!(doorbells(&m.said()).is_empty());
    readable.at = at(PID + 1);
    m.give(&Record::Mapping(readable.clone()));
    assert_eq!(doorbells(&m.said()), [0x7100_0000]);
    readable.len = 0x20000;
    assert!(!is_doorbell_shape(&readable));

    let id = m.model.reserve_channel_id();
    let channel = Channel {
        at: at(PID),
        id,
        gpu: Some(0),
        token: None,
        class: None,
        engine: None,
        handle: None,
        ring_gpu: Some(GpuVa(BASE)),
        ring: Some(CpuVa(BASE)),
        entries: Some(1024),
        userd: Some(CpuVa(BASE + 0x2000)),
        origin: Origin::Found,
    };
    m.give(&Record::Channel(Box::new(channel.clone())));
    m.give(&Record::Channel(Box::new(Channel {
        token: Some(0xb),
        ..channel
    })));
    let view = m.model.channel(id).unwrap();
    assert_eq!((view.token, view.entries), (Some(0xb), Some(1024)));
    // Numbers that the model gives later are others.
    m.cuda(PID, C, 0, 0, BASE + 0x8000_0000);
    assert_eq!(announced(&m.said()), [1]);
    m.give(&process(PID, Life::Exit { process: true }));
    let mut said = gone(&m.said());
    said.sort_unstable();
    assert_eq!(said, [0, 1]);
}

#[test]
fn a_capture_s_channel_record_names_the_channel_of_its_ioctls() {
    let mut m = machine();
    m.cuda(PID, C, 0, 0, BASE);
    let mut record = m
        .said()
        .into_iter()
        .find_map(|c| match c {
            Change::Channel(c) => Some(*c),
            _ => None,
        })
        .unwrap();
    record.id = ChannelId(7);
    m.give(&Record::Channel(Box::new(record)));
    let ids: Vec<_> = m.model.channels().map(|c| c.id.0).collect();
    assert_eq!(ids, [7]);
    m.token(PID, C, 12, 3);
    assert_eq!(
        m.said(),
        [Change::Token {
            channel: ChannelId(7),
            token: 3
        }]
    );
    m.free(PID, C, 11, 12);
    assert_eq!(gone(&m.said()), [7]);
}

#[test]
fn userd_of_rm_is_found_by_mapping_the_channel() {
    let mut m = machine();
    m.client(PID, C, 0);
    m.memory(PID, C, 10, 0x40, 0x20_0000);
    m.map(PID, C, 10, Device::Gpu(0), BASE, 0x20_0000);
    m.channel(PID, C, 1, 12, BASE, (0, 0), &[]);
    assert!(announced(&m.said()).is_empty());
    m.map(PID, C, 12, Device::Gpu(0), 0x6000_0000, 0x1000);
    assert_eq!(announced(&m.said()), [0]);
    let c = m.model.channels().next().unwrap();
    assert_eq!(c.userd, Some(CpuVa(0x6000_0000)));
}

#[test]
fn where_the_driver_leaves_the_token_is_known() {
    let mut m = machine();
    m.client(PID, C, 0);
    m.memory(PID, C, 20, 0x3e, 0x1000);
    m.map(PID, C, 20, Device::Control, 0x3000_0000, 0x1000);
    m.channel(PID, C, 1, 12, BASE, (10, 0), &[("hObjectError", 20)]);
    let at = |m: &Machine| m.model.channels().next().unwrap().token_at.unwrap().0;
    assert_eq!(at(&m), 0x3000_0018);
    let arg = m.fill(
        "NVOS54_PARAMETERS",
        &[
            ("hClient", C),
            ("hObject", 12),
            ("cmd", 0xc36f_010a),
            ("params", 1),
        ],
    );
    m.ioctl(rm(PID, 0x2a, arg, Some(vec![3, 0, 0, 0])));
    assert_eq!(at(&m), 0x3000_0038);
}

#[test]
fn an_argument_behind_a_pointer_is_read_like_another() {
    let mut m = machine();
    m.client(PID, C, 0);
    let real = m.fill(
        "NVOS00_PARAMETERS",
        &[("hRoot", C), ("hObjectParent", C), ("hObjectOld", C)],
    );
    let arg = m.fill(
        "nv_ioctl_xfer_t",
        &[("cmd", 0x29), ("size", 16), ("ptr", 0x1000)],
    );
    m.ioctl(rm(PID, 0xd3, arg, Some(real)));
    assert!(
        m.model
            .class_of(ObjectRef {
                client: C as u32,
                handle: C as u32
            })
            .is_none()
    );
}

#[test]
fn what_is_kept_does_not_grow_with_time() {
    let mut m = machine();
    m.client(PID, C, 0);
    for i in 0..20_000u64 {
        let base = 0x10_0000_0000 + (i % 8) * 0x10_0000;
        m.memory(PID, C, 10, 0x3e, 0x10_0000);
        m.map(PID, C, 10, Device::Control, base, 0x10_0000);
        m.map_dma(PID, C, 1, 10, 0x40_0000, 0x10_0000);
        m.channel(PID, C, 1, 12, 0x40_0000, (10, 0x2000), &[]);
        m.free(PID, C, 1, 12);
        if i % 2 == 0 {
            m.free(PID, C, 1, 10);
        }
        m.give(&munmap(PID, base, 0x10_0000));
        // Requests whose mmap never comes.
        m.map_request(PID, C, 1, 0, 0x1000, 50 + i);
        m.give(&process(PID, Life::Fork { child: 1000 }));
        m.give(&process(1000, Life::Exit { process: true }));
        m.said();
    }
    assert_eq!(m.model.channels().count(), 0);
    assert!(m.model.mappings(PID).is_empty());
    let kept = format!("{:?}", m.model).len();
    assert!(kept < 2_000_000, "{kept}");
    assert_eq!(m.model.stats().refused, 0);
}

#[test]
fn an_object_that_does_not_begin_at_a_page_lies_inside_its_mapping() {
    // USERD that RM allocated: 512 bytes of a BAR1 page; the address that RM gives back says where.
    let mut m = machine();
    m.client(PID, C, 0);
    m.memory(PID, C, 10, 0x40, 0x20_0000);
    m.map(PID, C, 10, Device::Gpu(0), BASE, 0x20_0000);
    m.channel(PID, C, 1, 12, BASE, (0, 0), &[]);
    let request = |m: &mut Machine, handle: u64, offset: u64, linear: u64, len: u64| {
        let arg = m.fill(
            "nv_ioctl_nvos33_parameters_with_fd",
            &[
                ("hClient", C),
                ("hDevice", 1),
                ("hMemory", handle),
                ("offset", offset),
                ("length", len),
                ("pLinearAddress", linear),
                ("fd", 40),
            ],
        );
        m.ioctl(rm(PID, 0x4e, arg, None));
    };
    request(&mut m, 12, 0, 0x1000_4321_0a00, 0x200);
    m.give(&Record::Mapping(mmap(
        PID,
        Device::Gpu(0),
        40,
        0x6000_0000,
        0x1000,
    )));
    assert_eq!(announced(&m.said()), [0]);
    assert_eq!(
        m.model.channels().next().unwrap().userd,
        Some(CpuVa(0x6000_0a00))
    );
    // A part of an object from the middle of a page on.
    m.memory(PID, C, 20, 0x3e, 0x4000);
    m.map_dma(PID, C, 1, 20, 0x40_0000, 0x4000);
    request(&mut m, 20, 0x1200, 0x1_6000_1200, 0x1000);
    m.give(&Record::Mapping(mmap(
        PID,
        Device::Control,
        40,
        0x7000_0000,
        0x2000,
    )));
    assert_eq!(
        m.model.cpu_address(PID, GpuVa(0x40_1200)),
        CpuVa(0x7000_0200)
    );
    assert_eq!(
        m.model.cpu_address(PID, GpuVa(0x40_1fff)),
        CpuVa(0x7000_0fff)
    );
    m.give(&munmap(PID, 0x7000_0000, 0x1000));
    assert_eq!(
        m.model.cpu_address(PID, GpuVa(0x40_2000)),
        CpuVa(0x7000_1000)
    );
}

#[test]
fn two_address_spaces_of_a_process_use_the_same_numbers() {
    let mut m = machine();
    const D: u64 = 0xc1d0_0077;
    for (client, at) in [(C, 0x7000_0000), (D, 0x7800_0000)] {
        m.client(PID, client, 0);
        m.alloc(PID, client, 1, 9, 0x90f1, None);
        m.memory(PID, client, 30, 0x3e, 0x1_0000);
        m.map(PID, client, 30, Device::Control, at, 0x1_0000);
        m.map_dma(PID, client, 9, 30, 0x40_0000, 0x1_0000);
        m.channel(
            PID,
            client,
            1,
            40,
            0x40_0000,
            (30, 0x8000),
            &[("hVASpace", 9)],
        );
    }
    // And something that only the second has.
    m.memory(PID, D, 31, 0x3e, 0x1000);
    m.map(PID, D, 31, Device::Control, 0x7900_0000, 0x1000);
    m.map_dma(PID, D, 9, 31, 0x60_0000, 0x1000);
    let ids: Vec<ChannelId> = m.model.channels().map(|c| c.id).collect();
    let maps: Vec<_> = ids.iter().map(|id| m.model.address_map(*id)).collect();
    assert_eq!(maps[0].at(0x40_0010), Some((0x7000_0010, 0xfff0)));
    assert_eq!(maps[1].at(0x40_0010), Some((0x7800_0010, 0xfff0)));
    assert_eq!(maps[0].at(0x60_0000), Some((0x7900_0000, 0x1000)));
    for map in maps {
        assert!(map.complete && map.at(0x70_0000).is_none());
    }
}

#[test]
fn a_second_handle_of_the_device_s_space_is_the_same_space() {
    let mut m = machine();
    m.client(PID, C, 0);
    m.alloc(
        PID,
        C,
        1,
        9,
        0x90f1,
        Some(("NV_VASPACE_ALLOCATION_PARAMETERS", &[("index", 3)])),
    );
    m.memory(PID, C, 30, 0x3e, 0x1_0000);
    m.map(PID, C, 30, Device::Control, 0x7000_0000, 0x1_0000);
    // Mapped through the device's default space, used by a channel of the named one.
    m.map_dma(PID, C, 1, 30, 0x40_0000, 0x1_0000);
    m.channel(PID, C, 1, 40, 0x40_0000, (30, 0x8000), &[("hVASpace", 9)]);
    assert_eq!(announced(&m.said()), [0]);
    let c = m.model.channels().next().unwrap();
    let found = m.model.resolve_for(c.id, GpuVa(0x40_0000)).unwrap();
    assert!(found.stated);
    assert_eq!(m.model.translations_for(c.id).len(), 1);
    // The other handle's end is not the space's.
    m.free(PID, C, 1, 9);
    assert!(m.model.resolve_for(c.id, GpuVa(0x40_0000)).is_some());
}

#[test]
fn submissions_are_counted_by_channel_and_doorbell_page() {
    let mut m = machine();
    m.cuda(PID, C, 0, 0, BASE);
    for put in 1..=3 {
        m.give(&Record::Submission(Submission {
            absent_ns: None,
            at: at(PID),
            channel: ChannelId(0),
            token: None,
            position: u64::from(put) - 1,
            gp_get: Some(put - 1),
            prev_put: put - 1,
            gp_put: put,
            ip: None,
            doorbell: Some(CpuVa(DOORBELL + 0x90)),
            how: How::Trapped,
            late: false,
            thread: None,
            segments: Vec::new(),
        }));
    }
    let c = m.model.channels().next().unwrap();
    assert_eq!((c.submissions, c.gp_get, c.gp_put), (3, Some(2), Some(3)));
    assert_eq!(m.model.doorbells().next().unwrap().rung, 3);
}

#[test]
fn all_objects_of_a_process_can_be_listed() {
    let mut m = machine();
    m.cuda(PID, C, 0, 0, BASE);
    let all: Vec<_> = m
        .model
        .objects(PID)
        .iter()
        .map(|o| (o.object.handle, o.parent, o.class))
        .collect();
    let client = C as u32;
    assert_eq!(all[0], (client, client, 0x41));
    for (handle, parent, class) in [
        (1, client, 0x80),
        (2, 1, 0x2080),
        (5, 2, 0xc661),
        (10, 1, 0x40),
        (11, 1, 0xa06c),
        (12, 11, 0xc86f),
    ] {
        let at = all.iter().position(|o| *o == (handle, parent, class));
        let above = all.iter().position(|o| o.0 == parent);
        assert!(at > above, "{handle:#x} in {all:x?}");
    }
    assert_eq!(all.len(), 7);
}

#[test]
fn memory_imported_from_elsewhere_has_its_addresses() {
    let mut m = machine();
    m.client(PID, C, 0);
    // No allocation of 99 was seen: it came through a file descriptor.
    m.uvm(
        PID,
        0x21,
        "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS",
        &[
            ("base", 0x7000_0000_0000),
            ("length", 0x20_0000),
            ("hClient", C),
            ("hMemory", 99),
            ("gpuAttributesCount", 1),
        ],
    );
    let found = m.model.resolve(PID, GpuVa(0x7000_0000_0000)).unwrap();
    assert_eq!(found.object.unwrap().handle, 99);
    assert_eq!(found.size, Some(0x20_0000));
}
