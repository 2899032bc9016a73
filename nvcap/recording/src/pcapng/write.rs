//! Blocks that are appended to a buffer, little-endian.

use super::{BYTE_ORDER, CUSTOM, INTERFACE, JOURNAL, PACKET, SECTION, STATISTICS, USER0, option};

/// Options of a block: code and value, in the order in which they are written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options(Vec<(u16, Vec<u8>)>);

impl Options {
    /// Makes an empty list of options.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a text, cut to the most bytes of an option.
    #[must_use]
    pub(crate) fn text(self, code: u16, text: &str) -> Self {
        let most = usize::from(u16::MAX);
        let end = (0..=text.len().min(most))
            .rev()
            .find(|end| text.is_char_boundary(*end))
            .unwrap_or(0);
        self.bytes(code, &text.as_bytes()[..end])
    }

    /// Adds a number.
    #[must_use]
    pub(crate) fn number(self, code: u16, number: u64) -> Self {
        self.bytes(code, &number.to_le_bytes())
    }

    /// Adds a time in ns, written as its upper half and its lower half.
    #[must_use]
    pub(crate) fn time(self, code: u16, ns: u64) -> Self {
        self.bytes(code, &halves(ns))
    }

    /// Adds bytes, at most 65,535.
    #[must_use]
    pub(crate) fn bytes(mut self, code: u16, bytes: &[u8]) -> Self {
        self.0.push((code, bytes.to_vec()));
        self
    }

    fn append(&self, to: &mut Vec<u8>) {
        for (code, value) in &self.0 {
            let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
            to.extend_from_slice(&code.to_le_bytes());
            to.extend_from_slice(&len.to_le_bytes());
            to.extend_from_slice(&value[..usize::from(len)]);
            pad(to, usize::from(len));
        }
        if !self.0.is_empty() {
            // The end of options.
            to.extend_from_slice(&[0; 4]);
        }
    }
}

fn halves(ns: u64) -> [u8; 8] {
    let both = ns.rotate_left(32);
    both.to_le_bytes()
}

/// Appends zeros behind `len` bytes, up to a multiple of four.
fn pad(to: &mut Vec<u8>, len: usize) {
    to.resize(to.len() + len.next_multiple_of(4) - len, 0);
}

/// Appends a block of `kind` with the body that `body` appends.
fn block(to: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.extend_from_slice(&kind.to_le_bytes());
    to.extend_from_slice(&[0; 4]);
    body(to);
    let len = to.len() - start + 4;
    let len = u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
    to[start + 4..start + 8].copy_from_slice(&len);
    to.extend_from_slice(&len);
}

/// Appends a section header, without the section's length.
pub(crate) fn section(to: &mut Vec<u8>, options: &Options) {
    block(to, SECTION, |to| {
        to.extend_from_slice(&BYTE_ORDER.to_le_bytes());
        to.extend_from_slice(&1u16.to_le_bytes());
        to.extend_from_slice(&0u16.to_le_bytes());
        to.extend_from_slice(&u64::MAX.to_le_bytes());
        options.append(to);
    });
}

/// Appends a description of the next interface. Its packets are [`USER0`] and have times in ns.
pub(crate) fn interface(to: &mut Vec<u8>, most_packet: u32, options: &Options) {
    let options = options.clone().bytes(option::RESOLUTION, &[9]);
    block(to, INTERFACE, |to| {
        to.extend_from_slice(&USER0.to_le_bytes());
        to.extend_from_slice(&0u16.to_le_bytes());
        to.extend_from_slice(&most_packet.to_le_bytes());
        options.append(to);
    });
}

/// Appends a packet of an interface, made of several parts.
pub(crate) fn packet(to: &mut Vec<u8>, interface: u32, time_ns: u64, parts: &[&[u8]]) {
    let len = parts.iter().map(|p| p.len()).sum::<usize>();
    block(to, PACKET, |to| {
        to.extend_from_slice(&interface.to_le_bytes());
        to.extend_from_slice(&halves(time_ns));
        let short = u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
        to.extend_from_slice(&short);
        to.extend_from_slice(&short);
        for part in parts {
            to.extend_from_slice(part);
        }
        pad(to, len);
    });
}

/// Appends the statistics of an interface: the numbers of received and dropped packets.
pub(crate) fn statistics(to: &mut Vec<u8>, interface: u32, time_ns: u64, options: &Options) {
    block(to, STATISTICS, |to| {
        to.extend_from_slice(&interface.to_le_bytes());
        to.extend_from_slice(&halves(time_ns));
        options.append(to);
    });
}

/// Appends an entry of a log in the export format of systemd's journal: `FIELD=value` a line.
pub(crate) fn journal_entry(to: &mut Vec<u8>, fields: &[(&str, &str)]) {
    block(to, JOURNAL, |to| {
        let start = to.len();
        for (name, value) in fields {
            to.extend_from_slice(name.as_bytes());
            match value.contains('\n') {
                false => to.push(b'='),
                true => {
                    to.push(b'\n');
                    to.extend_from_slice(&(value.len() as u64).to_le_bytes());
                }
            }
            to.extend_from_slice(value.as_bytes());
            to.push(b'\n');
        }
        let len = to.len() - start;
        pad(to, len);
    });
}

/// Appends data of the program with the private enterprise number `enterprise`.
pub(crate) fn custom(to: &mut Vec<u8>, enterprise: u32, data: &[u8]) {
    block(to, CUSTOM, |to| {
        to.extend_from_slice(&enterprise.to_le_bytes());
        to.extend_from_slice(data);
        pad(to, data.len());
    });
}
