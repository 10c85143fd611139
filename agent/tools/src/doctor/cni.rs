//! Checks the runtime's side: which network configuration it uses, and whether the plugin in it is
//! podwire's.

use std::path::{Path, PathBuf};

use super::{Examined, Finding, Kind};
use podwire::config::usual::{self, DROP_IN, PLUGIN_NAMES};
use podwire::install::conf::{Found, Owner};
use podwire::install::findings::{RuntimeState, look};

/// Plugins other than Multus that call others and come first by design.
const META: [&str; 1] = ["genie"];

/// The usual prefix of the file name that `podwire install` writes.
const USUAL_RANK: u8 = 10;

/// The runtime's directories.
#[derive(Debug)]
pub(super) struct Directories<'a> {
    /// Of network configurations.
    pub(super) conf: &'a Path,
    /// Of plugins.
    pub(super) bin: &'a Path,
    /// CRI-O's configuration, with `crio.conf` and `crio.conf.d`.
    pub(super) crio: &'a Path,
}

/// The directory of CRI-O's configuration.
pub(super) const CRIO: &str = "/etc/crio";

/// The network that CRI-O is configured to use, whichever comes first in the directory
/// (crio.conf(5), `cni_default_network`; of several files, the last one counts).
fn crio_network(directory: &Path) -> Option<String> {
    let drop_ins = std::fs::read_dir(directory.join("crio.conf.d")).into_iter();
    let mut files: Vec<PathBuf> = drop_ins.flatten().flatten().map(|it| it.path()).collect();
    files.sort();
    files.insert(0, directory.join("crio.conf"));
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).ok()?;
        let table: toml::Table = text.parse().ok()?;
        let network = table.get("crio")?.get("network")?;
        Some(network.get("cni_default_network")?.as_str()?.to_owned())
    };
    let named = files.iter().filter_map(read).next_back();
    named.filter(|name| !name.is_empty())
}

/// Checks both directories.
pub(super) fn examine(directories: &Directories<'_>) -> Examined {
    let seen = match look(directories.conf, directories.bin) {
        Ok(seen) => seen,
        Err(error) => {
            return Examined {
                about: Kind::NoConf.about(),
                seen: String::new(),
                findings: vec![Finding::wrong(Kind::ConfUnreadable, error.to_string())],
            };
        }
    };
    let mut findings = Vec::new();
    // The plugin first: a configuration without its plugin makes every pod fail.
    findings.extend(plugin(&seen, directories));
    let lost = seen.confs.iter().filter(|conf| conf.is_podwires());
    findings.extend(lost.filter_map(|conf| lost_portmap(conf, &seen, directories)));
    let named = crio_network(directories.crio);
    let is_named = |conf: &&Found| named.is_some() && conf.network == named;
    let first = seen.confs.iter().find(is_named).or(seen.confs.first());
    let of_ours = |conf: &&Found| leads_to_us(conf, &seen);
    let ours = first.filter(of_ours).or(seen.confs.iter().find(of_ours));
    match (first, ours) {
        // Only the API server knows which one it calls for which pod.
        (Some(first), None) if is_meta(first) => findings.push(Finding::note(
            Kind::NoConf,
            format!(
                "{} calls other plugins, and no configuration here names podwire; podwire gets \
                 only calls for network attachment definitions, or from that plugin's delegate",
                describe(first)
            ),
        )),
        (_, None) => findings.push(none_of_ours(&seen, directories)),
        (Some(first), Some(ours))
            if is_named(&first) && !leads_to_us(first, &seen) && !is_meta(first) =>
        {
            findings.push(not_crios(first, ours, directories));
        }
        (Some(first), Some(ours)) if first.path != ours.path && !is_meta(first) => {
            findings.push(not_first(first, ours));
        }
        _ => {}
    }
    let host_port = match ours.is_none_or(Found::names_portmap) {
        true => "",
        false => "; it does not name portmap, so hostPort does not work",
    };
    let seen = match (first, ours) {
        (Some(first), Some(ours)) if first.path != ours.path => format!(
            "{} calls others, {} is podwire's",
            first.path.display(),
            ours.path.display()
        ),
        (_, Some(ours)) if named.is_some() && ours.network == named => {
            format!(
                "{} is CRI-O's default network and podwire's",
                ours.path.display()
            )
        }
        (_, Some(ours)) => format!("{} comes first and is podwire's", ours.path.display()),
        _ => String::new(),
    } + host_port;
    Examined {
        about: Kind::NoConf.about(),
        seen,
        findings,
    }
}

