//! The processors that nvcap runs on, and what each is called by Rust, Debian and the cross compilers. Runs nothing.

/// A processor that nvcap runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Arch {
    /// AMD's and Intel's.
    #[value(name = "x86_64")]
    X86_64,
    /// Arm's: Grace, Jetson.
    #[value(name = "aarch64")]
    Aarch64,
}

impl Arch {
    /// That of the machine which builds.
    pub const HOST: Self = if cfg!(target_arch = "aarch64") {
        Self::Aarch64
    } else {
        Self::X86_64
    };

    /// Its name in Rust.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Its Rust target with glibc.
    pub fn gnu(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// Its Rust target with musl.
    pub fn musl(self) -> String {
        format!("{}-unknown-linux-musl", self.name())
    }

    /// Its name in Debian.
    pub fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// A program of binutils or gcc that knows this processor, with its Debian package.
    pub fn tool(self, name: &str) -> (String, String) {
        let package = if name == "gcc" { "gcc" } else { "binutils" };
        match self {
            Self::HOST => (name.to_owned(), package.to_owned()),
            _ => {
                let (gcc, packages) = self.cross();
                (
                    gcc.replace("gcc", name),
                    packages[0].replace("gcc", package),
                )
            }
        }
    }

    /// The C compiler that makes its programs on another machine, and Debian's packages of it and of the static glibc.
    pub fn cross(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::X86_64 => (
                "x86_64-linux-gnu-gcc",
                &["gcc-x86-64-linux-gnu", "libc6-dev-amd64-cross"],
            ),
            Self::Aarch64 => (
                "aarch64-linux-gnu-gcc",
                &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
            ),
        }
    }
}
