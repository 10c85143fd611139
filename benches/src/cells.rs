//! The situations that are measured.

use serde::{Deserialize, Serialize};

/// One situation.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Its name in report.json, and what a bar refers to.
    pub name: &'static str,
    /// Its title for people.
    pub title: &'static str,
    /// How many operations are under way at once.
    pub threads: usize,
    /// Pods in a batch.
    pub pods: usize,
    /// How many batches each subject gets.
    pub rounds: usize,
    /// Whether a round begins with the flows that the ones before it left in the datapath.
    pub keeps_flows: bool,
}

/// How much of everything: daily use, or the numbers that go into the note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extent {
    /// Under two minutes.
    Quick,
    /// All samples that the bars ask for.
    Full,
}

impl Extent {
    fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }

    /// One pod at a time, few ports present.
    pub fn one(self) -> Cell {
        Cell {
            name: "one",
            title: "one at a time",
            threads: 1,
            pods: 1,
            rounds: self.pick(40, 120),
            keeps_flows: false,
        }
    }

    /// Eight at a time; 2,048 pooled samples in the full extent.
    pub fn eight(self) -> Cell {
        Cell {
            name: "eight",
            title: "8 at a time",
            threads: 8,
            pods: 64,
            rounds: self.pick(6, 32),
            keeps_flows: false,
        }
    }

    /// Thirty-two at a time.
    pub fn thirty_two(self) -> Cell {
        Cell {
            name: "thirty-two",
            title: "32 at a time",
            threads: 32,
            pods: 128,
            rounds: self.pick(1, 3),
            keeps_flows: false,
        }
    }

    /// A burst of 200, 32 at a time.
    pub fn burst(self) -> Cell {
        Cell {
            name: "burst",
            title: "burst of 200, 32 at a time",
            threads: 32,
            pods: 200,
            rounds: self.pick(1, 3),
            keeps_flows: false,
        }
    }

    /// Both address families.
    pub fn dual(self) -> Cell {
        Cell {
            name: "dual",
            title: "dual stack, one at a time",
            threads: 1,
            pods: 1,
            rounds: self.pick(20, 60),
            keeps_flows: false,
        }
    }

    /// One at a time without addresses, on bridges that configurations name: the node's own,
    /// another beside it, or three of them.
    pub fn bridges(self) -> Cell {
        Cell {
            name: "bridges",
            title: "on the node's own bridge, on a second one, and on three, one at a time",
            threads: 1,
            pods: 1,
            rounds: self.pick(20, 120),
            keeps_flows: false,
        }
    }

    /// One at a time until OVN has installed the port.
    pub fn ovn(self) -> Cell {
        Cell {
            name: "ovn",
            title: "OVN, dual stack, one at a time",
            threads: 1,
            pods: 1,
            rounds: self.pick(20, 60),
            keeps_flows: false,
        }
    }

    /// Eight at a time with OVN.
    pub fn ovn_eight(self) -> Cell {
        Cell {
            name: "ovn-eight",
            title: "OVN, dual stack, 8 at a time",
            threads: 8,
            pods: 64,
            rounds: self.pick(6, 16),
            keeps_flows: false,
        }
    }

    /// So many at a time, for the plot of throughput.
    pub fn throughput(self) -> Vec<Cell> {
        let threads: &[usize] = self.pick(&[2, 16], &[1, 2, 4, 16]);
        threads
            .iter()
            .copied()
            .map(|threads| Cell {
                name: "throughput",
                title: "throughput",
                threads,
                pods: 48,
                rounds: self.pick(1, 2),
                keeps_flows: false,
            })
            .collect()
    }

    /// One at a time, with ports present.
    pub fn beside_ports(self) -> Cell {
        Cell {
            name: "ports",
            title: "one at a time beside other pods",
            threads: 1,
            pods: 1,
            rounds: self.pick(15, 30),
            keeps_flows: false,
        }
    }

    /// How many pods are present in the runs of [`Self::beside_ports`].
    pub fn ports_present(self) -> &'static [usize] {
        self.pick(&[10, 100], &[10, 100, 500, 1000])
    }

    /// In every how many rounds a slow subject takes part.
    pub fn slow(self) -> usize {
        self.pick(3, 8)
    }

    /// How often each way of committing a burst's ports is measured.
    pub fn commit_rounds(self) -> usize {
        self.pick(1, 4)
    }
}
