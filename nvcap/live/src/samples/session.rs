//! A sampling of one context of a process.

use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use super::context::Context;
use super::error::Error;
use super::handles;
use nvcap_decode::driver::Version;
use nvcap_decode::samples::programme::{self, command};
use nvcap_decode::samples::{Operation, Programme, RECORD_LEN, Step};
use nvcap_process::rm::{self, Access, Card, Client, Device, Mapping, Object, Os};

/// Classes of RM objects (clb2cc.h, cl003e.h).
mod class {
    pub(super) const PROFILER_DEVICE: u32 = 0xb2cc;
    pub(super) const MEMORY_SYSTEM: u32 = 0x3e;
}

/// Control commands of the profiler that are not part of a programme (ctrlb0ccprofiler.h).
mod control {
    pub(super) const RESERVE_HWPM: u32 = 0xb0cc_0101;
    pub(super) const RELEASE_HWPM: u32 = 0xb0cc_0102;
    pub(super) const ALLOC_PMA_STREAM: u32 = 0xb0cc_0105;
    pub(super) const FREE_PMA_STREAM: u32 = 0xb0cc_0106;
    pub(super) const BIND_PM_RESOURCES: u32 = 0xb0cc_0107;
    pub(super) const UNBIND_PM_RESOURCES: u32 = 0xb0cc_0108;
    pub(super) const RELEASE_PC_SAMPLER: u32 = 0xb0cc_010c;
}

/// Fields of NV_MEMORY_ALLOCATION_PARAMS (nvos.h), with a profiler's values.
mod memory {
    /// NVOS32_ATTR_LOCATION_PCI, PHYSICALITY_NONCONTIGUOUS, COHERENCY_CACHED.
    pub(super) const ATTR: u64 = 0x2a00_0000;
    /// NVOS32_ATTR2_PROTECTION_USER_READ_ONLY.
    pub(super) const READ_ONLY: u64 = 1 << 22;
}

/// NV_ERR_STATE_IN_USE, NV_ERR_IN_USE, NV_ERR_INSUFFICIENT_PERMISSIONS (nvstatuscodes.h).
mod status {
    pub(super) const IN_USE: [u32; 2] = [0x63, 0x25];
    pub(super) const NO_PERMISSION: u32 = 0x1b;
}

/// Bytes of the stream's buffer: a tenth of a second of samples with the shortest period.
pub const STREAM_LEN: u64 = 64 << 20;

/// Bytes of the memory in which the driver counts the available bytes.
const AVAILABLE_LEN: u64 = 4096;

/// Offsets in NVB0CC_CTRL_ALLOC_PMA_STREAM_PARAMS, 56 bytes, and in NVB0CC_CTRL_PMA_STREAM_UPDATE_GET_PUT_PARAMS, 48 bytes, the same in
/// all releases (ctrlb0ccprofiler.h).
mod stream {
    pub(super) const ALLOC_LEN: usize = 56;
    pub(super) const BUFFER: usize = 0;
    pub(super) const BUFFER_SIZE: usize = 16;
    pub(super) const AVAILABLE: usize = 24;
    pub(super) const CHANNEL: usize = 44;
    pub(super) const UPDATE_LEN: usize = 48;
    pub(super) const CONSUMED: usize = 0;
    pub(super) const UPDATE: usize = 8;
    pub(super) const WAIT: usize = 9;
    pub(super) const BYTES: usize = 16;
    pub(super) const UPDATE_CHANNEL: usize = 40;
    pub(super) const OVERFLOW: usize = 44;
}

/// Context to sample, and parameters of the sampling.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number N of `/dev/nvidiaN`.
    pub gpu: u32,
    /// Id of the process.
    pub pid: u32,
    /// Context of the process.
    pub context: Context,
    /// The register programme, with the period in its switch.
    pub programme: Programme,
    /// Bytes of the stream's buffer, whole pages: [`STREAM_LEN`].
    pub buffer: u64,
}

/// Bytes of the stream, as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// Number of bytes that were read.
    pub bytes: u64,
    /// Number of readings at which the hardware had dropped samples because the buffer was full.
    pub overflows: u64,
}

/// A sampling. When it is dropped, it is ended and freed.
pub struct Session {
    buffer: Mapping,
    /// Bytes of the stream's buffer.
    len: u64,
    _available: Mapping,
    profiler: Object,
    context: Context,
    stream_channel: u32,
    programme: Programme,
    read: Stream,
    get: u64,
    /// Bytes that were read, and whose room was not given back yet.
    consumed: u64,
    /// Steps that were made and must be taken back.
    made: Made,
    client: Client,
    _device: Device,
}

#[derive(Clone, Copy, Debug, Default)]
struct Made {
    stream: bool,
    hwpm: bool,
    sampler: bool,
    bound: bool,
    set: bool,
}

