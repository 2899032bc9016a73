//! The JSON of PyTorch's profiler (Kineto), read event by event: the file may be larger than memory.
//!
//! The names of members and events are those of Kineto's public sources (`libkineto/src/output_json.cpp`), and of `nvcap export kineto`. A value of
//! another type than is expected counts as not there.

use std::fmt;
use std::io::{BufReader, Read};

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};

use super::Works;
use super::about::{About, Format, Own};
use super::bounded::Bounded;
use super::work::{What, Work};
use nvcap_decode::decode::event::{Direction, PartOf};

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;
/// Words of the error by which the user's wish to stop ends the reading.
const STOPPED: &str = "reading was interrupted";

/// Reads a file, up to its end or to where it cannot be understood: then the facts say so.
pub fn read(reader: impl Read, works: &mut dyn Works) -> About {
    let mut about = About::new(Format::Kineto);
    let reader = BufReader::with_capacity(PIECE, Bounded::new(reader));
    let mut json = serde_json::Deserializer::from_reader(reader);
    let file = File {
        about: &mut about,
        works,
    };
    let whole = (&mut json).deserialize_map(file).and_then(|()| json.end());
    about.cut = whole.err().map(|error| why(&error));
    about
}

/// The reason why the reading ended early, for people.
fn why(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if error.is_data() && text.starts_with(STOPPED) {
        return STOPPED.to_owned();
    }
    match error.is_eof() {
        true => "the file ends in the middle".to_owned(),
        false => text,
    }
}

/// The whole file.
struct File<'a> {
    about: &'a mut About,
    works: &'a mut dyn Works,
}

#[derive(serde::Deserialize)]
#[serde(field_identifier)]
enum FileKey {
    #[serde(rename = "traceEvents")]
    Events,
    #[serde(rename = "deviceProperties")]
    Devices,
    #[serde(rename = "distributedInfo")]
    Distributed,
    #[serde(rename = "baseTimeNanoseconds")]
    Base,
    #[serde(rename = "nvcap")]
    Own,
    #[serde(other)]
    Other,
}

impl<'de> Visitor<'de> for File<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a trace of torch.profiler")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let about = self.about;
        while let Some(key) = map.next_key()? {
            match key {
                FileKey::Events => map.next_value_seed(Each(Events(&mut *self.works)))?,
                FileKey::Devices => map.next_value_seed(Each(Devices(&mut *about)))?,
                FileKey::Distributed => {
                    let of: Numbers = map.next_value()?;
                    (about.rank, about.world_size) = (of.rank, of.world_size);
                }
                FileKey::Base => about.base_ns = map.next_value::<Scalar>()?.exact(),
                FileKey::Own => about.own = Some(map.next_value::<OwnWords>()?.0),
                FileKey::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// A value that is an array, whose elements `T` takes; a value of another type is passed over.
struct Each<T>(T);

/// Takes elements.
trait Take {
    /// Takes the next one.
    fn take<'de, A: SeqAccess<'de>>(&mut self, all: &mut A) -> Result<Option<()>, A::Error>;
}

impl<'de, T: Take> DeserializeSeed<'de> for Each<T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

/// Implements the methods of a visitor that pass over values of the types named.
macro_rules! passes_over {
    ($value:expr; $($method:ident: $type:ty),+) => {
        $(fn $method<E: serde::de::Error>(self, _: $type) -> Result<Self::Value, E> {
            Ok($value)
        })+
        fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
            Ok($value)
        }
    };
}

impl<'de, T: Take> Visitor<'de> for Each<T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    passes_over!((); visit_bool: bool, visit_u64: u64, visit_i64: i64, visit_f64: f64, visit_str: &str);

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        pass_over(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut all: A) -> Result<(), A::Error> {
        while self.0.take(&mut all)?.is_some() {}
        Ok(())
    }
}

fn pass_over<'de, A: MapAccess<'de>>(mut map: A) -> Result<(), A::Error> {
    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}

