//! The event buffer of one GPU.

use std::sync::atomic::{Ordering, fence};

use super::refusal::Refusal;
use nvcap_decode::switches::{RECORD_LEN, Scope, Sequence, Switch, Told};
use nvcap_process::rm::{Access, Card, Client, Device, Error, Mapping, Object};

/// Classes of RM objects (cl90cd.h, cl0000.h).
mod class {
    pub(super) const EVENT_BUFFER: u32 = 0x90cd;
    pub(super) const MEMORY_DEVICELESS: u32 = 0x90ce;
}

/// Control commands (ctrl90cd.h, ctrl2080gr.h, ctrl2080tmr.h).
mod command {
    pub(super) const ENABLE_EVENTS: u32 = 0x90cd_0101;
    pub(super) const UPDATE_GET: u32 = 0x90cd_0102;
    pub(super) const FLUSH: u32 = 0x90cd_0104;
    pub(super) const FECS_BIND_EVTBUF_FOR_UID: u32 = 0x2080_1231;
    pub(super) const FECS_BIND_EVTBUF_FOR_UID_V2: u32 = 0x2080_1238;
    pub(super) const TIMER_GET_TIME: u32 = 0x2080_0403;
}

/// Number of records in a buffer: three seconds of 10,000 switches a second.
pub(super) const RECORDS: u32 = 1 << 16;

/// Bytes of the header's memory.
const HEADER_LEN: u64 = 4096;

/// Fields of the header (NV_EVENT_BUFFER_HEADER).
mod header {
    pub(super) const PUT: usize = 4;
    pub(super) const DROPPED: usize = 16;
}

/// Fields of NV_MEMORY_ALLOCATION_PARAMS (nvos.h).
mod memory {
    /// NVOS32_ATTR_LOCATION_PCI, NVOS32_ATTR_COHERENCY_CACHED.
    pub(super) const ATTR: u64 = 1 << 25 | 1 << 29;
    /// NVOS32_ATTR2_PROTECTION_USER_READ_ONLY.
    pub(super) const ATTR2: u64 = 1 << 22;
}

/// NV_EVENT_BUFFER_FLAG_OVERFLOW_POLICY_KEEP_OLDEST: records that are being read are not overwritten, and drops are
/// counted.
const KEEP_OLDEST: u64 = 1;

/// NV2080_CTRL_GR_FECS_BIND_EVTBUF_LOD_SIMPLE: begins and ends of time slices. The driver gives a user's client nothing
/// else.
const SIMPLE: u64 = 1;

/// The ways to bind a buffer, the best first: the users that it covers, and the form of the records.
const WAYS: [(Scope, bool); 4] = [
    (Scope::AllUsers, true),
    (Scope::AllUsers, false),
    (Scope::OwnUser, true),
    (Scope::OwnUser, false),
];

/// The event buffer of one GPU.
pub(super) struct Buffer {
    minor: u32,
    object: Object,
    header: Mapping,
    records: Mapping,
    get: u32,
    sequence: Sequence,
    dropped: u64,
    scope: Scope,
    device: Device,
}

impl Buffer {
    /// Opens a buffer that the driver fills from now on.
    pub(super) fn open(client: &Client, card: Card) -> Result<Self, Refusal> {
        let failed = |error: Error| Refusal {
            gpu: card.minor,
            why: error.to_string(),
            remedy: "",
        };
        let buffer = Self::allocated(client, card).map_err(failed)?;
        let buffer = buffer.bound(client)?;
        buffer.enable(client).map_err(failed)?;
        Ok(buffer)
    }

    fn allocated(client: &Client, card: Card) -> Result<Self, Error> {
        let device = Device::open(client, card, &[])?;
        let len = u64::from(RECORDS) * RECORD_LEN as u64;
        let what = "get memory for an event buffer";
        let memory = |len: u64| {
            let name = "NV_MEMORY_ALLOCATION_PARAMS";
            let fields = [
                ("attr", memory::ATTR),
                ("attr2", memory::ATTR2),
                ("size", len),
            ];
            let mut memory = client.structure(name, &fields)?;
            let class = class::MEMORY_DEVICELESS;
            client.alloc(what, client.root(), class, Some(&mut memory))
        };
        let (header, records) = (memory(HEADER_LEN)?, memory(len)?);
        let fields = [
            ("recordSize", RECORD_LEN as u64),
            ("recordCount", RECORDS.into()),
            ("hSubDevice", device.subdevice.field()),
            ("hBufferHeader", header.field()),
            ("hRecordBuffer", records.field()),
        ];
        let mut parameters = client.structure("NV_EVENT_BUFFER_ALLOC_PARAMETERS", &fields)?;
        let made = "make an event buffer";
        let class = class::EVENT_BUFFER;
        let object = client.alloc(made, client.root(), class, Some(&mut parameters))?;
        let map = |memory, len| {
            let what = "map an event buffer";
            client.map(what, client.root(), memory, len, None, Access::ReadOnly)
        };
        Ok(Self {
            minor: card.minor,
            object,
            header: map(header, HEADER_LEN)?,
            records: map(records, len)?,
            get: 0,
            sequence: Sequence::default(),
            dropped: 0,
            scope: Scope::AllUsers,
            device,
        })
    }

