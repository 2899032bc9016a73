//! A recording on a disk that is full for a while: a small file system in a mount namespace of its own, which another file fills.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use live::harness::not_run;
use live::programs::{Ended, Folder, Running, Until, nvcap, softgpu};
use serde_json::Value;

use crate::recordings::verdict;
use crate::setup::{LIMIT, need_tracing};

/// Bytes of the file that fills the file system but for what the recording has at first.
const OTHER: &str = "23M";
/// Submissions of the software GPU: it submits long after the disk has filled.
const SUBMISSIONS: u64 = 6_000;

/// Longest time for which copies are made: a guard.
const TRIES: Duration = Duration::from_secs(120);

/// nvcap records into a file system of its own.
struct Recording {
    folder: Folder,
    shell: Running,
    /// Condition at which the program goes on: it submits something before and after.
    hold: Until,
}

impl Recording {
    fn start(name: &str, options: &[&str]) -> Result<Self> {
        Self::start_on("size=24m", name, options)
    }

    /// On a disk of this form, on which there is another file.
    fn start_on(disk: &str, name: &str, options: &[&str]) -> Result<Self> {
        need_tracing()?;
        let folder = Folder::new()?;
        for name in ["disk", "kept"] {
            std::fs::create_dir(folder.file(name))?;
        }
        let own_disk = Command::new("unshare")
            .args(["--mount", "--propagation=private", "mount", "-t", "tmpfs"])
            .args(["-o", "size=1m", "nvcap-test"])
            .arg(folder.file("disk"))
            .output();
        match own_disk {
            Err(e) => not_run::<()>(format!("there is no unshare: {e}"))?,
            Ok(out) if !out.status.success() => {
                let said = String::from_utf8_lossy(&out.stderr).into_owned();
                not_run::<()>(format!("no file system can be mounted: {said}"))?;
            }
            Ok(_) => {}
        }
        let hold = Until::new(&folder, "hold")?;
        let path = |name: &str| folder.file(name).display().to_string();
        // The disk is gone with the shell, so the shell keeps what is on it. What it can write to is nvcap's alone.
        let script = format!(
            "mount -t tmpfs -o {disk} nvcap-test '{at}' || exit 99; head -c {OTHER} /dev/zero > '{at}/other'; \
             '{nvcap}' record -o '{at}/{name}' {options} --channels '{channels}' -- '{softgpu}' --submissions={SUBMISSIONS} \
             --threads=1 --sleep-us=400 {hold}; code=$?; rm -f '{at}/other'; cp '{at}'/* '{kept}'; exit $code",
            hold = hold.hold(),
            at = path("disk"),
            kept = path("kept"),
            nvcap = nvcap()?.display(),
            options = options.join(" "),
            channels = folder.channels()?.display(),
            softgpu = softgpu()?.display(),
        );
        let args = ["--mount", "--propagation=private", "sh", "-c", &script];
        let shell = Running::start(Path::new("unshare"), args)?;
        Ok(Self {
            folder,
            shell,
            hold,
        })
    }