/// podwire's own name always counts, ovn-kubernetes' only if the plugin with that name is
/// podwire's.
fn leads_to_us(conf: &Found, seen: &RuntimeState) -> bool {
    let is_drop_in = conf.plugins.iter().any(|name| name == DROP_IN);
    conf.is_podwires() || (is_drop_in && is_ours(seen, DROP_IN) != Some(false))
}

fn is_meta(conf: &Found) -> bool {
    conf.owner == Owner::Multus
        || conf
            .plugins
            .iter()
            .any(|name| META.contains(&name.as_str()))
}

/// Whether the plugin with this name is podwire's; None if there is none.
fn is_ours(seen: &RuntimeState, name: &str) -> Option<bool> {
    seen.plugins.as_ref()?.get(name).copied()
}

fn describe(conf: &Found) -> String {
    let plugins = match conf.plugins.is_empty() {
        true => "names no plugin, or can't be read".to_owned(),
        false => conf.plugins.join(", "),
    };
    format!("{} ({plugins})", conf.path.display())
}

fn none_of_ours(seen: &RuntimeState, directories: &Directories<'_>) -> Finding {
    let names_drop_in = |conf: &&Found| conf.plugins.iter().any(|name| name == DROP_IN);
    if let Some(conf) = seen.confs.iter().find(names_drop_in) {
        let overlay = directories.bin.join(DROP_IN);
        let what = format!(
            "{} leads to {}, which is ovn-kubernetes' own plugin and not podwire's",
            describe(conf),
            overlay.display()
        );
        // The old file is removed first, because it may be a link to podwire's.
        return Finding::wrong(Kind::OverlayNotOurs, what).fix(format!(
            "cp --remove-destination {} {}",
            directories.bin.join(PLUGIN_NAMES[0]).display(),
            overlay.display()
        ));
    }
    let what = match seen.confs.first() {
        Some(first) => format!(
            "no configuration names podwire; the runtime takes {}",
            describe(first)
        ),
        None => format!("{} has no configuration", directories.conf.display()),
    };
    // The first one stays; podwire's is put before it, if a number allows.
    let Some(first) = seen.confs.first() else {
        return Finding::wrong(Kind::NoConf, what).fix(install("--conf-only", directories));
    };
    let comes_first = |rank: &u8| {
        let ours = directories.conf.join(format!("{rank:02}-podwire.conflist"));
        ours < first.path
    };
    let rank = (0..=USUAL_RANK).rev().find(comes_first);
    let mut command = install("--conf-only", directories);
    match rank {
        Some(USUAL_RANK) => {}
        Some(rank) => command.push_str(&format!(" --priority {rank:02}")),
        None => {
            return Finding::wrong(Kind::NoConf, what)
                .fix(command)
                .fix(set_aside(first));
        }
    }
    Finding::wrong(Kind::NoConf, what).fix(command)
}

/// The command that hides a configuration from the runtime, which only reads names with certain
/// suffixes.
fn set_aside(conf: &Found) -> String {
    let path = conf.path.display();
    format!("mv {path} {path}.disabled")
}

fn not_crios(first: &Found, ours: &Found, directories: &Directories<'_>) -> Finding {
    let network = |conf: &Found| conf.network.clone().unwrap_or_default();
    let what = format!(
        "CRI-O takes {}, by its cni_default_network {:?} in {}; podwire's network is {:?}: name \
         that one there, or none",
        describe(first),
        network(first),
        directories.crio.display(),
        network(ours)
    );
    Finding::wrong(Kind::ConfNotFirst, what)
}

