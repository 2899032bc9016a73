//! One client of the driver: its objects and mappings. The driver frees all of them with the client.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    rc::Rc,
};

use super::call::{call, control, is_client, succeeded, system};
use super::{Access, Error, Mapping, Os, Structure};
use nvcap_decode::driver::{Version, layout};

/// The numbers of the driver's ioctls (nv-ioctl-numbers.h, nv_escape.h).
mod escape {
    pub(super) const FREE: u8 = 0x29;
    pub(super) const ALLOC: u8 = 0x2b;
    pub(super) const MAP_MEMORY: u8 = 0x4e;
    pub(super) const MAP_MEMORY_DMA: u8 = 0x57;
    pub(super) const CARD_INFO: u8 = 0xc8;
    pub(super) const REGISTER_FD: u8 = 0xc9;
}

/// The most GPUs in NV_ESC_CARD_INFO (NV_MAX_DEVICES).
const MOST_CARDS: usize = 32;

/// NV01_ROOT_CLIENT.
const ROOT_CLIENT: u32 = 0x41;

const CONTROL_FILE: &str = "/dev/nvidiactl";

/// A handle of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object(pub u32);

impl Object {
    /// Returns the handle as the value of a structure's field.
    pub fn field(self) -> u64 {
        self.0.into()
    }
}

/// A GPU that the driver lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// Number of the device file.
    pub minor: u32,
    /// Number of the GPU in the driver.
    pub id: u32,
}

/// A client. Its objects live as long as it does.
///
/// The driver frees all objects of a client when the client's file is closed, so that a killed process leaves nothing behind.
pub struct Client {
    os: Rc<dyn Os>,
    control: OwnedFd,
    root: Object,
    version: Option<Version>,
}

impl Client {
    /// Makes a client. `version` is the driver's release, if known.
    pub fn new(os: Rc<dyn Os>, version: Option<Version>) -> Result<Self, Error> {
        let control = open(&*os, CONTROL_FILE)?;
        let mut client = Self {
            os,
            control,
            root: Object(0),
            version,
        };
        client.root = client.alloc("get a client", Object(0), ROOT_CLIENT, None)?;
        Ok(client)
    }

    /// Returns the client's own handle.
    pub fn root(&self) -> Object {
        self.root
    }

    /// Returns the system calls that the client makes.
    pub fn os(&self) -> &Rc<dyn Os> {
        &self.os
    }

