use super::*;

#[test]
fn a_configuration_lengthens_only_the_deadlines_that_runtimes_leave_open() {
    let seconds =
        |command, wanted: u64| deadline_of(command, Some(Duration::from_secs(wanted))).as_secs();
    for command in [Command::Add, Command::Check, Command::Gc] {
        assert_eq!(
            (seconds(command, 300), seconds(command, 1)),
            (300, 1),
            "{command}"
        );
        assert_eq!(deadline_of(command, None), ADD_DEADLINE);
    }
    assert_eq!(
        (seconds(Command::Del, 300), seconds(Command::Del, 1)),
        (55, 1)
    );
    assert_eq!(
        (seconds(Command::Status, 300), seconds(Command::Status, 1)),
        (15, 1)
    );
}
