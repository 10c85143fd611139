//! ovn-trace(8) as a daemon: thousands of packets against one state of the southbound database.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::{Central, RUN_DIR, SOUTHBOUND};
use crate::failure::OrFail as _;
use crate::node::DAEMON_LIMIT;
use crate::ovsdb::ask;
use crate::process::Daemon;
use crate::watch::await_seen;

/// Answers by the southbound database as it was when it was started.
#[derive(Debug)]
pub struct Tracer {
    _daemon: Daemon,
    control: PathBuf,
}

impl Central {
    /// Starts one; each connection that it traces is new.
    ///
    /// # Panics
    /// It can't be started.
    #[track_caller]
    pub fn tracer(&self) -> Tracer {
        let machine = self.machine();
        let (control, ready) = ("ovn-trace.ctl", "ovn-trace.ready");
        for name in [control, ready] {
            let _ = std::fs::remove_file(machine.path(&format!("{RUN_DIR}/{name}")));
        }
        // As a daemon it forks; it ends with the first process of its own namespace.
        let script = format!(
            "ovn-trace --db=unix:{SOUTHBOUND} --minimal --ct=new --ct=new --ct=new --ct=new \
             --detach --no-chdir --unixctl={RUN_DIR}/{control} && touch {RUN_DIR}/{ready} && \
             exec sleep infinity"
        );
        let mut command = Command::new("unshare");
        command.args(["--fork", "--pid", "--kill-child", "sh", "-c", &script]);
        let daemon = machine.start_bare(&command, "ovn-trace").or_fail();
        let (control, ready) = (
            machine.path(&format!("{RUN_DIR}/{control}")),
            machine.path(&format!("{RUN_DIR}/{ready}")),
        );
        let look = || {
            let log = || std::fs::read_to_string(daemon.log()).unwrap_or_default();
            let found = ready.exists().then_some(());
            found.ok_or_else(|| format!("its log says:\n{}", log()))
        };
        let rundir = machine.path(RUN_DIR);
        await_seen(&rundir, &daemon, DAEMON_LIMIT, "ovn-trace", look).or_fail();
        Tracer {
            _daemon: daemon,
            control,
        }
    }
}

impl Tracer {
    /// Where a packet goes that enters a datapath.
    ///
    /// # Panics
    /// ovn-trace refuses it.
    #[track_caller]
    pub fn trace(&self, datapath: &str, packet: &str) -> String {
        let request = json!({ "id": 0, "method": "trace", "params": [datapath, packet] });
        let answer = ask(&self.control, &request).or_fail();
        assert_eq!(answer["error"], Value::Null, "{packet}");
        answer["result"].as_str().unwrap_or_default().to_owned()
    }
}
