//! The register programme of the PC sampler: the registers of the performance monitors that a profiler sets before the samples begin, and
//! the writes that make the SMs flush their samples.
//!
//! Registers differ between chips, and between the sets of units that single GPUs have. A programme is therefore never constructed: it is
//! taken from the calls that NVIDIA's own profiler library makes on the same GPU ([`Programme::learn`]), and kept as text
//! ([`Programme::text`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Control commands of the profiler (ctrlb0ccprofiler.h).
pub mod command {
    /// Reserves the registers of the PC sampler for this client.
    pub const RESERVE_PC_SAMPLER: u32 = 0xb0cc_010b;
    /// Writes registers.
    pub const EXEC_REG_OPS: u32 = 0xb0cc_010a;
    /// Gives the units their credits for the stream.
    pub const SET_HS_CREDITS: u32 = 0xb0cc_010e;
    /// Asks for the stream's positions.
    pub const UPDATE_GET_PUT: u32 = 0xb0cc_0109;
}

/// Length of the parameters of EXEC_REG_OPS, of the part before the operations, and of one operation, bytes.
pub const OPERATIONS_LEN: usize = 3980;
const HEADER_LEN: usize = 12;
const OPERATION_LEN: usize = 32;

/// The most operations of a call.
pub const MOST_OPERATIONS: usize = (OPERATIONS_LEN - HEADER_LEN) / OPERATION_LEN;

/// Length of the parameters of SET_HS_CREDITS, bytes.
pub const CREDITS_LEN: usize = 256;

/// The most steps, operations and periods of a programme. A file with more is refused.
const MOST_STEPS: usize = 4096;
const MOST_PERIODS: usize = 64;

/// NV2080_CTRL_GPU_REG_OP_WRITE_32, NV2080_CTRL_GPU_REG_OP_TYPE_GLOBAL and _GR_CTX (ctrl2080gpu.h).
const WRITE_32: u8 = 1;
const GLOBAL: u8 = 0;
const CONTEXT: u8 = 1;

/// A control call of a profiler on its profiler object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Client and object.
    pub object: (u32, u32),
    /// Control command.
    pub command: u32,
    /// Parameters of the call.
    pub parameters: Vec<u8>,
}

/// A register write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// True for a register that belongs to a context and is saved with it; false for one of the GPU.
    pub context: bool,
    /// Offset of the register.
    pub offset: u32,
    /// Value to write.
    pub value: u32,
    /// Mask of the bits that are written.
    pub mask: u32,
}

/// A step of a programme: one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// SET_HS_CREDITS with these parameters.
    Credits(Vec<u8>),
    /// EXEC_REG_OPS with these operations.
    Write(Vec<Operation>),
}

/// Reason why calls or a text are not a programme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoProgramme(pub String);

impl std::fmt::Display for NoProgramme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoProgramme {}

/// A register programme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programme {
    /// UUID of the GPU on which the programme was learnt.
    pub gpu: String,
    /// Release of the driver.
    pub driver: String,
    /// Calls before the samples begin.
    pub setup: Vec<Step>,
    /// Calls that make the SMs flush their samples.
    pub flush: Vec<Vec<Operation>>,
    /// Values of the register that switches the sampler on, by the logarithm of the period in cycles. Empty if the profiler's period is not
    /// known.
    pub periods: BTreeMap<u8, u32>,
}

