//! `podwire check`: compares every attachment with what its ADD created.

use clap::Args;

use super::paint::{Paint, printable, short_id};
use super::{AnswerArgs, Exit, ToolError};
use podwire::inspect::{AuditList, Filter};
use podwire::reconcile::Audit;

/// The flags of `podwire check`.
#[derive(Debug, Args)]
#[command(after_help = super::EXIT_CODES)]
pub struct CheckArgs {
    /// The pod, NAMESPACE/NAME or NAME [default: every pod of the node]
    pod: Option<String>,
    /// Check every pod of the node, which is also the default
    #[arg(long, conflicts_with = "pod")]
    all: bool,
    /// Also list attachments without differences
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    answer: AnswerArgs,
}

impl CheckArgs {
    pub(super) async fn run(self) -> Result<Exit, ToolError> {
        let filter = Filter {
            pod: self.pod.clone(),
            ..Filter::default()
        };
        let agent = self.answer.agent().checking();
        let list: AuditList = agent.get(&format!("/v1/check{filter}")).await?;
        if let Some(pod) = self.pod.filter(|_| list.attachments.is_empty()) {
            return Err(ToolError::NotFound(format!(
                "no attachment of a pod {pod} on this node\nlook: podwire ports"
            )));
        }
        self.answer
            .show(&list, |paint| text(&list.attachments, self.verbose, paint))?;
        agent.sees_the_switch().await?;
        let all_well = list.attachments.iter().all(|it| it.differences.is_empty());
        Ok(Exit::by_health(all_well))
    }
}

fn text(audits: &[Audit], verbose: bool, paint: Paint) -> String {
    let mut text = String::new();
    for audit in audits {
        let name = printable(&name(audit));
        let word = match (audit.busy, audit.differences.is_empty()) {
            (true, _) if verbose => paint.doubtful("busy"),
            (false, true) if verbose => paint.good("ok"),
            (_, true) => continue,
            (_, false) => paint.bad("differs"),
        };
        text.push_str(&format!("{name}  {word}\n"));
        for difference in &audit.differences {
            text.push_str(&format!("  {}\n", printable(&difference.what)));
            if let Some(fix) = &difference.fix {
                text.push_str(&format!("    fix: {}\n", paint.command(&printable(fix))));
            }
        }
    }
    let differ = audits
        .iter()
        .filter(|it| !it.differences.is_empty())
        .count();
    let busy = audits.iter().filter(|it| it.busy).count();
    let well = audits.len() - differ - busy;
    let mut parts = vec![format!("{well} as they should be")];
    if differ > 0 {
        parts.push(paint.bad(&format!("{differ} differ")));
    }
    if busy > 0 {
        parts.push(format!("{busy} being worked on"));
    }
    let total = match audits.len() {
        1 => "1 attachment".to_owned(),
        number => format!("{number} attachments"),
    };
    text + &format!("{total}: {}\n", parts.join(", "))
}

fn name(audit: &Audit) -> String {
    let id = short_id(&audit.key.container_id);
    match &audit.pod {
        Some(pod) => format!("{pod} {} ({id})", audit.key.ifname),
        None => format!("container {id} {}", audit.key.ifname),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwire::attach::Difference;
    use podwire::plan::AttachmentKey;

    #[test]
    fn differences_are_listed_with_the_command_that_fixes_them() {
        let audit = |pod: &str, busy, differences| Audit {
            key: AttachmentKey {
                network: "pods".into(),
                container_id: "3f2b9c0d1e4a5b6c7d8e9f00".into(),
                ifname: "eth0".into(),
            },
            pod: Some(pod.into()),
            netns: None,
            busy,
            differences,
        };
        let down = Difference {
            kind: None,
            what: "the host's link 3f2b9c0d1e4a5b6 is down".into(),
            fix: Some("ip link set 3f2b9c0d1e4a5b6 up".into()),
        };
        let lost = Difference {
            kind: None,
            what: "Open vSwitch has no port".into(),
            fix: None,
        };
        let audits = [
            audit("web/a", false, vec![]),
            audit("web/b", false, vec![down, lost]),
            audit("web/c", true, vec![]),
        ];
        insta::assert_snapshot!(text(&audits, false, Paint::PLAIN));
        insta::assert_snapshot!(text(&audits, true, Paint::PLAIN));
    }
}
