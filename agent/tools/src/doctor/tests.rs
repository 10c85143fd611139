use super::*;

#[test]
fn findings_come_with_their_commands_on_lines_of_their_own() {
    let finding = Finding::wrong(
        Kind::DatabaseSilent,
        "its database does not answer on /run/openvswitch/db.sock: waited 2 s for OVSDB to be in \
         sync",
    );
    let examined = [
        Examined {
            about: "Open vSwitch",
            seen: String::new(),
            findings: vec![finding.fix("systemctl restart openvswitch-switch")],
        },
        Examined {
            about: "agent",
            seen: "podwire 0.1.0 answers on /run/podwire/agent.sock".into(),
            findings: vec![Finding::note(
                Kind::OperationFailed,
                "the last ADD of web/a failed with code 11",
            )],
        },
    ];
    insta::assert_snapshot!(text(&examined, 80, Paint::PLAIN));
    let well = [Examined {
        findings: Vec::new(),
        seen: "3.1.0".into(),
        about: "Open vSwitch",
    }];
    insta::assert_snapshot!(text(&well, 80, Paint::PLAIN));
}
