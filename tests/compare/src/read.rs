//! One line of `nvcap --json -vv` at a time, with only the fields that a comparison needs.

use std::borrow::Cow;
use std::io::BufRead;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// A channel as the lines name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// GPU, where it is known and asked for.
    pub gpu: Option<u32>,
    /// Work-submit token; `None` where the trace does not know it.
    pub token: Option<u32>,
}

/// A GPFIFO entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its channel.
    pub key: Key,
    /// Process; 0 where the trace does not know it.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The 8 bytes in the ring.
    pub raw: u64,
    /// The bytes it points to.
    pub data: Vec<u8>,
    /// Number of these bytes that could not be read.
    pub missing: u64,
}

/// A submission's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submission {
    /// Its channel.
    pub key: Key,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Ring position of its first entry.
    pub position: u64,
    /// GP_PUT before.
    pub prev_put: u32,
    /// GP_PUT after.
    pub gp_put: u32,
    /// Entries.
    pub entries: u64,
    /// Caught up later than its own doorbell.
    pub late: bool,
}

/// Content of a line.
#[derive(Clone, Debug)]
pub enum Item {
    /// A submission begins.
    Submission(Submission),
    /// A ring entry.
    Entry(Entry),
    /// The ledger at the end, whole.
    Ledger(serde_json::Value),
    /// Anything else: its `type`.
    Other(String),
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    pid: Option<u32>,
    tid: Option<u32>,
    token: Option<u32>,
    gpu: Option<u32>,
    channel: Option<u64>,
    #[serde(borrow)]
    raw: Option<Cow<'a, str>>,
    #[serde(borrow)]
    data: Option<Cow<'a, str>>,
    len: Option<u64>,
    missing: Option<u64>,
    #[serde(default)]
    holes: Vec<[u64; 2]>,
    position: Option<u64>,
    prev_put: Option<u32>,
    gp_put: Option<u32>,
    entries: Option<serde_json::Value>,
    late: Option<serde_json::Value>,
}

/// Reads the lines of a trace.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    by_gpu: bool,
    heads: bool,
    channel: Option<u64>,
}

impl<R: BufRead> Reader<R> {
    /// Reads from `input`. With `by_gpu`, channels of the same token on different GPUs are different channels.
    pub fn new(input: R, by_gpu: bool) -> Self {
        Reader {
            input,
            line: Vec::new(),
            number: 0,
            by_gpu,
            heads: false,
            channel: None,
        }
    }

    /// Reads entries without their bytes.
    pub fn heads(self) -> Self {
        Reader {
            heads: true,
            ..self
        }
    }

    /// The trace's own number of the channel that the last item is of, where the line has one. It is known before the
    /// token of a channel that was found in memory is.
    pub fn channel(&self) -> Option<u64> {
        self.channel
    }

    /// The line read last, counted from 1, as text.
    pub fn raw_line(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.line)
    }

    /// The next item; `None` at the end. A last line without its newline is a cut one and counts as the end.
    pub fn next_item(&mut self) -> Result<Option<Item>> {
        loop {
            self.line.clear();
            self.number += 1;
            let number = self.number;
            self.input
                .read_until(b'\n', &mut self.line)
                .with_context(|| format!("line {number}"))?;
            if self.line.last() != Some(&b'\n') {
                return Ok(None);
            }
            if self.line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let (item, channel) = self.item().with_context(|| format!("line {number}"))?;
            self.channel = channel;
            return Ok(Some(item));
        }
    }

    fn item(&self) -> Result<(Item, Option<u64>)> {
        let line: Line<'_> =
            serde_json::from_slice(&self.line).context("not a JSON object of nvcap's")?;
        let key = Key {
            gpu: if self.by_gpu { line.gpu } else { None },
            token: line.token,
        };
        let (pid, tid) = (line.pid.unwrap_or(0), line.tid.unwrap_or(0));
        let channel = line.channel;
        let item = match line.kind.as_ref() {
            "entry" => {
                let raw = line.raw.context("an entry without `raw`")?;
                let raw = u64::from_str_radix(raw.strip_prefix("0x").unwrap_or(&raw), 16)
                    .with_context(|| format!("`raw` is {raw:?}"))?;
                let hex = line.data.as_deref().unwrap_or("").as_bytes();
                let data = unhex(if self.heads { &[] } else { hex })?;
                let data = with_holes(data, &line.holes);
                let len = (raw >> 42 & 0x1f_ffff) * 4;
                let holes: u64 = line.holes.iter().map(|[_, n]| n).sum();
                if hex.len() as u64 + 2 * holes != 2 * len {
                    let has = hex.len() as f64 / 2.0;
                    bail!("entry {raw:#x} says {len} bytes, `data` has {has}");
                }
                if line.len.is_some_and(|n| n != len) {
                    bail!("entry {raw:#x} says {len} bytes, `len` is {:?}", line.len);
                }
                Item::Entry(Entry {
                    key,
                    pid,
                    tid,
                    raw,
                    data,
                    missing: line.missing.unwrap_or(0),
                })
            }
            "submission" => Item::Submission(Submission {
                key,
                pid,
                tid,
                position: line.position.context("a submission without `position`")?,
                prev_put: line.prev_put.context("a submission without `prev_put`")?,
                gp_put: line.gp_put.context("a submission without `gp_put`")?,
                entries: line
                    .entries
                    .and_then(|v| v.as_u64())
                    .context("a submission without `entries`")?,
                late: line
                    .late
                    .as_ref()
                    .and_then(serde_json::Value::as_bool)
                    .unwrap_or(false),
            }),
            "ledger" => Item::Ledger(serde_json::from_slice(&self.line)?),
            other => Item::Other(other.to_owned()),
        };
        Ok((item, channel))
    }
}

