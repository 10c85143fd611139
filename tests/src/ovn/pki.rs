//! Keys for TLS between OVN's parts.

use std::path::PathBuf;
use std::process::Command;

use crate::failure::{OrFail, Step};
use crate::node::DAEMON_LIMIT;
use crate::words::Words;

/// Keys and certificates as ovs-pki(8) makes them, in a directory that goes with this value.
#[derive(Debug)]
pub struct TlsFiles {
    directory: PathBuf,
}

impl TlsFiles {
    #[track_caller]
    pub(super) fn make() -> TlsFiles {
        let directory = std::env::temp_dir().join(format!("podwire-pki.{}", crate::hex(16)));
        std::fs::create_dir(&directory)
            .step(|| format!("make {}", directory.display()))
            .or_fail();
        let files = TlsFiles { directory };
        files.pki("init");
        for name in ["ovnsb", "node"] {
            files.pki(&format!("-u req+sign {name} switch"));
        }
        files
    }

    #[track_caller]
    fn pki(&self, arguments: &str) {
        let mut command = Command::new("ovs-pki");
        command
            .current_dir(&self.directory)
            .arg(format!("--dir={}", self.directory.join("pki").display()))
            .arg(format!(
                "--log={}",
                self.directory.join("ovs-pki.log").display()
            ))
            .args(["-B", "2048"])
            .args(arguments.words());
        let shown = format!("ovs-pki {arguments}");
        crate::process::finish(command, b"", DAEMON_LIMIT)
            .or_fail()
            .success(&shown);
    }

    /// Private key, certificate and CA certificate of `ovnsb` or `node`.
    pub fn of(&self, name: &str) -> [String; 3] {
        let path = |file: String| self.directory.join(file).display().to_string();
        [
            path(format!("{name}-privkey.pem")),
            path(format!("{name}-cert.pem")),
            path("pki/switchca/cacert.pem".to_owned()),
        ]
    }
}

impl Drop for TlsFiles {
    fn drop(&mut self) {
        // In the machine's directory for temporary files; a leftover of an interrupted test hurts
        // nobody.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
