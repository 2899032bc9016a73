//! `nvcap code`, run as a user runs it: on an image, a capture, and a process that holds an image.
#![cfg(feature = "xz")]

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;

use crate::common::cli::{Folder, argument, nvcap_with, text};
use crate::common::files::capture;
use serde_json::{Value, json};

/// The image of tests/gpu/meaning/cuda.cu, as an argument and as bytes.
fn graphs() -> (String, Vec<u8>) {
    let path = capture("h200-graphs.cubin.xz").expect("with xz");
    let mut bytes = Vec::new();
    let mut file = nvcap_recording::file::packed::open(&path).expect("it opens");
    file.read_to_end(&mut bytes).expect("it can be read");
    (argument(path), bytes)
}

/// Runs it with only these folders on PATH: standard output, standard error, status.
fn code(path: &str, args: &[&str]) -> (String, String, i32) {
    let args: Vec<&str> = ["code"].iter().chain(args).copied().collect();
    let out = nvcap_with(&[("PATH", path)], &args);
    (
        text(&out.stdout),
        text(&out.stderr),
        out.status.code().unwrap(),
    )
}

#[test]
fn names_that_fit() {
    let (file, _) = graphs();
    let (shown, said, status) = code("", &["with_*", &file]);
    assert_eq!((said.as_str(), status), ("", 0));
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(
        lines,
        [
            "             IMAGE      SM    BYTES REGS  KERNEL",
            "               0x0   sm_90      896   12  with_both(float*, int)",
            "               0x0   sm_90      768   12  with_dynamic(float*, int)",
            "               0x0   sm_90      512   10  with_static(float*, float)",
        ]
    );
    let (shown, _, _) = code("", &["*cluster*", &file, "--json"]);
    let all: Value = serde_json::from_str(&shown).unwrap();
    let first = json!({
        "kernel": "free_cluster(float*)", "kernel_mangled": "_Z12free_clusterPf",
        "image": 0, "sm": 90, "target": "sm_90", "bytes": 640, "registers": 8,
    });
    assert_eq!((all.as_array().unwrap().len(), &all[0]), (2, &first));
}

/// A toolkit in its usual place would disassemble.
#[test]
#[ignore = "needs a machine without a CUDA toolkit: cargo xtask test runs it there"]
fn words_and_control_bits() {
    if fs::exists("/usr/local/cuda/bin/nvdisasm").unwrap_or(false) {
        println!("NOT RUN words_and_control_bits: /usr/local/cuda/bin has an nvdisasm");
        return;
    }
    let (file, _) = graphs();
    for name in ["add", "_Z3addPfif", "add(float*, int, float)"] {
        let (shown, said, status) = code("", &[name, &file]);
        assert_eq!(status, 0, "{said}");
        assert!(said.contains("there is no nvdisasm on PATH"), "{said}");
        let lines: Vec<&str> = shown.lines().take(8).collect();
        assert_eq!(
            lines,
            [
                "add(float*, int, float)",
                "  _Z3addPfif",
                "  sm_90, 512 bytes, 8 registers, at 0x3e00 of the image at 0x0",
                "  parameter 0: c[0x0][0x210], 8 bytes float*",
                "  parameter 1: c[0x0][0x218], 4 bytes int",
                "  parameter 2: c[0x0][0x21c], 4 bytes float",
                "  /*0000*/  [B------:R-:W-:-:S01]  0x00000a00ff017b82 0x000fe20000000800",
                "  /*0010*/  [B------:R-:W0:-:S07]  0x0000000000007919 0x000e2e0000002100",
            ]
        );
        assert_eq!(shown.lines().count(), 6 + 32);
    }
    let (shown, _, _) = code("", &["add", &file, "--json"]);
    let object: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(object["kernel_mangled"], "_Z3addPfif");
    assert_eq!(
        object["params"][1],
        json!({"ordinal": 1, "offset": 8, "size": 4})
    );
    let expected = json!({
        "offset": 0x40,
        "words": "0x0000000405057c24 0x001fe2000f8e0200",
        "control": {
            "stall": 1, "yield": false, "write_barrier": null, "read_barrier": null, "wait": [0], "reuse": 0,
        },
    });
    assert_eq!(object["instructions"][4], expected);
}

