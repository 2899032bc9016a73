//! `nvcap code`: the code of a kernel, from a running process, a file with images, or a capture.

mod recorded;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::json;

use super::progress::Reading;
use super::values::Force;
use super::{overwrite, recording, target};
use nvcap_decode::cubin::{Cubin, compare};
use nvcap_decode::record::{Kernel, Record};
use nvcap_decode::wire::{GpuVa, read_memory::ReadMemory};
use nvcap_live::enrich::{cubins, names};
use nvcap_monitor::dump::{self, DumpOptions};
use nvcap_process::memory::scan::Effort;
use nvcap_recording::file::kind::{self, Kind};
use nvcap_recording::file::orc::Orc;
use nvcap_recording::recording::Reader;
use nvcap_show::code::choose::{Choice, chosen, proposed};
use nvcap_show::code::images::CodeImages;
use nvcap_show::code::listing::{Listing, Said};
use nvcap_show::code::nvdisasm;
use nvcap_show::output::kernel_name::demangled;
use nvcap_show::output::message::tell;
use nvcap_show::output::plural::plural;
use nvcap_show::output::shell::quoted;

const EXAMPLES: &str = "\
Examples:
  sudo nvcap code '*' -p 4711             the kernels that a process has loaded
  sudo nvcap code '*gemm*' -p 4711        those with gemm in their names
  sudo nvcap code vadd -p 4711            the instructions of one
  sudo nvcap code 0x7fe6777b6000 -p 4711  the kernel of a launch, by its program
  nvcap code vadd app.cubin --json        of a file: a cubin, a program, a library; as JSON
  nvcap code vadd app --sm 90             of a program with code for several architectures
  nvcap code vadd app.cubin -o vadd.bin   the code's bytes; with --image those of its image
  nvcap code 0x7fe6777b6000 run.orc.xz    code that a capture shows being uploaded

nvdisasm (of the CUDA toolkit) disassembles where it is on PATH; otherwise the words are shown.

Exit status: 0 shown, 1 error, 2 usage.";

/// Number of the newest entries of each ring that are read, for the programs that they launch.
const LAST: u32 = 256;
/// The most bytes of a file that is searched for images.
const MOST_FILE: u64 = 4 << 30;
/// The most bytes of an image that is written or disassembled.
const MOST_IMAGE: u64 = 1 << 30;

/// Choice of code, and of its use.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A kernel's name, mangled or not (`*` stands for any text, `?` for one character). Of a process or capture also the address of a
    /// program (0x...)
    #[arg(value_name = "KERNEL|PROGRAM")]
    pub what: String,

    /// A running process that has loaded the kernel
    #[arg(short, long, value_name = "PID", value_parser = super::values::parse_pid, conflicts_with = "file")]
    pub pid: Option<u32>,

    /// A cubin, a fat binary, a program or library, or a capture
    pub file: Option<PathBuf>,

    /// Search only the image at this address of the process, or at this offset of the file
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    pub at: Option<u64>,

    /// Only code of this architecture, such as 90. Of a capture: the architecture to disassemble for
    #[arg(long, value_name = "NUMBER")]
    pub sm: Option<u32>,

    /// Write the bytes of the code to FILE, made readable by its owner alone
    #[arg(short, long, value_name = "FILE", conflicts_with = "json")]
    pub output: Option<PathBuf>,

    /// Option by which FILE is replaced.
    #[command(flatten)]
    pub force: Force,

    /// With -o: write the whole image (a cubin) instead of the kernel's code
    #[arg(long, requires = "output")]
    pub image: bool,

    /// JSON instead of text (docs/code.md has the members)
    #[arg(long)]
    pub json: bool,
}

impl Args {
    /// Returns the reason why the command must not begin: its output would replace a file.
    pub(super) fn refusal(&self) -> Option<String> {
        let inputs: Vec<&Path> = self.file.iter().map(PathBuf::as_path).collect();
        overwrite::refusal(self.output.as_deref(), self.force.force, &inputs)
    }
}

fn parse_address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16)
        .map_err(|_| "not a hexadecimal address such as 0x7f29a03d5700".to_owned())
}

