//! A sampling by CUPTI of an empty context of this process: for its calls of the driver, which nvcap records from outside.
//!
//! Functions and structures are those of cuda.h and cupti_pcsampling.h, which are not compiled in: both libraries are looked for when they
//! are needed.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::RangeInclusive;
use std::ptr;

use anyhow::{Context as _, bail};
use nvcap_process::memory::chip;

/// Places of CUPTI beside those where the loader looks.
const CUPTI: [&str; 8] = [
    "libcupti.so.13",
    "libcupti.so.12",
    "libcupti.so",
    "/usr/local/cuda/lib64/libcupti.so",
    "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so",
    "/usr/local/cuda/targets/x86_64-linux/lib/libcupti.so",
    "/usr/local/cuda/targets/sbsa-linux/lib/libcupti.so",
    "/usr/lib/x86_64-linux-gnu/libcupti.so",
];

/// A loaded library; never unloaded.
struct Library {
    handle: *mut c_void,
    name: String,
}

impl Library {
    fn open(names: &[&str], remedy: &str) -> anyhow::Result<Self> {
        for name in names {
            let text = CString::new(*name)?;
            // SAFETY: loads one of NVIDIA's libraries, whose own code then runs: what this process is for.
            let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
            if !handle.is_null() {
                let name = (*name).to_owned();
                return Ok(Self { handle, name });
            }
        }
        bail!("there is no {}: {remedy}", names.first().unwrap_or(&""))
    }

    /// The address of a function.
    fn find(&self, name: &str) -> anyhow::Result<*mut c_void> {
        let text = CString::new(name)?;
        // SAFETY: the library stays loaded, and the name is a C string.
        let found = unsafe { libc::dlsym(self.handle, text.as_ptr()) };
        match found.is_null() {
            true => bail!("{} has no {name}: it is too old", self.name),
            false => Ok(found),
        }
    }
}

/// A structure of CUPTI with `size`, `pPriv`, `ctx` and two words more, of which `size` says how many count.
#[repr(C)]
struct Parameters {
    size: usize,
    private: *mut c_void,
    context: *mut c_void,
    more: [usize; 2],
}

impl Parameters {
    fn of(context: *mut c_void, more: &[usize]) -> Self {
        let mut words = [0; 2];
        for (word, more) in words.iter_mut().zip(more) {
            *word = *more;
        }
        Self {
            size: (3 + more.len().min(2)) * size_of::<usize>(),
            private: ptr::null_mut(),
            context,
            more: words,
        }
    }
}

/// CUpti_PCSamplingConfigurationInfo.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attribute {
    kind: c_int,
    status: c_int,
    value: [u64; 3],
}

/// CUpti_PCSamplingData.
#[repr(C)]
struct Data {
    size: usize,
    most_counters: usize,
    samples: u64,
    dropped: u64,
    counters: usize,
    remaining: usize,
    range: u64,
    data: *mut CounterData,
    others: u64,
    full: u64,
}

/// CUpti_PCSamplingPCData.
#[repr(C)]
#[derive(Clone, Copy)]
struct CounterData {
    size: usize,
    words: [u64; 8],
}

/// Kinds of attributes, and their values.
mod attribute {
    pub(super) const PERIOD: i32 = 1;
    pub(super) const REASONS: i32 = 2;
    pub(super) const MODE: i32 = 5;
    pub(super) const START_STOP: i32 = 6;
    pub(super) const BUFFER: i32 = 8;
    pub(super) const CONTINUOUS: u64 = 1;
}

/// Program counters for which there is room: none comes.
const COUNTERS: usize = 16;

/// Samples an empty context on the GPU with this minor number, with one period after the other.
pub(super) fn sample(minor: u32, periods: RangeInclusive<u8>) -> anyhow::Result<()> {
    let bus = chip::names().into_iter().find(|gpu| gpu.minor == minor);
    let bus = bus.map(|gpu| gpu.bus).filter(|bus| !bus.is_empty());
    let bus = bus.with_context(|| format!("the PCI address of GPU {minor} is not known"))?;
    let cuda = Library::open(&["libcuda.so.1"], "install NVIDIA's driver")?;
    let context = context(&cuda, &bus)?;
    let remedy = "install CUDA's CUPTI (cuda-cupti of NVIDIA's repository, or the Python package nvidia-cuda-cupti), and name its folder: sudo LD_LIBRARY_PATH=FOLDER nvcap sample --learn";
    let cupti = Library::open(&CUPTI, remedy)?;
    for period in periods {
        one(&cupti, context, period)?;
    }
    Ok(())
}

