//! One record of the driver's event buffer.

use std::fmt;

use crate::wire::words::{u32_at, u64_at};

/// Length of a record in bytes.
pub const RECORD_LEN: usize = 32;

/// Type of the records of NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID (cl90cdtypes.h).
const FIRST_FORM: u16 = 134;
/// Type of the records of NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2.
const SECOND_FORM: u16 = 2;

/// First of the MIG instance numbers that mean that there is none: a kernel client's, another user's, not in MIG mode.
const NO_INSTANCE: u8 = 0xfd;

/// Event of a record (NV_EVENT_BUFFER_FECS_CTXSWTAG_*).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u8);

impl Tag {
    /// A context has the engine from now on.
    pub const BEGIN: Self = Self(6);
    /// A context no longer has the engine: its state is saved.
    pub const END: Self = Self(7);

    /// Returns the driver's name of the event, without its prefix; `None` for a number that its header does not have.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0x00 => "SO",
            0x01 => "CTXSW_REQ_BY_HOST",
            0x02 => "FE_ACK",
            0x03 => "SAVE_END",
            0x04 => "RESTORE_START",
            0x05 => "CONTEXT_START",
            0x06 => "SIMPLE_START",
            0x07 => "SIMPLE_END",
            0x0a => "FE_ACK_WFI",
            0x0b => "FE_ACK_GFXP",
            0x0c => "FE_ACK_CTAP",
            0x0d => "FE_ACK_CILP",
            0xfe => "ENGINE_RESET",
            0xff => "INVALID_TIMESTAMP",
            _ => return None,
        })
    }

    /// Tells whether a slice begins with this record. The driver reports further details to privileged clients; they have other numbers.
    #[must_use]
    pub const fn begins(self) -> bool {
        matches!(self.0, 0x05 | 0x06)
    }

    /// Tells whether a slice ends with this record.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self.0, 0x03 | 0x07)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "{:#04x}", self.0),
        }
    }
}

/// MIG instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    /// Number of the GPU instance.
    pub gpu: u8,
    /// Number of the compute instance in the GPU instance; `None` if the context belongs to none.
    pub compute: Option<u8>,
}

/// Holder of a context, as far as the driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// A process, by its id in the host's PID namespace.
    Process(u32),
    /// A process of another user, which the driver does not name to a client that is not root; or a process that was gone when the driver
    /// looked.
    Hidden,
    /// The driver's own contexts.
    Driver,
}

/// One record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switch {
    /// Event of the record.
    pub tag: Tag,
    /// Virtual machine of the context; 0 for the host's own.
    pub vmid: u8,
    /// Number of the record in its buffer, modulo 65,536.
    pub sequence: u16,
    /// Handle of the channel or channel group.
    pub context: u32,
    /// Process id as the driver reports it.
    pub pid: u32,
    /// MIG instance, if the GPU is in that mode.
    pub instance: Option<Instance>,
    /// GPU time (PTIMER), ns.
    pub time_ns: u64,
}

impl Switch {
    /// Reads a record; `None` for bytes that are not a record of this kind.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < RECORD_LEN {
            return None;
        }
        let head = u32_at(bytes, 0)?;
        let payload = u32_at(bytes, 8)?;
        let [tag, vmid, low, high] = payload.to_le_bytes();
        let (pid, instance) = match head as u16 {
            // The id has 64 bits here; process ids have fewer.
            FIRST_FORM => (u32::try_from(u64_at(bytes, 16)?).unwrap_or(u32::MAX), None),
            SECOND_FORM => {
                let (gpu, compute) = (bytes[22], bytes[23]);
                let instance = (gpu < NO_INSTANCE).then_some(Instance {
                    gpu,
                    compute: (compute < NO_INSTANCE).then_some(compute),
                });
                (u32_at(bytes, 16)?, instance)
            }
            _ => return None,
        };
        Some(Self {
            tag: Tag(tag),
            vmid,
            sequence: u16::from_le_bytes([low, high]),
            context: u32_at(bytes, 12)?,
            pid,
            instance,
            time_ns: u64_at(bytes, 24)?,
        })
    }

    /// Returns the bytes of the record in the driver's second form.
    #[must_use]
    pub fn bytes(&self) -> [u8; RECORD_LEN] {
        let mut bytes = [0; RECORD_LEN];
        let mut put = |at: usize, of: &[u8]| bytes[at..at + of.len()].copy_from_slice(of);
        put(0, &SECOND_FORM.to_le_bytes());
        put(8, &[self.tag.0, self.vmid]);
        put(10, &self.sequence.to_le_bytes());
        put(12, &self.context.to_le_bytes());
        put(16, &self.pid.to_le_bytes());
        let none = Instance {
            gpu: 0xff,
            compute: None,
        };
        let instance = self.instance.unwrap_or(none);
        put(22, &[instance.gpu, instance.compute.unwrap_or(0xff)]);
        put(24, &self.time_ns.to_le_bytes());
        bytes
    }

    /// Tells whether this record may be the end of a holder's slice. For a context that is gone when the driver looks, the record gives
    /// neither process nor context.
    pub(super) fn may_end(&self, holder: (Who, u32)) -> bool {
        let who = (self.who(), self.context);
        who == holder || who == (Who::Hidden, 0)
    }

    /// Returns the holder of the context.
    #[must_use]
    pub const fn who(&self) -> Who {
        match self.pid {
            0 => Who::Hidden,
            u32::MAX => Who::Driver,
            pid => Who::Process(pid),
        }
    }
}