/// A value as it is: a number, a text, or something else.
#[derive(Debug, Default)]
enum Scalar {
    Whole(u64),
    Number(f64),
    Text(String),
    #[default]
    Other,
}

impl Scalar {
    fn number(&self) -> Option<f64> {
        match self {
            Self::Number(n) => Some(*n),
            Self::Whole(n) => Some(*n as f64),
            _ => None,
        }
    }

    /// A number that stands there as a whole one.
    fn exact(&self) -> Option<u64> {
        match self {
            Self::Whole(n) => Some(*n),
            _ => None,
        }
    }

    /// A number that is whole and not negative.
    fn whole(&self) -> Option<u64> {
        let n = self.number().filter(|n| *n >= 0.0 && n.fract() == 0.0)?;
        Some(n as u64)
    }

    fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    passes_over!(Scalar::Other; visit_bool: bool);

    fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<Scalar, E> {
        Ok(Scalar::Whole(n))
    }

    fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<Scalar, E> {
        Ok(Scalar::Number(n as f64))
    }

    fn visit_f64<E: serde::de::Error>(self, n: f64) -> Result<Scalar, E> {
        Ok(Scalar::Number(n))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Scalar, A::Error> {
        while all.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Scalar, A::Error> {
        pass_over(map).map(|()| Scalar::Other)
    }
}

/// Makes a struct of the members that are asked for: each is what stands in the file, whatever its type.
macro_rules! members {
    ($name:ident, $keys:ident { $($member:ident: $key:literal as $type:ty),+ }) => {
        #[derive(Debug, Default)]
        struct $name {
            $($member: $type),+
        }

        #[derive(serde::Deserialize)]
        #[serde(field_identifier)]
        #[expect(non_camel_case_types, reason = "variants have the names of members")]
        enum $keys {
            $(#[serde(rename = $key)] $member,)+
            #[serde(other)]
            Other,
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
                struct Members;
                impl<'de> Visitor<'de> for Members {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("an object")
                    }

                    passes_over!($name::default(); visit_bool: bool, visit_u64: u64, visit_i64: i64, visit_f64: f64, visit_str: &str);

                    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<$name, A::Error> {
                        while all.next_element::<IgnoredAny>()?.is_some() {}
                        Ok($name::default())
                    }

                    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        let mut of = $name::default();
                        while let Some(key) = map.next_key()? {
                            match key {
                                $($keys::$member => of.$member = map.next_value()?,)+
                                $keys::Other => { map.next_value::<IgnoredAny>()?; }
                            }
                        }
                        Ok(of)
                    }
                }
                json.deserialize_any(Members)
            }
        }
    };
}

members!(
    Event,
    EventKey {
        ph: "ph" as Scalar,
        cat: "cat" as Scalar,
        name: "name" as Scalar,
        ts: "ts" as Scalar,
        dur: "dur" as Scalar,
        args: "args" as Args
    }
);

members!(
    Args,
    ArgsKey {
        device: "device" as Scalar,
        stream: "stream" as Scalar,
        bytes: "bytes" as Scalar,
        begin_error: "begin_error_ns" as Scalar,
        duration_error: "duration_error_ns" as Scalar,
        part_of: "part of" as Scalar
    }
);

members!(
    Device,
    DeviceKey {
        id: "id" as Scalar,
        name: "name" as Scalar
    }
);

members!(
    Distributed,
    DistributedKey {
        rank: "rank" as Scalar,
        world_size: "world_size" as Scalar
    }
);

members!(
    OwnMembers,
    OwnKey {
        verdict: "verdict" as Scalar,
        exit_status: "exit_status" as Scalar,
        untimed: "untimed" as Scalar
    }
);

/// The rank of a file, and the number of ranks.
struct Numbers {
    rank: Option<u64>,
    world_size: Option<u64>,
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        let of = Distributed::deserialize(json)?;
        Ok(Self {
            rank: of.rank.whole(),
            world_size: of.world_size.whole(),
        })
    }
}

