//! The environment: podwire's own variables, those of ovn-kubernetes, and a pod's service account.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use podwire_apiserver::read_text;

use super::command::{CONFIG_VARIABLE, TOKEN_VARIABLE};
use super::error::{FileError, LoadError};
use super::files::Place;
use super::foreign;
use super::layers::{Given, Layer, Origin};
use super::settings::{Kind, Settings, nearest};

/// The prefix of podwire's variables.
const PREFIX: &str = "PODWIRE_";

/// The directory in which Kubernetes puts a pod's own credentials: an agent in a pod needs no flag.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const SERVICE_HOST: &str = "KUBERNETES_SERVICE_HOST";
const SERVICE_PORT: &str = "KUBERNETES_SERVICE_PORT";

/// podwire's variables that are no settings: the file's path, fault points, a token moved from the
/// command line.
const NO_SETTINGS: [&str; 3] = [CONFIG_VARIABLE, "PODWIRE_FAULT", TOKEN_VARIABLE];

/// The file from which the units of agent and node role take variables (EnvironmentFile=).
pub(super) const UNIT_FILE: &str = "/etc/default/podwire";
/// Its largest size, in bytes.
const LARGEST: usize = 1 << 16;

/// The process' environment.
#[derive(Debug, Clone)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    /// Variables that it lacks, with their file and line.
    of_file: BTreeMap<String, (String, PathBuf, usize)>,
    service_account: PathBuf,
}

impl Environment {
    /// That of this process.
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self {
            variables: std::env::vars_os().filter_map(text).collect(),
            of_file: BTreeMap::new(),
            service_account: SERVICE_ACCOUNT.into(),
        }
    }

    /// One with these variables, and with this directory for the service account.
    #[cfg(test)]
    pub(super) fn of(variables: &[(&str, &str)], service_account: &Path) -> Self {
        Self {
            variables: variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            of_file: BTreeMap::new(),
            service_account: service_account.to_owned(),
        }
    }

    /// The same, with the variables of a file such as [`UNIT_FILE`] for those that it lacks: for a
    /// command that is not started by the unit.
    ///
    /// # Errors
    /// The file is there and can't be read.
    pub(super) fn with_file(mut self, path: &Path) -> Result<Self, LoadError> {
        let text = match read_text(path, LARGEST) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(self),
            read => read.map_err(|source| FileError::Read {
                path: path.to_owned(),
                source,
            })?,
        };
        // systemd.exec(5): later lines count, and quotes are not part of a value.
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            let Some((name, value)) = line.split_once('=') else {
                continue;
            };
            if line.starts_with(['#', ';']) {
                continue;
            }
            let unquoted = ['"', '\'']
                .iter()
                .find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
            let value = unquoted.unwrap_or(value).to_owned();
            let entry = (value, path.to_owned(), number);
            self.of_file.insert(name.trim().to_owned(), entry);
        }
        Ok(self)
    }

    /// Its settings: podwire's own variables, then those of others, then the service account's.
    pub(super) fn layers(&self, settings: &Settings) -> [Layer; 3] {
        let own = settings.iter().filter_map(|setting| {
            let text = self.find(&setting.variable)?;
            let values = match setting.kind {
                Kind::List(Some(separator)) => text
                    .split(separator)
                    .filter(|part| !part.is_empty())
                    .map(str::to_owned)
                    .collect(),
                Kind::List(None) | Kind::One | Kind::Switch => vec![text.to_owned()],
            };
            let name = &setting.variable;
            let origin = match self.of_file.get(name) {
                Some((_, path, line)) if !self.variables.contains_key(name) => Origin::File {
                    path: path.clone(),
                    key: name.clone(),
                    line: Some(*line),
                },
                _ => Origin::Variable(name.clone()),
            };
            Some((setting.key.clone(), Given { values, origin }))
        });
        let foreign = foreign::variables(|name| self.find(name).map(str::to_owned));
        [own.collect(), foreign, self.service_account()]
    }

    /// A warning for each variable that looks like a setting and is none: a mistyped one would
    /// silently do nothing.
    pub(super) fn unknown(&self, settings: &Settings) -> Vec<String> {
        let known: Vec<&str> = settings
            .iter()
            .map(|setting| setting.variable.as_str())
            .chain(NO_SETTINGS)
            .collect();
        let is_unknown = |name: &&String| {
            name.starts_with(PREFIX) && !known.contains(&name.as_str()) && !is_of_a_service(name)
        };
        let warning = |name: &String| match nearest(name, known.iter().copied()) {
            Some(nearest) => {
                format!("${name} is not a setting and has no effect; is it {nearest}?")
            }
            None => format!("${name} is not a setting and has no effect"),
        };
        self.variables
            .keys()
            .filter(is_unknown)
            .map(warning)
            .collect()
    }

    /// A pod's own credentials. The files alone are used if the server is set elsewhere.
    fn service_account(&self) -> Layer {
        let mut layer = Layer::new();
        let file = |name: &str| Some(self.service_account.join(name)).filter(|path| path.exists());
        let given = |path: &Path| {
            let path = path.display().to_string();
            Given::one(path.clone(), Origin::ServiceAccount(path))
        };
        if let Some(authority) = file("ca.crt") {
            layer.insert("k8s-cacert".to_owned(), given(&authority));
        }
        if let Some(token) = file("token") {
            layer.insert("k8s-token-file".to_owned(), given(&token));
            if let Some(url) = self.service() {
                let origin = Origin::ServiceAccount(format!("${SERVICE_HOST}, ${SERVICE_PORT}"));
                layer.insert("k8s-apiserver".to_owned(), Given::one(url, origin));
            }
        }
        layer
    }

    fn service(&self) -> Option<String> {
        let host = self.find(SERVICE_HOST)?;
        let port = self.find(SERVICE_PORT).unwrap_or("443");
        Some(match host.contains(':') {
            true => format!("https://[{host}]:{port}"),
            false => format!("https://{host}:{port}"),
        })
    }

    /// Sets the path of podwire's own file, unless the command line has set it.
    pub(super) fn place(&self, own: &mut Place) {
        if let Some(path) = self.find(CONFIG_VARIABLE).filter(|_| !own.named) {
            *own = Place {
                path: path.into(),
                named: true,
            };
        }
    }

    /// An empty variable counts as unset: that is how a manifest reads an optional key of a
    /// ConfigMap.
    pub(super) fn find(&self, name: &str) -> Option<&str> {
        let of_file = || self.of_file.get(name).map(|(value, ..)| value);
        let value = self.variables.get(name).or_else(of_file)?;
        (!value.is_empty()).then_some(value)
    }
}

/// Whether Kubernetes set this variable for a service of the namespace; one may be named podwire.
fn is_of_a_service(name: &str) -> bool {
    ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT"]
        .iter()
        .any(|end| name.ends_with(end))
        || name.contains("_SERVICE_PORT_")
        || ["_TCP", "_UDP", "_SCTP"]
            .iter()
            .any(|kind| name.contains("_PORT_") && name.contains(kind))
}
