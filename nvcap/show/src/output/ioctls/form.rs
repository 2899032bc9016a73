//! Parts that both forms of `nvcap ioctls` share: the options, and how a device and a JSON object's first members are written.

use serde_json::{Map, Value as Json};

use crate::output::{
    names::{Latest, known_pid},
    style::Color,
};
use nvcap_decode::record::{At, Device};

/// Options of the output of each ioctl.
#[derive(Clone, Debug, Default)]
pub struct IoctlOptions {
    /// True for fields that are zero, too (text; JSON has them always).
    pub zeros: bool,
    /// True for the raw bytes of argument and parameters, too.
    pub raw: bool,
    /// Colour (text).
    pub color: Color,
    /// True for one array of objects instead of an object a line (JSON).
    pub array: bool,
}

/// A device file's name.
pub(crate) fn device_name(device: Device) -> String {
    match device {
        Device::Control => "nvidiactl".into(),
        Device::Gpu(minor) => format!("nvidia{minor}"),
        Device::Uvm => "nvidia-uvm".into(),
        Device::MEMORY => "shared memory".into(),
        Device::RESERVED => "reserved addresses".into(),
        Device::Other(major, minor) => format!("{major}:{minor}"),
    }
}

pub(super) fn device(device: Device, fd: Option<i32>) -> String {
    match fd {
        Some(fd) => format!("{}({fd}) ", device_name(device)),
        None => format!("{} ", device_name(device)),
    }
}

pub(super) fn begin(kind: &str, at: At, latest: &mut Latest) -> Map<String, Json> {
    let mut object = Map::new();
    object.insert("type".into(), kind.into());
    object.insert("time_ns".into(), at.time().into());
    object.insert("pid".into(), known_pid(at.pid).into());
    object.insert("tid".into(), known_pid(at.tid).into());
    object.insert("token".into(), Json::Null);
    if latest.is_passed(at.time()) {
        object.insert("out_of_order".into(), true.into());
    }
    object
}
