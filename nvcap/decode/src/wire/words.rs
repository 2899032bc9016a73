//! Little-endian words of a slice of bytes. Trailing bytes that do not fill a word are left out.

/// Returns the 16-bit word at a byte offset; `None` if the bytes end before it does.
#[inline]
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let word = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_le_bytes(*word))
}

/// Returns the 32-bit word at a byte offset; `None` if the bytes end before it does.
#[inline]
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*word))
}

/// Returns the 64-bit word at a byte offset; `None` if the bytes end before it does.
#[inline]
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*word))
}

/// Returns the 32-bit words, in order.
#[inline]
pub fn u32s(bytes: &[u8]) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator + '_ {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|w| u32::from_le_bytes(*w))
}

/// Returns the 64-bit words, in order.
#[inline]
pub fn u64s(bytes: &[u8]) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + '_ {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|w| u64::from_le_bytes(*w))
}

/// Returns the bytes of words.
pub fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_bytes() {
        let bytes: Vec<u8> = (1..=11).collect();
        assert_eq!(u32_at(&bytes, 0), Some(0x0403_0201));
        assert_eq!(u32_at(&bytes, 7), Some(0x0b0a_0908));
        assert_eq!(u32_at(&bytes, 8), None);
        assert_eq!(u32_at(&bytes, usize::MAX), None);
        assert_eq!(u64_at(&bytes, 3), Some(0x0b0a_0908_0706_0504));
        assert_eq!(u64_at(&bytes, 4), None);
        assert_eq!(u32s(&bytes).collect::<Vec<_>>(), [0x0403_0201, 0x0807_0605]);
        assert_eq!(u64s(&bytes).collect::<Vec<_>>(), [0x0807_0605_0403_0201]);
        assert_eq!(bytes_of(&[0x0403_0201]), [1, 2, 3, 4]);
    }
}
