//! A comparison in which at least one of the two inputs is another profiler's trace.

use std::path::Path;

use anyhow::bail;

use nvcap_show::output::ledger;
use nvcap_show::profile::diff::{self, Of, Side};
use nvcap_show::profile::{About, OfRecording, Sums};

use super::place::{Place, not_compared};
use crate::cli::profile::Input;
use crate::cli::recording::INTERRUPTED;

/// One of the two inputs, after reading.
struct Read {
    sums: Sums,
    of: Known,
}

enum Known {
    /// Verdict of the recording, and whether it is complete.
    Recording(String, bool),
    Profile(About),
}

/// Compares the inputs, and writes the result. Returns whether there are differences, and whether both files were complete.
pub(super) fn compare(
    place: &Place<'_>,
    all: bool,
    inputs: [Input<'_>; 2],
) -> anyhow::Result<(bool, bool)> {
    let [first, second] = inputs;
    let files = place.inputs;
    let read = [
        read(place, files[0], first)?,
        read(place, files[1], second)?,
    ];
    let names = files.map(|file| file.display().to_string());
    let side = |n: usize| Side {
        name: &names[n],
        of: match &read[n].of {
            Known::Recording(verdict, _) => Of::Recording(verdict),
            Known::Profile(about) => Of::Profile(about),
        },
        sums: &read[n].sums,
    };
    let sides = [side(0), side(1)];
    let found = diff::compare(sides[0].sums, sides[1].sums);
    place.write(
        || diff::object(&found, sides),
        |out, color| diff::text(out, color, &found, sides, all),
    )?;
    let is_whole = read.iter().all(|read| match &read.of {
        Known::Recording(_, is_complete) => *is_complete,
        Known::Profile(about) => about.status() == 0,
    });
    Ok((found.differs(), is_whole))
}

fn read(place: &Place<'_>, file: &Path, input: Input<'_>) -> anyhow::Result<Read> {
    match input {
        Input::Profile(profile) => {
            let (sums, about) = profile.read(place.output)?;
            if about.cut.as_deref() == Some(INTERRUPTED) {
                bail!("{}", not_compared(file));
            }
            let of = Known::Profile(about);
            Ok(Read { sums, of })
        }
        Input::Recording(recording) => {
            let mut works = OfRecording::default();
            let ledger = place.play(file, *recording, None, Box::new(&mut works))?;
            let of = Known::Recording(ledger::verdict(&ledger), ledger.is_complete());
            Ok(Read {
                sums: works.sums(),
                of,
            })
        }
    }
}
