//! Short names of kernels, as text shows them and filters find them.

use std::sync::Arc;

use crate::common::events::{Written, context, launch};
use nvcap_decode::decode::event::{Body, Event, Operation};
use nvcap_decode::record::{At, Kernel, KernelParam};
use nvcap_show::output::Sink;
use nvcap_show::output::filter::Filter;
use nvcap_show::output::text::{Text, TextOptions};

/// Kernels of PyTorch 2.6.0: fills of floats and of halves, and a mean.
const FILL: &str = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_";
const FILL_HALF: &str = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIN3c104HalfEEESt5arrayIPcLm1EEEEviT0_T1_";
const MEAN: &str =
    "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsIffffEEjfLi4EEEEEvT1_";

fn launch_of(name: &str) -> Operation {
    let mut operation = launch();
    let Operation::Launch(l) = &mut operation else {
        panic!("a launch");
    };
    l.kernel = Some(Arc::new(Kernel::called(At::default(), 0x1000, name)));
    operation
}

/// The names in the lines of launches.
fn shown(names: &[&str], full_names: bool) -> Vec<String> {
    let written = Written::default();
    let options = TextOptions {
        full_names,
        ..TextOptions::default()
    };
    let mut sink = Text::new(written.output(), options);
    for name in names {
        let operation = launch_of(name);
        let context = context(7);
        let body = Body::Operation(&operation);
        sink.event(&Event {
            context: &context,
            entry: 0,
            body,
        })
        .unwrap();
    }
    sink.flush().unwrap();
    let text = written.text();
    let name = |line: &str| {
        let (_, name) = line.split_once(" launch ").unwrap();
        name.split_once(" grid ").unwrap().0.to_owned()
    };
    text.lines().map(name).collect()
}

#[test]
fn text_tells_kernels_apart() {
    assert_eq!(
        shown(&[FILL, FILL_HALF, MEAN, FILL], false),
        [
            "vectorized_elementwise<Fill>",
            "vectorized_elementwise<Fill,half>",
            "reduce<Mean>",
            "vectorized_elementwise<Fill>",
        ]
    );
    let full = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1> >(int, at::native::FillFunctor<float>, std::array<char*, 1>)";
    assert_eq!(shown(&[FILL], true), [full]);
}

/// Numbers and pointers are shown, structures and long arguments by their size; `-v` has their words.
#[test]
fn structures_are_shown_by_their_size() {
    let shown = |sizes: &[(u32, u32)], bytes: usize, verbose: bool| {
        let mut operation = launch_of("_Z4scalPfi6Paramsc");
        let Operation::Launch(l) = &mut operation else {
            panic!("a launch");
        };
        let mut args = 0x7fe6_7780_0000_u64.to_le_bytes().to_vec();
        args.extend(7_u64.to_le_bytes());
        args.resize(bytes, 0xaa);
        l.args = Some(args);
        let param = |(offset, size): &(u32, u32)| KernelParam {
            offset: *offset,
            size: *size,
        };
        let mut kernel = Kernel::called(At::default(), 0x1000, "_Z4scalPfi6Paramsc");
        kernel.params = (!sizes.is_empty()).then(|| sizes.iter().map(param).collect());
        l.kernel = Some(Arc::new(kernel));
        let written = Written::default();
        let options = TextOptions {
            verbose,
            ..TextOptions::default()
        };
        let mut sink = Text::new(written.output(), options);
        let context = context(7);
        let body = Body::Operation(&operation);
        sink.event(&Event {
            context: &context,
            entry: 0,
            body,
        })
        .unwrap();
        sink.flush().unwrap();
        let text = written.text();
        let (_, args) = text.trim_end().split_once(" args ").unwrap();
        args.split(" qmd").next().unwrap().to_owned()
    };
    let params = [(0, 8), (8, 4), (16, 360), (376, 1)];
    assert_eq!(shown(&params, 377, false), "0x7fe677800000,7,{360 B},-86");
    let verbose = shown(&params, 377, true);
    assert!(
        verbose.starts_with("0x7fe677800000,7,{aaaaaaaa "),
        "{verbose}"
    );
    // Parameters that are not known.
    assert_eq!(shown(&[], 360, false), "{360 B}");
    assert_eq!(shown(&[], 16, false), "0x7fe677800000,0x7");
    let verbose = shown(&[], 360, true);
    assert!(
        verbose.starts_with("0x7fe677800000,0x7,0xaaaaaaaaaaaaaaaa,"),
        "{verbose}"
    );
}

#[test]
fn filters_find_what_is_shown() {
    let passes = |expression: &str, name: &str| {
        let operation = launch_of(name);
        let filter = Filter::parse(expression).unwrap_or_else(|e| panic!("{e}"));
        filter.matches(&Event {
            context: &context(7),
            entry: 0,
            body: Body::Operation(&operation),
        })
    };
    for (expression, fill, half, mean) in [
        ("kernel=reduce<Mean>", false, false, true),
        ("kernel=vectorized_elementwise<Fill>", true, true, false),
        (
            "kernel=vectorized_elementwise<Fill,half>",
            false,
            true,
            false,
        ),
        (
            "kernel!=vectorized_elementwise<Fill,half>",
            true,
            false,
            true,
        ),
        (
            "kernel=reduce<Mean>,vectorized_elementwise<Fill,half>",
            false,
            true,
            true,
        ),
        ("kernel=reduce<Mean> && grid>0", false, false, true),
        ("(kernel=reduce<Mean>)", false, false, true),
        ("kernel~reduce<*>", false, false, true),
        ("kernel=\"reduce<Mean>\"", false, false, true),
        // The other forms are compared as ever.
        ("kernel=at::native::reduce_kernel", false, false, true),
        ("kernel~FillFunctor", true, true, false),
        ("kernel~\"*FillFunctor<float>*\"", true, false, false),
        ("kernel~_ZN2at*", true, true, true),
    ] {
        // Whichever comes first, and has the shortest name.
        for name in [FILL_HALF, FILL, MEAN] {
            passes("kernel~x", name);
        }
        let found = [FILL, FILL_HALF, MEAN].map(|name| passes(expression, name));
        assert_eq!(found, [fill, half, mean], "{expression}");
    }
    for expression in [
        "kernel=reduce<Mean",
        "kernel=<Mean>",
        "kernel=a>b",
        "grid=1<2>",
    ] {
        assert!(Filter::parse(expression).is_err(), "{expression}");
    }
}
