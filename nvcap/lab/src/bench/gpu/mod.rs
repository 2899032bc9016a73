//! One GPU, opened by plain calls of the resource manager: device, address space, memory, channels.
//!
//! The address space is RM's own (mappings by NV_ESC_RM_MAP_MEMORY_DMA, as Vulkan's driver makes them), without UVM. Its
//! addresses are not those of the process.

mod channel;
mod kept;
mod memory;

use std::rc::Rc;

pub(crate) use channel::{Channel, PUSHBUFFER_LEN};
pub(crate) use kept::Kept;
pub(crate) use kept::Submission;
pub(crate) use memory::{Memory, Place};

use super::error::Error;
use nvcap_decode::driver::Version;
use nvcap_process::rm::{self, Access, Client, Device, Mapping, Object, Os};

/// Classes of RM objects (cl90f1.h, cl0070.h).
mod class {
    pub(super) const VASPACE: u32 = 0x90f1;
    pub(super) const MEMORY_VIRTUAL: u32 = 0x70;
    /// HOPPER_USERMODE_A: from this class on doorbells may lie in BAR1.
    pub(super) const HOPPER_USERMODE: u32 = 0xc661;
}

/// Control commands (ctrl0080gpu.h, ctrl2080gpu.h, ctrl2080ce.h).
mod command {
    pub(super) const GET_CLASSLIST_V2: u32 = 0x0080_0292;
    pub(super) const GET_ENGINES_V2: u32 = 0x2080_0170;
    pub(super) const GET_CE_PCE_MASK: u32 = 0x2080_2a02;
}

/// Engines (NV2080_ENGINE_TYPE_*).
pub(crate) mod engine {
    /// The graphics engine, with compute.
    pub(crate) const GRAPHICS: u32 = 1;

    /// The number of a copy engine; `None` for another engine.
    pub(crate) fn copy_number(engine: u32) -> Option<u32> {
        match engine {
            0x09..=0x12 => Some(engine - 0x09),
            0x34..=0x3d => Some(engine - 0x34 + 10),
            _ => None,
        }
    }
}

/// The newest class of each kind that a GPU takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Classes {
    /// Class of channels.
    pub(crate) channel: u32,
    /// Class of doorbells.
    pub(crate) usermode: u32,
    /// Class of compute, which takes inline data and kernels.
    pub(crate) compute: u32,
    /// Class of copy engines.
    pub(crate) copy: u32,
}

impl Classes {
    /// Picks the newest class of each kind among all classes of a GPU; `None` if a kind is missing.
    fn newest(all: &[u32]) -> Option<Self> {
        // The engine's kind is in the low byte; what lies below c3.. (Volta) has no doorbell.
        let newest = |kind: u32| {
            let of_kind = all.iter().filter(|c| *c & 0xff == kind && **c >= 0xc000);
            of_kind.copied().max()
        };
        Some(Self {
            channel: newest(0x6f)?,
            usermode: newest(0x61)?,
            compute: newest(0xc0)?,
            copy: newest(0xb5)?,
        })
    }
}

/// Bytes of the page of doorbells (USERMODE class).
const DOORBELLS_LEN: u64 = 0x1_0000;

/// A GPU of a client. When it is dropped, all its objects are freed.
pub(crate) struct Gpu {
    client: Client,
    minor: u32,
    device: Object,
    subdevice: Object,
    vaspace: Object,
    space: Object,
    classes: Classes,
    engines: Vec<u32>,
    doorbells: Rc<Mapping>,
    /// List of submissions, if they are kept.
    kept: Option<Kept>,
    /// The opened device, which stays open as long as the GPU is used.
    _opened: Device,
}

