//! Compressed recordings that were cut or changed: what is whole is read, and what is missing is said.

use super::*;

/// Frames, and records of each.
const FRAMES: u64 = 12;
const RECORDS: u64 = 15;

/// xorshift64: the same numbers in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }
}

/// A compressed recording, its records, and behind which byte of the file each further frame of records ends.
fn made(name: &str) -> (Vec<u8>, Vec<Record>, Vec<usize>) {
    let folder = Folder::new(name);
    let path = folder.0.join("run.pcapng.zst");
    let recorder = recorder(Files::one(Output::file(&path).unwrap(), true), false);
    let sinks: Vec<Box<dyn Sink>> = vec![Box::new(recorder)];
    let mut pipeline = Pipeline::new(PipelineOptions::default(), sinks);
    let mut numbers = Numbers(7);
    let (mut all, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..FRAMES {
        for _ in 0..RECORDS {
            // Half of it does not compress.
            let words = (0..24).map(|n| if n % 2 == 0 { n } else { numbers.next() });
            let segment = Segment {
                bytes: words.flat_map(u64::to_le_bytes).collect(),
                ..Segment::default()
            };
            let record = submission(all.len() as u64, vec![segment]);
            pipeline.record(record.clone()).unwrap();
            all.push(record);
        }
        pipeline.flush().unwrap();
        ends.push(usize::try_from(std::fs::metadata(&path).unwrap().len()).unwrap());
    }
    pipeline.finish().unwrap();
    (std::fs::read(&path).unwrap(), all, ends)
}

fn read_packed(bytes: Vec<u8>) -> (Vec<Record>, Vec<String>) {
    match nvcap_recording::file::packed::unpacked(Box::new(io::Cursor::new(bytes))) {
        Ok(reader) => read(reader),
        Err(e) => (Vec::new(), vec![e.to_string()]),
    }
}

/// The records of the frames that end at or before a byte of the file.
fn records_before(ends: &[usize], byte: usize) -> usize {
    ends.iter().filter(|end| **end <= byte).count() * RECORDS as usize
}

#[test]
fn a_cut_leaves_all_whole_frames() {
    let (bytes, all, ends) = made("zstd-cuts");
    let (records, errors) = read_packed(bytes.clone());
    assert!(records == all && errors.is_empty(), "{errors:?}");
    let mut numbers = Numbers(11);
    for _ in 0..1_000 {
        let cut = numbers.below(bytes.len());
        let (records, errors) = read_packed(bytes[..cut].to_vec());
        assert!(records == all[..records.len()], "{cut}");
        let whole = records_before(&ends, cut);
        assert!(
            records.len() >= whole,
            "{cut}: {} of {whole}",
            records.len()
        );
        let ends_well = |e: &String| e.contains("has no end") || e.contains("has no records");
        assert!(errors.iter().any(ends_well), "{cut}: {errors:?}");
    }
}

#[test]
fn what_a_flip_hides_is_said() {
    let (bytes, all, ends) = made("zstd-flips");
    let mut numbers = Numbers(13);
    let mut missing = 0;
    for _ in 0..1_000 {
        let place = numbers.below(bytes.len());
        let mut damaged = bytes.clone();
        damaged[place] ^= 1 << numbers.below(8);
        let (records, errors) = read_packed(damaged);
        // None is changed or comes twice, and those of the frames before the damage are there.
        let mut rest = all.iter();
        assert!(records.iter().all(|r| rest.any(|a| a == r)), "{place}");
        let whole = records_before(&ends, place);
        assert!(
            records.len() >= whole,
            "{place}: {} of {whole}",
            records.len()
        );
        if records.len() < all.len() {
            missing += 1;
            assert!(!errors.is_empty(), "{place}");
        }
    }
    // Most of the bytes matter.
    assert!(missing > 500, "{missing}");
}

/// Some file systems leave zeros where the last data did not come to the disk before a loss of power.
#[test]
fn zeros_at_the_end_leave_all_whole_frames() {
    let (bytes, all, ends) = made("zstd-zeros");
    let inner = ends.iter().flat_map(|end| [end - 1, *end, end + 1]);
    let pages = (0..bytes.len()).step_by(4096).skip(1);
    for from in inner.chain(pages).filter(|from| *from < bytes.len()) {
        let mut lost = bytes.clone();
        lost[from..].fill(0);
        let (records, errors) = read_packed(lost);
        assert!(records == all[..records.len()], "{from}");
        let whole = records_before(&ends, from);
        assert!(
            (whole..=whole + RECORDS as usize).contains(&records.len()),
            "{from}: {} of {whole}",
            records.len()
        );
        assert!(
            errors.iter().any(|e| e.contains("has no end")),
            "{from}: {errors:?}"
        );
    }
}