impl Programme {
    /// Learns a programme from the calls of a profiler. If the calls contain several samplings, these must be equal except for the period.
    /// `periods` are their periods, in order, if known.
    ///
    /// # Errors
    /// When the calls contain no sampling, or one that is not fully understood.
    pub fn learn(
        calls: &[Call],
        periods: &[u8],
        gpu: &str,
        driver: &str,
    ) -> Result<Self, NoProgramme> {
        let mut learnt: Option<Self> = None;
        let mut number = 0;
        for (i, call) in calls.iter().enumerate() {
            if call.command != command::RESERVE_PC_SAMPLER {
                continue;
            }
            let rest = calls.iter().skip(i + 1);
            let own = rest.take_while(|c| {
                c.object != call.object || c.command != command::RESERVE_PC_SAMPLER
            });
            let own: Vec<&Call> = own.filter(|c| c.object == call.object).collect();
            let mut one = Self::of_calls(&own, gpu, driver)?;
            if let Some(period) = periods.get(number) {
                one.periods.insert(*period, one.switch()?.value);
            }
            number += 1;
            match &mut learnt {
                None => learnt = Some(one),
                Some(learnt) => learnt.join(&one)?,
            }
        }
        if !periods.is_empty() && number != periods.len() {
            let periods = periods.len();
            return Err(NoProgramme(format!(
                "the calls have {number} samplings, and {periods} were asked for"
            )));
        }
        learnt.ok_or_else(|| {
            NoProgramme(
                "the calls have no PC sampling (NVB0CC_CTRL_CMD_RESERVE_PM_AREA_PC_SAMPLER)"
                    .to_owned(),
            )
        })
    }

    fn of_calls(calls: &[&Call], gpu: &str, driver: &str) -> Result<Self, NoProgramme> {
        let mut programme = Self {
            gpu: gpu.to_owned(),
            driver: driver.to_owned(),
            setup: Vec::new(),
            flush: Vec::new(),
            periods: BTreeMap::new(),
        };
        // State: the stream was asked for since the setup; the SMs were told to flush.
        let (mut reads, mut flushed) = (false, false);
        for call in calls {
            match call.command {
                command::UPDATE_GET_PUT => {
                    reads = true;
                    flushed = !programme.flush.is_empty();
                }
                command::SET_HS_CREDITS if !reads => {
                    programme
                        .setup
                        .push(Step::Credits(credits(&call.parameters)?));
                }
                command::EXEC_REG_OPS if !reads => {
                    let operations = operations(&call.parameters)?;
                    programme.setup.push(Step::Write(operations));
                }
                command::EXEC_REG_OPS if !flushed => {
                    programme.flush.push(operations(&call.parameters)?);
                }
                _ => {}
            }
        }
        programme.checked()
    }

    /// Returns the programme if it is valid: it must switch a register of a context on that it has switched off before.
    fn checked(self) -> Result<Self, NoProgramme> {
        let switch = self.switch()?;
        if self.periods.iter().any(|(period, _)| *period > 40) {
            return Err(NoProgramme(
                "a period is longer than 2^40 cycles".to_owned(),
            ));
        }
        let flushes_context = self.flush.iter().flatten().any(|o| o.context);
        if self.flush.is_empty() || flushes_context {
            return Err(NoProgramme(
                "how the SMs are told to write out what they have is not in it".to_owned(),
            ));
        }
        if self.off() != Some(Operation { value: 0, ..switch }) {
            return Err(NoProgramme(format!(
                "register {:#x} is not switched off before it is switched on",
                switch.offset
            )));
        }
        Ok(self)
    }

    /// Adds the periods of another programme, which must otherwise be equal.
    fn join(&mut self, other: &Self) -> Result<(), NoProgramme> {
        let value = self.switch()?.value;
        let same = self.flush == other.flush && self.setup == other.with_switch(value).setup;
        if !same {
            return Err(NoProgramme(
                "two samplings of the same program set other registers".to_owned(),
            ));
        }
        let periods = other.periods.iter();
        self.periods
            .extend(periods.map(|(period, value)| (*period, *value)));
        Ok(())
    }

    /// Returns the write that switches the sampler on: the setup's last one, of a register of the context.
    ///
    /// # Errors
    /// When the last write is not of that kind.
    pub fn switch(&self) -> Result<Operation, NoProgramme> {
        let last = self.setup.iter().rev().find_map(|step| match step {
            Step::Write(operations) => Some(operations),
            Step::Credits(_) => None,
        });
        match last.map(Vec::as_slice) {
            Some([only]) if only.context && only.value != 0 => Ok(*only),
            _ => Err(NoProgramme(
                "the setup does not end with switching the sampler on".to_owned(),
            )),
        }
    }

