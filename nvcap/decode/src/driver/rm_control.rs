//! Facts that RM reports: GPUs, tokens, engines, the driver's release. They are read from control calls and the list of cards.

use super::{
    call::{Call, Structure, Subject, number},
    class::{self, is_channel},
    gpu::Gpu,
    model::{Change, MAX_GPUS, Model},
    object::{Kind, Object, ObjectRef},
    version::Version,
};

/// Control commands from which the model learns.
mod control {
    pub(super) const GPU_GET_ID_INFO: u32 = 0x0000_0202;
    pub(super) const GPU_GET_ID_INFO_V2: u32 = 0x0000_0205;
    pub(super) const GPU_GET_UUID_FROM_GPU_ID: u32 = 0x0000_0275;
    pub(super) const GPU_GET_GID_INFO: u32 = 0x2080_014a;
    pub(super) const MC_GET_ARCH_INFO: u32 = 0x2080_1701;
    pub(super) const GSP_GET_FEATURES: u32 = 0x2080_3601;
    /// GET_CLASS_ENGINEID; the command has an alias for each channel class.
    pub(super) const GET_CLASS_ENGINE_ID: u32 = 0x0101;
    pub(super) const GPFIFO_GET_WORK_SUBMIT_TOKEN: u32 = 0x0108;
    pub(super) const GPFIFO_SET_WORK_SUBMIT_TOKEN_NOTIF_INDEX: u32 = 0x010a;
    /// NVA06F_CTRL_CMD_BIND.
    pub(super) const BIND: u32 = 0x0104;
}

impl Model {
    pub(crate) fn learn_version(&mut self, text: &[u8]) {
        let text = text.split(|b| *b == 0).next().unwrap_or_default();
        let Some(version) = std::str::from_utf8(text)
            .ok()
            .and_then(|t| t.parse::<Version>().ok())
        else {
            return;
        };
        if self.seen != Some(version) {
            self.seen = Some(version);
            self.changes.push(Change::DriverVersion(version));
        }
    }

    pub(crate) fn rm_control(&mut self, call: &Call<'_>) {
        let Subject::Control(command) = call.subject else {
            return;
        };
        let (Some(client), Some(handle)) = (call.arg.u32("hClient"), call.arg.u32("hObject"))
        else {
            return;
        };
        let at = ObjectRef { client, handle };
        let Some(params) = &call.nested else { return };
        match command {
            control::GPU_GET_ID_INFO | control::GPU_GET_ID_INFO_V2 => self.gpu_ids(command, params),
            control::GPU_GET_UUID_FROM_GPU_ID => {
                // gpuId, flags, 256 bytes of UUID (NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS).
                if let Some(id) = params.u32_at(0) {
                    let uuid = params.output.data.get(8..).and_then(read_uuid);
                    self.gpu_by_id(id, |g| g.uuid = uuid.or(g.uuid));
                }
            }
            control::GPU_GET_GID_INFO => {
                let uuid = params.bytes("data").and_then(read_uuid);
                self.gpu_by_object(at, |g| g.uuid = uuid.or(g.uuid));
            }
            control::MC_GET_ARCH_INFO => {
                let arch = params.u32("architecture").zip(params.u32("implementation"));
                self.gpu_by_object(at, |g| g.arch = arch.or(g.arch));
            }
            control::GSP_GET_FEATURES => {
                // gspFeatures, bValid, bDefaultGspRmGpu, firmwareVersion[64]
                if let Some(text) = params.output.data.get(6..) {
                    self.learn_version(text);
                }
            }
            _ => self.channel_control(command, at, params),
        }
    }

