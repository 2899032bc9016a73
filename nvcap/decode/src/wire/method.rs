//! Methods that have the same address in every class that has them: byte addresses from the public class headers.

/// SET_OBJECT: binds a class, whose number is in the low 16 bits, to its subchannel.
pub(crate) const SET_OBJECT: u16 = 0;
/// First address of the engine's methods. Methods below it are the channel's own (the host's).
pub const FIRST_OF_ENGINE: u16 = 0x100;
/// OFFSET_OUT_UPPER of every class that takes inline data since Kepler; followed by OFFSET_OUT_LOWER.
pub(crate) const OFFSET_OUT_UPPER: u16 = 0x188;
/// LOAD_INLINE_DATA of the same classes.
pub(crate) const LOAD_INLINE_DATA: u16 = 0x1b4;
/// SEM_ADDR_LO of the channel classes since Volta; followed by SEM_ADDR_HI, SEM_PAYLOAD_LO, SEM_PAYLOAD_HI and SEM_EXECUTE.
pub(crate) const SEM_ADDR_LO: u16 = 0x5c;
/// SEM_EXECUTE of the same classes.
pub(crate) const SEM_EXECUTE: u16 = 0x6c;
/// SEND_PCAS_A of the compute classes since Pascal, which names a QMD.
pub(crate) const SEND_PCAS_A: u16 = 0x2b4;
/// SET_APPLICATION_ID of the video engines.
pub(crate) const SET_APPLICATION_ID: u16 = 0x200;
/// SET_SEMAPHORE_A of the copy classes; followed by B and PAYLOAD.
pub(crate) const COPY_SET_SEMAPHORE_A: u16 = 0x240;
/// OFFSET_OUT_UPPER of the copy classes; followed by OFFSET_OUT_LOWER.
pub const COPY_OFFSET_OUT_UPPER: u16 = 0x408;
/// LINE_LENGTH_IN of the copy classes; followed by LINE_COUNT.
pub const COPY_LINE_LENGTH_IN: u16 = 0x418;
/// LAUNCH_DMA of the copy classes.
pub const COPY_LAUNCH_DMA: u16 = 0x300;
/// SET_REPORT_SEMAPHORE_A of the compute and 3D classes; followed by B, C and D.
pub(crate) const SET_REPORT_SEMAPHORE_A: u16 = 0x1b00;

/// Returns the class number in a data word of [`SET_OBJECT`].
pub(crate) fn class_of(data: u32) -> u32 {
    data & 0xffff
}
