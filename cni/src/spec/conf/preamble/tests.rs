use super::*;

#[test]
fn the_preamble_agrees_with_the_whole_on_versions_and_verbs() {
    let preamble =
        |text: &str, command| Preamble::parse(text, command).map_err(|error| error.code().0);
    let old = r#"{"cniVersion":"0.3.1","name":["not","looked","at"]}"#;
    assert_eq!(
        preamble(old, Command::Add).unwrap().cni_version,
        CniVersion::V0_3_1
    );
    assert_eq!(preamble(old, Command::Check), Err(1));
    assert_eq!(preamble(r#"{"cniVersion":"1.0.0"}"#, Command::Gc), Err(1));
    assert_eq!(
        preamble(r#"{"cniVersion":"1.0.0"}"#, Command::Status),
        Err(1)
    );
    assert!(preamble(r#"{"cniVersion":"0.4.0"}"#, Command::Check).is_ok());
    assert_eq!(preamble(r#"["1.0.0"]"#, Command::Add), Err(6));
    assert_eq!(preamble(r#"{"cniVersion":"1.0.0""#, Command::Add), Err(6));
    assert_eq!(preamble("{}", Command::Add), Err(1));
    let faulty = r#"{"cniVersion":"1.0.0","agentSocket":7,"timeoutSeconds":"x"}"#;
    assert_eq!(preamble(faulty, Command::Add), Err(7));
    assert_eq!(preamble(faulty, Command::Del).unwrap().agent_socket, None);
}
