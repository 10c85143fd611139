//! The cells with OVN: logical ports made beforehand, ADD ends when ovn-controller says that the
//! port is installed. On real OVN, one chassis.

use podwire_tests::ovn::{Central, OvnNode};

use crate::cells::Cell;
use crate::error::Error;
use crate::perf::Functions;
use crate::report::CellReport;
use crate::run::{Entrant, cell};
use crate::seat::Seat;
use crate::subject::Podwire;
use crate::switch;

/// Measures podwire's ADD and DEL in OVN mode, in each of these situations; `by_function` also
/// reports in which functions ovs-vswitchd spends its time.
///
/// # Errors
/// OVN could not be started, or an operation failed.
pub fn measure(
    situations: Vec<Cell>,
    agent_flags: &[String],
    by_function: bool,
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
        if by_function {
            let seats = &seats[..situation.pods];
            let [add, del] = switch::functions(&node, &podwire, seats, situation.threads, 2)?;
            for (verb, functions) in [("ADD", add), ("DEL", del)] {
                progress(&format!(
                    "{}, {verb}: {}",
                    situation.title,
                    longest(functions)
                ));
            }
        }
        reports.push(CellReport {
            cell: situation,
            measured,
        });
    }
    Ok(reports)
}

/// The functions that take longest, in milliseconds per operation.
fn longest(functions: Functions) -> String {
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_by(|a, b| b.1.total_cmp(&a.1));
    let texts = functions.iter().take(40);
    let texts: Vec<_> = texts
        .map(|(name, time)| format!("{name} {time:.2}"))
        .collect();
    texts.join(", ")
}
