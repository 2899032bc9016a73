//! The driver and the GPU behind it for `nvcap bench`: answers the calls of one client and executes what its channels are
//! given, in memory.
//!
//! Addresses, handles and tokens follow from the order of the calls alone, so that a tracer can be told them before. Each
//! submission that is executed is kept: what a tracer must have seen.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nvcap_decode::driver::{Layout, Version, layout};
use nvcap_decode::wire::entry;
use nvcap_process::rm::{Access, Mapping, Os};

use crate::engine::{Engine, Memory};

/// Address of the first memory object; others follow one after the other. The process's addresses and the GPU's are the same.
const FIRST: u64 = 0x3_0000_0000;
const STEP: u64 = 0x20_0000;

/// The doorbell in its page.
const DOORBELL: u64 = 0x90;

/// GP_GET in USERD; GP_PUT follows.
const GP_GET: u64 = 0x88;

/// Classes that it takes: channels, doorbells, compute, copies of Hopper.
const CLASSES: [u32; 4] = [0xc86f, 0xc661, 0xcbc0, 0xc8b5];
/// Its engines: graphics, two copy engines.
const ENGINES: [u32; 3] = [0x1, 0x9, 0xb];

/// A submission that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// The channel's token.
    pub token: u32,
    /// The ring entry.
    pub entry: u64,
    /// The pushbuffer.
    pub bytes: Vec<u8>,
}

/// An object of the client.
#[derive(Clone, Copy, Debug, Default)]
struct Object {
    /// Bytes of memory, or engine of a channel group.
    number: u64,
    /// Address of memory as the GPU sees it.
    address: u64,
}

/// A channel.
#[derive(Debug)]
struct Channel {
    token: u32,
    engine: u32,
    ring: u64,
    entries: u64,
    userd: u64,
    state: Engine,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<u32, Object>,
    channels: BTreeMap<u32, Channel>,
    /// Objects that NV_ESC_RM_MAP_MEMORY named, by file.
    named: BTreeMap<i32, u32>,
    memory: Memory,
    next: u64,
    doorbell: Option<u64>,
    executed: Vec<Executed>,
    keep: bool,
    version: Option<Version>,
}

/// The file and the memory that a call for a mapping names: the next mmap of the file maps it.
pub(crate) fn named(call: &Fields, argument: &[u8]) -> io::Result<(i32, u64)> {
    let fd = call.get(argument, "fd")? as i32;
    Ok((fd, call.get(argument, "hMemory")?))
}

/// The driver of one client, with its GPU.
#[derive(Debug)]
pub struct Rm {
    state: Arc<Mutex<State>>,
    end: Arc<AtomicBool>,
    gpu: Option<JoinHandle<()>>,
}

/// View of the driver's state for whoever made it, also when the client has closed it.
#[derive(Clone, Debug)]
pub struct RmView(Arc<Mutex<State>>);

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rm {
    /// A driver of a release (of the newest without one), without a client. With `keep`, what is executed is kept.
    pub fn new(version: Option<Version>, keep: bool) -> (Rm, RmView) {
        let state = State {
            next: FIRST,
            version,
            keep,
            ..State::default()
        };
        let state = Arc::new(Mutex::new(state));
        let end = Arc::new(AtomicBool::new(false));
        let gpu = {
            let (state, end) = (Arc::clone(&state), Arc::clone(&end));
            std::thread::spawn(move || {
                while !end.load(Ordering::Acquire) {
                    if !lock(&state).work() {
                        std::thread::yield_now();
                    }
                }
            })
        };
        let view = RmView(Arc::clone(&state));
        let gpu = Some(gpu);
        (Rm { state, end, gpu }, view)
    }
}

