//! What `make package` and `make install` make, with the binaries under test: the Debian package
//! installed, upgraded and removed by dpkg on a scratch root, and the units held to systemd's own
//! checks.

mod release;
mod reproducible;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use podwire_tests::process::finish;
use podwire_tests::{
    AgentOptions, TestNode, Words, agent_binary, controller_binary, plugin_binary,
};

const ROOT: &str = "/run/scratch";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .unwrap()
}

/// Runs a program in the workspace, on the node.
fn run(node: &TestNode, program: &str, arguments: impl Words) -> String {
    let arguments = arguments.words();
    let mut command = Command::new(program);
    command.args(&arguments).current_dir(workspace());
    command
        .env("DEB_COMPRESSION", "none")
        .env("RPM_COMPRESSION", "w0.gzdio")
        .env("SHIPPED", "/run/shipped")
        .env_remove("MAKEFLAGS");
    let finished = node
        .place()
        .run(|| finish(command, b"", Duration::from_secs(60)));
    finished
        .unwrap()
        .success(&format!("{program} {}", arguments.join(" ")))
}

/// The binaries under test, without the debugger's part.
fn ship(node: &TestNode) {
    fs::create_dir(node.path("/run/shipped")).unwrap();
    let agent = agent_binary();
    let strip = format!("-o /run/shipped/podwire {}", agent.display());
    run(node, "strip", strip);
    let controller = controller_binary();
    let strip = format!(
        "-o /run/shipped/podwire-controller {}",
        controller.display()
    );
    run(node, "strip", strip);
    fs::copy(plugin_binary(), node.path("/run/shipped/podwire-cni")).unwrap();
}

fn files(node: &TestNode, directory: &str) -> Vec<String> {
    let found = run(node, "find", [directory, "-type", "f", "-printf", "%P\n"]);
    let mut found: Vec<String> = found.lines().map(str::to_owned).collect();
    found.sort();
    found
}

const WANTED: [&str; 12] = [
    "bin/podwire",
    "lib/podwire/podwire-cni",
    "lib/systemd/system/podwire.service",
    "lib/systemd/system/podwire.socket",
    "lib/systemd/system/podwire-node.service",
    "lib/systemd/network/05-podwire.network",
    "lib/NetworkManager/conf.d/90-podwire.conf",
    "share/doc/podwire/docs/security.md",
    "share/podwire/prometheus/podwire.rules.yml",
    "share/man/man1/podwire.1.gz",
    "share/man/man1/podwire-agent.1.gz",
    "share/bash-completion/completions/podwire",
];

/// An empty root directory for dpkg, whose scripts know DPKG_ROOT; libc6 is not in it.
fn scratch(node: &TestNode) -> impl Fn(&str) -> String + '_ {
    for directory in ["info", "updates", "triggers"] {
        fs::create_dir_all(node.path(&format!("{ROOT}/var/lib/dpkg/{directory}"))).unwrap();
    }
    fs::write(node.path(&format!("{ROOT}/var/lib/dpkg/status")), "").unwrap();
    move |arguments: &str| {
        let force = "--force-script-chrootless --force-depends";
        run(node, "dpkg", format!("--root={ROOT} {force} {arguments}"))
    }
}

/// What is in the scratch root beside dpkg's own files.
fn left(node: &TestNode) -> Vec<String> {
    let files = files(node, ROOT).into_iter();
    files
        .filter(|file| !file.starts_with("var/lib/dpkg"))
        .collect()
}

