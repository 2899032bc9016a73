//! Conversion between the record of a GPU's context switches and its message `Switches`.
//!
//! A window may have tens of thousands of the driver's records. The message therefore has one list of numbers for each member, which takes
//! some ten bytes for each record.

use prost::Message;

use super::decode::{NotUnderstood, at};
use super::messages as m;
use nvcap_decode::record::{self as r, MOST_TOLD, Record};
use nvcap_decode::switches::{Instance, Reading, Scope, Switch, Tag, Told};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Switches {
    #[prost(message, optional, tag = "1")]
    pub at: Option<m::At>,
    #[prost(uint32, tag = "2")]
    pub gpu: u32,
    #[prost(bool, tag = "3")]
    pub own_user_alone: bool,
    #[prost(message, optional, tag = "4")]
    pub from: Option<ClockReading>,
    #[prost(message, optional, tag = "5")]
    pub to: Option<ClockReading>,
    #[prost(bytes = "vec", tag = "6")]
    pub tag: Vec<u8>,
    #[prost(sint64, repeated, tag = "7")]
    pub time_ns: Vec<i64>,
    #[prost(uint32, repeated, tag = "8")]
    pub context: Vec<u32>,
    #[prost(uint32, repeated, tag = "9")]
    pub pid: Vec<u32>,
    #[prost(uint32, repeated, tag = "10")]
    pub sequence: Vec<u32>,
    #[prost(bytes = "vec", tag = "11")]
    pub vmid: Vec<u8>,
    #[prost(uint32, repeated, tag = "12")]
    pub instance: Vec<u32>,
    #[prost(message, repeated, tag = "13")]
    pub between: Vec<Between>,
    #[prost(message, repeated, tag = "14")]
    pub processes: Vec<Holder>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct ClockReading {
    #[prost(fixed64, tag = "1")]
    pub host_ns: u64,
    #[prost(fixed64, tag = "2")]
    pub gpu_ns: u64,
    #[prost(uint64, tag = "3")]
    pub error_ns: u64,
}

/// News between the driver's records that is not itself a record.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct Between {
    /// Number of the driver's records in the window before the news.
    #[prost(uint32, tag = "1")]
    pub behind: u32,
    #[prost(oneof = "News", tags = "2, 3, 4")]
    pub what: Option<News>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub(super) enum News {
    #[prost(uint64, tag = "2")]
    Missing(u64),
    #[prost(bool, tag = "3")]
    Strange(bool),
    #[prost(message, tag = "4")]
    Ended(Ended),
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct Ended {
    #[prost(uint32, tag = "1")]
    pub pid: u32,
    #[prost(fixed64, tag = "2")]
    pub by_ns: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Holder {
    #[prost(uint32, tag = "1")]
    pub pid: u32,
    #[prost(message, optional, tag = "2")]
    pub identity: Option<m::Identity>,
}

impl From<Reading> for ClockReading {
    fn from(r: Reading) -> Self {
        Self {
            host_ns: r.host_ns,
            gpu_ns: r.gpu_ns,
            error_ns: r.error_ns,
        }
    }
}

impl From<ClockReading> for Reading {
    fn from(r: ClockReading) -> Self {
        Self {
            host_ns: r.host_ns,
            gpu_ns: r.gpu_ns,
            error_ns: r.error_ns,
        }
    }
}

/// Packs a MIG instance into a number: 0 for none; else 2^17, plus the GPU instance's number, plus 256 times (the number of the
/// compute instance, if there is one, plus 1).
fn packed(instance: Option<Instance>) -> u32 {
    instance.map_or(0, |i| {
        let compute = i.compute.map_or(0, |c| u32::from(c) + 1);
        1 << 17 | compute << 8 | u32::from(i.gpu)
    })
}

fn unpacked(packed: u32) -> Result<Option<Instance>, NotUnderstood> {
    if packed == 0 {
        return Ok(None);
    }
    let compute = packed >> 8 & 0x1ff;
    if packed >> 17 != 1 || compute > 256 {
        return Err(NotUnderstood::Large("MIG instance"));
    }
    Ok(Some(Instance {
        gpu: packed as u8,
        compute: compute.checked_sub(1).map(|c| c as u8),
    }))
}

impl From<&r::Switches> for Switches {
    fn from(s: &r::Switches) -> Self {
        let mut message = Self {
            at: Some(s.at.into()),
            gpu: s.gpu,
            own_user_alone: s.scope == Scope::OwnUser,
            from: Some(s.from.into()),
            to: Some(s.to.into()),
            processes: { s.processes.iter() }
                .map(|(pid, identity)| Holder {
                    pid: *pid,
                    identity: identity.as_ref().map(Into::into),
                })
                .collect(),
            ..Self::default()
        };
        let mut before = Switch {
            time_ns: s.from.gpu_ns,
            ..Switch::default()
        };
        for told in &s.told {
            let what = match told {
                Told::Switch(switch) => {
                    message.push(switch, &before);
                    before = *switch;
                    continue;
                }
                Told::Missing(missing) => News::Missing(*missing),
                Told::Strange => News::Strange(true),
                Told::Ended { pid, by_ns } => News::Ended(Ended {
                    pid: *pid,
                    by_ns: *by_ns,
                }),
            };
            message.between.push(Between {
                behind: message.tag.len() as u32,
                what: Some(what),
            });
        }
        // Lists that contain only zeros are left out.
        if message.vmid.iter().all(|vmid| *vmid == 0) {
            message.vmid.clear();
        }
        if message.instance.iter().all(|instance| *instance == 0) {
            message.instance.clear();
        }
        message
    }
}

impl Switches {
    fn push(&mut self, switch: &Switch, before: &Switch) {
        let passed = switch.time_ns.wrapping_sub(before.time_ns);
        self.tag.push(switch.tag.0);
        self.time_ns.push(passed as i64);
        self.context.push(switch.context);
        self.pid.push(switch.pid);
        let distance = switch.sequence.wrapping_sub(before.sequence);
        self.sequence.push(distance.into());
        self.vmid.push(switch.vmid);
        self.instance.push(packed(switch.instance));
    }

    /// Tells whether all lists have the required lengths.
    fn is_even(&self) -> bool {
        let n = self.tag.len();
        let all = [
            self.time_ns.len(),
            self.context.len(),
            self.pid.len(),
            self.sequence.len(),
        ];
        let may_lack = [self.vmid.len(), self.instance.len()];
        all.iter().all(|len| *len == n) && may_lack.iter().all(|len| *len == n || *len == 0)
    }
}

/// Returns the record with this body.
pub(super) fn record(body: &[u8]) -> Result<Record, NotUnderstood> {
    let s = Switches::decode(body)?;
    if s.tag.len() + s.between.len() > MOST_TOLD || s.processes.len() > MOST_TOLD {
        return Err(NotUnderstood::Large("number of context switches"));
    }
    if !s.is_even() {
        return Err(NotUnderstood::Lacks("a number for each context switch"));
    }
    let reading = |reading: Option<ClockReading>| match reading {
        Some(reading) => Ok(Reading::from(reading)),
        None => Err(NotUnderstood::Lacks("the clocks")),
    };
    let (from, to) = (reading(s.from)?, reading(s.to)?);
    let mut told = Vec::with_capacity(s.tag.len() + s.between.len());
    let mut between = s.between.iter().peekable();
    let mut before = Switch {
        time_ns: from.gpu_ns,
        ..Switch::default()
    };
    for i in 0..=s.tag.len() {
        while let Some(next) = between.next_if(|b| b.behind as usize <= i) {
            told.push(
                match next.what.ok_or(NotUnderstood::Lacks("what happened"))? {
                    News::Missing(missing) => Told::Missing(missing),
                    News::Strange(_) => Told::Strange,
                    News::Ended(Ended { pid, by_ns }) => Told::Ended { pid, by_ns }.by(to.gpu_ns),
                },
            );
        }
        let Some(tag) = s.tag.get(i) else { break };
        let sequence = u16::try_from(s.sequence[i]);
        let sequence = sequence.map_err(|_| NotUnderstood::Large("sequence number"))?;
        before = Switch {
            tag: Tag(*tag),
            vmid: s.vmid.get(i).copied().unwrap_or(0),
            sequence: before.sequence.wrapping_add(sequence),
            context: s.context[i],
            pid: s.pid[i],
            instance: unpacked(s.instance.get(i).copied().unwrap_or(0))?,
            time_ns: before.time_ns.wrapping_add(s.time_ns[i] as u64),
        };
        told.push(Told::Switch(before).by(to.gpu_ns));
    }
    if between.next().is_some() {
        return Err(NotUnderstood::Large("place between context switches"));
    }
    let processes = s.processes.into_iter();
    Ok(Record::Switches(Box::new(r::Switches {
        at: at(s.at)?,
        gpu: s.gpu,
        scope: match s.own_user_alone {
            true => Scope::OwnUser,
            false => Scope::AllUsers,
        },
        from,
        to,
        told,
        processes: processes
            .map(|holder| (holder.pid, holder.identity.map(Into::into)))
            .collect(),
    })))
}
