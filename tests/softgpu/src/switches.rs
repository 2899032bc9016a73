//! The driver's record of context switches for `nvcap share`: GPUs whose switches a test says, and event buffers of any number of
//! clients, as the real driver fills them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nvcap_decode::switches::{RECORD_LEN, Switch};
use nvcap_process::rm::{Access, Mapping, Os};

use crate::engine::Memory;
use crate::rm::{Fields, named};

/// Address of the first memory object: a key alone, for nothing is mapped there.
const FIRST: u64 = 0x4_0000_0000;

/// NV_ERR_NOT_SUPPORTED, NV_ERR_INVALID_ARGUMENT.
const NOT_SUPPORTED: u64 = 0x56;
const INVALID_ARGUMENT: u64 = 0x1f;

/// Answer of the driver to a client that wants the records of all users (or of its own), in the second form (or the first): 0, or
/// its reason for refusing.
pub type Grants = fn(all_users: bool, second_form: bool) -> u32;

/// Event buffer of a client.
#[derive(Clone, Debug)]
struct Events {
    client: u64,
    gpu: u32,
    header: u64,
    records: u64,
    count: u32,
    put: u32,
    get: u32,
    dropped: u64,
    sequence: u16,
    enabled: bool,
    second_form: bool,
    bound: bool,
}

impl Events {
    /// Adds a record as the driver does that keeps the oldest ones.
    fn add(&mut self, switch: Switch, memory: &Memory) {
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        let next = (self.put + 1) % self.count;
        if next == self.get {
            self.dropped += 1;
            return;
        }
        let mut bytes = Switch { sequence, ..switch }.bytes();
        if !self.second_form {
            bytes[0] = 134;
            bytes[20..24].fill(0);
        }
        let at = self.records + u64::from(self.put) * RECORD_LEN as u64;
        for (i, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
            memory.write(at + 4 * i as u64, u32::from_le_bytes(*word));
        }
        self.put = next;
    }

    fn show(&self, memory: &Memory) {
        memory.write(self.header, self.get);
        memory.write(self.header + 16, self.dropped as u32);
        memory.write(self.header + 4, self.put);
    }
}

#[derive(Default)]
struct State {
    gpus: u32,
    grants: Option<Grants>,
    next: u64,
    /// Instances of devices, GPUs of subdevices, addresses of memory, by handle.
    numbers: BTreeMap<u64, u64>,
    events: BTreeMap<u64, Events>,
    /// Memory that the next mmap of a file maps.
    named: BTreeMap<i32, u64>,
    memory: Memory,
    /// Records that the driver has not taken from the GPUs.
    waiting: Vec<(u32, Switch)>,
    time: u64,
}

/// The driver, with any number of clients.
pub struct Driver(RefCell<State>);

impl Driver {
    /// Makes a driver of this number of GPUs.
    pub fn new(gpus: u32, grants: Grants) -> Self {
        Self(RefCell::new(State {
            gpus,
            grants: Some(grants),
            ..State::default()
        }))
    }

    /// A GPU switches.
    pub fn happens(&self, gpu: u32, switch: Switch) {
        self.0.borrow_mut().waiting.push((gpu, switch));
    }

    /// The GPUs' time is this from now on, ns.
    pub fn is_at(&self, time: u64) {
        self.0.borrow_mut().time = time;
    }

    /// Returns the number of event buffers that clients have.
    pub fn buffers(&self) -> usize {
        self.0.borrow().events.len()
    }
}

impl Os for Driver {
    fn open(&self, _path: &str) -> io::Result<OwnedFd> {
        Ok(File::open("/dev/null")?.into())
    }

