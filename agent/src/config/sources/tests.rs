use podwire_apiserver::Token;

use super::*;

fn config(args: SourceArgs) -> Result<SourceConfig, ConfigError> {
    SourceConfig::from_args(args, Mode::Plain)
}

fn kube(url: &str) -> SourceArgs {
    let mut args = SourceArgs {
        node_name: Some("n1".into()),
        ..SourceArgs::default()
    };
    args.server.k8s_apiserver = Some(url.into());
    args
}

#[test]
fn with_nothing_set_up_the_request_is_the_only_source_and_needs_no_annotation() {
    let config = config(SourceArgs::default()).unwrap();
    assert_eq!(config.order, [Source::Cni]);
    assert_eq!(config.annotations, Need::Optional);
    let ovn = SourceConfig::from_args(SourceArgs::default(), Mode::Ovn).unwrap();
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
            "--sources kube: set --kubeconfig or --k8s-apiserver: there is no service account",
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
