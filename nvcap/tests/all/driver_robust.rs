//! No record makes the model panic, whatever its bytes; and the model stays consistent with itself.

use crate::driver_common::{Machine, Random, at, bytes};
use nvcap_decode::{
    driver::{Call, fields, layouts},
    record::{
        Channel, ChannelId, CpuVa, Device, Ioctl, Life, Mapping, Nested, Origin, Process, Record,
        Unmapping,
    },
    wire::GpuVa,
};
use nvcap_recording::file::ioctl_log;
use nvcap_show::{
    output::{channels, ioctls, writer::Output},
    pipeline::{Pipeline, PipelineOptions},
};

const INTERESTING: [u64; 16] = [
    0,
    1,
    2,
    5,
    10,
    0x41,
    0x80,
    0x3e,
    0x40,
    0xa06c,
    0xc86f,
    0xc661,
    0xc1d0_0001,
    0x1_0000,
    u32::MAX as u64,
    u64::MAX,
];

fn pick(r: &mut Random) -> u64 {
    match r.below(3) {
        0 => r.next(),
        1 => r.below(16),
        _ => INTERESTING[r.below(16) as usize],
    }
}

/// Bytes made of numbers that mean something to the model.
fn words(r: &mut Random) -> Vec<u8> {
    let len = [
        0, 3, 16, 20, 28, 32, 40, 48, 56, 64, 72, 184, 368, 1200, 9264,
    ][r.below(15) as usize];
    let mut data = Vec::with_capacity(len + 8);
    while data.len() < len {
        if r.below(2) == 0 {
            data.extend_from_slice(&(pick(r) as u32).to_le_bytes());
        } else {
            data.extend_from_slice(&pick(r).to_le_bytes());
        }
    }
    data.truncate(len);
    if r.below(8) == 0 {
        let len = r.below(64) as usize;
        data = r.bytes(len);
    }
    data
}

fn device(r: &mut Random) -> Device {
    match r.below(4) {
        0 => Device::Control,
        1 => Device::Gpu(r.below(3) as u32),
        2 => Device::Uvm,
        _ => Device::Other(1, 2),
    }
}

fn ioctl(r: &mut Random) -> Ioctl {
    const NRS: [u32; 16] = [
        0x27, 0x28, 0x29, 0x2a, 0x2b, 0x2b, 0x2b, 0x34, 0x4a, 0x4e, 0x4f, 0x57, 0x58, 0xc8, 0xd2,
        0xd3,
    ];
    const UVM: [u32; 8] = [0x19, 0x21, 0x22, 0x42, 0x44, 0x49, 0x1b, 0x3000_0001];
    const COMMANDS: [u32; 8] = [
        0xc36f_0108,
        0xc36f_010a,
        0x906f_0101,
        0xa06f_0104,
        0x205,
        0x2080_014a,
        0x2080_1701,
        0x2080_3601,
    ];
    let device = device(r);
    let mut input = words(r);
    let nr = NRS[r.below(16) as usize];
    if nr == 0x2a && input.len() >= 12 {
        input[8..12].copy_from_slice(&COMMANDS[r.below(8) as usize].to_le_bytes());
    }
    let mut output = if r.below(4) == 0 {
        words(r)
    } else {
        input.clone()
    };
    // Mostly successful, where the status is.
    for at in [12usize, 24, 28, 32, 36, 40] {
        if r.below(4) != 0
            && let Some(field) = output.get_mut(at..at + 4)
        {
            field.fill(0);
        }
    }
    let request = match device {
        Device::Uvm => UVM[r.below(8) as usize],
        _ if r.below(16) == 0 => r.next() as u32,
        _ => 0xc000_4600 | (input.len() as u32 & 0x3fff) << 16 | nr,
    };
    Ioctl {
        at: at(r.below(4) as u32),
        end_ns: (r.below(2) == 0).then(|| r.next()),
        device,
        fd: (r.below(2) == 0).then(|| r.below(8) as i32 - 1),
        file: r.below(3),
        named_file: r.below(3),
        request,
        result: [None, Some(0), Some(0), Some(-1)][r.below(4) as usize],
        input: bytes(input),
        output: bytes(output),
        nested: (r.below(3) != 0).then(|| {
            let mut nested = Nested {
                address: CpuVa(r.next()),
                input: bytes(words(r)),
                output: bytes(words(r)),
            };
            nested.input.full_len = pick(r);
            nested
        }),
    }
}

fn record(r: &mut Random) -> Record {
    let pid = r.below(4) as u32;
    match r.below(12) {
        0 => Record::Mapping(Mapping {
            at: at(pid),
            device: device(r),
            fd: Some(r.below(8) as i32 - 1),
            file: r.below(3),
            start: CpuVa(pick(r)),
            len: pick(r),
            read: r.below(2) == 0,
            write: r.below(2) == 0,
            found: r.below(4) == 0,
        }),
        1 => Record::Unmapping(Unmapping {
            at: at(pid),
            start: CpuVa(pick(r)),
            len: pick(r),
        }),
        2 => Record::Process(Process {
            at: at(pid),
            life: match r.below(16) {
                0 => Life::Exec {
                    name: "\u{1b}[2J".into(),
                },
                1 => Life::Exit { process: true },
                2 => Life::Present {
                    name: String::new(),
                },
                _ => Life::Fork {
                    child: r.below(4) as u32,
                },
            },
        }),
        3 => Record::Channel(Box::new(Channel {
            at: at(pid),
            id: ChannelId(pick(r) as u32),
            gpu: None,
            token: Some(pick(r) as u32),
            class: None,
            engine: None,
            handle: (r.below(2) == 0).then(|| (pick(r) as u32, pick(r) as u32)),
            ring_gpu: Some(GpuVa(pick(r))),
            ring: Some(CpuVa(pick(r))),
            entries: Some(pick(r) as u32),
            userd: Some(CpuVa(pick(r))),
            origin: Origin::Found,
        })),
        _ => Record::Ioctl(Box::new(ioctl(r))),
    }
}

