//! Who is measured: podwire, the floor under it, and what users have today.

mod bridge;
mod floor;
mod forking;
mod podwire;

use std::time::Duration;

use crate::error::Error;
use crate::sample::Sample;
use crate::seat::Seat;

pub use bridge::BridgePlugin;
pub use floor::Floor;
pub use forking::Forking;
pub use podwire::Podwire;

/// Something that attaches pods and detaches them again.
pub trait Subject: Sync {
    /// Its name in the report.
    fn name(&self) -> &'static str;

    /// What one thread works with; called on that thread, on the node.
    ///
    /// # Errors
    /// Something could not be opened.
    fn worker(&self) -> Result<Box<dyn Worker + '_>, Error>;

    /// Adds to the samples of a finished batch what is known only afterwards.
    ///
    /// # Errors
    /// It could not be had.
    fn explain(&self, samples: &mut [Sample]) -> Result<(), Error> {
        let _ = samples;
        Ok(())
    }

    /// Whether CHECK can be measured.
    fn has_check(&self) -> bool {
        false
    }
}

/// One thread's share of a subject.
pub trait Worker {
    /// Attaches a pod.
    ///
    /// # Errors
    /// It failed; the benchmark ends.
    fn add(&mut self, seat: &Seat<'_>) -> Result<Sample, Error>;

    /// Detaches it.
    ///
    /// # Errors
    /// It failed; the benchmark ends.
    fn del(&mut self, seat: &Seat<'_>) -> Result<Sample, Error>;

    /// CHECKs it, with the result of its ADD.
    ///
    /// # Errors
    /// It failed; the benchmark ends.
    fn check(&mut self, seat: &Seat<'_>) -> Result<Sample, Error> {
        Ok(Sample::whole(&seat.pod.container, Duration::ZERO))
    }
}
