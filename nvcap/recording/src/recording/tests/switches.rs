//! Context switches for the tests of recordings.

use super::super::switch_messages as messages;
use nvcap_decode::record::{At, Identity, Record, Switches};
use nvcap_decode::switches::{Instance, Reading, Scope, Switch, Tag, Told};
use prost::Message as _;

fn reading(host_ns: u64) -> Reading {
    Reading {
        host_ns,
        gpu_ns: host_ns + 1_700_000_000_000_000_000,
        error_ns: 1_250,
    }
}

fn switch(tag: Tag, pid: u32, sequence: u16) -> Switch {
    Switch {
        tag,
        pid,
        sequence,
        context: 0x5c00_0001 + pid,
        time_ns: reading(1_000_000).gpu_ns + 240_000 * u64::from(sequence),
        ..Switch::default()
    }
}

fn full() -> Switches {
    let instance = |compute| Some(Instance { gpu: 7, compute });
    let other = Switch {
        instance: instance(None),
        vmid: 3,
        pid: u32::MAX,
        time_ns: 5,
        ..switch(Tag(0x55), 9, 0)
    };
    let late = Switch {
        instance: instance(Some(255)),
        time_ns: reading(26_000_000_000).gpu_ns,
        ..switch(Tag::BEGIN, 4712, 65_535)
    };
    Switches {
        at: At {
            time_ns: 16_001_000_000,
            ..At::default()
        },
        gpu: 3,
        scope: Scope::OwnUser,
        from: reading(1_000_000),
        to: reading(16_001_000_000),
        told: vec![
            Told::Strange,
            Told::Switch(switch(Tag::END, 4711, 65_534)),
            Told::Switch(late),
            Told::Missing(u64::MAX),
            Told::Ended {
                pid: 4711,
                by_ns: 77,
            },
            Told::Switch(other),
            Told::Missing(1),
        ],
        processes: vec![
            (
                4711,
                Some(Identity {
                    comm: "python3".to_owned(),
                    uid: Some(1000),
                    ..Identity::default()
                }),
            ),
            (4712, None),
        ],
    }
}

/// Returns switches with all members, and with none.
pub(super) fn all() -> Vec<Record> {
    let bare = Switches {
        scope: Scope::AllUsers,
        told: Vec::new(),
        processes: Vec::new(),
        ..full()
    };
    [full(), bare].map(|s| Record::Switches(Box::new(s))).into()
}

/// Test that a usual window takes some ten bytes for each of the driver's records.
#[test]
fn a_window_of_switches_is_short() {
    let tags = [Tag::BEGIN, Tag::END].into_iter().cycle();
    let told = (0..10_000).zip(tags);
    let told = told.map(|(i, tag)| Told::Switch(switch(tag, 4711 + i / 2 % 2, i as u16)));
    let switches = Switches {
        told: told.collect(),
        ..full()
    };
    let body = messages::Switches::from(&switches).encode_to_vec();
    assert!(body.len() < 130_000, "{}", body.len());
    let read = messages::record(&body);
    assert_eq!(read, Ok(Record::Switches(Box::new(switches))));
}

/// Test that a time long after the window's end is refused.
#[test]
fn times_of_the_future_are_not_understood() {
    let mut switches = full();
    switches.told[1] = Told::Switch(Switch {
        time_ns: u64::MAX,
        ..switch(Tag::END, 4711, 65_534)
    });
    switches.told[4] = Told::Ended {
        pid: 4711,
        by_ns: u64::MAX,
    };
    let body = messages::Switches::from(&switches).encode_to_vec();
    (switches.told[1], switches.told[4]) = (Told::Strange, Told::Strange);
    let read = messages::record(&body);
    assert_eq!(read, Ok(Record::Switches(Box::new(switches))));
}

/// Test that lists of unequal lengths are refused, whichever list it is.
#[test]
fn lists_of_other_lengths_are_not_understood() {
    let sound = messages::Switches::from(&full());
    assert!(messages::record(&sound.encode_to_vec()).is_ok());
    let spoilt: [fn(&mut messages::Switches); 11] = [
        |m| m.tag.truncate(2),
        |m| m.time_ns.truncate(2),
        |m| m.context.push(1),
        |m| m.pid.truncate(2),
        |m| m.sequence.truncate(2),
        |m| m.sequence[0] = 65_536,
        |m| m.vmid.truncate(2),
        |m| m.instance[0] = 1,
        |m| m.between[0].what = None,
        |m| m.between[3].behind = 4,
        |m| m.from = None,
    ];
    for (i, spoil) in spoilt.iter().enumerate() {
        let mut message = sound.clone();
        spoil(&mut message);
        let read = messages::record(&message.encode_to_vec());
        assert!(read.is_err(), "{i}: {read:?}");
    }
}
