//! Compression of files as users keep them: plain, or compressed by gzip, xz or zstd, which is recognised by their first bytes. Files are
//! unpacked piece by piece as they are read, and never held whole. The readers of the data limit how much is read; this module does not.
//!
//! A compressed file may be cut or damaged, or have other data behind its end. The reader then gives everything that can be unpacked, and
//! after it an error of kind [`io::ErrorKind::UnexpectedEof`], `InvalidData` or `InvalidInput`. Such a file never looks complete.

use std::io::{self, BufReader, Cursor, Read};
use std::{fs::File, path::Path};

/// Number of first bytes that show how a file is compressed. xz's magic number is the longest.
const MOST_MAGIC: u64 = 6;
const GZIP: &[u8] = &[0x1f, 0x8b];
const XZ: &[u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];
const ZSTD: [u8; 4] = 0xfd2f_b528u32.to_le_bytes();

/// Opens a file, or standard input for `-`, and unpacks it if it is compressed.
///
/// # Errors
/// When the file cannot be opened, or is compressed in a way that this build does not know.
pub fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    unpacked(match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(path)?),
    })
}

/// Unpacks the reader's data if it is compressed.
///
/// # Errors
/// As [`open`].
pub fn unpacked(mut reader: Box<dyn Read>) -> io::Result<Box<dyn Read>> {
    let mut head = Vec::new();
    reader.by_ref().take(MOST_MAGIC).read_to_end(&mut head)?;
    let is_zstd = head.get(..4).is_some_and(|m| m == ZSTD || is_skippable(m));
    let (gzip, xz) = (head.starts_with(GZIP), head.starts_with(XZ));
    let whole = Cursor::new(head).chain(reader);
    if gzip {
        return Ok(Box::new(gzip::Members::new(BufReader::new(whole))));
    }
    if xz {
        return of_xz(Box::new(whole));
    }
    if is_zstd {
        return of_zstd(Box::new(BufReader::new(whole)));
    }
    Ok(Box::new(whole))
}

/// Tells whether a frame contains data of other programs, which zstd skips (RFC 8878, 3.1.2).
fn is_skippable(magic: &[u8]) -> bool {
    matches!(magic, [0x50..=0x5f, 0x2a, 0x4d, 0x18])
}

#[cfg(feature = "xz")]
fn of_xz(reader: Box<dyn Read>) -> io::Result<Box<dyn Read>> {
    Ok(Box::new(xz::Streams::new(BufReader::new(reader))))
}

#[cfg(feature = "zstd")]
fn of_zstd(reader: Box<dyn Read>) -> io::Result<Box<dyn Read>> {
    Ok(Box::new(zstd::Frames::new(reader)))
}

#[cfg(not(feature = "xz"))]
fn of_xz(_: Box<dyn Read>) -> io::Result<Box<dyn Read>> {
    Err(unknown("xz", "xz -dk FILE"))
}

#[cfg(not(feature = "zstd"))]
fn of_zstd(_: Box<dyn Read>) -> io::Result<Box<dyn Read>> {
    Err(unknown("zstd", "zstd -dk FILE"))
}

#[cfg(not(all(feature = "xz", feature = "zstd")))]
fn unknown(by: &str, remedy: &str) -> io::Error {
    let why = format!(
        "it is compressed by {by}, which this build cannot read: decompress it with `{remedy}`"
    );
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// Makes the error for other data behind the compressed data.
fn garbage_behind(by: &str) -> io::Error {
    let why = format!("what comes behind the compressed data is not compressed by {by}");
    io::Error::new(io::ErrorKind::InvalidData, why)
}

mod gzip {
    use std::io::{self, BufRead, Read};

    use flate2::bufread::GzDecoder;

    use super::{GZIP, garbage_behind};

    /// Reader of all members of a file, one after another.
    pub(super) struct Members<R> {
        /// Decoder of the member that is being read; `None` at the end of the file.
        decoder: Option<GzDecoder<R>>,
    }

    impl<R: BufRead> Members<R> {
        pub(super) fn new(source: R) -> Self {
            let decoder = Some(GzDecoder::new(source));
            Self { decoder }
        }
    }

    impl<R: BufRead> Read for Members<R> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            while let Some(decoder) = &mut self.decoder {
                let n = decoder.read(to)?;
                if n > 0 || to.is_empty() {
                    return Ok(n);
                }
                // This member has ended; another follows, or nothing.
                match decoder.get_mut().fill_buf()?.first() {
                    None => self.decoder = None,
                    Some(first) if *first != GZIP[0] => return Err(garbage_behind("gzip")),
                    Some(_) => {
                        let source = self.decoder.take().map(GzDecoder::into_inner);
                        self.decoder = source.map(GzDecoder::new);
                    }
                }
            }
            Ok(0)
        }
    }
}

