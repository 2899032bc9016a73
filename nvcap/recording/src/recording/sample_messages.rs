//! Conversion between the record of samples of program counters and its message `Samples`.
//!
//! A window has thousands of program counters with a few samples each. The message therefore has one list of numbers for each member, which
//! takes a few bytes for each counter.

use prost::Message;

use super::decode::{NotUnderstood, at};
use super::messages as m;
use nvcap_decode::record::{self as r, Record, SM_WORDS};
use nvcap_decode::samples::Counter;
use nvcap_decode::samples::counts::MOST_COUNTERS;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Samples {
    #[prost(message, optional, tag = "1")]
    pub at: Option<m::At>,
    #[prost(fixed64, tag = "2")]
    pub from_ns: u64,
    #[prost(uint32, optional, tag = "3")]
    pub gpu: Option<u32>,
    #[prost(uint32, tag = "4")]
    pub client: u32,
    #[prost(uint32, tag = "5")]
    pub channel_group: u32,
    #[prost(uint32, optional, tag = "6")]
    pub period: Option<u32>,
    #[prost(fixed64, repeated, tag = "7")]
    pub sms: Vec<u64>,
    #[prost(uint64, repeated, tag = "8")]
    pub pc: Vec<u64>,
    #[prost(uint64, repeated, tag = "9")]
    pub samples: Vec<u64>,
    #[prost(uint64, repeated, tag = "10")]
    pub not_issued: Vec<u64>,
    #[prost(uint32, repeated, tag = "11")]
    pub reasons: Vec<u32>,
    #[prost(uint32, repeated, tag = "12")]
    pub reason: Vec<u32>,
    #[prost(uint32, repeated, tag = "13")]
    pub reason_samples: Vec<u32>,
    #[prost(uint64, tag = "14")]
    pub others: u64,
    #[prost(uint64, tag = "15")]
    pub overflows: u64,
    #[prost(uint64, tag = "16")]
    pub bytes: u64,
    #[prost(uint64, tag = "17")]
    pub cut_bytes: u64,
    #[prost(uint64, tag = "18")]
    pub strange_bytes: u64,
    #[prost(bool, tag = "19")]
    pub ended: bool,
}

impl From<&r::Samples> for Samples {
    fn from(s: &r::Samples) -> Self {
        let words = s.sms.iter().rposition(|word| *word != 0);
        let mut message = Self {
            at: Some(s.at.into()),
            from_ns: s.from_ns,
            gpu: s.gpu,
            client: s.client,
            channel_group: s.group,
            period: s.period.map(Into::into),
            sms: s
                .sms
                .iter()
                .copied()
                .take(words.map_or(0, |last| last + 1))
                .collect(),
            others: s.others,
            overflows: s.overflows,
            bytes: s.bytes,
            cut_bytes: s.cut_bytes,
            strange_bytes: s.strange_bytes,
            ended: s.ended,
            ..Self::default()
        };
        let mut before = 0;
        for (pc, counter) in &s.counters {
            message.pc.push(pc.wrapping_sub(before));
            before = *pc;
            message.samples.push(counter.samples);
            message.not_issued.push(counter.not_issued);
            let reasons = (0u32..).zip(counter.reasons).filter(|(_, n)| *n > 0);
            let mut count = 0;
            for (reason, samples) in reasons {
                message.reason.push(reason);
                message.reason_samples.push(samples);
                count += 1;
            }
            message.reasons.push(count);
        }
        message
    }
}

/// Returns the record with this body.
pub(super) fn record(body: &[u8]) -> Result<Record, NotUnderstood> {
    let s = Samples::decode(body)?;
    // A counter takes more memory than its bytes in the message.
    if s.pc.len() > MOST_COUNTERS {
        return Err(NotUnderstood::Large("number of program counters"));
    }
    let as_long = |len: usize| match len == s.pc.len() {
        true => Ok(()),
        false => Err(NotUnderstood::Lacks("a number for each program counter")),
    };
    as_long(s.samples.len())?;
    as_long(s.not_issued.len())?;
    as_long(s.reasons.len())?;
    let mut reasons = s.reason.iter().zip(&s.reason_samples);
    let mut counters = Vec::with_capacity(s.pc.len());
    let mut pc = 0u64;
    for (((distance, samples), not_issued), count) in { s.pc.iter().zip(&s.samples) }
        .zip(&s.not_issued)
        .zip(&s.reasons)
    {
        pc = pc.wrapping_add(*distance);
        let mut counter = Counter {
            samples: *samples,
            not_issued: *not_issued,
            ..Counter::default()
        };
        for _ in 0..*count {
            let (reason, samples) = reasons
                .next()
                .ok_or(NotUnderstood::Lacks("a stall reason"))?;
            let place = usize::try_from(*reason).ok();
            let of = place.and_then(|place| counter.reasons.get_mut(place));
            *of.ok_or(NotUnderstood::Large("stall reason"))? = *samples;
        }
        counters.push((pc, counter));
    }
    let mut sms = [0; SM_WORDS];
    if s.sms.len() > SM_WORDS {
        return Err(NotUnderstood::Large("number of SMs"));
    }
    sms.iter_mut()
        .zip(&s.sms)
        .for_each(|(to, from)| *to = *from);
    let period = s.period.map(u8::try_from).transpose();
    Ok(Record::Samples(Box::new(r::Samples {
        at: at(s.at)?,
        from_ns: s.from_ns,
        gpu: s.gpu,
        client: s.client,
        group: s.channel_group,
        period: period.map_err(|_| NotUnderstood::Large("period"))?,
        sms,
        counters,
        others: s.others,
        overflows: s.overflows,
        bytes: s.bytes,
        cut_bytes: s.cut_bytes,
        strange_bytes: s.strange_bytes,
        ended: s.ended,
    })))
}
