//! A CUDA process's calls to nvidia.ko: clients, devices, memory, mappings and channels, by ioctl and mmap.
//!
//! The order and the parameters are those of a CUDA 13.0 process that adds vectors on an H200, reduced to calls that make
//! objects; sizes and offsets are those of the driver branch in /proc/driver/nvidia/version. It is meant for the stand-in
//! module of tests/vm: a real GPU would run the submissions, so any other driver is refused. Knows nothing of plans and
//! submissions.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail};

use crate::form::{COMPUTE_CLASS, COPY_CLASS};
use crate::layout::{
    CHANNELS, Channel, DOORBELL_PAGE, ENTRIES, HOST_CLASS, PUSHBUFFERS_LEN, RINGS_LEN, Unit,
    doorbell_page, pushbuffers, rings,
};
use crate::stream::semaphore;

const ESC_FREE: u8 = 0x29;
const ESC_CONTROL: u8 = 0x2a;
const ESC_ALLOC: u8 = 0x2b;
const ESC_MAP_MEMORY: u8 = 0x4e;
const ESC_UPDATE_DEVICE_MAPPING_INFO: u8 = 0x5e;
const ESC_CARD_INFO: u8 = 0xc8;
const ESC_REGISTER_FD: u8 = 0xc9;
const ESC_CHECK_VERSION_STR: u8 = 0xd2;
const ESC_SYS_PARAMS: u8 = 0xd6;

const UVM_REGISTER_GPU_VASPACE: u32 = 0x19;
const UVM_REGISTER_CHANNEL: u32 = 0x1b;
const UVM_MAP_EXTERNAL_ALLOCATION: u32 = 0x21;
const UVM_REGISTER_GPU: u32 = 0x25;
const UVM_CREATE_EXTERNAL_RANGE: u32 = 0x49;
const UVM_MM_INITIALIZE: u32 = 0x4b;
const UVM_INITIALIZE: u32 = 0x3000_0001;

/// Bytes of the mapping that holds a GPU's tracking semaphores.
pub const SEMAPHORES_LEN: u64 = 0x1000;

/// An argument or parameter structure, by offsets.
struct Struct(Vec<u8>);

impl Struct {
    fn new(len: usize) -> Self {
        Struct(vec![0; len])
    }
    fn u32(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }
    fn u64(mut self, at: usize, value: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }
    fn bytes(mut self, at: usize, value: &[u8]) -> Self {
        self.0[at..at + value.len()].copy_from_slice(value);
        self
    }
    fn get(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }
}

/// One context on every requested GPU. The driver ends it when the files are closed.
#[derive(Debug)]
pub struct Device {
    branch: u32,
    ctl: File,
    uvm: File,
    client: u32,
    next: u32,
    tokens: Vec<u32>,
    /// Kept open, as CUDA does.
    _gpus: Vec<File>,
}

fn open(path: &str) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .with_context(|| format!("cannot open {path}: is the stand-in module loaded?"))
}

