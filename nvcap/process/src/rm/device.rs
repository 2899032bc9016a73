//! A GPU of a client: device, subdevice, and the file that keeps it initialised.

use std::os::fd::OwnedFd;

use super::{Card, Client, Error, Object};

/// Classes of RM objects (cl0080.h, cl2080.h).
mod class {
    pub(super) const DEVICE: u32 = 0x80;
    pub(super) const SUBDEVICE: u32 = 0x2080;
}

/// Control command that returns a GPU's instances (ctrl0000gpu.h).
const GET_ID_INFO_V2: u32 = 0x205;

/// A GPU of a client.
#[derive(Debug)]
pub struct Device {
    /// Handle of the device.
    pub device: Object,
    /// Handle of the subdevice.
    pub subdevice: Object,
    /// File that stays open as long as the GPU is used, so that the driver keeps the GPU initialised.
    _file: OwnedFd,
}

impl Device {
    /// Opens a GPU for a client. `fields` are the fields of NV0080_ALLOC_PARAMETERS besides the GPU's number.
    pub fn open(
        client: &Client,
        card: Card,
        fields: &[(&'static str, u64)],
    ) -> Result<Self, Error> {
        let file = client.open_gpu(card.minor)?;
        let id = [("gpuId", card.id.into())];
        let mut info = client.structure("NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS", &id)?;
        client.control("ask for the GPU", client.root(), GET_ID_INFO_V2, &mut info)?;
        let mut device = client.structure("NV0080_ALLOC_PARAMETERS", fields)?;
        device.set("deviceId", 0, info.get("deviceInstance")?)?;
        let what = "open the device";
        let device = client.alloc(what, client.root(), class::DEVICE, Some(&mut device))?;
        let fields = [("subDeviceId", info.get("subDeviceInstance")?)];
        let mut subdevice = client.structure("NV2080_ALLOC_PARAMETERS", &fields)?;
        let what = "open the subdevice";
        let subdevice = client.alloc(what, device, class::SUBDEVICE, Some(&mut subdevice))?;
        Ok(Self {
            device,
            subdevice,
            _file: file,
        })
    }
}
