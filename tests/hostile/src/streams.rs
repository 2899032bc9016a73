//! Pushbuffers that no client would write.

use anyhow::Result;
use nvcap_decode::decode::encode::Pushbuffer;
use softgpu::form;
use softgpu::layout::Unit;
use softgpu::rng::Rng;
use softgpu::stream::semaphore;

use crate::bed::{Bed, CHANNELS, channel, pause};

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Random words, in pieces of every length.
pub fn random_words(bed: &Bed) -> Result<()> {
    let mut rng = Rng::new(&[4, 1]);
    for n in 0..100 {
        let words: Vec<u32> = (0..1 + rng.below(512)).map(|_| rng.next() as u32).collect();
        bed.submit_bytes(n % CHANNELS, &bytes_of(&words));
        pause();
    }
    Ok(())
}

/// A method with the largest count, whose data is cut off by the entry's end; the next entry is not its data.
pub fn cut_method(bed: &Bed) -> Result<()> {
    // Step, count in 28:16, subchannel in 15:13, method in 11:0.
    for (n, step) in (0..100).zip([1u32, 3, 5].into_iter().cycle()) {
        let words = [step << 29 | 0x1fff << 16 | 1 << 13 | 0x6c, n as u32];
        bed.submit_bytes(n % CHANNELS, &bytes_of(&words));
        pause();
    }
    Ok(())
}

/// A megabyte of no-operations, again and again.
pub fn nops(bed: &Bed) -> Result<()> {
    for n in 0..8 {
        let mut words = vec![0u32; 1 << 18];
        words[0] = 0x2001_0000 | 0x100 >> 2; // NO_OPERATION with a number of its own
        words[1] = n as u32;
        bed.submit_bytes(n % 2, &bytes_of(&words));
        pause();
    }
    Ok(())
}

/// Launches of QMDs at odd places.
pub fn odd_qmds(bed: &Bed) -> Result<()> {
    let mut rng = Rng::new(&[4, 2]);
    for n in 0..100 {
        let mut pb = Pushbuffer::new();
        if n == 0 {
            pb.bind(form::COMPUTE, form::COMPUTE_CLASS);
        }
        let at = match n % 5 {
            0 => 0,
            1 => bed.ring(0),
            2 => (1 << 40) - 0x100,
            3 => 0x1000,
            _ => rng.next() & 0xff_ffff_ff00,
        };
        form::send(&mut pb, at);
        pb.raw(0x2001_0000 | 1 << 13 | 0x100 >> 2).raw(n as u32);
        bed.submit_bytes(0, &pb.bytes());
        pause();
    }
    Ok(())
}

/// Inline data shorter than its announced length, or longer.
pub fn inline_beyond(bed: &Bed) -> Result<()> {
    let mut rng = Rng::new(&[4, 3]);
    for n in 0..100u32 {
        let mut pb = Pushbuffer::new();
        if n == 0 {
            pb.bind(form::COMPUTE, form::COMPUTE_CLASS);
        }
        let length = rng.pick(&[0, 1, 64, 1 << 20, u32::MAX, 0x8000_0000]);
        let lines = rng.pick(&[0, 1, 2, u32::MAX]);
        let data = [length, lines, 0xff, n];
        form::compute(&mut pb, "LINE_LENGTH_IN", &data);
        form::compute(&mut pb, "LAUNCH_DMA", &[0x41]);
        for _ in 0..rng.below(20) {
            form::compute(&mut pb, "LOAD_INLINE_DATA", &[rng.next() as u32]);
        }
        bed.submit_bytes(0, &pb.bytes());
        pause();
    }
    Ok(())
}

/// Semaphores whose payloads go back, repeat and jump.
pub fn semaphores(bed: &Bed) -> Result<()> {
    for n in 0..200u32 {
        let mut pb = Pushbuffer::new();
        if n == 0 {
            pb.bind(form::COMPUTE, form::COMPUTE_CLASS);
        }
        let payload = match n / 50 {
            0 => 1000 - n,
            1 => 7,
            2 => n.wrapping_mul(0x9e37_79b9),
            _ => n + 1,
        };
        pb.raw(0x2001_0000 | 1 << 13 | 0x100 >> 2).raw(n);
        form::release(&mut pb, Unit::Compute, semaphore(channel(0)), payload);
        bed.submit_bytes(0, &pb.bytes());
        pause();
    }
    Ok(())
}
