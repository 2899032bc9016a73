//! Looks in mapped files for programs that memory does not name.

use std::time::{Duration, Instant};

use super::{Ask, FileSearch, Resolver, of_function};
use crate::enrich::names::files::{self, Files};
use nvcap_decode::record::{Kernel, NamedBy};

/// Processor time that the search in files takes at a time while no name is asked for.
const SLICE: Duration = Duration::from_millis(20);

impl Resolver {
    /// Returns the extent of the search in files for the programs that are left; none if a further search would find nothing.
    pub(crate) fn wants_files(&self) -> Option<FileSearch> {
        let wants = |ask: &Ask| ask.code.is_some() && !self.ambiguous.contains(&ask.program.0);
        let any = self.file_search != FileSearch::Whole && self.left.iter().any(wants);
        any.then_some(self.file_search)
    }

    /// Does a piece of the search in mapped files for the programs that are left. Names that are found before all files were read
    /// are not certain.
    pub(crate) fn in_files(&mut self, files: &mut Files) -> Vec<Kernel> {
        let began = Instant::now();
        if self.file_search == FileSearch::Not {
            let mut architectures = self.images.architectures(&*self.space);
            if architectures.is_empty() {
                architectures.extend(files::architecture_of_chip());
            }
            files.add(self.pid, &architectures, &mut self.files);
            self.file_search = FileSearch::Reading;
        }
        files.step(SLICE);
        if files.is_done() {
            self.file_search = FileSearch::Whole;
        } else if files.may_work() || self.file_search == FileSearch::InPart {
            self.cost.time += began.elapsed();
            return Vec::new();
        } else {
            self.file_search = FileSearch::InPart;
        }
        let mut found = Vec::new();
        for ask in std::mem::take(&mut self.left) {
            // What one image does not tell apart, others do not either.
            let known = self.ambiguous.contains(&ask.program.0);
            match self.by_file(files, &ask) {
                Some(kernel) if !known => found.push(kernel),
                _ => self.left.push(ask),
            }
        }
        self.account(&found, began.elapsed());
        found
    }

    /// Names a program by the code of functions in files.
    fn by_file(&mut self, files: &mut Files, ask: &Ask) -> Option<Kernel> {
        let found = files.with_code(&mut self.files, ask.registers, ask.code.as_ref()?);
        let first = found.iter().min_by_key(|f| &f.function.name)?;
        let one = found.iter().all(|f| f.function.name == first.function.name);
        let mut kernel = of_function(ask, first.function.name.clone(), Some(&first.function));
        kernel.by = NamedBy::File;
        kernel.certain = one && files.is_whole();
        kernel.driver = first.driver;
        Some(kernel)
    }
}