    /// Returns the write that switches the sampler off, with which the setup begins.
    #[must_use]
    pub fn off(&self) -> Option<Operation> {
        let first = self.setup.iter().find_map(|step| match step {
            Step::Write(operations) => Some(operations),
            Step::Credits(_) => None,
        });
        match first.map(Vec::as_slice) {
            Some([only]) if only.context && only.value == 0 => Some(*only),
            _ => None,
        }
    }

    /// Returns the programme with another value for switching on.
    #[must_use]
    pub fn with_switch(&self, value: u32) -> Self {
        let mut same = self.clone();
        let last = same.setup.iter_mut().rev().find_map(|step| match step {
            Step::Write(operations) => operations.last_mut(),
            Step::Credits(_) => None,
        });
        if let Some(last) = last {
            last.value = value;
        }
        same
    }

    /// Returns the programme as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{HEAD}\ngpu {}\ndriver {}\n", self.gpu, self.driver);
        for (period, value) in &self.periods {
            let _ = writeln!(text, "period {period} {value:x}");
        }
        let write = |text: &mut String, head: &str, operations: &[Operation]| {
            let _ = writeln!(text, "{head}");
            for o in operations {
                let kind = if o.context { 'c' } else { 'g' };
                let _ = writeln!(text, "{kind} {:x} {:x} {:x}", o.offset, o.value, o.mask);
            }
        };
        for step in &self.setup {
            match step {
                Step::Credits(bytes) => {
                    text.push_str("credits ");
                    for byte in bytes {
                        let _ = write!(text, "{byte:02x}");
                    }
                    text.push('\n');
                }
                Step::Write(operations) => write(&mut text, "write", operations),
            }
        }
        for operations in &self.flush {
            write(&mut text, "flush", operations);
        }
        text.push_str("end\n");
        text
    }

    /// Parses the text of a programme.
    ///
    /// # Errors
    /// With the line that is not understood.
    pub fn read(text: &str) -> Result<Self, NoProgramme> {
        let mut programme = Self {
            gpu: String::new(),
            driver: String::new(),
            setup: Vec::new(),
            flush: Vec::new(),
            periods: BTreeMap::new(),
        };
        let (mut in_flush, mut ended) = (false, false);
        for (number, line) in text.lines().enumerate() {
            if number == 0 {
                if line != HEAD {
                    return Err(NoProgramme(format!("it does not begin with \"{HEAD}\"")));
                }
                continue;
            }
            let wrong = || NoProgramme(format!("line {} is not understood", number + 1));
            if ended || programme.setup.len() + programme.flush.len() > MOST_STEPS {
                return Err(wrong());
            }
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "gpu" => rest.clone_into(&mut programme.gpu),
                "driver" => rest.clone_into(&mut programme.driver),
                "period" => {
                    let (period, value) = rest.split_once(' ').ok_or_else(wrong)?;
                    let period = period.parse().map_err(|_| wrong())?;
                    let value = hex(value).ok_or_else(wrong)?;
                    programme.periods.insert(period, value);
                    if programme.periods.len() > MOST_PERIODS {
                        return Err(wrong());
                    }
                }
                "credits" => {
                    let bytes = bytes(rest).filter(|b| b.len() == CREDITS_LEN);
                    let bytes = bytes.ok_or_else(wrong)?;
                    programme.setup.push(Step::Credits(bytes));
                }
                "write" => {
                    in_flush = false;
                    programme.setup.push(Step::Write(Vec::new()));
                }
                "flush" => {
                    in_flush = true;
                    programme.flush.push(Vec::new());
                }
                "c" | "g" => {
                    let operation = operation(word, rest).ok_or_else(wrong)?;
                    let to = match (in_flush, programme.setup.last_mut()) {
                        (true, _) => programme.flush.last_mut(),
                        (false, Some(Step::Write(operations))) => Some(operations),
                        (false, _) => None,
                    };
                    let to = to.filter(|to| to.len() < MOST_OPERATIONS);
                    to.ok_or_else(wrong)?.push(operation);
                }
                "end" => ended = true,
                _ => return Err(wrong()),
            }
        }
        match ended {
            true => programme.checked(),
            false => Err(NoProgramme("its end is missing".to_owned())),
        }
    }
}

