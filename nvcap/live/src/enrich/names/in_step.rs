//! Tests in step (`in_step.rs`): tells which programs have names. Without the feature nothing is told, and names are waited for as
//! usual.

use std::time::Duration;

use nvcap_decode::record::Record;

/// Returns the time for which output waits for names. Where a program is in step with nvcap, it is as long as the wait for the GPU's
/// times.
pub(super) fn patience(usual: Duration) -> Duration {
    #[cfg(feature = "in-step")]
    if nvcap_process::in_step::is_on() {
        return Duration::from_nanos(nvcap_process::in_step::PATIENCE_NS);
    }
    usual
}

/// Programs that have names, by process.
#[derive(Debug, Default)]
pub(super) struct Named {
    #[cfg(feature = "in-step")]
    of: std::collections::HashMap<u32, std::collections::HashSet<u64>>,
}

impl Named {
    /// Tells the number of named programs, with those that these records name.
    #[cfg_attr(not(feature = "in-step"), expect(unused_variables))]
    pub(super) fn tell(&mut self, records: &[Record]) {
        #[cfg(feature = "in-step")]
        if nvcap_process::in_step::is_on() {
            for record in records {
                if let Record::Kernel(k) = record {
                    let of = self.of.entry(k.at.pid).or_default();
                    of.insert(k.program.0);
                    let (kind, at) = (
                        nvcap_process::in_step::Kind::Process,
                        nvcap_process::in_step::NAMED,
                    );
                    nvcap_process::in_step::tell(k.at.pid, kind, at, of.len() as u64);
                }
            }
        }
    }
}
