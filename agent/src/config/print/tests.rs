use super::super::fixture::Inputs;
use super::*;

#[test]
fn every_setting_is_shown_with_its_value_and_where_it_comes_from() {
    let inputs = Inputs::new()
        .flags(&["-init-node", "n1", "--subnet=10.9.0.0/24", "--mode=plain"])
        .own("mtu = 1400\nno-gateway = true")
        .ovn_k8s("[logging]\nloglevel=5")
        .variable("PODWIRE_SOURCES", "cni,kube")
        .variable("K8S_APISERVER", "https://192.0.2.1:6443")
        .variable("K8S_TOKEN", "secret");
    let printed = inputs.loader().print(&inputs.load().unwrap(), None);
    let directory = inputs.path("");
    insta::assert_snapshot!(printed.replace(directory.to_str().unwrap(), "/etc/"));
    for setting in Settings::of_agent().iter() {
        let key = &setting.key;
        let starts = [format!("{key} "), format!("# {key} ")];
        let is_it = |line: &&str| starts.iter().any(|start| line.starts_with(start));
        assert_eq!(printed.lines().filter(is_it).count(), 1, "{key}");
    }
}

#[test]
fn mode_and_servers_are_named_with_what_sets_them() {
    let servers = |inputs: Inputs| inputs.loader().servers(&inputs.load().unwrap());
    assert_eq!(
        servers(Inputs::new().flags(&["--ovsdb=unix:/run/db.sock"])),
        r#"mode = "plain" (default), ovsdb = "unix:/run/db.sock" (--ovsdb)"#
    );
    let inputs = Inputs::new()
        .own("mode = \"ovn\"")
        .variable("K8S_APISERVER", "https://192.0.2.1:6443")
        .variable("K8S_TOKEN", "secret")
        .variable("PODWIRE_NODE_NAME", "node-a");
    let directory = inputs.path("");
    let found = servers(inputs).replace(directory.to_str().unwrap(), "/etc/");
    let expected = [
        r#"mode = "ovn" (/etc/podwire.toml, line 1: mode)"#,
        r#"ovsdb = "unix:/var/run/openvswitch/db.sock" (default)"#,
        r#"k8s-apiserver = "https://192.0.2.1:6443" ($K8S_APISERVER)"#,
    ];
    assert_eq!(found, expected.join(", "));
}

#[test]
fn an_mtu_that_was_detected_is_shown_and_says_how() {
    let line = |inputs: Inputs| {
        let detected = Some((1442, "eth0's 1500 less 58 for the tunnel".to_owned()));
        let printed = inputs.loader().print(&inputs.load().unwrap(), detected);
        let line = printed.lines().find(|line| line.contains("mtu = "));
        line.unwrap()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        line(Inputs::new()),
        "# mtu = 1442 # detected: eth0's 1500 less 58 for the tunnel"
    );
    assert_eq!(
        line(Inputs::new().flags(&["--mtu=1400"])),
        "mtu = 1400 # --mtu"
    );
}

#[test]
fn the_page_about_the_configuration_has_the_table_of_all_settings() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (begin, end) = ("<!-- settings: begin -->\n", "<!-- settings: end -->");
    let start = page.find(begin).unwrap() + begin.len();
    let stop = page.find(end).unwrap();
    let table = reference(&Settings::of_agent());
    if page[start..stop] == table {
        return;
    }
    if std::env::var_os("PODWIRE_BLESS").is_some() {
        std::fs::write(path, [&page[..start], &table, &page[stop..]].concat()).unwrap();
        return;
    }
    panic!("the table is not the settings' own; PODWIRE_BLESS=1 writes this one:\n{table}");
}

#[test]
fn the_example_has_every_setting_and_turned_on_it_says_what_is_so_anyway() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/podwire.toml");
    let example = std::fs::read_to_string(path).unwrap();
    assert!(
        Inputs::new()
            .own(&example)
            .load()
            .unwrap()
            .merged
            .given
            .is_empty()
    );
    // A comment has a space behind its #; a setting has none.
    let turned_on: Vec<&str> = example
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with([' ', '#']) => setting,
            _ => line,
        })
        .collect();
    let table: toml::Table = turned_on.join("\n").parse().unwrap();
    for setting in Settings::of_agent().iter() {
        let key = &setting.key;
        let value = table
            .get(key)
            .unwrap_or_else(|| panic!("{key} is not in deploy/podwire.toml"));
        if let [default] = setting.defaults.as_slice() {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(&text, default, "{key}");
        }
    }
    let keys = Settings::of_agent();
    assert!(table.keys().all(|key| keys.find(key).is_some()));
}
