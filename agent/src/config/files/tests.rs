use super::super::fixture::Inputs;
/// The example of go-controller's README, with the keys of its sections filled in.
const README: &str = "\
[default]
mtu=1500
conntrack-zone=64321

[kubernetes]
apiserver=https://1.2.3.4:6443
token=TG9yZW0gaXBzdW0gZG9sb3Igc2l0IGFtZXQ=
cacert=/etc/kubernetes/ca.crt

[logging]
loglevel=5
logfile=/var/log/ovnkube.log

[cni]
conf-dir=/etc/cni/net.d
plugin=ovn-k8s-cni-overlay

[ovnnorth]
address=ssl:1.2.3.4:6641
client-privkey=/path/to/private.key
client-cert=/path/to/client.crt
client-cacert=/path/to/client-ca.crt
server-privkey=/path/to/private.key
server-cert=/path/to/server.crt
server-cacert=path/to/server-ca.crt

[ovnsouth]
address=ssl:1.2.3.4:6642
client-privkey=/path/to/private.key
client-cert=/path/to/client.crt
client-cacert=/path/to/client-ca.crt
server-privkey=/path/to/private.key
server-cert=/path/to/server.crt
server-cacert=path/to/server-ca.crt
";

#[test]
fn the_readmes_example_is_read_as_it_stands() {
    let inputs = Inputs::new().ovn_k8s(README).flags(&["--node-name", "n1"]);
    let loaded = inputs.load().unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let config = loaded.config;
    assert_eq!(config.live.mtu, Some(1500));
    assert_eq!(config.live.log, "debug");
    assert_eq!(
        config.log_file.unwrap().to_str(),
        Some("/var/log/ovnkube.log")
    );
    assert_eq!(config.runtime.cni_conf_dir.to_str(), Some("/etc/cni/net.d"));
    assert_eq!(config.ovn.remote.as_deref(), Some("ssl:1.2.3.4:6642"));
    let keys = config.ovn.tls.unwrap();
    assert_eq!(keys.ca_certificate.to_str(), Some("/path/to/client-ca.crt"));
    assert_eq!(
        config.sources.kube.unwrap().access.to_string(),
        "https://1.2.3.4:6443"
    );
}

#[test]
fn keys_that_nobody_knows_are_named_in_one_warning() {
    let text =
        "[default]\nmtuu=1\ncluster-subnets=10.0.0.0/8\n[gateway]\nmodes=shared\n[Extra \"x\"]\na";
    let inputs = Inputs::new().ovn_k8s(text);
    let path = inputs.places.ovn_k8s.path.display().to_string();
    assert_eq!(
        inputs.load().unwrap().warnings,
        [format!(
            "{path}: not used, for podwire knows no such key: [default] mtuu, [gateway] modes, \
             [extra \"x\"] a"
        )]
    );
}

#[test]
fn numbers_may_be_hexadecimal_and_empty_values_say_nothing() {
    let inputs = Inputs::new()
        .ovn_k8s("[default]\nmtu=0x57E\n[kubernetes]\ntoken=\n[logging]\nlogfile=\"\"");
    let loaded = inputs.load().unwrap();
    assert_eq!(loaded.config.live.mtu, Some(1406));
    assert_eq!(loaded.merged.given.len(), 1);
}

#[test]
fn microshifts_example_is_read_as_it_stands() {
    let inputs = Inputs::new().microshift("disableOVSInit: true\nmtu: 1300\n");
    let loaded = inputs.load().unwrap();
    assert_eq!(loaded.config.live.mtu, Some(1300));
    assert!(loaded.warnings.is_empty());
    for nothing in ["", "# only a comment\n", "mtu:\n", "disableOVSInit: false"] {
        let loaded = Inputs::new().microshift(nothing).load().unwrap();
        assert_eq!(loaded.config.live.mtu, None, "{nothing:?}");
    }
    let unknown = Inputs::new()
        .microshift("mtu: 1300\nipForwarding: true")
        .load()
        .unwrap();
    assert!(
        unknown.warnings[0].ends_with("no such key: ipForwarding"),
        "{unknown:?}"
    );
}

#[test]
fn a_file_of_another_kind_or_size_is_refused() {
    let dir = Inputs::new();
    std::fs::create_dir(&dir.places.own.path).unwrap();
    assert_eq!(dir.refusal(), "podwire.toml: not a regular file");
    let large = Inputs::new()
        .own(&"#".repeat(1 << 20).replace("##", "#\n"))
        .own(&"# \n".repeat(400_000));
    assert_eq!(large.refusal(), "podwire.toml: larger than 1048576 bytes");
    let bytes = Inputs::new();
    std::fs::write(&bytes.places.own.path, b"mtu = \xff").unwrap();
    assert_eq!(
        bytes.refusal(),
        "podwire.toml: stream did not contain valid UTF-8"
    );
}

#[test]
fn every_setting_of_the_shipped_example_is_read_as_it_stands_there() {
    let example = include_str!("../../../../deploy/podwire.toml");
    let settings: Vec<_> = example
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()))
        // Instead of the file with it.
        .filter(|line| !line.starts_with("k8s-token ="))
        .collect();
    assert!(settings.len() > 30, "{settings:?}");
    let loaded = Inputs::new().own(&settings.join("\n")).load();
    assert!(loaded.is_ok(), "{:?}", loaded.err());
}
