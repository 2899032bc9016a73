//! Comparison of code that was seen elsewhere (at its upload, in another image) with a function's code.
//!
//! The loader changes code where it has relocations: addresses of variables and of other functions. Instructions with
//! relocations are therefore left out of the comparison.

/// Length of an instruction since sm_70. On older architectures these bytes hold two instructions, or one and the control word of its
/// group.
const INSTRUCTION: usize = 16;

/// Degree to which two pieces of code agree, in instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Likeness {
    /// Instructions that are the same.
    pub equal: usize,
    /// Instructions that differ.
    pub different: usize,
    /// Instructions that the loader changes: not compared.
    pub masked: usize,
}

impl Likeness {
    /// Tells whether something was compared and no compared instruction differs.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.equal > 0 && self.different == 0
    }

    /// Returns the fraction of the compared instructions that are the same; 0 if none was compared.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        match self.equal + self.different {
            0 => 0.0,
            all => self.equal as f64 / all as f64,
        }
    }
}

/// Compares `other` with a function's code, up to the end of the shorter one. `relocations` are offsets within the code, in ascending
/// order.
#[must_use]
pub fn compare(code: &[u8], relocations: &[u64], other: &[u8]) -> Likeness {
    let mut likeness = Likeness::default();
    let mut relocations = relocations.iter().peekable();
    let pairs = code.chunks(INSTRUCTION).zip(other.chunks(INSTRUCTION));
    for ((own, other), at) in pairs.zip((0u64..).step_by(INSTRUCTION)) {
        let mut masked = false;
        while relocations
            .next_if(|r| **r < at + INSTRUCTION as u64)
            .is_some()
        {
            masked = true;
        }
        if masked {
            likeness.masked += 1;
        } else if own == other {
            likeness.equal += 1;
        } else {
            likeness.different += 1;
        }
    }
    likeness
}

/// Tells whether `other` is the function's code, except for the loader's changes. Zeros may follow it: libcuda uploads 128 bytes of them
/// behind each function.
#[must_use]
pub fn masked_equal(code: &[u8], relocations: &[u64], other: &[u8]) -> bool {
    let Some((own, behind)) = other.split_at_checked(code.len()) else {
        return false;
    };
    behind.iter().all(|b| *b == 0) && compare(code, relocations, own).is_equal()
}

/// Returns code that was seen at its upload without the zeros behind it. Only whole instructions are cut off.
#[must_use]
pub fn without_zeros(code: &[u8]) -> &[u8] {
    let last = code.iter().rposition(|b| *b != 0);
    let end = last.map_or(0, |last| (last + 1).next_multiple_of(INSTRUCTION));
    code.get(..end).unwrap_or(code)
}
