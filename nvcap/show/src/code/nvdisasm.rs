//! NVIDIA's disassembler, `nvdisasm`, where it is installed: on PATH, or with the CUDA toolkit in its usual place.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::listing::Said;
use nvcap_decode::cubin::Function;

/// Folder where the toolkit's installers put the disassembler.
const USUAL: &str = "/usr/local/cuda/bin";

/// The program, where there is one.
pub fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from(USUAL)]);
    // A name without a folder would be of the directory that one happens to be in.
    folders
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("nvdisasm"))
        .find(|file| file.is_file())
}

/// Asks the disassembler about a function; returns its answers by offset. It is given the whole image, and so knows names and labels.
///
/// # Errors
/// When it cannot be started or refuses the image: its words.
pub fn of_function(
    program: &Path,
    image: &[u8],
    function: &Function,
) -> io::Result<BTreeMap<u64, Said>> {
    let index = function.symbol.to_string();
    let text = ask(program, &["-c", "-fun", &index], image)?;
    Ok(parse(&text, Some(&function.name)))
}

/// Asks as [`of_function`] does, about code alone.
///
/// # Errors
/// As those of [`of_function`].
pub fn of_code(program: &Path, sm: u32, code: &[u8]) -> io::Result<BTreeMap<u64, Said>> {
    let text = ask(program, &["-b", &format!("SM{sm}")], code)?;
    Ok(parse(&text, None))
}

/// Returns the disassembler's output for bytes, which it reads from a file in memory: code may be secret, and is written to no disk.
fn ask(program: &Path, options: &[&str], bytes: &[u8]) -> io::Result<String> {
    // SAFETY: a name that ends with 0; the descriptor is checked and belongs to nothing else.
    let mut file = unsafe {
        let descriptor = libc::memfd_create(c"nvcap-code".as_ptr(), libc::MFD_CLOEXEC);
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from_raw_fd(descriptor)
    };
    file.write_all(bytes)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut command = Command::new(program);
    let answer = command
        .args(options)
        .arg(path)
        .stdin(Stdio::null())
        .output()?;
    if !answer.status.success() {
        let words = String::from_utf8_lossy(&answer.stderr);
        let words = words.lines().find(|line| !line.trim().is_empty());
        let words = words.map_or_else(|| answer.status.to_string(), str::to_owned);
        return Err(io::Error::other(words));
    }
    Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
}

/// Reads the disassembler's lines by offset, of one function where all are listed: `/*0010*/  S2R R0, SR_TID.X ;`, labels on lines of their own.
fn parse(text: &str, name: Option<&str>) -> BTreeMap<u64, Said> {
    let mut said: BTreeMap<u64, Said> = BTreeMap::new();
    let mut labels = Vec::new();
    let section = name.map(|name| format!(".text.{name}"));
    let mut within = name.is_none();
    for line in text.lines() {
        let line = line.trim();
        if let (Some(section), Some(is)) = (&section, line.strip_prefix(".section")) {
            let is = is.trim_start().split(',').next().unwrap_or_default();
            within = is.trim_matches('"') == section;
            labels.clear();
        }
        if !within {
            continue;
        }
        let instruction = || {
            let (offset, text) = line.strip_prefix("/*")?.split_once("*/")?;
            let offset = u64::from_str_radix(offset, 16).ok()?;
            let text = text.rsplit_once("/*").map_or(text, |(text, _)| text).trim();
            (!text.is_empty()).then(|| (offset, text.to_owned()))
        };
        if let Some((offset, text)) = instruction() {
            let labels = std::mem::take(&mut labels);
            said.entry(offset).or_insert(Said { labels, text });
        } else if line.starts_with('.') && line.ends_with(':') && !line.starts_with(".text.") {
            labels.push(line.to_owned());
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let text = "\t.target\tsm_90\n\
            //--- .text.b ---\n\t.section\t.text.b,\"ax\",@progbits\nb:\n.text.b:\n\
            \x20       /*0000*/   EXIT ;\n\
            \t.section\t.text.a,\"ax\",@progbits\n.text.a:\n\
            \x20       /*0000*/                   LDC R1, c[0x0][0x28] ;    /* 0x00000a00ff017b82 */\n\
            \x20                                                            /* 0x000fe20000000800 */\n\
            .L_x_0:\n\
            \x20       /*0010*/               @P0 BRA `(.L_x_0) ;\n\
            \x20       /*zz*/ no\n";
        let said = parse(text, Some("a"));
        let all: Vec<_> = said.iter().map(|(at, s)| (*at, s.text.as_str())).collect();
        assert_eq!(
            all,
            [(0, "LDC R1, c[0x0][0x28] ;"), (16, "@P0 BRA `(.L_x_0) ;")]
        );
        assert_eq!(said[&16].labels, [".L_x_0:"]);
        assert_eq!(parse(text, Some("b"))[&0].text, "EXIT ;");
        assert!(parse(text, Some("c")).is_empty());
        // Of code alone there are no sections.
        assert_eq!(parse("/*0000*/ EXIT ;", None)[&0].text, "EXIT ;");
    }
}