    /// Binds the buffer in the best way that the driver grants.
    fn bound(mut self, client: &Client) -> Result<Self, Refusal> {
        let mut first = None;
        for (scope, second_form) in WAYS {
            match self.bind(client, scope, second_form) {
                Ok(()) => {
                    self.scope = scope;
                    return Ok(self);
                }
                // The second form tells the reason, and all users are what is wanted.
                Err(refusal) => first = first.or(Some(refusal)),
            }
        }
        Err(first.unwrap_or_else(|| self.refusal("the driver grants no way".to_owned(), 0)))
    }

    fn bind(&self, client: &Client, scope: Scope, second_form: bool) -> Result<(), Refusal> {
        let failed = |error: Error| self.refusal(error.to_string(), 0);
        let (name, command) = match second_form {
            true => (
                "NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS",
                command::FECS_BIND_EVTBUF_FOR_UID_V2,
            ),
            false => (
                "NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_PARAMS",
                command::FECS_BIND_EVTBUF_FOR_UID,
            ),
        };
        let fields = [
            ("hEventBuffer", self.object.field()),
            ("recordSize", RECORD_LEN as u64),
            ("levelOfDetail", SIMPLE),
            ("bAllUsers", (scope == Scope::AllUsers).into()),
        ];
        let mut bind = client.structure(name, &fields).map_err(failed)?;
        let what = "have context switches recorded";
        let bound = client.control(what, self.device.subdevice, command, &mut bind);
        let reason = match second_form {
            true => bind.get("reasonCode").unwrap_or(0),
            false => 0,
        };
        bound.map_err(|error| self.refusal(error.to_string(), reason))
    }

    /// Makes a refusal with the driver's reason (NV2080_CTRL_GR_FECS_BIND_REASON_CODE_*); 0 where the driver gave none.
    fn refusal(&self, said: String, reason: u64) -> Refusal {
        let (words, remedy) = match reason {
            0 => ("", ""),
            1 => ("the GPU is too old for it", ""),
            2 => ("this GPU does not record context switches", ""),
            3 => (
                "not enabled: a virtual GPU without it, or MIG mode without the right to the whole GPU",
                "run nvcap on the GPU's host, as root",
            ),
            4 => (
                "for an administrator alone, as this machine is set up",
                "run as root (sudo nvcap share), or give the capability CAP_SYS_ADMIN",
            ),
            5 => (
                "the virtual GPU lacks the capability of profiling",
                "enable profiling for this virtual GPU on its host (enable_profiling)",
            ),
            _ => ("a reason that nvcap does not know", ""),
        };
        let why = match reason {
            0 => said,
            _ => format!("{said}: {words} (reason {reason})"),
        };
        Refusal {
            gpu: self.minor,
            why,
            remedy,
        }
    }

    fn enable(&self, client: &Client) -> Result<(), Error> {
        let name = "NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS";
        let mut enable = client.structure(name, &[("enable", 1), ("flags", KEEP_OLDEST)])?;
        let what = "enable an event buffer";
        client.control(what, self.object, command::ENABLE_EVENTS, &mut enable)
    }

    pub(super) fn minor(&self) -> u32 {
        self.minor
    }

    pub(super) fn scope(&self) -> Scope {
        self.scope
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the GPU's time, ns.
    pub(super) fn time(&self, client: &Client) -> Result<u64, Error> {
        let mut time = client.structure("NV2080_CTRL_TIMER_GET_TIME_PARAMS", &[])?;
        let what = "ask for the GPU's time";
        let subdevice = self.device.subdevice;
        client.control(what, subdevice, command::TIMER_GET_TIME, &mut time)?;
        time.get("time_nsec")
    }

    /// Makes the driver take the available records from all GPUs.
    pub(super) fn flush(&self, client: &Client) -> Result<(), Error> {
        client.command("flush an event buffer", self.object, command::FLUSH)
    }

    /// Reads the new records, and gives their room back.
    pub(super) fn read(
        &mut self,
        client: &Client,
        mut each: impl FnMut(Told),
    ) -> Result<(), Error> {
        // The mapping is read-only, and the driver gives no number beyond the records.
        let put = self.header.read(header::PUT) % RECORDS;
        fence(Ordering::Acquire);
        // What was dropped came when the buffer was full: behind all that is in it.
        let dropped = self.header.read_long(header::DROPPED);
        if put == self.get && dropped == 0 {
            return Ok(());
        }
        let now = self.time(client)?;
        while self.get != put {
            let told = self.record(self.get);
            if let Some(switch) = told {
                let dropped = std::mem::take(&mut self.dropped);
                let missing = self.sequence.missing(switch.sequence, dropped);
                if missing > 0 {
                    each(Told::Missing(missing));
                }
            }
            each(told.map_or(Told::Strange, |switch| Told::Switch(switch).by(now)));
            self.get = (self.get + 1) % RECORDS;
        }
        self.dropped = self.dropped.saturating_add(dropped);
        let name = "NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS";
        let mut update = client.structure(name, &[("recordBufferGet", self.get.into())])?;
        let what = "give back room of an event buffer";
        client.control(what, self.object, command::UPDATE_GET, &mut update)
    }

    fn record(&self, number: u32) -> Option<Switch> {
        let start = number as usize * RECORD_LEN;
        let mut bytes = [0; RECORD_LEN];
        for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
            let value = self.records.read_long(start + 8 * i);
            word.copy_from_slice(&value.to_le_bytes());
        }
        Switch::read(&bytes)
    }
}
