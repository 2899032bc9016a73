//! Files as torch.profiler and Nsight Systems write them, whole, cut and damaged; and what nvcap's own exports say of the works that they have.

#[cfg(feature = "sqlite")]
mod nsys;

use std::io::Write as _;

use proptest::prelude::*;

use super::diff::{self, Of, Side};
use super::*;
use nvcap_decode::decode::event::{Direction, PartOf};

/// Sums that stop after a number of questions.
#[derive(Default)]
struct Until {
    sums: Sums,
    left: Option<usize>,
}

impl Works for Until {
    fn work(&mut self, work: &Work<'_>) {
        self.sums.work(work);
    }

    fn goes_on(&mut self) -> bool {
        let Some(left) = &mut self.left else {
            return true;
        };
        *left = left.saturating_sub(1);
        *left > 0
    }
}

/// A trace as PyTorch 2 writes one, by hand from the format: a step with an operator, calls, kernels of two streams, copies, a memset, and what is no
/// work.
const TORCH: &str = r#"{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85028765696,
      "computeMajor": 9, "computeMinor": 0, "numSms": 132
    }
  ],
  "cupti_version": 26,
  "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "pg_count": 1, "pg_config": [{"pg_name": "0", "ranks": []}]},
  "trace_id": "0011", "displayTimeUnit": "ms", "baseTimeNanoseconds": 1700000000000000000,
  "traceEvents": [
  {
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 4711, "tid": 4711, "ts": 5310839129000.250, "dur": 9000.5,
    "args": {"External id": 1, "Record function id": 0, "Ev Idx": 0}
  },
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 4711, "tid": 4711, "ts": 5310839129010.000, "dur": 41.250,
    "args": {"External id": 2, "Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["float", "float"], "bytes": 7}
  },
  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4711, "tid": 4711, "ts": 5310839129015.000, "dur": 5.0,
    "args": {"External id": 2, "cbid": 211, "correlation": 17}
  },
  {"ph": "s", "id": 17, "pid": 4711, "tid": 4711, "ts": 5310839129015.000, "cat": "ac2g", "name": "ac2g"},
  {
    "ph": "X", "cat": "kernel", "name": "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)", "pid": 0, "tid": 7, "ts": 5310839129100.125, "dur": 20.500,
    "args": {"External id": 2, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": 17, "registers per thread": 16,
      "shared memory": 0, "blocks per SM": 7.75, "warps per SM": 31.0, "grid": [1024, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 48}
  },
  {"ph": "f", "id": 17, "pid": 0, "tid": 7, "ts": 5310839129100.125, "cat": "ac2g", "name": "ac2g", "bp": "e"},
  {
    "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "pid": 0, "tid": 20, "ts": 5310839129110.125, "dur": 30,
    "args": {"device": 0, "stream": 20, "correlation": 18, "Collective name": "allreduce", "In msg nelems": 4096}
  },
  {
    "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7, "ts": 5310839129200.125, "dur": 2.048,
    "args": {"device": 0, "context": 1, "stream": 7, "correlation": 19, "bytes": 4096, "memory bandwidth (GB/s)": 2.0}
  },
  {
    "ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "pid": 0, "tid": 7, "ts": 5310839129203.125, "dur": 1.0,
    "args": {"device": 0, "context": 1, "stream": 7, "correlation": 20, "bytes": 512, "memory bandwidth (GB/s)": 0.5}
  },
  {"ph": "X", "cat": "gpu_user_annotation", "name": "nccl:all_reduce", "pid": 0, "tid": 20, "ts": 5310839129110.125, "dur": 30, "args": {"stream": 20}},
  {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": 20, "ts": 5310839129110.125, "dur": 1, "args": {"stream": 20, "device": 0}},
  {"name": "process_name", "ph": "M", "ts": 5310839129000.250, "pid": 0, "tid": 0, "args": {"name": "python"}},
  {"ph": "X", "cat": "Trace", "ts": 5310839128999.000, "dur": 9100, "pid": "Spans", "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", "args": {"Op count": 0}},
  {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 5310839139000.250}
  ],
  "traceName": "rank3.json"
}"#;

