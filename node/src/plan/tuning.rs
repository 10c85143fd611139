//! Settings of Open vSwitch's daemons for processors and memory, as in MicroShift: drop-ins of
//! their units, which apply at their next start, and columns, which apply at once. And the size of
//! the kernel's connection tracking table, which ovs-vswitchd walks for each pod with OVN.

use itertools::Itertools as _;

use super::{Plan, sysctl};
use crate::actual::UNITS;
use crate::items::{Actual, CONNTRACK_BUCKETS, Claim, File, Item, Key};
use crate::settings::{Settings, Tuning};
use crate::{CONFIG, FILE_MARK};

/// podwire's file beside a unit.
pub(crate) fn drop_in(unit: &str) -> String {
    format!("/etc/systemd/system/{unit}.d/90-podwire.conf")
}

impl Plan {
    /// Adds the settings of Open vSwitch's daemons.
    ///
    /// # Errors
    /// There is no such unit here, as text.
    pub(super) fn tune(&mut self, settings: &Settings, actual: &Actual) -> Result<(), String> {
        let Tuning {
            cpus,
            no_mlockall,
            handlers,
            revalidators,
            buckets,
        } = &settings.tuning;
        self.items.extend(
            buckets.map(|buckets| sysctl(CONNTRACK_BUCKETS.to_owned(), &buckets.to_string())),
        );
        for (key, threads) in [
            ("n-handler-threads", handlers),
            ("n-revalidator-threads", revalidators),
        ] {
            if let Some(threads) = threads {
                self.items.push(Item::Key(Key {
                    key: format!("{CONFIG}{key}"),
                    value: threads.to_string(),
                    claim: Claim::Replace,
                }));
            }
        }
        for unit in UNITS {
            let mut lines = Vec::new();
            if let Some(cpus) = cpus {
                lines.push(format!("CPUAffinity={cpus}"));
            }
            if *no_mlockall && unit == UNITS[0] {
                let start = actual.units.get(unit).map(|text| starts(text));
                let start = start.unwrap_or_default();
                let [start] = &start[..] else {
                    return Err(format!(
                        "--ovs-no-mlockall: {unit} does not start Open vSwitch by one ovs-ctl: \
                         leave it out, and set it as your system has it"
                    ));
                };
                // A command is replaced by clearing it first (systemd.service(5)).
                lines.push("ExecStart=".to_owned());
                lines.push(format!("ExecStart={start} --no-mlockall"));
            }
            if lines.is_empty() {
                continue;
            }
            if !actual.units.contains_key(unit) {
                return Err(format!(
                    "there is no unit {unit} here: omit --ovs-cpus and --ovs-no-mlockall, or run \
                     this on the machine itself"
                ));
            }
            self.items.push(Item::File(File {
                path: drop_in(unit),
                text: format!("{FILE_MARK}\n[Service]\n{}\n", lines.join("\n")),
            }));
        }
        if cpus.is_some() || *no_mlockall {
            self.verdict.push(
                "the processors and --no-mlockall take effect at Open vSwitch's next start, after \
                 `systemctl daemon-reload`"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

/// The commands in a unit's text that start ovs-ctl, each on one line.
fn starts(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let commands = text
        .lines()
        .filter_map(|line| line.strip_prefix("ExecStart="));
    let words = commands.map(|command| command.split_whitespace().join(" "));
    words
        .filter(|command| command.contains("ovs-ctl") && !command.contains("--no-mlockall"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_s_command_over_several_lines_is_one() {
        let unit = "[Service]\nExecStart=/usr/share/openvswitch/scripts/ovs-ctl \\\n          \
                    --no-ovsdb-server --no-monitor \\\n          start $OVS_CTL_OPTS\n\
                    ExecStop=/usr/share/openvswitch/scripts/ovs-ctl stop\n";
        assert_eq!(
            starts(unit),
            [
                "/usr/share/openvswitch/scripts/ovs-ctl --no-ovsdb-server --no-monitor start \
              $OVS_CTL_OPTS"
            ]
        );
    }
}
