use proptest::prelude::*;

use super::super::fixture::Told;
use super::*;

/// Which places tell the agent something, the highest first.
const PLACES: usize = 6;

/// Has the places that are chosen name one setting, each its own value, and says whose value counts.
fn told(chosen: [bool; PLACES], tell: [fn(Told) -> Told; PLACES]) -> Told {
    let mut told = Told::new();
    for (tell, _) in tell.iter().zip(chosen).filter(|(_, chosen)| *chosen) {
        told = tell(told);
    }
    told
}

fn every_choice() -> impl Iterator<Item = [bool; PLACES]> {
    (0..1usize << PLACES).map(|bits| std::array::from_fn(|place| bits >> place & 1 == 1))
}

#[test]
fn of_every_two_places_the_higher_counts() {
    // Of the pairs of places these two settings have all that there can be.
    let cacert: [fn(Told) -> Told; PLACES] = [
        |told| told.flags(&["-k8s-cacert", "/flag"]),
        |told| told.own("k8s-cacert = '/own'"),
        |told| told.ovn_k8s("[kubernetes]\ncacert=/ovn-k8s"),
        |told| told.variable("PODWIRE_K8S_CACERT", "/podwire-variable"),
        |told| told.variable("K8S_CACERT", "/variable"),
        |told| told.service_account("ca.crt"),
    ];
    for chosen in every_choice() {
        let told = told(chosen, cacert);
        let account = told.path("ca.crt").display().to_string();
        let values = [
            "/flag",
            "/own",
            "/ovn-k8s",
            "/podwire-variable",
            "/variable",
            &account,
        ];
        let expected = values.iter().zip(chosen).find(|(_, chosen)| *chosen);
        let merged = told.load().unwrap().merged;
        let found = merged
            .find("k8s-cacert")
            .map(|given| given.values[0].as_str());
        assert_eq!(found, expected.map(|(value, _)| *value), "{chosen:?}");
    }
    let mtu: [fn(Told) -> Told; PLACES] = [
        |told| told.flags(&["--mtu=1301"]),
        |told| told.own("mtu = 1302"),
        |told| told.ovn_k8s("[default]\nmtu=1303"),
        |told| told.microshift("mtu: 1304"),
        |told| told.variable("PODWIRE_MTU", "1305"),
        |told| told,
    ];
    for chosen in every_choice() {
        let values = [1301, 1302, 1303, 1304, 1305].into_iter();
        let expected = values.zip(chosen).find(|(_, chosen)| *chosen);
        let config = told(chosen, mtu).load().unwrap().config;
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
    let config = |flags: &[&str]| Told::new().own(file).flags(flags).load().unwrap().config;
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
    let file = Told::new()
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
        let variable = setting.variable.as_deref().unwrap();
        let written = if setting.kind == Kind::Switch {
            other.to_owned()
        } else {
            format!("'{other}'")
        };
        let merged = |told: Told| {
            let loader = told.loader();
            let files = loader.command.places.read(&loader.settings).unwrap();
            let mut layers = vec![loader.command.given.clone()];
            layers.extend(files.layers);
            layers.extend(loader.environment.layers(&loader.settings));
            let given = Merged::of(layers).find(key).cloned().unwrap();
            given.values.join(" ")
        };
        let file = |told: Told| told.own(&format!("{key} = {written}"));
        let variable = |told: Told| told.variable(variable, one);
        assert_eq!(merged(variable(Told::new())), one, "{key}");
        assert_eq!(merged(variable(file(Told::new()))), other, "{key}");
        let by_flag = Told::new().flags(&[&format!("{flag}={one}")]);
        assert_eq!(merged(file(by_flag)), one, "{key}");
    }
}

