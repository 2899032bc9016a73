//! Driver versions: the release tag of NVIDIA's kernel module, such as `580.159.04`.

use std::{fmt, str::FromStr};

/// A driver release, compared number by number.
///
/// Numeric order is not release order on side branches (535.43.x came after 535.54). The tables, however, give layouts for numeric ranges
/// of release tags, so look-ups use numeric order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Branch: 580 of 580.159.04.
    pub major: u16,
    /// Second number: 159 of 580.159.04.
    pub minor: u16,
    /// Third number: 4 of 580.159.04; 0 for a release with two numbers (565.77).
    pub patch: u16,
}

impl Version {
    /// Makes a version of its three numbers.
    #[must_use]
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.major, self.minor)?;
        if self.patch != 0 {
            write!(f, ".{:02}", self.patch)?;
        }
        Ok(())
    }
}

/// Error: the text is not a driver version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a driver version: two or three numbers with points, such as 580.159.04, are needed"
)]
pub struct NotAVersion(String);

impl FromStr for Version {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NotAVersion(text.to_owned());
        let mut parts = text.trim().split('.');
        let mut next = || parts.next().map(|p| p.parse::<u16>().map_err(|_| wrong()));
        let major = next().ok_or_else(wrong)??;
        let minor = next().ok_or_else(wrong)??;
        let patch = next().transpose()?.unwrap_or(0);
        if next().is_some() || major < 100 {
            return Err(wrong());
        }
        Ok(Self::new(major, minor, patch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_prints() {
        for text in ["580.159.04", "565.77", "515.43.04", "535.288.01"] {
            assert_eq!(text.parse::<Version>().unwrap().to_string(), text);
        }
        for wrong in ["", "580", "580.1.2.3", "a.b.c", "1.2.3", "580.-1"] {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
        assert!(Version::new(580, 65, 6) < Version::new(580, 159, 4));
    }
}
