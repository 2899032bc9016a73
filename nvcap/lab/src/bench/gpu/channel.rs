//! A channel: a ring of entries, USERD with GP_GET and GP_PUT, and a doorbell.

use std::{
    rc::Rc,
    sync::atomic::{Ordering, fence},
    time::{Duration, Instant},
};

use super::{
    Gpu, Memory, Place, engine,
    kept::{Kept, Submission},
};
use crate::bench::error::Error;
use nvcap_decode::decode::encode::Pushbuffer;
use nvcap_decode::driver::layouts;
use nvcap_decode::wire::{GpuVa, entry};
use nvcap_process::rm::Mapping;

/// KEPLER_CHANNEL_GROUP_A.
const CLASS_GROUP: u32 = 0xa06c;

/// Control commands (ctrla06c.h, ctrlc36f.h).
const GPFIFO_SCHEDULE: u32 = 0xa06c_0101;
const GET_WORK_SUBMIT_TOKEN: u32 = 0xc36f_0108;

/// Entries of a ring, 8 bytes each; USERD lies behind them.
const ENTRIES: usize = 1024;
const USERD: usize = ENTRIES * 8;
const RING_LEN: u64 = 0x4000;

/// GP_GET and GP_PUT in USERD (clc36f.h: Nvc36fControl).
const GP_GET: usize = USERD + 0x88;
const GP_PUT: usize = USERD + 0x8c;

/// Offset of the doorbell in the page of doorbells (NVC361_NOTIFY_CHANNEL_PENDING).
const DOORBELL: usize = 0x90;

/// Bytes of a channel's pushbuffer, which is the most that one submission may have.
pub(crate) const PUSHBUFFER_LEN: u64 = 8 << 20;

/// Bytes of a channel's semaphores, 16 bytes each: payload, and the time in ns at +8.
const SEMAPHORES_LEN: u64 = 0x1000;
const SEMAPHORE: usize = 16;

/// Time after which a submission that the GPU has not finished counts as hanging.
const PATIENCE: Duration = Duration::from_secs(10);

/// A channel with its ring, pushbuffer and semaphores.
pub(crate) struct Channel {
    engine: u32,
    class: u32,
    ring: Memory,
    pushbuffer: Memory,
    semaphores: Memory,
    /// Memory in which the driver writes errors. It is never read, but must live as long as the channel.
    _notifier: Memory,
    doorbells: Rc<Mapping>,
    token: u32,
    /// The entry of the last submission.
    segment: u64,
    /// List of submissions, if they are kept, and the words of the last one.
    kept: Option<(Kept, Vec<u32>)>,
    put: usize,
    payload: u32,
}

/// Moment at which a submission was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submitted {
    /// Time before the doorbell was rung.
    pub(crate) rung: Instant,
}

impl Gpu {
    /// Makes a channel of an engine, with an object of the engine's class (`engine_class`).
    pub(crate) fn channel(&self, engine: u32, engine_class: u32) -> Result<Channel, Error> {
        let client = &self.client;
        let name = match engine::copy_number(engine) {
            Some(number) => format!("copy engine {number}"),
            None => "the graphics engine".to_owned(),
        };
        let what = format!("get a channel of {name}");
        let mut group = client.structure(
            "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS",
            &[
                ("hVASpace", self.vaspace.field()),
                ("engineType", engine.into()),
            ],
        )?;
        let group = client.alloc(&what, self.device, CLASS_GROUP, Some(&mut group))?;
        let ring = self.memory(&format!("the ring of {name}"), Place::Video, RING_LEN, true)?;
        let pushbuffer = format!("the pushbuffer of {name}");
        let pushbuffer = self.memory(&pushbuffer, Place::System, PUSHBUFFER_LEN, true)?;
        let semaphores = format!("the semaphores of {name}");
        let semaphores = self.memory(&semaphores, Place::System, SEMAPHORES_LEN, true)?;
        let notifier = format!("the error notifier of {name}");
        let notifier = self.memory(&notifier, Place::System, 0x1000, false)?;

        let mut channel = client.structure(
            channel_parameters(client.version()),
            &[
                ("hObjectError", notifier.object().field()),
                ("hObjectBuffer", ring.object().field()),
                ("gpFifoOffset", ring.address().0),
                ("gpFifoEntries", ENTRIES as u64),
                ("hUserdMemory", ring.object().field()),
                ("userdOffset", USERD as u64),
            ],
        )?;
        let class = self.classes.channel;
        let channel = client.alloc(&what, group, class, Some(&mut channel))?;
        let what_object = format!("get an engine object of {name}");
        if engine::copy_number(engine).is_some() {
            /// NVB0B5_ALLOCATION_PARAMETERS_VERSION_1: the engine is an NV2080_ENGINE_TYPE.
            const BY_ENGINE_TYPE: u64 = 1;
            let fields = [("version", BY_ENGINE_TYPE), ("engineType", engine.into())];
            let mut copy = client.structure("NVB0B5_ALLOCATION_PARAMETERS", &fields)?;
            client.alloc(&what_object, channel, engine_class, Some(&mut copy))?;
        } else {
            client.alloc(&what_object, channel, engine_class, None)?;
        }
        let what = format!("schedule {name}");
        let mut enable =
            client.structure("NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS", &[("bEnable", 1)])?;
        client.control(&what, group, GPFIFO_SCHEDULE, &mut enable)?;
        let parameters = "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS";
        let mut token = client.structure(parameters, &[])?;
        client.control(&what, channel, GET_WORK_SUBMIT_TOKEN, &mut token)?;
        Ok(Channel {
            engine,
            class,
            ring,
            pushbuffer,
            semaphores,
            _notifier: notifier,
            doorbells: Rc::clone(&self.doorbells),
            token: token.get("workSubmitToken")? as u32,
            segment: 0,
            kept: self.kept.clone().map(|kept| (kept, Vec::new())),
            put: 0,
            payload: 0,
        })
    }
}

