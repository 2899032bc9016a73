//! Tests of files as some file systems leave them after a loss of power: of full length, with zeros where the last data did not reach the
//! disk.

use super::*;

/// Number of bytes that a file system writes at once.
const PAGE: usize = 4096;

#[test]
fn zeros_at_the_end_hide_nothing_before_them() {
    let all = numbered(200);
    let bytes = file_of(&all);
    let mut places: Vec<usize> = (1..bytes.len() / PAGE).map(|page| page * PAGE).collect();
    // Zeros may also begin between two blocks, or anywhere.
    let mut end = 0;
    while let Some(len) = bytes.get(end + 4..end + 8) {
        end += u32::from_le_bytes(len.try_into().unwrap()) as usize;
        places.extend([end - 1, end, end + 1]);
    }
    assert!(places.len() > 600, "{}", places.len());
    for from in places.into_iter().filter(|from| *from < bytes.len()) {
        let (whole, _) = read(&bytes[..from]);
        let mut lost = bytes.clone();
        lost[from..].fill(0);
        let (records, errors) = read(&lost);
        // The last bytes may themselves have been zeros.
        if lost == bytes {
            continue;
        }
        assert!(records.len() >= whole.len(), "{from}");
        assert_eq!(records[..], all[..records.len()], "{from}");
        assert!(records.len() <= whole.len() + 1, "{from}");
        assert!(!errors.is_empty(), "{from}");
        let is_ended = ["has no end", "has no records"]
            .iter()
            .all(|why| !errors.iter().any(|e| e.contains(why)));
        assert!(
            !is_ended || records.len() == all.len(),
            "{from}: {errors:?}"
        );
    }
    // Zeros behind the end are not records.
    let longer = [&bytes[..], &[0; 3 * PAGE]].concat();
    let (records, errors) = read(&longer);
    assert_eq!((records.len(), errors.len()), (all.len(), 1), "{errors:?}");
}

/// Test of pages in the middle of a file that did not reach the disk, while later pages did.
#[test]
fn zeros_in_the_middle_hide_what_lay_there_alone() {
    let all = numbered(200);
    let bytes = file_of(&all);
    for page in 1..bytes.len() / PAGE {
        let mut lost = bytes.clone();
        lost[page * PAGE..][..PAGE].fill(0);
        let (records, errors) = read(&lost);
        let mut rest = all.iter();
        assert!(records.iter().all(|r| rest.any(|a| a == r)), "{page}");
        // Each packet has more than 100 bytes.
        let gone = all.len() - records.len();
        assert!((1..=PAGE / 100 + 2).contains(&gone), "{page}: {gone}");
        let said = format!("{gone} of the records up to number");
        assert!(
            errors.iter().any(|e| e.contains(&said)),
            "{page}: {errors:?}"
        );
    }
}
