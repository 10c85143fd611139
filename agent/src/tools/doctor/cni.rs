//! The runtime's side: which network configuration it takes, and whether the plugin that this one names is podwire's.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Examined, Finding};

const CNI: &str = "CNI";
/// The names that the plugin goes by.
const NAMES: [&str; 2] = ["podwire-cni", "ovn-k8s-cni-overlay"];
/// Plugins that call others and stand first by design.
const META: [&str; 3] = ["multus", "multus-shim", "genie"];
/// A sentence of the plugin's, by which its file is known whatever its name.
const MARK: &[u8] = b"the CNI plugin of podwire ";

/// A configuration as the runtime sees it.
#[derive(Debug)]
struct Conf {
    path: PathBuf,
    /// The plugins that it names, in order; or why it can't be read.
    types: Result<Vec<String>, String>,
}

/// Looks at both directories.
pub(super) fn examine(conf_dir: &Path, bin_dir: &Path) -> Examined {
    let mut findings = Vec::new();
    let confs = confs(conf_dir);
    let ours = confs.iter().find(|conf| conf.is_for(bin_dir));
    match (confs.first(), ours) {
        (_, None) => findings.push(none_of_ours(&confs, conf_dir, bin_dir)),
        (Some(first), Some(ours)) if first.path != ours.path && !first.is_meta() => {
            findings.push(not_first(first, ours));
        }
        _ => {}
    }
    findings.extend(plugin(bin_dir));
    let seen = match (confs.first(), ours) {
        (Some(first), Some(ours)) if first.path != ours.path => format!(
            "{} calls others, {} is podwire's",
            first.path.display(),
            ours.path.display()
        ),
        (_, Some(ours)) => format!("{} comes first and is podwire's", ours.path.display()),
        _ => String::new(),
    };
    Examined {
        about: CNI,
        seen,
        findings,
    }
}

/// What a runtime would look at, in its order (libcni, `ConfFiles`; containerd and CRI-O take the first).
fn confs(dir: &Path) -> Vec<Conf> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = files.map(|file| file.path()).collect();
    paths.retain(|path| {
        let suffix = path.extension().and_then(|it| it.to_str());
        matches!(suffix, Some("conf" | "conflist" | "json"))
    });
    paths.sort_unstable();
    let conf = |path: PathBuf| Conf {
        types: types(&path),
        path,
    };
    paths.into_iter().map(conf).collect()
}

fn types(path: &Path) -> Result<Vec<String>, String> {
    let text = fs::read(path).map_err(|error| error.to_string())?;
    let conf: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let of = |conf: &Value| conf["type"].as_str().map(str::to_owned);
    let types: Vec<String> = match conf["plugins"].as_array() {
        Some(plugins) => plugins.iter().filter_map(of).collect(),
        None => of(&conf).into_iter().collect(),
    };
    match types.is_empty() {
        true => Err("it names no plugin".to_owned()),
        false => Ok(types),
    }
}

impl Conf {
    fn names(&self, wanted: impl Fn(&str) -> bool) -> bool {
        self.types.iter().flatten().any(|name| wanted(name))
    }

    /// Whether it leads to podwire: by podwire's own name always, by ovn-kubernetes' when the binary of that name is ours.
    fn is_for(&self, bin_dir: &Path) -> bool {
        self.names(|name| {
            name == NAMES[0] || (name == NAMES[1] && is_ours(&bin_dir.join(name)) != Some(false))
        })
    }

    fn is_meta(&self) -> bool {
        self.names(|name| META.contains(&name))
    }

    fn says(&self) -> String {
        match &self.types {
            Ok(types) => format!("{} ({})", self.path.display(), types.join(", ")),
            Err(problem) => format!("{} (not readable: {problem})", self.path.display()),
        }
    }
}

