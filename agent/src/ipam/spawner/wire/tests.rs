use std::time::Duration;

use proptest::prelude::*;

use super::super::Exit;
use super::*;

fn received<T: DeserializeOwned>(packets: &[Vec<u8>]) -> io::Result<Vec<T>> {
    let mut inbox = Inbox::default();
    let messages = packets.iter().map(|packet| inbox.push(packet));
    messages.filter_map(Result::transpose).collect()
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = received::<Request>(std::slice::from_ref(&bytes));
        let _ = received::<Reply>(&[bytes]);
    }

    #[test]
    fn a_message_reads_as_it_was_written(id: u64, stdin: String, stdout: String, millis: u32) {
        let timeout = Duration::from_millis(millis.into());
        let exec = Exec { path: "/bin/true".to_owned(), env: Vec::new(), stdin, timeout };
        let request = Request::Run { id, exec };
        let outcome = Outcome::Ended(Output { exit: Exit::Signal(9), stdout,
            stderr: String::new() });
        let reply = Reply::Ran { id, outcome };
        let sent: Vec<_> = packets(&encode(&request)).collect();
        prop_assert_eq!(received::<Request>(&sent).unwrap(), [request]);
        let sent: Vec<_> = packets(&encode(&reply)).collect();
        prop_assert_eq!(received::<Reply>(&sent).unwrap(), [reply]);
    }

    #[test]
    fn a_message_cut_off_at_either_end_spoils_no_other(cut in 1..4_usize) {
        let ended = "x".repeat(4 * PACKET_MAX);
        let long: Vec<_> = packets(&encode(&Reply::Restarted { ended })).collect();
        prop_assert_eq!(long.len(), 5);
        let whole = Reply::Restarted { ended: String::new() };
        let short: Vec<_> = packets(&encode(&whole)).collect();
        for part in [&long[..cut], &long[cut..]] {
            let sent = [part, &short].concat();
            let read = received::<Reply>(&sent).unwrap();
            prop_assert_eq!(read.as_slice(), std::slice::from_ref(&whole));
        }
    }
}