/// The name of a channel's parameters in this release.
fn channel_parameters(version: Option<nvcap_decode::driver::Version>) -> &'static str {
    let new = "NV_CHANNEL_ALLOC_PARAMS";
    let first = layouts(new).map(|l| l.range().first).min();
    match (version, first) {
        (Some(version), Some(first)) if version < first => "NV_CHANNELGPFIFO_ALLOCATION_PARAMETERS",
        _ => new,
    }
}

impl Channel {
    /// Returns the engine, by RM's number (NV2080_ENGINE_TYPE).
    pub(crate) fn engine(&self) -> u32 {
        self.engine
    }

    /// The channel's class.
    pub(crate) fn class(&self) -> u32 {
        self.class
    }

    /// Returns a payload that no semaphore of the channel had before.
    pub(crate) fn next_payload(&mut self) -> u32 {
        self.payload = self.payload.wrapping_add(1).max(1);
        self.payload
    }

    /// Returns the GPU address of semaphore `i`.
    pub(crate) fn semaphore(&self, i: usize) -> GpuVa {
        GpuVa(self.semaphores.address().0 + (i * SEMAPHORE) as u64)
    }

    /// Stores a payload into semaphore `i`, for the GPU to wait for.
    pub(crate) fn set(&self, i: usize, payload: u32) {
        mapped(&self.semaphores).write(i * SEMAPHORE, payload);
    }

    /// Returns the GPU's time that was stored with semaphore `i`, ns.
    pub(crate) fn time(&self, i: usize) -> u64 {
        mapped(&self.semaphores).read_long(i * SEMAPHORE + 8)
    }

    /// Returns the GPU's time between two releases, ns.
    pub(crate) fn between(&self, start: usize, end: usize) -> Result<f64, Error> {
        let (start, end) = (self.time(start), self.time(end));
        match end.checked_sub(start) {
            Some(ns) => Ok(ns as f64),
            None => Err(Error::Clock(start, end)),
        }
    }

    /// Writes a submission and its ring entry, and rings the doorbell. The submission before must be over,
    /// because its memory is used again.
    pub(crate) fn submit(&mut self, push: &Pushbuffer) -> Result<Submitted, Error> {
        let words = push.words();
        let len = words.len() as u64 * 4;
        if len > self.pushbuffer.len().min(entry::MAX_LEN.into()) {
            return Err(Error::TooLong(len));
        }
        mapped(&self.pushbuffer).write_words(0, words);
        let len = len as u32;
        self.segment = entry::segment(self.pushbuffer.address(), len, false, false, false);
        if let Some((_, last)) = &mut self.kept {
            words.clone_into(last);
        }
        Ok(self.commit())
    }

    /// Submits the last submission again, as it lies in memory.
    pub(crate) fn submit_again(&mut self) -> Submitted {
        self.commit()
    }

    fn commit(&mut self) -> Submitted {
        if let Some((kept, last)) = &self.kept {
            kept.borrow_mut().push(Submission {
                token: self.token,
                entry: self.segment,
                words: last.clone(),
            });
        }
        let ring = mapped(&self.ring);
        ring.write_long(self.put * 8, self.segment);
        self.put = (self.put + 1) % ENTRIES;
        // The entry must be in memory before GP_PUT tells of it, and both before the doorbell: the ring's mapping combines
        // writes.
        fence(Ordering::SeqCst);
        ring.write(GP_PUT, self.put as u32);
        fence(Ordering::SeqCst);
        let rung = Instant::now();
        ring_doorbell(self.doorbells.word(DOORBELL), self.token);
        Submitted { rung }
    }

    /// Waits until semaphore `i` has this payload, and returns the time at which that was seen.
    pub(crate) fn wait(&self, i: usize, payload: u32) -> Result<Instant, Error> {
        let word = mapped(&self.semaphores).word(i * SEMAPHORE);
        let start = Instant::now();
        let mut looks = 0u32;
        loop {
            // SAFETY: `word` lies in the mapping of the semaphores, which lives as long as the channel.
            if unsafe { word.read_volatile() } == payload {
                return Ok(Instant::now());
            }
            std::hint::spin_loop();
            looks = looks.wrapping_add(1);
            if !looks.is_multiple_of(4096) {
                continue;
            }
            // After some 100 us another thread may run: on a busy host the software GPU needs the processor.
            std::thread::yield_now();
            // A stopped machine may have passed the time between the two looks.
            // SAFETY: as above.
            if start.elapsed() > PATIENCE && unsafe { word.read_volatile() } != payload {
                return Err(Error::Hang {
                    engine: self.engine,
                    get: mapped(&self.ring).read(GP_GET),
                    put: self.put as u32,
                });
            }
        }
    }
}

/// Stores a token into the doorbell: the one store that commits submissions.
#[inline(never)]
fn ring_doorbell(doorbell: *mut u32, token: u32) {
    // SAFETY: the doorbell lies in the mapping of the doorbells, which the channel keeps.
    unsafe { doorbell.write_volatile(token) };
}

/// Returns the mapping of memory that was allocated with one.
fn mapped(memory: &Memory) -> &Mapping {
    memory.mapping().expect("a channel's memory is mapped")
}
