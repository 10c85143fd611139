//! `podwire bundle`: collects the state of a node for somebody elsewhere, in one file, without
//! secrets.
//!
//! It only reads, and what it asks is asked side by side, within [`LIMIT`]: on a broken node the
//! daemons are stuck, and this is the node whose bundle somebody needs. What should be there and is
//! not is listed as missing with the reason; what this machine does not have, such as a journal in
//! a container, as absent. The rest is written.

mod machine;
mod network;
mod switch;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use futures_util::future::{LocalBoxFuture, join_all};
use podwire_netns::Netlink;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::doctor::{self, Places};
use super::paint::printable;
use super::time::{now_micros, utc};
use super::version::Versions;
use super::{AgentSocket, CommonArgs, Exit, ToolError, show};
use podwire::inspect::StatusView;
use podwire_daemon::bundle::{Files, Lack, Missing, Text, is_other_archive};

/// How long collecting takes at the most. `kubectl podwire sysdump` waits longer.
const LIMIT: Duration = Duration::from_secs(30);

/// The agent's pages, and their file names.
const PAGES: [(&str, &str); 5] = [
    ("agent/ports.json", "/v1/ports"),
    ("agent/timings.json", "/v1/traces?last=500"),
    ("agent/check.json", "/v1/check"),
    ("agent/leftovers.json", "/v1/gc"),
    ("agent/metrics.txt", "/metrics"),
];

/// The flags of `podwire bundle`.
#[derive(Debug, Args)]
#[command(
    after_help = "The bundle has no tokens, keys or passwords. It has names and addresses of pods \
                  and nodes. What does not answer within 30 s is missing.\n\
                  Exit codes: 0 all is in it, 1 something is missing, or nothing was written,\n\
                  2 wrong usage."
)]
pub struct BundleArgs {
    /// File to write, ending in .tar.gz, or directory, or - for standard output; it must not exist
    /// yet [default: podwire-HOST-TIME.tar.gz]
    path: Option<PathBuf>,
    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    common: CommonArgs,
}

impl BundleArgs {
    pub(super) async fn run(self) -> Result<Exit, ToolError> {
        let now = utc(now_micros());
        let path = self.path.clone().unwrap_or_else(|| {
            let time: String = now.chars().filter(char::is_ascii_alphanumeric).collect();
            PathBuf::from(format!("podwire-{}-{time}.tar.gz", machine::host()))
        });
        let is_output = path.as_os_str() == "-";
        if !is_output && is_other_archive(&path) {
            let source = io::Error::other("it is no .tar.gz, the only archive that is written");
            return Err(ToolError::File { path, source });
        }
        if !is_output && path.symlink_metadata().is_ok() {
            let source = io::Error::from(io::ErrorKind::AlreadyExists);
            return Err(ToolError::File { path, source });
        }
        let mut files = Files::in_memory();
        self.collect(&mut files).await?;
        let index = json!({
            "created": now,
            "host": machine::host(),
            "podwire": env!("CARGO_PKG_VERSION"),
            "missing": files.missing(),
            "absent": files.absent(),
            "largestFileBytes": files.longest(),
            "cut": files.cut(),
        });
        files.put_json("bundle.json", &index);
        let written = match is_output {
            true => files
                .write_to(io::stdout().lock())
                .map_err(ToolError::Output),
            false => files.write(&path).map_err(|source| ToolError::File {
                path: path.clone(),
                source,
            }),
        };
        written?;
        let mut text = format!("wrote {} with {} files\n", path.display(), files.count());
        let mut list = |word: &str, files: &[Missing]| {
            for Missing { file, why } in files {
                let line = printable(&format!("{word} {file}: {why}"));
                text.push_str(&format!("{line}\n"));
            }
        };
        list("not on this machine:", files.absent());
        list("without", files.missing());
        match is_output {
            true => eprint!("{text}"),
            false => show(&text)?,
        }
        Ok(Exit::by_health(files.missing().is_empty()))
    }

