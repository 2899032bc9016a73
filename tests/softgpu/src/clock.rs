//! The clocks: CLOCK_MONOTONIC, as nvcap's times are, and the software GPU's own, which is apart from it and drifts.

/// CLOCK_MONOTONIC, ns.
pub fn monotonic() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME, ns.
pub fn realtime() -> u64 {
    read(libc::CLOCK_REALTIME)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the structure only; both clocks always exist.
    unsafe { libc::clock_gettime(clock, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The software GPU's clock: so far from CLOCK_MONOTONIC at `base`, and faster by `drift`.
#[derive(Clone, Copy, Debug)]
pub struct GpuClock {
    /// CLOCK_MONOTONIC, ns, at which the distance was `offset`.
    pub base: u64,
    /// The GPU's clock less CLOCK_MONOTONIC, ns.
    pub offset: i64,
    /// Parts per million.
    pub drift: f64,
}

impl GpuClock {
    /// The GPU's time at a time of CLOCK_MONOTONIC.
    pub fn gpu(&self, monotonic: u64) -> u64 {
        let passed = monotonic as i64 - self.base as i64;
        let drifted = (passed as f64 * self.drift * 1e-6).round() as i64;
        (monotonic as i64 + self.offset + drifted) as u64
    }

    /// The time of CLOCK_MONOTONIC at a time of the GPU's.
    pub fn host(&self, gpu: u64) -> u64 {
        let passed = gpu as i64 - self.offset - self.base as i64;
        let rate = 1.0 + self.drift * 1e-6;
        let drifted = (passed as f64 * (1.0 - 1.0 / rate)).round() as i64;
        (self.base as i64 + passed - drifted) as u64
    }

    /// Now.
    pub fn now(&self) -> u64 {
        self.gpu(monotonic())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for drift in [0.0, 20.0, -150.0] {
            for offset in [0, 1_790_000_000_000_000_000, -5_000_000] {
                let base = 77_000_000_000;
                let clock = GpuClock {
                    base,
                    offset,
                    drift,
                };
                assert_eq!(clock.gpu(base) as i64, base as i64 + offset);
                for after in [0, 1, 999, 1_000_000_007, 100_000_000_003] {
                    let gpu = clock.gpu(base + after);
                    assert!(clock.host(gpu).abs_diff(base + after) <= 1, "{after}");
                }
                let second = clock.gpu(base + 1_000_000_000) - clock.gpu(base);
                assert_eq!(second as i64, 1_000_000_000 + (drift * 1000.0) as i64);
            }
        }
    }
}