/// Sequence numbers of a buffer's records, which show the number of missing records.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sequence {
    next: Option<u16>,
}

impl Sequence {
    /// Takes in the next record's number, and returns the number of records that are missing before it. `dropped` is the driver's count of
    /// records that it has dropped for lack of room since the last one; it also covers more than 65,535.
    pub fn missing(&mut self, sequence: u16, dropped: u64) -> u64 {
        let expected = self.next.replace(sequence.wrapping_add(1));
        let gap = u64::from(sequence.wrapping_sub(expected.unwrap_or(sequence)));
        // The least number that fits both counts.
        let rounds = dropped.saturating_sub(gap).div_ceil(1 << 16);
        gap.saturating_add(rounds.saturating_mul(1 << 16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a record as an H200 (driver 580) does, in the driver's first form.
    fn first_form(tag: u8, sequence: u16, pid: u64, time_ns: u64) -> Vec<u8> {
        let mut bytes = vec![134, 0, 0, 0, 0, 0, 0, 0, tag, 0];
        bytes.extend(sequence.to_le_bytes());
        bytes.extend(7u32.to_le_bytes());
        bytes.extend(pid.to_le_bytes());
        bytes.extend(time_ns.to_le_bytes());
        bytes
    }

    #[test]
    fn both_forms_are_read() {
        let read = Switch::read(&first_form(6, 0xfffe, 4711, 1 << 60)).expect("a record");
        let expected = Switch {
            tag: Tag::BEGIN,
            sequence: 0xfffe,
            context: 7,
            pid: 4711,
            time_ns: 1 << 60,
            ..Switch::default()
        };
        assert_eq!(read, expected);
        for compute in [None, Some(3)] {
            let instance = Some(Instance { gpu: 7, compute });
            let switch = Switch {
                instance,
                ..expected
            };
            assert_eq!(Switch::read(&switch.bytes()), Some(switch));
        }
        assert_eq!(Switch::read(&expected.bytes()), Some(expected));
    }

    #[test]
    fn other_bytes_are_no_record() {
        let record = first_form(7, 1, 1, 1);
        assert_eq!(Switch::read(&record[..31]), None);
        assert_eq!(Switch::read(&[0; 32]), None);
        let wide = Switch::read(&first_form(7, 1, 1 << 40, 1)).expect("a record");
        assert_eq!(wide.who(), Who::Driver);
    }

    #[test]
    fn tags_have_names_and_unknown_ones_are_shown_raw() {
        assert_eq!(Tag::BEGIN.to_string(), "SIMPLE_START");
        assert_eq!(Tag(0x0d).to_string(), "FE_ACK_CILP");
        assert_eq!(Tag(0x55).to_string(), "0x55");
        let begins: Vec<u8> = (0..=255).filter(|t| Tag(*t).begins()).collect();
        let ends: Vec<u8> = (0..=255).filter(|t| Tag(*t).ends()).collect();
        assert_eq!((begins, ends), (vec![5, 6], vec![3, 7]));
    }

    #[test]
    fn holders() {
        let who = |pid| {
            Switch {
                pid,
                ..Switch::default()
            }
            .who()
        };
        assert_eq!(who(0), Who::Hidden);
        assert_eq!(who(u32::MAX), Who::Driver);
        assert_eq!(who(4711), Who::Process(4711));
    }

    #[test]
    fn gaps_are_losses() {
        let mut sequence = Sequence::default();
        assert_eq!(sequence.missing(0xfffe, 0), 0);
        assert_eq!(sequence.missing(0xffff, 0), 0);
        assert_eq!(sequence.missing(0, 0), 0);
        assert_eq!(sequence.missing(4, 0), 3);
        assert_eq!(sequence.missing(5, 0), 0);
        // The driver's own count of drops shows more than 16 bits can.
        assert_eq!(sequence.missing(8, 2), 2);
        assert_eq!(sequence.missing(11, 65_538), 65_538);
        assert_eq!(sequence.missing(12, 65_536), 65_536);
        assert_eq!(sequence.missing(13, 1), 65_536);
    }
}
