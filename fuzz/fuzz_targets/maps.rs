//! `/proc/PID/maps`: each line of any text gives a mapping or none, and a mapping that is written down again is read as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvcap_process::procfs::maps::{Line, lines};

/// The line, as the kernel would write it.
fn written(line: &Line) -> String {
    let flag = |is: bool, letter: char| if is { letter } else { '-' };
    format!(
        "{:x}-{:x} {}{}{}{} {:08x} {} {} {}",
        line.start,
        line.end,
        flag(line.read(), 'r'),
        flag(line.write(), 'w'),
        flag(line.execute(), 'x'),
        if line.shared() { 's' } else { 'p' },
        line.offset,
        line.device,
        line.inode,
        line.path
    )
}

fuzz_target!(|text: &[u8]| {
    let (mut given, mut again) = (0, 0);
    lines(text, &mut |line| {
        given += 1;
        assert!(line.start <= line.end && !line.path.contains('\n'));
        let text = written(&line);
        lines(text.as_bytes(), &mut |read| {
            again += 1;
            assert_eq!(written(&read), text);
        });
    });
    assert_eq!(given, again);
    assert!(given <= text.iter().filter(|b| **b == b'\n').count() + 1);
});