/// First line of a programme's text.
const HEAD: &str = "nvcap PC sampling programme 1";

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok()
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| {
        let text = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(text, 16).ok()
    };
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(byte).collect()
}

fn operation(kind: &str, text: &str) -> Option<Operation> {
    let mut words = text.split(' ');
    let operation = Operation {
        context: kind == "c",
        offset: hex(words.next()?)?,
        value: hex(words.next()?)?,
        mask: hex(words.next()?)?,
    };
    words.next().is_none().then_some(operation)
}

fn credits(parameters: &[u8]) -> Result<Vec<u8>, NoProgramme> {
    match parameters.len() {
        CREDITS_LEN => Ok(parameters.to_vec()),
        len => Err(NoProgramme(format!(
            "SET_HS_CREDITS has {len} bytes of parameters"
        ))),
    }
}

/// Parses the operations in the parameters of EXEC_REG_OPS.
fn operations(parameters: &[u8]) -> Result<Vec<Operation>, NoProgramme> {
    let wrong = |what: &str| NoProgramme(format!("EXEC_REG_OPS has {what}"));
    if parameters.len() != OPERATIONS_LEN {
        return Err(wrong(
            "parameters of another length: nvcap ioctls -vv has them whole",
        ));
    }
    let word = |at: usize| {
        let bytes = parameters.get(at..at + 4).unwrap_or_default();
        bytes
            .iter()
            .rev()
            .fold(0, |word, b| word << 8 | u32::from(*b))
    };
    let count = word(0) as usize;
    if count == 0 || count > MOST_OPERATIONS {
        return Err(wrong("a strange number of operations"));
    }
    if word(4) != 0 {
        return Err(wrong("another mode than all or none"));
    }
    let mut all = Vec::with_capacity(count);
    for i in 0..count {
        let at = HEADER_LEN + i * OPERATION_LEN;
        let [kind, space, _, quad] = word(at).to_le_bytes();
        // Groups and subgroups of units, and the upper halves of value and mask, must be 0.
        let others = [4, 8, 16, 24].map(|more| word(at + more));
        if kind != WRITE_32 || quad != 0 || space > CONTEXT || others != [0; 4] {
            return Err(wrong("an operation that nvcap does not know"));
        }
        all.push(Operation {
            context: space == CONTEXT,
            offset: word(at + 12),
            value: word(at + 20),
            mask: word(at + 28),
        });
    }
    Ok(all)
}