    fn ioctl(&self, _fd: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        match request as u8 {
            0x29 => state.free(argument),
            0x2a => state.control(argument),
            0x2b => state.alloc(argument),
            0x4e => state.name(argument),
            0xc8 => state.cards(argument),
            0xc9 => Ok(()),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn map(&self, fd: BorrowedFd<'_>, len: usize, access: Access) -> io::Result<Mapping> {
        assert_eq!(access, Access::ReadOnly, "the driver alone writes buffers");
        let mut state = self.0.borrow_mut();
        let memory = state.named.remove(&fd.as_raw_fd());
        let address = memory.ok_or(io::ErrorKind::InvalidInput)?;
        state.memory.mapping(address, None, len)
    }
}

fn of(name: &'static str) -> io::Result<Fields> {
    Fields::of(name, None)
}

impl State {
    fn cards(&self, argument: &mut [u8]) -> io::Result<()> {
        let card = of("nv_ioctl_card_info_t")?;
        for (minor, bytes) in (0..self.gpus).zip(argument.chunks_exact_mut(card.len())) {
            card.set(bytes, "valid", 1)?;
            card.set(bytes, "minor_number", minor.into())?;
            card.set(bytes, "gpu_id", (0x100 + minor).into())?;
        }
        Ok(())
    }

    /// Frees a client with all that it has.
    fn free(&mut self, argument: &mut [u8]) -> io::Result<()> {
        let client = of("NVOS00_PARAMETERS")?.get(argument, "hRoot")?;
        self.events.retain(|_, events| events.client != client);
        Ok(())
    }

    fn name(&mut self, argument: &mut [u8]) -> io::Result<()> {
        let call = of("nv_ioctl_nvos33_parameters_with_fd")?;
        let (fd, memory) = named(&call, argument)?;
        let address = self.numbers.get(&memory).copied();
        let address = address.ok_or(io::ErrorKind::NotFound)?;
        self.named.insert(fd, address);
        Ok(())
    }

    fn alloc(&mut self, argument: &mut [u8]) -> io::Result<()> {
        let call = of("NVOS64_PARAMETERS")?;
        let parent = call.get(argument, "hObjectParent")?;
        let pointer = call.get(argument, "pAllocParms")?;
        self.next += 1;
        let handle = 0xcaf0_0000 + self.next;
        let number = |handle: u64| self.numbers.get(&handle).copied().unwrap_or_default();
        match call.get(argument, "hClass")? {
            0x41 => {}
            0x80 => {
                let device = of("NV0080_ALLOC_PARAMETERS")?.get_at(pointer, "deviceId")?;
                self.numbers.insert(handle, device);
            }
            0x2080 => {
                let gpu = number(parent);
                self.numbers.insert(handle, gpu);
            }
            0x90ce => {
                let parameters = of("NV_MEMORY_ALLOCATION_PARAMS")?;
                // NVOS32_ATTR2_PROTECTION_USER_READ_ONLY: an event buffer refuses other memory.
                if parameters.get_at(pointer, "attr2")? & 1 << 22 == 0 {
                    return call.set(argument, "status", INVALID_ARGUMENT);
                }
                let len = parameters.get_at(pointer, "size")?;
                let address = FIRST + (self.next << 24);
                self.memory.add(address, len)?;
                self.numbers.insert(handle, address);
            }
            0x90cd => {
                let read = |field| of("NV_EVENT_BUFFER_ALLOC_PARAMETERS")?.get_at(pointer, field);
                if read("recordSize")? != RECORD_LEN as u64 {
                    return call.set(argument, "status", INVALID_ARGUMENT);
                }
                let events = Events {
                    client: call.get(argument, "hRoot")?,
                    gpu: number(read("hSubDevice")?) as u32,
                    header: number(read("hBufferHeader")?),
                    records: number(read("hRecordBuffer")?),
                    count: read("recordCount")? as u32,
                    put: 0,
                    get: 0,
                    dropped: 0,
                    sequence: 0,
                    enabled: false,
                    second_form: false,
                    bound: false,
                };
                self.events.insert(handle, events);
            }
            class => panic!("class {class:#x}"),
        }
        call.set(argument, "hObjectNew", handle)
    }

    fn control(&mut self, argument: &mut [u8]) -> io::Result<()> {
        let call = of("NVOS54_PARAMETERS")?;
        let pointer = call.get(argument, "params")?;
        let len = call.get(argument, "paramsSize")? as usize;
        let object = call.get(argument, "hObject")?;
        let bytes: &mut [u8] = match len {
            0 => &mut [],
            // SAFETY: the client says that so many bytes lie there, and keeps them during the call.
            _ => unsafe { std::slice::from_raw_parts_mut(pointer as *mut u8, len) },
        };
        let status = match call.get(argument, "cmd")? {
            0x205 => {
                let info = of("NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS")?;
                let gpu = info.get(bytes, "gpuId")? - 0x100;
                info.set(bytes, "deviceInstance", gpu)?;
                0
            }
            0x2080_0403 => {
                of("NV2080_CTRL_TIMER_GET_TIME_PARAMS")?.set(bytes, "time_nsec", self.time)?;
                0
            }
            0x2080_1231 => {
                let name = "NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_PARAMS";
                self.bind(of(name)?, bytes, false)?.0
            }
            0x2080_1238 => {
                let form = of("NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS")?;
                let (status, reason) = self.bind(form, bytes, true)?;
                form.set(bytes, "reasonCode", reason.into())?;
                status
            }
            0x90cd_0101 => {
                let form = of("NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS")?;
                assert_eq!(form.get(bytes, "flags")?, 1, "the oldest are kept");
                let enabled = form.get(bytes, "enable")? != 0;
                self.of(object)?.enabled = enabled;
                0
            }
            0x90cd_0102 => {
                let form = of("NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS")?;
                let get = form.get(bytes, "recordBufferGet")? as u32;
                let events = self.of(object)?;
                (events.get, events.dropped) = (get, 0);
                let events = events.clone();
                events.show(&self.memory);
                match get < events.count {
                    true => 0,
                    false => INVALID_ARGUMENT,
                }
            }
            0x90cd_0104 => {
                self.flush();
                0
            }
            command => panic!("control {command:#x}"),
        };
        call.set(argument, "status", status)
    }

    fn of(&mut self, object: u64) -> io::Result<&mut Events> {
        let events = self.events.get_mut(&object);
        events.ok_or(io::ErrorKind::NotFound.into())
    }

    fn bind(&mut self, form: Fields, bytes: &[u8], second_form: bool) -> io::Result<(u64, u32)> {
        let all = form.get(bytes, "bAllUsers")? != 0;
        let reason = self.grants.map_or(0, |grants| grants(all, second_form));
        if reason != 0 {
            return Ok((NOT_SUPPORTED, reason));
        }
        let events = self.of(form.get(bytes, "hEventBuffer")?)?;
        (events.bound, events.second_form) = (true, second_form);
        Ok((0, 0))
    }

    fn flush(&mut self) {
        for (gpu, switch) in std::mem::take(&mut self.waiting) {
            for events in self.events.values_mut() {
                if events.gpu == gpu && events.enabled && events.bound {
                    events.add(switch, &self.memory);
                }
            }
        }
        for events in self.events.values() {
            events.show(&self.memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use std::path::Path;

    use nvcap_decode::record::{Record, Switches};
    use nvcap_decode::switches::{Instance, Residence, Scope, Slices, Tag, Told, Who};
    use nvcap_live::switches::Source;
    use nvcap_monitor::share::{Share, Windows};

    use super::*;

    fn driver(gpus: u32) -> Rc<Driver> {
        Rc::new(Driver::new(gpus, |_, _| 0))
    }

    fn open(driver: &Rc<Driver>, only: &[u32]) -> Source {
        let os: Rc<dyn Os> = Rc::<Driver>::clone(driver);
        let (source, refusals) = Source::open(os, None, only).expect("a client");
        assert_eq!(refusals, []);
        source
    }

    fn switch(tag: Tag, pid: u32, time_ns: u64) -> Switch {
        Switch {
            tag,
            pid,
            context: pid,
            time_ns,
            ..Switch::default()
        }
    }

    /// A slice of a process, and the switch to it before.
    fn slice(driver: &Driver, gpu: u32, pid: u32, from: u64, to: u64) {
        driver.happens(gpu, switch(Tag::BEGIN, pid, from));
        driver.happens(gpu, switch(Tag::END, pid, to));
    }

    fn polled(source: &mut Source) -> Vec<(u32, Told)> {
        let mut all = Vec::new();
        let polled = source.poll(|gpu, told| all.push((gpu, told)));
        polled.expect("it is polled");
        all
    }

    #[test]
    fn shares_of_two_gpus_are_right_however_often_the_ring_goes_round() {
        let driver = driver(2);
        let mut source = open(&driver, &[]);
        let gpus: Vec<_> = source.gpus().collect();
        assert_eq!(gpus, [(0, Scope::AllUsers), (1, Scope::AllUsers)]);
        let mut residences = [Residence::new(0), Residence::new(0)];
        // 85 us between the slices of 415 (process 1) and of 915 us (process 2).
        let (mut time, mut records) = (0, 0);
        for _ in 0..8 {
            for _ in 0..10_000 {
                slice(&driver, 1, 1, time + 85, time + 500);
                slice(&driver, 1, 2, time + 585, time + 1_500);
                time += 1_500;
            }
            for (gpu, told) in polled(&mut source) {
                let Told::Switch(switch) = told else {
                    panic!("{told:?}");
                };
                records += 1;
                residences[gpu as usize].take(&switch);
            }
        }
        driver.is_at(time);
        let now = source.time(1).expect("its time");
        assert_eq!((now, records), (120_000_000, 320_000));
        assert!(residences[0].sums(now).is_empty());
        let [sums] = &residences[1].sums(now)[..] else {
            panic!("one engine");
        };
        let of = |pid| sums.holders[&(Who::Process(pid), pid)];
        assert_eq!(of(1).resident_ns, 80_000 * 415);
        assert_eq!((of(2).resident_ns, of(2).longest_ns), (80_000 * 915, 915));
        // Before the first slice nobody had it.
        assert_eq!((sums.switches, sums.switch_ns), (159_999, 159_999 * 85));
        assert_eq!((sums.nobody_ns, sums.unknown_ns), (85, 0));
    }

    #[test]
    fn losses_are_counted_and_their_time_is_unknown() {
        let driver = driver(1);
        let mut source = open(&driver, &[0]);
        let mut residence = Residence::new(0);
        slice(&driver, 0, 1, 0, 1_000);
        // More than the buffer has room for, and more than sequence numbers tell.
        for i in 0..100_000 {
            slice(&driver, 0, 2, 2_000 + 10 * i, 2_005 + 10 * i);
        }
        let first = polled(&mut source);
        assert_eq!(first.len(), 65_535);
        let dropped = 200_002 - 65_535;
        assert_eq!(source.dropped(0), dropped);
        slice(&driver, 0, 3, 9_000_000, 9_001_000);
        let second = polled(&mut source);
        assert_eq!(second.len(), 3);
        assert_eq!(second[0], (0, Told::Missing(dropped)));
        assert_eq!(source.dropped(0), 0);
        for (_, told) in first.into_iter().chain(second) {
            match told {
                Told::Switch(switch) => residence.take(&switch),
                Told::Missing(_) => residence.lost(),
                Told::Strange | Told::Ended { .. } => panic!("{told:?}"),
            }
        }
        let sums = &residence.sums(9_001_000)[0];
        let read = (65_535 - 3) / 2 * 10 + 2_000;
        assert_eq!(sums.unknown_ns, 9_000_000 - read);
        assert_eq!(sums.holders[&(Who::Process(3), 3)].resident_ns, 1_000);
    }

    #[test]
    fn the_second_form_tells_mig_instances_and_the_first_does_not() {
        let instance = Some(Instance {
            gpu: 2,
            compute: Some(1),
        });
        for (second_form, grants) in [
            (true, (|_, _| 0) as Grants),
            (false, |_, second| u32::from(second)),
        ] {
            let driver = Rc::new(Driver::new(1, grants));
            let mut source = open(&driver, &[]);
            let begin = switch(Tag::BEGIN, 7, 1);
            driver.happens(0, Switch { instance, ..begin });
            let [(0, Told::Switch(read))] = polled(&mut source)[..] else {
                panic!("one record");
            };
            assert_eq!(read.instance, instance.filter(|_| second_form));
            assert_eq!((read.pid, read.time_ns), (7, 1));
        }
    }

    #[test]
    fn who_may_not_have_all_users_has_his_own_and_refusals_have_reasons() {
        let driver = Rc::new(Driver::new(1, |all, _| if all { 4 } else { 0 }));
        let source = open(&driver, &[]);
        assert_eq!(source.gpus().collect::<Vec<_>>(), [(0, Scope::OwnUser)]);
        for (grants, words, remedy) in [
            ((|_, _| 1) as Grants, "too old for it (reason 1)", ""),
            (|_, _| 4, "for an administrator alone", "run as root"),
            (|_, _| 5, "lacks the capability", "on its host"),
            (|_, _| 77, "does not know (reason 77)", ""),
        ] {
            let os: Rc<dyn Os> = Rc::new(Driver::new(1, grants));
            let (source, refusals) = Source::open(os, None, &[]).expect("a client");
            assert_eq!(source.gpus().count(), 0);
            let [refusal] = &refusals[..] else {
                panic!("{refusals:?}");
            };
            assert!(refusal.why.contains("NOT_SUPPORTED"), "{}", refusal.why);
            assert!(refusal.why.contains(words), "{}", refusal.why);
            assert!(refusal.remedy.contains(remedy), "{}", refusal.remedy);
        }
        let os: Rc<dyn Os> = driver;
        let refused = Source::open(os, None, &[3]).err().expect("no such GPU");
        assert!(refused.to_string().contains("no GPU 3"), "{refused}");
    }

    #[test]
    fn windows_have_what_happened_with_both_clocks() {
        let driver = driver(2);
        let os: Rc<dyn Os> = Rc::<Driver>::clone(&driver);
        let opened = Share::open(os, None, &[], Path::new("/"));
        let (share, refusals) = opened.expect("a client");
        assert_eq!(refusals, []);
        let mut windows = Windows::new(share).expect("the GPUs' times");
        let me = std::process::id();
        let taken = |windows: &mut Windows, is_last| -> Vec<Switches> {
            let records = windows.take(is_last).expect("they are told");
            let window = |record| match record {
                Record::Switches(window) => *window,
                other => panic!("{other:?}"),
            };
            records.into_iter().map(window).collect()
        };
        slice(&driver, 1, me, 1_000, 2_000);
        driver.happens(1, switch(Tag::BEGIN, me, 3_000));
        driver.is_at(5_000);
        assert!(!windows.poll().expect("it is polled"));
        let first = taken(&mut windows, false);
        let of: Vec<_> = first.iter().map(|w| (w.gpu, w.switches())).collect();
        assert_eq!(of, [(0, 0), (1, 3)]);
        assert_eq!((first[1].from.gpu_ns, first[1].to.gpu_ns), (0, 5_000));
        assert!(
            first[1].from.host_ns < first[1].to.host_ns
                && first[1].at.time_ns == first[1].to.host_ns
        );
        assert_eq!(first[1].processes.len(), 1);
        // Where the ring is full the driver drops records, and no later one tells.
        driver.happens(1, switch(Tag::END, me, 6_000));
        for i in 0..70_000 {
            driver.happens(1, switch(Tag::BEGIN, me, 7_000 + 2 * i));
            driver.happens(1, switch(Tag::END, me, 7_001 + 2 * i));
        }
        driver.is_at(200_000);
        let second = taken(&mut windows, true);
        assert_eq!((second[0].told.len(), second[1].switches()), (0, 65_535));
        assert_eq!(
            second[1].told.last(),
            Some(&Told::Missing(140_001 - 65_535))
        );
        assert_eq!(
            (second[1].processes.len(), second[1].from),
            (0, first[1].to)
        );
        let (mut slices, mut lengths) = (Slices::default(), Vec::new());
        for window in first.iter().chain(&second) {
            slices.window(window, |slice| {
                let (begin, end) = (slice.begin.expect("begin"), slice.end.expect("end"));
                lengths.push(end.gpu_ns - begin.gpu_ns);
            });
        }
        assert_eq!(
            (&lengths[..2], lengths.len()),
            (&[1_000, 3_000][..], 2 + 65_534 / 2)
        );
    }

    #[test]
    fn two_clients_have_all_records_each_and_leave_nothing() {
        let driver = driver(1);
        let (mut one, mut other) = (open(&driver, &[]), open(&driver, &[]));
        slice(&driver, 0, 1, 0, 10);
        assert_eq!((polled(&mut one).len(), polled(&mut other).len()), (2, 2));
        drop(one);
        slice(&driver, 0, 1, 20, 30);
        assert_eq!((driver.buffers(), polled(&mut other).len()), (1, 2));
        drop(other);
        assert_eq!(driver.buffers(), 0);
    }
}