impl Gpu {
    /// Opens the GPU with this minor number.
    pub(crate) fn open(
        os: Rc<dyn Os>,
        version: Option<Version>,
        minor: u32,
    ) -> Result<Self, Error> {
        let client = Client::new(os, version)?;
        let cards = client.cards()?;
        let Some(card) = cards.iter().find(|card| card.minor == minor) else {
            let there = cards.iter().map(|card| card.minor).collect();
            return Err(rm::Error::NoGpu { minor, there }.into());
        };
        /// NV_DEVICE_ALLOCATION_VAMODE_MULTIPLE_VASPACES.
        const MULTIPLE: u64 = 2;
        let fields = [
            ("hClientShare", client.root().field()),
            ("vaMode", MULTIPLE),
        ];
        let opened = Device::open(&client, *card, &fields)?;
        let (device, subdevice) = (opened.device, opened.subdevice);

        let mut vaspace = client.structure("NV_VASPACE_ALLOCATION_PARAMETERS", &[])?;
        let what = "get an address space";
        let vaspace = client.alloc(what, device, class::VASPACE, Some(&mut vaspace))?;
        let fields = [("hVASpace", vaspace.field())];
        let mut space = client.structure("NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS", &fields)?;
        let what = "get the addresses of the address space";
        let space = client.alloc(what, device, class::MEMORY_VIRTUAL, Some(&mut space))?;

        let mut list = client.structure("NV0080_CTRL_GPU_GET_CLASSLIST_V2_PARAMS", &[])?;
        client.control(
            "ask for the classes",
            device,
            command::GET_CLASSLIST_V2,
            &mut list,
        )?;
        let all: Vec<u32> = numbers(&list, "numClasses", "classList")?;
        let classes = Classes::newest(&all).ok_or(Error::Classes)?;
        let mut list = client.structure("NV2080_CTRL_GPU_GET_ENGINES_V2_PARAMS", &[])?;
        client.control(
            "ask for the engines",
            subdevice,
            command::GET_ENGINES_V2,
            &mut list,
        )?;
        let engines = numbers(&list, "engineCount", "engineList")?;

        let what = "map the doorbells";
        let usermode = if classes.usermode >= class::HOPPER_USERMODE {
            let fields = [("bBar1Mapping", 1)];
            let mut bar1 = client.structure("NV_HOPPER_USERMODE_A_PARAMS", &fields)?;
            client.alloc(what, subdevice, classes.usermode, Some(&mut bar1))?
        } else {
            client.alloc(what, subdevice, classes.usermode, None)?
        };
        let access = Access::WriteOnly;
        let doorbells = client.map(
            what,
            subdevice,
            usermode,
            DOORBELLS_LEN,
            Some(minor),
            access,
        )?;
        Ok(Self {
            client,
            minor,
            device,
            subdevice,
            vaspace,
            space,
            classes,
            engines,
            doorbells: Rc::new(doorbells),
            kept: None,
            _opened: opened,
        })
    }

    /// Makes all channels that are made from now on keep their submissions in this list.
    pub(crate) fn keep_in(&mut self, kept: Option<Kept>) {
        self.kept = kept;
    }

    /// Returns the classes of the GPU's engines.
    pub(crate) fn classes(&self) -> Classes {
        self.classes
    }

    /// Returns the GPU's copy engines: each with RM's number of the engine and its own number.
    pub(crate) fn copy_engines(&self) -> impl Iterator<Item = (u32, u32)> {
        let engines = self.engines.iter();
        engines.filter_map(|e| Some((*e, engine::copy_number(*e)?)))
    }

    /// Returns the physical copy engines that serve a copy engine, a bit each.
    pub(crate) fn physical_engines(&self, copy: u32) -> Result<u32, Error> {
        let fields = [("ceEngineType", copy.into())];
        let client = &self.client;
        let mut mask = client.structure("NV2080_CTRL_CE_GET_CE_PCE_MASK_PARAMS", &fields)?;
        client.control(
            "ask for a copy engine's physical ones",
            self.subdevice,
            command::GET_CE_PCE_MASK,
            &mut mask,
        )?;
        Ok(mask.get("pceMask")? as u32)
    }
}

/// Returns the numbers of a list in a structure, whose count the structure has.
fn numbers(
    list: &rm::Structure,
    count: &'static str,
    field: &'static str,
) -> Result<Vec<u32>, Error> {
    let count = (list.get(count)? as usize).min(list.count(field)?);
    (0..count)
        .map(|i| Ok(list.element(field, i)? as u32))
        .collect()
}
