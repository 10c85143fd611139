//! The services that nft refuses, as the role reports them: in its status, as a number, and by an
//! Event on each.

use std::collections::BTreeMap;

use podwire_apiserver::event::Warning;
use podwire_cluster::ObjectName;

use crate::watch::Watch;

/// The number of services that the status names.
const MOST_NAMED: usize = 3;

/// The refused services as last reported, each with what nft said.
#[derive(Debug, Default)]
pub(crate) struct LeftOut(BTreeMap<ObjectName, String>);

impl LeftOut {
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Replaces them, and posts an Event for each new one.
    pub(crate) fn report<'a>(
        &mut self,
        refused: impl Iterator<Item = (&'a ObjectName, &'a str)>,
        watch: &Watch,
        host: &str,
    ) {
        let refused = refused.map(|(name, said)| (name.clone(), said.to_owned()));
        let before = std::mem::replace(&mut self.0, refused.collect());
        let new = self.0.iter();
        for (name, said) in new.filter(|(name, said)| before.get(*name) != Some(said)) {
            let service = watch.cluster.services.objects.get(name);
            watch.events.post(Warning {
                api: "v1",
                kind: "Service",
                namespace: name.0.to_string(),
                name: name.1.to_string(),
                uid: service.map_or_else(String::new, |service| service.uid.to_string()),
                reason: "Refused",
                message: format!("node {host} does not serve it: nft refuses it: {said}"),
            });
        }
    }

    /// The lines of the role's status.
    pub(crate) fn status(&self) -> Vec<String> {
        let named = self.0.iter().take(MOST_NAMED);
        let line = |((namespace, name), said): (&ObjectName, &String)| {
            format!("service {namespace}/{name} is left out: nft refuses it: {said}")
        };
        let mut lines: Vec<String> = named.map(line).collect();
        if let Some(more @ 1..) = self.0.len().checked_sub(MOST_NAMED) {
            lines.push(format!(
                "{more} more services are left out; see their Events"
            ));
        }
        lines
    }
}
