use std::ffi::OsStr;

use clap::{CommandFactory as _, Parser};

use super::super::files::Place;
use super::*;

/// Which places tell the role something, the highest first.
const PLACES: usize = 6;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Line,
}

#[derive(clap::Subcommand)]
enum Line {
    Ovnkube(Box<OvnkubeCommand>),
    Node(Box<NodeCommand>),
}

struct Role {
    dir: tempfile::TempDir,
    flags: Vec<String>,
    variables: Vec<(&'static str, String)>,
}

impl Role {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            flags: Vec::new(),
            variables: Vec::new(),
        }
    }

    fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    fn file(self, name: &str, text: &str) -> Self {
        std::fs::write(self.dir.path().join(name), text).unwrap();
        self
    }

    fn variable(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    fn line(&self) -> Result<RoleLine, String> {
        let words = ["podwire", "node", "run"].map(str::to_owned).into_iter();
        let mut whole = Cli::command().mut_subcommand("node", node_command);
        let given = whole.try_get_matches_from_mut(words.chain(self.flags.iter().cloned()));
        let given = given.map_err(|error| error.to_string())?;
        let (_, node) = given.subcommand().unwrap();
        let (verb, given) = node.subcommand().unwrap();
        let place = |name: &str| Place {
            path: self.dir.path().join(name),
            named: false,
        };
        let places = Places {
            own: place("podwire.toml"),
            ovn_k8s: place("ovn_k8s.conf"),
            microshift: place("ovn.yaml"),
            node: place("agent.toml"),
        };
        let variables: Vec<(&str, &str)> = self
            .variables
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let environment = Environment::of(&variables, self.dir.path());
        let unit = self.dir.path().join("unit");
        let environment = environment.with_file(&unit).unwrap();
        let settings = settings(verb);
        let layer = named(given, &settings);
        let line = line(verb, &settings, layer, places, &environment);
        line.map_err(|error| {
            let directory = format!("{}/", self.dir.path().display());
            error.to_string().replace(&directory, "")
        })
    }

    /// The flags that the role gets in the end.
    fn told(&self) -> Vec<String> {
        let line = self.line().unwrap().arguments;
        let words = line.into_iter().skip(3);
        words.map(|word| word.into_string().unwrap()).collect()
    }
}

/// A command at a terminal has none of the variables that the unit reads from its file.
#[test]
fn what_the_unit_s_file_tells_counts_as_its_variables_would() {
    let unit = "# of podwire\n;PODWIRE_MODE=other\nPODWIRE_MODE=ovn\nPODWIRE_MTU=1400\n\
                PODWIRE_CLUSTER_SUBNETS=\"10.244.0.0/16 fd00::/48\"\nPODWIRE_ENCAP_PORT=x\n";
    let role = || {
        let role = Role::new().file("unit", unit);
        role.file("podwire.toml", "[node]\nencap-port = 8080\n")
            .variable("PODWIRE_MTU", "1300")
    };
    let told = role().told();
    for flag in [
        "--mode=ovn",
        "--mtu=1300",
        "--cluster-subnet=10.244.0.0/16",
        "--cluster-subnet=fd00::/48",
        "--encap-port=8080",
    ] {
        assert!(told.iter().any(|it| it == flag), "{flag}: {told:?}");
    }
    let line = role().line().unwrap();
    let origin = line.origin("--mode");
    assert!(origin.ends_with("unit, line 3: PODWIRE_MODE)"), "{origin}");
    assert_eq!(line.origin("--mtu"), " ($PODWIRE_MTU)");
    let refused = Role::new().file("unit", "PODWIRE_MTU=many").line();
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("unit, line 1: PODWIRE_MTU = many"),
        "{refused}"
    );
}

