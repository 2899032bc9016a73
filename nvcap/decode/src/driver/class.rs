//! Classes whose objects the model tells apart (rm/classes.tsv). The module has only numbers.

use super::object::Aperture;

pub(crate) const ROOT: u32 = 0x0000;
pub(crate) const ROOT_NON_PRIV: u32 = 0x0001;
pub(crate) const MEMORY_SYSTEM: u32 = 0x003e;
pub(crate) const MEMORY_LOCAL_PRIVILEGED: u32 = 0x003f;
pub(crate) const MEMORY_LOCAL_USER: u32 = 0x0040;
pub(crate) const ROOT_CLIENT: u32 = 0x0041;
pub(crate) const MEMORY_EXTENDED_USER: u32 = 0x0042;
pub(crate) const MEMORY_VIRTUAL: u32 = 0x0070;
pub(crate) const MEMORY_OS_DESCRIPTOR: u32 = 0x0071;
pub(crate) const DEVICE: u32 = 0x0080;
pub(crate) const MEMORY_LIST_SYSTEM: u32 = 0x0081;
pub(crate) const MEMORY_LIST_FBMEM: u32 = 0x0082;
pub(crate) const NV50_MEMORY_VIRTUAL: u32 = 0x50a0;
pub(crate) const CONTEXT_SHARE: u32 = 0x9067;
pub(crate) const VASPACE: u32 = 0x90f1;
pub(crate) const CHANNEL_GROUP: u32 = 0xa06c;
pub(crate) const FIRST_GPFIFO: u32 = 0x906f;
pub(crate) const FIRST_USERMODE: u32 = 0xc361;
pub(crate) const HOPPER_USERMODE: u32 = 0xc661;

/// Tells whether objects of a class are GPFIFO channels (906f, a06f, ... c86f, c96f, ca6f).
pub(crate) fn is_channel(class: u32) -> bool {
    class & 0xff == 0x6f && (FIRST_GPFIFO..=0xffff).contains(&class)
}

/// Tells whether objects of a class are doorbell pages (c361, c461, c561, c661, c761).
pub(crate) fn is_usermode(class: u32) -> bool {
    class & 0xff == 0x61 && (FIRST_USERMODE..=0xffff).contains(&class)
}

pub(crate) fn is_memory(class: u32) -> bool {
    matches!(
        class,
        MEMORY_SYSTEM
            | MEMORY_LOCAL_PRIVILEGED
            | MEMORY_LOCAL_USER
            | MEMORY_EXTENDED_USER
            | MEMORY_OS_DESCRIPTOR
    )
}

pub(crate) fn aperture_of_class(class: u32) -> Option<Aperture> {
    match class {
        MEMORY_SYSTEM | MEMORY_OS_DESCRIPTOR | MEMORY_LIST_SYSTEM => Some(Aperture::System),
        MEMORY_LOCAL_USER | MEMORY_EXTENDED_USER | MEMORY_LIST_FBMEM => Some(Aperture::Video),
        MEMORY_LOCAL_PRIVILEGED => Some(Aperture::Registers),
        _ => None,
    }
}