fn none_of_ours(confs: &[Conf], conf_dir: &Path, bin_dir: &Path) -> Finding {
    let overlay = bin_dir.join(NAMES[1]);
    let by_its_name = |conf: &&Conf| conf.names(|name| name == NAMES[1]);
    if let Some(conf) = confs.iter().find(by_its_name) {
        let what = format!(
            "{} leads to {}, which is ovn-kubernetes' own binary and not podwire's",
            conf.says(),
            overlay.display()
        );
        return Finding::wrong(CNI, what).mend(own_the_name(bin_dir));
    }
    let what = match confs.first() {
        Some(first) => format!(
            "no configuration names podwire; the runtime takes {}",
            first.says()
        ),
        None => format!("{} has no configuration", conf_dir.display()),
    };
    let path = first_name(confs, "podwire.conf", conf_dir);
    Finding::wrong(CNI, what).mend(format!(
        "echo '{{\"cniVersion\":\"1.0.0\",\"name\":\"pods\",\"type\":\"podwire-cni\"}}' > {}",
        path.display()
    ))
}

fn not_first(first: &Conf, ours: &Conf) -> Finding {
    let name = ours.path.file_name().and_then(|it| it.to_str());
    let dir = ours.path.parent().unwrap_or(Path::new("/"));
    let mut what = format!(
        "the runtime takes {}, which sorts before {}",
        first.says(),
        ours.path.display()
    );
    if first
        .path
        .file_name()
        .is_some_and(|it| it == "10-ovn-kubernetes.conf")
    {
        what.push_str("; ovnkube-node writes it again each time it starts");
    }
    let bare = name
        .unwrap_or("podwire.conf")
        .trim_start_matches(|c: char| c.is_ascii_digit());
    let path = first_name(
        std::slice::from_ref(first),
        bare.trim_start_matches('-'),
        dir,
    );
    Finding::wrong(CNI, what).mend(format!("mv {} {}", ours.path.display(), path.display()))
}

/// A name that sorts before all others: `05-podwire.conf` if it does, else `00-…`, else one with a character before digits.
fn first_name(confs: &[Conf], name: &str, dir: &Path) -> PathBuf {
    let candidates =
        ["10-", "05-", "00-", "000-", "!"].map(|rank| dir.join(format!("{rank}{name}")));
    let sorts_first = |path: &&PathBuf| confs.iter().all(|conf| **path < conf.path);
    let chosen = candidates.iter().find(sorts_first);
    chosen.unwrap_or(&candidates[0]).clone()
}

/// Whether the plugin is there, can be run, and is ours under both of its names.
fn plugin(bin_dir: &Path) -> Option<Finding> {
    let plugin = bin_dir.join(NAMES[0]);
    match is_ours(&plugin) {
        None => Some(
            Finding::wrong(CNI, format!("the plugin {} is missing", plugin.display()))
                .mend("podwire install --plugin-only"),
        ),
        Some(false) => Some(
            Finding::wrong(
                CNI,
                format!(
                    "{} is not podwire's plugin: something was copied over it, as ovnkube-node does through a link",
                    plugin.display()
                ),
            )
            .mend("podwire install --plugin-only --force"),
        ),
        Some(true) => {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = fs::metadata(&plugin).ok()?.permissions().mode();
            (mode & 0o100 == 0).then(|| {
                Finding::wrong(CNI, format!("{} can't be run (mode {:o})", plugin.display(), mode & 0o777))
                    .mend(format!("chmod 755 {}", plugin.display()))
            })
        }
    }
}

/// Puts podwire's plugin in the place of ovn-kubernetes'; the old file goes first, for it may be a link to ours.
fn own_the_name(bin_dir: &Path) -> String {
    let [plugin, overlay] = NAMES.map(|name| bin_dir.join(name));
    format!(
        "cp --remove-destination {} {}",
        plugin.display(),
        overlay.display()
    )
}

/// Whether the file is podwire's plugin; none when there is no file.
fn is_ours(path: &Path) -> Option<bool> {
    let text = fs::read(path).ok()?;
    Some(text.windows(MARK.len()).any(|window| window == MARK))
}

#[cfg(test)]
mod tests;
