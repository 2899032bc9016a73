//! Files are brought to the disk, and the recorder does not wait for it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};

use super::super::disk::{Disk, Request};
use super::*;

/// Paths, each with the length that it had when it was last brought to the disk.
type Brought = Arc<Mutex<BTreeMap<PathBuf, u64>>>;

fn bring(to: &Brought, request: &Request) -> io::Result<()> {
    let len = request.file.metadata()?.len();
    request.file.sync_data()?;
    to.lock().unwrap().insert(request.path.clone(), len);
    Ok(())
}

fn len(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

#[test]
fn all_that_is_written_is_brought_while_the_recorder_goes_on() {
    static SEAL: AtomicBool = AtomicBool::new(false);
    let folder = Folder::new("on-disk");
    let rotation = Rotation {
        bytes: Some(40_000),
        time: None,
        keep: None,
    };
    let brought = Brought::default();
    // A disk that does nothing until it is let go.
    let (go, wait) = mpsc::channel::<()>();
    let call = {
        let brought = brought.clone();
        Box::new(move |request: &Request| {
            let _ = wait.recv();
            bring(&brought, request)
        })
    };
    let files = Files::numbered(&folder.0.join("run.pcapng"), rotation, false).unwrap();
    let files = files.with_disk(Disk::with(Duration::ZERO, call).unwrap());
    let recorder = recorder(files, false).sealing(&SEAL);
    let sinks: Vec<Box<dyn Sink>> = vec![Box::new(recorder)];
    let mut pipeline = Pipeline::new(PipelineOptions::default(), sinks);
    (0..60).for_each(|n| pipeline.record(bytes(n, 1_000)).unwrap());
    SEAL.store(true, Ordering::Relaxed);
    pipeline.flush().unwrap();
    (60..80).for_each(|n| pipeline.record(bytes(n, 1_000)).unwrap());
    pipeline.flush().unwrap();
    assert!(brought.lock().unwrap().is_empty());
    drop(go);
    pipeline.finish().unwrap();
    assert_eq!(
        folder.names(),
        [
            "run.00001.sealed.pcapng",
            "run.00002.sealed.pcapng",
            "run.00003.pcapng"
        ]
    );
    // Each as long as it is, under the name that it had then.
    let mut brought = std::mem::take(&mut *brought.lock().unwrap());
    assert!(brought.remove(&folder.0).is_some());
    let wanted = folder.names().into_iter().map(|name| {
        let path = folder.0.join(&name);
        (folder.0.join(name.replace(".sealed", "")), len(&path))
    });
    assert_eq!(brought, wanted.collect());
}

#[test]
fn the_file_that_is_written_is_brought_every_now_and_then() {
    let folder = Folder::new("on-disk-now-and-then");
    let path = folder.0.join("run.pcapng");
    let brought = Brought::default();
    let (say, said) = mpsc::channel();
    let call = {
        let brought = brought.clone();
        Box::new(move |request: &Request| {
            bring(&brought, request)?;
            say.send(request.path.clone()).map_err(io::Error::other)
        })
    };
    let files = Files::one(Output::file(&path).unwrap(), false);
    let files = files.with_disk(Disk::with(Duration::ZERO, call).unwrap());
    let sinks: Vec<Box<dyn Sink>> = vec![Box::new(recorder(files, false))];
    let mut pipeline = Pipeline::new(PipelineOptions::default(), sinks);
    pipeline.record(bytes(0, 1_000)).unwrap();
    pipeline.flush().unwrap();
    // It comes while the trace goes on.
    let first = said.recv_timeout(nvcap_waiting::GUARD);
    assert_eq!(first.expect("guard: nothing was brought"), path);
    assert_eq!(brought.lock().unwrap()[&path], len(&path));
    pipeline.record(bytes(1, 1_000)).unwrap();
    pipeline.finish().unwrap();
    assert_eq!(brought.lock().unwrap()[&path], len(&path));
}