#[test]
fn a_setting_is_changed_in_podwires_own_file_unless_the_command_line_has_it() {
    let place = |flags: &[&str]| Told::new().flags(flags).loader().file_for("mtu");
    let told = Told::new();
    assert_eq!(
        told.loader().file_for("mtu"),
        Some(told.path("podwire.toml"))
    );
    assert_eq!(place(&["--config=/other.toml"]), Some("/other.toml".into()));
    let by_variable = Told::new().variable("PODWIRE_CONFIG", "/other.toml");
    assert_eq!(
        by_variable.loader().file_for("mtu"),
        place(&["--config=/other.toml"])
    );
    assert_eq!(place(&["--mtu=1400"]), None);
}

#[test]
fn of_two_ways_to_the_api_server_the_higher_place_has_its_way() {
    let access = |told: Told| {
        let sources = told
            .flags(&["--node-name", "n1"])
            .load()
            .unwrap()
            .config
            .sources;
        sources.kube.map(|kube| format!("{:?}", kube.access))
    };
    let variables = || {
        Told::new()
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
        Told::new()
            .service_account("token")
            .service_account("ca.crt")
            .variable("KUBERNETES_SERVICE_HOST", "fd00::1")
            .flags(&["--node-name", "n1"])
    };
    let told = account();
    let kube = told.load().unwrap().config.sources.kube.unwrap();
    let KubeAccessFields { url, ca, token } = fields(kube.access);
    assert_eq!(url, "https://[fd00::1]:443");
    assert_eq!(ca, Some(told.path("ca.crt")));
    assert_eq!(token, super::super::Token::File(told.path("token")));

    let told = account().variable("K8S_APISERVER", "https://h");
    let kube = told.load().unwrap().config.sources.kube.unwrap();
    let KubeAccessFields { url, token, .. } = fields(kube.access);
    assert_eq!(url, "https://h");
    assert_eq!(token, super::super::Token::File(told.path("token")));

    // Without a token the variables are some container's, and no service account's.
    let none = Told::new().variable("KUBERNETES_SERVICE_HOST", "10.0.0.1");
    assert_eq!(none.load().unwrap().config.sources.kube, None);
}

struct KubeAccessFields {
    url: String,
    ca: Option<PathBuf>,
    token: super::super::Token,
}