/// Runs `nvcap code`: finds the code that was asked for, and prints or writes it.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let address = args.what.strip_prefix("0x");
    let address = address.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    if let Some(pid) = args.pid {
        if let Some(unfit) = nvcap_process::procfs::unfit::unfit(pid) {
            bail!("cannot look into process {pid}: {unfit}");
        }
        let unreadable = || {
            let refused = nvcap_process::procfs::unfit::refused(pid);
            format!("cannot read the memory of process {pid}: {refused}")
        };
        let wanted = match address {
            Some(address) => Wanted::by_address(args, pid, GpuVa(address), unreadable)?,
            None => Wanted::by_name(args),
        };
        let (memory, images) = cubins::of(pid).with_context(unreadable)?;
        let name = format!("process {pid}");
        let held = CodeImages::of_memory(&memory, images, args.sm);
        return of_images(args, &wanted, held, &name);
    }
    let Some(file) = &args.file else {
        tell(format_args!(
            "name a process or a file, too: nvcap code {0} -p PID, or nvcap code {0} FILE",
            args.what
        ));
        return Ok(target::usage());
    };
    let name = file.display().to_string();
    let (reader, reading) = recorded::opened(file)?;
    let (kind, reader) = kind::of(reader);
    if matches!(kind, Kind::Orc) {
        let Some(address) = address else {
            bail!(
                "{name} is a capture, which has no names: give a program's address, as `nvcap decode {} -e op=launch` shows it",
                quoted(file)
            );
        };
        return of_capture(args, Orc::new(reader), GpuVa(address), (&name, reading));
    }
    if kind == Kind::Recording {
        let program = match address {
            Some(address) => GpuVa(address),
            None => recorded::program_named(&args.what, file)?,
        };
        let reader = Reader::new(reader);
        let records = recording::records(reader, file).map(Ok::<_, String>);
        return of_capture(args, records, program, (&name, reading));
    }
    if let Kind::IoctlLog | Kind::Empty = kind {
        bail!(
            "{name} has no code: it is {}",
            kind.seems().replace("FILE", &name)
        );
    }
    let mut bytes = Vec::new();
    reader
        .take(MOST_FILE)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}"))?;
    let wanted = Wanted::by_name(args);
    of_images(args, &wanted, CodeImages::of_file(&bytes, args.sm), &name)
}

/// The function that the user wants, from some images.
struct Wanted {
    /// A name or a pattern.
    what: String,
    /// Address or file offset of the only image to search; `None` for all images.
    at: Option<u64>,
    /// Kernel at the program's address, if the user gave an address.
    program: Option<Kernel>,
}

impl Wanted {
    fn by_name(args: &Args) -> Self {
        Self {
            what: args.what.clone(),
            at: args.at,
            program: None,
        }
    }

    /// Returns the function that a process has at a program's address, named as in a trace.
    fn by_address(
        args: &Args,
        pid: u32,
        program: GpuVa,
        unreadable: impl Fn() -> String,
    ) -> anyhow::Result<Self> {
        let found = names::of_program(pid, program, &submitted(pid)).with_context(unreadable)?;
        let Some((kernel, image)) = found else {
            bail!(
                "no name is known for a program at {program} of process {pid}: the address is what a trace or a dump of this very \
                 process shows behind `prog`, of a module that is loaded still; nvcap code '*' -p {pid} lists all kernels by name"
            );
        };
        let Some(image) = image else {
            bail!(
                "the program at {program} of process {pid} is perhaps {}, but no image with its code is in memory",
                demangled(&kernel.name)
            );
        };
        if !kernel.certain {
            tell(format_args!(
                "the program at {program} is probably {}: not all that is known of it agrees (docs/names.md says what makes a name certain)",
                demangled(&kernel.name)
            ));
        }
        Ok(Self {
            what: kernel.name.clone(),
            at: args.at.or(Some(image)),
            program: Some(kernel),
        })
    }
}

/// Returns the newest submissions in the rings of a process. Their programs show the layout of the process's function records. Empty if
/// there are no rings, or if they may not be read.
fn submitted(pid: u32) -> Vec<Record> {
    let options = DumpOptions {
        last: LAST,
        effort: Effort::Usual,
        chip: None,
        known_rings: Vec::new(),
        stacks: false,
        qmd_copies: |_| Vec::new(),
        kernels: |_, _| Vec::new(),
    };
    let (records, refused) = dump::records(&[pid], &options);
    for (_, why) in refused {
        log::info!("process {pid}: its rings are not read: {why:?}");
    }
    records
}

