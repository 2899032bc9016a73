//! The GPU's profiler for `nvcap sample`: a driver that knows the contexts of processes, takes register programmes, and gives a stream of
//! samples whose bytes a test says, from one trigger to the next. As the real driver does, it takes calls on behalf of a client only by a file of the
//! process that made it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nvcap_process::rm::{Access, Mapping, Os};

use crate::engine::Memory;
use crate::rm::{Fields, named};

/// Address of the first memory object: a key alone, for nothing is mapped there.
const FIRST: u64 = 0x4_0000_0000;

/// NV_ERR_STATE_IN_USE, NV_ERR_INVALID_CLIENT, NV_ERR_OBJECT_NOT_FOUND, NV_ERR_INVALID_STATE.
const IN_USE: u64 = 0x63;
const INVALID_CLIENT: u64 = 0x23;
const NOT_FOUND: u64 = 0x57;
const INVALID_STATE: u64 = 0x40;

/// A call that changes what the GPU does, as the driver got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A profiler was bound to a client's object.
    Bound(u32, u32),
    /// A control command, with the bytes of its parameters.
    Control(u32, Vec<u8>),
    /// A client was freed with all that it had.
    Freed,
}

/// A client of a process.
struct Owned {
    pid: u32,
    /// Class and parent by handle.
    objects: BTreeMap<u32, (u32, u32)>,
}

/// Handle of the device of every client, and of its subdevice.
const DEVICE: u32 = 0x5c00_0002;
const SUBDEVICE: u32 = 0x5c00_0003;

/// The driver's number of the GPU.
pub const GPU: u32 = 0x100;

#[derive(Default)]
struct State {
    /// Clients of processes.
    clients: BTreeMap<u32, Owned>,
    /// Processes whose files were duplicated, by file.
    files: BTreeMap<i32, u32>,
    /// Calls on behalf of any client are taken by any file.
    lax: bool,
    /// Another client has the profiler.
    held: bool,
    next: u64,
    addresses: BTreeMap<u64, u64>,
    named: BTreeMap<i32, u64>,
    memory: Memory,
    told: Vec<Told>,
    /// Address and length of the stream's buffer.
    buffer: Option<(u64, u64)>,
    put: u64,
    /// Bytes that are written, and not given back.
    available: u64,
    /// The buffer was full since the last question.
    overflow: bool,
    is_on: bool,
}

/// The driver of one GPU, number 0.
pub struct Driver(RefCell<State>);

impl Driver {
    /// A driver that knows no process.
    #[must_use]
    pub fn new() -> Self {
        Self(RefCell::default())
    }

    /// A process makes a client with contexts: channel groups, each with a channel that computes. The group behind each copies alone.
    pub fn process(&self, pid: u32, client: u32, groups: &[u32]) {
        let mut objects = BTreeMap::from([
            (client, (0x41, 0)),
            (DEVICE, (0x80, client)),
            (SUBDEVICE, (0x2080, DEVICE)),
        ]);
        for group in groups {
            objects.insert(*group, (0xa06c, DEVICE));
            objects.insert(group + 7, (0xc86f, *group));
            objects.insert(group + 8, (0xcbc0, group + 7));
            objects.insert(group + 0x20, (0xa06c, DEVICE));
            objects.insert(group + 0x22, (0xc86f, group + 0x20));
            objects.insert(group + 0x23, (0xc8b5, group + 0x22));
        }
        let owned = Owned { pid, objects };
        self.0.borrow_mut().clients.insert(client, owned);
    }

    /// A client is freed.
    pub fn ends(&self, client: u32) {
        self.0.borrow_mut().clients.remove(&client);
    }

    /// From now on calls on behalf of any client are taken by any file, as RmValidateClientData may have it.
    pub fn takes_all(&self) {
        self.0.borrow_mut().lax = true;
    }

    /// A file, by its number, is one of a process.
    pub(crate) fn is_file_of(&self, file: i32, pid: u32) {
        self.0.borrow_mut().files.insert(file, pid);
    }

    /// A file, by its number, is one of the profiler's own.
    pub(crate) fn is_own_file(&self, file: i32) {
        self.0.borrow_mut().files.remove(&file);
    }

