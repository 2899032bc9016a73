//! The header of a traced command: on a terminal, and nowhere else.

use std::path::Path;

use anyhow::{Result, ensure};
use live::programs::{Folder, GUARD, Running, nvcap, softgpu};

use super::top::Terminal;

const WORK: [&str; 3] = ["--files", "--gpus=1", "--submissions=40"];

/// The header says what is traced, how, and what that costs, before anything else; then come the GPU and its channels, and the head of the columns.
pub fn of_a_command() -> Result<()> {
    let (folder, gpu) = (Folder::new()?, softgpu()?);
    let channels = folder.channels()?;
    let trap = format!(
        "--how=trap --channels '{}' -- '{}' --submissions=40 --stay-while={}",
        channels.display(),
        gpu.display(),
        folder.file("stay0").display()
    );
    let observe = format!(
        "--how=observe -- '{}' {} --stay-while={}",
        gpu.display(),
        WORK.join(" "),
        folder.file("stay1").display()
    );
    for (number, (line, way)) in [
        (trap, "by the trap, which slows each doorbell"),
        (observe, "by observing, which does not slow it"),
    ]
    .into_iter()
    .enumerate()
    {
        // The command stays until nvcap has found its channels.
        let stays = folder.file(&format!("stay{number}"));
        std::fs::write(&stays, "")?;
        let terminal = Terminal::with("header", &[&line], (100, 400))?;
        terminal.until("its channels", |s| s.contains("GPU 0: "))?;
        std::fs::remove_file(&stays)?;
        let screen = terminal.until("ended", |s| s.contains("status "))?;
        let header = format!("nvcap: softgpu of root, {way}; Ctrl-C ends both");
        let at = |words: &str| screen.lines().position(|line| line.starts_with(words));
        ensure!(at(&header) == Some(1), "{header}\n{screen}");
        let (known, head) = (at("GPU 0: "), at("    time, s  ch    eng  what"));
        ensure!(
            known.is_some() && known.map(|at| at + 1) == head,
            "{screen}"
        );
    }
    Ok(())
}

/// The command's standard error is nvcap's, too: in a pipe it has what the command writes there.
pub fn not_in_pipes() -> Result<()> {
    let gpu = softgpu()?;
    let gpu = gpu.to_string_lossy();
    let args = [
        &["--how=observe", "-o", "/dev/null", "--", &*gpu][..],
        &WORK,
    ]
    .concat();
    let ended = Running::start(&nvcap()?, args)?.end(GUARD)?;
    ensure!(!ended.stderr.contains("Ctrl-C"), "{}", ended.stderr);
    ensure!(ended.stdout.contains("submissions=40"), "{}", ended.stdout);
    Ok(())
}

/// A process that uses no GPU is waited for, and that is said at once.
pub fn of_a_process_without_a_gpu() -> Result<()> {
    let process = Running::start(Path::new("/bin/sleep"), ["900"])?;
    let pid = process.pid().to_string();
    let args = ["--how=observe", "--duration=0.1", "-o", "/dev/null", "-p"];
    let ended = Running::start(&nvcap()?, [&args[..], &[&pid]].concat())?.end(GUARD)?;
    ended.expect_code(4)?;
    let said = format!(
        "process {pid} attached: sleep of root, it has no GPU open: waiting until it, or a child that it starts, opens one; Ctrl-C ends"
    );
    ensure!(ended.stderr.contains(&said), "{}", ended.stderr);
    Ok(())
}
