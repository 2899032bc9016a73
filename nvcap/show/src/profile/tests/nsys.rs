//! Files as Nsight Systems writes them, by hand from its documented tables: whole, with fewer columns, damaged, and made to do harm.

use std::path::PathBuf;

use proptest::prelude::*;
use rusqlite::Connection;

use super::{Sums, Until, rows};
use crate::profile::About;
use crate::profile::nsys::NsysFile;

/// A file of a test, removed behind it.
struct File(PathBuf);

impl File {
    fn new(name: &str, sql: &str) -> Self {
        // A name that an address would have to write in another way.
        let name = format!("nvcap profile?100%-{name}-{}.sqlite", std::process::id());
        let file = Self(std::env::temp_dir().join(name));
        let _ = std::fs::remove_file(&file.0);
        Connection::open(&file.0)
            .unwrap()
            .execute_batch(sql)
            .unwrap();
        file
    }

    fn read(&self) -> (Sums, About) {
        let mut sums = Sums::default();
        let about = NsysFile::open(&self.0).unwrap().read(&mut sums);
        (sums, about)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const KERNELS: &str = "
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO StringIds VALUES (1, '_Z5scaleIfEvPT_i'), (2, 'void scale<float>(T1 *, int)'), (3, 'scale'), (4, 'update'), (5, '');
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, streamId INTEGER NOT NULL,
  correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, gridX INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
  (1000, 1100, 0, 7, 1, 1, 2, 3, 1, 64), (1200, 1350, 0, 7, 2, 1, 2, 3, 1, 64), (2000, 2010, 1, 7, 3, 1, 4, 4, 5, 1), (2020, 2030, 1, 7, 3, 1, 4, 4, NULL, 1);
";

const REST: &str = "
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1100, 1150, 0, 4096, 1), (1360, 1370, 0, 64, 8), (1, 2, 0, 5, 77);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, bytes INTEGER NOT NULL, value INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (1400, 1404, 0, 512, 0);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, graphId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1500, 1600, 0, 3);
CREATE TABLE TARGET_INFO_GPU (id INTEGER NOT NULL, name TEXT, chipName TEXT);
INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100 80GB HBM3', 'GH100');
";

#[test]
fn a_trace_of_nsight_systems_is_read() {
    let file = File::new("whole", &format!("{KERNELS}{REST}"));
    let (mut sums, about) = file.read();
    assert_eq!(
        rows(&sums),
        [
            ("void scale<float>(float*, int)", 2, 250, 0),
            ("graph replay (all its kernels)", 1, 100, 0),
            ("update", 2, 20, 0),
            ("copy h2d", 1, 50, 4096),
            ("copy d2d", 1, 10, 64),
            ("memset", 1, 4, 512),
            ("copy of a direction that is not known", 1, 1, 5),
        ]
    );
    // By the name that the compiler wrote, as in a recording.
    assert_eq!(
        sums.row(false, "void scale<float>(float*,int)")
            .unwrap()
            .count,
        2
    );
    let busy = sums.busy().unwrap();
    assert_eq!(busy[&Some(1)].gaps, [(2009, 10)]);
    assert_eq!(
        (busy[&Some(0)].busy_ns, busy[&Some(0)].copies_alone_ns),
        (415, 65)
    );
    assert_eq!(about.gpus[&0], "NVIDIA H100 80GB HBM3");
    assert_eq!((about.cut.as_deref(), about.status()), (None, 0));
    assert!(about.says().contains("nor whether it has all that ran"));
}

#[test]
fn a_file_with_fewer_tables_and_columns_is_read() {
    let file = File::new(
        "few",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (end INTEGER, bytes, start);
         INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (20, 'many', 10), (-1, 5, 10), (30, 5, 'x'), (5, 6, 9);",
    );
    let (sums, about) = file.read();
    assert_eq!(rows(&sums), [("memset", 4, 10, 16)]);
    assert_eq!((sums.untimed(), about.cut), (2, None));
    let other = File::new(
        "other",
        "CREATE TABLE notes (start, end); CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM notes;",
    );
    assert!(!NsysFile::open(&other.0).unwrap().is_trace());
    assert!(NsysFile::open(&file.0).unwrap().is_trace());
}

/// Views would be programs of whoever made the file: this one never ends.
#[test]
fn views_are_not_read() {
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end, 0 AS deviceId FROM n";
    let file = File::new(
        "view",
        &format!(
            "{REST} CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}; CREATE VIEW NVCAP AS SELECT i AS name, i AS value FROM ({endless});"
        ),
    );
    let (sums, about) = file.read();
    assert_eq!(
        (sums.rows(false).len(), about.own, about.cut),
        (1, None, None)
    );
}

#[test]
fn reading_ends_where_the_user_wants() {
    let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET SELECT i, i + 1, 0, 1, 0 FROM n;";
    let file = File::new("until", &format!("{REST}{rows}"));
    let mut until = Until {
        left: Some(3),
        ..Until::default()
    };
    let about = NsysFile::open(&file.0).unwrap().read(&mut until);
    assert_eq!(about.cut.as_deref(), Some("reading was interrupted"));
    assert!(until.sums.works() < 4096, "{}", until.sums.works());
}

#[test]
fn cut_and_damaged_files_say_so() {
    let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT i, i + 1, 0, 7, i, 1, 2, 3, 1, 1 FROM n;";
    let file = File::new("cut", &format!("{KERNELS}{REST}{rows}"));
    let whole = std::fs::read(&file.0).unwrap();
    let mut said = 0;
    for end in (0..whole.len()).step_by(whole.len() / 40) {
        std::fs::write(&file.0, &whole[..end]).unwrap();
        let Ok(open) = NsysFile::open(&file.0) else {
            said += 1;
            continue;
        };
        let mut sums = Sums::default();
        let about = open.read(&mut sums);
        said += u32::from(about.cut.is_some());
    }
    assert!(said > 35, "{said}");
    assert!(NsysFile::open(std::path::Path::new("/dev/null")).is_ok_and(|file| !file.is_trace()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_are_survived(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40)) {
        thread_local! {
            static WHOLE: (File, Vec<u8>) = {
                let file = File::new("any", &format!("{KERNELS}{REST}"));
                let bytes = std::fs::read(&file.0).unwrap();
                (file, bytes)
            };
        }
        WHOLE.with(|(file, whole)| {
            let mut bytes = whole.clone();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            std::fs::write(&file.0, &bytes).unwrap();
            if let Ok(open) = NsysFile::open(&file.0) {
                let mut sums = Sums::default();
                open.read(&mut sums);
            }
        });
    }
}
