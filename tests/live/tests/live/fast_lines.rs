//! Lines that come too fast to be read, on a terminal in tmux: sums stand in their place.

use anyhow::{Result, ensure};

use super::dump::{plan, start};
use super::top::Terminal;

/// Columns and lines of the terminal.
const SIZE: (u32, u32) = (120, 40);
/// More than are submitted while a test looks.
const WITHOUT_END: u64 = 100_000_000;

fn rows(screen: &str, words: &str) -> usize {
    screen.lines().filter(|line| line.contains(words)).count()
}

/// Sums of a running process are written anew in one place, and erased before the end.
pub fn attached() -> Result<()> {
    let gpu = start(&plan(94, 4, WITHOUT_END), &["--kernels", "--threads=1"])?;
    let pid = gpu.pid().to_string();
    let args = ["-p", &pid, "--how=observe"];
    let terminal = Terminal::with("fast", &args, SIZE)?;
    terminal.until("sums", |s| s.contains("too fast for lines"))?;
    let mut seen = Vec::new();
    // Three tables, each in the place of the one before.
    while seen.len() < 3 {
        let screen = terminal.until("another table", |s| {
            let head = s.lines().find(|l| l.contains("Ctrl-C: the end"));
            head.is_some_and(|head| !seen.contains(&head.to_owned())) && s.contains("launches of ")
        })?;
        let head = screen.lines().find(|l| l.contains("Ctrl-C: the end"));
        seen.extend(head.map(str::to_owned));
        // What is read of a terminal may be half of what is drawn, but never twice of it.
        ensure!(rows(&screen, "Ctrl-C: the end") == 1, "{screen}");
        ensure!(rows(&screen, "launches of ") == 1, "{screen}");
    }
    terminal.keys(&["C-c"])?;
    let screen = terminal.until("ended", |s| s.contains("status "))?;
    ensure!(rows(&screen, "Ctrl-C: the end") == 0, "{screen}");
    // What was not read on a busy machine fills the ledger, and the sums before it may have left the screen.
    ensure!(rows(&screen, "launches of ") <= 1, "{screen}");
    Ok(())
}

/// Sums of a command, which may write to the terminal, are a line each second; with `-l` there are none.
pub fn of_a_command() -> Result<()> {
    let gpu = live::programs::softgpu()?;
    let gpu = format!(
        "-- '{}' --files --gpus=1 --channels=4 --kernels --threads=1 --submissions={WITHOUT_END}",
        gpu.display()
    );
    let terminal = Terminal::with("command", &["--how=observe", &gpu], SIZE)?;
    let screen = terminal.until("three lines of sums", |s| rows(s, " launches/s, ") >= 3)?;
    ensure!(rows(&screen, "Ctrl-C: the end") == 0, "{screen}");
    terminal.keys(&["C-c"])?;
    terminal.until("ended", |s| s.contains("status "))?;
    let terminal = Terminal::with("lines", &["--how=observe -l", &gpu], SIZE)?;
    let screen = terminal.until("a screen full of launches", |s| rows(s, " launch ") > 20)?;
    ensure!(rows(&screen, "launches/s") == 0, "{screen}");
    terminal.keys(&["C-c"])?;
    terminal.until("ended", |s| s.contains("status "))?;
    Ok(())
}
