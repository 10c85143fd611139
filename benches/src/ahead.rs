//! What making a pod's link before its ADD would cost: before there is a sandbox both ends can only
//! be made on the host, and ADD has to move one of them (docs/decisions/0021).

use std::time::Instant;

use podwire_tests::TestNode;
use serde::Serialize;

use crate::error::Error;
use crate::netlink::Wirer;
use crate::run::settle;
use crate::sample::micros;
use crate::seat::Seat;

/// Both ways, in microseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Ahead {
    /// A pair made in its place, as ADD does.
    pub in_place: Vec<f64>,
    /// What would be left to ADD of a pair made before: the move of its end.
    pub moved: Vec<f64>,
}

/// Measures both ways in turn.
///
/// # Errors
/// The kernel refused a message.
pub fn compare(node: &TestNode, seat: &Seat<'_>, rounds: usize) -> Result<Ahead, Error> {
    let mut ahead = Ahead::default();
    for _ in 0..rounds {
        ahead.in_place.push(timed(node, seat, true)?);
        settle(node)?;
        ahead.moved.push(timed(node, seat, false)?);
        settle(node)?;
    }
    Ok(ahead)
}

fn timed(node: &TestNode, seat: &Seat<'_>, in_place: bool) -> Result<f64, Error> {
    node.place().run(|| {
        let mut wirer = Wirer::open()?;
        let making = Instant::now();
        let host = wirer.pair(seat, in_place)?;
        let mut took = making.elapsed();
        if !in_place {
            let moving = Instant::now();
            wirer.move_in(seat, host)?;
            took = moving.elapsed();
        }
        wirer.delete(host)?;
        Ok(micros(took))
    })
}
