//! `podwire gc`: finds and removes what pods left behind.

use clap::Args;

use super::paint::{Paint, pod_or_container, printable, short_id};
use super::table::table;
use super::{AnswerArgs, Exit, ToolError};
use podwire::inspect::LeftoverList;

/// The flags of `podwire gc`.
#[derive(Debug, Args)]
#[command(
    after_help = "It removes only what podwire created, if both link and namespace are gone.\n\
                  Exit code 1: something could not be removed; with --dry-run: there is something \
                  to remove."
)]
pub struct GcArgs {
    /// Print what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Omit the table's header
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    answer: AnswerArgs,
}

impl GcArgs {
    pub(super) async fn run(self) -> Result<Exit, ToolError> {
        let agent = self.answer.agent().checking();
        let list: LeftoverList = match self.dry_run {
            true => agent.get("/v1/gc").await?,
            false => agent.post("/v1/gc").await?,
        };
        self.answer.show(&list, |paint| {
            text(&list, self.dry_run, self.no_headers, paint)
        })?;
        agent.sees_the_switch().await?;
        let remains = |it: &podwire::reconcile::Leftover| !it.removed;
        let has_qos = self.dry_run && list.qos_rows > 0;
        Ok(Exit::by_health(
            !has_qos && !list.leftovers.iter().any(remains),
        ))
    }
}

fn text(list: &LeftoverList, dry_run: bool, bare: bool, paint: Paint) -> String {
    if list.leftovers.is_empty() && list.qos_rows == 0 {
        return match bare {
            true => String::new(),
            false => "nothing is left over\n".to_owned(),
        };
    }
    let rows: Vec<[String; 5]> = list
        .leftovers
        .iter()
        .map(|it| {
            let id = short_id(&it.key.container_id);
            let done = match (&it.problem, it.removed) {
                (Some(problem), _) => format!("stays: {problem}"),
                (None, true) => "removed".to_owned(),
                (None, false) => "would be removed".to_owned(),
            };
            let pod = pod_or_container(it.pod.as_deref(), Some(&it.key.container_id));
            [pod, id, it.ports.join(","), it.reason.clone(), done].map(|cell| printable(&cell))
        })
        .collect();
    let headings = ["POD", "CONTAINER", "PORT", "WHY", ""];
    let mut text = match rows.is_empty() {
        true => String::new(),
        false => table(
            (!bare).then_some(headings),
            &rows,
            |row, column, cell| match column {
                4 if list.leftovers[row].problem.is_some() => paint.bad(cell),
                4 => paint.good(cell),
                _ => cell.to_owned(),
            },
        ),
    };
    if bare {
        return text;
    }
    if list.qos_rows > 0 {
        let done = if dry_run {
            "would be removed"
        } else {
            "removed"
        };
        text.push_str(&format!(
            "{}, which no port uses any more: {}\n",
            qos_rows(list.qos_rows),
            paint.good(done)
        ));
    }
    if dry_run {
        text.push_str(&format!("remove them: {}\n", paint.command("podwire gc")));
    }
    text
}

/// `1 QoS row`, `2 QoS rows`.
pub(super) fn qos_rows(number: usize) -> String {
    match number {
        1 => "1 QoS row".to_owned(),
        number => format!("{number} QoS rows"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwire::plan::AttachmentKey;
    use podwire::reconcile::Leftover;

    #[test]
    fn each_leftover_is_told_with_its_reason_and_what_became_of_it() {
        let leftover = |pod: Option<&str>, removed, problem: Option<&str>| Leftover {
            key: AttachmentKey {
                network: "pods".into(),
                container_id: "3f2b9c0d1e4a5b6c7d8e9f00".into(),
                ifname: "eth0".into(),
            },
            pod: pod.map(str::to_owned),
            ports: vec!["3f2b9c0d1e4a5b6".into()],
            reason: "its link and its network namespace are gone".into(),
            removed,
            problem: problem.map(str::to_owned),
        };
        let found = LeftoverList {
            leftovers: vec![leftover(Some("web/a"), false, None)],
            qos_rows: 0,
        };
        insta::assert_snapshot!(text(&found, true, false, Paint::PLAIN));
        let done = LeftoverList {
            leftovers: vec![
                leftover(Some("web/a"), true, None),
                leftover(None, false, Some("no answer")),
            ],
            qos_rows: 2,
        };
        insta::assert_snapshot!(text(&done, false, false, Paint::PLAIN));
    }
}
