//! The gate's part for packages: they are made, installed into a bare root, used and removed; the recipes are checked; and a fleet is run.

use anyhow::Result;

use super::{deploy, fleet, installed, rights};
use crate::{build, report::Report};

/// Makes the packages of this profile and checks them.
pub fn run(report: &mut Report, of: build::Profile) -> Result<()> {
    match super::make(of) {
        Err(error) => report.check("packages are made", Err(error)),
        Ok(made) => {
            report.check("packages are made", Ok(()));
            match &made.deb {
                Ok(deb) => {
                    installed::deb(report, deb, &made.program.with_file_name("softgpu"))?;
                }
                Err(why) => report.skip("deb", why),
            }
            match &made.rpm {
                Ok(rpm) => installed::rpm(report, rpm)?,
                Err(why) => report.skip("rpm", why),
            }
            report.check("tarball", installed::tarball(&made));
            deploy::image(report, &made.tarball);
            rights::check(report, &made.program);
            deploy::check(report, &made.program)?;
            fleet::check(report, &made.program)?;
        }
    }
    Ok(())
}
