use std::fmt::Write as _;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use podwire_ovs::nb::{EPOCH, Table};

use super::{ToolError, View};
use crate::config::Config;
use crate::lease::NAME;
use crate::write::Write;

/// How many problems, and keys with something to do, are shown.
const MOST: usize = 20;

/// Who leads, what there is, and what is not as it should be; true when all of it is well.
///
/// # Errors
/// See [`ToolError`].
pub async fn status(config: &Config) -> Result<(String, bool), ToolError> {
    let mut view = View::open(config).await?;
    let leases: Api<Lease> = Api::namespaced(view.client.clone(), &config.lease_namespace);
    let lease = leases.get_opt(NAME).await?;
    let (leader, has_leader) = leader(lease.as_ref());
    let mut text = format!("leader    {leader}\n");
    let epoch = view.ovsdb.read(|db| {
        let global = db.nb_global()?;
        global.map("external_ids").str(EPOCH).map(str::to_owned)
    });
    line(
        &mut text,
        "epoch",
        epoch
            .as_deref()
            .unwrap_or("none: no controller has led yet"),
    );
    let cluster = &view.state.cluster;
    let objects = format!(
        "{} nodes, {} pods on the pod network, {} services with cluster IPs",
        cluster.nodes.len(),
        cluster.pods.len(),
        cluster.services.len()
    );
    line(&mut text, "objects", &objects);
    let rows = view.ovsdb.read(|db| {
        let counts = Table::ALL.map(|table| format!("{} {}", table.name(), db.len(table.name())));
        counts.join(", ")
    });
    line(&mut text, "rows", &rows);
    let step = view.pending();
    let pending = match (step.transaction.len(), step.writes.len()) {
        (0, 0) => "nothing: rows and annotations are as the objects ask for".to_owned(),
        (operations, writes) => format!(
            "{operations} operations and {writes} writes to Kubernetes; --dry-run shows them"
        ),
    };
    line(&mut text, "pending", &pending);
    let problems = step.writes.iter().filter_map(|(key, write)| match write {
        Write::Warning { message, .. } => Some(format!("{key}: {message}")),
        _ => None,
    });
    let problems: Vec<_> = problems.collect();
    for problem in problems.iter().take(MOST) {
        line(&mut text, "problem", problem);
    }
    if problems.len() > MOST {
        line(
            &mut text,
            "",
            &format!("and {} more", problems.len() - MOST),
        );
    }
    Ok((text, has_leader && problems.is_empty()))
}

fn line(text: &mut String, name: &str, content: &str) {
    // A String takes everything.
    let _ = writeln!(text, "{name:<9} {content}");
}

/// Who leads, and whether somebody does.
fn leader(lease: Option<&Lease>) -> (String, bool) {
    let Some(spec) = lease.and_then(|lease| lease.spec.as_ref()) else {
        return (format!("none: there is no Lease {NAME}"), false);
    };
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    if holder.is_empty() {
        return ("none: the last one let go".to_owned(), false);
    }
    let renewed = spec
        .renew_time
        .as_ref()
        .map_or(0, |time| time.0.as_second());
    let ago = Timestamp::now().as_second() - renewed;
    let lasts: i64 = spec.lease_duration_seconds.unwrap_or_default().into();
    match ago <= lasts {
        true => (
            format!("{holder}, which renewed its lease {ago} s ago"),
            true,
        ),
        false => {
            let text = format!(
                "none: {holder} has not renewed its lease for {ago} s, and it lasts {lasts} s"
            );
            (text, false)
        }
    }
}