#[cfg(feature = "xz")]
mod xz {
    use std::io::{self, BufRead, Read};

    use lzma_rust2::{Action, Status, XzStream};

    /// The most memory that unpacking may take, KiB: the largest preset of xz takes 64 MiB.
    const MOST_MEMORY: u32 = 256 << 10;

    /// Reader of all streams of a file, one after another. A file that was cut is unpacked to its last byte, and gives nearly as much as
    /// `xz -dc` does.
    pub(super) struct Streams<R> {
        source: R,
        decoder: XzStream,
        ended: bool,
    }

    impl<R: BufRead> Streams<R> {
        pub(super) fn new(source: R) -> Self {
            Self {
                source,
                decoder: XzStream::new_mem_limit(true, MOST_MEMORY),
                ended: false,
            }
        }
    }

    impl<R: BufRead> Read for Streams<R> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            while !to.is_empty() && !self.ended {
                let input = self.source.fill_buf()?;
                let is_last = input.is_empty();
                let action = if is_last { Action::Finish } else { Action::Run };
                let done = self.decoder.process(input, to, action)?;
                let (used, given) = (done.bytes_consumed, done.bytes_produced);
                self.source.consume(used);
                self.ended = done.status == Status::StreamEnd;
                if given > 0 {
                    return Ok(given);
                }
                if is_last && !self.ended {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Ok(0)
        }
    }
}

#[cfg(feature = "zstd")]
mod zstd {
    use std::error::Error as _;
    use std::io::{self, Cursor, Read};

