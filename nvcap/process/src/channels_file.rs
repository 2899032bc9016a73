//! Channels and doorbells that the user names: `--doorbell ADDR`, `--channels FILE` (docs/channels-file.md).

use std::path::Path;

use super::error::{Error, Result};
use nvcap_decode::record::{At, Channel, ChannelId, CpuVa, Origin};

/// A doorbell word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedDoorbell {
    /// Address of the 32-bit word in the process.
    pub address: u64,
    /// GPU to which the doorbell belongs, if the user names one.
    pub gpu: Option<u32>,
}

/// A channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamedChannel {
    /// GPU to which the channel belongs, if the user names one.
    pub gpu: Option<u32>,
    /// Work-submit token.
    pub token: Option<u32>,
    /// Channel class.
    pub class: Option<u32>,
    /// NV2080_ENGINE_TYPE.
    pub engine: Option<u32>,
    /// Address of the ring in the process.
    pub ring: u64,
    /// Number of ring entries, a power of two.
    pub entries: u32,
    /// Address of USERD in the process.
    pub userd: u64,
}

impl NamedChannel {
    /// Returns the named channel as a channel of the trace.
    #[must_use]
    pub fn channel(&self, at: At, id: ChannelId) -> Channel {
        Channel {
            at,
            id,
            gpu: self.gpu,
            token: self.token,
            class: self.class,
            engine: self.engine,
            handle: None,
            ring_gpu: None,
            ring: Some(CpuVa(self.ring)),
            entries: Some(self.entries),
            userd: Some(CpuVa(self.userd)),
            origin: Origin::Given,
        }
    }
}

/// Size of a ring entry, bytes.
const ENTRY: u64 = 8;
/// Size and alignment of a USERD, bytes.
const USERD: u64 = 512;

/// Doorbells and channels that the user gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelsFile {
    /// Doorbells.
    pub doorbells: Vec<NamedDoorbell>,
    /// Channels.
    pub channels: Vec<NamedChannel>,
}

impl ChannelsFile {
    /// Tells whether nothing was given.
    pub fn is_empty(&self) -> bool {
        self.doorbells.is_empty() && self.channels.is_empty()
    }

    /// Reads a channels file.
    ///
    /// # Errors
    /// The wrong line, and its correct form.
    pub fn read(path: &Path) -> Result<Self> {
        let what = || format!("reading {}", path.display());
        let text = nvcap_recording::file::text(path).map_err(|e| {
            Error::new(what(), e, "give a readable file, see docs/channels-file.md")
        })?;
        let given = Self::parse(&text).map_err(|(line, why)| {
            Error::new(
                format!("{}, line {line}", what()),
                why,
                "see docs/channels-file.md for the form of a line",
            )
        })?;
        if given.is_empty() {
            return Err(Error::new(
                what(),
                "it names no channel and no doorbell",
                "give it lines (docs/channels-file.md has their form), or leave --channels out: channels are found by themselves",
            ));
        }
        Ok(given)
    }

    /// Checks that the named doorbells and channels can be observed without a trap. Observing does not see doorbells, so a doorbell alone
    /// leads to no channel.
    ///
    /// # Errors
    /// When the user named doorbells and no channels.
    pub fn check_observed(&self) -> Result<()> {
        if self.doorbells.is_empty() || !self.channels.is_empty() {
            return Ok(());
        }
        Err(Error::new(
            "observing without a trap",
            "doorbells were named and no channel: observing looks at rings, and a doorbell does not tell where one is",
            "name the channels too (docs/channels-file.md), or leave the doorbells out: channels are found by themselves",
        ))
    }

