//! Channels files: any text is refused at one of its lines, or each line of it that is no comment names a doorbell or a
//! channel that can be; written down again, they are read as they were.
#![no_main]

use std::fmt::Write;

use libfuzzer_sys::fuzz_target;
use nvcap_process::channels_file::ChannelsFile;

fn written(file: &ChannelsFile) -> String {
    let mut text = String::new();
    let mut line = |what: &str, pairs: &[(&str, Option<u64>)]| {
        text += what;
        for (key, value) in pairs {
            if let Some(value) = value {
                write!(text, " {key}={value:#x}").expect("a String takes it");
            }
        }
        text += "\n";
    };
    for d in &file.doorbells {
        let pairs = [("addr", Some(d.address)), ("gpu", d.gpu.map(u64::from))];
        line("doorbell", &pairs);
    }
    for c in &file.channels {
        let pairs = [
            ("gpu", c.gpu.map(u64::from)),
            ("token", c.token.map(u64::from)),
            ("class", c.class.map(u64::from)),
            ("engine", c.engine.map(u64::from)),
            ("ring", Some(c.ring)),
            ("entries", Some(c.entries.into())),
            ("userd", Some(c.userd)),
        ];
        line("channel", &pairs);
    }
    text
}

fuzz_target!(|text: &str| {
    let file = match ChannelsFile::parse(text) {
        Ok(file) => file,
        Err((line, why)) => {
            assert!((1..=text.lines().count()).contains(&line) && !why.is_empty());
            return;
        }
    };
    let said = |line: &&str| !line.split('#').next().unwrap_or_default().trim().is_empty();
    let things = file.doorbells.len() + file.channels.len();
    assert_eq!(things, text.lines().filter(said).count());
    assert!(file.doorbells.iter().all(|d| d.address % 4 == 0));
    for c in &file.channels {
        assert!(c.entries.is_power_of_two() && c.entries >= 2);
        assert!(c.ring % 8 == 0 && c.userd % 512 == 0);
        assert!(c.ring.checked_add(u64::from(c.entries) * 8).is_some());
    }
    assert_eq!(ChannelsFile::parse(&written(&file)), Ok(file));
});
