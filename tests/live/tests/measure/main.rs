//! Measurements on the running kernel, by `cargo xtask bench live`: how much of something is seen at full speed, and what it costs. No figure fails
//! anything; what must hold is tested in step (`tests/live`).

mod gpu_time;
mod mappings;
mod modes;
mod names;
mod observe;
mod runs;
mod samples;
mod stacks;
mod tokens;

use std::process::ExitCode;

use live::measure::{Measurement, main as run};

fn main() -> ExitCode {
    // A file an area; each function is a measurement of its name.
    macro_rules! measurements {
        ($($area:ident: $($name:ident)*;)*) => {
            [$($(Measurement::new(concat!(stringify!($area), "::", stringify!($name)), $area::$name),)*)*]
        };
    }
    let all = measurements! {
        mappings: many;
        names: modules_that_keep_coming;
        stacks: cost;
        observe: rates budget peeks sleeping;
        modes: count duty;
        tokens: racing_threads;
        samples: shares;
        gpu_time: coverage half_of_the_budget a_part_of_a_processor;
    };
    run(&all)
}