    /// Returns the driver's release, if known.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// Makes a structure in the layout of the driver's release.
    pub fn structure(
        &self,
        name: &'static str,
        fields: &[(&'static str, u64)],
    ) -> Result<Structure, Error> {
        Structure::of(name, self.version, fields)
    }

    /// Returns the GPUs that the driver lists.
    pub fn cards(&self) -> Result<Vec<Card>, Error> {
        let name = "nv_ioctl_card_info_t";
        let layout = layout(name, self.version, None).ok_or(Error::Structure(name))?;
        let field = |field: &'static str| {
            let known = layout.field(field).map(|f| f.offset..f.offset + f.size);
            known.ok_or(Error::Field {
                structure: name,
                field,
            })
        };
        let (valid, minor, id) = (field("valid")?, field("minor_number")?, field("gpu_id")?);
        let mut all = vec![0; layout.size() * MOST_CARDS];
        self.call(
            "ask for the GPUs",
            self.control.as_fd(),
            escape::CARD_INFO,
            &mut all,
        )?;
        let number = |card: &[u8], at: &std::ops::Range<usize>| {
            let bytes = card[at.clone()].iter().rev();
            bytes.fold(0, |value, byte| value << 8 | u32::from(*byte))
        };
        let cards = all.chunks_exact(layout.size());
        let present = cards.filter(|card| number(card, &valid) != 0);
        Ok(present
            .map(|card| Card {
                minor: number(card, &minor),
                id: number(card, &id),
            })
            .collect())
    }

    /// Opens the device file of a GPU for this client.
    pub fn open_gpu(&self, minor: u32) -> Result<OwnedFd, Error> {
        let gpu = open(&*self.os, &gpu_file(minor))?;
        let control = self.control.as_raw_fd() as u64;
        let mut register = self.structure("nv_ioctl_register_fd_t", &[("ctl_fd", control)])?;
        let what = "register the GPU's file";
        self.call(what, gpu.as_fd(), escape::REGISTER_FD, register.bytes_mut())?;
        Ok(gpu)
    }

    /// Allocates an object. The driver chooses its handle.
    pub fn alloc(
        &self,
        what: &str,
        parent: Object,
        class: u32,
        parameters: Option<&mut Structure>,
    ) -> Result<Object, Error> {
        let pointer = parameters.map_or(0, |p| p.bytes_mut().as_mut_ptr() as u64);
        let mut call = self.structure(
            "NVOS64_PARAMETERS",
            &[
                ("hRoot", self.root.field()),
                ("hObjectParent", parent.field()),
                ("hClass", class.into()),
                ("pAllocParms", pointer),
            ],
        )?;
        self.call(what, self.control.as_fd(), escape::ALLOC, call.bytes_mut())?;
        succeeded(what, &call)?;
        Ok(Object(call.get("hObjectNew")? as u32))
    }

    /// Makes a control call of an object.
    pub fn control(
        &self,
        what: &str,
        object: Object,
        command: u32,
        parameters: &mut Structure,
    ) -> Result<(), Error> {
        self.control_bytes(what, object, command, parameters.bytes_mut())
    }

    /// Makes a control call that has no parameters.
    pub fn command(&self, what: &str, object: Object, command: u32) -> Result<(), Error> {
        self.control_bytes(what, object, command, &mut [])
    }

    /// Makes a control call whose structure the tables do not have. `parameters` are the structure's bytes.
    pub fn control_bytes(
        &self,
        what: &str,
        object: Object,
        command: u32,
        parameters: &mut [u8],
    ) -> Result<(), Error> {
        let at = (self.root.0, object.0);
        let file = self.control.as_fd();
        control(
            what,
            &*self.os,
            self.version,
            file,
            at,
            (command, parameters),
        )
    }

    /// Tells whether the driver accepts calls for another client through this client's file, which it should not.
    #[must_use]
    pub fn may_use(&self, client: u32) -> bool {
        let file = self.control.as_fd();
        client != self.root.0 && is_client(&*self.os, self.version, file, client)
    }

    /// Maps an object of a device or subdevice into this process. An object of a GPU is mapped through the GPU's file, system
    /// memory through the control file. Each mapping has a file of its own, which stays open as long as the mapping.
    pub fn map(
        &self,
        what: &str,
        parent: Object,
        object: Object,
        len: u64,
        gpu: Option<u32>,
        access: Access,
    ) -> Result<Mapping, Error> {
        let file = match gpu {
            Some(minor) => self.open_gpu(minor)?,
            None => open(&*self.os, CONTROL_FILE)?,
        };
        /// NVOS33_FLAGS_ACCESS.
        const READ_ONLY: u64 = 1;
        const WRITE_ONLY: u64 = 2;
        let flags = match access {
            Access::ReadWrite => 0,
            Access::WriteOnly => WRITE_ONLY,
            Access::ReadOnly => READ_ONLY,
        };
        let mut call = self.structure(
            "nv_ioctl_nvos33_parameters_with_fd",
            &[
                ("hClient", self.root.field()),
                ("hDevice", parent.field()),
                ("hMemory", object.field()),
                ("length", len),
                ("flags", flags),
                ("fd", file.as_raw_fd() as u64),
            ],
        )?;
        self.call(
            what,
            self.control.as_fd(),
            escape::MAP_MEMORY,
            call.bytes_mut(),
        )?;
        succeeded(what, &call)?;
        let mapped = self.os.map(file.as_fd(), len as usize, access);
        mapped.map_err(|error| system(what, error))
    }

    /// Maps memory into an address space of the GPU; the driver chooses the address.
    pub fn map_gpu(
        &self,
        what: &str,
        device: Object,
        space: Object,
        memory: Object,
        len: u64,
        flags: u64,
    ) -> Result<u64, Error> {
        let mut call = self.structure(
            "NVOS46_PARAMETERS",
            &[
                ("hClient", self.root.field()),
                ("hDevice", device.field()),
                ("hDma", space.field()),
                ("hMemory", memory.field()),
                ("length", len),
                ("flags", flags),
            ],
        )?;
        self.call(
            what,
            self.control.as_fd(),
            escape::MAP_MEMORY_DMA,
            call.bytes_mut(),
        )?;
        succeeded(what, &call)?;
        call.get("dmaOffset")
    }

    /// Frees an object with all objects below it.
    fn free(&self, object: Object) -> Result<(), Error> {
        let mut call = self.structure(
            "NVOS00_PARAMETERS",
            &[
                ("hRoot", self.root.field()),
                ("hObjectParent", self.root.field()),
                ("hObjectOld", object.field()),
            ],
        )?;
        let what = "free the client";
        self.call(what, self.control.as_fd(), escape::FREE, call.bytes_mut())?;
        succeeded(what, &call)
    }

    fn call(
        &self,
        what: &str,
        file: BorrowedFd<'_>,
        number: u8,
        argument: &mut [u8],
    ) -> Result<(), Error> {
        call(what, &*self.os, file, number, argument)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Objects that cannot be freed here are freed when the file is closed, below.
        let _ = self.free(self.root);
    }
}

fn open(os: &dyn Os, path: &str) -> Result<OwnedFd, Error> {
    os.open(path).map_err(|error| Error::Open {
        path: path.to_owned(),
        error,
    })
}

/// Returns the device file of a GPU.
pub fn gpu_file(minor: u32) -> String {
    format!("/dev/nvidia{minor}")
}
