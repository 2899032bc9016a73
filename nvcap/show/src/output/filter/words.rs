//! The words that lines of text begin an operation with (`text::brief`, `describe`), as `op` is compared with them.

use nvcap_decode::decode::event::{
    Inline, InlineContent, Launch, LaunchKind, Operation, PartOf, SemaphoreAction,
};

use crate::output::names::operation_name;

/// All words that `op` may be compared with: JSON's kinds of operation first, then those that text alone has.
pub(super) const ALL: &[&str] = &[
    "launch",
    "graph",
    "copy",
    "inline",
    "load",
    "semaphore",
    "barrier",
    "bind",
    "draw",
    "video",
    "host",
    "fill",
    "memset",
    "write",
    "wait",
    "acquire",
    "release",
    "reduction",
    "context",
    "module",
    "draw_indexed",
    "draw_auto",
    "clear",
    "clear_zcull",
    "clear_clip_id",
    "clear_report",
    "solid",
    "blit",
    "pixels_from_cpu",
];

/// The words of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Words {
    words: [&'static str; 3],
    count: usize,
}

impl Words {
    /// The words of an operation: JSON's kind, and those of text.
    pub(super) fn of(op: &Operation) -> Self {
        let mut words = Self {
            words: [operation_name(op), "", ""],
            count: 1,
        };
        match op {
            Operation::Launch(l) => words.also(launch(l)),
            Operation::Copy(c) if c.src.is_none() && c.dst.is_some() => words.also(Some("fill")),
            Operation::Inline(i) => words.also(inline(i)),
            Operation::Semaphore(s) => match s.action {
                SemaphoreAction::Release => words.also(Some("release")),
                SemaphoreAction::AcquireEqual
                | SemaphoreAction::AcquireGreaterEqual
                | SemaphoreAction::AcquireAnd
                | SemaphoreAction::AcquireNor => {
                    words.also(Some("acquire"));
                    words.also(Some("wait"));
                }
                SemaphoreAction::Reduction => words.also(Some("reduction")),
                SemaphoreAction::Other(_) => {}
            },
            Operation::Draw(d) => words.also(Some(d.what)),
            Operation::Load(l) => words.also(Some(match l.part_of {
                PartOf::Context => "context",
                PartOf::Module => "module",
            })),
            Operation::Graph(_)
            | Operation::Copy(_)
            | Operation::Barrier(_)
            | Operation::Bind(_)
            | Operation::Video(_)
            | Operation::Host(_) => {}
        }
        words
    }

    fn also(&mut self, word: Option<&'static str>) {
        if let (Some(word), Some(free)) = (word, self.words.get_mut(self.count)) {
            *free = word;
            self.count += 1;
        }
    }

    /// Iterates over the words.
    pub(super) fn each(&self) -> impl Iterator<Item = &'static str> {
        self.words.into_iter().take(self.count)
    }
}

/// The word of a kernel of the driver that does what a copy engine would.
fn launch(l: &Launch) -> Option<&'static str> {
    match (l.kind, &l.moves) {
        (LaunchKind::DriverMemset | LaunchKind::DriverCopy, Some(m)) => Some(match m.src {
            Some(_) => "copy",
            None => "memset",
        }),
        _ => None,
    }
}

/// The word of an inline write of the program's data.
fn inline(i: &Inline) -> Option<&'static str> {
    match (i.content, i.fill) {
        (None | Some(InlineContent::Data), Some(_)) => Some("memset"),
        (Some(InlineContent::Data), None) => Some("copy"),
        (None, None) => Some("write"),
        _ => None,
    }
}
