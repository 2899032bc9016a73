//! Random numbers from a seed: simple, the same on every machine, and independent of any crate's version.

/// A splitmix64 sequence.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A sequence that depends on every one of `parts`.
    pub fn new(parts: &[u64]) -> Self {
        let mut rng = Rng(0x6e76_6361_7000_0001);
        for &part in parts {
            rng.0 = rng.next() ^ part;
        }
        rng
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait)] // it never ends, so it is no iterator
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n` (0 for `n` = 0). The slight bias of a remainder does no harm here.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `choices`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}