#[test]
fn the_package_is_installed_upgraded_and_removed_and_leaves_nothing() {
    let node = TestNode::with_ovs();
    ship(&node);
    let build = |version: &str| {
        let line = format!("/run/shipped/podwire /run/shipped/podwire-cni {version} /run/out");
        run(&node, "deploy/debian/build", line)
    };
    let (package, newer) = (build("0.1.0"), build("0.1.1"));
    let dpkg = scratch(&node);
    dpkg(&format!("--install {package}"));
    for file in WANTED {
        assert!(node.path(&format!("{ROOT}/usr/{file}")).exists(), "{file}");
    }
    assert!(
        !node.path(&format!("{ROOT}/opt")).exists(),
        "the runtime's directories are podwire install's"
    );
    assert!(!node.path(&format!("{ROOT}/etc/cni")).exists());

    let _agent = node.start_agent(&AgentOptions::default());
    let podwire = format!("{ROOT}/usr/bin/podwire");
    run(&node, &podwire, format!("install --root {ROOT}"));
    let plugin = node.path(&format!("{ROOT}/opt/cni/bin/podwire-cni"));
    // As an older version would have left it.
    let mut older = fs::read(&plugin).unwrap();
    older.push(0);
    fs::write(&plugin, older).unwrap();
    fs::write(
        node.path(&format!("{ROOT}/etc/default/podwire")),
        "PODWIRE_MTU=1400\n",
    )
    .unwrap();
    dpkg(&format!("--force-confold --install {newer}"));
    assert!(fs::read(&plugin).unwrap() == fs::read(plugin_binary()).unwrap());
    let kept = fs::read_to_string(node.path(&format!("{ROOT}/etc/default/podwire"))).unwrap();
    assert_eq!(kept, "PODWIRE_MTU=1400\n");
    assert!(
        node.path(&format!("{ROOT}/etc/cni/net.d/10-podwire.conflist"))
            .exists()
    );

    // As `systemctl enable` and `systemctl edit` leave them.
    let units = node.path(&format!("{ROOT}/etc/systemd/system"));
    let enabled = [
        "multi-user.target.wants/podwire.service",
        "multi-user.target.wants/podwire-node.service",
        "sockets.target.wants/podwire.socket",
    ];
    for link in enabled.map(|link| units.join(link)) {
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/usr/lib/systemd/system/podwire", link).unwrap();
    }
    fs::create_dir(units.join("podwire.service.d")).unwrap();
    dpkg("--remove podwire");
    assert!(!plugin.exists());
    dpkg("--purge podwire");
    for link in enabled {
        assert!(!units.join(link).is_symlink(), "{link}");
    }
    let ours = run(
        &node,
        "find",
        format!("{ROOT} -path *podwire* -not -path */dpkg/*"),
    );
    assert_eq!(ours, "");
    assert_eq!(left(&node), Vec::<String>::new());
}

