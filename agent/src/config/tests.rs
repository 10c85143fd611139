use clap::ValueEnum;

use super::fixture::Inputs;
use super::*;

fn config(flags: &[&str]) -> Result<Config, ConfigError> {
    match Inputs::new().flags(flags).load() {
        Ok(loaded) => Ok(loaded.config),
        Err(LoadError::Setting(error)) => Err(error),
        Err(LoadError::File(error)) => panic!("{error}"),
    }
}

fn gateways(config: &Config) -> Vec<String> {
    let gateways = config.gateway_addresses(&config.live);
    gateways.iter().map(ToString::to_string).collect()
}

#[test]
fn subnets_that_are_left_to_the_node_role_are_those_that_it_tells() {
    let subnets = |inputs: &Inputs| -> Vec<String> {
        let loaded = inputs.load().unwrap();
        let nets = loaded.config.live.subnets.iter();
        nets.map(|net| net.subnet().to_string()).collect()
    };
    let told = "subnets = [\"10.244.1.0/24\"]";
    let empty: [&str; 0] = [];
    // Nobody has told them yet, and defaults would be every node's.
    assert_eq!(subnets(&Inputs::new().own("subnets = [\"node\"]")), empty);
    for left in [
        Inputs::new().own("subnets = [\"node\"]"),
        Inputs::new().variable("PODWIRE_SUBNETS", "node"),
        Inputs::new().flags(&["--subnet", "node"]),
    ] {
        assert_eq!(subnets(&left.node_role(told)), ["10.244.1.0/24"]);
    }
    // Who names them keeps them.
    let named = Inputs::new().flags(&["--subnet", "10.1.0.0/24"]);
    assert_eq!(subnets(&named.node_role(told)), ["10.1.0.0/24"]);
}

#[test]
fn without_a_flag_it_is_the_systems_open_vswitch_and_addresses_of_our_own() {
    let config = config(&[]).unwrap();
    assert_eq!(config.socket, Path::new("/run/podwire/agent.sock"));
    assert_eq!(config.ovsdb, Path::new("/var/run/openvswitch/db.sock"));
    assert_eq!(config.ovs_rundir, Path::new("/var/run/openvswitch"));
    assert_eq!(config.bridge, "br-int");
    assert_eq!(gateways(&config)[0], "10.186.0.1/22");
}

#[test]
fn the_gateway_can_be_left_to_somebody_else() {
    assert!(gateways(&config(&["--no-gateway"]).unwrap()).is_empty());
    assert!(!gateways(&config(&["--no-gateway=false"]).unwrap()).is_empty());
}

#[test]
fn what_follows_from_another_setting_follows_it() {
    let config = config(&["--run-dir", "/a", "--ovsdb", "unix:/b/c.sock"]).unwrap();
    assert_eq!(config.socket, Path::new("/a/agent.sock"));
    assert_eq!(config.ovs_rundir, Path::new("/b"));
}

#[test]
fn in_ovn_mode_the_agent_has_no_address_no_gateway_and_waits_for_ovn() {
    let ovn = config(&["--mode", "ovn"]).unwrap();
    assert!(ovn.live.subnets.is_empty() && gateways(&ovn).is_empty());
    assert_eq!(ovn.ovn.wait, Wait::OvnInstalled);
    assert_eq!(ovn.ovn.rundir, Path::new("/var/run/ovn"));
    assert_eq!(config(&[]).unwrap().ovn.wait, Wait::Ofport);
    let impatient = config(&["--mode", "ovn", "--wait", "ofport"]).unwrap();
    assert_eq!(impatient.ovn.wait, Wait::Ofport);
    let refusal = config(&["--mode", "ovn", "--subnet", "10.1.0.0/24"]).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "--subnet 10.1.0.0/24: in OVN mode pods have their addresses from annotations; leave it \
         out, or use --mode plain"
    );
}

#[test]
fn keys_for_the_southbound_database_come_all_three_or_not_at_all() {
    let all = [
        "--ovn-private-key",
        "/k",
        "--ovn-certificate",
        "/c",
        "--ovn-ca-cert",
        "/a",
    ];
    let keys = config(&all).unwrap().ovn.tls.unwrap();
    assert_eq!(keys.ca_certificate, Path::new("/a"));
    assert_eq!(config(&[]).unwrap().ovn.tls, None);
    for missing in 0..3 {
        let mut flags = all.to_vec();
        flags.drain(2 * missing..2 * missing + 2);
        assert!(config(&flags).is_err());
    }
}

#[test]
fn an_mtu_that_nobody_gives_is_the_nodes_own() {
    assert_eq!(config(&[]).unwrap().live.mtu, None);
    assert_eq!(config(&["--mtu", "1400"]).unwrap().live.mtu, Some(1400));
}

#[test]
fn each_refusal_names_flag_value_and_what_was_expected() {
    let cases: &[&[&str]] = &[
        &["--ovsdb", "tcp:1.2.3.4:6640"],
        &["--ovsdb", "unix:db.sock"],
        &["--mode", "ovn", "--subnet", "10.1.0.0/24"],
        &["--mtu", "1279"],
        &["--mtu", "67", "--subnet", "10.1.0.0/24"],
        &["--mtu", "1500", "--max-mtu", "1400"],
        &["--max-mtu", "1000"],
        &["--bridge", "a-name-of-16-chr"],
        &["--bridge", "a b"],
        &["--bridge", "lo"],
        &["--add-timeout", "0"],
        &["--max-operations", "0"],
        &["--subnet", "10.1.0.0/33"],
        &["--subnet", "10.1.0.0/24", "--subnet", "10.1.0.128/25"],
        &["--ovn-remote", "1.2.3.4"],
        &["--ovn-private-key", "/k", "--ovn-ca-cert", "/a"],
        &["--ovn-certificate", "/c"],
        &["--log", "inof"],
        &["--log", "podwire=loud"],
        &["--sources", "dir"],
        &["--sources", "kube"],
        &["--k8s-apiserver", "h:6443"],
        &["--k8s-apiserver", "https://me:secret@h:6443"],
    ];
    let refusals: Vec<String> = cases
        .iter()
        .map(|flags| config(flags).unwrap_err().to_string())
        .collect();
    insta::assert_snapshot!(refusals.join("\n"));
}

#[test]
fn what_a_flag_chooses_from_has_one_name_everywhere() {
    fn name<T: ValueEnum>(choice: &T) -> String {
        let value = choice.to_possible_value().unwrap();
        value.get_name().to_owned()
    }
    for mode in Mode::value_variants() {
        assert_eq!(name(mode), mode.name());
    }
    for wait in Wait::value_variants() {
        assert_eq!(name(wait), wait.name());
    }
    for source in Source::value_variants() {
        assert_eq!(name(source), source.name());
    }
}
