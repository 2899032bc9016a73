//! Functions with names, kept in memory as libcuda keeps them: a cubin image, and a record of each function that holds its
//! program's address and a pointer to its name. The distances in a record are not those of any release of the driver: a tracer
//! must learn them.

/// How many functions there are.
pub const COUNT: u64 = 12;
/// Program of the first.
const PROGRAM: u64 = 0x7f4f_4f7a_0000;
/// Bytes between programs.
const STRIDE: u64 = 0x1000;
/// Bytes of a record.
const RECORD: usize = 0x600;
/// Offsets in a record: the program's address, the pointer to the name, the registers, the link to the next record.
const ADDRESS_AT: usize = 0x220;
const NAME_AT: usize = 0x2a0;
const REGISTERS_AT: usize = 0x1f4;
const NEXT_AT: usize = 0x240;

/// The mangled name of a function: `void kernel<N>(float*)`.
#[must_use]
pub fn name(number: u64) -> String {
    format!("_Z6kernelILi{number}EEvPf")
}

/// Its program's address.
#[must_use]
pub fn program(number: u64) -> u64 {
    PROGRAM + STRIDE * number
}

/// Registers of its threads.
#[must_use]
pub fn registers(number: u64) -> u32 {
    16 + 8 * (number % 5) as u32
}

/// Puts the image and the records into memory that stays.
pub fn keep() {
    let (image, names) = image();
    let image: &'static [u8] = image.leak();
    let mut records = vec![0u8; RECORD * COUNT as usize];
    let base = records.as_ptr() as u64;
    for (number, name) in names.iter().enumerate() {
        let record = RECORD * number;
        let mut put = |at: usize, word: u64| {
            records[record + at..record + at + 8].copy_from_slice(&word.to_le_bytes());
        };
        put(ADDRESS_AT, program(number as u64));
        put(NAME_AT, image.as_ptr() as u64 + *name as u64);
        put(REGISTERS_AT, u64::from(registers(number as u64)));
        put(
            NEXT_AT,
            base + (RECORD * ((number + 1) % COUNT as usize)) as u64,
        );
    }
    records.leak();
}

/// A CUDA ELF image with the functions, and the offsets of their names.
fn image() -> (Vec<u8>, Vec<usize>) {
    let mut names = vec![0u8];
    let mut add = |name: &str| {
        let at = names.len();
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        at
    };
    // Name, kind, contents, information.
    let mut sections: Vec<(usize, u32, Vec<u8>, u32)> = vec![(0, 0, Vec::new(), 0)];
    let mut offsets = Vec::new();
    for number in 0..COUNT {
        let at = add(&format!(".text.{}", name(number)));
        offsets.push(at + ".text.".len());
        let code = (0..256u64)
            .flat_map(|i| (number << 32 | i).to_le_bytes())
            .collect();
        sections.push((at, 1, code, registers(number) << 24 | number as u32));
    }
    let own = add(".shstrtab");
    sections.push((own, 3, names, 0));
    let mut bytes = vec![0u8; 64];
    // ELF, 64 bits, little-endian, version 1, the OS ABI of CUDA; executable; EM_CUDA; sm_90.
    bytes[..9].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0x33, 7]);
    (bytes[16], bytes[18], bytes[20], bytes[48], bytes[52]) = (2, 190, 1, 90, 64);
    let (mut table, mut strings) = (Vec::new(), 0);
    for (name, kind, contents, information) in &sections {
        let at = bytes.len();
        if *kind == 3 {
            strings = at;
        }
        bytes.extend_from_slice(contents);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        table.extend((*name as u32).to_le_bytes());
        table.extend(kind.to_le_bytes());
        table.extend([0; 16]);
        table.extend((at as u64).to_le_bytes());
        table.extend((contents.len() as u64).to_le_bytes());
        table.extend([0; 4]);
        table.extend(information.to_le_bytes());
        table.extend([0; 16]);
    }
    let table_at = bytes.len() as u64;
    bytes[40..48].copy_from_slice(&table_at.to_le_bytes());
    bytes[58] = 64;
    bytes[60] = sections.len() as u8;
    bytes[62] = sections.len() as u8 - 1;
    bytes.extend(table);
    (bytes, offsets.iter().map(|at| strings + at).collect())
}