    /// A file on the disk, as it is seen from here.
    fn on_disk(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.shell.pid()));
        let disk = self.folder.file("disk");
        root.join(disk.strip_prefix("/").unwrap_or(&disk))
            .join(name)
    }

    /// Waits until nvcap says that the disk is full. What comes while the copies are made finds it so.
    fn wait_until_full(&mut self) -> Result<()> {
        let full = |r: &Running| r.stderr().contains("free some room");
        self.shell.wait_until("a full disk", LIMIT, full)
    }

    /// Copies a file from the disk until the copy is not `cut`, which a verdict says in these words; what is shown of it, and its verdict. A copy may
    /// be made just while nvcap tries whether there is room, and have a part of what it tried to write at its end. The program goes on slowly
    /// meanwhile, and keeps some of its work for later.
    fn whole_copy(&self, name: &str, cut: &str) -> Result<(PathBuf, Positions, String)> {
        let copy = self.folder.file(&format!("copy-{name}"));
        let begun = Instant::now();
        loop {
            std::fs::copy(self.on_disk(name), &copy).context("copying from the full disk")?;
            let (before, ledger) = decode(&copy)?;
            let said = verdict(&ledger);
            ensure!(said.contains("has no end"), "{said}");
            if !said.contains(cut) {
                return Ok((copy, before, said));
            }
            ensure!(
                begun.elapsed() < TRIES,
                "guard: each copy is cut, the last one: {said}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn make_room(&self) -> Result<()> {
        std::fs::remove_file(self.on_disk("other")).context("making room")
    }

    /// The folder with all that was on the disk, what nvcap said, and what became of it.
    fn end(self) -> Result<(Folder, Ended)> {
        self.hold.release()?;
        let ended = self.shell.end(LIMIT)?;
        Ok((self.folder, ended))
    }
}

/// Channels and positions of submissions, in their order.
type Positions = Vec<(u64, u64)>;

/// Decodes a recording that is not whole: returns its submissions, and the ledger.
fn decode(file: &Path) -> Result<(Positions, Value)> {
    let mut args = ["decode", "--json"].map(OsString::from).to_vec();
    args.push(file.into());
    let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
    let status = ended.code()?;
    ensure!(status == 3, "status {status}: {}", ended.stderr);
    let (mut all, mut ledger) = (Vec::new(), Value::Null);
    for line in ended.stdout.lines() {
        let object: Value = serde_json::from_str(line)?;
        match object["type"].as_str() {
            Some("submission") => {
                let number = |name: &str| object[name].as_u64().context("a number");
                all.push((number("channel")?, number("position")?));
            }
            Some("ledger") => ledger = object,
            _ => {}
        }
    }
    Ok((all, ledger))
}

/// Returns the number of records that a verdict says to be missing.
fn missing(ledger: &Value) -> Result<u64> {
    let said = verdict(ledger);
    let count = said.split(" of the records up to number ").next();
    let count = count.and_then(|before| before.rsplit([' ', '(']).next()?.parse().ok());
    count.with_context(|| format!("no count of missing records in {said:?}"))
}

/// Wireshark's own reader takes the whole file, where it is there.
fn is_whole_for_others(file: &Path) -> Result<()> {
    match Command::new("capinfos").arg("-c").arg(file).output() {
        Err(_) => Ok(()),
        Ok(out) => {
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            ensure!(out.status.success() && said.is_empty(), "capinfos: {said}");
            Ok(())
        }
    }
}

/// The file has whole blocks while the disk is full; what could not be written is counted in it and on the terminal; and it goes on
/// when there is room.
pub fn room_comes_back() -> Result<()> {
    let mut recording = Recording::start("run.pcapng", &[])?;
    recording.wait_until_full()?;
    let (meanwhile, before, _) = recording.whole_copy("run.pcapng", "within a block")?;
    recording.make_room()?;
    ensure!(before.len() > 50, "{} submissions at first", before.len());
    is_whole_for_others(&meanwhile)?;
    let (folder, ended) = recording.end()?;
    ended.expect_code(3)?;
    ensure!(ended.stderr.contains("INCOMPLETE"), "{}", ended.stderr);
    let file = folder.file("kept/run.pcapng");
    is_whole_for_others(&file)?;
    let (after, ledger) = decode(&file)?;
    let said = verdict(&ledger);
    ensure!(!said.contains("has no end"), "{said}");
    // What was there at first is there still, then some are missing, then all come up to the last.
    ensure!(after.starts_with(&before), "what was whole has changed");
    let seen = after.len() as u64;
    let missing = missing(&ledger)?;
    ensure!(
        missing > 0 && seen < SUBMISSIONS && seen > before.len() as u64 + 50,
        "{seen} submissions, {missing} missing, {} at first",
        before.len()
    );
    // Of one doorbell there are several submissions at most where it was late, and other records are few.
    ensure!(
        (SUBMISSIONS - SUBMISSIONS / 20..=SUBMISSIONS + SUBMISSIONS / 20)
            .contains(&(seen + missing)),
        "{seen} submissions and {missing} missing records of {SUBMISSIONS}"
    );
    Ok(())
}

/// Compressed, each frame that could be written is there.
pub fn room_comes_back_compressed() -> Result<()> {
    let mut recording = Recording::start("run.pcapng.zst", &[])?;
    recording.wait_until_full()?;
    let cut = "reading the capture failed";
    let (_, before, said) = recording.whole_copy("run.pcapng.zst", cut)?;
    recording.make_room()?;
    ensure!(!before.is_empty(), "{said}");
    let (folder, ended) = recording.end()?;
    ended.expect_code(3)?;
    let (after, ledger) = decode(&folder.file("kept/run.pcapng.zst"))?;
    let said = verdict(&ledger);
    ensure!(!said.contains("has no end"), "{said}");
    ensure!(missing(&ledger)? > 0, "{said}");
    ensure!(
        after.starts_with(&before) && after.len() > before.len() + 50,
        "{}",
        after.len()
    );
    Ok(())
}

/// The disk stays full: the trace ends as it would have, and says what the file lacks.
pub fn no_room_comes_back() -> Result<()> {
    let mut recording = Recording::start("run.pcapng", &[])?;
    recording.wait_until_full()?;
    let (folder, ended) = recording.end()?;
    ended.expect_code(3)?;
    let told = ended.stderr.matches("free some room").count();
    ensure!(told == 1, "told {told} times: {}", ended.stderr);
    // One verdict, which is the last word. The line about the full disk has its word, too.
    let said = &ended.stderr;
    let (verdicts, last) = (said.matches("INCOMPLETE: ").count(), said.lines().last());
    ensure!(verdicts == 1 && !said.contains("complete: "), "{said}");
    ensure!(
        last.is_some_and(|l| l.contains("INCOMPLETE: ")) && said.contains("recorded into"),
        "{said}"
    );
    let file = folder.file("kept/run.pcapng");
    is_whole_for_others(&file)?;
    let (seen, ledger) = decode(&file)?;
    ensure!(seen.len() > 50, "{} submissions", seen.len());
    ensure!(verdict(&ledger).contains("has no end"), "{ledger}");
    Ok(())
}

/// A device that is full from the beginning: nothing says that the trace is complete, not even before the verdict.
pub fn a_full_device() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let mut args = ["record", "-o", "/dev/full", "--channels"]
        .map(OsString::from)
        .to_vec();
    args.extend([folder.channels()?.into(), "--".into(), softgpu()?.into()]);
    args.extend(["--submissions=200", "--threads=1"].map(OsString::from));
    let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
    ended.expect_code(3)?;
    let said = &ended.stderr;
    ensure!(said.contains("/dev/full"), "{said}");
    let (verdicts, last) = (said.matches("INCOMPLETE: ").count(), said.lines().last());
    ensure!(verdicts == 1, "{said}");
    ensure!(last.is_some_and(|l| l.contains("INCOMPLETE: ")), "{said}");
    for word in ["complete: ", "nothing missing"] {
        ensure!(
            !said.contains(word) && !ended.stdout.contains(word),
            "{said}"
        );
    }
    Ok(())
}