/// Returns architectures for a message: `sm_80, sm_90`.
fn architectures(all: impl IntoIterator<Item = u32>) -> String {
    let names = all.into_iter().map(|sm| format!("sm_{sm}"));
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the reason why there is nothing to choose from.
fn no_image<M: ?Sized>(
    args: &Args,
    wanted: &Wanted,
    held: &CodeImages<'_, M>,
    name: &str,
) -> anyhow::Error {
    let mut text = format!("{name} has no image of CUDA code");
    if let Some(at) = wanted.at {
        let _ = write!(text, " at {at:#x}");
    }
    if let Some(sm) = args.sm {
        let _ = write!(text, " for sm_{sm}");
    }
    let others = &held.architectures;
    if args.sm.is_some_and(|sm| !others.contains(&sm)) && !others.is_empty() {
        let _ = write!(
            text,
            "; it has some for {}",
            architectures(others.iter().copied())
        );
    } else if others.is_empty() && held.has_ptx {
        text.push_str(
            ", but PTX, which the driver compiles when it is loaded: nvcap code -p PID shows what a process has of it",
        );
    }
    anyhow::Error::msg(text)
}

/// Answers from images in memory: a process's images, or those of a file that was read whole.
fn of_images<M: ReadMemory + ?Sized>(
    args: &Args,
    wanted: &Wanted,
    mut held: CodeImages<'_, M>,
    name: &str,
) -> anyhow::Result<ExitCode> {
    if let Some((count, why)) = &held.not_unpacked {
        let count = plural(*count as u64, "compressed image");
        tell(format_args!("{name}: {count} cannot be unpacked: {why}"));
    }
    if let Some(at) = wanted.at {
        held.images.retain(|image| image.at == at);
    }
    let images = &held.images;
    if images.is_empty() {
        return Err(no_image(args, wanted, &held, name));
    }
    let choices = chosen(images, &wanted.what);
    let Some(first) = choices.first() else {
        let near = proposed(images, &wanted.what);
        let functions: u64 = images
            .iter()
            .map(|image| image.functions.len() as u64)
            .sum();
        if functions == 0 {
            let count = plural(images.len() as u64, "image");
            bail!("{name} has {count} of CUDA code, but no functions in it");
        }
        bail!(
            "no kernel of {name} is named {} ({} in {}){}",
            wanted.what,
            plural(functions, "function"),
            plural(images.len() as u64, "image"),
            if near.is_empty() {
                "; '*' lists all".to_owned()
            } else {
                format!("; with that in their names: {}", near.join(", "))
            }
        );
    };
    let mut names: Vec<&str> = choices.iter().map(|c| c.function.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() > 1 {
        if args.output.is_some() {
            bail!(
                "{} kernels are named so; -o takes one: name it whole (without -o they are listed)",
                names.len()
            );
        }
        return list(args, &choices);
    }
    let of: BTreeSet<u32> = choices.iter().map(|c| c.image.sm).collect();
    if of.len() > 1 {
        let all = architectures(of.iter().copied());
        let which = format!("{} is there for {all}", first.function.name);
        if args.output.is_some() {
            bail!("{which}; -o takes one: --sm NUMBER chooses it");
        }
        tell(format_args!("{which}: --sm NUMBER shows the code of one"));
        return list(args, &choices);
    }
    let code = |choice: &Choice<'_>| code_of(&held, choice);
    let own = code(first).with_context(|| {
        format!(
            "the code of {} cannot be read: part of its image is not in memory",
            first.function.name
        )
    })?;
    let others = choices.get(1..).unwrap_or_default();
    let other = others
        .iter()
        .find(|c| code(c).is_some_and(|code| code != own));
    if let Some(other) = other {
        tell(format_args!(
            "images have different code of this name; this is that at {:#x}; another: --at {:#x}",
            first.image.at, other.image.at
        ));
    }
    if let Some(path) = &args.output {
        let bytes = if args.image {
            whole(&held, first.image)
                .context("the image cannot be read: part of it is not in memory")?
        } else {
            own
        };
        return write(args, path, &bytes);
    }
    let said = said_of(&held, first, &own);
    show(
        args,
        &Listing {
            function: Some((first.image, first.function)),
            named: wanted.program.as_ref(),
            address: wanted.program.as_ref().map(|k| k.program.0),
            sm: Some(first.image.sm),
            code: &own,
            said,
        },
    )
}

fn whole<M: ReadMemory + ?Sized>(held: &CodeImages<'_, M>, image: &Cubin) -> Option<Vec<u8>> {
    held.bytes(image, 0..image.len, MOST_IMAGE)
}

/// Returns the code of a function in an image.
pub(super) fn code_of<M: ReadMemory + ?Sized>(
    held: &CodeImages<'_, M>,
    choice: &Choice<'_>,
) -> Option<Vec<u8>> {
    held.code(choice.image, choice.function, recorded::MOST_CODE)
}

/// Returns the instructions of a function, whose code is `own`, as nvdisasm prints them. Empty if nvdisasm prints none, which the user is
/// told.
pub(super) fn said_of<M: ReadMemory + ?Sized>(
    held: &CodeImages<'_, M>,
    choice: &Choice<'_>,
    own: &[u8],
) -> std::collections::BTreeMap<u64, Said> {
    disassembled(|program| {
        let of_image = whole(held, choice.image)
            .map(|image| nvdisasm::of_function(program, &image, choice.function));
        match of_image {
            Some(Ok(said)) if !said.is_empty() => Ok(said),
            // nvdisasm fails on the image, or prints nothing about the function. It then gets the code alone, about which it prints less.
            _ => nvdisasm::of_code(program, choice.image.sm, own),
        }
    })
}

/// Returns instructions as nvdisasm prints them. Empty if nvdisasm is missing or fails; the user is told, and words are shown instead.
fn disassembled(
    ask: impl FnOnce(&Path) -> std::io::Result<std::collections::BTreeMap<u64, Said>>,
) -> std::collections::BTreeMap<u64, Said> {
    let Some(program) = nvdisasm::program() else {
        tell(
            "there is no nvdisasm on PATH: words are shown; install the CUDA toolkit's cuda-nvdisasm for instructions",
        );
        return Default::default();
    };
    match ask(&program) {
        Ok(said) if !said.is_empty() => return said,
        Ok(_) => tell(format_args!(
            "{} says nothing of this code: words are shown",
            program.display()
        )),
        Err(error) => tell(format_args!(
            "{} failed ({error}): words are shown",
            program.display()
        )),
    }
    Default::default()
}

/// Prints the kernels that match a pattern, one on each line.
fn list(args: &Args, choices: &[Choice<'_>]) -> anyhow::Result<ExitCode> {
    let mut out = target::open(None, false, false, &[])?;
    if args.json {
        let objects = choices.iter().map(|c| {
            json!({
                "kernel": demangled(&c.function.name),
                "kernel_mangled": c.function.name,
                "image": c.image.at,
                "sm": c.image.sm,
                "target": c.image.target(),
                "bytes": c.function.code.end - c.function.code.start,
                "registers": c.function.registers,
            })
        });
        let to = out.object();
        let objects: Vec<serde_json::Value> = objects.collect();
        nvcap_show::output::json::write(to, &objects);
        to.push(b'\n');
    } else {
        let mut text = format!(
            "{:>18} {:>7} {:>8} {:>4}  KERNEL\n",
            "IMAGE", "SM", "BYTES", "REGS"
        );
        for c in choices {
            let bytes = c.function.code.end - c.function.code.start;
            let registers = c
                .function
                .registers
                .map_or_else(|| "-".to_owned(), |r| r.to_string());
            let _ = writeln!(
                text,
                "{:>#18x} {:>7} {bytes:>8} {registers:>4}  {}",
                c.image.at,
                c.image.target(),
                demangled(&c.function.name)
            );
        }
        out.object().extend_from_slice(plain(&text).as_bytes());
    }
    target::written(&mut out)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a name without control characters, because names come from the traced program.
pub(super) fn plain(text: &str) -> String {
    let kept = |c: char| {
        if c.is_control() && c != '\n' {
            '\u{fffd}'
        } else {
            c
        }
    };
    text.chars().map(kept).collect()
}

fn show(args: &Args, listing: &Listing<'_>) -> anyhow::Result<ExitCode> {
    let mut out = target::open(None, false, false, &[])?;
    let to = out.object();
    if args.json {
        nvcap_show::output::json::write(to, &listing.json());
        to.push(b'\n');
    } else {
        to.extend_from_slice(plain(&listing.text()).as_bytes());
    }
    target::written(&mut out)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes bytes unchanged.
fn write(args: &Args, path: &Path, bytes: &[u8]) -> anyhow::Result<ExitCode> {
    let inputs: Vec<&Path> = args.file.iter().map(PathBuf::as_path).collect();
    let mut out = target::open(Some(path), args.force.force, false, &inputs)?;
    out.object().extend_from_slice(bytes);
    target::written(&mut out)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows or writes the code that was uploaded to a program's address in a capture, as it was at the program's first launch.
fn of_capture(
    args: &Args,
    capture: impl Iterator<Item = Result<Record, impl std::fmt::Display>>,
    program: GpuVa,
    (name, reading): (&str, Reading),
) -> anyhow::Result<ExitCode> {
    let code = recorded::uploaded(capture, program, (name, reading))?;
    let code = compare::without_zeros(&code);
    if let Some(path) = &args.output {
        return write(args, path, code);
    }
    let said = match args.sm {
        Some(sm) => disassembled(|nvdisasm| nvdisasm::of_code(nvdisasm, sm, code)),
        None => {
            tell("words are shown: --sm NUMBER (90 for an H100) has nvdisasm disassemble them");
            Default::default()
        }
    };
    show(
        args,
        &Listing {
            function: None,
            named: None,
            address: Some(program.0),
            sm: args.sm,
            code,
            said,
        },
    )
}
