//! Names for numbers: escapes, control commands, classes, status codes, UVM ioctls, engines.
//!
//! The names are those of the public headers (NVIDIA/open-gpu-kernel-modules). Numbers that the headers do not have print in hex. The
//! module knows only the tables.

use std::borrow::Cow;

use super::{facts, version::Version};

/// Returns the name of an escape (RM ioctl) by its number: `NV_ESC_RM_CONTROL` for 0x2a.
#[must_use]
pub fn escape(nr: u32, version: Option<Version>) -> Cow<'static, str> {
    match facts::escape(nr, version) {
        Some(named) => named.name.into(),
        None => format!("NV_ESC_{nr:#04x}").into(),
    }
}

/// Returns the name of a UVM ioctl by its request number.
#[must_use]
pub fn uvm(request: u32, version: Option<Version>) -> Cow<'static, str> {
    match facts::uvm(request, version) {
        Some(named) => named.name.into(),
        None => format!("UVM_{request:#x}").into(),
    }
}

/// Commands that no public header names, with the name of their handler in nvidia.ko's own table of handlers
/// (`subdeviceCtrlCmdGpuAcquireComputeModeReservation`, generated/g_subdevice_nvoc.c).
const BY_HANDLER: [(u32, &str); 2] = [
    (
        0x2080_0145,
        "NV2080_CTRL_CMD_GPU_ACQUIRE_COMPUTE_MODE_RESERVATION",
    ),
    (
        0x2080_0146,
        "NV2080_CTRL_CMD_GPU_RELEASE_COMPUTE_MODE_RESERVATION",
    ),
];

/// Returns a control command's name in the public headers or in the open module's sources.
#[must_use]
pub fn known_control(command: u32, version: Option<Version>) -> Option<&'static str> {
    facts::control(command, version)
        .map(|named| named.name)
        .or_else(|| {
            BY_HANDLER
                .iter()
                .find(|(c, _)| *c == command)
                .map(|(_, name)| *name)
        })
}

/// Categories of NV20_SUBDEVICE_0's commands, without `NV2080_CTRL_` (ctrl/ctrl2080/ctrl2080base.h). The LEGACY ones, with bit 15 of the
/// command set, are passed to the GSP firmware, and the open module does not read them. Their commands have a number but no definition in
/// any public source.
const SUBDEVICE_CATEGORIES: [(u8, &str); 56] = [
    (0x01, "GPU"),
    (0x02, "FUSE"),
    (0x03, "EVENT"),
    (0x04, "TIMER"),
    (0x05, "THERMAL"),
    (0x06, "I2C"),
    (0x07, "EXTI2C"),
    (0x08, "BIOS"),
    (0x09, "CIPHER"),
    (0x0a, "INTERNAL"),
    (0x10, "CLK"),
    (0x11, "FIFO"),
    (0x12, "GR"),
    (0x13, "FB"),
    (0x17, "MC"),
    (0x18, "BUS"),
    (0x20, "PERF"),
    (0x21, "NVIF"),
    (0x22, "RC"),
    (0x23, "GPIO"),
    (0x24, "NVD"),
    (0x25, "DMA"),
    (0x26, "PMGR"),
    (0x27, "POWER"),
    (0x28, "LPWR"),
    (0x29, "ACR"),
    (0x2a, "CE"),
    (0x2b, "SPI"),
    (0x30, "NVLINK"),
    (0x31, "FLCN"),
    (0x32, "VOLT"),
    (0x33, "FAS"),
    (0x34, "ECC"),
    (0x35, "FLA"),
    (0x36, "GSP"),
    (0x37, "NNE"),
    (0x38, "GRMGR"),
    (0x39, "UCODE_FUZZER"),
    (0x3a, "DMABUF"),
    (0x3d, "OS_UNIX"),
    (0x81, "GPU_LEGACY_NON_PRIVILEGED"),
    (0x82, "FUSE_LEGACY_NON_PRIVILEGED"),
    (0x85, "THERMAL_LEGACY_NON_PRIVILEGED"),
    (0x90, "CLK_LEGACY_NON_PRIVILEGED"),
    (0xa0, "PERF_LEGACY_NON_PRIVILEGED"),
    (0xa3, "GPIO_LEGACY_NON_PRIVILEGED"),
    (0xa6, "PMGR_LEGACY_NON_PRIVILEGED"),
    (0xa7, "POWER_LEGACY_NON_PRIVILEGED"),
    (0xa8, "LPWR_LEGACY_NON_PRIVILEGED"),
    (0xb2, "VOLT_LEGACY_NON_PRIVILEGED"),
    (0xb4, "ECC_NON_PRIVILEGED"),
    (0xc5, "THERMAL_LEGACY_PRIVILEGED"),
    (0xd0, "CLK_LEGACY_PRIVILEGED"),
    (0xe0, "PERF_LEGACY_PRIVILEGED"),
    (0xe6, "PMGR_LEGACY_PRIVILEGED"),
    (0xe8, "LPWR_LEGACY_PRIVILEGED"),
];

/// Returns the name of a control command by its number.
///
/// A command is a class (upper 16 bits), a category and an index. A command that no public source defines is shown in the
/// form of the headers' macros, with names where there are any: `NV2080_CTRL_CMD(GPU_LEGACY_NON_PRIVILEGED, 0x59)`,
/// `NVXXXX_CTRL_CMD(NV2081_BINAPI, 0x01, 0x08)`.
#[must_use]
pub fn control(command: u32, version: Option<Version>) -> Cow<'static, str> {
    if let Some(name) = known_control(command, version) {
        return name.into();
    }
    let [index, category, ..] = command.to_le_bytes();
    let class = command >> 16;
    let named = SUBDEVICE_CATEGORIES.iter().find(|c| c.0 == category);
    match (class, named) {
        (0x2080, Some((_, category))) => {
            format!("NV2080_CTRL_CMD({category}, {index:#04x})").into()
        }
        _ => {
            let class = self::class(class);
            format!("NVXXXX_CTRL_CMD({class}, {category:#04x}, {index:#04x})").into()
        }
    }
}

