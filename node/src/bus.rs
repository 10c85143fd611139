//! D-Bus signals that are heard whether or not somebody waits for them.

use futures_util::StreamExt as _;
use tokio::sync::watch;
use tokio::task::JoinSet;
use zbus::{Connection, MatchRule, MessageStream};

/// That signals have come on a connection.
///
/// zbus reads nothing more of a connection while a stream of its has 64 messages that nobody has
/// taken (`MessageStream::max_queued`): no answer either. So tasks of their own take the signals.
pub(crate) struct Signals {
    heard: watch::Receiver<()>,
    /// They end with this.
    _taken: JoinSet<()>,
}

impl Signals {
    /// Listens from now on to the signals that one of these rules matches.
    ///
    /// # Errors
    /// The bus does not answer.
    pub(crate) async fn listen(
        connection: &Connection,
        rules: impl IntoIterator<Item = MatchRule<'static>>,
    ) -> zbus::Result<Self> {
        let (tell, heard) = watch::channel(());
        let mut taken = JoinSet::new();
        for rule in rules {
            let mut signals = MessageStream::for_match_rule(rule, connection, None).await?;
            let tell = tell.clone();
            taken.spawn(async move {
                while signals.next().await.is_some() {
                    tell.send_replace(());
                }
            });
        }
        Ok(Self {
            heard,
            _taken: taken,
        })
    }

    /// Waits for a signal that has come since the last call; None once the connection is gone.
    pub(crate) async fn next(&mut self) -> Option<()> {
        self.heard.changed().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use tokio::time::timeout;
    use zbus::connection::Builder;
    use zbus::message::Type;

    use super::*;

    const GUID: &str = "0123456789abcdef0123456789abcdef";

    #[tokio::test]
    async fn signals_that_nobody_waits_for_do_not_hold_up_an_answer() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = Builder::unix_stream(theirs).p2p().server(GUID).build();
        let client = Builder::unix_stream(ours).p2p().build();
        let (server, client) = tokio::try_join!(server, client).unwrap();
        let rule = MatchRule::builder().msg_type(Type::Signal).build().unwrap();
        let mut signals = Signals::listen(&client, [rule]).await.unwrap();
        let mut asked = MessageStream::from(&server);
        let answers = async {
            for _ in 0..1_000 {
                let sent = server.emit_signal(None::<&str>, "/a", "b.c", "D", &());
                sent.await?;
            }
            let call = asked.next().await.unwrap()?;
            server.reply(&call.header(), &()).await
        };
        let asks = client.call_method(None::<&str>, "/a", Some("b.c"), "E", &());
        let both = async { tokio::try_join!(asks, answers) };
        let both = timeout(Duration::from_secs(20), both).await;
        both.expect("no answer").unwrap();
        assert_eq!(signals.next().await, Some(()));
        drop((asked, server));
        while signals.next().await.is_some() {}
    }
}