fn fields(access: super::super::KubeAccess) -> KubeAccessFields {
    match access {
        super::super::KubeAccess::Server { url, ca, token } => KubeAccessFields { url, ca, token },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_variable_that_looks_like_a_setting_and_is_none_is_named_with_the_nearest() {
    let warnings = |name: &str| Told::new().variable(name, "1").load().unwrap().warnings;
    assert_eq!(
        warnings("PODWIRE_BRIGDE"),
        ["$PODWIRE_BRIGDE is no setting and does nothing; is it PODWIRE_BRIDGE?"]
    );
    assert_eq!(
        warnings("PODWIRE_SOMETHING_ELSE_ENTIRELY"),
        ["$PODWIRE_SOMETHING_ELSE_ENTIRELY is no setting and does nothing"]
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
    let told = Told::new()
        .variable("PODWIRE_MTU", "")
        .variable("KUBECONFIG", "");
    assert_eq!(told.load().unwrap().merged, Merged::default());
}

#[test]
fn a_file_that_is_named_must_be_there() {
    let loaded = Told::new().load().unwrap();
    assert!(loaded.found.is_empty());
    for flag in ["--config", "-config-file"] {
        let told = Told::new().flags(&[flag, "/nowhere/of.it"]);
        let problem = told.load().unwrap_err().to_string();
        assert_eq!(
            problem,
            "/nowhere/of.it: No such file or directory (os error 2)"
        );
    }
    let by_variable = Told::new().variable("PODWIRE_CONFIG", "/nowhere/of.it");
    assert!(by_variable.load().is_err());
}

#[test]
fn each_refusal_says_where_the_value_stands() {
    let told = [
        Told::new().own("\nmtu = 67\n"),
        Told::new().own("mtu = 'large'"),
        Told::new().own("mode = \"ovnn\""),
        Told::new().own("no-gateway = 'yes'"),
        Told::new().own("mtu = [1400]"),
        Told::new().own("subnets = []"),
        Told::new().own("subnets = ['10.0.0.0/24', '10.0.0.0/33']"),
        Told::new().own("mtuu = 1400"),
        Told::new().own("bananas = 1"),
        Told::new().own("[kubernetes]\ntoken = 't'"),
        Told::new().own("# fine\nk8s-token = 'abc"),
        Told::new().own("mtu = 1400\nmtu = 1500"),
        Told::new().own("ovn-certificate = '/c'"),
        Told::new().ovn_k8s("[default]\nmtu=large"),
        Told::new().ovn_k8s("[default]\nmtu"),
        Told::new().ovn_k8s("[logging]\nloglevel=9000"),
        Told::new().ovn_k8s("mtu=1400"),
        Told::new().ovn_k8s("[default\nmtu=1400"),
        Told::new().ovn_k8s("[kubernetes]\ntoken=\"abc\n"),
        Told::new().ovn_k8s("[kubernetes]\napiserver=10.0.0.1:6443"),
        Told::new().ovn_k8s("[ovnsouth]\naddress=10.0.0.1:6642"),
        Told::new().microshift("mtu: big"),
        Told::new().microshift("mtu: 70000"),
        Told::new().microshift("disableOVSInit: maybe"),
        Told::new().microshift("mtu: [1400"),
        Told::new().variable("PODWIRE_ADD_TIMEOUT", "soon"),
        Told::new().variable("PODWIRE_NO_GATEWAY", "perhaps"),
        Told::new().variable("PODWIRE_SOURCES", "cni,cloud"),
        Told::new().variable("K8S_APISERVER", "h:6443"),
        Told::new().flags(&["--init-node", "Node_1", "--k8s-apiserver", "http://h"]),
    ];
    let refusals: Vec<String> = told.iter().map(Told::refusal).collect();
    insta::assert_snapshot!(refusals.join("\n"));
}

#[test]
fn no_refusal_and_no_print_shows_a_secret() {
    let secret = "c2VjcmV0";
    let told = [
        Told::new().own(&format!("k8s-token = '{secret}")),
        Told::new().own(&format!("k8s-token = ['{secret}', 1]")),
        Told::new().own(&format!("k8s-tokem = '{secret}'")),
        Told::new().ovn_k8s(&format!("[kubernetes]\ntoken=\"{secret}")),
        Told::new().ovn_k8s(&format!("[kubernetes]\ntoken={secret}\\x")),
    ];
    for told in told {
        let refusal = told.refusal();
        assert!(!refusal.contains(secret), "{refusal}");
    }
    let told = Told::new().variable("K8S_TOKEN", secret);
    let printed = told.loader().print(&told.load().unwrap(), None);
    assert!(
        printed.contains("k8s-token = …") && !printed.contains(secret),
        "{printed}"
    );
}

#[test]
fn what_needs_a_restart_does_not_keep_the_rest_from_changing() {
    let told = Told::new().own("mtu = 1400\nbridge = 'br-int'");
    let loader = told.loader();
    let before = loader.load().unwrap();
    let _told = told.own("mtu = 1300\nbridge = 'br-other'");
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
    let told = Told::new().own("mode = 'ovn'");
    let loader = told.loader();
    let before = loader.load().unwrap();
    let _told = told.own("mode = 'plain'\nsubnets = ['10.0.0.0/24']");
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
        let first = Told::new().flags(&flags);
        let told = first.load().unwrap();
        let printed = first.loader().print(&told, None);
        let again = Told::new().own(&printed).load();
        prop_assert!(again.is_ok(), "{:?}\n{printed}", again.map(drop));
        let again = again.unwrap();
        prop_assert_eq!(&again.config.live, &told.config.live);
        prop_assert_eq!(&again.config.sources, &told.config.sources);
        prop_assert_eq!(&again.config.bridge, &told.config.bridge);
        prop_assert_eq!(again.config.gateway, told.config.gateway);
    }
}
