//! The cells with OVN: logical ports made beforehand, ADD ends when ovn-controller says that the
//! port is installed. On real OVN, one chassis.

use podwire_tests::ovn::{Central, OvnNode};

use crate::cells::Cell;
use crate::error::Error;
use crate::report::CellReport;
use crate::run::{Entrant, cell};
use crate::seat::Seat;
use crate::subject::Podwire;

/// Measures podwire's ADD and DEL in OVN mode, in each of these situations.
///
/// # Errors
/// OVN could not be started, or an operation failed.
pub fn measure(
    situations: Vec<Cell>,
    agent_flags: &[String],
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<CellReport>, Error> {
    progress("starting OVN");
    let central = Central::start();
    let node = central.node("bench", 1);
    central.add_switch(&node);
    let options = OvnNode::agent_options()
        .with(["--log", "warn"])
        .with(agent_flags);
    let agent = node.start_agent(&options);
    let podwire = Podwire::new(&agent)?;
    let mut seats = Vec::new();
    let mut reports = Vec::new();
    for situation in situations {
        // The addresses below belong to the switch.
        const FIRST: u8 = 10;
        while seats.len() < situation.pods {
            let number = FIRST.saturating_add(u8::try_from(seats.len()).unwrap_or(u8::MAX));
            let (pod, _) = central.schedule(&node, &format!("bench{number}"), number);
            seats.push(Seat::scheduled(number.into(), pod));
        }
        let entrants = [Entrant {
            subject: &podwire,
            every: 1,
        }];
        let mut told = |round: usize| {
            progress(&format!("{}, round {}", situation.title, round + 1));
        };
        let measured = cell(&node, &situation, &entrants, &seats, &mut told)?;
        reports.push(CellReport {
            cell: situation,
            measured,
        });
    }
    Ok(reports)
}