impl Rm {
    /// The file that NV_ESC_RM_MAP_MEMORY has named, and what another process is to have in its place: as [`Os::map`].
    ///
    /// # Errors
    /// Where there is no such memory.
    pub(crate) fn file_to_map(&self, argument: &[u8]) -> io::Result<(i32, File)> {
        let mut state = lock(&self.state);
        let call = state.fields("nv_ioctl_nvos33_parameters_with_fd")?;
        let (fd, handle) = named(&call, argument)?;
        let len = call.get(argument, "length")?;
        let address = state.mapped(handle as u32, len)?;
        Ok((fd, state.memory.file_at(address)?.0))
    }

    /// Address, length and file of a memory object that was mapped.
    ///
    /// # Errors
    /// Where there is none.
    pub(crate) fn memory_of(&self, handle: u32) -> io::Result<(u64, u64, File)> {
        let state = lock(&self.state);
        let object = state.objects.get(&handle).ok_or(io::ErrorKind::NotFound)?;
        let (file, len) = state.memory.file_at(object.address)?;
        Ok((object.address, len, file))
    }
}

impl Drop for Rm {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        if let Some(gpu) = self.gpu.take() {
            let _ = gpu.join();
        }
    }
}

impl RmView {
    /// The channels file for nvcap (docs/channels-file.md).
    pub fn channels_file(&self) -> String {
        let state = lock(&self.0);
        let mut text = String::from("# The software GPU's channels of `nvcap bench`.\n");
        if let Some(page) = state.doorbell {
            let _ = writeln!(text, "doorbell addr={:#x} gpu=0", page + DOORBELL);
        }
        for c in state.channels.values() {
            let _ = writeln!(
                text,
                "channel gpu=0 token={:#x} class={:#x} engine={:#x} ring={:#x} entries={} userd={:#x}",
                c.token, CLASSES[0], c.engine, c.ring, c.entries, c.userd
            );
        }
        text
    }

    /// Returns the executed submissions, in order.
    pub fn executed(&self) -> Vec<Executed> {
        lock(&self.0).executed.clone()
    }
}

impl Os for Rm {
    fn open(&self, _path: &str) -> io::Result<OwnedFd> {
        Ok(File::open("/dev/null")?.into())
    }

