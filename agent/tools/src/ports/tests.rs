use super::*;
use podwire::plan::{AttachmentKey, Bandwidth};

fn port(pod: &str, state: PortState) -> PortView {
    PortView {
        name: "3f2b9c0d1e4a5b6".into(),
        state,
        added_unix_micros: Some(0),
        error: None,
        pod: Some(pod.into()),
        pod_ifname: Some("eth0".into()),
        addresses: vec!["10.186.0.2/22".parse().unwrap()],
        mac: Some("0a:58:0a:ba:00:02".into()),
        mtu: Some(1500),
        key: Some(AttachmentKey {
            network: "pods".into(),
            container_id: "3f2b9c0d1e4a5b6c7d8e9f00".into(),
            ifname: "eth0".into(),
        }),
        netns: Some("/run/netns/cni-1".into()),
        bridge: Some("br-int".into()),
        ofport: Some(1),
        bandwidth: Bandwidth::default(),
        external_ids: [("iface-id".to_owned(), "web_a".to_owned())].into(),
    }
}

fn failed() -> PortView {
    PortView {
        name: "pwcqk880ebkk0px".into(),
        ofport: Some(-1),
        error: Some("could not open network device pwcqk880ebkk0px (No such device)".into()),
        ..port("web/b", PortState::Failed)
    }
}

fn table(wide: bool) -> Table {
    Table {
        wide,
        headings: true,
        now: 300_000_000,
        paint: Paint::PLAIN,
    }
}

#[test]
fn the_table_has_a_line_for_each_port_and_what_failed_is_told_below() {
    let ports = [port("web/a", PortState::Up), failed()];
    insta::assert_snapshot!(text(&ports, &table(false)));
    insta::assert_snapshot!(text(&ports[..1], &table(true)));
    assert_eq!(text(&[], &table(false)), "no ports\n");
}

#[test]
fn without_headings_a_table_has_only_its_ports() {
    let bare = Table {
        headings: false,
        ..table(false)
    };
    let shown = text(&[port("web/a", PortState::Up)], &bare);
    assert!(shown.starts_with("web/a "), "{shown}");
    assert_eq!(shown.lines().count(), 1);
    assert_eq!(text(&[], &bare), "");
}

#[test]
fn each_change_is_a_line_in_a_pipe() {
    let mut ports = BTreeMap::new();
    let first = Change {
        current: true,
        changed: vec![port("web/a", PortState::AwaitsOfport), failed()],
        removed: Vec::new(),
    };
    let mut all = describe(&ports, &first, Paint::PLAIN);
    apply(&mut ports, first);
    let second = Change {
        current: false,
        changed: vec![port("web/a", PortState::Up)],
        removed: vec!["pwcqk880ebkk0px".into()],
    };
    all.push_str(&describe(&ports, &second, Paint::PLAIN));
    apply(&mut ports, second);
    insta::assert_snapshot!(all);
    assert_eq!(ports.len(), 1);
}

#[test]
fn what_a_row_says_can_do_nothing_to_the_terminal() {
    let hostile = PortView {
        error: Some("\x1b[2J".into()),
        ..port("web/\x1b]0;title\x07", PortState::Failed)
    };
    let change = Change {
        current: true,
        changed: vec![hostile.clone()],
        removed: Vec::new(),
    };
    let lines = describe(&BTreeMap::new(), &change, Paint::PLAIN);
    for shown in [text(&[hostile], &table(true)), lines] {
        assert!(
            !shown.contains('\x1b') && !shown.contains('\x07'),
            "{shown:?}"
        );
    }
}
