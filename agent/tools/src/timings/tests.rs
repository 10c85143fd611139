use super::super::paint::Paint;
use super::*;

fn operations() -> Vec<Traced> {
    let step = |name: &str, start_micros, duration_micros| Step {
        name: name.into(),
        start_micros,
        duration_micros,
        failed: false,
    };
    let add = Traced {
        verb: "ADD".into(),
        container: "3f2b9c0d1e4a5b6c7d8e9f00".into(),
        ifname: "eth0".into(),
        pod: Some("web/a".into()),
        traceparent: None,
        started_unix_micros: 1_772_323_199_000_000,
        duration_micros: 4000.0,
        outcome: Ended::Ok("ok".into()),
        phases: vec![
            step("queue", 0.0, 2.0),
            step("ovsdb: transaction", 1000.0, 500.0),
            step("make pair", 100.0, 900.0),
            step("ovs-vswitchd: ofport", 1500.0, 2400.0),
        ],
    };
    let refused = Traced {
        duration_micros: 30_000_000.0,
        outcome: Ended::Failed {
            code: 11,
            msg: "waited 30 s for <b>the</b> annotation".into(),
        },
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        phases: vec![Step {
            failed: true,
            ..step("annotations", 0.0, 30_000_000.0)
        }],
        ..add.clone()
    };
    vec![add, refused]
}

const NOW: u64 = 1_772_323_204_000_000;

#[test]
fn the_waterfall_shows_each_step_where_it_lies() {
    insta::assert_snapshot!(waterfall::text(&operations(), NOW, 80, Paint::PLAIN));
}

#[test]
fn the_page_needs_nothing_else_and_takes_no_text_for_markup() {
    let page = html::page(&operations(), NOW);
    for outside in ["<script", "http:", "https:", "src=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside} in {page}");
    }
    assert!(page.contains("&lt;b&gt;the&lt;/b&gt;") && !page.contains("<b>the"));
    assert!(
        page.contains("style=\"left:25.00%;width:12.50%\""),
        "{page}"
    );
    let body = page.split_once("<header>").unwrap().1;
    insta::assert_snapshot!(body);
}

#[test]
fn the_page_has_a_scale_and_shows_what_is_in_no_step() {
    let page = html::page(&operations(), NOW);
    let scale = "<b style=\"left:0.00%\">0 ms</b><b style=\"left:25.00%\">1 ms</b>";
    assert!(page.contains(scale), "{page}");
    // Between `queue` and `make pair`, and after the last step.
    for gap in ["0.10 ms", "0.10 ms"] {
        let row = format!("<li class=\"gap\"><span></span><span>{gap}</span>");
        assert!(page.contains(&row), "{page}");
    }
    assert!(page.contains("prefers-color-scheme: dark"));
}

#[test]
fn what_the_agent_sends_is_read_and_given_on_as_it_was() {
    let text = serde_json::json!({ "operations": [{
        "verb": "ADD", "container": "c", "ifname": "eth0", "startedUnixMicros": 5,
        "durationMicros": 1.5, "outcome": "ok",
        "phases": [{ "name": "queue", "startMicros": 0.0, "durationMicros": 1.0 }],
    }, {
        "verb": "DEL", "container": "c", "ifname": "eth0", "startedUnixMicros": 6,
        "durationMicros": 1.5, "outcome": { "code": 11, "msg": "later" }, "phases": [],
    }]});
    let list: TraceList = serde_json::from_value(text.clone()).unwrap();
    assert_eq!(serde_json::to_value(&list).unwrap(), text);
}