/// Returns the name of a class by its number: `HOPPER_CHANNEL_GPFIFO_A` for 0xc86f.
#[must_use]
pub fn class(class: u32) -> Cow<'static, str> {
    match facts::class(class) {
        Some(name) => name.into(),
        None => format!("{class:#06x}").into(),
    }
}

/// Tells whether the tables name the class.
#[must_use]
pub fn is_known_class(class: u32) -> bool {
    facts::class(class).is_some()
}

/// Returns the name of an NV_STATUS by its code.
#[must_use]
pub fn status(code: u32) -> Cow<'static, str> {
    match facts::status(code) {
        Some(name) => name.into(),
        None => format!("NV_STATUS_{code:#x}").into(),
    }
}

/// Returns the name of an NV2080_ENGINE_TYPE by its number, without that prefix: `GR0`, `COPY2`, `NVDEC0` (class/cl2080_notification.h;
/// numbers from 0x34 on are engines since release 560).
#[must_use]
pub fn engine(number: u32) -> Cow<'static, str> {
    let indexed = |name: &str, base: u32, first: u32| -> Cow<'static, str> {
        format!("{name}{}", number - base + first).into()
    };
    match number {
        0x00 => "NULL".into(),
        0x01..=0x08 => indexed("GR", 0x01, 0),
        0x09..=0x12 => indexed("COPY", 0x09, 0),
        0x13..=0x1a => indexed("NVDEC", 0x13, 0),
        0x1b..=0x1d => indexed("NVENC", 0x1b, 0),
        0x1e => "VP".into(),
        0x1f => "ME".into(),
        0x20 => "PPP".into(),
        0x21 => "MPEG".into(),
        0x22 => "SW".into(),
        0x23 => "TSEC".into(),
        0x24 => "VIC".into(),
        0x25 => "MP".into(),
        0x26 => "SEC2".into(),
        0x27 => "HOST".into(),
        0x28 => "DPU".into(),
        0x29 => "PMU".into(),
        0x2a => "FBFLCN".into(),
        0x2b..=0x32 => indexed("NVJPEG", 0x2b, 0),
        0x33 => "OFA0".into(),
        0x34..=0x3d => indexed("COPY", 0x34, 10),
        0x3e => "OFA1".into(),
        0x3f => "NVENC3".into(),
        0x40..=0x53 => indexed("COMP_DECOMP_COPY", 0x40, 0),
        0xffff_ffff => "ALLENGINES".into(),
        other => format!("ENGINE_{other:#x}").into(),
    }
}

/// Returns the engines that a class drives, over all chips of the tables: `GR(0)`, `CE(0) CE(1) ...`; `None` if the tables do not have the
/// class.
#[must_use]
pub fn engines_of_class(class: u32) -> Option<&'static str> {
    facts::chips_with(class)
        .map(|(_, engines)| engines)
        .max_by_key(|engines| engines.len())
}

/// Returns the chips (GH100, ...) whose class list has `class`.
#[must_use]
pub fn chips_with_class(class: u32) -> Vec<&'static str> {
    facts::chips_with(class).map(|(chip, _)| chip).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_header_names() {
        assert_eq!(escape(0x2a, None), "NV_ESC_RM_CONTROL");
        assert_eq!(uvm(0x3000_0001, None), "UVM_INITIALIZE");
        assert_eq!(class(0xc86f), "HOPPER_CHANNEL_GPFIFO_A");
        assert_eq!(class(0x0041), "NV01_ROOT_CLIENT");
        assert_eq!(status(0x56), "NV_ERR_NOT_SUPPORTED");
        assert_eq!(
            control(0xc36f_0108, Some(Version::new(580, 159, 4))),
            "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN"
        );
        assert_eq!(engine(0x0b), "COPY2");
        assert_eq!(engine(0x34), "COPY10");
        assert_eq!(engine(0x13), "NVDEC0");
    }

    #[test]
    fn an_escape_number_used_twice_is_named_by_version() {
        let name = |v: &str| escape(0x5f, v.parse().ok());
        assert_eq!(name("535.54.03"), "NV_ESC_RM_NVLOG_CTRL");
        assert_eq!(name("580.65.06"), "NV_ESC_RM_LOCKLESS_DIAGNOSTIC");
    }

    #[test]
    fn unknown_numbers_print_in_hex() {
        assert_eq!(escape(0x7f, None), "NV_ESC_0x7f");
        assert_eq!(class(0xfff0), "0xfff0");
        assert_eq!(
            control(0x2080_8159, None),
            "NV2080_CTRL_CMD(GPU_LEGACY_NON_PRIVILEGED, 0x59)"
        );
        assert_eq!(
            control(0x2081_0108, None),
            "NVXXXX_CTRL_CMD(NV2081_BINAPI, 0x01, 0x08)"
        );
        assert_eq!(
            control(0xfff0_0108, None),
            "NVXXXX_CTRL_CMD(0xfff0, 0x01, 0x08)"
        );
        assert_eq!(engine(0x60), "ENGINE_0x60");
        assert_eq!(status(0x1234), "NV_STATUS_0x1234");
    }
}