    async fn collect(&self, files: &mut Files) -> Result<(), ToolError> {
        let deadline = Instant::now() + LIMIT;
        let agent = self.common.agent();
        doctor::only_root()?;
        let netlink = Netlink::start(None).map_err(ToolError::Kernel)?;
        let asked: Result<StatusView, ToolError> = agent.get("/v1/status").await;
        let status = asked.as_ref().ok();
        files.put_json("version.json", &Versions::of(status));
        match &asked {
            Ok(status) => files.put_json("agent/status.json", status),
            Err(error) => files.put("agent/status.json", Err(error)),
        }
        let socket = self.places.database(status);
        let bridge = self.places.bridge(status);
        let ovn = &self.places.ovn_rundir;
        let uses_ovn = ovn.join("ovn-controller.pid").exists()
            || status.is_some_and(|status| status.controller.is_some());
        let pid = status.map(|status| status.pid);
        let controller = async {
            match uses_ovn {
                true => switch::controller(ovn, deadline).await,
                false => Vec::new(),
            }
        };
        let role = doctor::role_directory(&agent);
        let examined = doctor::examine(&self.places, &agent, &asked, &netlink);
        let sources: [LocalBoxFuture<'_, Vec<Text>>; 7] = [
            Box::pin(pages(&agent, &asked, deadline)),
            Box::pin(machine::node_role(&role, deadline)),
            Box::pin(switch::rows(&socket, deadline)),
            Box::pin(switch::switch(&socket, &bridge, deadline)),
            Box::pin(controller),
            Box::pin(machine::links(&netlink, deadline)),
            Box::pin(network::collect(deadline)),
        ];
        let (examined, (of_agent, secrets), texts) = tokio::join!(
            timeout_at(deadline, examined),
            machine::agent(pid, deadline),
            join_all(sources),
        );
        secrets
            .iter()
            .for_each(|secret| files.redactor.knows(secret));
        match examined {
            Ok(examined) => {
                files.put("doctor.txt", Ok::<_, String>(doctor::report(&examined)));
                files.put_json("doctor.json", &examined);
            }
            Err(_) => files.put("doctor.txt", Err(late())),
        }
        files.extend(of_agent);
        files.extend(texts.into_iter().flatten());
        files.extend(
            pid.into_iter()
                .flat_map(|pid| machine::process("agent", pid, None)),
        );
        if let Some(pid) = doctor::vswitchd(&socket) {
            let name = "ovs-vswitchd";
            files.extend(machine::process(name, pid, Some(name)));
        }
        files.extend(machine::logs(uses_ovn));
        files.extend(machine::runtime(
            &self.places.conf_dir,
            &self.places.bin_dir,
        ));
        files.extend(machine::kernel());
        Ok(())
    }
}

/// The agent's pages, one after the other, until it does not answer.
async fn pages(
    agent: &AgentSocket,
    asked: &Result<StatusView, ToolError>,
    deadline: Instant,
) -> Vec<Text> {
    let silence = |error: &ToolError| match error {
        ToolError::NoAgent { .. } | ToolError::Broken { .. } => Some(error.to_string()),
        _ => None,
    };
    let agent = agent.clone().checking();
    let mut silent = asked.as_ref().err().and_then(silence);
    let mut texts = Vec::new();
    for (file, page) in PAGES {
        let text = match &silent {
            Some(why) => Err(not_asked(why)),
            None => match timeout_at(deadline, agent.text(page)).await {
                Ok(Ok(text)) => Ok(indented(text)),
                Ok(Err(error)) => {
                    silent = silence(&error);
                    Err(Lack::Missing(error.to_string()))
                }
                Err(_) => {
                    silent = Some(late());
                    Err(Lack::Missing(late()))
                }
            },
        };
        texts.push((file.to_owned(), text));
    }
    texts
}

/// JSON for people; any other text as it is.
fn indented(text: String) -> String {
    let json = serde_json::from_str::<Value>(&text);
    let shown = json.and_then(|json| serde_json::to_string_pretty(&json));
    shown.unwrap_or(text)
}

/// The end of this time, or of all.
fn within(patience: Duration, deadline: Instant) -> Instant {
    deadline.min(Instant::now() + patience)
}

fn late() -> String {
    format!("no answer within the {} s of all", LIMIT.as_secs())
}

/// Why what comes after an answer that did not come is missing too.
fn not_asked(why: &str) -> Lack {
    Lack::Missing(format!("not asked: {why}"))
}
