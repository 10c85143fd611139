use proptest::prelude::*;

use super::super::fixture::Inputs;
use super::*;

/// Which places tell the agent something, the highest first.
const PLACES: usize = 6;

/// Has the places that are chosen name one setting, each its own value, and says whose value
/// counts.
fn inputs(chosen: [bool; PLACES], tell: [fn(Inputs) -> Inputs; PLACES]) -> Inputs {
    let mut inputs = Inputs::new();
    for (tell, _) in tell.iter().zip(chosen).filter(|(_, chosen)| *chosen) {
        inputs = tell(inputs);
    }
    inputs
}

fn every_choice() -> impl Iterator<Item = [bool; PLACES]> {
    (0..1usize << PLACES).map(|bits| std::array::from_fn(|place| bits >> place & 1 == 1))
}

#[test]
fn of_every_two_places_the_higher_counts() {
    // Of the pairs of places these two settings have all that there can be.
    let cacert: [fn(Inputs) -> Inputs; PLACES] = [
        |inputs| inputs.flags(&["-k8s-cacert", "/flag"]),
        |inputs| inputs.own("k8s-cacert = '/own'"),
        |inputs| inputs.ovn_k8s("[kubernetes]\ncacert=/ovn-k8s"),
        |inputs| inputs.variable("PODWIRE_K8S_CACERT", "/podwire-variable"),
        |inputs| inputs.variable("K8S_CACERT", "/variable"),
        |inputs| inputs.service_account("ca.crt"),
    ];
    for chosen in every_choice() {
        let inputs = inputs(chosen, cacert);
        let account = inputs.path("ca.crt").display().to_string();
        let values = [
            "/flag",
            "/own",
            "/ovn-k8s",
            "/podwire-variable",
            "/variable",
            &account,
        ];
        let expected = values.iter().zip(chosen).find(|(_, chosen)| *chosen);
        let merged = inputs.load().unwrap().merged;
        let found = merged
            .find("k8s-cacert")
            .map(|given| given.values[0].as_str());
        assert_eq!(found, expected.map(|(value, _)| *value), "{chosen:?}");
    }
    let mtu: [fn(Inputs) -> Inputs; PLACES] = [
        |inputs| inputs.flags(&["--mtu=1301"]),
        |inputs| inputs.own("mtu = 1302"),
        |inputs| inputs.ovn_k8s("[default]\nmtu=1303"),
        |inputs| inputs.microshift("mtu: 1304"),
        |inputs| inputs.variable("PODWIRE_MTU", "1305"),
        |inputs| inputs,
    ];
    for chosen in every_choice() {
        let values = [1301, 1302, 1303, 1304, 1305].into_iter();
        let expected = values.zip(chosen).find(|(_, chosen)| *chosen);
        let config = inputs(chosen, mtu).load().unwrap().config;
        assert_eq!(
            config.live.mtu,
            expected.map(|(value, _)| value),
            "{chosen:?}"
        );
    }
}

#[test]
fn a_value_that_equals_the_default_counts_like_any_other() {
    let file = "add-timeout = 60\nno-gateway = true\nlog = 'debug'";
    let config = |flags: &[&str]| Inputs::new().own(file).flags(flags).load().unwrap().config;
    assert_eq!(config(&[]).live.add_timeout.as_secs(), 60);
    assert!(!config(&[]).gateway);
    let explicit = config(&[
        "--add-timeout",
        "30",
        "--no-gateway=false",
        "-loglevel",
        "4",
    ]);
    assert_eq!(explicit.live.add_timeout.as_secs(), 30);
    assert!(explicit.gateway);
    assert_eq!(explicit.live.log, "info");
    let file = Inputs::new()
        .own("add-timeout = 30")
        .variable("PODWIRE_ADD_TIMEOUT", "60");
    assert_eq!(file.load().unwrap().config.live.add_timeout.as_secs(), 30);
}

/// Two values of each setting that its flag takes.
fn samples(setting: &super::super::Setting) -> Option<[&'static str; 2]> {
    Some(
        match (setting.key.as_str(), setting.value_name.as_deref()) {
            ("mode", _) => ["plain", "ovn"],
            ("wait", _) => ["ofport", "ovn-installed"],
            ("annotations", _) => ["required", "optional"],
            ("seccomp", _) => ["log", "off"],
            ("sources", _) => ["cni", "dir"],
            ("log", _) => ["debug", "warn"],
            (_, Some("BYTES" | "SECONDS" | "NUMBER")) => ["1300", "1400"],
            (_, _) if setting.kind == Kind::Switch => ["true", "false"],
            (_, Some("FILE" | "DIR" | "PATH" | "URL" | "NAME" | "SPEC" | "TOKEN" | "REMOTE")) => {
                ["a", "b"]
            }
            _ => return None,
        },
    )
}

