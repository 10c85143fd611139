use super::*;

fn account(directory: &Path) -> ServiceAccount {
    ServiceAccount {
        url: Some("https://10.0.0.1:443".into()),
        directory: directory.to_owned(),
    }
}

fn config(args: SourceArgs) -> Result<SourceConfig, ConfigError> {
    SourceConfig::from_args(args, None, Mode::Plain)
}

fn kube(url: &str) -> SourceArgs {
    SourceArgs {
        k8s_apiserver: Some(url.into()),
        node_name: Some("n1".into()),
        ..SourceArgs::default()
    }
}

#[test]
fn with_nothing_set_up_the_request_is_the_only_source_and_needs_no_annotation() {
    let config = config(SourceArgs::default()).unwrap();
    assert_eq!(config.order, [Source::Cni]);
    assert_eq!(config.annotations, Need::Optional);
    let ovn = SourceConfig::from_args(SourceArgs::default(), None, Mode::Ovn).unwrap();
    assert_eq!(ovn.annotations, Need::Required);
}

#[test]
fn what_is_set_up_is_asked_after_the_request_and_then_annotations_are_needed() {
    let args = SourceArgs {
        pod_dir: Some("/pods".into()),
        ..kube("http://h")
    };
    let both = config(args.clone()).unwrap();
    assert_eq!(both.order, [Source::Cni, Source::Kube, Source::Dir]);
    assert_eq!(both.annotations, Need::Required);
    let chosen = config(SourceArgs {
        sources: vec![Source::Dir, Source::Cni],
        annotations: Some(Need::Optional),
        ..args
    })
    .unwrap();
    assert_eq!(chosen.order, [Source::Dir, Source::Cni]);
    assert_eq!((chosen.annotations, chosen.kube), (Need::Optional, None));
}

#[test]
fn a_service_accounts_files_are_used_where_no_flag_says_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["token", "ca.crt"] {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    let access = |args: SourceArgs| {
        let args = SourceArgs {
            node_name: Some("n1".into()),
            ..args
        };
        let config = SourceConfig::from_args(args, Some(account(dir.path())), Mode::Plain);
        config.unwrap().kube.unwrap().access
    };
    assert_eq!(
        access(SourceArgs::default()),
        KubeAccess::Server {
            url: "https://10.0.0.1:443".into(),
            ca: Some(dir.path().join("ca.crt")),
            token: Token::File(dir.path().join("token")),
        }
    );
    assert_eq!(
        access(SourceArgs {
            k8s_token: Some("t".into()),
            k8s_cacert: Some("/other".into()),
            ..kube("https://h")
        }),
        KubeAccess::Server {
            url: "https://h".into(),
            ca: Some("/other".into()),
            token: Token::Text("t".into()),
        }
    );
    assert_eq!(
        access(SourceArgs {
            kubeconfig: Some("/k".into()),
            ..SourceArgs::default()
        }),
        KubeAccess::Kubeconfig("/k".into())
    );
}

#[test]
fn a_token_is_in_no_log() {
    assert!(!format!("{:?}", Token::Text("secret".into())).contains("secret"));
}

#[test]
fn each_refusal_names_flag_value_and_what_was_expected() {
    let of = |sources: &[Source], args: SourceArgs| SourceArgs {
        sources: sources.to_vec(),
        ..args
    };
    let none = SourceArgs::default;
    let cases = [
        (
            of(&[Source::Kube], none()),
            "--sources kube: give --kubeconfig or --k8s-apiserver: there is no service account here",
        ),
        (of(&[Source::Dir], none()), "--sources dir: give --pod-dir"),
        (
            of(&[Source::Cni, Source::Cni], none()),
            "--sources cni: named twice",
        ),
        (
            kube("h:6443"),
            "--k8s-apiserver h:6443: expected http://… or https://…",
        ),
        (
            kube("https://"),
            "--k8s-apiserver https://: expected http://… or https://…",
        ),
        (
            SourceArgs {
                node_name: Some("n1,x=y".into()),
                ..kube("http://h")
            },
            "--node-name n1,x=y: expected a Kubernetes name: a-z, 0-9, '-' and '.'",
        ),
        (
            SourceArgs {
                node_name: Some(String::new()),
                ..kube("http://h")
            },
            "--node-name : expected a Kubernetes name: a-z, 0-9, '-' and '.'",
        ),
    ];
    for (args, expected) in cases {
        assert_eq!(config(args).unwrap_err().to_string(), expected);
    }
}
