use clap::Parser;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    agent: AgentArgs,
}

fn config(flags: &[&str]) -> Result<Config, ConfigError> {
    let arguments = std::iter::once("podwire").chain(flags.iter().copied());
    Config::from_args(Cli::try_parse_from(arguments).unwrap().agent)
}

#[test]
fn without_a_flag_it_is_the_systems_open_vswitch_and_addresses_of_our_own() {
    let config = config(&[]).unwrap();
    assert_eq!(config.socket, Path::new("/run/podwire/agent.sock"));
    assert_eq!(config.ovsdb, Path::new("/var/run/openvswitch/db.sock"));
    assert_eq!(config.ovs_rundir, Path::new("/var/run/openvswitch"));
    assert_eq!(config.bridge, "br-int");
    let gateways: Vec<String> = config
        .gateway_addresses()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(gateways[0], "10.186.0.1/22");
}

#[test]
fn the_gateway_can_be_left_to_somebody_else() {
    assert!(
        config(&["--no-gateway"])
            .unwrap()
            .gateway_addresses()
            .is_empty()
    );
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
    assert!(ovn.subnets.is_empty() && ovn.gateway_addresses().is_empty());
    assert_eq!(ovn.ovn.wait, Wait::OvnInstalled);
    assert_eq!(ovn.ovn.rundir, Path::new("/var/run/ovn"));
    assert_eq!(config(&[]).unwrap().ovn.wait, Wait::Ofport);
    let impatient = config(&["--mode", "ovn", "--wait", "ofport"]).unwrap();
    assert_eq!(impatient.ovn.wait, Wait::Ofport);
    let refusal = config(&["--mode", "ovn", "--subnet", "10.1.0.0/24"]).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "--subnet 10.1.0.0/24: in OVN mode pods have their addresses from annotations; leave it out, or use --mode plain"
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
        let arguments = std::iter::once("podwire").chain(flags);
        assert!(Cli::try_parse_from(arguments).is_err());
    }
}

#[test]
fn each_refusal_names_flag_value_and_what_was_expected() {
    let cases: [(&[&str], &str); 8] = [
        (
            &["--ovsdb", "tcp:1.2.3.4:6640"],
            "--ovsdb tcp:1.2.3.4:6640: expected unix:PATH",
        ),
        (
            &["--ovsdb", "unix:db.sock"],
            "--ovsdb unix:db.sock: the socket's path must be absolute",
        ),
        (&["--mtu", "1279"], "--mtu 1279: expected 1280 to 65535"),
        (
            &["--mtu", "67", "--subnet", "10.1.0.0/24"],
            "--mtu 67: expected 68 to 65535",
        ),
        (
            &["--bridge", "a-name-of-16-chr"],
            "--bridge a-name-of-16-chr: expected a link's name: 1 to 15 characters without '/', ':' and spaces",
        ),
        (
            &["--bridge", "a b"],
            "--bridge a b: expected a link's name: 1 to 15 characters without '/', ':' and spaces",
        ),
        (
            &["--add-timeout", "0"],
            "--add-timeout 0: at least 1 second is needed",
        ),
        (
            &["--max-operations", "0"],
            "--max-operations 0: at least 1 is needed",
        ),
    ];
    for (flags, expected) in cases {
        assert_eq!(config(flags).unwrap_err().to_string(), expected);
    }
    let error = config(&["--subnet", "10.1.0.0/33"]).unwrap_err();
    assert_eq!(
        (error.flag, error.value.as_str()),
        ("--subnet", "10.1.0.0/33")
    );
}