#[test]
fn of_every_two_places_the_higher_counts_as_for_the_agent() {
    let cacert: [fn(Role) -> Role; PLACES] = [
        |role| role.flag("--k8s-cacert=/flag"),
        |role| role.file("podwire.toml", "k8s-cacert = '/own'"),
        |role| role.file("ovn_k8s.conf", "[kubernetes]\ncacert=/ovn-k8s"),
        |role| role.variable("PODWIRE_K8S_CACERT", "/podwire-variable"),
        |role| role.variable("K8S_CACERT", "/variable"),
        |role| role.file("ca.crt", ""),
    ];
    let mtu: [fn(Role) -> Role; PLACES] = [
        |role| role.flag("--mtu=1301"),
        |role| role.file("podwire.toml", "mtu = 1302"),
        |role| role.file("ovn_k8s.conf", "[default]\nmtu=1303"),
        |role| role.file("ovn.yaml", "mtu: 1304"),
        |role| role.variable("PODWIRE_MTU", "1305"),
        |role| role,
    ];
    for bits in 0..1usize << PLACES {
        let chosen: [bool; PLACES] = std::array::from_fn(|place| bits >> place & 1 == 1);
        let of = |tell: [fn(Role) -> Role; PLACES], flag: &str, values: [&str; PLACES]| {
            let mut role = Role::new();
            for (tell, _) in tell.iter().zip(chosen).filter(|(_, chosen)| *chosen) {
                role = tell(role);
            }
            let account = role.dir.path().join("ca.crt").display().to_string();
            let mut told = values.iter().zip(chosen).filter(|(_, chosen)| *chosen);
            let told = told.find(|(value, _)| !value.is_empty());
            let told = told.map(|(value, _)| value.replace("ACCOUNT", &account));
            let expected = told.map(|value| format!("{flag}={value}"));
            assert_eq!(role.told().into_iter().next(), expected, "{chosen:?}");
        };
        of(
            cacert,
            "--k8s-cacert",
            [
                "/flag",
                "/own",
                "/ovn-k8s",
                "/podwire-variable",
                "/variable",
                "ACCOUNT",
            ],
        );
        of(mtu, "--mtu", ["1301", "1302", "1303", "1304", "1305", ""]);
    }
}

#[test]
fn a_cluster_s_file_says_what_the_role_is_to_do_with_it() {
    let role = Role::new().file(
        "ovn_k8s.conf",
        "[default]\ncluster-subnets=10.128.0.0/14/23,fd01::/48/64\nencap-ip=192.0.2.11\n\
         encap-port=8080\ninactivity-probe=60000\nmonitor-all\nlflow-cache-limit-kb=1048576\n\
         conntrack-zone=64000\n\
         [kubernetes]\nservice-cidrs=172.30.0.0/16\n\
         [gateway]\nmode=shared\ninterface=eth1\nnodeport=true\nnext-hop=192.0.2.1\n\
         [ovnsouth]\naddress=ssl:192.0.2.1:6642",
    );
    assert_eq!(
        role.told(),
        [
            "--ovn-option=ovn-remote-probe-interval=60000",
            "--ovn-option=ovn-monitor-all=true",
            "--ovn-option=ovn-memlimit-lflow-cache-kb=1048576",
            "--cluster-subnet=10.128.0.0/14,fd01::/48",
            "--encap-ip=192.0.2.11",
            "--encap-port=8080",
            "--interface=eth1",
            "--ovn-remote=ssl:192.0.2.1:6642",
            "--service-cidr=172.30.0.0/16",
        ]
    );
}

#[test]
fn podwire_s_own_file_has_a_table_of_the_role_s() {
    let role = Role::new().file(
        "podwire.toml",
        "mode = 'ovn'\nsubnets = ['10.1.0.0/24']\nmetrics-address = '127.0.0.1:9476'\nmtu = 1300\n\
         [node]\nmtu = 1350\nencap-ip = '192.0.2.11'\ntake-over = true\n\
         bridge-mappings = ['physnet1:br-data']\n",
    );
    assert_eq!(
        role.told(),
        [
            "--bridge-mapping=physnet1:br-data",
            "--encap-ip=192.0.2.11",
            "--mode=ovn",
            "--mtu=1350",
            "--take-over=true",
        ]
    );
    let bridges = "[[bridge]]\nname = 'br-data'\nnic = 'eth1'\n\
                   [[bridge]]\nname = 'br-lab'\nnic = 'eth2'\nnetwork = 'lab'\n";
    assert_eq!(
        Role::new().file("podwire.toml", bridges).told(),
        [
            "--data-bridge=br-data:eth1",
            "--data-bridge=br-lab:eth2:lab"
        ]
    );
    let wrong = |text: &str| {
        let role = Role::new().file("podwire.toml", text);
        role.line().unwrap_err()
    };
    assert_eq!(
        wrong("[[bridge]]\nname = 'br-data'"),
        "podwire.toml, line 1: [[bridge]] nic: it is missing"
    );
    assert_eq!(
        wrong("[[bridge]]\nname = 'br-data'\nnic = 'eth1'\nmtu = 9000"),
        r#"podwire.toml, line 1: [[bridge]]: there is no "mtu": it has name, nic, network"#
    );
    assert_eq!(
        wrong("[node]\nencap-ipp = 'x'"),
        r#"podwire.toml: there is no setting "encap-ipp"; is it encap-ip?"#
    );
    assert_eq!(
        wrong("mtuu = 1"),
        r#"podwire.toml, line 1: there is no setting "mtuu"; is it mtu?"#
    );
    assert_eq!(
        wrong("[node]\nmtu = 'x'"),
        "podwire.toml: [node] mtu = x: expected a whole number (invalid digit found in string)"
    );
}

