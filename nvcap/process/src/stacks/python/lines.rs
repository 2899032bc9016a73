//! Line numbers of instructions, by CPython's two kinds of tables.

/// Returns the line of a position in the code, by the table of 3.10 (Objects/lnotab_notes.txt of CPython 3.10). The table has pairs of
/// bytes: the number of bytes of code in a range, and the difference between its line and the previous line; -128 for a range without a
/// line.
pub(super) fn pairs(table: &[u8], first: u32, position: u64) -> Option<u32> {
    let (mut end, mut line) = (0_u64, i64::from(first));
    for pair in table.chunks_exact(2) {
        let &[code, delta] = pair else { break };
        end += u64::from(code);
        let has_line = delta as i8 != -128;
        if has_line {
            line += i64::from(delta as i8);
        }
        if position < end {
            return u32::try_from(line).ok().filter(|_| has_line);
        }
    }
    None
}

/// Returns the line of a position in the code, by the table of 3.11 and later (Objects/locations.md of CPython 3.11; PEP 657): entries of a
/// variable size, each for one to eight instructions of 2 bytes.
pub(super) fn locations(table: &[u8], first: u32, position: u64) -> Option<u32> {
    let (mut end, mut line) = (0_u64, i64::from(first));
    let mut rest = table.iter().copied().peekable();
    while let Some(head) = rest.next() {
        // The first byte of an entry has the highest bit set, and no other byte has.
        if head & 0x80 == 0 {
            return None;
        }
        end += 2 * (u64::from(head & 7) + 1);
        let kind = (head >> 3) & 15;
        match kind {
            // Columns only.
            0..=9 => {}
            10..=12 => line += i64::from(kind) - 10,
            // The form without columns, and the long form.
            13 | 14 => line = line.checked_add(signed(&mut rest)?)?,
            // No line.
            _ => {}
        }
        if position < end {
            return u32::try_from(line).ok().filter(|_| kind != 15);
        }
        while rest.next_if(|byte| byte & 0x80 == 0).is_some() {}
    }
    None
}

/// Reads a number in groups of 6 bits, the lowest first. Bit 6 of a group means that another follows; the number's lowest bit is its sign.
fn signed(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let mut value = 0_u64;
    for shift in (0..60).step_by(6) {
        let byte = bytes.next()?;
        value |= u64::from(byte & 0x3f) << shift;
        if byte & 0x40 == 0 {
            let size = (value >> 1) as i64;
            return Some(if value & 1 == 1 { -size } else { size });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test of `dis.findlinestarts` of a function `def f():\n    a = 1\n\n    return a` at line 7 in CPython 3.10: 8 bytes of code.
    #[test]
    fn pairs_of_3_10() {
        let table = [4, 1, 4, 2];
        let line = |at| pairs(&table, 7, at);
        assert_eq!(
            (line(0), line(2), line(4), line(6)),
            (Some(8), Some(8), Some(10), Some(10))
        );
        assert_eq!(line(8), None);
        // A range without a line, and a line that goes back.
        let table = [2, 5, 2, 0x80, 2, 0xfe];
        let line = |at| pairs(&table, 1, at);
        assert_eq!((line(0), line(2), line(4)), (Some(6), None, Some(4)));
        assert_eq!(pairs(&[2], 1, 0), None, "cut");
    }

    #[test]
    fn locations_of_3_11() {
        // One instruction on the same line; two, one line later; one, 100 lines later; one, 1 line before; one without a line.
        let table = [
            0x80,
            0x12, // short: columns
            0x80 | 11 << 3 | 1,
            4,
            9,
            0x80 | 13 << 3,
            0x40 | 8,
            3, // 200 = 8 + 3 * 64: +100
            0x80 | 14 << 3,
            3,
            0,
            1,
            1, // -1
            0x80 | 15 << 3,
        ];
        let line = |at| locations(&table, 10, at);
        assert_eq!((line(0), line(2), line(4)), (Some(10), Some(11), Some(11)));
        assert_eq!((line(6), line(8), line(10)), (Some(111), Some(110), None));
        assert_eq!(line(12), None, "behind the end");
    }

    #[test]
    fn bytes_that_are_no_table() {
        assert_eq!(locations(&[0x12, 0x34], 1, 0), None);
        assert_eq!(locations(&[0x80 | 13 << 3, 0x7f], 1, 0), None);
        assert_eq!(
            locations(&[0x80 | 13 << 3, 3], 0, 0),
            None,
            "a line below 0"
        );
        for a in 0..=255 {
            for b in 0..=255 {
                let _ = (
                    locations(&[a, b, 0x7f, 0x7f], u32::MAX, 99),
                    pairs(&[a, b], 0, 9),
                );
            }
        }
    }
}
