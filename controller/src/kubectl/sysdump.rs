//! `kubectl podwire sysdump`: one file with what every node, every controller and the API server
//! know, without secrets.
//!
//! Everything is asked side by side, and each file is written as it comes, so that a large cluster
//! needs no more memory. What does not come before the deadline, or an interruption, is listed as
//! missing. `sysdump.json` is the last file: an archive without it was not ended.

pub(super) mod databases;
mod kinds;
mod parts;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::iter;
use k8s_openapi::jiff::Timestamp;
use podwire_daemon::bundle::{Files, is_other_archive};
use podwire_daemon::output::show;
use podwire_daemon::process;
use serde_json::json;
use tokio::time::sleep;

use super::objects::agent_on;
use super::{Common, Failure};

/// Sources that are asked at once.
const AT_ONCE: usize = 16;

/// The flags of `kubectl podwire sysdump`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The file has no tokens, keys or passwords, and no Secret is read. It has names \
                  and addresses of nodes, pods and services. If it is interrupted, or its time is \
                  over, it writes what it has."
)]
pub struct SysdumpArgs {
    /// File to write, ending in .tar.gz, or directory; it must not exist yet
    /// [default: podwire-sysdump-TIME.tar.gz]
    path: Option<PathBuf>,
    /// How many seconds all of it has
    #[arg(long, value_name = "SECONDS", default_value = "300")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    deadline: u16,
    #[command(flatten)]
    common: Common,
}

/// What has come.
type Collected = RefCell<Files>;

/// Something to ask for, which adds what it gets to what has come.
struct Source<'a> {
    /// Its file, or the first of several.
    file: String,
    asked: LocalBoxFuture<'a, ()>,
}

impl<'a> Source<'a> {
    fn new(file: String, asked: impl Future<Output = ()> + 'a) -> Self {
        let asked = Box::pin(asked);
        Self { file, asked }
    }

    /// That of one file.
    fn of_file(
        files: &'a Collected,
        file: String,
        text: impl Future<Output = Result<String, String>> + 'a,
    ) -> Self {
        let name = file.clone();
        Self::new(file, async move {
            let text = text.await;
            files.borrow_mut().put(&name, text);
        })
    }
}

impl SysdumpArgs {
    pub(super) async fn run(self) -> Result<bool, Failure> {
        let shutdown = process::asked_to_end().map_err(Failure::Output)?;
        let now = Timestamp::now();
        let path = self.path.clone().unwrap_or_else(|| {
            let time = now.strftime("%Y%m%dT%H%M%SZ");
            PathBuf::from(format!("podwire-sysdump-{time}.tar.gz"))
        });
        let shown = path.display().to_string();
        let refused = |problem: &str| Failure::Unknown(format!("{shown}: {problem}"));
        if is_other_archive(&path) {
            return Err(refused("only .tar.gz archives are written"));
        }
        if path.symlink_metadata().is_ok() {
            return Err(refused("it exists"));
        }
        let limit = Duration::from_secs(self.deadline.into());
        let mut stop = pin!(async {
            tokio::select! {
                () = shutdown => "interrupted".to_owned(),
                () = sleep(limit) => format!("{} s were over (--deadline)", self.deadline),
            }
        });
        let cluster = self.common.cluster().await?;
        let listed = async {
            let nodes = cluster.nodes().await?;
            Ok::<_, Failure>((nodes, cluster.own_pods().await?))
        };
        let (nodes, pods) = tokio::select! {
            listed = listed => listed?,
            why = &mut stop => return Err(refused(&format!("nothing is written: {why}"))),
        };

        let unwritten = |source| Failure::File {
            path: shown.clone(),
            source,
        };
        let files = Collected::new(Files::at(&path).map_err(unwritten)?);
        let mut sources = kinds::sources(&cluster, &files);
        sources.extend(databases::sources(&cluster, &pods, &files));
        sources.extend(parts::sources(&cluster, &pods, &files));
        let mut due: BTreeSet<String> = sources.iter().map(|it| it.file.clone()).collect();
        let asked = sources.into_iter().map(async |source| {
            source.asked.await;
            source.file
        });
        let mut asked = iter(asked).buffer_unordered(AT_ONCE);
        let ended_early = loop {
            if files.borrow().failed().is_some() {
                break None;
            }
            tokio::select! {
                file = asked.next() => match file {
                    Some(file) => due.remove(&file),
                    None => break None,
                },
                why = &mut stop => break Some(why),
            };
        };
        drop(asked);
        let mut files = files.into_inner();
        let why = ended_early.as_deref().unwrap_or_default();
        for file in due {
            files.put(&file, Err(format!("not all had come: {why}")));
        }
        for node in &nodes {
            if agent_on(&pods, &node.name).is_none() {
                let why = Err("no pod of podwire's agent runs on it");
                files.put(&format!("nodes/{}/bundle.json", node.name), why);
            }
        }
        let index = json!({
            "created": now,
            "podwire": env!("CARGO_PKG_VERSION"),
            "server": cluster.server,
            "endedEarly": ended_early,
            "missing": files.missing(),
            "largestFileBytes": files.longest(),
            "cut": files.cut(),
        });
        files.put_json("sysdump.json", &index);
        let mut text = format!("wrote {shown} with {} files\n", files.count());
        for missing in files.missing() {
            text.push_str(&format!("without {}: {}\n", missing.file, missing.why));
        }
        if let Some(why) = &ended_early {
            text.push_str(&format!("it ended early: {why}\n"));
        }
        for file in files.cut() {
            text.push_str(&format!(
                "{file} is cut off after {} bytes\n",
                files.longest()
            ));
        }
        let has_all = files.missing().is_empty();
        files.close().map_err(unwritten)?;
        show(&text).map_err(Failure::Output)?;
        Ok(has_all)
    }
}