/// Returns the parameters of EXEC_REG_OPS for operations, of which there are at most [`MOST_OPERATIONS`].
#[must_use]
pub fn parameters(operations: &[Operation]) -> Vec<u8> {
    let operations = operations.get(..MOST_OPERATIONS).unwrap_or(operations);
    let mut bytes = vec![0; OPERATIONS_LEN];
    let mut set = |at: usize, word: u32| {
        if let Some(to) = bytes.get_mut(at..at + 4) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    };
    set(0, operations.len() as u32);
    for (i, o) in operations.iter().enumerate() {
        let at = HEADER_LEN + i * OPERATION_LEN;
        let space = if o.context { CONTEXT } else { GLOBAL };
        set(at, u32::from_le_bytes([WRITE_32, space, 0, 0]));
        set(at + 12, o.offset);
        set(at + 20, o.value);
        set(at + 28, o.mask);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFF: Operation = Operation {
        context: true,
        offset: 0x42_43dc,
        value: 0,
        mask: u32::MAX,
    };

    fn call(command: u32, parameters: Vec<u8>) -> Call {
        Call {
            object: (0xc1d0_0029, 0xc000_0006),
            command,
            parameters,
        }
    }

    /// Returns the calls of a profiler with one unit.
    fn calls(value: u32) -> Vec<Call> {
        let global = |offset, value, mask| Operation {
            context: false,
            offset,
            value,
            mask,
        };
        let write = |all: &[Operation]| call(command::EXEC_REG_OPS, parameters(all));
        let flush = [global(0x18_0b08, 0x10, 0x10), global(0x18_0b08, 0, 0x10)];
        vec![
            call(command::RESERVE_PC_SAMPLER, vec![]),
            write(&[OFF]),
            call(command::SET_HS_CREDITS, [0, 8, 0, 0].repeat(64)),
            write(&[
                global(0x24_ab38, 0, u32::MAX),
                global(0x18_0b08, 0x20, u32::MAX),
            ]),
            write(&[Operation { value, ..OFF }]),
            call(command::UPDATE_GET_PUT, vec![0; 48]),
            write(&flush),
            call(command::UPDATE_GET_PUT, vec![0; 48]),
            write(&flush),
        ]
    }

    #[test]
    fn a_programme_is_learnt_and_read_again() {
        let learnt = Programme::learn(&calls(0xf), &[12], "GPU-1", "580.1").expect("one");
        assert_eq!(learnt.setup.len(), 4);
        assert_eq!((learnt.flush.len(), learnt.flush[0].len()), (1, 2));
        assert_eq!(learnt.switch(), Ok(Operation { value: 0xf, ..OFF }));
        assert_eq!(learnt.off(), Some(OFF));
        assert_eq!(learnt.periods, BTreeMap::from([(12, 0xf)]));
        assert_eq!(Programme::read(&learnt.text()), Ok(learnt));
    }

    #[test]
    fn several_periods_are_learnt_where_nothing_else_differs() {
        let mut both = calls(0xf);
        both.extend(calls(0x1f));
        let learnt = Programme::learn(&both, &[12, 20], "GPU-1", "580.1").expect("one");
        assert_eq!(learnt.periods, BTreeMap::from([(12, 0xf), (20, 0x1f)]));
        let mut other = calls(0x1f);
        other[2].parameters[0] = 1;
        let mut both = calls(0xf);
        both.extend(other);
        let refused = Programme::learn(&both, &[12, 20], "GPU-1", "580.1");
        assert!(refused.is_err_and(|e| e.0.contains("other registers")));
        let refused = Programme::learn(&calls(0xf), &[12, 20], "GPU-1", "580.1");
        assert!(refused.is_err_and(|e| e.0.contains("1 samplings, and 2")));
    }

    #[test]
    fn what_is_no_programme_is_refused() {
        let learn = |calls: &[Call]| {
            let refused = Programme::learn(calls, &[], "GPU-1", "580.1");
            refused.expect_err("it is refused").0
        };
        assert!(learn(&[]).contains("no PC sampling"));
        let all = calls(0xf);
        assert!(learn(&all[..4]).contains("does not end with switching"));
        assert!(learn(&all[..6]).contains("write out"));
        let mut strange = all.clone();
        strange[3].parameters[HEADER_LEN] = 0;
        assert!(learn(&strange).contains("does not know"));
        let mut short = all.clone();
        short[3].parameters.truncate(100);
        assert!(learn(&short).contains("another length"));
        let mut on = all;
        on.remove(1);
        assert!(learn(&on).contains("not switched off"));
    }

    #[test]
    fn texts_that_are_none_are_refused_with_their_line() {
        let learnt = Programme::learn(&calls(0xf), &[12], "GPU-1", "580.1").expect("one");
        let text = learnt.text();
        let read = |text: &str| Programme::read(text).expect_err("it is refused").0;
        assert!(read("").contains("end is missing"));
        assert!(read("something else\n").contains("does not begin"));
        assert!(read(&text.replace("end\n", "")).contains("end is missing"));
        assert!(read(&text.replace("driver", "drifer")).contains("line 3"));
        assert!(read(&format!("{text}more\n")).contains("not understood"));
        for at in 0..text.len() {
            let _ = Programme::read(&text[..at]);
        }
    }
}
