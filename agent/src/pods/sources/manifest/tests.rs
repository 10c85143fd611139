use super::*;

fn pods(text: &str) -> Vec<String> {
    let show = |(name, pod): (PodName, Pod)| {
        let uid = pod.uid.as_deref().unwrap_or("-");
        let annotations: Vec<_> = pod.annotations.iter().collect();
        format!("{name} {uid} {annotations:?}")
    };
    parse(text).unwrap().into_iter().map(show).collect()
}

#[test]
fn yaml_and_json_say_the_same() {
    let yaml = r#"
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: shop
  uid: 00000000-1111-2222-3333-444444444444
  annotations:
    kubernetes.io/ingress-bandwidth: 10M
    k8s.ovn.org/pod-networks: |
      {"default": {}}
    somebody/else: "no"
spec:
  containers: [{name: main, image: pause}]
"#;
    let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"shop",
        "uid":"00000000-1111-2222-3333-444444444444","annotations":{
        "kubernetes.io/ingress-bandwidth":"10M","k8s.ovn.org/pod-networks":"{\"default\": {}}\n","somebody/else":"no"}}}"#;
    let expected = r#"shop/web 00000000-1111-2222-3333-444444444444 [("k8s.ovn.org/pod-networks", "{\"default\": {}}\n"), ("kubernetes.io/ingress-bandwidth", "10M")]"#;
    assert_eq!(pods(yaml), [expected]);
    assert_eq!(pods(json), [expected]);
}

#[test]
fn a_pod_without_namespace_is_in_the_default_one() {
    assert_eq!(pods("kind: Pod\nmetadata: {name: a}\n"), ["default/a - []"]);
}

#[test]
fn documents_and_lists_are_read_whole_and_other_kinds_passed_over() {
    let text = "
# nothing in the first document
---
kind: Pod
metadata: {name: a}
---
kind: Service
metadata: {name: b}
---
kind: List
items:
- kind: Pod
  metadata: {name: c}
- kind: ConfigMap
  metadata: {name: d}
";
    assert_eq!(pods(text), ["default/a - []", "default/c - []"]);
    assert_eq!(pods(""), [""; 0]);
}

#[test]
fn each_refusal_says_what_is_wrong() {
    for (text, expected) in [
        ("kind: Pod\n", "a Pod without metadata.name"),
        ("metadata: {name: a}\n", "a document without kind"),
        ("{\"kind\": \"Pod\",", "EOF while parsing"),
    ] {
        let problem = parse(text).unwrap_err();
        assert!(problem.contains(expected), "{problem}");
    }
    for text in [
        "kind: [Pod\n",
        "- a\n- b\n",
        "kind: Pod\nmetadata: 3\n",
        "just words",
    ] {
        let problem = parse(text).unwrap_err();
        assert!(!problem.is_empty() && !problem.contains('\n'), "{problem}");
    }
}

#[test]
fn a_small_file_that_would_grow_without_bound_is_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let last = format!("*a{}", level - 1);
        text.push_str(&format!(
            "a{level}: &a{level} [{}]\n",
            [last.as_str(); 10].join(", ")
        ));
    }
    text.push_str("kind: Pod\nmetadata: {name: a}\n");
    assert!(parse(&text).is_err());
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[ -~\\n]{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn no_yaml_makes_it_panic(text in "(kind: (Pod|List)?\\n)?(metadata:\\n)?( \
                                       {0,3}[a-z&*!|>{}\\[\\]-]{0,6}:? \
                                       ?[a-z0-9\"'&*]{0,6}\\n){0,8}") {
        let _ = parse(&text);
    }
}
