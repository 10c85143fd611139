use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;

use super::*;

const GOOD: [(&str, &str); 6] = [
    ("CNI_COMMAND", "ADD"),
    ("CNI_CONTAINERID", "0a1b"),
    ("CNI_NETNS", "/var/run/netns/cni-1"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_ARGS", "A=b"),
    ("CNI_PATH", "/opt/cni/bin"),
];

/// The good call with some variables changed.
fn call(changes: &[(&'static str, &str)]) -> Result<Invocation, EnvError> {
    let changed = changes
        .iter()
        .map(|(name, value)| (*name, OsString::from(value)));
    // The first of a name counts.
    parse(changed.chain(GOOD.map(|(name, value)| (name, OsString::from(value)))))
}

fn refusal(changes: &[(&'static str, &str)]) -> String {
    let error: SpecError = call(changes).unwrap_err().into();
    assert_eq!(error.code, ErrorCode::INVALID_ENVIRONMENT);
    error.msg
}

#[test]
fn a_whole_call_is_read() {
    let expected = Invocation {
        command: Command::Add,
        container_id: "0a1b".into(),
        netns: "/var/run/netns/cni-1".into(),
        ifname: "eth0".into(),
        args: "A=b".into(),
        path: "/opt/cni/bin".into(),
    };
    assert_eq!(call(&[]), Ok(expected));
}

#[test]
fn each_verb_asks_for_what_it_needs_and_names_all_that_is_missing() {
    let nothing = [
        ("CNI_CONTAINERID", ""),
        ("CNI_NETNS", ""),
        ("CNI_IFNAME", ""),
    ];
    let cases = [
        (
            "ADD",
            "ADD needs the variables CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME",
        ),
        (
            "CHECK",
            "CHECK needs the variables CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME",
        ),
        ("DEL", "DEL needs the variables CNI_CONTAINERID, CNI_IFNAME"),
    ];
    for (verb, text) in cases {
        assert_eq!(
            refusal(&[&nothing[..], &[("CNI_COMMAND", verb)]].concat()),
            text
        );
        let only = parse([("CNI_COMMAND", OsString::from(verb))]).unwrap_err();
        assert_eq!(only.to_string(), text, "missing is as empty");
    }
    for verb in ["GC", "STATUS", "VERSION"] {
        assert!(
            parse([("CNI_COMMAND", OsString::from(verb))]).is_ok(),
            "{verb}"
        );
    }
}

#[test]
fn a_missing_or_unknown_verb_is_refused() {
    assert_eq!(parse::<&str>([]), Err(EnvError::NoCommand));
    assert_eq!(call(&[("CNI_COMMAND", "")]), Err(EnvError::NoCommand));
    for verb in ["add", "ADD ", "UPDATE", "\u{7}"] {
        assert_eq!(
            call(&[("CNI_COMMAND", verb)]),
            Err(EnvError::UnknownCommand(verb.into()))
        );
    }
}

#[test]
fn variables_that_a_verb_does_not_use_cannot_spoil_it() {
    assert_eq!(
        call(&[("CNI_COMMAND", "VERSION"), ("CNI_IFNAME", "dummy/:")]),
        Ok(Invocation::bare(Command::Version))
    );
    assert!(call(&[("CNI_COMMAND", "STATUS"), ("CNI_CONTAINERID", "..")]).is_ok());
    assert!(call(&[("CNI_COMMAND", "GC"), ("CNI_IFNAME", "a b")]).is_ok());
    for netns in ["", "relative", &format!("/{}", "n".repeat(5000))] {
        let del = call(&[("CNI_COMMAND", "DEL"), ("CNI_NETNS", netns)]).unwrap();
        assert_eq!(
            del.netns, "",
            "DEL must end well without a usable namespace"
        );
    }
}

#[test]
fn invalid_and_over_long_values_are_refused_by_name() {
    let long = "a".repeat(MAX_TEXT + 1);
    let cases = [
        (
            "CNI_CONTAINERID",
            "-a",
            r#"CNI_CONTAINERID: "-a" is not a container id"#,
        ),
        ("CNI_CONTAINERID", "a/b", r#"CNI_CONTAINERID: "a/b" is not"#),
        (
            "CNI_CONTAINERID",
            &long[..256],
            "CNI_CONTAINERID has 256 bytes, and at most 255",
        ),
        (
            "CNI_IFNAME",
            "abcdefghijklmnop",
            "CNI_IFNAME has 16 bytes, and at most 15",
        ),
        (
            "CNI_IFNAME",
            "..",
            r#"CNI_IFNAME: ".." is not an interface name"#,
        ),
        ("CNI_IFNAME", "a:0", r#"CNI_IFNAME: "a:0" is not"#),
        (
            "CNI_NETNS",
            "run/netns/x",
            r#"CNI_NETNS: "run/netns/x" is not the absolute path"#,
        ),
        (
            "CNI_NETNS",
            &format!("/{}", &long[..4095]),
            "CNI_NETNS has 4096 bytes, and at most 4095",
        ),
        (
            "CNI_ARGS",
            &long,
            "CNI_ARGS has 65537 bytes, and at most 65536",
        ),
        ("CNI_PATH", &long, "CNI_PATH has 65537 bytes"),
    ];
    for (name, value, text) in cases {
        let msg = refusal(&[(name, value)]);
        assert!(msg.contains(text), "{msg}");
    }
    assert!(
        call(&[
            ("CNI_CONTAINERID", &long[..255]),
            ("CNI_IFNAME", "abcdefghijklmno")
        ])
        .is_ok()
    );
}

#[test]
fn what_is_not_utf_8_is_refused() {
    let error = parse([
        ("CNI_COMMAND", OsString::from("GC")),
        ("CNI_PATH", OsString::from_vec(vec![b'/', 0xff])),
    ]);
    assert!(
        matches!(
            error,
            Err(EnvError::Invalid {
                name: "CNI_PATH",
                ..
            })
        ),
        "{error:?}"
    );
}

#[test]
fn interface_names_are_those_the_kernel_takes() {
    for good in ["a", "eth0", "...", "net1.100", "é", "abcdefghijklmno"] {
        assert!(is_valid_ifname(good), "{good}");
    }
    for bad in [
        "",
        ".",
        "..",
        "a/b",
        "a:b",
        "a b",
        "a\tb",
        "a\nb",
        "a\u{0}",
        "abcdefghijklmnop",
        "éééééééé",
    ] {
        assert!(!is_valid_ifname(bad), "{bad:?}");
    }
}

#[test]
fn names_of_networks_and_containers_follow_the_specification() {
    for good in ["a", "0", "pods", "a.b_c-d", "9f-"] {
        assert!(is_valid_name(good), "{good}");
    }
    for bad in ["", ".a", "-a", "_a", "a b", "a/b", "é", "a\n"] {
        assert!(!is_valid_name(bad), "{bad:?}");
    }
}

#[test]
fn args_are_read_in_any_order_with_equal_signs_in_values() {
    let args = Args::parse(
        "K8S_POD_UID=u-1;IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;X=a=b==;\
         K8S_POD_INFRA_CONTAINER_ID=0a;",
    )
    .unwrap();
    assert_eq!(args.pod_namespace(), Some("ns"));
    assert_eq!(args.pod_name(), Some("web"));
    assert_eq!(args.pod_uid(), Some("u-1"));
    assert_eq!(args.get("X"), Some("a=b=="));
    assert_eq!(args.iter().count(), 6);
}

#[test]
fn the_last_of_several_args_of_one_key_counts_and_an_empty_value_is_none() {
    let args = Args::parse("A=1;A=2;B=").unwrap();
    assert_eq!((args.get("A"), args.get("B")), (Some("2"), None));
    assert_eq!(Args::parse(""), Ok(Args::default()));
}

#[test]
fn args_that_are_not_pairs_are_refused_with_the_part() {
    for (text, part) in [("A", "A"), ("A=1;=2", "=2"), ("A=1; ;B=2", " ")] {
        assert_eq!(Args::parse(text), Err(ArgsError::Form(part.into())));
    }
    assert_eq!(
        SpecError::from(ArgsError::Form("A".into())).code,
        ErrorCode::INVALID_ENVIRONMENT
    );
}

#[test]
fn names_longer_than_kubernetes_allows_are_refused_by_their_key() {
    for (key, most) in [
        ("K8S_POD_NAMESPACE", 63),
        ("K8S_POD_NAME", 253),
        ("K8S_POD_UID", 253),
    ] {
        Args::parse(&format!("{key}={}", "a".repeat(most))).unwrap();
        let error = Args::parse(&format!("{key}={}", "a".repeat(5_000)))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(&format!("CNI_ARGS: {key}=")), "{error}");
        assert!(
            error.ends_with(&format!("longer than {most} bytes")),
            "{error}"
        );
        assert!(error.len() < 200, "{error}");
    }
}

#[test]
fn a_del_of_a_name_that_no_attachment_can_have_has_nothing_to_delete() {
    for ifname in ["a/b", "abcdefghijklmnop", ".."] {
        let del = call(&[("CNI_COMMAND", "DEL"), ("CNI_IFNAME", ifname)]);
        let ifname = ifname.to_owned();
        assert_eq!(del, Err(EnvError::NothingToDelete { ifname }));
    }
    for verb in ["ADD", "CHECK"] {
        let refused = refusal(&[("CNI_COMMAND", verb), ("CNI_IFNAME", "a/b")]);
        assert!(refused.contains("is not an interface name"), "{refused}");
    }
}

proptest! {
    /// What passes obeys the rules, whatever came in.
    #[test]
    fn no_environment_makes_the_parser_panic_or_lets_a_bad_name_pass(
        verb in "ADD|DEL|CHECK|GC|[A-Z]{0,6}",
        odd in proptest::collection::vec((1..6usize, any_value()), 0..3),
    ) {
        let odd = odd.into_iter().map(|(at, value)| (VARIABLES[at], OsString::from_vec(value)));
        let verb = [("CNI_COMMAND", OsString::from(verb))];
        let good = GOOD.map(|(name, value)| (name, OsString::from(value)));
        if let Ok(call) = parse(verb.into_iter().chain(odd).chain(good))
            && matches!(call.command, Command::Add | Command::Del | Command::Check)
        {
            prop_assert!(is_valid_name(&call.container_id));
            prop_assert!(is_valid_ifname(&call.ifname));
            prop_assert!(call.netns.starts_with('/') || call.command == Command::Del);
        }
    }

    #[test]
    fn args_read_back_what_was_written(
        pairs in proptest::collection::btree_map("[A-Za-z0-9_]{1,8}", "[^;]{1,8}", 0..6),
    ) {
        let text: Vec<_> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let args = Args::parse(&text.join(";")).unwrap();
        let read: std::collections::BTreeMap<_, _> =
            args.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        prop_assert_eq!(read, pairs);
    }
}

fn any_value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..20),
        "[a-z0-9._/: -]{0,16}".prop_map(String::into_bytes),
    ]
}
