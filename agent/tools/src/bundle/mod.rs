//! `podwire bundle`: collects the state of a node for somebody elsewhere, in one file, without
//! secrets.
//!
//! It only reads. What is unavailable (no agent, no journal) is listed with the reason, and the
//! rest is written.

mod machine;
mod switch;

use std::io;
use std::path::PathBuf;

use clap::Args;
use podwire_netns::Netlink;
use serde_json::{Value, json};

use super::doctor::{self, Places};
use super::paint::printable;
use super::time::{now_micros, utc};
use super::version::Versions;
use super::{CommonArgs, Exit, ToolError, show};
use podwire::inspect::StatusView;
use podwire_daemon::bundle::{Files, is_other_archive};

/// The agent's pages, and their file names.
const PAGES: [(&str, &str); 4] = [
    ("agent/ports.json", "/v1/ports"),
    ("agent/timings.json", "/v1/traces?last=500"),
    ("agent/check.json", "/v1/check"),
    ("agent/leftovers.json", "/v1/gc"),
];

/// The flags of `podwire bundle`.
#[derive(Debug, Args)]
#[command(
    after_help = "The bundle has no tokens, keys or passwords. It has names and addresses of pods \
                  and nodes."
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
            let what = format!(
                "{} is no .tar.gz, the only archive that is written",
                path.display()
            );
            return Err(ToolError::Unable(what));
        }
        if !is_output && path.symlink_metadata().is_ok() {
            let source = io::Error::from(io::ErrorKind::AlreadyExists);
            return Err(ToolError::File { path, source });
        }
        let mut files = Files::default();
        self.collect(&mut files).await?;
        let index = json!({
            "created": now,
            "host": machine::host(),
            "podwire": env!("CARGO_PKG_VERSION"),
            "missing": files.missing(),
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
        for missing in files.missing() {
            let line = format!("without {}: {}", missing.file, missing.why);
            text.push_str(&format!("{}\n", printable(&line)));
        }
        match is_output {
            true => eprint!("{text}"),
            false => show(&text)?,
        }
        Ok(Exit::Well)
    }

    async fn collect(&self, files: &mut Files) -> Result<(), ToolError> {
        let agent = self.common.agent();
        let (examined, asked) = doctor::examine(&self.places, &agent).await?;
        files.put("doctor.txt", Ok::<_, String>(doctor::report(&examined)));
        files.put_json("doctor.json", &examined);
        let status: Option<&StatusView> = asked.as_ref().ok();
        files.put_json("version.json", &Versions::of(status));
        match &asked {
            Ok(status) => files.put_json("agent/status.json", status),
            Err(error) => files.put("agent/status.json", Err(error)),
        }
        if let Some(status) = status {
            let agent = agent.clone().checking();
            for (file, page) in PAGES {
                let answer: Result<Value, ToolError> = agent.get(page).await;
                let text = answer.map(|it| serde_json::to_string_pretty(&it).unwrap_or_default());
                files.put(file, text);
            }
            files.put("agent/metrics.txt", agent.text("/metrics").await);
            machine::agent(files, status.pid).await;
            machine::process(files, "agent", status.pid);
        }
        machine::node_role(files, &doctor::role_directory(&agent)).await;
        let socket = self.places.database(status);
        let bridge = self.places.bridge(status);
        let ovn = &self.places.ovn_rundir;
        switch::collect(files, &socket, &bridge, ovn).await;
        if let Some(pid) = doctor::vswitchd(&socket) {
            machine::process(files, "ovs-vswitchd", pid);
        }
        machine::logs(files, ovn.join("ovn-controller.pid").exists());
        machine::runtime(files, &self.places.conf_dir, &self.places.bin_dir);
        let netlink = Netlink::start(None).map_err(ToolError::Kernel)?;
        machine::kernel(files, &netlink).await;
        Ok(())
    }
}