    /// Memory that another driver has made.
    pub(crate) fn knows_memory(
        &self,
        handle: u32,
        address: u64,
        len: u64,
        file: File,
    ) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.memory.add_file(address, len, file)?;
        state.addresses.insert(handle.into(), address);
        Ok(())
    }

    /// The context to which a profiler was bound last.
    #[must_use]
    pub fn bound(&self) -> Option<(u32, u32)> {
        let state = self.0.borrow();
        state.told.iter().rev().find_map(|told| match told {
            Told::Bound(client, group) => Some((*client, *group)),
            _ => None,
        })
    }

    /// From now on another client has the profiler, or none.
    pub fn hold(&self, is: bool) {
        self.0.borrow_mut().held = is;
    }

    /// The trigger: the first begins the samples, the next ends them.
    pub fn trigger(&self) {
        let mut state = self.0.borrow_mut();
        state.is_on = !state.is_on;
    }

    /// Tells whether samples are being made.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.borrow().is_on
    }

    /// The GPU writes bytes into the stream; what has no room is dropped.
    pub fn writes(&self, bytes: &[u8]) {
        let mut state = self.0.borrow_mut();
        let (address, len) = state.buffer.expect("a stream");
        for word in bytes.as_chunks::<4>().0 {
            if state.available + 4 > len {
                state.overflow = true;
                return;
            }
            let at = address + state.put % len;
            state.memory.write(at, u32::from_le_bytes(*word));
            state.put += 4;
            state.available += 4;
        }
    }

    /// Returns what was told so far.
    #[must_use]
    pub fn told(&self) -> Vec<Told> {
        self.0.borrow().told.clone()
    }
}

impl Default for Driver {
    fn default() -> Self {
        Self::new()
    }
}

impl Os for Driver {
    fn open(&self, _path: &str) -> io::Result<OwnedFd> {
        let file = File::open("/dev/null")?;
        self.0.borrow_mut().files.remove(&file.as_raw_fd());
        Ok(file.into())
    }

    /// Each process has one file of the driver.
    fn files_of(&self, pid: u32) -> io::Result<Vec<OwnedFd>> {
        let file = File::open("/dev/null")?;
        self.0.borrow_mut().files.insert(file.as_raw_fd(), pid);
        Ok(vec![file.into()])
    }

