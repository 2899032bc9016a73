//! Images of graphs in memory, made by the encoder.

use super::*;
use nvcap_decode::decode::encode::{Pushbuffer, Qmd};
use nvcap_decode::decode::event::ConstantBank;
use nvcap_decode::decode::view::{Dependent, DependentAction};
use nvcap_decode::wire::GpuVa;

const HOPPER: u32 = 0xcbc0;
const HEAP: u64 = 0x5596_4328_0000;
const GPU: u64 = 0x2_04c0_0000;

struct Bytes(u64, Vec<u8>);

impl ReadMemory for Bytes {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let from = at.checked_sub(self.0).ok_or(io::ErrorKind::NotFound)? as usize;
        let bytes = self.1.get(from..from + to.len());
        to.copy_from_slice(bytes.ok_or(io::ErrorKind::NotFound)?);
        Ok(())
    }
}

fn search_bytes(bytes: Vec<u8>) -> QmdSearchResult {
    let part = Part {
        start: HEAP,
        end: HEAP + bytes.len() as u64,
        heap: true,
    };
    search_in(&Bytes(HEAP, bytes), &[part], HOPPER, At::default())
}

/// Node `i` of a chain of `of` kernels; 0 is the empty grid that begins it.
fn node(i: u64, of: u64) -> Vec<u8> {
    let action = match i {
        0 => DependentAction::DecrementDependence,
        _ => DependentAction::Schedule,
    };
    let address = GPU + (i + 1) * 0x200;
    let dependents = if i < of {
        vec![Dependent {
            address: GpuVa(address),
            action,
        }]
    } else {
        Vec::new()
    };
    let kernel = i > 0;
    let view = View {
        version: (4, 0),
        grid: if kernel { [i as u32, 1, 1] } else { [0; 3] },
        block: if kernel { [64, 1, 1] } else { [1; 3] },
        shared_bytes: 1024 * u32::from(kernel),
        program: if kernel {
            GpuVa(0x7f45_c77a_0000)
        } else {
            GpuVa(0)
        },
        dependents,
        dependence: if i == 1 { 2 } else { 0 },
        requires_pcas: kernel,
        ..View::default()
    };
    Qmd::of(&view).expect("a layout").bytes().to_vec()
}

/// Images one after another, as libcuda keeps them.
fn heap_of(nodes: &[Vec<u8>]) -> Vec<u8> {
    let mut heap = vec![0x11; 100];
    for node in nodes {
        heap.extend(node);
        heap.resize(heap.len() + 932 - node.len(), 0);
    }
    heap
}

fn addresses(found: &QmdSearchResult) -> Vec<u64> {
    found.copies.iter().map(|i| i.address.0).collect()
}

#[test]
fn copies_without_commands_are_named_by_their_neighbours() {
    let nodes: Vec<_> = (0..=8).map(|i| node(i, 8)).collect();
    let found = search_bytes(heap_of(&nodes));
    // Including the first, which no other copy names.
    let expected: Vec<u64> = (0..=8).map(|i| GPU + i * 0x200).collect();
    assert_eq!(addresses(&found), expected);
    for (copy, node) in found.copies.iter().zip(&nodes) {
        assert_eq!(&copy.bytes, node);
    }
    assert_eq!((found.unnamed, found.contradicted), (0, 0));
    // A single copy names no other, and none names it.
    let found = search_bytes(heap_of(&nodes[3..4]));
    assert_eq!((addresses(&found), found.unnamed), (vec![], 1));
}

#[test]
fn pieces_are_searched_to_their_ends_and_not_twice() {
    let nodes: Vec<_> = (0..=8).map(|i| node(i, 8)).collect();
    let expected: Vec<u64> = (0..=8).map(|i| GPU + i * 0x200).collect();
    let copies = heap_of(&nodes);
    // Across the border of what is read at once.
    for before in [1000, 16, copies.len()] {
        let mut memory = vec![0; CHUNK - before];
        memory.extend(&copies);
        memory.resize(3 * CHUNK, 0);
        let found = search_bytes(memory);
        assert_eq!(
            addresses(&found),
            expected,
            "{before} bytes before the border"
        );
        assert_eq!((found.unnamed, found.contradicted), (0, 0));
    }
    // What follows cannot be read, and is not what was read before.
    let mut memory = copies.clone();
    memory.resize(CHUNK, 0);
    let part = Part {
        start: HEAP,
        end: HEAP + 3 * CHUNK as u64,
        heap: true,
    };
    let found = search_in(&Bytes(HEAP, memory), &[part], HOPPER, At::default());
    assert_eq!(addresses(&found), expected);
    assert_eq!((found.unnamed, found.contradicted), (0, 0));
}