/// A program in nvdisasm's place: it is given the image and the function's symbol, and its words stand behind the control bits.
#[test]
fn nvdisasm_is_asked() {
    let (file, _) = graphs();
    let folder = Folder::new("code-nvdisasm");
    let program = folder.path("nvdisasm");
    let script = r#"#!/bin/sh
[ "$1 $2 $3" = "-c -fun 33" ] || { echo "nvdisasm fatal : options $*" >&2; exit 1; }
[ "$(head -c 4 "$4" | tail -c 3)" = ELF ] || { echo "nvdisasm fatal : no ELF" >&2; exit 1; }
printf '\t.section\t.text._Z5firstPf,"ax",@progbits\n        /*0000*/   NOP ;\n'
printf '\t.section\t.text._Z3addPfif,"ax",@progbits\n.text._Z3addPfif:\n'
printf '        /*0000*/                   LDC R1, c[0x0][0x28] ;\n.L_x_0:\n'
printf '        /*0010*/               @P0 EXIT ;  /* 0x000000000000094d */\n'
"#;
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", folder.0.display());
    let (shown, said, status) = code(&path, &["add", &file]);
    assert_eq!((said.as_str(), status), ("", 0));
    let lines: Vec<&str> = shown.lines().skip(6).take(4).collect();
    assert_eq!(
        lines,
        [
            "  /*0000*/  [B------:R-:W-:-:S01]  LDC R1, c[0x0][0x28] ;",
            ".L_x_0:",
            "  /*0010*/  [B------:R-:W0:-:S07]  @P0 EXIT ;",
            "  /*0020*/  [B------:R-:W0:-:S08]  0x00000000000479c3 0x000e300000002500",
        ]
    );
    // Of another function it fails; the words are shown, and why.
    let (shown, said, status) = code(&path, &["first", &file]);
    assert_eq!((shown.lines().count(), status), (4 + 24, 0));
    assert!(
        said.contains("failed (nvdisasm fatal : options -b SM90 "),
        "{said}"
    );
}

#[test]
fn bytes_into_a_file() {
    let (file, bytes) = graphs();
    let folder = Folder::new("code-bytes");
    let to = folder.path("add.bin");
    assert_eq!(
        code("", &["add", &file, "-o", &to]),
        (String::new(), String::new(), 0)
    );
    assert_eq!(fs::read(&to).unwrap(), bytes[0x3e00..0x4000]);
    assert_eq!(
        fs::metadata(&to).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(
        code("", &["add", &file, "-o", &to, "--image", "--force"]).2,
        0
    );
    assert_eq!(fs::read(&to).unwrap(), bytes);
    let (_, said, status) = code("", &["with*", &file, "-o", &to, "--force"]);
    assert!(
        status == 1 && said.contains("3 kernels are named so; -o takes one"),
        "{said}"
    );
    assert_eq!(fs::read(&to).unwrap(), bytes, "it stays as it was");
}

/// This process holds images on its heap: one is read out of it again.
#[test]
#[ignore = "needs the right to read another process's memory: cargo xtask test runs it as root"]
fn of_a_process() {
    // SAFETY: reads an id.
    if unsafe { libc::geteuid() } != 0 {
        println!("NOT RUN of_a_process: reading another process's memory needs root");
        return;
    }
    let (_, bytes) = graphs();
    let mut held = bytes.repeat(2);
    let other = bytes.len() + 0x3e00;
    held[other] ^= 1;
    let pid = std::process::id().to_string();
    let at = format!("{:#x}", held.as_ptr() as u64);
    let folder = Folder::new("code-process");
    let to = folder.path("add.bin");
    let (_, said, status) = code("", &["add", "-p", &pid, "--at", &at, "-o", &to]);
    assert_eq!((said.as_str(), status), ("", 0));
    assert_eq!(fs::read(&to).unwrap(), bytes[0x3e00..0x4000]);
    // Without its address: images differ, which is said.
    let (_, said, status) = code("", &["add", "-p", &pid, "-o", &to, "--force"]);
    assert_eq!(status, 0);
    assert!(said.contains("different code of this name"), "{said}");
    let (_, said, status) = code("", &["0x7f0000000000", "-p", &pid]);
    assert!(
        status == 1 && said.contains("lists all kernels by name"),
        "{said}"
    );
    // A record as libcuda has them: a program's address, and at some distance a pointer to the function's name.
    let name = b"_Z3addPfif\0";
    let name = bytes.windows(name.len()).position(|w| w == name).unwrap();
    let mut record = vec![0u8; 4096];
    let pointer = held.as_ptr() as u64 + name as u64;
    record[1696..1704].copy_from_slice(&pointer.to_le_bytes());
    // Byte by byte, so that the address is nowhere else, not on the stack either: two distances would contradict each other.
    for (byte, other) in record[1600..]
        .iter_mut()
        .zip((!0x7f00_1234_5600u64).to_le_bytes())
    {
        *byte = !std::hint::black_box(other);
    }
    std::hint::black_box(&record);
    let (shown, said, status) = code("", &["0x7f0012345600", "-p", &pid, "--json"]);
    assert_eq!(status, 0, "{said}");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (&shown["kernel_mangled"], &shown["program"], &shown["image"]),
        (
            &"_Z3addPfif".into(),
            &0x7f00_1234_5600u64.into(),
            &(held.as_ptr() as u64).into()
        )
    );
    // Of one program alone, whose launch is not known.
    assert!(
        shown["kernel_certain"] == false && said.contains("is probably add(float*, int, float)"),
        "{said}"
    );
    std::hint::black_box(&record);
    assert!(held[other] != bytes[0x3e00], "it is held until here");
}