fn kineto(bytes: &[u8]) -> (Sums, About) {
    let mut sums = Sums::default();
    let about = kineto::read(bytes, &mut sums);
    (sums, about)
}

/// Rows as name, count, time and bytes.
fn rows(sums: &Sums) -> Vec<(&str, u64, u64, u64)> {
    let all = sums.rows(false).into_iter().chain(sums.rows(true));
    all.map(|row| (&*row.text, row.count, row.durations.sum_ns, row.bytes))
        .collect()
}

#[test]
fn a_trace_of_torch_profiler_is_read() {
    let (mut sums, about) = kineto(TORCH.as_bytes());
    let fill = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)";
    assert_eq!(
        rows(&sums),
        [
            (
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                1,
                30_000,
                0
            ),
            (fill, 1, 20_500, 0),
            ("copy h2d", 1, 2_048, 4096),
            ("memset", 1, 1_000, 512),
        ]
    );
    let busy = &sums.busy().unwrap()[&Some(0)];
    assert_eq!((busy.span_ns, busy.busy_ns), (104_000, 43_048));
    assert_eq!(busy.copies_alone_ns, 3_048);
    assert_eq!(busy.gaps, [(40_000, 60_000), (102_048, 952)]);
    assert_eq!((about.rank, about.world_size), (Some(3), Some(8)));
    assert_eq!(about.gpus[&0], "NVIDIA H100 80GB HBM3");
    assert_eq!(
        (about.cut.as_deref(), about.own.as_ref(), about.status()),
        (None, None, 0)
    );
    assert!(
        about.says().contains("nor whether it has all that ran"),
        "{}",
        about.says()
    );
    let mut shown = Vec::new();
    times::text(&mut shown, false, None, &mut sums, &about);
    let shown = String::from_utf8(shown).unwrap();
    assert!(!shown.contains("complete"), "{shown}");
    assert!(
        shown.starts_with("GPU 0: work ran in 41.4 % of 104 us\n"),
        "{shown}"
    );
}

/// PyTorch 1 wrote other categories, and no args are needed.
#[test]
fn older_files_and_values_of_other_types_are_read() {
    let (sums, about) = kineto(
        br#"{"traceEvents": [
        {"cat": "Kernel", "ts": 1, "dur": 2, "name": "k", "ph": "X", "args": [1, {"device": 0}]},
        {"ph": "X", "cat": "Memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "ts": 3, "dur": 1, "args": {"bytes": "9", "device": -1}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy sideways", "ts": "3", "dur": 1, "args": null},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Unknown -> Device)", "ts": 4, "dur": 1, "args": {"part of": "module", "bytes": 64}},
        {"ph": "B", "cat": "kernel", "name": "begun", "ts": 3}, 17, "text", null, [[]], {}],
        "deviceProperties": {"id": 0}, "distributedInfo": 5, "nvcap": []}"#,
    );
    assert_eq!(about.cut, None);
    assert_eq!(
        rows(&sums),
        [
            ("k", 1, 2000, 0),
            ("copy d2h", 1, 1000, 0),
            ("the driver, for a module", 1, 1000, 64),
            ("copy of a direction that is not known", 1, 0, 0),
        ]
    );
    assert_eq!(sums.untimed(), 1);
    assert_eq!(
        What::Driver(PartOf::Module).of_copies().unwrap(),
        "the driver, for a module"
    );
    assert_eq!(
        What::Copy(Some(Direction::PeerToPeer)).of_copies().unwrap(),
        "copy p2p"
    );
}

#[test]
fn a_cut_file_has_what_is_whole_and_says_so() {
    let all = rows(&kineto(TORCH.as_bytes()).0).len();
    for end in (0..TORCH.len() - 1).step_by(7) {
        let (sums, about) = kineto(&TORCH.as_bytes()[..end]);
        assert!(rows(&sums).len() <= all);
        assert_eq!(
            about.cut.as_deref(),
            Some("the file ends in the middle"),
            "{end}"
        );
        assert_eq!(about.status(), 3);
        assert!(
            about.says().starts_with("NOT READ TO ITS END"),
            "{}",
            about.says()
        );
    }
    let behind = format!("{TORCH} x");
    assert!(
        kineto(behind.as_bytes())
            .1
            .cut
            .unwrap()
            .contains("trailing")
    );
}

