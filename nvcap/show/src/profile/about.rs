//! Facts of a profiler's file beside its works, and the words for what such a file cannot tell.

use std::collections::BTreeMap;

use crate::output::plural::plural;

/// Format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON of PyTorch's profiler (Kineto).
    Kineto,
    /// SQLite of Nsight Systems.
    Nsys,
}

impl Format {
    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kineto => "kineto",
            Self::Nsys => "nsys-sqlite",
        }
    }

    /// Its name for people.
    #[must_use]
    pub fn whose(self) -> &'static str {
        match self {
            Self::Kineto => "a trace of torch.profiler (Kineto)",
            Self::Nsys => "a trace of Nsight Systems (SQLite)",
        }
    }
}

/// Words of nvcap's own in a file that an export of nvcap's wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// The verdict on the trace.
    pub verdict: Option<String>,
    /// The exit status of the export.
    pub status: Option<u8>,
    /// Number of works that were left out, because their times are not known.
    pub untimed: u64,
}

/// Facts of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Format of the file.
    pub format: Format,
    /// Words of nvcap's own, where it wrote the file.
    pub own: Option<Own>,
    /// Place in a distributed job, and the number of ranks.
    pub rank: Option<u64>,
    /// Number of ranks of the job.
    pub world_size: Option<u64>,
    /// Unix time at which the file's clock was 0, ns.
    pub base_ns: Option<u64>,
    /// Names of GPUs.
    pub gpus: BTreeMap<u32, String>,
    /// Reason why the file was not read to its end.
    pub cut: Option<String>,
}

/// The most GPUs whose names are kept.
const MOST_GPUS: usize = 1 << 10;

impl About {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            own: None,
            rank: None,
            world_size: None,
            base_ns: None,
            gpus: BTreeMap::new(),
            cut: None,
        }
    }

    /// Takes the name of a GPU.
    pub(super) fn gpu(&mut self, id: u32, name: String) {
        if self.gpus.len() < MOST_GPUS {
            self.gpus.insert(id, name);
        }
    }

    /// Says what the file is, whether it was read to its end, and what cannot be told of it.
    #[must_use]
    pub fn says(&self) -> String {
        let whose = self.format.whose();
        let mut text = match &self.own {
            None => format!(
                "{whose}: submissions, channels and what they waited for are not in it, nor whether it has all that ran"
            ),
            Some(own) => {
                let verdict = own.verdict.as_deref().unwrap_or("its end is missing");
                let untimed = match own.untimed {
                    0 => String::new(),
                    n => format!("; {} left out, for want of times", plural(n, "work")),
                };
                format!(
                    "{whose} that nvcap wrote, of a trace that was {verdict}{untimed}; submissions, channels and what they waited for are not in it"
                )
            }
        };
        if let Some(cut) = &self.cut {
            text = format!("NOT READ TO ITS END ({cut}): {text}");
        }
        text
    }

    /// The exit status that says as much: that of the export that wrote it, and 3 where it was not read to its end.
    #[must_use]
    pub fn status(&self) -> u8 {
        let lost = nvcap_decode::ledger::STATUS_LOST;
        match (&self.cut, &self.own) {
            (Some(_), _) => lost,
            (None, Some(own)) => own.status.unwrap_or(lost),
            (None, None) => 0,
        }
    }
}