#[test]
fn of_a_capture() {
    let run = argument(capture("h200-graphs.orc.xz").expect("with xz"));
    let (_, bytes) = graphs();
    let folder = Folder::new("code-capture");
    let to = folder.path("add.bin");
    assert_eq!(code("", &["0x7fc0cb7a0000", &run, "-o", &to]).2, 0);
    assert_eq!(fs::read(&to).unwrap(), bytes[0x3e00..0x4000]);
    let (shown, said, status) = code("", &["0x7fc0cb7a0000", &run]);
    assert_eq!(status, 0);
    assert!(said.contains("--sm NUMBER"), "{said}");
    assert!(shown.starts_with(
        "512 bytes seen at 0x7fc0cb7a0000\n  /*0000*/  [B------:R-:W-:-:S01]  0x00000a00ff017b82"
    ));
    let (_, said, status) = code("", &["0x1000", &run]);
    assert!(
        status == 1 && said.contains("has no launch of 0x1000"),
        "{said}"
    );
    let (_, said, status) = code("", &["add", &run]);
    assert!(
        status == 1 && said.contains("is a capture, which has no names"),
        "{said}"
    );
}

/// A program with code for two architectures, compressed in two ways.
#[cfg(feature = "zstd")]
#[test]
fn of_fat_binaries() {
    use crate::common::fat::{ELF, How, PTX, entry, fat, program};
    let (_, bytes) = graphs();
    // The flags have the architecture in their second byte.
    assert_eq!((bytes[7], bytes[49]), (0x41, 90));
    let mut older = bytes.clone();
    older[49] = 80;
    older[0x3e00] ^= 1;
    let entries = [
        entry(PTX, 80, How::Lz4, b".version 8.0"),
        entry(ELF, 80, How::Zstd, &older),
        entry(ELF, 90, How::Lz4, &bytes),
        entry(ELF, 120, How::Lz4, b"no image at all"),
    ];
    let folder = Folder::new("code-fat");
    let (app, to) = (folder.path("app"), folder.path("to"));
    fs::write(&app, program(&fat(&entries))).unwrap();
    let unpacked = "1 compressed image cannot be unpacked: its bytes are damaged";
    let (shown, said, status) = code("", &["add", &app]);
    assert_eq!(status, 0, "{said}");
    let both = "_Z3addPfif is there for sm_80, sm_90";
    assert!(said.contains(unpacked), "{said}");
    assert!(
        said.contains(&format!("{both}: --sm NUMBER shows")),
        "{said}"
    );
    let architectures: Vec<_> = shown.lines().skip(1).map(|l| &l[19..26]).collect();
    assert_eq!(architectures, ["  sm_80", "  sm_90"], "{shown}");
    let (_, said, status) = code("", &["add", &app, "-o", &to]);
    assert!(status == 1 && said.contains(&format!("{both}; -o takes one: --sm NUMBER")));
    for (sm, image) in [("80", &older), ("90", &bytes)] {
        let (_, said, status) = code("", &["add", &app, "--sm", sm, "--force", "-o", &to]);
        assert_eq!((said.as_str(), status), ("", 0));
        assert_eq!(fs::read(&to).unwrap(), image[0x3e00..0x4000]);
        assert_eq!(
            code(
                "",
                &["add", &app, "--sm", sm, "--force", "-o", &to, "--image"]
            )
            .2,
            0
        );
        assert!(fs::read(&to).unwrap() == *image);
    }
    let (shown, _, _) = code("", &["add", &app, "--sm", "80", "--json"]);
    let object: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (&object["sm"], &object["offset"]),
        (&json!(80), &json!(0x3e00))
    );
    let image = object["image"].as_u64().expect("an offset of the file");
    let at = format!("{image:#x}");
    assert_eq!(
        code("", &["add", &app, "--at", &at, "--force", "-o", &to]).2,
        0
    );
    assert_eq!(fs::read(&to).unwrap(), older[0x3e00..0x4000]);
    let (_, said, status) = code("", &["add", &app, "--sm", "75"]);
    let others = "no image of CUDA code for sm_75; it has some for sm_80, sm_90, sm_120";
    assert!(status == 1 && said.contains(others), "{said}");
    fs::write(&app, fat(&entries[..1])).unwrap();
    let (_, said, status) = code("", &["add", &app]);
    assert!(
        status == 1 && said.contains("but PTX, which the driver compiles"),
        "{said}"
    );
}

#[test]
fn what_is_not_there() {
    let (file, _) = graphs();
    for (args, status, words) in [
        (
            &["nothing", &file][..],
            1,
            "is named nothing (11 functions in 1 image); '*' lists all",
        ),
        (
            &["cluster", &file],
            1,
            "with that in their names: free_cluster, fixed_cluster",
        ),
        (
            &["add", &file, "--at", "0x40"],
            1,
            "has no image of CUDA code at 0x40",
        ),
        (&["add", "/proc/version"], 1, "has no image of CUDA code"),
        (&["add", "/no/such/file"], 1, "cannot read /no/such/file"),
        (
            &["add", "-p", "4194304"],
            1,
            "process 4194304: there is no such process",
        ),
        (&["add"], 2, "nvcap code add -p PID, or nvcap code add FILE"),
        (&["add", &file, "-p", "1"], 2, "cannot be used with"),
    ] {
        let (_, said, is) = code("", args);
        assert!(
            is == status && said.contains(words),
            "{args:?}: {is} {said}"
        );
    }
}