fn ask(m: &Machine, r: &mut Random) {
    for pid in 0..4 {
        let va = pick(r);
        let _ = m.model.resolve(pid, GpuVa(va));
        let _ = m.model.place(pid, GpuVa(va));
        let _ = m.model.cpu_address(pid, GpuVa(va));
        // A translation says what a look-up says.
        for t in m.model.translations(pid) {
            assert!(t.len != 0);
        }
        for m in m.model.mappings(pid) {
            let _ = channels::explain(&m);
        }
        let _ = channels::maps_table(&m.model, pid);
    }
    let _ = channels::table(&m.model, None, &Default::default());
    let _ = channels::json(&m.model, None, &Default::default()).to_string();
    for c in m.model.channels() {
        let _ = m.model.place_for(c.id, GpuVa(pick(r)));
    }
    assert!(m.model.gpus().count() <= 64);
}

#[test]
fn records_of_any_content() {
    for seed in 1..=40u64 {
        let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut m = Machine::new("580.159.04", seed % 2 == 0);
        if seed % 3 == 0 {
            m.cuda(1, 0xc1d0_0001, 0, 0, 0x2_0000_0000);
        }
        for i in 0..1500 {
            let record = record(&mut r);
            m.give(&record);
            if i % 50 == 0 {
                ask(&m, &mut r);
            }
        }
        for pid in 0..4 {
            m.give(&Record::Process(Process {
                at: at(pid),
                life: Life::Exit { process: true },
            }));
        }
        // All processes are gone: so is all that they held.
        assert_eq!(m.model.doorbells().count(), 0);
        assert_eq!(m.model.pids().count(), 0);
        assert_eq!(m.model.channels().count(), 0, "seed {seed}");
        assert!(m.model.groups().is_empty(), "seed {seed}");
    }
}

#[test]
fn ioctls_of_any_content_are_printed() {
    let mut r = Random(77);
    let mut text = ioctls::Ioctls::text(
        Output::to(Box::new(std::io::sink())),
        ioctls::IoctlOptions {
            raw: true,
            zeros: true,
            ..Default::default()
        },
    );
    let mut json = ioctls::Ioctls::json(Output::to(Box::new(std::io::sink())), Default::default());
    let mut pipeline = Pipeline::new(
        PipelineOptions::default(),
        vec![Box::new(&mut text), Box::new(&mut json)],
    );
    for _ in 0..3000 {
        pipeline.record(record(&mut r)).unwrap();
    }
    pipeline.finish().unwrap();
    assert_eq!(text.totals(), json.totals());
}

#[test]
fn every_layout_reads_bytes_of_any_length() {
    let mut r = Random(3);
    for name in [
        "NVOS32_PARAMETERS",
        "NV_CHANNEL_ALLOC_PARAMS",
        "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS",
        "nv_ioctl_card_info_t",
        "NV0080_CTRL_GPU_GET_CLASSLIST_V2_PARAMS",
    ] {
        for layout in layouts(name) {
            for _ in 0..50 {
                let len = r.below(layout.size() as u64 + 16) as usize;
                let data = r.bytes(len);
                for f in layout.fields() {
                    let value = fields::value(&f, &data);
                    assert_eq!(
                        value.is_some(),
                        f.offset + f.size <= len || (f.offset < len && f.kind.contains('[')),
                        "{name} {}",
                        f.name
                    );
                }
                let _ = fields::elements(name, &data);
            }
        }
    }
}

#[test]
fn logs_of_any_content() {
    let good = "IOCTL /dev/nvidiactl fd=8 nr=0x2b size=48\n in[48] 2000d0c1 2000d0c1 0200005c 80000000\n \
        pin[64] 00000000 2000d0c1\n ret=0 fd=8 nr=0x2b\n out[48] 2000d0c1\nMMAP /dev/nvidia0 fd=16 addr=0x7fbc28cd4000 \
        len=0x10000 prot=2 flags=0x1 off=0x0\n";
    let mut r = Random(5);
    for _ in 0..3000 {
        let mut text = good.as_bytes().to_vec();
        for _ in 0..r.below(12) {
            let at = r.below(text.len() as u64) as usize;
            match r.below(3) {
                0 => text[at] = r.next() as u8,
                1 => {
                    text.remove(at);
                }
                _ => text.insert(at, b" \n=[]0x"[r.below(7) as usize]),
            }
        }
        let log = ioctl_log::read(&text[..], ioctl_log::LogOptions::default()).unwrap();
        for record in &log.records {
            if let Record::Ioctl(i) = record {
                let _ = Call::read(i, None);
            }
        }
    }
}