/// Takes back the steps that were made, also when a later step has failed.
impl Drop for Session {
    fn drop(&mut self) {
        let client = &self.client;
        // What fails here goes when the client's file is closed.
        if self.made.set
            && let Some(off) = self.programme.off()
        {
            let _ = write(client, self.profiler, &[off]);
        }
        let command = |is: bool, what, number| {
            if is {
                let _ = client.command(what, self.profiler, number);
            }
        };
        let made = self.made;
        command(
            made.bound,
            "give the profiler back",
            control::UNBIND_PM_RESOURCES,
        );
        if made.stream {
            let mut channel = self.stream_channel.to_le_bytes();
            let number = control::FREE_PMA_STREAM;
            let what = "free the stream";
            let _ = client.control_bytes(what, self.profiler, number, &mut channel);
        }
        command(
            made.sampler,
            "give the PC sampler back",
            control::RELEASE_PC_SAMPLER,
        );
        command(made.hwpm, "give the monitors back", control::RELEASE_HWPM);
    }
}

impl Session {
    /// Prepares a sampling, without beginning it.
    ///
    /// # Errors
    /// See [`Error`]. Nothing stays behind.
    pub fn open(
        os: Rc<dyn Os>,
        version: Option<Version>,
        options: &Options,
    ) -> Result<Self, Error> {
        let client = Client::new(os, version)?;
        let cards = client.cards()?;
        let Some(card) = cards.iter().find(|card| card.minor == options.gpu) else {
            let there = cards.iter().map(|card| card.minor).collect();
            let minor = options.gpu;
            return Err(rm::Error::NoGpu { minor, there }.into());
        };
        let mut session = Self::allocated(client, *card, options)?;
        session.reserve()?;
        session.set()?;
        Ok(session)
    }

    fn allocated(client: Client, card: Card, options: &Options) -> Result<Self, Error> {
        let device = Device::open(&client, card, &[])?;
        let profiler = bound(&client, &device, options)?;
        let memory = |len: u64, attr2: u64, access| {
            let what = "get memory for samples";
            let fields = [
                ("owner", device.device.field()),
                ("attr", memory::ATTR),
                ("attr2", attr2),
                ("size", len),
            ];
            let mut memory = client.structure("NV_MEMORY_ALLOCATION_PARAMS", &fields)?;
            let class = class::MEMORY_SYSTEM;
            let memory = client.alloc(what, device.device, class, Some(&mut memory))?;
            let mapped = client.map("map the samples", device.device, memory, len, None, access)?;
            Ok::<_, rm::Error>((memory, mapped))
        };
        let (buffer, mapped) = memory(options.buffer, 0, Access::ReadWrite)?;
        let (available, counted) = memory(AVAILABLE_LEN, memory::READ_ONLY, Access::ReadOnly)?;
        let mut session = Self {
            buffer: mapped,
            len: options.buffer,
            _available: counted,
            profiler,
            context: options.context,
            stream_channel: 0,
            programme: options.programme.clone(),
            read: Stream::default(),
            get: 0,
            consumed: 0,
            made: Made::default(),
            client,
            _device: device,
        };
        let mut stream = [0; stream::ALLOC_LEN];
        put(&mut stream, stream::BUFFER, &buffer.0.to_le_bytes());
        put(
            &mut stream,
            stream::BUFFER_SIZE,
            &options.buffer.to_le_bytes(),
        );
        put(&mut stream, stream::AVAILABLE, &available.0.to_le_bytes());
        let what = "get a stream of samples";
        session.control(what, control::ALLOC_PMA_STREAM, &mut stream)?;
        session.stream_channel = word(&stream, stream::CHANNEL) as u32;
        session.made.stream = true;
        Ok(session)
    }

    fn reserve(&mut self) -> Result<(), Error> {
        let what = "have the GPU's performance monitors";
        // Not switched with contexts: the PC sampler's own registers are.
        self.control(what, control::RESERVE_HWPM, &mut [0])?;
        self.made.hwpm = true;
        let what = "have the GPU's PC sampler";
        self.control(what, command::RESERVE_PC_SAMPLER, &mut [])?;
        self.made.sampler = true;
        let what = "bind the GPU's profiler";
        self.control(what, control::BIND_PM_RESOURCES, &mut [])?;
        self.made.bound = true;
        Ok(())
    }

    fn set(&mut self) -> Result<(), Error> {
        self.programme.switch()?;
        let steps = std::mem::take(&mut self.programme.setup);
        let mut result = Ok(());
        for step in &steps {
            result = match step {
                Step::Credits(bytes) => {
                    let what = "give the units credits for the stream";
                    self.control(what, command::SET_HS_CREDITS, &mut bytes.clone())
                }
                Step::Write(operations) => {
                    self.made.set = true;
                    write(&self.client, self.profiler, operations).map_err(refused)
                }
            };
            if result.is_err() {
                break;
            }
        }
        self.programme.setup = steps;
        result
    }