fn commands(writes: &[(u64, &[u8])]) -> Vec<u8> {
    let mut p = Pushbuffer::new();
    for (address, bytes) in writes {
        p.inline(1, HOPPER, GpuVa(*address), bytes)
            .expect("takes inline data");
    }
    p.bytes()
}

#[test]
fn of_several_uploads_the_one_that_equals_a_copy_counts() {
    let (old, new) = (node(4, 8), node(5, 8));
    let at = GPU + 0x800;
    let twice = commands(&[(at, &old), (at, &new)]);
    // Nothing decides between them.
    let found = search_bytes(twice.clone());
    assert_eq!((addresses(&found), found.contradicted), (vec![], 1));
    // The copy decides.
    let mut memory = twice;
    memory.extend(heap_of(std::slice::from_ref(&new)));
    let found = search_bytes(memory);
    assert_eq!(addresses(&found), [at]);
    assert_eq!(found.copies[0].bytes, new);
    // A single upload is trusted.
    let found = search_bytes(commands(&[(at, &old)]));
    assert_eq!(addresses(&found), [at]);
}

#[test]
fn arguments_are_taken_where_nothing_contradicts_them() {
    let mut view = View::of(HOPPER, &node(3, 8)).expect("a QMD");
    view.constant_banks = vec![ConstantBank {
        index: 0,
        address: GpuVa(0x7f45_c610_0000),
        size: 0x1000,
    }];
    let node = Qmd::of(&view).expect("a layout").bytes().to_vec();
    let args_at = 0x7f45_c610_0000 + nvcap_decode::decode::arguments_at(HOPPER);
    let args = [7u8; 24];
    let found = search_bytes(commands(&[(GPU, &node), (args_at, &args)]));
    assert_eq!(addresses(&found), [GPU, args_at]);
    assert_eq!(found.copies[1].bytes, args);
    let other = [8u8; 24];
    let both = commands(&[(GPU, &node), (args_at, &args), (args_at, &other)]);
    assert_eq!(addresses(&search_bytes(both)), [GPU]);
}

#[test]
fn memory_without_qmds_gives_no_copies() {
    for bytes in [vec![], vec![0; 70_000], vec![0x40; 70_000], vec![0xff; 383]] {
        let found = search_bytes(bytes);
        assert!(found.copies.is_empty());
    }
}

/// All QMDs name one program under a profiler. The driver's part of the constants, written before the arguments, names the kernel's own.
#[test]
fn the_drivers_part_is_taken_where_it_names_another_program() {
    const BANK: u64 = 0x7f45_c610_0000;
    let arguments = BANK + arguments_at(HOPPER);
    let mut view = View::of(HOPPER, &node(4, 8)).expect("a QMD");
    view.constant_banks = vec![ConstantBank {
        index: 0,
        address: GpuVa(BANK),
        size: 768,
    }];
    let qmd = Qmd::of(&view).expect("a layout").bytes().to_vec();
    let copies = |own: u64| {
        let mut part = vec![0; 0x210];
        part[0x118..0x120].copy_from_slice(&own.to_le_bytes());
        let writes: [(u64, &[u8]); 3] = [(BANK, &part), (arguments, &[7; 24]), (GPU, &qmd)];
        let found = search_bytes(commands(&writes));
        let taken = found
            .copies
            .into_iter()
            .map(|c| (c.address.0, c.bytes.len()));
        taken.collect::<Vec<_>>()
    };
    let qmd_and_arguments = [(GPU, 384), (arguments, 24)];
    assert_eq!(copies(view.program.0), qmd_and_arguments);
    let with_part = [(GPU, 384), (BANK, 0x210), (arguments, 24)];
    assert_eq!(copies(view.program.0 + 0x1000), with_part);
}