    fn ioctl(&self, fd: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        match request as u8 {
            0x29 => {
                state.told.push(Told::Freed);
                state.buffer = None;
                Ok(())
            }
            0x2a => state.control(fd.as_raw_fd(), argument),
            0x2b => state.alloc(argument),
            0x4e => state.name(argument),
            0xc8 => {
                let card = of("nv_ioctl_card_info_t")?;
                card.set(argument, "valid", 1)?;
                card.set(argument, "gpu_id", GPU.into())
            }
            0xc9 => Ok(()),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn map(&self, fd: BorrowedFd<'_>, len: usize, access: Access) -> io::Result<Mapping> {
        assert_ne!(access, Access::WriteOnly, "samples are read");
        let mut state = self.0.borrow_mut();
        let memory = state.named.remove(&fd.as_raw_fd());
        let address = memory.ok_or(io::ErrorKind::InvalidInput)?;
        state.memory.mapping(address, None, len)
    }
}

fn of(name: &'static str) -> io::Result<Fields> {
    Fields::of(name, None)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes[at..at + 8].iter().rev();
    bytes.fold(0, |word, byte| word << 8 | u64::from(*byte))
}

impl State {
    fn name(&mut self, argument: &mut [u8]) -> io::Result<()> {
        let call = of("nv_ioctl_nvos33_parameters_with_fd")?;
        let (fd, memory) = named(&call, argument)?;
        let address = self.addresses.get(&memory).copied();
        let address = address.ok_or(io::ErrorKind::NotFound)?;
        self.named.insert(fd, address);
        Ok(())
    }

    fn alloc(&mut self, argument: &mut [u8]) -> io::Result<()> {
        let call = of("NVOS64_PARAMETERS")?;
        let pointer = call.get(argument, "pAllocParms")?;
        self.next += 1;
        let handle = 0xcaf0_0000 + self.next;
        match call.get(argument, "hClass")? {
            0x41 | 0x80 | 0x2080 => {}
            0x3e => {
                let parameters = of("NV_MEMORY_ALLOCATION_PARAMS")?;
                let len = parameters.get_at(pointer, "size")?;
                let address = FIRST + (self.next << 32);
                self.memory.add(address, len)?;
                self.addresses.insert(handle, address);
            }
            0xb2cc => {
                let read = |field| of("NVB2CC_ALLOC_PARAMETERS")?.get_at(pointer, field);
                let target = (
                    read("hClientTarget")? as u32,
                    read("hContextTarget")? as u32,
                );
                let client = self.clients.get(&target.0);
                let object = client.and_then(|client| client.objects.get(&target.1));
                if object.is_none_or(|(class, _)| *class != 0xa06c) {
                    return call.set(argument, "status", NOT_FOUND);
                }
                self.told.push(Told::Bound(target.0, target.1));
            }
            class => panic!("class {class:#x}"),
        }
        call.set(argument, "hObjectNew", handle)
    }

    /// The client that a call names, where it is a process's: its status where the file may not use it.
    fn client(&self, file: i32, client: u32) -> Option<Result<&Owned, u64>> {
        let pid = self.files.get(&file);
        let owned = self.clients.get(&client);
        let may = |owned: &&Owned| self.lax || pid == Some(&owned.pid);
        match (owned, pid) {
            (None, None) => None,
            (owned, _) => Some(owned.filter(may).ok_or(INVALID_CLIENT)),
        }
    }

    fn control(&mut self, file: i32, argument: &mut [u8]) -> io::Result<()> {
        let call = of("NVOS54_PARAMETERS")?;
        let pointer = call.get(argument, "params")?;
        let len = call.get(argument, "paramsSize")? as usize;
        let bytes: &mut [u8] = match len {
            0 => &mut [],
            // SAFETY: the client says that so many bytes lie there, and keeps them during the call.
            _ => unsafe { std::slice::from_raw_parts_mut(pointer as *mut u8, len) },
        };
        let command = call.get(argument, "cmd")? as u32;
        let client = call.get(argument, "hClient")? as u32;
        let object = call.get(argument, "hObject")? as u32;
        match self.client(file, client) {
            Some(Err(status)) => return call.set(argument, "status", status),
            Some(Ok(owned)) => {
                let answer = match command {
                    0xd02 => {
                        let about = owned.objects.get(&(long(bytes, 0) as u32));
                        about.map(|(class, parent)| match long(bytes, 0) >> 32 {
                            1 => (8, *parent),
                            _ => (8, *class),
                        })
                    }
                    0x2080_0142 if object == SUBDEVICE => Some((0, GPU)),
                    command => panic!("control {command:#x} of another client"),
                };
                let Some((at, word)) = answer else {
                    return call.set(argument, "status", NOT_FOUND);
                };
                bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
                return Ok(());
            }
            // nvcap's own.
            None if command == 0xd02 => return call.set(argument, "status", INVALID_CLIENT),
            None => {}
        }
        if command == 0x205 {
            let info = of("NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS")?;
            return info.set(bytes, "deviceInstance", 0);
        }
        assert_eq!(command >> 16, 0xb0cc, "control {command:#x}");
        let status = match command {
            0xb0cc_0101 | 0xb0cc_010b if self.held => IN_USE,
            0xb0cc_0105 => {
                let memory = u64::from(long(bytes, 0) as u32);
                let address = self.addresses.get(&memory).copied();
                let address = address.ok_or(io::ErrorKind::NotFound)?;
                self.buffer = Some((address, long(bytes, 16)));
                (self.put, self.available) = (0, 0);
                0
            }
            0xb0cc_0106 => {
                self.buffer = None;
                0
            }
            0xb0cc_0109 => return self.update(bytes),
            0xb0cc_010a | 0xb0cc_010e if self.buffer.is_none() => INVALID_STATE,
            _ => 0,
        };
        self.told.push(Told::Control(command, bytes.to_vec()));
        call.set(argument, "status", status)
    }

    /// UPDATE_GET_PUT: takes room back, tells what is there.
    fn update(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let consumed = long(bytes, 0);
        assert!(
            consumed <= self.available,
            "more is given back than was there"
        );
        self.available -= consumed;
        if bytes[8] != 0 {
            bytes[16..24].copy_from_slice(&self.available.to_le_bytes());
            bytes[44] = std::mem::take(&mut self.overflow).into();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
