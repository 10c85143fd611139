//! The plugin that is judged, and how it wants to be called.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::trouble::{Step, Trouble};

/// What a plugin is for (section 2, Overview, and section 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// It makes an interface in the container.
    #[default]
    Interface,
    /// It adjusts the interface that a plugin before it in the chain has made.
    Chained,
    /// It manages addresses, for plugins that delegate that to it.
    Ipam,
}

/// A plugin binary, its configuration, and where it is run.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The binary, by an absolute path.
    pub plugin: PathBuf,
    /// The plugin's configuration object; `cniVersion` is set by each case.
    pub conf: Map<String, Value>,
    /// What it is for.
    pub kind: Kind,
    /// Whether it runs the plugin that an `ipam` section names. Set when the configuration has one.
    pub delegates: bool,
    /// CNI_ARGS.
    pub cni_args: Option<String>,
    /// CNI_PATH.
    pub cni_path: Vec<PathBuf>,
    /// The network namespace that the plugin is run in. `None` is a new, private one for each case,
    /// with an empty `/run` and `/var/lib/cni`: right for a plugin that needs nothing but itself.
    pub host_netns: Option<PathBuf>,
    /// A shell command that prepares each private host, such as with a link for macvlan.
    pub prepare: Option<String>,
    /// Directories in which a file that names a deleted container is a leftover. For a private host
    /// also `/run` and `/var/lib/cni`.
    pub state: Vec<PathBuf>,
    /// A shell command that prints what is held on the host, an item per line, beside links, routes
    /// and files.
    pub held: Option<String>,
    /// How to make it unable to serve an ADD, and able again.
    pub outage: Option<Outage>,
    /// How long one exec may take.
    pub limit: Duration,
    /// The program that stands behind the recording IPAM plugin: `cni-conformance` itself.
    pub recorder: PathBuf,
}

/// Shell commands for the case that asks STATUS of a plugin that can't serve.
#[derive(Clone, Debug)]
pub struct Outage {
    /// Takes away what the plugin depends on.
    pub begin: String,
    /// Gives it back.
    pub end: String,
}

impl Subject {
    /// A plugin and its configuration: an object for one plugin, or a list (`plugins`), of which
    /// the plugin's own entry counts, or else the first.
    ///
    /// # Errors
    /// The plugin is no executable file, or the configuration is neither form.
    pub fn new(plugin: impl AsRef<Path>, conf: &[u8]) -> Result<Subject, Trouble> {
        let plugin = plugin.as_ref();
        let no_plugin = || Trouble::NoPlugin(plugin.into());
        let plugin = plugin.canonicalize().map_err(|_| no_plugin())?;
        let metadata = plugin.metadata().map_err(|_| no_plugin())?;
        if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
            return Err(no_plugin());
        }
        let conf = configuration(&plugin, conf)?;
        let directory = plugin.parent().map(Path::to_owned);
        Ok(Subject {
            kind: Kind::default(),
            delegates: conf
                .get("ipam")
                .is_some_and(|ipam| ipam["type"].is_string()),
            conf,
            cni_args: None,
            cni_path: directory.into_iter().collect(),
            host_netns: None,
            prepare: None,
            state: Vec::new(),
            held: None,
            outage: None,
            limit: Duration::from_secs(60),
            recorder: std::env::current_exe().step(|| "find this program")?,
            plugin,
        })
    }

    /// The plugin's file name.
    pub fn name(&self) -> String {
        let name = self.plugin.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

fn configuration(plugin: &Path, conf: &[u8]) -> Result<Map<String, Value>, Trouble> {
    let bad = |what: &str| Trouble::Conf(what.to_owned());
    let mut object: Map<String, Value> = serde_json::from_slice(conf)
        .map_err(|error| bad(&format!("not a JSON object: {error}")))?;
    let file_name = plugin.file_name().unwrap_or_default().to_string_lossy();
    let mut conf = match object.remove("plugins") {
        None => object,
        Some(Value::Array(plugins)) => {
            let own = plugins
                .iter()
                .find(|plugin| plugin["type"] == *file_name)
                .or(plugins.first());
            let own = own.and_then(Value::as_object).cloned();
            let mut own = own.ok_or_else(|| bad("`plugins` has no object"))?;
            own.extend(object.remove("name").map(|name| ("name".to_owned(), name)));
            own
        }
        Some(_) => return Err(bad("`plugins` is not a list")),
    };
    // What a runtime takes out, and what only it puts in (section 3).
    for member in ["capabilities", "prevResult", "cniVersions"] {
        conf.remove(member);
    }
    if !conf.get("name").is_some_and(Value::is_string) {
        return Err(bad("`name` is missing"));
    }
    conf.entry("type").or_insert_with(|| file_name.into());
    Ok(conf)
}
