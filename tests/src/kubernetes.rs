//! A real Kubernetes API server with its etcd, where `make kubernetes` has built them.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rcgen::KeyPair;
use serde_json::Value;

use crate::apiserver::Identity;
use crate::binaries::workspace;
use crate::failure::{Failure, OrFail, Step};
use crate::process::{Daemon, Finished, bound_to_parent, finish};
use crate::watch::await_seen;
use crate::{Place, TestNode};

/// Where its files are on each machine.
const DIRECTORY: &str = "/run/kubernetes";
/// The services' network; its first address is the API server's own.
const SERVICES: &str = "10.96.0.0/16";
/// A loaded machine starts it in half of that.
const LIMIT: Duration = Duration::from_secs(120);
/// The administrator's token.
const TOKEN: &str = "administrator";

/// A running API server. Dropping it kills it and its etcd.
#[derive(Debug)]
pub struct Kubernetes {
    place: Place,
    url: String,
    ca: String,
    _server: Daemon,
    _etcd: Daemon,
}

/// The directory of its programs: `$PODWIRE_KUBERNETES`, else the workspace's `target/kubernetes`.
fn programs() -> PathBuf {
    let named = std::env::var_os("PODWIRE_KUBERNETES").map(PathBuf::from);
    named.unwrap_or_else(|| workspace().join("target/kubernetes"))
}

impl Kubernetes {
    /// Whether its programs are there.
    pub fn is_built() -> bool {
        programs().join("kube-apiserver").exists()
    }