struct OwnWords(Own);

impl<'de> Deserialize<'de> for OwnWords {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        let of = OwnMembers::deserialize(json)?;
        let status = of.exit_status.whole();
        Ok(Self(Own {
            verdict: of.verdict.text(),
            status: status.and_then(|n| u8::try_from(n).ok()),
            untimed: of.untimed.whole().unwrap_or(0),
        }))
    }
}

/// The GPUs of a file.
struct Devices<'a>(&'a mut About);

impl Take for Devices<'_> {
    fn take<'de, A: SeqAccess<'de>>(&mut self, all: &mut A) -> Result<Option<()>, A::Error> {
        let Some(device) = all.next_element::<Device>()? else {
            return Ok(None);
        };
        let id = device.id.whole().and_then(|id| u32::try_from(id).ok());
        if let (Some(id), Some(name)) = (id, device.name.text()) {
            self.0.gpu(id, name);
        }
        Ok(Some(()))
    }
}

/// The events of a file.
struct Events<'a>(&'a mut dyn Works);

impl Take for Events<'_> {
    fn take<'de, A: SeqAccess<'de>>(&mut self, all: &mut A) -> Result<Option<()>, A::Error> {
        if !self.0.goes_on() {
            return Err(A::Error::custom(STOPPED));
        }
        let Some(event) = all.next_element::<Event>()? else {
            return Ok(None);
        };
        self.event(event);
        Ok(Some(()))
    }
}

impl Events<'_> {
    fn event(&mut self, event: Event) {
        let (Some(ph), Some(category)) = (event.ph.text(), event.cat.text()) else {
            return;
        };
        let name = event.name.text().unwrap_or_default();
        let part = match &event.args.part_of {
            Scalar::Text(part) => part_of(part),
            _ => None,
        };
        // Those with a capital are of PyTorch 1.
        let what = match (&*category, part) {
            ("kernel" | "Kernel", _) => What::Kernel(&name),
            ("gpu_memcpy" | "Memcpy" | "gpu_memset" | "Memset", Some(part)) => What::Driver(part),
            ("gpu_memcpy" | "Memcpy", None) => What::Copy(direction(&name)),
            ("gpu_memset" | "Memset", None) => What::Memset,
            _ => return,
        };
        if ph != "X" {
            return;
        }
        let ns = |us: &Scalar| us.number().map(|us| (us * 1000.0).round() as u64);
        let number = |of: &Scalar| of.whole().and_then(|n| u32::try_from(n).ok());
        let error = |of: &Scalar| of.whole().unwrap_or(0);
        let args = &event.args;
        self.0.work(&Work {
            what,
            gpu: number(&args.device),
            stream: number(&args.stream),
            times: ns(&event.ts).zip(ns(&event.dur)),
            errors: (error(&args.begin_error), error(&args.duration_error)),
            bytes: args.bytes.whole().unwrap_or(0),
        });
    }
}

fn part_of(name: &str) -> Option<PartOf> {
    [PartOf::Context, PartOf::Module]
        .into_iter()
        .find(|part| part.name() == name)
}

/// The direction of a copy by its name: `Memcpy HtoD (Pageable -> Device)`.
fn direction(name: &str) -> Option<Direction> {
    Some(match name.strip_prefix("Memcpy ")?.split(' ').next()? {
        "HtoD" => Direction::HostToDevice,
        "DtoH" => Direction::DeviceToHost,
        "DtoD" => Direction::DeviceToDevice,
        "HtoH" => Direction::HostToHost,
        "PtoP" => Direction::PeerToPeer,
        "HtoA" => Direction::HostToArray,
        "AtoH" => Direction::ArrayToHost,
        "DtoA" => Direction::DeviceToArray,
        "AtoD" => Direction::ArrayToDevice,
        "AtoA" => Direction::ArrayToArray,
        _ => return None,
    })
}