#[test]
fn every_setting_can_be_told_by_flag_file_and_variable_in_this_order() {
    for setting in Settings::of_agent().iter() {
        let Some([one, other]) = samples(setting) else {
            continue;
        };
        let (key, flag) = (&setting.key, &setting.flag);
        let variable = setting.variable.as_str();
        let written = if setting.kind == Kind::Switch {
            other.to_owned()
        } else {
            format!("'{other}'")
        };
        let merged = |inputs: Inputs| {
            let loader = inputs.loader();
            let files = loader.command.places.read(&loader.settings).unwrap();
            let mut layers = vec![loader.command.given.clone()];
            layers.extend(files.layers);
            layers.extend(loader.environment.layers(&loader.settings));
            let given = Merged::of(layers).find(key).cloned().unwrap();
            given.values.join(" ")
        };
        let file = |inputs: Inputs| inputs.own(&format!("{key} = {written}"));
        let variable = |inputs: Inputs| inputs.variable(variable, one);
        assert_eq!(merged(variable(Inputs::new())), one, "{key}");
        assert_eq!(merged(variable(file(Inputs::new()))), other, "{key}");
        let by_flag = Inputs::new().flags(&[&format!("{flag}={one}")]);
        assert_eq!(merged(file(by_flag)), one, "{key}");
    }
}

#[test]
fn a_setting_is_changed_in_podwires_own_file_unless_the_command_line_has_it() {
    let place = |flags: &[&str]| Inputs::new().flags(flags).loader().file_for("mtu");
    let inputs = Inputs::new();
    assert_eq!(
        inputs.loader().file_for("mtu"),
        Some(inputs.path("podwire.toml"))
    );
    assert_eq!(place(&["--config=/other.toml"]), Some("/other.toml".into()));
    let by_variable = Inputs::new().variable("PODWIRE_CONFIG", "/other.toml");
    assert_eq!(
        by_variable.loader().file_for("mtu"),
        place(&["--config=/other.toml"])
    );
    assert_eq!(place(&["--mtu=1400"]), None);
}

#[test]
fn of_two_ways_to_the_api_server_the_higher_place_has_its_way() {
    let access = |inputs: Inputs| {
        let sources = inputs
            .flags(&["--node-name", "n1"])
            .load()
            .unwrap()
            .config
            .sources;
        sources.kube.map(|kube| format!("{:?}", kube.access))
    };
    let variables = || {
        Inputs::new()
            .variable("K8S_APISERVER", "https://variable")
            .variable("K8S_TOKEN", "secret")
    };
    let by_url = access(variables()).unwrap();
    assert!(
        by_url.contains("https://variable") && by_url.contains("Text(…)"),
        "{by_url}"
    );
    let by_file = access(variables().ovn_k8s("[kubernetes]\nkubeconfig=/k"));
    assert_eq!(by_file.as_deref(), Some("Kubeconfig(\"/k\")"));
    let by_flag = access(
        variables()
            .variable("KUBECONFIG", "/k")
            .flags(&["--k8s-apiserver", "http://f"]),
    );
    assert!(by_flag.unwrap().contains("http://f"));
    let token_file = access(variables().flags(&["--k8s-token-file", "/t"])).unwrap();
    assert!(token_file.contains("File(\"/t\")"), "{token_file}");

    let both = variables().variable("KUBECONFIG", "/k").load().unwrap();
    assert_eq!(
        both.warnings,
        ["k8s-apiserver is not used, for kubeconfig is given in the same place"]
    );
}