fn ioctl(file: &File, request: u32, arg: &mut [u8]) -> io::Result<()> {
    // SAFETY: `arg` is writable for its whole length, which is the request's size or, for UVM's plain numbers, the size of
    // that request's structure.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), u64::from(request) as _, arg.as_mut_ptr()) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `_IOWR('F', nr, len)`.
fn escape_number(nr: u8, len: usize) -> u32 {
    3 << 30 | (len as u32) << 16 | u32::from(b'F') << 8 | u32::from(nr)
}

/// The NV2080_ENGINE_TYPE for which CUDA allocates a runlist's channel group.
fn engine(channel: Channel) -> u32 {
    match channel.runlist() {
        0 => 0x01,
        1 => 0x0b,
        3 => 0x0c,
        _ => 0x0d,
    }
}

impl Device {
    /// Makes the context and maps everything of `gpus` GPUs at the places of [`crate::layout`]; each range is added to
    /// `mapped` at once, so that mappings made before an error can be undone.
    pub fn open(gpus: usize, mapped: &mut Vec<(u64, u64)>) -> Result<Device> {
        let version = std::fs::read_to_string("/proc/driver/nvidia/version")
            .context("cannot read /proc/driver/nvidia/version: no NVIDIA driver is loaded")?;
        if !version.contains("nvcap stand-in") {
            bail!(
                "the loaded NVIDIA driver is not the stand-in of tests/vm: a real GPU would run what is submitted"
            );
        }
        let branch = version
            .split_whitespace()
            .find_map(|word| word.split_once('.')?.0.parse().ok())
            .context("/proc/driver/nvidia/version names no version")?;
        let mut device = Device {
            branch,
            ctl: open("/dev/nvidiactl")?,
            uvm: open("/dev/nvidia-uvm")?,
            client: 0,
            next: 0x5c00_0001,
            tokens: vec![0; gpus * CHANNELS],
            _gpus: Vec::new(),
        };
        let cards = device.begin(&version)?;
        if cards < gpus {
            bail!("the driver shows {cards} GPU(s), {gpus} are wanted: use --gpus {cards}");
        }
        for gpu in 0..gpus {
            device.context(gpu, mapped)?;
        }
        Ok(device)
    }

    /// The work-submit token that the driver gave a channel.
    pub fn token(&self, channel: Channel) -> u32 {
        self.tokens[channel.number()]
    }

    /// Its tokens by GPU and channel, for tests, if they differ from the layout's (because another process has those).
    pub fn unusual_tokens(&self) -> Option<String> {
        let all = (0..self.tokens.len() / CHANNELS)
            .flat_map(|gpu| (0..CHANNELS).map(move |index| Channel { gpu, index }));
        if all.clone().all(|c| self.token(c) == c.token()) {
            return None;
        }
        let mut text = format!("tokens pid={}", std::process::id());
        for c in all {
            text.push_str(&format!(" {}:{:#x}={:#x}", c.gpu, c.token(), self.token(c)));
        }
        Some(text)
    }

    fn handle(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    fn escape(&self, file: &File, nr: u8, arg: &mut Struct, status: Option<usize>) -> Result<()> {
        ioctl(file, escape_number(nr, arg.0.len()), &mut arg.0)
            .with_context(|| format!("escape {nr:#x}"))?;
        match status.map(|at| arg.get(at)) {
            Some(0) | None => Ok(()),
            Some(status) => bail!("escape {nr:#x}: status {status:#x}"),
        }
    }

    fn alloc(&self, parent: u32, new: u32, class: u32, params: Option<&mut Struct>) -> Result<()> {
        let pointer = params.map_or(0, |p| p.0.as_mut_ptr() as u64);
        let mut arg = Struct::new(48)
            .u32(0, self.client)
            .u32(4, parent)
            .u32(8, new)
            .u32(12, class)
            .u64(16, pointer);
        self.escape(&self.ctl, ESC_ALLOC, &mut arg, Some(40))
            .with_context(|| format!("allocating class {class:#x}"))
    }

    fn control(&self, object: u32, cmd: u32, params: &mut Struct) -> Result<()> {
        let mut arg = Struct::new(32)
            .u32(0, self.client)
            .u32(4, object)
            .u32(8, cmd)
            .u64(16, params.0.as_mut_ptr() as u64)
            .u32(24, params.0.len() as u32);
        self.escape(&self.ctl, ESC_CONTROL, &mut arg, Some(28))
            .with_context(|| format!("control {cmd:#x}"))
    }

    fn uvm(&self, request: u32, mut arg: Struct, status: usize) -> Result<()> {
        ioctl(&self.uvm, request, &mut arg.0)
            .with_context(|| format!("UVM request {request:#x}"))?;
        match arg.get(status) {
            0 => Ok(()),
            status => bail!("UVM request {request:#x}: status {status:#x}"),
        }
    }

    /// The calls before any GPU is used: version, cards, a client. Returns the number of GPUs.
    fn begin(&mut self, version: &str) -> Result<usize> {
        let word = version
            .split_whitespace()
            .find(|w| w.starts_with(&format!("{}.", self.branch)))
            .unwrap_or_default();
        let mut check = Struct::new(72).bytes(8, word.as_bytes());
        self.escape(&self.ctl, ESC_CHECK_VERSION_STR, &mut check, None)?;
        self.escape(
            &self.ctl,
            ESC_SYS_PARAMS,
            &mut Struct::new(8).u32(0, 0x4000_0000),
            None,
        )?;
        let mut cards = Struct::new(32 * 72);
        self.escape(&self.ctl, ESC_CARD_INFO, &mut cards, None)?;
        let mut root = Struct::new(48);
        self.escape(&self.ctl, ESC_ALLOC, &mut root, Some(40))?;
        // CUDA's first client only asks for the version and is then freed.
        self.client = root.get(8);
        let mut text = [0u8; 80];
        let mut build = Struct::new(40).u32(0, 80).u64(8, text.as_mut_ptr() as u64);
        self.control(self.client, 0x101, &mut build)?;
        let mut free = Struct::new(16)
            .u32(0, self.client)
            .u32(4, self.client)
            .u32(8, self.client);
        self.escape(&self.ctl, ESC_FREE, &mut free, Some(12))?;
        let mut root = Struct::new(48);
        self.escape(&self.ctl, ESC_ALLOC, &mut root, Some(40))?;
        self.client = root.get(8);
        let mut ids = Struct::new(384);
        self.control(self.client, 0x214, &mut ids)?;
        self.uvm(UVM_INITIALIZE, Struct::new(16), 8)?;
        let mm = open("/dev/nvidia-uvm")?;
        let mut arg = Struct::new(8).u32(0, self.uvm.as_raw_fd() as u32);
        ioctl(&mm, UVM_MM_INITIALIZE, &mut arg.0).context("UVM_MM_INITIALIZE")?;
        Ok(cards.0.chunks_exact(72).filter(|card| card[0] != 0).count())
    }

    fn context(&mut self, gpu: usize, mapped: &mut Vec<(u64, u64)>) -> Result<()> {
        let file = open(&format!("/dev/nvidia{gpu}"))?;
        let mut fd = Struct::new(4).u32(0, self.ctl.as_raw_fd() as u32);
        self.escape(&file, ESC_REGISTER_FD, &mut fd, None)?;
        self._gpus.push(file);
        let (device, subdevice) = (self.handle(), self.handle());
        let mut params = Struct::new(56)
            .u32(0, gpu as u32)
            .u32(4, self.client)
            .u32(48, 2);
        self.alloc(self.client, device, 0x80, Some(&mut params))?;
        self.alloc(device, subdevice, 0x2080, Some(&mut Struct::new(4)))?;
        self.control(
            device,
            0x80_0292,
            &mut Struct::new(404.max(self.class_list_size())),
        )?;
        self.control(subdevice, 0x2080_1701, &mut Struct::new(16))?;
        self.control(subdevice, 0x2080_0110, &mut Struct::new(132))?;
        let mut gid = Struct::new(268).u32(4, 2);
        self.control(subdevice, 0x2080_014a, &mut gid)?;
        let uuid: [u8; 16] = std::array::from_fn(|i| gid.0[12 + i]);
        self.uvm(
            UVM_REGISTER_GPU,
            Struct::new(40).bytes(0, &uuid).u32(24, u32::MAX),
            36,
        )?;

        // The register in BAR0 first, then the one in BAR1, which is rung.
        for page in 0..2 {
            let usermode = self.handle();
            let mut bar1 = Struct::new(2).bytes(0, &[1, 0]);
            self.alloc(
                subdevice,
                usermode,
                0xc661,
                (page == 1).then_some(&mut bar1),
            )?;
            let at = doorbell_page(gpu, page);
            self.map(
                subdevice,
                usermode,
                Some(gpu),
                at,
                DOORBELL_PAGE,
                libc::PROT_WRITE,
                mapped,
            )?;
        }

        let vaspace = self.handle();
        let size = if self.branch >= 580 { 56 } else { 48 };
        self.alloc(
            device,
            vaspace,
            0x90f1,
            Some(&mut Struct::new(size).u32(4, 0x48)),
        )?;
        let register = Struct::new(32)
            .bytes(0, &uuid)
            .u32(16, self.ctl.as_raw_fd() as u32)
            .u32(20, self.client)
            .u32(24, vaspace);
        self.uvm(UVM_REGISTER_GPU_VASPACE, register, 28)?;

        let ring_memory = self.memory(device, 0x40, RINGS_LEN)?;
        self.map_both(
            subdevice,
            ring_memory,
            Some(gpu),
            rings(gpu),
            RINGS_LEN,
            &uuid,
            mapped,
        )?;
        let pushbuffer = self.memory(device, 0x3e, PUSHBUFFERS_LEN)?;
        self.map_both(
            device,
            pushbuffer,
            None,
            pushbuffers(gpu),
            PUSHBUFFERS_LEN,
            &uuid,
            mapped,
        )?;
        let semaphores = self.memory(device, 0x3e, SEMAPHORES_LEN)?;
        let at = semaphore(Channel { gpu, index: 0 }) & !(SEMAPHORES_LEN - 1);
        self.map_both(device, semaphores, None, at, SEMAPHORES_LEN, &uuid, mapped)?;
        self.channels(gpu, device, subdevice, vaspace, ring_memory, &uuid)
    }

    fn class_list_size(&self) -> usize {
        match self.branch {
            ..550 => 644,
            550..555 => 700,
            555..580 => 404,
            _ => 804,
        }
    }

    fn memory(&mut self, device: u32, class: u32, size: u64) -> Result<u32> {
        let handle = self.handle();
        let len = if self.branch >= 545 { 128 } else { 120 };
        let mut params = Struct::new(len)
            .u32(0, self.client)
            .u32(8, 0x1c101)
            .u64(64, size);
        self.alloc(device, handle, class, Some(&mut params))?;
        Ok(handle)
    }

    /// NV_ESC_RM_MAP_MEMORY leaves the mapping's context on a file of its own; mmap then takes it.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call has these, and a structure would name each only once"
    )]
    fn map(
        &self,
        parent: u32,
        memory: u32,
        gpu: Option<usize>,
        at: u64,
        len: u64,
        prot: i32,
        mapped: &mut Vec<(u64, u64)>,
    ) -> Result<()> {
        let file = match gpu {
            Some(gpu) => open(&format!("/dev/nvidia{gpu}"))?,
            None => open("/dev/nvidiactl")?,
        };
        let mut share = Struct::new(12).u32(0, memory).u32(4, 0xc_0000);
        self.control(self.client, 0xd01, &mut share)?;
        let mut arg = Struct::new(56)
            .u32(0, self.client)
            .u32(4, parent)
            .u32(8, memory)
            .u64(24, len)
            .u32(44, 0xc_0000)
            .u32(48, file.as_raw_fd() as u32);
        self.escape(&self.ctl, ESC_MAP_MEMORY, &mut arg, Some(40))?;
        // SAFETY: MAP_FIXED_NOREPLACE takes no address that is in use; nothing is dereferenced here.
        let got = unsafe {
            libc::mmap(
                at as *mut libc::c_void,
                len as usize,
                prot,
                libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE,
                file.as_raw_fd(),
                0,
            )
        };
        if got == libc::MAP_FAILED {
            return Err(io::Error::last_os_error())
                .with_context(|| format!("mapping {len:#x} bytes at {at:#x}"));
        }
        mapped.push((at, len));
        if gpu.is_some() {
            let mut update = Struct::new(40)
                .u32(0, self.client)
                .u32(4, parent)
                .u32(8, memory)
                .u64(16, u64::from(arg.get(32)) | u64::from(arg.get(36)) << 32)
                .u64(24, at);
            self.escape(
                &self.ctl,
                ESC_UPDATE_DEVICE_MAPPING_INFO,
                &mut update,
                Some(32),
            )?;
        }
        Ok(())
    }

    /// Maps memory for the process and, at the same address, for the GPU.
    #[expect(clippy::too_many_arguments, reason = "as map")]
    fn map_both(
        &self,
        parent: u32,
        memory: u32,
        gpu: Option<usize>,
        at: u64,
        len: u64,
        uuid: &[u8; 16],
        mapped: &mut Vec<(u64, u64)>,
    ) -> Result<()> {
        self.map(
            parent,
            memory,
            gpu,
            at,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            mapped,
        )?;
        self.uvm(
            UVM_CREATE_EXTERNAL_RANGE,
            Struct::new(24).u64(0, at).u64(8, len),
            16,
        )?;
        let (size, tail) = if self.branch >= 550 {
            (9264, 9240)
        } else {
            (1200, 1176)
        };
        let external = Struct::new(size)
            .u64(0, at)
            .u64(8, len)
            .bytes(24, uuid)
            .u32(40, 1)
            .u64(tail, 1)
            .u32(tail + 8, self.ctl.as_raw_fd() as u32)
            .u32(tail + 12, self.client)
            .u32(tail + 16, memory);
        self.uvm(UVM_MAP_EXTERNAL_ALLOCATION, external, size - 4)
    }

    fn channels(
        &mut self,
        gpu: usize,
        device: u32,
        subdevice: u32,
        vaspace: u32,
        ring_memory: u32,
        uuid: &[u8; 16],
    ) -> Result<()> {
        let (mut group, mut share, mut runlist) = (0, 0, u32::MAX);
        for index in 0..CHANNELS {
            let channel = Channel { gpu, index };
            if channel.runlist() != runlist {
                runlist = channel.runlist();
                group = self.handle();
                let mut params = Struct::new(20).u32(8, vaspace).u32(12, engine(channel));
                self.alloc(device, group, 0xa06c, Some(&mut params))?;
                share = 0;
                if runlist == 0 {
                    share = self.handle();
                    let mut params = Struct::new(12).u32(0, vaspace).u32(4, 1);
                    self.alloc(group, share, 0x9067, Some(&mut params))?;
                }
            }
            let notifier = self.memory(device, 0x3e, 0x1000)?;
            let handle = self.handle();
            let len = if self.branch >= 570 { 368 } else { 360 };
            let mut params = Struct::new(len)
                .u32(0, notifier)
                .u32(4, ring_memory)
                .u64(8, channel.ring())
                .u32(16, ENTRIES)
                .u32(24, share)
                .u32(32, ring_memory)
                .u64(64, channel.userd() - rings(gpu));
            self.alloc(group, handle, HOST_CLASS, Some(&mut params))?;
            let (mut ids, handles) = ([0u32; 1], [handle]);
            let mut list = Struct::new(24)
                .u32(0, 1)
                .u64(8, handles.as_ptr() as u64)
                .u64(16, ids.as_mut_ptr() as u64);
            self.control(device, 0x80_170d, &mut list)?;
            if channel.unit() == Unit::Compute {
                let compute = self.handle();
                self.alloc(handle, compute, COMPUTE_CLASS, Some(&mut Struct::new(16)))?;
                self.control(handle, 0x906f_0101, &mut Struct::new(16).u32(0, compute))?;
            }
            let copy = self.handle();
            self.alloc(
                handle,
                copy,
                COPY_CLASS,
                Some(&mut Struct::new(8).u32(4, 1)),
            )?;
            self.control(handle, 0x906f_0101, &mut Struct::new(16).u32(0, copy))?;
            let mut token = Struct::new(4);
            self.control(handle, 0xc36f_0108, &mut token)?;
            self.tokens[channel.number()] = token.get(0);
            if token.get(0) & 0xfff != ids[0] {
                bail!(
                    "token {:#x} does not hold channel id {:#x}",
                    token.get(0),
                    ids[0]
                );
            }
            self.control(subdevice, 0x2080_1218, &mut Struct::new(16).u32(0, handle))?;
            let register = Struct::new(56)
                .bytes(0, uuid)
                .u32(16, self.ctl.as_raw_fd() as u32)
                .u32(20, self.client)
                .u32(24, handle);
            self.uvm(UVM_REGISTER_CHANNEL, register, 48)?;
            // The group is scheduled once its channels exist: with its last one.
            if index + 1 == CHANNELS
                || (Channel {
                    gpu,
                    index: index + 1,
                })
                .runlist()
                    != runlist
            {
                let len = if self.branch >= 575 { 3 } else { 2 };
                self.control(group, 0xa06c_0101, &mut Struct::new(len).bytes(0, &[1]))?;
            }
        }
        Ok(())
    }
}
