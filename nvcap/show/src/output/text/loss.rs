//! Lines of losses.

use std::io;

use super::{Loss, Lost, Plain, Role, Text, plural, plural_of, token_name};

/// The most reasons for untraced things that are told once.
const REASONS: usize = 64;

impl Text {
    /// Writes the line of a loss.
    pub(super) fn loss(&mut self, l: &Loss) -> io::Result<()> {
        let of = l
            .channel
            .map_or_else(String::new, |c| format!(" of channel {}", c.0));
        match &l.what {
            Lost::Entries { position, count } => self.note(
                l.at,
                Role::Alarm,
                format_args!(
                    "LOST {}{of} from position {position}: overwritten before being read",
                    plural_of(*count, "entry", "entries")
                ),
            ),
            Lost::Records { kind, count } => self.note(
                l.at,
                Role::Alarm,
                format_args!(
                    "LOST {}{of} ({kind}): the buffer was full; try a larger --buffer",
                    plural(*count, "record")
                ),
            ),
            Lost::UnknownChannel { token, count } => {
                let token = token_name(*token);
                self.note(
                    l.at,
                    Role::Alarm,
                    format_args!(
                        "LOST {} of token {token}: no such channel is known",
                        plural(*count, "doorbell")
                    ),
                )
            }
            // Not shown here: the ledger says how many stacks were lost, and whose notifiers were not read.
            Lost::Stacks { .. } | Lost::Notifiers { .. } => Ok(()),
            Lost::Untraced { why } if self.untraced.contains(why) => self.note(
                l.at,
                Role::Alarm,
                format_args!("UNTRACED, for a reason told above"),
            ),
            Lost::Untraced { why } => {
                if self.untraced.len() < REASONS {
                    self.untraced.insert(why.clone());
                }
                self.note(l.at, Role::Alarm, format_args!("UNTRACED: {}", Plain(why)))
            }
        }
    }
}
