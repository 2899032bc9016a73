//! Times of the GPU, as the pipeline shows them.

use std::sync::Arc;

use super::GPU_TIME_WINDOW_NS;
use crate::output::StampReads;
use nvcap_decode::decode::event::GpuTime;
use nvcap_decode::gpu_time::GpuTimes;
use nvcap_decode::record::Submission;

/// Longest time for which a submission waits for the end of its work, where nobody reads before the end of the trace, ns.
pub(super) const PATIENCE_NS: u64 = 60_000_000_000;

/// The times of a submission's entries, whose turn it is. `exec_time`: kernels are timed from their first instruction.
pub(super) fn of(times: &mut GpuTimes, s: &Submission, exec_time: bool) -> Arc<[GpuTime]> {
    let all = times.take(s);
    match exec_time {
        true => all.into_iter().map(GpuTime::by_exec).collect(),
        false => all.into(),
    }
}

/// Returns the time for which a record waits for the GPU's times, ns; a program in step with nvcap may take longer.
pub(super) fn window_ns() -> u64 {
    #[cfg(feature = "in-step")]
    if nvcap_process::in_step::is_on() {
        return nvcap_process::in_step::PATIENCE_NS;
    }
    GPU_TIME_WINDOW_NS
}

/// Returns the reads of stamps.
pub(super) fn reads(times: &GpuTimes) -> StampReads {
    let (reads, ns, stamps, steps) = times.coverage();
    StampReads {
        reads,
        ns,
        stamps,
        steps,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use crate::output::gpu_time::TimeReport;
    use crate::output::json::{Json, JsonOptions};
    use crate::output::text::{Text, TextOptions};
    use crate::output::{Detail, Sink};
    use crate::pipeline::kept::Kept;
    use crate::pipeline::{Pipeline, PipelineOptions};
    use nvcap_decode::gpu_time::made_up::records;
    use nvcap_decode::record::How;

    /// Kernels of 20 us from their first instruction, which runs 576 ns behind the stamp: as JSON, as sums, and as lines of text.
    fn shown(exec_time: bool) -> (Vec<Value>, Value, String) {
        let (json, sums, text) = <(Kept, Kept, Kept)>::default();
        let shown = TextOptions {
            detail: Detail::Operations,
            verbose: true,
            ..TextOptions::default()
        };
        let sinks: Vec<Box<dyn Sink>> = vec![
            Box::new(Json::new(json.output(), JsonOptions::default())),
            Box::new(TimeReport::new(sums.output(), true, false)),
            Box::new(Text::new(text.output(), shown)),
        ];
        let options = PipelineOptions {
            exec_time,
            ..PipelineOptions::default()
        };
        let mut pipeline = Pipeline::new(options, sinks)
            .with_gpu_time()
            .in_time_order();
        for record in records(40, How::Trapped) {
            pipeline.record(record).expect("taken");
        }
        pipeline.finish().expect("taken");
        let launches = json.objects().into_iter();
        let launches = launches.filter(|o| o["op"] == "launch").collect();
        (launches, sums.objects()[0].clone(), text.text())
    }

    #[test]
    fn a_kernel_s_time_begins_with_its_launch_unless_its_execution_is_asked_for() {
        let ((launches, sums, text), (same, executed, executed_text)) = (shown(false), shown(true));
        assert_eq!(launches, same, "JSON has both, whatever is shown");
        assert!(launches.len() == 40);
        for o in &launches {
            let number = |name: &str| o[name].as_u64().unwrap_or_else(|| panic!("{name}: {o}"));
            assert!(
                number("gpu_ns").abs_diff(20_576) <= number("gpu_ns_error"),
                "{o}"
            );
            assert!(
                number("gpu_exec_ns").abs_diff(20_000) <= number("gpu_exec_ns_error"),
                "{o}"
            );
            assert_eq!(
                number("gpu_clock_error_ns"),
                0,
                "a stamp is what it is: {o}"
            );
        }
        let mean = |sums: &Value| {
            sums["kernels"][0]["gpu"]["mean_ns"]
                .as_u64()
                .expect("a mean")
        };
        assert_eq!(
            (&sums["exec_time"], &executed["exec_time"]),
            (&false.into(), &true.into())
        );
        let launch = mean(&sums) - mean(&executed);
        assert!((570..650).contains(&launch), "{launch}");
        let busy = |sums: &Value| sums["gpus"][0]["work"]["busy_ns"].as_u64().expect("a sum");
        assert!(
            busy(&sums) > busy(&executed) + 40 * 400,
            "{sums} {executed}"
        );
        // The column of the first kernel's time.
        let shown = |text: &str| {
            let line = text.lines().find(|l| l.contains("  launch grid"));
            line.map(str::to_owned).unwrap_or_else(|| panic!("{text}"))
        };
        assert!(
            shown(&text).contains(" 20.6 us +-1.80 us  launch"),
            "{text}"
        );
        assert!(
            shown(&executed_text).contains(" 20.0 us +-"),
            "{executed_text}"
        );
    }
}
