//! Builds the records that a process's ioctls and mmaps would give, by the tables' layouts of any release.
#![allow(dead_code)] // Each test program uses a part.

use nvcap_decode::{
    driver::{self, Change, Model, ModelOptions, Version, layout, rm_request},
    record::{At, Bytes, CpuVa, Device, Ioctl, Life, Mapping, Nested, Process, Record, Unmapping},
};

/// A structure's bytes with some fields set.
pub fn fill(name: &str, version: Option<Version>, fields: &[(&str, u64)]) -> Vec<u8> {
    let layout = layout(name, version, None).unwrap_or_else(|| panic!("no layout of {name}"));
    let mut data = vec![0; layout.size()];
    for (field, value) in fields {
        let f = layout
            .field(field)
            .unwrap_or_else(|| panic!("{name} has no {field}"));
        let size = f.size.min(8).min(first_element(f.kind, f.size));
        data[f.offset..f.offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }
    data
}

fn first_element(kind: &str, size: usize) -> usize {
    match kind.split_once('[') {
        Some((_, n)) => size / n.trim_end_matches(']').parse::<usize>().unwrap(),
        None => size,
    }
}

pub fn bytes(data: Vec<u8>) -> Bytes {
    Bytes {
        full_len: data.len() as u64,
        data,
    }
}

pub fn at(pid: u32) -> At {
    At {
        time_ns: 1,
        pid,
        tid: pid,
    }
}

pub fn process(pid: u32, life: Life) -> Record {
    Record::Process(Process { at: at(pid), life })
}

pub fn munmap(pid: u32, start: u64, len: u64) -> Record {
    Record::Unmapping(Unmapping {
        at: at(pid),
        start: CpuVa(start),
        len,
    })
}

pub fn mmap(pid: u32, device: Device, fd: i32, start: u64, len: u64) -> Mapping {
    Mapping {
        at: at(pid),
        device,
        fd: Some(fd),
        file: 0,
        start: CpuVa(start),
        len,
        read: true,
        write: true,
        found: false,
    }
}

pub fn rm(pid: u32, nr: u8, data: Vec<u8>, nested: Option<Vec<u8>>) -> Ioctl {
    Ioctl {
        at: at(pid),
        end_ns: Some(2),
        device: Device::Control,
        fd: Some(3),
        file: 0,
        named_file: 0,
        request: rm_request(nr, u16::try_from(data.len()).unwrap()),
        result: Some(0),
        input: bytes(data.clone()),
        output: bytes(data),
        nested: nested.map(|n| Nested {
            address: CpuVa(0x1000),
            input: bytes(n.clone()),
            output: bytes(n),
        }),
    }
}

/// A machine: a model that is given what processes do, and collects what it says.
pub struct Machine {
    pub model: Model,
    pub changes: Vec<Change>,
    /// The release whose layouts the processes use.
    pub version: Version,
}

pub const CHANNEL: u64 = 0xc86f;
pub const USERMODE: u64 = 0xc661;

impl Machine {
    /// `told`: the model is told the release beforehand.
    pub fn new(version: &str, told: bool) -> Self {
        let version: Version = version.parse().unwrap();
        Self {
            model: Model::new(ModelOptions {
                driver_version: told.then_some(version),
            }),
            changes: Vec::new(),
            version,
        }
    }

    pub fn give(&mut self, record: &Record) {
        let changes = self.model.record(record);
        self.changes.extend(changes);
    }

    pub fn ioctl(&mut self, ioctl: Ioctl) {
        self.give(&Record::Ioctl(Box::new(ioctl)));
    }

    pub fn fill(&self, name: &str, fields: &[(&str, u64)]) -> Vec<u8> {
        fill(name, Some(self.version), fields)
    }

    pub fn alloc(
        &mut self,
        pid: u32,
        client: u64,
        parent: u64,
        handle: u64,
        class: u64,
        params: Option<(&str, &[(&str, u64)])>,
    ) {
        let arg = self.fill(
            "NVOS64_PARAMETERS",
            &[
                ("hRoot", client),
                ("hObjectParent", parent),
                ("hObjectNew", handle),
                ("hClass", class),
                ("pAllocParms", if params.is_some() { 0x1000 } else { 0 }),
            ],
        );
        let params = params.map(|(name, fields)| self.fill(name, fields));
        self.ioctl(rm(pid, 0x2b, arg, params));
    }

    /// A client with a device (`client + 1`) of that instance and a subdevice (`client + 2`).
    pub fn client(&mut self, pid: u32, client: u64, instance: u64) {
        let mut root = rm(pid, 0x2b, self.fill("NVOS64_PARAMETERS", &[]), None);
        root.output = bytes(self.fill(
            "NVOS64_PARAMETERS",
            &[("hObjectNew", client), ("hClass", 0x41)],
        ));
        self.ioctl(root);
        self.alloc(
            pid,
            client,
            client,
            1,
            0x80,
            Some(("NV0080_ALLOC_PARAMETERS", &[("deviceId", instance)])),
        );
        self.alloc(pid, client, 1, 2, 0x2080, None);
    }

    /// Memory of a class (0x3e system, 0x40 video).
    pub fn memory(&mut self, pid: u32, client: u64, handle: u64, class: u64, size: u64) {
        let attr = if class == 0x3e { 1 << 25 } else { 0 };
        self.alloc(
            pid,
            client,
            1,
            handle,
            class,
            Some((
                "NV_MEMORY_ALLOCATION_PARAMS",
                &[("size", size), ("attr", attr)],
            )),
        );
    }

    /// NV_ESC_RM_MAP_MEMORY, then the mmap.
    pub fn map(
        &mut self,
        pid: u32,
        client: u64,
        handle: u64,
        device: Device,
        start: u64,
        len: u64,
    ) {
        self.map_request(pid, client, handle, 0, len, 40);
        self.give(&Record::Mapping(mmap(pid, device, 40, start, len)));
    }

    pub fn map_request(
        &mut self,
        pid: u32,
        client: u64,
        handle: u64,
        offset: u64,
        len: u64,
        fd: u64,
    ) {
        let arg = self.fill(
            "nv_ioctl_nvos33_parameters_with_fd",
            &[
                ("hClient", client),
                ("hDevice", 1),
                ("hMemory", handle),
                ("offset", offset),
                ("length", len),
                ("fd", fd),
            ],
        );
        self.ioctl(rm(pid, 0x4e, arg, None));
    }

    pub fn map_dma(&mut self, pid: u32, client: u64, dma: u64, handle: u64, gpu: u64, len: u64) {
        let arg = self.fill(
            "NVOS46_PARAMETERS",
            &[
                ("hClient", client),
                ("hDevice", 1),
                ("hDma", dma),
                ("hMemory", handle),
                ("length", len),
                ("dmaOffset", gpu),
            ],
        );
        self.ioctl(rm(pid, 0x57, arg, None));
    }

    pub fn unmap_dma(&mut self, pid: u32, client: u64, dma: u64, gpu: u64) {
        let arg = self.fill(
            "NVOS47_PARAMETERS",
            &[
                ("hClient", client),
                ("hDevice", 1),
                ("hDma", dma),
                ("dmaOffset", gpu),
            ],
        );
        self.ioctl(rm(pid, 0x58, arg, None));
    }

    #[allow(clippy::too_many_arguments)] // As many as say where a channel's parts are.
    pub fn channel(
        &mut self,
        pid: u32,
        client: u64,
        parent: u64,
        handle: u64,
        ring: u64,
        userd: (u64, u64),
        more: &[(&str, u64)],
    ) {
        let name = if layout("NV_CHANNEL_ALLOC_PARAMS", Some(self.version), None)
            .is_some_and(|l| l.range().contains(self.version))
        {
            "NV_CHANNEL_ALLOC_PARAMS"
        } else {
            "NV_CHANNELGPFIFO_ALLOCATION_PARAMETERS"
        };
        let mut fields = vec![
            ("gpFifoOffset", ring),
            ("gpFifoEntries", 1024),
            ("hUserdMemory", userd.0),
            ("userdOffset", userd.1),
            ("engineType", 1),
        ];
        fields.extend_from_slice(more);
        self.alloc(pid, client, parent, handle, CHANNEL, Some((name, &fields)));
    }

    pub fn token(&mut self, pid: u32, client: u64, handle: u64, token: u64) {
        let arg = self.fill(
            "NVOS54_PARAMETERS",
            &[
                ("hClient", client),
                ("hObject", handle),
                ("cmd", 0xc36f_0108),
                ("params", 0x1000),
                ("paramsSize", 4),
            ],
        );
        let token = u32::try_from(token).unwrap();
        self.ioctl(rm(pid, 0x2a, arg, Some(token.to_le_bytes().to_vec())));
    }

    pub fn free(&mut self, pid: u32, client: u64, parent: u64, handle: u64) {
        let arg = self.fill(
            "NVOS00_PARAMETERS",
            &[
                ("hRoot", client),
                ("hObjectParent", parent),
                ("hObjectOld", handle),
            ],
        );
        self.ioctl(rm(pid, 0x29, arg, None));
    }

    pub fn dup(&mut self, pid: u32, to: (u64, u64, u64), from: (u64, u64)) {
        let arg = self.fill(
            "NVOS55_PARAMETERS",
            &[
                ("hClient", to.0),
                ("hParent", to.1),
                ("hObject", to.2),
                ("hClientSrc", from.0),
                ("hObjectSrc", from.1),
            ],
        );
        self.ioctl(rm(pid, 0x34, arg, None));
    }

    pub fn uvm(&mut self, pid: u32, request: u32, name: &str, fields: &[(&str, u64)]) {
        let data = self.fill(name, fields);
        let mut ioctl = rm(pid, 0, Vec::new(), None);
        ioctl.device = Device::Uvm;
        ioctl.request = request;
        ioctl.input = bytes(data.clone());
        ioctl.output = bytes(data);
        self.ioctl(ioctl);
    }

    /// A CUDA-like process: one channel, ring and USERD in one video memory object mapped at its GPU address.
    pub fn cuda(&mut self, pid: u32, client: u64, instance: u64, minor: u32, base: u64) {
        self.client(pid, client, instance);
        self.alloc(
            pid,
            client,
            2,
            5,
            USERMODE,
            (self.version >= Version::new(520, 56, 6))
                .then_some(("NV_HOPPER_USERMODE_A_PARAMS", &[("bBar1Mapping", 1)])),
        );
        self.map(
            pid,
            client,
            5,
            Device::Gpu(minor),
            base + 0x1000_0000,
            0x10000,
        );
        self.memory(pid, client, 10, 0x40, 0x20_0000);
        self.map(pid, client, 10, Device::Gpu(minor), base, 0x20_0000);
        self.alloc(
            pid,
            client,
            1,
            11,
            0xa06c,
            Some((
                "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS",
                &[("engineType", 1)],
            )),
        );
        self.channel(pid, client, 11, 12, base, (10, 0x2000), &[]);
    }

    pub fn said(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }
}

/// Channels announced, by number.
pub fn announced(changes: &[Change]) -> Vec<u32> {
    changes
        .iter()
        .filter_map(|c| match c {
            Change::Channel(c) => Some(c.id.0),
            _ => None,
        })
        .collect()
}

/// Channels said to be gone, by number.
pub fn gone(changes: &[Change]) -> Vec<u32> {
    changes
        .iter()
        .filter_map(|c| match c {
            Change::ChannelGone { channel, .. } => Some(channel.0),
            _ => None,
        })
        .collect()
}

/// Addresses of doorbell pages that came.
pub fn doorbells(changes: &[Change]) -> Vec<u64> {
    changes
        .iter()
        .filter_map(|c| match c {
            Change::DoorbellPage { cpu_va, .. } => Some(cpu_va.0),
            _ => None,
        })
        .collect()
}

/// Addresses of doorbell pages that went.
pub fn doorbells_gone(changes: &[Change]) -> Vec<u64> {
    changes
        .iter()
        .filter_map(|c| match c {
            Change::DoorbellGone { cpu_va, .. } => Some(cpu_va.0),
            _ => None,
        })
        .collect()
}

/// A pseudo-random number generator (xorshift64*), the same for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// The size of an allocation's parameters, for tests that cut them.
pub fn allocation_size(class: u32, version: Version) -> usize {
    driver::allocation_size(class, Some(version)).unwrap()
}