    /// The context that is sampled.
    #[must_use]
    pub fn context(&self) -> Context {
        self.context
    }

    /// Begins the samples, or ends them, by a submission of the trigger. The submission is nvcap's own.
    ///
    /// # Errors
    /// Those of the submission.
    pub fn trigger(&self, submit: &mut dyn FnMut() -> Result<(), String>) -> Result<(), Error> {
        submit().map_err(Error::Trigger)
    }

    /// Makes the SMs write out their samples.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn flush(&self) -> Result<(), Error> {
        for operations in &self.programme.flush {
            write(&self.client, self.profiler, operations)?;
        }
        Ok(())
    }

    /// Reads the available whole records, and returns the number of bytes. Their room is given back with the next call, because each call of the
    /// driver for the stream waits for the GPU's firmware.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn poll(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<u64, Error> {
        let mut update = [0; stream::UPDATE_LEN];
        (update[stream::UPDATE], update[stream::WAIT]) = (1, 1);
        put(&mut update, stream::CONSUMED, &self.consumed.to_le_bytes());
        put(
            &mut update,
            stream::UPDATE_CHANNEL,
            &self.stream_channel.to_le_bytes(),
        );
        let what = "ask for samples";
        self.control(what, command::UPDATE_GET_PUT, &mut update)?;
        self.consumed = 0;
        self.read.overflows += u64::from(update[stream::OVERFLOW] != 0);
        let available = word(&update, stream::BYTES);
        if available > self.len {
            return Err(Error::Bytes(available, self.len));
        }
        let available = available - available % RECORD_LEN as u64;
        if available == 0 {
            return Ok(0);
        }
        // The samples were written before the driver counted them.
        fence(Ordering::Acquire);
        let mut bytes = vec![0; available as usize];
        let first = available.min(self.len - self.get) as usize;
        let (to_end, from_begin) = bytes.split_at_mut(first);
        self.buffer.read_bytes(self.get as usize, to_end);
        self.buffer.read_bytes(0, from_begin);
        each(&bytes);
        self.consumed = available;
        self.get = (self.get + available) % self.len;
        self.read.bytes += available;
        Ok(available)
    }

    /// Returns the counts of what was read so far.
    #[must_use]
    pub fn read(&self) -> Stream {
        self.read
    }

    fn control(&self, what: &str, number: u32, parameters: &mut [u8]) -> Result<(), Error> {
        let done = self
            .client
            .control_bytes(what, self.profiler, number, parameters);
        done.map_err(refused)
    }
}

/// Binds a profiler to the context. The context must belong to the process before and after, because a handle that was given back may soon be
/// another process's.
fn bound(client: &Client, device: &Device, options: &Options) -> Result<Object, Error> {
    let Options { pid, context, .. } = *options;
    let owner = handles::owner(client.os(), client.version(), pid)?;
    let is_its_own = || match handles::is_of(client, &owner, context)? {
        true => Ok(()),
        false => Err(Error::NotItsOwn(pid)),
    };
    is_its_own()?;
    let fields = [
        ("hClientTarget", u64::from(context.client)),
        ("hContextTarget", u64::from(context.group)),
    ];
    let mut target = client.structure("NVB2CC_ALLOC_PARAMETERS", &fields)?;
    let what = "get a profiler of the process's context";
    let class = class::PROFILER_DEVICE;
    let profiler = client.alloc(what, device.subdevice, class, Some(&mut target));
    is_its_own()?;
    profiler.map_err(|error| match refused(error) {
        Error::Driver(error) => Error::NoProfiler { context, error },
        error => error,
    })
}

fn write(client: &Client, profiler: Object, operations: &[Operation]) -> Result<(), rm::Error> {
    let what = "set registers of the GPU's performance monitors";
    let mut parameters = programme::parameters(operations);
    client.control_bytes(what, profiler, command::EXEC_REG_OPS, &mut parameters)
}

fn refused(error: rm::Error) -> Error {
    match &error {
        rm::Error::Status { status, .. } if status::IN_USE.contains(status) => {
            Error::Held(error.to_string())
        }
        rm::Error::Status { status, .. } if *status == status::NO_PERMISSION => {
            Error::Rights(error.to_string())
        }
        _ => Error::Driver(error),
    }
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    to[at..at + bytes.len()].copy_from_slice(bytes);
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..).unwrap_or_default();
    let bytes = bytes.iter().take(8).rev();
    bytes.fold(0, |word, byte| word << 8 | u64::from(*byte))
}
