//! A policy for people.

use std::fmt;

use itertools::Itertools as _;

use super::rows::{MembersState, RowState};
use super::{Answer, PeerAnswer, Pods, PortAnswer, RuleAnswer};
use crate::diff::IN_SYNC;

/// The most names in a line.
const MOST: usize = 10;

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, content: &str| writeln!(f, "{name:<10} {content}");
        line("policy", &self.policy)?;
        for problem in &self.problems {
            line("mistake", problem)?;
        }
        if let Some(level) = &self.level {
            line("place", level)?;
        }
        if !self.selector.is_empty() {
            line("selects", &format!("{} ({})", self.selects, self.selector))?;
        }
        if !self.isolates.is_empty() {
            line("isolates", &self.isolates.iter().join(", "))?;
        }
        for rule in &self.rules {
            let heading = format!("{} {}", rule.direction, rule.number).to_lowercase();
            line(&heading, &rule.does())?;
            for content in rule.lines() {
                line("", &content)?;
            }
        }
        for direction in &self.isolates {
            if !self.rules.iter().any(|rule| rule.direction == *direction) {
                let name = direction.to_string().to_lowercase();
                line(&name, "no rule: it allows nothing")?;
            }
        }
        for row in &self.rows {
            line("row", &row.to_string())?;
        }
        if self.superfluous_rows > 0 {
            let count = self.superfluous_rows;
            line(
                "",
                &format!("and {count} that should not be there: they are removed"),
            )?;
        }
        let state = match self.is_in_sync {
            true => "in sync: the northbound database has all of it",
            false => "not in sync: see the rows; a leader that runs makes them so",
        };
        line("state", state)
    }
}

impl RuleAnswer {
    /// `Deny (name)`; nothing for a NetworkPolicy's.
    fn does(&self) -> String {
        let action = self.action.map_or_else(String::new, |it| format!("{it:?}"));
        match &self.name {
            Some(name) => format!("{action} ({name})"),
            None => action,
        }
    }

    fn lines(&self) -> Vec<String> {
        let peers = self.peers.as_ref();
        let peers = peers.map_or_else(
            || vec!["everybody".to_owned()],
            |all| all.iter().map(ToString::to_string).collect(),
        );
        let ports = self.ports.as_ref();
        let ports = ports.map_or_else(
            || vec!["all".to_owned()],
            |all| all.iter().map(ToString::to_string).collect(),
        );
        let from = match self.direction {
            crate::cluster::policy::Direction::Ingress => "from",
            crate::cluster::policy::Direction::Egress => "to",
        };
        let peers = peers.into_iter().map(|it| format!("{from} {it}"));
        let nothing = |word: &str| format!("{word}: nothing that can be read");
        let (mut peers, mut ports): (Vec<_>, Vec<_>) = (
            peers.collect(),
            ports.into_iter().map(|it| format!("ports {it}")).collect(),
        );
        if peers.is_empty() {
            peers.push(nothing(from));
        }
        if ports.is_empty() {
            ports.push(nothing("ports"));
        }
        peers.append(&mut ports);
        peers
    }
}

impl fmt::Display for PeerAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.peer)?;
        match &self.pods {
            Some(pods) => write!(f, ": {pods}"),
            None if self.networks.len() == 1 => Ok(()),
            None => write!(f, ": {} networks", self.networks.len()),
        }
    }
}

impl fmt::Display for PortAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.ports)?;
        let numbers = self.numbers.iter();
        let mut parts: Vec<String> = numbers
            .map(|(number, pods)| format!("{number} of {pods}"))
            .collect();
        parts.extend(
            self.without
                .iter()
                .map(|pods| format!("no number of {pods}")),
        );
        match parts.is_empty() {
            true => Ok(()),
            false => write!(f, ": {}", parts.join("; ")),
        }
    }
}

/// `3 pods: a/b, c/d, and 1 more`.
impl fmt::Display for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let few = &self.names[..self.count.min(MOST)];
        match self.count {
            0 => return f.write_str("no pod"),
            1 => write!(f, "1 pod: ")?,
            count => write!(f, "{count} pods: ")?,
        }
        f.write_str(&few.join(", "))?;
        match self.count - few.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl fmt::Display for RowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RowState {
            table,
            name,
            content,
            ..
        } = self;
        write!(f, "{table} {name} ({content}): ")?;
        if let Some(members) = &self.members {
            write!(f, "{members}, ")?;
        }
        match self.state {
            "foreign" => f.write_str("foreign: it belongs to somebody else"),
            state => f.write_str(state),
        }?;
        match &self.differs[..] {
            [] => Ok(()),
            columns => write!(f, " in {}", columns.join(", ")),
        }?;
        match self.state == IN_SYNC && !self.is_in_sync() {
            true => f.write_str(" but for its members"),
            false => Ok(()),
        }
    }
}

impl fmt::Display for MembersState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.wanted {
            1 => f.write_str("1 member")?,
            count => write!(f, "{count} members")?,
        }
        for (name, members) in [
            ("missing", &self.missing),
            ("superfluous", &self.superfluous),
        ] {
            if !members.is_empty() {
                write!(f, ", {} {name} ({})", members.len(), listed(members))?;
            }
        }
        Ok(())
    }
}

fn listed(names: &[String]) -> String {
    match names.get(..MOST) {
        Some(few) if names.len() > MOST => format!("{}, …", few.join(", ")),
        _ => names.join(", "),
    }
}
