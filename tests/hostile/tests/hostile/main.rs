//! nvcap against a target that does what no program should.

mod judge;
mod modes;
mod own;
mod run;

use std::process::ExitCode;

use hostile::mode::MODES;
use live::harness::{Test, main as run_all};

fn main() -> ExitCode {
    let mut tests = Vec::new();
    for way in modes::WAYS {
        for mode in MODES {
            if way.finds() && !modes::is_found(mode) {
                continue;
            }
            let name = format!("{}::{}", way.name(), mode.name);
            tests.push(Test::new(name, move || modes::one(mode, way, &[])));
        }
    }
    macro_rules! own {
        ($($name:ident)*) => { $(tests.push(Test::new(concat!("own::", stringify!($name)), own::$name));)* };
    }
    own!(small_buffer few_descriptors no_descriptors little_memory few_processes stop_at_exit output_closed killed
        names_as_text names_of_programs
        floods threads_that_are_exported
        budget_of_many_mappings many_that_do_not_answer);
    run_all(&tests, live::needs::environment)
}