    fn ioctl(&self, _fd: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> io::Result<()> {
        let mut state = lock(&self.state);
        match request as u8 {
            0x29 | 0xc9 => {}
            0x2a => state.control(argument)?,
            0x2b => state.alloc(argument)?,
            0x4e => state.name(argument)?,
            0x57 => state.map_gpu(argument)?,
            0xc8 => {
                state
                    .fields("nv_ioctl_card_info_t")?
                    .set(argument, "valid", 1)?;
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        Ok(())
    }

    fn map(&self, fd: BorrowedFd<'_>, len: usize, _access: Access) -> io::Result<Mapping> {
        let mut state = lock(&self.state);
        let handle = state.named.remove(&fd.as_raw_fd());
        let handle = handle.ok_or(io::ErrorKind::InvalidInput)?;
        let address = state.mapped(handle, len as u64)?;
        state.memory.mapping(address, Some(address), len)
    }
}

/// The name that a release has for the parameters of a channel.
fn channel_parameters(version: Option<Version>) -> &'static str {
    match version {
        Some(version) if version.major < 525 => "NV_CHANNELGPFIFO_ALLOCATION_PARAMETERS",
        _ => "NV_CHANNEL_ALLOC_PARAMS",
    }
}

impl State {
    /// A structure as the driver's release has it.
    fn fields(&self, name: &'static str) -> io::Result<Fields> {
        Fields::of(name, self.version)
    }

    /// The argument of an ioctl, which must have the release's size.
    fn call(&self, name: &'static str, argument: &[u8]) -> io::Result<Fields> {
        let fields = self.fields(name)?;
        match fields.0.size() == argument.len() {
            true => Ok(fields),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn alloc(&mut self, argument: &mut [u8]) -> io::Result<()> {
        let call = self.call("NVOS64_PARAMETERS", argument)?;
        let class = call.get(argument, "hClass")? as u32;
        let parent = call.get(argument, "hObjectParent")? as u32;
        let pointer = call.get(argument, "pAllocParms")?;
        let mut object = Object::default();
        let handle = 0xcaf0_0000 + self.objects.len() as u32;
        let read =
            |name: &'static str, field: &'static str| self.fields(name)?.get_at(pointer, field);
        match class {
            0x3e | 0x40 => object.number = read("NV_MEMORY_ALLOCATION_PARAMS", "size")?,
            0xa06c => {
                object.number = read("NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS", "engineType")?;
            }
            class if class == CLASSES[0] => {
                let name = channel_parameters(self.version);
                let memory = read(name, "hUserdMemory")? as u32;
                let memory = self.objects.get(&memory).copied().unwrap_or_default();
                let group = self.objects.get(&parent).copied().unwrap_or_default();
                let channel = Channel {
                    token: 0xa + self.channels.len() as u32,
                    engine: group.number as u32,
                    ring: read(name, "gpFifoOffset")?,
                    entries: read(name, "gpFifoEntries")?.max(1),
                    userd: memory.address + read(name, "userdOffset")?,
                    state: Engine::default(),
                };
                self.channels.insert(handle, channel);
            }
            _ => {}
        }
        self.objects.insert(handle, object);
        call.set(argument, "hObjectNew", handle.into())
    }

    fn control(&mut self, argument: &mut [u8]) -> io::Result<()> {
        let call = self.call("NVOS54_PARAMETERS", argument)?;
        let pointer = call.get(argument, "params")?;
        let len = call.get(argument, "paramsSize")? as usize;
        let object = call.get(argument, "hObject")? as u32;
        // SAFETY: the client says that so many bytes lie there, and keeps them during the call.
        let bytes = unsafe { std::slice::from_raw_parts_mut(pointer as *mut u8, len) };
        let list =
            |bytes: &mut [u8], name, count: &'static str, list: &'static str, all: &[u32]| {
                let fields = self.call(name, bytes)?;
                fields.set(bytes, count, all.len() as u64)?;
                let at = fields.range(list)?.start;
                for (i, number) in all.iter().enumerate() {
                    bytes[at + 4 * i..][..4].copy_from_slice(&number.to_le_bytes());
                }
                io::Result::Ok(())
            };
        match call.get(argument, "cmd")? {
            0x0080_0292 => {
                let name = "NV0080_CTRL_GPU_GET_CLASSLIST_V2_PARAMS";
                list(bytes, name, "numClasses", "classList", &CLASSES)
            }
            0x2080_0170 => {
                let name = "NV2080_CTRL_GPU_GET_ENGINES_V2_PARAMS";
                list(bytes, name, "engineCount", "engineList", &ENGINES)
            }
            0x2080_2a02 => {
                let fields = self.call("NV2080_CTRL_CE_GET_CE_PCE_MASK_PARAMS", bytes)?;
                // Both copy engines have physical engine 4, the second has another one, too.
                let own = 0x10 << (fields.get(bytes, "ceEngineType")? - 9);
                fields.set(bytes, "pceMask", 0x10 | own)
            }
            0xc36f_0108 => {
                let token = self.channels.get(&object).map_or(0, |c| c.token);
                let name = "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS";
                self.call(name, bytes)?
                    .set(bytes, "workSubmitToken", token.into())
            }
            _ => Ok(()),
        }
    }

    /// Notes what the next mmap of a file maps.
    fn name(&mut self, argument: &mut [u8]) -> io::Result<()> {
        let call = self.call("nv_ioctl_nvos33_parameters_with_fd", argument)?;
        let (fd, memory) = named(&call, argument)?;
        self.named.insert(fd, memory as u32);
        Ok(())
    }

    fn map_gpu(&mut self, argument: &mut [u8]) -> io::Result<()> {
        let call = self.call("NVOS46_PARAMETERS", argument)?;
        let handle = call.get(argument, "hMemory")? as u32;
        let len = call.get(argument, "length")?;
        let address = self.room(handle, len)?;
        call.set(argument, "dmaOffset", address)
    }

    /// The address of an object that is mapped.
    fn mapped(&mut self, handle: u32, len: u64) -> io::Result<u64> {
        let object = *self.objects.get(&handle).ok_or(io::ErrorKind::NotFound)?;
        match object.address {
            // Doorbells have no address of the GPU's.
            0 => {
                let page = self.room(handle, len)?;
                self.doorbell = Some(page);
                Ok(page)
            }
            address => Ok(address),
        }
    }

    /// Memory for an object, at the next address.
    fn room(&mut self, handle: u32, len: u64) -> io::Result<u64> {
        let address = self.next;
        self.next += len.next_multiple_of(STEP);
        self.memory.add(address, len)?;
        if let Some(object) = self.objects.get_mut(&handle) {
            object.address = address;
        }
        Ok(address)
    }

    /// Executes an entry of each channel that has one; tells whether there was any.
    fn work(&mut self) -> bool {
        let mut any = false;
        for channel in self.channels.values_mut() {
            let memory = &self.memory;
            let read = |address| memory.read(address).unwrap_or(0);
            let (get, put) = (
                read(channel.userd + GP_GET),
                read(channel.userd + GP_GET + 4),
            );
            if get == put {
                continue;
            }
            fence(Ordering::Acquire);
            let at = channel.ring + 8 * u64::from(get);
            let raw = u64::from(read(at)) | u64::from(read(at + 4)) << 32;
            let bytes = match entry::segment_of(raw, 0) {
                Some((address, len)) => memory.bytes(address.0, len as usize),
                None => Vec::new(),
            };
            if !channel.state.run(&bytes, memory) {
                // It waits for a semaphore.
                continue;
            }
            if self.keep {
                self.executed.push(Executed {
                    token: channel.token,
                    entry: raw,
                    bytes,
                });
            }
            let next = (u64::from(get) + 1) % channel.entries;
            memory.write(channel.userd + GP_GET, next as u32);
            channel.state.release(memory);
            any = true;
        }
        any
    }
}

/// The fields of a structure, by name.
#[derive(Clone, Copy)]
pub(crate) struct Fields(Layout);

impl Fields {
    /// The structure as a release has it, as the newest has it without one.
    pub(crate) fn of(name: &'static str, version: Option<Version>) -> io::Result<Self> {
        let layout = layout(name, version, None);
        Ok(Self(layout.ok_or(io::ErrorKind::Unsupported)?))
    }

    /// Length in bytes.
    pub(crate) fn len(self) -> usize {
        self.0.size()
    }

    fn range(self, field: &'static str) -> io::Result<std::ops::Range<usize>> {
        let field = self.0.field(field).ok_or(io::ErrorKind::InvalidInput)?;
        // Of an array, the first element.
        let size = match field.kind.split_once('[') {
            Some(("NvU64", _)) => 8,
            Some(_) => 4,
            None => field.size,
        };
        Ok(field.offset..field.offset + size)
    }

    pub(crate) fn get(self, bytes: &[u8], field: &'static str) -> io::Result<u64> {
        let bytes = bytes.get(self.range(field)?);
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?.iter().rev();
        Ok(bytes.fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    pub(crate) fn set(self, bytes: &mut [u8], field: &'static str, value: u64) -> io::Result<()> {
        let bytes = bytes.get_mut(self.range(field)?);
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
        let len = bytes.len().min(8);
        bytes[..len].copy_from_slice(&value.to_le_bytes()[..len]);
        Ok(())
    }

    /// A field of a structure that the client's argument points to.
    pub(crate) fn get_at(self, pointer: u64, field: &'static str) -> io::Result<u64> {
        if pointer == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the client gives the class's structure, of the same table, and keeps it during the call.
        let bytes = unsafe { std::slice::from_raw_parts(pointer as *const u8, self.0.size()) };
        self.get(bytes, field)
    }
}