    /// Starts it on an address of a machine, and waits until it serves; RBAC decides who may do
    /// what.
    #[track_caller]
    pub fn start_at(machine: &TestNode, address: IpAddr) -> Self {
        let identity = Identity::new(address).or_fail();
        let accounts = KeyPair::generate()
            .map_err(std::io::Error::other)
            .step(|| "make the accounts' key")
            .or_fail();
        let administrator = format!("{TOKEN},administrator,1,system:masters\n");
        for (file, content) in [
            ("server.crt", &identity.certificate),
            ("server.key", &identity.key),
            ("accounts.key", &accounts.serialize_pem()),
            ("accounts.pub", &accounts.public_key_pem()),
            ("tokens", &administrator),
        ] {
            write(machine, file, content);
        }
        let mut etcd = Command::new(programs().join("etcd"));
        etcd.args([
            "--data-dir=/run/kubernetes/etcd",
            "--unsafe-no-fsync",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
        ]);
        let log = |name: &str| machine.path(&format!("/run/log/{name}.log"));
        let etcd = Daemon::start(machine.keeper(), &etcd, &log("etcd")).or_fail();
        let mut server = Command::new(programs().join("kube-apiserver"));
        server
            .args([
                "--etcd-servers=http://127.0.0.1:2379",
                "--authorization-mode=RBAC",
                // As every cluster has it: network plugins need it.
                "--allow-privileged",
                // Nobody makes the accounts of namespaces: that is kube-controller-manager's.
                "--disable-admission-plugins=ServiceAccount",
                "--token-auth-file=/run/kubernetes/tokens",
                "--tls-cert-file=/run/kubernetes/server.crt",
                "--tls-private-key-file=/run/kubernetes/server.key",
                "--cert-dir=/run/kubernetes/certs",
                "--service-account-issuer=https://cluster",
                "--service-account-key-file=/run/kubernetes/accounts.pub",
                "--service-account-signing-key-file=/run/kubernetes/accounts.key",
                "--secure-port=6443",
            ])
            .arg(format!("--advertise-address={address}"))
            .arg(format!("--service-cluster-ip-range={SERVICES}"));
        let log = log("kube-apiserver");
        let server = Daemon::start(machine.keeper(), &server, &log).or_fail();
        let look = || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            match text.contains("Serving securely on") {
                true => Ok(()),
                false => Err(text),
            }
        };
        await_seen(&log, &server, LIMIT, "the API server's socket", look).or_fail();
        let kubernetes = Self {
            place: machine.place().clone(),
            url: format!("https://{address}:6443"),
            ca: identity.ca,
            _server: server,
            _etcd: etcd,
        };
        kubernetes.write_access(machine, "administrator", TOKEN);
        // It makes these by itself once it serves.
        for object in ["namespace/default", "clusterrole/cluster-admin"] {
            let wait = ["wait", "--for=create", object, "--timeout=60s"];
            kubernetes.kubectl(&wait, "").or_fail();
        }
        kubernetes
    }

    /// Which Kubernetes it is, as in `v1.20.2`.
    #[track_caller]
    pub fn version(&self) -> String {
        let version = self.kubectl(&["get", "--raw=/version"], "").or_fail();
        let version: Value = serde_json::from_str(&version).unwrap_or_default();
        version["gitVersion"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// Whether it has a version of an API group, such as `discovery.k8s.io/v1`.
    pub fn has(&self, version: &str) -> bool {
        let path = format!("--raw=/apis/{version}");
        self.kubectl(&["get", &path], "").is_ok()
    }

    /// Applies the objects of the workspace's files, such as `deploy/node/rbac.yaml`.
    #[track_caller]
    pub fn apply_files(&self, files: &[&str]) {
        for file in files {
            let file = workspace().join(file).display().to_string();
            self.kubectl(&["apply", "-f", &file], "").or_fail();
        }
    }

    /// Writes a kubeconfig of a service account of podwire's namespace to a machine, and gives its
    /// path there.
    #[track_caller]
    pub fn access(&self, machine: &TestNode, account: &str) -> String {
        self.write_access(machine, account, &self.token(account).or_fail())
    }

    /// A token of a service account of podwire's namespace.
    ///
    /// # Errors
    /// There is no such account.
    pub fn token(&self, account: &str) -> Result<String, Failure> {
        let create = ["create", "token", account, "--namespace=podwire-system"];
        let token = self.kubectl(&create, "")?;
        Ok(token.trim().to_owned())
    }

    /// Sends a merge patch with a token, and gives the answer's code and body: kubectl reads an
    /// object before it patches it, which takes another right.
    ///
    /// # Errors
    /// There is no answer.
    pub fn patch(&self, token: &str, path: &str, patch: &Value) -> Result<(u64, Value), Failure> {
        let mut command = Command::new("curl");
        command
            .args(["--silent", "--show-error", "--request", "PATCH"])
            .args(["--cacert", &format!("{DIRECTORY}/ca.crt")])
            .args(["--header", &format!("Authorization: Bearer {token}")])
            .args(["--header", "Content-Type: application/merge-patch+json"])
            .args(["--data", &patch.to_string()])
            .arg(format!("{}{path}", self.url));
        let command = bound_to_parent(&command);
        let finished = self.place.run(|| finish(command, b"", LIMIT))?;
        let answer = parsed(&finished.output(&format!("curl {path}"))?)?;
        // A refusal is an object too, which has the code.
        let is_refusal = answer["kind"] == "Status";
        let code = answer["code"].as_u64().filter(|_| is_refusal);
        Ok((code.unwrap_or(200), answer))
    }

    #[track_caller]
    fn write_access(&self, machine: &TestNode, user: &str, token: &str) -> String {
        write(machine, "ca.crt", &self.ca);
        let url = &self.url;
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: \
             {{server: '{url}', certificate-authority: {DIRECTORY}/ca.crt}}}}]\nusers: [{{name: u, \
             user: {{token: '{token}'}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: \
             u}}}}]\n"
        );
        let file = format!("{user}.conf");
        write(machine, &file, &text);
        format!("{DIRECTORY}/{file}")
    }

    /// Creates an object, and gives what became of it.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn create(&self, object: &Value) -> Result<Value, Failure> {
        let create = ["create", "--validate=false", "-o", "json", "-f", "-"];
        let made = self.kubectl(&create, &object.to_string())?;
        parsed(&made)
    }

    /// Waits until an object has an annotation, and gives the object.
    ///
    /// # Errors
    /// It has none for half a minute.
    pub fn await_annotation(
        &self,
        (kind, namespace, name): (&str, &str, &str),
        annotation: &str,
    ) -> Result<Value, Failure> {
        let path = annotation.replace('.', "\\.");
        let path = format!("--for=jsonpath={{.metadata.annotations.{path}}}");
        let namespace = format!("--namespace={namespace}");
        let wait = ["wait", &path, kind, name, &namespace, "-o", "json"];
        parsed(&self.kubectl(&wait, "")?)
    }

    /// Deletes an object, and waits until it is gone. No kubelet has a say.
    ///
    /// # Errors
    /// There is none.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) -> Result<(), Failure> {
        let namespace = format!("--namespace={namespace}");
        let at_once = ["--force", "--grace-period=0"];
        let delete = ["delete", kind, name, &namespace, at_once[0], at_once[1]];
        self.kubectl(&delete, "").map(drop)
    }

    /// Runs kubectl as the administrator.
    ///
    /// # Errors
    /// It fails.
    pub fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String, Failure> {
        let mut command = Command::new(programs().join("kubectl-trixie"));
        // Its own cache is of no use to anybody else.
        let cache = format!("--cache-dir={DIRECTORY}/cache");
        command.arg(cache).args(arguments);
        let finished = self.client(command, input)?;
        finished.output(&format!("kubectl {}", arguments.join(" ")))
    }

    /// Runs another client as the administrator.
    ///
    /// # Errors
    /// It can't be started, or does not end.
    pub fn client(&self, mut command: Command, input: &str) -> Result<Finished, Failure> {
        command.env("KUBECONFIG", format!("{DIRECTORY}/administrator.conf"));
        let command = bound_to_parent(&command);
        let run = || finish(command, input.as_bytes(), LIMIT);
        self.place.run(run)
    }
}

#[track_caller]
fn write(machine: &TestNode, file: &str, content: &str) {
    let directory = machine.path(DIRECTORY);
    std::fs::create_dir_all(&directory)
        .and_then(|()| std::fs::write(directory.join(file), content))
        .step(|| format!("write {DIRECTORY}/{file}"))
        .or_fail();
}

fn parsed(text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text)
        .map_err(std::io::Error::other)
        .step(|| format!("read kubectl's answer {text:?}"))
}