/// Each numbered file is whole up to its last block, and further ones follow when there is room.
pub fn rotating() -> Result<()> {
    let mut recording = Recording::start("run.pcapng", &["--rotate=1M"])?;
    recording.wait_until_full()?;
    recording.make_room()?;
    let (folder, ended) = recording.end()?;
    ended.expect_code(3)?;
    let (submissions, ends) = of_all(&folder)?;
    ensure!(ends > 1, "{ends} files with an end");
    ensure!((200..SUBMISSIONS).contains(&submissions), "{submissions}");
    Ok(())
}

/// A disk on which no further file can be made: the one that is there goes on.
pub fn no_room_for_another_file() -> Result<()> {
    let recording = Recording::start_on("size=64m,nr_inodes=3", "run.pcapng", &["--rotate=1M"])?;
    let (folder, ended) = recording.end()?;
    // Its root, the other file, and one of nvcap's.
    let told = ended.stderr.matches("cannot begin ").count();
    ensure!(told == 1, "told {told} times: {}", ended.stderr);
    ended.expect_code(0)?;
    let (submissions, ends) = of_all(&folder)?;
    ensure!(
        (submissions, ends) == (SUBMISSIONS, 1),
        "{submissions} submissions, {ends} files"
    );
    Ok(())
}

/// Submissions of all numbered files, and how many of these have an end.
fn of_all(folder: &Folder) -> Result<(u64, u64)> {
    let (mut submissions, mut ends) = (0, 0);
    for entry in std::fs::read_dir(folder.file("kept"))? {
        let path = entry?.path();
        is_whole_for_others(&path)?;
        let mut args = ["decode", "--json", "-q"].map(OsString::from).to_vec();
        args.push(path.clone().into());
        let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
        let last = ended.stdout.lines().last().context("a ledger")?;
        let ledger: Value = serde_json::from_str(last)?;
        submissions += ledger["submissions"].as_u64().unwrap_or(0);
        ends += u64::from(!verdict(&ledger).contains("has no end"));
    }
    Ok((submissions, ends))
}
