//! Options that ask for data that a trace does not have.

use super::OutputArgs;
use nvcap_show::output::filter::Filter;

impl OutputArgs {
    /// Returns the first item for which these options ask and that the trace does not have, and how to get it.
    pub(super) fn lacking(&self) -> Option<String> {
        let filter = self.filter.as_ref();
        if let (Some(field), false) = (filter.and_then(Filter::of_stack), self.has_stacks) {
            return Some(format!(
                "the filter asks for {}, which is of the stack: add --stacks (nvcap --stacks -p PID -e ...); only a live trace in the \
                 trap takes stacks, and a recording of one has them, not --how observe or dump",
                field.name()
            ));
        }
        if let (Some(field), false) = (filter.and_then(Filter::of_gpu_time), self.has_gpu_time) {
            return Some(format!(
                "the filter asks for {}, which is a time of the GPU: add --gpu-time (nvcap --gpu-time -p PID -e ...); only a live \
                 trace reads them, and a recording of one has them, not dump",
                field.name()
            ));
        }
        (self.exec_time && !self.has_gpu_time).then(|| {
            "--exec-time is about times of the GPU: add --gpu-time (nvcap --gpu-time --exec-time -p PID); only a live trace reads \
             them, and a recording of one has them, not dump"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_of_stacks_needs_them() {
        let options = |expression: &str, has_stacks| {
            let args = OutputArgs {
                filter: Some(Filter::parse(expression).unwrap()),
                has_stacks,
                ..OutputArgs::default()
            };
            let made = args.pipeline_options(false, None);
            made.err().map(|e| e.to_string())
        };
        let said = options("op=launch && !(frame~*train*)", false).unwrap();
        assert!(said.starts_with("the filter asks for frame"), "{said}");
        assert!(said.contains("add --stacks"), "{said}");
        assert_eq!(options("api=cuLaunchKernel", true), None);
        assert_eq!(options("op=launch", false), None);
    }

    #[test]
    fn a_filter_of_gpu_times_needs_them() {
        let options = |expression: &str, has_gpu_time| {
            let args = OutputArgs {
                filter: Some(Filter::parse(expression).unwrap()),
                has_gpu_time,
                ..OutputArgs::default()
            };
            let made = args.pipeline_options(false, None);
            made.err().map(|e| e.to_string())
        };
        let said = options("op=launch && !(gpu_ns>1ms)", false).unwrap();
        assert!(said.starts_with("the filter asks for gpu_ns"), "{said}");
        assert!(said.contains("add --gpu-time"), "{said}");
        assert_eq!(options("queued_ns>20us", true), None);
        assert_eq!(options("time_ns>20us", false), None);
    }

    #[test]
    fn times_of_execution_are_times_of_the_gpu() {
        let made = |has_gpu_time| {
            let args = OutputArgs {
                exec_time: true,
                has_gpu_time,
                ..OutputArgs::default()
            };
            args.pipeline_options(false, None)
                .map(|options| options.exec_time)
        };
        let said = made(false).expect_err("no times").to_string();
        assert!(said.contains("add --gpu-time"), "{said}");
        assert!(made(true).expect("times"));
    }
}