/// A context of the GPU at this PCI address.
fn context(cuda: &Library, bus: &str) -> anyhow::Result<*mut c_void> {
    let bus = CString::new(bus)?;
    type Init = unsafe extern "C" fn(u32) -> c_int;
    type ByBus = unsafe extern "C" fn(*mut c_int, *const c_char) -> c_int;
    type Create = unsafe extern "C" fn(*mut *mut c_void, u32, c_int) -> c_int;
    let (mut device, mut context) = (0, ptr::null_mut());
    // SAFETY: the functions have these types in cuda.h, and write the two variables.
    let done = unsafe {
        let init = std::mem::transmute::<*mut c_void, Init>(cuda.find("cuInit")?);
        let by_bus = cuda.find("cuDeviceGetByPCIBusId")?;
        let by_bus = std::mem::transmute::<*mut c_void, ByBus>(by_bus);
        let create = cuda.find("cuCtxCreate_v2")?;
        let create = std::mem::transmute::<*mut c_void, Create>(create);
        [
            ("cuInit", init(0)),
            (
                "cuDeviceGetByPCIBusId",
                by_bus(&raw mut device, bus.as_ptr()),
            ),
            ("cuCtxCreate", create(&raw mut context, 0, device)),
        ]
    };
    match done.iter().find(|(_, result)| *result != 0) {
        Some((name, result)) => bail!("{name} fails with CUDA's error {result}"),
        None => Ok(context),
    }
}

/// One sampling, begun and ended.
fn one(cupti: &Library, context: *mut c_void, period: u8) -> anyhow::Result<()> {
    let call = |name: &str, parameters: &mut Parameters| -> anyhow::Result<()> {
        type Call = unsafe extern "C" fn(*mut Parameters) -> c_int;
        // SAFETY: all functions of PC sampling take one structure that begins with its size.
        let result = unsafe {
            let function = std::mem::transmute::<*mut c_void, Call>(cupti.find(name)?);
            function(&raw mut *parameters)
        };
        match result {
            0 => Ok(()),
            result => bail!("{name} fails: {}", words(cupti, result)),
        }
    };
    let plain = || Parameters::of(context, &[]);
    call("cuptiPCSamplingEnable", &mut plain())?;
    let mut count = 0usize;
    let pointer = &raw mut count as usize;
    let name = "cuptiPCSamplingGetNumStallReasons";
    call(name, &mut Parameters::of(context, &[pointer]))?;
    // The reasons are numbered from 0.
    let mut reasons: Vec<u32> = (0..count.min(4096) as u32).collect();
    let mut counters = vec![
        CounterData {
            size: size_of::<CounterData>(),
            words: [0; 8],
        };
        COUNTERS
    ];
    let mut data = Data {
        size: size_of::<Data>(),
        most_counters: COUNTERS,
        samples: 0,
        dropped: 0,
        counters: 0,
        remaining: 0,
        range: 0,
        data: counters.as_mut_ptr(),
        others: 0,
        full: 0,
    };
    let of = |kind, value| Attribute {
        kind,
        status: 0,
        value,
    };
    let mut attributes = [
        of(attribute::MODE, [attribute::CONTINUOUS, 0, 0]),
        of(
            attribute::REASONS,
            [reasons.len() as u64, reasons.as_mut_ptr() as u64, 0],
        ),
        of(attribute::BUFFER, [&raw mut data as u64, 0, 0]),
        of(attribute::PERIOD, [period.into(), 0, 0]),
        of(attribute::START_STOP, [1, 0, 0]),
    ];
    let more = [attributes.len(), attributes.as_mut_ptr() as usize];
    let name = "cuptiPCSamplingSetConfigurationAttribute";
    call(name, &mut Parameters::of(context, &more))?;
    call("cuptiPCSamplingStart", &mut plain())?;
    call("cuptiPCSamplingStop", &mut plain())?;
    call("cuptiPCSamplingDisable", &mut plain())
}

/// The words of CUPTI for an error.
fn words(cupti: &Library, result: c_int) -> String {
    type Words = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
    let mut text: *const c_char = ptr::null();
    let Ok(found) = cupti.find("cuptiGetResultString") else {
        return format!("error {result}");
    };
    // SAFETY: the function has this type in cupti_result.h; the text is CUPTI's own and stays.
    let said = unsafe {
        std::mem::transmute::<*mut c_void, Words>(found)(result, &raw mut text);
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    format!("{} ({result})", said.unwrap_or_default())
}