#[test]
fn where_the_api_server_is_is_one_question() {
    let role = Role::new()
        .flag("--in-cluster")
        .file("podwire.toml", "kubeconfig = '/k'")
        .variable("PODWIRE_K8S_APISERVER", "http://127.0.0.1");
    assert_eq!(role.told(), ["--in-cluster=true"]);
    let role = Role::new()
        .file("podwire.toml", "kubeconfig = '/k'")
        .variable("K8S_APISERVER", "http://127.0.0.1");
    assert_eq!(role.told(), ["--kubeconfig=/k"]);
    let line = role.line().unwrap();
    assert!(line.origin("--kubeconfig").ends_with("line 1: kubeconfig)"));
    assert_eq!(line.origin("--mtu"), "");
}

fn ovnkube(flags: &str) -> Result<RoleCommand, String> {
    let words = ["ovnkube"].into_iter().chain(flags.split_whitespace());
    let mut words = super::super::command_line(words.map(Into::into));
    words[0] = "podwire".into();
    match Cli::try_parse_from(words)
        .map_err(|error| error.to_string())?
        .command
    {
        Line::Ovnkube(command) => Ok(command.role()),
        Line::Node(_) => Err("the node role's".to_owned()),
    }
}

#[test]
fn ovnkube_s_flags_are_the_role_s_too() {
    let role = ovnkube(
        "-init-node=node-1 -mtu=1350 -nodeport -gateway-mode=local -init-gateways \
         -encap-ip=192.0.2.11 -encap-port=8080 -encap-type=geneve -monitor-all=false \
         -cluster-subnets=10.128.0.0/14/23 -k8s-service-cidrs=172.30.0.0/16 \
         -k8s-apiserver=https://192.0.2.1:6443 -k8s-cacert=/ca -k8s-token=secret \
         -sb-address=tcp:192.0.2.9:6642 -loglevel=5 -cni-conf-dir=/run/net.d \
         --metrics-address=127.0.0.1:9476 -config-file=/etc/ovn_k8s.conf",
    );
    let role = role.unwrap();
    assert_eq!(
        role.arguments.join(OsStr::new(" ")),
        "node run --cluster-subnet=10.128.0.0/14 --encap-ip=192.0.2.11 --encap-port=8080 \
         --k8s-apiserver=https://192.0.2.1:6443 --k8s-cacert=/ca --k8s-token=(hidden) --log=debug \
         --mtu=1350 --node-name=node-1 --ovn-option=ovn-monitor-all=false \
         --ovn-remote=tcp:192.0.2.9:6642 --service-cidr=172.30.0.0/16 \
         --config-file=/etc/ovn_k8s.conf --until-stdin-ends"
    );
    let variables = [(TOKEN_VARIABLE, "secret"), ("PODWIRE_MODE", "ovn")];
    assert_eq!(
        role.variables,
        variables.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
    let role = ovnkube("-cleanup-node node-1 -mtu=1350 -k8s-kubeconfig=/k");
    assert_eq!(
        role.unwrap().arguments.join(OsStr::new(" ")),
        "node cleanup --kubeconfig=/k --node-name=node-1 --cluster"
    );
}

#[test]
fn what_of_ovnkube_s_flags_the_role_does_another_way_is_refused_with_what_it_does() {
    let table = r#"
        -gateway-mode=shared => --gateway-mode shared: expected local, which is the only value that podwire supports
        -nodeport=false => --nodeport false: expected true
        -encap-type=vxlan => --encap-type vxlan: expected geneve
        -gateway-nexthop=192.0.2.1 => --gateway-nexthop is not for podwire: pods' traffic leaves by
        -conntrack-zone=64000 => --conntrack-zone is not for podwire
        -init-master=m1 => --init-master is not for podwire
    "#;
    for case in table.trim().lines() {
        let (flags, said) = case.trim().split_once(" => ").unwrap();
        let refusal = ovnkube(&format!("-init-node=n1 {flags}")).unwrap_err();
        assert!(refusal.contains(said), "{refusal}");
    }
}
