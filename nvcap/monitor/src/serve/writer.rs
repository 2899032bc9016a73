//! The interface by which metrics are written, one family after the other, in any format. Pure.

use crate::counts::delay::Delays;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A count of things: whole numbers that grow.
    Count,
    /// Any other sum that grows.
    Counter,
    Gauge,
    Histogram,
    Info,
}

/// Labels and their values, in the order in which they are written. Those without a value are left out.
pub(super) type Labels<'a> = [(&'a str, &'a str)];

/// A format of metrics.
pub(super) trait Writer {
    /// Begins a family. Its name ends with its unit, where it has one.
    fn family(&mut self, name: &'static str, kind: Kind, unit: &'static str, help: &'static str);
    /// A gauge's value.
    fn gauge(&mut self, labels: &Labels<'_>, value: f64);
    /// A counter's value, and when it was 0 (seconds since the epoch).
    fn counter(&mut self, labels: &Labels<'_>, value: f64, created: f64);
    /// Writes times in buckets, and the time from which they count (seconds since the epoch).
    fn histogram(&mut self, labels: &Labels<'_>, delays: &Delays, created: f64);
    /// Writes facts that never change, as labels.
    fn info(&mut self, labels: &Labels<'_>);
}
