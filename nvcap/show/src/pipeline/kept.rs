//! Output of sinks, kept in memory for tests.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::output::writer::Output;

/// Output of sinks, kept in memory for tests. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    pub(super) fn output(&self) -> Output {
        Output::to(Box::new(self.clone()))
    }

    pub(super) fn text(&self) -> String {
        let bytes = self.0.lock().expect("no test has failed");
        String::from_utf8(bytes.clone()).expect("text")
    }

    /// The objects, one a line.
    pub(super) fn objects(&self) -> Vec<Value> {
        let text = self.text();
        let read = |line| serde_json::from_str(line).expect("JSON");
        text.lines().map(read).collect()
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no test has failed").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