    use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder, errors::FrameDecoderError};

    use super::{ZSTD, garbage_behind, is_skippable};

    /// Reader of all frames of a file, one after another. A frame's size and checksum are checked if the frame has them. The decoder
    /// accepts windows of 100 MiB at most.
    pub(super) struct Frames<R> {
        source: R,
        decoder: FrameDecoder,
        within: bool,
        /// Number of bytes that were unpacked from the current frame.
        given: u64,
    }

    impl<R: Read> Frames<R> {
        pub(super) fn new(source: R) -> Self {
            Self {
                source,
                decoder: FrameDecoder::new(),
                within: false,
                given: 0,
            }
        }

        /// Begins the next frame. Returns false at the end of the file.
        fn begin(&mut self) -> io::Result<bool> {
            let mut magic = Vec::new();
            self.source.by_ref().take(4).read_to_end(&mut magic)?;
            match magic.as_slice() {
                [] => return Ok(false),
                magic if magic == ZSTD => {
                    let frame = Cursor::new(ZSTD).chain(&mut self.source);
                    self.decoder.reset(frame).map_err(damage)?;
                    (self.within, self.given) = (true, 0);
                }
                magic if is_skippable(magic) => self.skip()?,
                magic if magic.len() < 4 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => return Err(garbage_behind("zstd")),
            }
            Ok(true)
        }

        fn skip(&mut self) -> io::Result<()> {
            let mut len = [0; 4];
            self.source.read_exact(&mut len)?;
            let len = u64::from(u32::from_le_bytes(len));
            let skipped = io::copy(&mut self.source.by_ref().take(len), &mut io::sink())?;
            match skipped == len {
                true => Ok(()),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }

        /// Ends a frame, and checks its size and checksum.
        fn end(&mut self) -> io::Result<()> {
            self.within = false;
            let announced = self.decoder.content_size();
            if announced != 0 && announced != self.given {
                return Err(invalid("a frame has another size than it says"));
            }
            let recorded = self.decoder.get_checksum_from_data();
            if recorded.is_some() && recorded != self.decoder.get_calculated_checksum() {
                return Err(invalid("a frame's checksum is wrong"));
            }
            Ok(())
        }
    }

    impl<R: Read> Read for Frames<R> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            while !to.is_empty() {
                if !self.within {
                    if !self.begin()? {
                        break;
                    }
                } else if self.decoder.can_collect() > 0 {
                    let n = self.decoder.read(to)?;
                    self.given += n as u64;
                    return Ok(n);
                } else if self.decoder.is_finished() {
                    self.end()?;
                } else {
                    let one = BlockDecodingStrategy::UptoBlocks(1);
                    let decoded = self.decoder.decode_blocks(&mut self.source, one);
                    decoded.map_err(damage)?;
                }
            }
            Ok(0)
        }
    }

    fn invalid(why: &str) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, why)
    }

    /// Makes an error for the user: the system's own error, the end of the file, or else damaged data. The decoder's words for
    /// damage are left out, because they are names of its own values.
    fn damage(error: FrameDecoderError) -> io::Error {
        if let FrameDecoderError::WindowSizeTooBig { requested, max } = error {
            let why = format!("it wants a window of {requested} B, and {max} B are given at most");
            return io::Error::new(io::ErrorKind::InvalidData, why);
        }
        let mut cause = error.source();
        while let Some(e) = cause {
            if let Some(system) = e.downcast_ref::<io::Error>() {
                if let Some(code) = system.raw_os_error() {
                    return io::Error::from_raw_os_error(code);
                }
                if system.kind() == io::ErrorKind::UnexpectedEof {
                    return io::ErrorKind::UnexpectedEof.into();
                }
            }
            cause = e.source();
        }
        invalid("what zstd compressed is damaged")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const OF_XZ: &str = "\
        fd377a585a000004e6d6b446020021011c00000010cf58cce003ed00c95d00281204270e8d8e58d6085a613991279d31ac90\
        66b9223059a20f35dce2a76fec9ea6c39614d744a80aa6da4cef95f7056d8bfaf8b55e538b400ff797c90848af197e8cb62e\
        3203b7d321d70b60f16a3d7afa5dfd461a7cb606a884166dc997d355ec929a60eaa205b4781599a73a852041bcc81dbafcb7\
        57f68c4c9f12c89c5b34df005f6b33414dd868ddc19cbfeb6f686865d14ae90adcc18417092b20b040e698f4b218fe92cbc3\
        e65ac3530a3bebebd5c6b1c4ba5cd01d23e124f38a9946d9ea1bfcb8c23f20e8000000003c0b1be9021d25550001e501ee07\
        0000d257538bb1c467fb020000000004595a\
    ";
    const OF_ZSTD: &str = "\
        28b52ffd0468550600765025168029490730998777b45aaab21b218448c9d30b3ba22121001c001e004b2293b1a4f1104b12\
        8b2ea9974be2dc92f60a33b356c1814102c2010400020301846c32c61e426cd1ee929bdb9eb6246d6d9634cfb0a4e1a12ca9\
        5c48c3c087527821849331f810828b9697e4dcf8c425898b337b86610fa5ec12859999e9330c7d28a517423a19a30f21ba68\
        7bc9cead4f5d92ba3ac32742a811c085b4b8e56ef0e5106a7112da03b219b39ee708ce4aa7f98cb35e009e9f31ebbc76bbf4\
        8819cf1ad6ad99fd465315ffd79d3f\
    ";
    fn plain() -> Vec<u8> {
        (0..40)
            .flat_map(|i| format!("PHASE step_{i} {} {}\n", i * 1000, i * 1000 + 999).into_bytes())
            .collect()
    }

    fn unhex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
        let byte = |pair: &[u32]| u8::try_from(pair[0] << 4 | pair[1]).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// Returns one text, compressed by the tools `gzip`, `xz -9` and `zstd -19`.
    fn packed() -> Vec<(&'static str, Vec<u8>)> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        gzip.write_all(&plain()).unwrap();
        let mut all = vec![("gzip", gzip.finish().unwrap())];
        if cfg!(feature = "xz") {
            all.push(("xz", unhex(OF_XZ)));
        }
        if cfg!(feature = "zstd") {
            all.push(("zstd", unhex(OF_ZSTD)));
        }
        all
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        unpacked(Box::new(Cursor::new(bytes.to_vec())))?.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn each_gives_the_text_and_two_behind_each_other_give_it_twice() {
        assert_eq!(read(&plain()).unwrap(), plain());
        assert_eq!(read(b"").unwrap(), b"");
        for (name, bytes) in packed() {
            assert_eq!(read(&bytes).unwrap(), plain(), "{name}");
            let twice = read(&[bytes.clone(), bytes].concat()).unwrap();
            assert_eq!(twice, plain().repeat(2), "{name}");
        }
    }

    #[test]
    fn none_that_is_cut_or_has_more_behind_it_is_read_as_whole() {
        for (name, bytes) in packed() {
            for end in MOST_MAGIC as usize..bytes.len() {
                let error = read(&bytes[..end]).expect_err(name);
                let said = error.to_string();
                assert!(!said.contains(['{', '(']), "not for users: {said}");
                assert!(
                    matches!(
                        error.kind(),
                        io::ErrorKind::UnexpectedEof
                            | io::ErrorKind::InvalidData
                            | io::ErrorKind::InvalidInput
                    ),
                    "{name} cut at {end}: {error:?}"
                );
            }
            for behind in [&b"x"[..], b"garbage behind it"] {
                let more = [&bytes, behind].concat();
                let said = read(&more).expect_err(name).to_string();
                if name != "xz" && behind.len() >= 4 {
                    assert!(
                        said.ends_with(&format!("not compressed by {name}")),
                        "{said}"
                    );
                }
            }
        }
    }

    /// Test that a cut within the file's only chunk does not lose the chunk.
    #[cfg(feature = "xz")]
    #[test]
    fn of_xz_that_was_cut_comes_what_is_there() {
        let whole = unhex(OF_XZ);
        let mut out = Vec::new();
        let cut = Box::new(Cursor::new(whole[..whole.len() / 2].to_vec()));
        let error = unpacked(cut).unwrap().read_to_end(&mut out).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(plain().starts_with(&out), "what comes out is right");
        assert!(out.len() > 100, "{} bytes", out.len());
    }

    /// Test that a changed bit gives an error, or the same text if the bit has no meaning (as do some in headers, and padding).
    #[test]
    fn what_comes_out_is_right_or_an_error() {
        for (name, bytes) in packed() {
            let mut errors = 0;
            for at in MOST_MAGIC as usize..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                match read(&changed) {
                    Ok(out) => assert!(out == plain(), "{name} with byte {at} changed"),
                    Err(_) => errors += 1,
                }
            }
            assert!(errors > bytes.len() * 3 / 4, "{name}: {errors}");
        }
    }

    #[cfg(feature = "zstd")]
    #[test]
    fn what_zstd_passes_over_is_passed_over() {
        let frame = unhex(OF_ZSTD);
        let skipped = [&[0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        let both = [&skipped[..], &frame, &skipped].concat();
        assert_eq!(read(&both).unwrap(), plain());
        assert!(read(&skipped[..10]).is_err(), "cut");
    }

    #[cfg(feature = "zstd")]
    #[test]
    fn a_window_beyond_the_bound_is_refused() {
        // The magic number; no single segment, no checksum; a window of 2^41 bytes.
        let error = read(&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 1, 0, 0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
