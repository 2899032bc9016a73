//! The same process under drivers of several releases, whose structures differ: with the release told beforehand,
//! and with the sizes of the ioctls alone.

use crate::driver_common::{Machine, announced, bytes, doorbells, rm};
use nvcap_decode::{
    driver::{Change, Version, layout},
    record::{CpuVa, Device},
    wire::GpuVa,
};

const RELEASES: [&str; 8] = [
    "515.43.04",
    "525.60.11",
    "535.54.03",
    "535.183.01",
    "550.54.14",
    "570.86.15",
    "580.159.04",
    "595.45.04",
];
const PID: u32 = 9;
const C: u64 = 0xc1d0_0001;
const BASE: u64 = 0x2_0000_0000;

#[test]
fn a_cuda_process_of_any_release() {
    for release in RELEASES {
        for told in [true, false] {
            let mut m = Machine::new(release, told);
            m.cuda(PID, C, 0, 0, BASE);
            m.token(PID, C, 12, 0xa);
            let said = m.said();
            assert_eq!(announced(&said), [0], "{release} {told}");
            assert_eq!(doorbells(&said).len(), 1, "{release} {told}");
            let c = m.model.channels().next().unwrap();
            assert_eq!(c.ring, Some(CpuVa(BASE)), "{release} {told}");
            assert_eq!(c.userd, Some(CpuVa(BASE + 0x2000)));
            assert_eq!(c.token, Some(0xa));
            assert_eq!(c.engine, Some(1));
        }
    }
}

#[test]
fn gpu_addresses_of_any_release() {
    for release in RELEASES {
        for told in [true, false] {
            let mut m = Machine::new(release, told);
            m.client(PID, C, 0);
            m.memory(PID, C, 10, 0x3e, 0x10_0000);
            m.map(PID, C, 10, Device::Control, 0x7000_0000, 0x10_0000);
            // NVOS46 and NVOS47 moved at 580 and 550.
            m.map_dma(PID, C, 1, 10, 0x40_0000, 0x10_0000);
            assert_eq!(
                m.model.cpu_address(PID, GpuVa(0x40_0123)),
                CpuVa(0x7000_0123),
                "{release} {told}"
            );
            m.unmap_dma(PID, C, 1, 0x40_0000);
            assert_eq!(m.model.cpu_address(PID, GpuVa(0x40_0123)), CpuVa(0x40_0123));
            // UVM's structure moved at 550 and does not tell its size.
            m.uvm(
                PID,
                0x21,
                "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS",
                &[
                    ("base", 0x9_0000_0000),
                    ("length", 0x10_0000),
                    ("hClient", C),
                    ("hMemory", 10),
                    ("gpuAttributesCount", 1),
                ],
            );
            let found = m.model.resolve(PID, GpuVa(0x9_0000_0010)).unwrap();
            assert_eq!(found.object.unwrap().handle, 10, "{release} {told}");
            assert!(found.stated, "{release} {told}");
        }
    }
}

#[test]
fn a_failed_allocation_of_any_release_is_seen_to_have_failed() {
    for release in RELEASES {
        let version: Version = release.parse().unwrap();
        for told in [true, false] {
            for name in ["NVOS64_PARAMETERS", "NVOS21_PARAMETERS"] {
                let mut m = Machine::new(release, told);
                m.client(PID, C, 0);
                let mut fields = vec![
                    ("hRoot", C),
                    ("hObjectParent", 1),
                    ("hObjectNew", 12),
                    ("hClass", 0xc86f),
                ];
                if layout(name, Some(version), None)
                    .unwrap()
                    .field("paramsSize")
                    .is_some()
                {
                    fields.push(("paramsSize", 368));
                }
                let input = m.fill(name, &fields);
                fields.push(("status", 0x1f));
                let output = m.fill(name, &fields);
                let mut ioctl = rm(PID, 0x2b, input, None);
                ioctl.output = bytes(output);
                m.ioctl(ioctl);
                assert_eq!(m.model.stats().failed, 1, "{release} {told} {name}");
                assert_eq!(m.model.channels().count(), 0);
            }
        }
    }
}

#[test]
fn the_release_is_learnt_from_the_driver_s_own_words() {
    let mut m = Machine::new("550.54.14", false);
    let mut data = m.fill("nv_ioctl_rm_api_version_t", &[]);
    data[8..17].copy_from_slice(b"550.54.14");
    m.ioctl(rm(PID, 0xd2, data, None));
    let version = Version::new(550, 54, 14);
    assert_eq!(m.said(), [Change::DriverVersion(version)]);
    assert_eq!(m.model.version(), Some(version));
    // Text that is no version teaches nothing.
    let mut data = m.fill("nv_ioctl_rm_api_version_t", &[]);
    data[8..13].copy_from_slice(b"hello");
    m.ioctl(rm(PID, 0xd2, data, None));
    assert_eq!(m.model.version(), Some(version));
}

#[test]
fn parameters_that_were_cut_give_what_is_whole() {
    let mut m = Machine::new("580.159.04", true);
    m.client(PID, C, 0);
    m.memory(PID, C, 10, 0x40, 0x20_0000);
    m.map(PID, C, 10, Device::Gpu(0), BASE, 0x20_0000);
    let arg = m.fill(
        "NVOS64_PARAMETERS",
        &[
            ("hRoot", C),
            ("hObjectParent", 1),
            ("hObjectNew", 12),
            ("hClass", 0xc86f),
        ],
    );
    let full = m.fill(
        "NV_CHANNEL_ALLOC_PARAMS",
        &[
            ("gpFifoOffset", BASE),
            ("gpFifoEntries", 512),
            ("hUserdMemory", 10),
            ("userdOffset", 0x2000),
        ],
    );
    for len in 0..full.len() {
        let mut ioctl = rm(PID, 0x2b, arg.clone(), Some(full[..len].to_vec()));
        ioctl.nested.as_mut().unwrap().input.full_len = full.len() as u64;
        m.ioctl(ioctl);
        let c = m.model.channels().next().unwrap();
        assert_eq!(c.ring, (len >= 16).then_some(CpuVa(BASE)), "{len}");
        assert_eq!(c.entries, (len >= 20).then_some(512), "{len}");
        assert_eq!(
            c.userd,
            (len >= 72).then_some(CpuVa(BASE + 0x2000)),
            "{len}"
        );
    }
    // More was captured than there is: the tracer guessed the size.
    let mut long = full.clone();
    long.resize(512, 0xee);
    m.ioctl(rm(PID, 0x2b, arg, Some(long)));
    let c = m.model.channels().next().unwrap();
    assert_eq!(c.userd, Some(CpuVa(BASE + 0x2000)));
}