fn not_first(first: &Found, ours: &Found) -> Finding {
    let mut what = format!(
        "the runtime takes {}, which sorts before {}",
        describe(first),
        ours.path.display()
    );
    if first.owner == Owner::OvnKubernetes {
        what.push_str("; ovn-kubernetes' node process writes it again each time it starts");
    }
    let fix = match before(first, ours) {
        Some(path) => format!("mv {} {}", ours.path.display(), path.display()),
        None => set_aside(first),
    };
    Finding::wrong(Kind::ConfNotFirst, what).fix(fix)
}

/// A name for podwire's that sorts before the other: `05-podwire.conf`, or one with `00-`; None if
/// no number does.
fn before(first: &Found, ours: &Found) -> Option<PathBuf> {
    let name = ours.path.file_name().and_then(|it| it.to_str());
    let is_rank = |c: char| c.is_ascii_digit() || c == '-';
    let bare = name.unwrap_or("podwire.conf").trim_start_matches(is_rank);
    let candidates = ["05-", "00-"].map(|rank| ours.path.with_file_name(format!("{rank}{bare}")));
    candidates.into_iter().find(|path| *path < first.path)
}

/// Checks that the plugin exists, is executable, and is podwire's.
fn plugin(seen: &RuntimeState, directories: &Directories<'_>) -> Option<Finding> {
    // If it was installed only in place of ovn-kubernetes', it does not have its own name (`podwire
    // install --as`).
    let name =
        match is_ours(seen, DROP_IN) == Some(true) && !seen.confs.iter().any(Found::is_podwires) {
            true => DROP_IN,
            false => PLUGIN_NAMES[0],
        };
    let path = directories.bin.join(name);
    let shown = path.display();
    match is_ours(seen, name) {
        None => {
            let what = format!("the plugin {shown} is missing");
            Some(
                Finding::wrong(Kind::PluginMissing, what)
                    .fix(install("--plugin-only", directories)),
            )
        }
        Some(false) => {
            let what = format!(
                "{shown} is not podwire's plugin: something was copied over it, as ovn-kubernetes' \
                 node process does through a link"
            );
            Some(
                Finding::wrong(Kind::PluginNotOurs, what)
                    .fix(install("--plugin-only --force", directories)),
            )
        }
        Some(true) => {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = std::fs::metadata(&path).ok()?.permissions().mode() & 0o777;
            (mode & 0o100 == 0).then(|| {
                Finding::wrong(
                    Kind::PluginMode,
                    format!("{shown} can't be run (mode {mode:o})"),
                )
                .fix(format!("chmod 755 {shown}"))
            })
        }
    }
}

/// A configuration whose portmap is gone.
fn lost_portmap(
    conf: &Found,
    seen: &RuntimeState,
    directories: &Directories<'_>,
) -> Option<Finding> {
    let what = format!(
        "the plugin {} is missing, and {} calls it: no pod starts",
        seen.lost_portmap(conf)?.display(),
        conf.path.display()
    );
    let finding = Finding::wrong(Kind::PluginMissing, what);
    Some(match conf.owner {
        Owner::Installed => finding.fix(install("--conf-only", directories)),
        _ => finding,
    })
}

/// `podwire install` for one part, with the directories that are not the usual ones.
fn install(part: &str, directories: &Directories<'_>) -> String {
    let mut command = format!("podwire install {part}");
    for (flag, usual, given) in [
        ("--conf-dir", usual::CNI_CONF_DIR, directories.conf),
        ("--bin-dir", usual::CNI_BIN_DIR, directories.bin),
    ] {
        let is_needed = part.contains("plugin") == (flag == "--bin-dir");
        if is_needed && given != Path::new(usual) {
            command.push_str(&format!(" {flag} {}", given.display()));
        }
    }
    command
}

#[cfg(test)]
mod tests;
