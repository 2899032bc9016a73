//! The object of a fault.

use std::io;

use super::{Json, form, write};
use crate::output::fault;
use nvcap_decode::record::Fault;

impl Json {
    pub(super) fn fault(&mut self, f: &Fault) -> io::Result<()> {
        self.note("fault", f.at, f.token, |out| {
            for (name, value) in fault::members(f) {
                form::key(out, name);
                write(out, &value);
            }
        })
    }
}