/// Value of each character as a digit; 0xff: none.
const DIGITS: [u8; 256] = {
    let mut digits = [0xff; 256];
    let mut i = 0;
    while i < 16 {
        digits[b"0123456789abcdef"[i] as usize] = i as u8;
        digits[b"0123456789ABCDEF"[i] as usize] = i as u8;
        i += 1;
    }
    digits
};

/// Zeros where bytes are missing, which is not compared: that they are is told.
fn with_holes(data: Vec<u8>, holes: &[[u64; 2]]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(data.len());
    let mut rest = data.as_slice();
    for [offset, len] in holes {
        let before = (*offset as usize).saturating_sub(whole.len());
        let (read, after) = rest.split_at(before.min(rest.len()));
        whole.extend_from_slice(read);
        whole.resize(whole.len() + *len as usize, 0);
        rest = after;
    }
    whole.extend_from_slice(rest);
    whole
}

fn unhex(text: &[u8]) -> Result<Vec<u8>> {
    let (pairs, rest) = text.as_chunks::<2>();
    if !rest.is_empty() {
        bail!("`data` has an odd number of digits");
    }
    let mut wrong = 0;
    let bytes = pairs.iter().map(|&[a, b]| {
        let (a, b) = (DIGITS[a as usize], DIGITS[b as usize]);
        wrong |= a | b;
        a << 4 | b
    });
    let bytes = bytes.collect();
    if wrong > 0xf {
        bail!("`data` is not hex");
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_keeps_its_place() {
        assert_eq!(with_holes(vec![1, 2], &[]), [1, 2]);
        assert_eq!(
            with_holes(vec![1, 2, 3], &[[0, 2], [3, 1], [6, 1]]),
            [0, 0, 1, 0, 2, 3, 0]
        );
    }

    #[test]
    fn reads_entries_and_skips_what_it_does_not_need() {
        let text = concat!(
            r#"{"type":"submission","time_ns":1,"pid":7,"tid":8,"token":10,"position":5,"gp_get":4,"prev_put":5,"gp_put":6,"entries":1,"bytes":8,"missing":0,"late":false}"#,
            "\n",
            r#"{"type":"entry","pid":7,"tid":8,"token":10,"gpu":1,"raw":"0x00000a0200800000","kind":"segment","len":8,"missing":0,"data":"0100000002000000"}"#,
            "\n\n",
            r#"{"type":"operation","op":"launch","token":10}"#,
            "\n",
            r#"{"type":"entry","raw":"0x00000a02"#
        );
        let mut r = Reader::new(text.as_bytes(), true);
        assert!(
            matches!(r.next_item().unwrap(), Some(Item::Submission(s)) if s.position == 5 && s.entries == 1)
        );
        match r.next_item().unwrap() {
            Some(Item::Entry(e)) => {
                assert_eq!(
                    e.key,
                    Key {
                        gpu: Some(1),
                        token: Some(10)
                    }
                );
                assert_eq!(e.data, [1, 0, 0, 0, 2, 0, 0, 0]);
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(r.next_item().unwrap(), Some(Item::Other(t)) if t == "operation"));
        assert!(r.next_item().unwrap().is_none());
    }

    #[test]
    fn an_entry_shorter_than_it_says_is_an_error() {
        let text = "{\"type\":\"entry\",\"token\":1,\"raw\":\"0x00000a0200800000\",\"data\":\"01000000\"}\n";
        assert!(Reader::new(text.as_bytes(), false).next_item().is_err());
    }

    #[test]
    fn hex_is_read_and_what_is_not_hex_refused() {
        assert_eq!(unhex(b"00fFa9").unwrap(), [0, 0xff, 0xa9]);
        for wrong in ["0", "0g", "g0", "0x", " 1", "1\u{e9}"] {
            assert!(unhex(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
