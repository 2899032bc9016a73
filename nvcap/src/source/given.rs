//! Channels and doorbells that the user names: `--doorbell ADDR`, `--channels FILE` (docs/channels-file.md).

use std::{fs, path::Path};

use super::error::{Error, Result};
use crate::record::{At, Channel, ChannelId, CpuVa, Origin};

/// A doorbell word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenDoorbell {
    /// Address of the 32-bit word in the process.
    pub address: u64,
    /// GPU it belongs to.
    pub gpu: u32,
}

/// A channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenChannel {
    /// GPU it belongs to.
    pub gpu: u32,
    /// Work-submit token.
    pub token: Option<u32>,
    /// Channel class.
    pub class: Option<u32>,
    /// NV2080_ENGINE_TYPE.
    pub engine: Option<u32>,
    /// Address of the ring in the process.
    pub ring: u64,
    /// Ring entries, a power of two.
    pub entries: u32,
    /// Address of USERD in the process.
    pub userd: u64,
}

impl GivenChannel {
    /// As a channel of the trace.
    #[must_use]
    pub fn channel(&self, at: At, id: ChannelId) -> Channel {
        Channel {
            at,
            id,
            gpu: Some(self.gpu),
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

/// What the user gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Doorbells.
    pub doorbells: Vec<GivenDoorbell>,
    /// Channels.
    pub channels: Vec<GivenChannel>,
}

impl Given {
    /// Nothing was given.
    pub fn is_empty(&self) -> bool {
        self.doorbells.is_empty() && self.channels.is_empty()
    }

    /// Reads a channels file.
    ///
    /// # Errors
    /// With the line that is wrong and what it should be.
    pub fn read(path: &Path) -> Result<Self> {
        let what = || format!("reading {}", path.display());
        let text = fs::read_to_string(path).map_err(|e| {
            Error::new(what(), e, "give a readable file, see docs/channels-file.md")
        })?;
        Self::parse(&text).map_err(|(line, why)| {
            Error::new(
                format!("{}, line {line}", what()),
                why,
                "see docs/channels-file.md for the form of a line",
            )
        })
    }

    /// Parses the text of a channels file; the error names the line.
    ///
    /// # Errors
    /// The number of the first wrong line, and what is wrong.
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
        let gpu = optional("gpu")?.unwrap_or(0);
        if what == "doorbell" {
            let address = need("addr")?;
            if address % 4 != 0 {
                return Err(format!("addr={address:#x} is not a multiple of 4"));
            }
            self.doorbells.push(GivenDoorbell { address, gpu });
            return Ok(());
        }
        let entries = small("entries", need("entries")?)?;
        if !entries.is_power_of_two() {
            return Err(format!("entries={entries} is not a power of two"));
        }
        self.channels.push(GivenChannel {
            gpu,
            token: optional("token")?,
            class: optional("class")?,
            engine: optional("engine")?,
            ring: need("ring")?,
            entries,
            userd: need("userd")?,
        });
        Ok(())
    }
}

/// A decimal or 0x number.
pub fn number(text: &str) -> Option<u64> {
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
        let g = Given::parse(text).unwrap();
        assert_eq!(
            g.doorbells,
            [GivenDoorbell {
                address: 0x700_0090,
                gpu: 1
            }]
        );
        assert_eq!(g.channels[0].token, Some(10));
        assert_eq!(g.channels[0].userd, 0x2_0060_2000);
    }

    #[test]
    fn wrong_lines_are_named() {
        for (text, line, why) in [
            ("\nfoo a=1", 2, "neither"),
            ("channel ring=1 entries=3 userd=2", 1, "power of two"),
            ("channel ring=1 entries=4", 1, "needs userd"),
            ("doorbell addr=0x13", 1, "multiple of 4"),
            ("doorbell addr=x", 1, "not a number"),
            ("doorbell adr=4", 1, "no adr"),
        ] {
            let (at, said) = Given::parse(text).unwrap_err();
            assert_eq!(at, line);
            assert!(said.contains(why), "{said}");
        }
    }
}