#[test]
fn the_controllers_package_leaves_nothing() {
    let node = TestNode::new();
    ship(&node);
    let line = ["/run/shipped/podwire-controller", "", "0.1.0", "/run/one"];
    let package = run(&node, "deploy/debian/build", line);
    let dpkg = scratch(&node);
    dpkg(&format!("--install {package}"));
    for file in [
        "usr/bin/podwire-controller",
        "usr/lib/systemd/system/podwire-controller.service",
        "usr/share/doc/podwire-controller/copyright",
        "usr/share/podwire-controller/rbac.yaml",
        "etc/default/podwire-controller",
    ] {
        assert!(node.path(&format!("{ROOT}/{file}")).exists(), "{file}");
    }
    let wanted = node.path(&format!(
        "{ROOT}/etc/systemd/system/multi-user.target.wants/podwire-controller.service"
    ));
    fs::create_dir_all(wanted.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(
        "/usr/lib/systemd/system/podwire-controller.service",
        &wanted,
    )
    .unwrap();
    dpkg("--purge podwire-controller");
    assert!(!wanted.is_symlink());
    assert_eq!(left(&node), Vec::<String>::new());
}

#[test]
fn the_rpm_is_built_without_fedoras_macros_and_owns_all_that_it_brings() {
    let node = TestNode::with_ovs();
    ship(&node);
    let build = "/run/shipped/podwire /run/shipped/podwire-cni 0.1.0 /run/out";
    let package = run(&node, "deploy/rpm/build", build);
    // Scripts need a shell in the root, and this one has nothing.
    fs::create_dir(node.path(ROOT)).unwrap();
    let rpm = |arguments: &str| {
        let without = "--noscripts --nodeps --noplugins";
        run(&node, "rpm", format!("--root {ROOT} {without} {arguments}"))
    };
    rpm(&format!("--install {package}"));
    for file in WANTED {
        assert!(node.path(&format!("{ROOT}/usr/{file}")).exists(), "{file}");
    }
    for file in [
        "usr/share/zsh/site-functions/_podwire",
        "etc/podwire/podwire.toml",
    ] {
        assert!(node.path(&format!("{ROOT}/{file}")).exists(), "{file}");
    }
    let query = format!("--query --scripts --package {package}");
    let scripts = run(&node, "rpm", query);
    for line in [
        "/usr/bin/podwire install --upgrade",
        "systemctl --no-reload preset podwire.socket podwire.service podwire-node.service",
        "systemctl --no-reload disable --now podwire.socket podwire.service podwire-node.service",
        "systemctl try-restart podwire.service podwire-node.service",
    ] {
        assert!(scripts.contains(line), "{line:?} is not in:\n{scripts}");
    }
    rpm("--erase podwire");
    // Those that every distribution has remain, but nothing with our name.
    let left = run(&node, "find", format!("{ROOT} -name *podwire*"));
    assert_eq!(left, "");
}

#[test]
fn make_install_puts_all_below_its_destination() {
    let node = TestNode::new();
    ship(&node);
    let install = "--no-print-directory install DESTDIR=/run/scratch PREFIX=/usr";
    run(&node, "make", install);
    for file in WANTED {
        assert!(node.path(&format!("{ROOT}/usr/{file}")).exists(), "{file}");
    }
    assert!(
        node.path(&format!("{ROOT}/opt/cni/bin/podwire-cni"))
            .exists()
    );
    assert!(files(&node, &format!("{ROOT}/etc")).contains(&"default/podwire".to_owned()));
}

#[test]
fn make_package_builds_both_of_the_workspaces_version() {
    let node = TestNode::new();
    ship(&node);
    let package = "--no-print-directory package PACKAGES=/run/out";
    let built = run(&node, "make", package);
    let names = built.lines().map(|built| {
        let version = run(&node, "dpkg-deb", format!("--field {built} Version"));
        assert_eq!(version.trim(), env!("CARGO_PKG_VERSION"));
        run(&node, "dpkg-deb", format!("--field {built} Package"))
    });
    let names: Vec<String> = names.collect();
    assert_eq!(names, ["podwire\n", "podwire-controller\n"]);
}

#[test]
fn systemd_knows_every_line_of_the_units_and_finds_little_exposed() {
    let node = TestNode::new();
    let units = workspace().join("deploy/systemd");
    let agent = agent_binary();
    let names = [
        "podwire.service",
        "podwire.socket",
        "podwire-node.service",
        "podwire-southbound.service",
        "podwire-controller.service",
    ];
    let controller = controller_binary();
    for unit in names {
        let text = fs::read_to_string(units.join(unit)).unwrap();
        // It looks whether the program is there.
        let text = text.replace("/usr/bin/podwire-controller", controller.to_str().unwrap());
        let text = text.replace("/usr/bin/podwire", agent.to_str().unwrap());
        fs::write(node.path(&format!("/run/{unit}")), text).unwrap();
    }
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no"]);
    command.args(names.map(|unit| format!("/run/{unit}")));
    let told = node
        .place()
        .run(|| finish(command, b"", Duration::from_secs(60)))
        .unwrap();
    assert!(
        told.status.success() && !told.stderr.contains("podwire"),
        "{told:?}"
    );
    // docs/security.md has the figure.
    run(
        &node,
        "systemd-analyze",
        "security --offline=yes --threshold=37 /run/podwire.service",
    );
}

/// The values of a key of a unit of ours, in order.
fn values(unit: &str, key: &str) -> Vec<String> {
    let text = fs::read_to_string(workspace().join("deploy/systemd").join(unit)).unwrap();
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let values = pairs.filter(|(found, _)| *found == key);
    values.map(|(_, value)| value.to_owned()).collect()
}

#[test]
fn the_units_hold_the_agents_socket_and_start_it_after_open_vswitch() {
    for (unit, key, value) in [
        ("podwire.service", "Type", "notify"),
        ("podwire.service", "ExecStart", "/usr/bin/podwire agent"),
        ("podwire.service", "ExecReload", "kill -HUP $MAINPID"),
        (
            "podwire.service",
            "EnvironmentFile",
            "-/etc/default/podwire",
        ),
        ("podwire.service", "WatchdogSec", "30"),
        ("podwire.service", "Restart", "always"),
        // The agent takes up to 10 s to end, and ends its spawner of IPAM plugins by itself.
        ("podwire.service", "TimeoutStopSec", "15"),
        ("podwire.service", "KillMode", "mixed"),
        ("podwire-node.service", "Type", "notify"),
        (
            "podwire-node.service",
            "ExecStart",
            "/usr/bin/podwire node run",
        ),
        ("podwire-node.service", "TimeoutStartSec", "infinity"),
        ("podwire-node.service", "Restart", "always"),
        ("podwire.socket", "ListenStream", "/run/podwire/agent.sock"),
        ("podwire.socket", "SocketMode", "0600"),
        ("podwire.socket", "DirectoryMode", "0700"),
    ] {
        assert_eq!(values(unit, key), [value], "{key} of {unit}");
    }
    let after = values("podwire.service", "After").join(" ");
    for other in [
        "ovsdb-server.service",
        "ovs-vswitchd.service",
        "openvswitch-switch.service",
        "openvswitch.service",
        "podwire.socket",
    ] {
        assert!(after.split(' ').any(|it| it == other), "{other}");
    }
    assert_eq!(values("podwire.service", "Before"), ["kubelet.service"]);
}

#[test]
fn the_units_capabilities_are_enough_to_wire_pods() {
    let bounds = values("podwire.service", "CapabilityBoundingSet").join(" ");
    let bounds = bounds.to_lowercase().replace("cap_", "+").replace(' ', ",");
    let node = TestNode::with_ovs();
    let options = AgentOptions::default().under(&[
        "setpriv",
        "--no-new-privs",
        "--inh-caps=-all",
        &format!("--bounding-set=-all,{bounds}"),
    ]);
    let _agent = node.start_agent(&options);
    let pod = node.pod("web");
    let result = pod.add().success();
    pod.check(&result).success();
    pod.del().success();
    node.leftovers().assert_none();
}