    /// Parses the text of a channels file; the error names the line.
    ///
    /// # Errors
    /// The number of the first wrong line, and the mistake in it.
    pub fn parse(text: &str) -> std::result::Result<Self, (usize, String)> {
        let mut given = Self::default();
        for (i, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                given.line(line).map_err(|why| (i + 1, why))?;
            }
        }
        Ok(given)
    }

    fn line(&mut self, line: &str) -> std::result::Result<(), String> {
        let mut words = line.split_whitespace();
        let what = words.next().unwrap_or_default();
        let mut pairs = Vec::new();
        for word in words {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| format!("{word:?} is not KEY=VALUE"))?;
            pairs.push((
                key,
                number(value).ok_or_else(|| format!("{value:?} is not a number"))?,
            ));
        }
        let get = |key: &str| pairs.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
        let need = |key: &str| get(key).ok_or_else(|| format!("{what} needs {key}="));
        let small = |key: &str, v: u64| {
            u32::try_from(v).map_err(|_| format!("{key} does not fit into 32 bits"))
        };
        let optional = |key: &str| get(key).map(|v| small(key, v)).transpose();
        let known: &[&str] = match what {
            "doorbell" => &["addr", "gpu"],
            "channel" => &[
                "gpu", "token", "class", "engine", "ring", "entries", "userd",
            ],
            _ => return Err(format!("{what:?} is neither doorbell nor channel")),
        };
        if let Some((key, _)) = pairs.iter().find(|(k, _)| !known.contains(k)) {
            return Err(format!("{what} has no {key}="));
        }
        let gpu = optional("gpu")?;
        if what == "doorbell" {
            let address = need("addr")?;
            if address % 4 != 0 {
                return Err(format!("addr={address:#x} is not a multiple of 4"));
            }
            self.doorbells.push(NamedDoorbell { address, gpu });
            return Ok(());
        }
        let entries = small("entries", need("entries")?)?;
        if !entries.is_power_of_two() || entries < 2 {
            return Err(format!("entries={entries} is not a power of two from 2 on"));
        }
        let (ring, userd) = (need("ring")?, need("userd")?);
        for (key, address, unit) in [("ring", ring, ENTRY), ("userd", userd, USERD)] {
            if address % unit != 0 {
                return Err(format!("{key}={address:#x} is not a multiple of {unit}"));
            }
            if address
                .checked_add(u64::from(entries) * ENTRY + USERD)
                .is_none()
            {
                return Err(format!("{key}={address:#x} is no address of a process"));
            }
        }
        self.channels.push(NamedChannel {
            gpu,
            token: optional("token")?,
            class: optional("class")?,
            engine: optional("engine")?,
            ring,
            entries,
            userd,
        });
        Ok(())
    }
}

/// Parses a decimal or 0x number.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file() {
        let text = "# softgpu\ndoorbell addr=0x7000090 gpu=1\n\
                    channel gpu=1 token=0xa class=0xc86f engine=1 ring=0x200600000 entries=1024 userd=0x200602000 # first\n";
        let g = ChannelsFile::parse(text).unwrap();
        assert_eq!(
            g.doorbells,
            [NamedDoorbell {
                address: 0x700_0090,
                gpu: Some(1)
            }]
        );
        assert_eq!(g.channels[0].token, Some(10));
        assert_eq!(g.channels[0].userd, 0x2_0060_2000);
    }

    #[test]
    fn doorbells_alone_cannot_be_observed() {
        let of = |text: &str| ChannelsFile::parse(text).unwrap().check_observed();
        let channel = "channel ring=0x1000 entries=4 userd=0x2000\n";
        let doorbell = "doorbell addr=0x7000090\n";
        assert!(of("").is_ok(), "then channels are found");
        assert!(of(channel).is_ok());
        assert!(of(&[doorbell, channel].concat()).is_ok());
        let refused = of(doorbell).unwrap_err().to_string();
        assert!(refused.contains("name the channels too"), "{refused}");
    }

    #[test]
    fn a_gpu_that_is_not_named_is_not_known() {
        let text =
            "doorbell addr=0x7000090\nchannel token=0xa ring=0x1000 entries=1024 userd=0x3000\n";
        let g = ChannelsFile::parse(text).unwrap();
        assert_eq!(g.doorbells[0].gpu, None);
        let channel = g.channels[0].channel(At::default(), ChannelId(0));
        assert_eq!(channel.gpu, None);
    }

    #[test]
    fn wrong_lines_are_named() {
        for (text, line, why) in [
            ("\nfoo a=1", 2, "neither"),
            ("channel ring=8 entries=3 userd=512", 1, "power of two"),
            ("channel ring=8 entries=1 userd=512", 1, "power of two"),
            (
                "channel ring=0x1004 entries=4 userd=512",
                1,
                "multiple of 8",
            ),
            (
                "channel ring=8 entries=4 userd=0x2001",
                1,
                "multiple of 512",
            ),
            ("channel ring=1 entries=4", 1, "needs userd"),
            ("doorbell addr=0x13", 1, "multiple of 4"),
            ("doorbell addr=x", 1, "not a number"),
            ("doorbell adr=4", 1, "no adr"),
        ] {
            let (at, said) = ChannelsFile::parse(text).unwrap_err();
            assert_eq!(at, line);
            assert!(said.contains(why), "{said}");
        }
    }
}