#[test]
fn a_pods_service_account_is_used_where_nothing_else_is_said() {
    let account = || {
        Inputs::new()
            .service_account("token")
            .service_account("ca.crt")
            .variable("KUBERNETES_SERVICE_HOST", "fd00::1")
            .flags(&["--node-name", "n1"])
    };
    let inputs = account();
    let kube = inputs.load().unwrap().config.sources.kube.unwrap();
    let AccessFields { url, ca, token } = fields(kube.access);
    assert_eq!(url, "https://[fd00::1]:443");
    assert_eq!(ca, Some(inputs.path("ca.crt")));
    assert_eq!(token, super::super::Token::File(inputs.path("token")));

    let inputs = account().variable("K8S_APISERVER", "https://h");
    let kube = inputs.load().unwrap().config.sources.kube.unwrap();
    let AccessFields { url, token, .. } = fields(kube.access);
    assert_eq!(url, "https://h");
    assert_eq!(token, super::super::Token::File(inputs.path("token")));

    // Without a token the variables are some container's, and no service account's.
    let none = Inputs::new().variable("KUBERNETES_SERVICE_HOST", "10.0.0.1");
    assert_eq!(none.load().unwrap().config.sources.kube, None);
}

struct AccessFields {
    url: String,
    ca: Option<PathBuf>,
    token: super::super::Token,
}