#[test]
fn reading_ends_where_the_user_wants() {
    let mut until = Until {
        left: Some(8),
        ..Until::default()
    };
    let about = kineto::read(TORCH.as_bytes(), &mut until);
    assert_eq!(about.cut.as_deref(), Some("reading was interrupted"));
    assert_eq!(until.sums.works(), 2);
}

/// Files that are made to take memory end with an error, and not with all memory taken.
#[test]
fn files_that_are_made_to_cost_are_cut() {
    let endless = |begin: &str, unit: &str| {
        let (mut sums, unit) = (Sums::default(), unit.repeat(1 << 10));
        let mut all = begin.to_owned().into_bytes();
        all.write_all(unit.repeat(2 << 10).as_bytes()).unwrap();
        kineto::read(&*all, &mut sums).cut.unwrap()
    };
    assert!(endless("{\"traceEvents\": ", "[").contains("too deep"));
    assert!(endless("{\"a\": ", "{\"a\":").contains("too deep"));
    assert!(endless("{\"", "x").contains("longer than 1 MiB"));
    assert!(endless("{\"traceEvents\": [{\"name\": \"", "xx").contains("longer than 1 MiB"));
    let number = endless("{\"traceEvents\": [{\"ts\": 1", "0");
    assert!(
        number.contains("ends in the middle") || number.contains("out of range"),
        "{number}"
    );
}

proptest! {
    #[test]
    fn any_bytes_are_survived(
        changes in prop::collection::vec((0..TORCH.len(), any::<u8>()), 1..6),
        cut in 0..TORCH.len(),
    ) {
        let mut bytes = TORCH.as_bytes().to_vec();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(TORCH.len() - cut / 4);
        let (mut sums, about) = kineto(&bytes);
        let mut shown = Vec::new();
        times::text(&mut shown, false, Some(80), &mut sums, &about);
        let _ = times::object("x", &mut sums, &about);
    }

    #[test]
    fn any_json_is_survived(bytes in "[\\[\\]{}:,\"0-9eE.a\\\\-]{0,60}") {
        kineto(bytes.as_bytes());
        kineto(format!("{{\"traceEvents\":{bytes}").as_bytes());
    }
}

#[test]
fn two_files_are_compared_by_name() {
    let (a, about_a) = kineto(TORCH.as_bytes());
    let changed = TORCH
        .replace("1ul>", "1>")
        .replace("\"dur\": 20.500", "\"dur\": 30.500")
        .replace("ncclDevKernel_AllReduce", "ncclDevKernel_Broadcast");
    let (b, about_b) = kineto(changed.as_bytes());
    let found = diff::compare(&a, &b);
    let side = |name, about, sums| Side {
        name,
        of: Of::Profile(about),
        sums,
    };
    let sides = [side("a.json", &about_a, &a), side("b.json", &about_b, &b)];
    let mut shown = Vec::new();
    diff::text(&mut shown, false, &found, sides, false);
    let shown = String::from_utf8(shown).unwrap();
    let lines: Vec<Vec<&str>> = { shown.lines() }
        .map(|line| line.split_whitespace().take(11).collect())
        .collect();
    assert_eq!(
        lines[1],
        [
            "1",
            "30.0",
            "us",
            "0",
            "-",
            "-1",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        ]
    );
    assert_eq!(
        lines[2],
        [
            "0",
            "-",
            "1",
            "30.0",
            "us",
            "+1",
            "ncclDevKernel_Broadcast_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        ]
    );
    assert_eq!(
        lines[3][..8],
        ["1", "20.5", "us", "1", "30.5", "us", "+0", "+10.0"]
    );
    assert!(found.differs());
    let same = diff::compare(
        &a,
        &kineto(TORCH.replace("dur\": 2", "dur\": 3").as_bytes()).0,
    );
    assert!(!same.differs(), "the time alone is no difference");
    let object = diff::object(&found, sides);
    assert_eq!(object["rows"].as_array().unwrap().len(), 5);
    assert_eq!(object["a"]["rank"], 3);
}