    pub(crate) fn channel_control(&mut self, command: u32, at: ObjectRef, params: &Structure<'_>) {
        if !is_channel(command >> 16) && command >> 16 != class::CHANNEL_GROUP {
            return;
        }
        let channel = match self.object(at).map(|o| &o.kind) {
            Some(Kind::Channel(id)) => Some(*id),
            _ => None,
        };
        match (command & 0xffff, channel) {
            (control::GPFIFO_GET_WORK_SUBMIT_TOKEN, Some(id)) => {
                if let Some(token) = params.u32_at(0) {
                    self.set_token(id, token);
                }
            }
            (control::GPFIFO_SET_WORK_SUBMIT_TOKEN_NOTIF_INDEX, Some(id)) => {
                if let (Some(index), Some(channel)) = (params.u32_at(0), self.channels.get_mut(&id))
                {
                    channel.token_index = index;
                }
            }
            (control::GET_CLASS_ENGINE_ID, Some(_)) => {
                let (handle, engine) = (params.u32("hObject"), params.u32("engineID"));
                if let (Some(handle), Some(engine)) = (handle, engine)
                    && let Some(Object {
                        kind: Kind::Engine { engine: known },
                        ..
                    }) = self
                        .clients
                        .get_mut(&at.client)
                        .and_then(|c| c.objects.get_mut(&handle))
                {
                    *known = Some(engine);
                }
            }
            (control::BIND, Some(id)) if command >> 16 != class::CHANNEL_GROUP => {
                if let (Some(engine), Some(channel)) =
                    (params.u32_at(0), self.channels.get_mut(&id))
                {
                    channel.engine = Some(engine);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn gpu_ids(&mut self, command: u32, params: &Structure<'_>) {
        // The two structures have the same beginning: gpuId, gpuFlags, deviceInstance, subDeviceInstance.
        let (Some(id), Some(instance)) = (params.u32_at(0), params.u32_at(8)) else {
            return;
        };
        // ID_INFO has pointers to names after subDeviceInstance; the fields that are read here come before them.
        let _ = command;
        self.gpu_by_id(id, |g| g.instance = Some(instance));
    }

    pub(crate) fn gpu_by_id(&mut self, id: u32, change: impl FnOnce(&mut Gpu)) {
        if self.gpus.len() >= MAX_GPUS && !self.gpus.contains_key(&id) {
            self.stats.refused += 1;
            return;
        }
        change(self.gpus.entry(id).or_insert_with(|| Gpu::new(id)));
    }

    pub(crate) fn gpu_by_object(&mut self, at: ObjectRef, change: impl FnOnce(&mut Gpu)) {
        if let Some(gpu) = self.gpu_id_of(at).and_then(|id| self.gpus.get_mut(&id)) {
            change(gpu);
        }
    }

    pub(crate) fn rm_cards(&mut self, call: &Call<'_>) {
        let Some(layout) = super::facts::layout("nv_ioctl_card_info_t", self.version(), None)
        else {
            return;
        };
        let data = &call.arg.output.data;
        for card in data.chunks_exact(layout.size().max(1)).take(MAX_GPUS) {
            let get = |name: &str| {
                let f = layout.field(name)?;
                number(card, f.offset, f.size)
            };
            if get("valid") != Some(1) {
                continue;
            }
            let Some(id) = get("gpu_id").and_then(|v| u32::try_from(v).ok()) else {
                continue;
            };
            let narrow = |name: &str| get(name).and_then(|v| u32::try_from(v).ok());
            self.gpu_by_id(id, |g| {
                g.minor = narrow("minor_number").or(g.minor);
                g.pci = (|| {
                    Some((
                        narrow("pci_info.domain")?,
                        narrow("pci_info.bus")?,
                        narrow("pci_info.slot")?,
                        narrow("pci_info.function")?,
                    ))
                })()
                .or(g.pci);
                g.device_id = narrow("pci_info.device_id").or(g.device_id);
            });
        }
    }
}

/// Reads a binary UUID at the start of a buffer; `None` for zeros and for text ("GPU-...").
fn read_uuid(data: &[u8]) -> Option<[u8; 16]> {
    let bytes: [u8; 16] = data.get(..16)?.try_into().ok()?;
    (bytes != [0; 16] && !bytes.starts_with(b"GPU-")).then_some(bytes)
}
