//! Rings and doorbells in wrong use.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::entry;
use softgpu::layout::GP_GET;
use softgpu::rng::Rng;

use crate::bed::{Bed, CHANNELS, pause};
use crate::process::{map_at, unmap};

const ROUNDS: usize = 200;
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn puts(bed: &Bed, mut next: impl FnMut(usize, &mut Rng) -> u32) -> Result<()> {
    let mut rng = Rng::new(&[3, 1]);
    bed.submit_many(2 * CHANNELS);
    for n in 0..ROUNDS {
        let put = next(n, &mut rng);
        bed.gp_put(0).store(put, Ordering::Release);
        bed.doorbell(0);
        bed.submit(1);
        pause();
    }
    Ok(())
}

/// Random values of GP_PUT inside its ring.
pub fn put_jumps(bed: &Bed) -> Result<()> {
    puts(bed, |_, rng| rng.below(u64::from(bed.entries)) as u32)
}

/// GP_PUT that counts down.
pub fn put_backwards(bed: &Bed) -> Result<()> {
    puts(bed, |n, _| bed.entries - 1 - n as u32 % bed.entries)
}

/// GP_PUT beyond the ring.
pub fn put_beyond(bed: &Bed) -> Result<()> {
    puts(bed, |n, rng| match n % 4 {
        0 => u32::MAX,
        1 => bed.entries,
        2 => 0x8000_0000,
        _ => rng.next() as u32,
    })
}

/// Entries that point nowhere, to their own ring and to the last bytes of the address space, each of 2 MB.
pub fn entries_nowhere(bed: &Bed) -> Result<()> {
    let mut rng = Rng::new(&[3, 2]);
    bed.submit_many(CHANNELS);
    for n in 0..ROUNDS as u64 {
        let address = match n % 5 {
            0 => 0x1000,
            1 => bed.ring(0),
            2 => 0xff_ffff_fffc,
            3 => bed.pushbuffer(0) + 4,
            _ => rng.next() & 0xff_ffff_fffc,
        };
        let raw = entry::segment(GpuVa(address), 2 << 20, false, true, false);
        bed.write_entry(0, 1 + n, raw);
        bed.write_entry(2, 1 + n, rng.next());
        for i in [0, 2] {
            let put = (2 + n) % u64::from(bed.entries);
            bed.gp_put(i).store(put as u32, Ordering::Release);
            bed.doorbell(i);
        }
        pause();
    }
    Ok(())
}

/// Its rings are unmapped and mapped again at the same place.
pub fn mapped_again(bed: &Bed) -> Result<()> {
    for n in 0..50 {
        bed.submit_many(CHANNELS);
        unmap(bed.ring(0), bed.slot() as usize);
        if n % 3 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        map_at(bed.ring(0), bed.slot(), BOTH, None)?;
    }
    Ok(())
}

/// Its ring is moved away and back.
pub fn moved(bed: &Bed) -> Result<()> {
    let (from, len) = (bed.ring(0), bed.slot() as usize);
    let to = 0x2_9000_0000u64;
    for _ in 0..50 {
        bed.submit_many(CHANNELS);
        for (old, new) in [(from, to), (to, from)] {
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: nobody submits meanwhile, and nothing else is mapped at either place.
            let got = unsafe {
                libc::mremap(
                    old as *mut libc::c_void,
                    len,
                    len,
                    flags,
                    new as *mut libc::c_void,
                )
            };
            ensure!(got as u64 == new, "mremap");
            bed.doorbell(0);
            pause();
        }
    }
    Ok(())
}

/// Its ring is unreadable now and then.
pub fn protected(bed: &Bed) -> Result<()> {
    let protect = |prot| {
        // SAFETY: nobody submits to this ring meanwhile.
        unsafe { libc::mprotect(bed.ring(0) as *mut libc::c_void, bed.slot() as usize, prot) }
    };
    for n in 0..100 {
        bed.submit_many(CHANNELS);
        ensure!(protect(libc::PROT_NONE) == 0, "mprotect");
        if n % 10 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        ensure!(protect(BOTH) == 0, "mprotect");
    }
    Ok(())
}

/// USERD full of random words.
pub fn userd_random(bed: &Bed) -> Result<()> {
    let mut rng = Rng::new(&[3, 3]);
    for _ in 0..ROUNDS {
        for word in 0..128 {
            let at = bed.userd(0) + 4 * word;
            // SAFETY: inside USERD, which is mapped, aligned.
            unsafe { (*(at as *const AtomicU32)).store(rng.next() as u32, Ordering::Relaxed) };
        }
        bed.doorbell(0);
        bed.submit(1);
        pause();
    }
    let at = bed.userd(0) + GP_GET;
    // SAFETY: as above.
    unsafe { (*(at as *const AtomicU32)).store(u32::MAX, Ordering::Relaxed) };
    Ok(())
}

/// The smallest ring.
pub fn of_two(bed: &Bed) -> Result<()> {
    bed.submit_many(ROUNDS);
    Ok(())
}

/// A large ring.
pub fn of_65536(bed: &Bed) -> Result<()> {
    bed.submit_many(ROUNDS);
    Ok(())
}

/// Doorbells with nothing behind them, and with tokens that no channel has.
pub fn idle_doorbells(bed: &Bed) -> Result<()> {
    let mut rng = Rng::new(&[3, 4]);
    for n in 0..100 {
        bed.doorbell(n % CHANNELS);
        bed.doorbell_of(rng.next() as u32 | 1 << 31);
        bed.submit(n % CHANNELS);
        bed.doorbell(n % CHANNELS);
        pause();
    }
    Ok(())
}

/// Every thread submits at the same moment.
pub fn all_at_once(bed: &Bed) -> Result<()> {
    const THREADS: usize = 16;
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let barrier = &barrier;
            scope.spawn(move || {
                for _ in 0..20 {
                    barrier.wait();
                    bed.submit(thread % CHANNELS);
                }
            });
        }
    });
    Ok(())
}

/// As many submissions as possible.
pub fn storm(bed: &Bed) -> Result<()> {
    std::thread::scope(|scope| {
        for thread in 0..CHANNELS {
            scope.spawn(move || (0..2500).for_each(|_| bed.submit(thread)));
        }
    });
    Ok(())
}
