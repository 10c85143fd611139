use std::time::Duration;

use proptest::prelude::*;

use super::super::Exit;
use super::*;

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = read::<Request>(&mut bytes.as_slice());
        let _ = read::<Reply>(&mut bytes.as_slice());
    }

    #[test]
    fn a_message_reads_as_it_was_written(id: u64, stdin: String, stdout: String, millis: u32) {
        let timeout = Duration::from_millis(millis.into());
        let exec = Exec {
            path: "/bin/true".to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            stdin,
            timeout,
        };
        let request = Request::Run { id, exec };
        let outcome = Outcome::Ended(Output { exit: Exit::Signal(9), stdout, stderr: String::new() });
        let reply = Reply { id, outcome };
        let mut bytes = encode(&request);
        bytes.extend(encode(&reply));
        let mut stream = bytes.as_slice();
        prop_assert_eq!(read::<Request>(&mut stream).unwrap(), Some(request));
        prop_assert_eq!(read::<Reply>(&mut stream).unwrap(), Some(reply));
        prop_assert_eq!(read::<Reply>(&mut stream).unwrap(), None);
    }
}
