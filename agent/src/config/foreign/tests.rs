use super::super::fixture::Inputs;
use super::super::{Config, Mode, Source};

fn inputs(flags: &str) -> Inputs {
    Inputs::new().flags(&flags.split_whitespace().collect::<Vec<_>>())
}

fn config(flags: &str) -> Config {
    inputs(flags).load().unwrap().config
}

fn refusal(flags: &str) -> String {
    inputs(flags).command().unwrap_err().to_string()
}

#[test]
fn the_readmes_command_for_a_node_works_as_it_stands() {
    for dashes in ["-", "--"] {
        let config = config(&format!(
            "{dashes}init-node node-1 {dashes}k8s-cacert /ca {dashes}k8s-token t \
             {dashes}k8s-apiserver https://10.11.12.13:8443"
        ));
        assert_eq!(config.ovn.mode, Mode::Ovn);
        assert_eq!(config.sources.order, [Source::Cni, Source::Kube]);
        assert_eq!(config.sources.kube.unwrap().node, "node-1");
    }
}

#[test]
fn every_flag_of_ovnkube_that_is_a_nodes_means_here_what_it_means_there() {
    let config = config(
        "-mtu=1350 -loglevel 5 -logfile=/var/log/ovnkube.log -cni-conf-dir=/run/net.d \
         -cni-plugin ovn-k8s-cni-overlay -k8s-kubeconfig /root/kubeconfig -init-node=n1 \
         -sb-address=ssl:192.0.2.1:6642 -sb-client-privkey=/k -sb-client-cert=/c \
         -sb-client-cacert=/a",
    );
    assert_eq!(config.live.mtu, Some(1350));
    assert_eq!(config.live.log, "debug");
    assert_eq!(
        config.log_file.unwrap().to_str(),
        Some("/var/log/ovnkube.log")
    );
    assert_eq!(config.runtime.cni_conf_dir.to_str(), Some("/run/net.d"));
    assert_eq!(config.ovn.remote.as_deref(), Some("ssl:192.0.2.1:6642"));
    assert_eq!(config.ovn.tls.unwrap().private_key.to_str(), Some("/k"));
}

#[test]
fn a_mode_that_is_said_stands_above_the_one_that_follows_from_init_node() {
    let plain = config("--init-node n1 --mode plain");
    assert_eq!(plain.ovn.mode, Mode::Plain);
}

#[test]
fn each_flag_that_is_not_a_nodes_is_refused_with_its_reason_all_in_one_message() {
    let refusal = refusal(
        "-init-master m1 -init-cluster-manager=m1 -init-ovnkube-controller=m1 -cleanup-node n1 \
         -remove-node=n1 -cluster-subnets=10.128.0.0/14 -conntrack-zone 64000 \
         -nb-address=tcp:192.0.2.1:6641 -nb-client-privkey=/k -nb-client-cert=/c \
         -nb-client-cacert=/a --gateway-mode=shared --gateway-init --nodeport",
    );
    insta::assert_snapshot!(refusal);
}

#[test]
fn two_names_of_one_setting_are_refused() {
    for flags in [
        "--log=debug -loglevel=5",
        "--node-name=a -init-node=b",
        "--kubeconfig=/a -k8s-kubeconfig=/b",
    ] {
        let refusal = refusal(flags);
        assert!(refusal.contains("cannot be used with"), "{refusal}");
    }
}

#[test]
fn a_plugin_that_is_not_podwires_is_refused() {
    let other = refusal("-cni-plugin=flannel");
    assert!(
        other.contains("podwire-cni or ovn-k8s-cni-overlay"),
        "{other}"
    );
    let other = Inputs::new().ovn_k8s("[cni]\nplugin=flannel").refusal();
    assert!(
        other.contains("line 2: [cni] plugin: expected podwire-cni or"),
        "{other}"
    );
}

#[test]
fn levels_are_ovnkubes() {
    let filter = |level: &str| super::log_filter(level);
    let filters: Vec<_> = ["1", "2", "3", "4", "5", "6"]
        .map(filter)
        .into_iter()
        .flatten()
        .collect();
    assert_eq!(
        filters,
        ["error", "error", "warn", "info", "debug", "trace"]
    );
    for bad in ["0", "11", "-1", "", "info"] {
        assert!(filter(bad).is_err(), "{bad}");
    }
}

#[test]
fn called_ovnkube_it_is_agent_and_node_role() {
    let line = |arguments: &[&str]| -> Vec<String> {
        let arguments = arguments.iter().map(Into::into);
        let line = super::command_line(arguments);
        line.into_iter()
            .map(|it| it.into_string().unwrap())
            .collect()
    };
    assert_eq!(
        line(&["/usr/bin/ovnkube", "-init-node", "n1", "--mtu=1400"]),
        [
            "/usr/bin/ovnkube",
            "ovnkube",
            "--init-node",
            "n1",
            "--mtu=1400"
        ]
    );
    // As which it starts itself anew, to hide a token.
    let again = ["/usr/bin/ovnkube", "ovnkube", "--init-node"];
    assert_eq!(line(&again), again);
    // Other commands' short flags are theirs.
    assert_eq!(
        line(&["podwire", "ports", "-ojson"]),
        ["podwire", "ports", "-ojson"]
    );
    assert_eq!(
        line(&["podwire", "agent", "-h", "-V"]),
        ["podwire", "agent", "-h", "-V"]
    );
}

#[test]
fn the_page_about_the_configuration_has_every_flag_of_ovnkube() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    for name in super::flags().map(|name| name.flag) {
        let said = [format!("`-{name}`"), format!("`-{name} ")];
        assert!(said.iter().any(|said| page.contains(said)), "{name}");
    }
}