fn fields(access: super::super::Access) -> AccessFields {
    match access {
        super::super::Access::Server { url, ca, token } => AccessFields { url, ca, token },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_variable_that_looks_like_a_setting_and_is_none_is_named_with_the_nearest() {
    let warnings = |name: &str| Inputs::new().variable(name, "1").load().unwrap().warnings;
    assert_eq!(
        warnings("PODWIRE_BRIGDE"),
        ["$PODWIRE_BRIGDE is not a setting and has no effect; is it PODWIRE_BRIDGE?"]
    );
    assert_eq!(
        warnings("PODWIRE_SOMETHING_ELSE_ENTIRELY"),
        ["$PODWIRE_SOMETHING_ELSE_ENTIRELY is not a setting and has no effect"]
    );
    for fine in [
        "PODWIRE_ADD_TIMEOUT",
        "PODWIRE_SERVICE_HOST",
        "PODWIRE_METRICS_SERVICE_PORT_HTTP",
        "PODWIRE_PORT",
        "PODWIRE_PORT_9100_TCP_ADDR",
        "OTHER",
    ] {
        assert_eq!(warnings(fine), [""; 0], "{fine}");
    }
}

#[test]
fn an_empty_variable_says_nothing() {
    let inputs = Inputs::new()
        .variable("PODWIRE_MTU", "")
        .variable("KUBECONFIG", "");
    assert_eq!(inputs.load().unwrap().merged, Merged::default());
}

#[test]
fn a_file_that_is_named_must_be_there() {
    let loaded = Inputs::new().load().unwrap();
    assert!(loaded.found.is_empty());
    for flag in ["--config", "-config-file"] {
        let inputs = Inputs::new().flags(&[flag, "/nowhere/of.it"]);
        let problem = inputs.load().unwrap_err().to_string();
        assert_eq!(
            problem,
            "/nowhere/of.it: No such file or directory (os error 2)"
        );
    }
    let by_variable = Inputs::new().variable("PODWIRE_CONFIG", "/nowhere/of.it");
    assert!(by_variable.load().is_err());
}

#[test]
fn each_refusal_says_where_the_value_stands() {
    let inputs = [
        Inputs::new().own("\nmtu = 67\n"),
        Inputs::new().own("mtu = 'large'"),
        Inputs::new().own("mode = \"ovnn\""),
        Inputs::new().own("no-gateway = 'yes'"),
        Inputs::new().own("mtu = [1400]"),
        Inputs::new().own("subnets = []"),
        Inputs::new().own("subnets = ['10.0.0.0/24', '10.0.0.0/33']"),
        Inputs::new().own("mtuu = 1400"),
        Inputs::new().own("bananas = 1"),
        Inputs::new().own("[kubernetes]\ntoken = 't'"),
        Inputs::new().own("# fine\nk8s-token = 'abc"),
        Inputs::new().own("mtu = 1400\nmtu = 1500"),
        Inputs::new().own("ovn-certificate = '/c'"),
        Inputs::new().ovn_k8s("[default]\nmtu=large"),
        Inputs::new().ovn_k8s("[default]\nmtu"),
        Inputs::new().ovn_k8s("[logging]\nloglevel=9000"),
        Inputs::new().ovn_k8s("mtu=1400"),
        Inputs::new().ovn_k8s("[default\nmtu=1400"),
        Inputs::new().ovn_k8s("[kubernetes]\ntoken=\"abc\n"),
        Inputs::new().ovn_k8s("[kubernetes]\napiserver=10.0.0.1:6443"),
        Inputs::new().ovn_k8s("[ovnsouth]\naddress=10.0.0.1:6642"),
        Inputs::new().microshift("mtu: big"),
        Inputs::new().microshift("mtu: 70000"),
        Inputs::new().microshift("disableOVSInit: maybe"),
        Inputs::new().microshift("mtu: [1400"),
        Inputs::new().variable("PODWIRE_ADD_TIMEOUT", "soon"),
        Inputs::new().variable("PODWIRE_NO_GATEWAY", "perhaps"),
        Inputs::new().variable("PODWIRE_SOURCES", "cni,cloud"),
        Inputs::new().variable("K8S_APISERVER", "h:6443"),
        Inputs::new().flags(&["--init-node", "Node_1", "--k8s-apiserver", "http://h"]),
    ];
    let refusals: Vec<String> = inputs.iter().map(Inputs::refusal).collect();
    insta::assert_snapshot!(refusals.join("\n"));
}

#[test]
fn no_refusal_and_no_print_shows_a_secret() {
    let secret = "c2VjcmV0";
    let inputs = [
        Inputs::new().own(&format!("k8s-token = '{secret}")),
        Inputs::new().own(&format!("k8s-token = ['{secret}', 1]")),
        Inputs::new().own(&format!("k8s-tokem = '{secret}'")),
        Inputs::new().ovn_k8s(&format!("[kubernetes]\ntoken=\"{secret}")),
        Inputs::new().ovn_k8s(&format!("[kubernetes]\ntoken={secret}\\x")),
    ];
    for inputs in inputs {
        let refusal = inputs.refusal();
        assert!(!refusal.contains(secret), "{refusal}");
    }
    let inputs = Inputs::new().variable("K8S_TOKEN", secret);
    let printed = inputs.loader().print(&inputs.load().unwrap(), None);
    assert!(
        printed.contains("k8s-token = …") && !printed.contains(secret),
        "{printed}"
    );
}

#[test]
fn what_needs_a_restart_does_not_keep_the_rest_from_changing() {
    let inputs = Inputs::new().own("mtu = 1400\nbridge = 'br-int'");
    let loader = inputs.loader();
    let before = loader.load().unwrap();
    let _told = inputs.own("mtu = 1300\nbridge = 'br-other'");
    let now = loader.load().unwrap();
    let next = loader.without_restart(&before, &now).unwrap();
    assert_eq!(next.config.live.mtu, Some(1300));
    assert_eq!(next.config.bridge, "br-int");
    let changes: Vec<_> = loader
        .changes(&before, &now)
        .into_iter()
        .map(|change| (change.key, change.live))
        .collect();
    assert_eq!(
        changes,
        [("bridge".to_owned(), false), ("mtu".to_owned(), true)]
    );
}

#[test]
fn live_settings_that_only_make_sense_after_a_restart_wait_for_it() {
    let inputs = Inputs::new().own("mode = 'ovn'");
    let loader = inputs.loader();
    let before = loader.load().unwrap();
    let _told = inputs.own("mode = 'plain'\nsubnets = ['10.0.0.0/24']");
    let now = loader.load().unwrap();
    assert!(loader.without_restart(&before, &now).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// What the agent says of its settings is a file that makes another agent the same.
    #[test]
    fn what_is_printed_can_be_read_back(
        mtu in proptest::option::of(1280u32..9000),
        add_timeout in 1u64..600,
        gateway in any::<bool>(),
        bridge in "[a-z0-9][a-z0-9-]{0,14}",
        pod_dir in proptest::option::of("/[ -~]{1,20}"),
        log in prop_oneof![Just("info"), Just("warn,podwire_ovs=debug")],
    ) {
        let mut flags = vec![
            format!("--add-timeout={add_timeout}"),
            format!("--no-gateway={}", !gateway),
            format!("--bridge={bridge}"),
            format!("--log={log}"),
        ];
        flags.extend(mtu.map(|mtu| format!("--mtu={mtu}")));
        flags.extend(pod_dir.map(|dir| format!("--pod-dir={dir}")));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let first = Inputs::new().flags(&flags);
        let inputs = first.load().unwrap();
        let printed = first.loader().print(&inputs, None);
        let again = Inputs::new().own(&printed).load();
        prop_assert!(again.is_ok(), "{:?}\n{printed}", again.map(drop));
        let again = again.unwrap();
        prop_assert_eq!(&again.config.live, &inputs.config.live);
        prop_assert_eq!(&again.config.sources, &inputs.config.sources);
        prop_assert_eq!(&again.config.bridge, &inputs.config.bridge);
        prop_assert_eq!(again.config.gateway, inputs.config.gateway);
    }
}
