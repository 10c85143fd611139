//! One connection, from its first byte to its last: schema, snapshot, then updates and transactions.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use super::error::ConnectionError;
use super::queue::Group;
use super::remote::Stream;
use super::stats::count;
use super::task::Shared;
use crate::replica::{MonitorMethod, Schema};
use crate::transact::TransactError;
use crate::transact::batch::{self, Verdict};
use crate::value::{append, encode_str};
use crate::wire::{Event, Session};

/// Names our only monitor.
const MONITOR: &str = "\"podwire\"";

const CHUNK_BYTES: usize = 64 << 10;

pub(super) struct Connection<'a> {
    shared: &'a Shared,
    stream: Box<dyn Stream>,
    session: Session,
    chunk: Box<[u8]>,
    phase: Phase,
    in_flight: VecDeque<(u64, Group)>,
    heard: Instant,
    /// The echo that no byte has followed yet.
    probe: Option<Instant>,
}

/// What the connection is there for so far. Each number is a request's id.
#[derive(Clone, Copy)]
enum Phase {
    Schema(u64),
    Snapshot(u64, MonitorMethod),
    Synced(MonitorMethod),
}

/// What ended a wait.
enum Woken {
    Read(usize),
    Other,
}

/// What the handler of an event asks for; events borrow from the session, so that it can't write there itself.
enum Next {
    Nothing,
    Monitor(MonitorMethod),
}

impl<'a> Connection<'a> {
    pub(super) fn new(shared: &'a Shared, stream: Box<dyn Stream>) -> Self {
        let mut session = Session::new(shared.config.limits);
        let schema = session.request("get_schema", |out| {
            append(out, format_args!(r#"["{}"]"#, shared.config.database))
        });
        Self {
            shared,
            stream,
            session,
            chunk: vec![0; CHUNK_BYTES].into(),
            phase: Phase::Schema(schema),
            in_flight: VecDeque::new(),
            heard: Instant::now(),
            probe: None,
        }
    }

    /// Serves until the connection is lost; `Ok` when all handles are dropped and nothing is in flight.
    pub(super) async fn serve(&mut self) -> Result<(), ConnectionError> {
        loop {
            self.handle_events()?;
            self.send_groups();
            if self.shared.is_closed() && self.in_flight.is_empty() {
                return Ok(());
            }
            if let Woken::Read(count) = self.wait().await? {
                self.heard = Instant::now();
                self.probe = None;
                self.session.feed(&self.chunk[..count]);
            }
        }
    }

    /// Tells those whose transactions were on their way. To be called when the state says already that the connection is lost.
    pub(super) fn abandon(self, error: &ConnectionError) {
        let reason = error.to_string();
        for member in self
            .in_flight
            .into_iter()
            .flat_map(|(_, group)| group.members)
        {
            member.answer(Err(TransactError::Disconnected {
                sent: true,
                reason: reason.clone(),
            }));
        }
    }

    /// Writes what is to be written, until there is something to handle.
    async fn wait(&mut self) -> Result<Woken, ConnectionError> {
        let idle = self.shared.config.probe;
        let due = self.probe.unwrap_or(self.heard) + idle;
        let may_send = matches!(self.phase, Phase::Synced(_)) && self.in_flight.is_empty();
        let Self {
            shared,
            stream,
            session,
            chunk,
            ..
        } = self;
        tokio::select! {
            biased;
            read = poll_fn(|context| drive(stream.as_mut(), session, chunk, context)) => return Ok(Woken::Read(read?)),
            () = shared.queue.arrived.notified(), if may_send => {}
            () = shared.closing.notified() => {}
            () = sleep_until(due) => self.probe_server(idle)?,
        }
        Ok(Woken::Other)
    }

    fn probe_server(&mut self, idle: Duration) -> Result<(), ConnectionError> {
        if self.probe.is_some() {
            return Err(ConnectionError::Silent(idle));
        }
        self.session
            .request("echo", |out| out.extend_from_slice(b"[]"));
        self.probe = Some(Instant::now());
        Ok(())
    }

    fn handle_events(&mut self) -> Result<(), ConnectionError> {
        loop {
            let Self {
                shared,
                session,
                phase,
                in_flight,
                ..
            } = self;
            let Some(event) = session.poll()? else {
                return Ok(());
            };
            let next = match event {
                Event::Answered => Next::Nothing,
                Event::Notification { method, params } => {
                    notified(shared, *phase, &method, params)?;
                    Next::Nothing
                }
                Event::Reply { id, outcome } => match *phase {
                    Phase::Schema(request) if request == id => take_schema(shared, outcome)?,
                    Phase::Snapshot(request, method) if request == id => {
                        let next = take_snapshot(shared, method, outcome)?;
                        if matches!(next, Next::Nothing) {
                            *phase = Phase::Synced(method);
                        }
                        next
                    }
                    _ => {
                        answered(shared, in_flight, id, outcome)?;
                        Next::Nothing
                    }
                },
            };
            if let Next::Monitor(method) = next {
                self.request_monitor(method);
            }
        }
    }

    fn request_monitor(&mut self, method: MonitorMethod) {
        let shared = self.shared;
        let request = self.session.request(method.request(), |out| {
            append(
                out,
                format_args!(r#"["{}",{MONITOR},"#, shared.config.database),
            );
            shared.db().encode_monitor_requests(out);
            out.push(b']');
        });
        self.phase = Phase::Snapshot(request, method);
    }

    fn send_groups(&mut self) {
        if !matches!(self.phase, Phase::Synced(_)) {
            return;
        }
        let shared = self.shared;
        while self
            .in_flight
            .iter()
            .all(|(_, group)| group.is_lone_retry())
        {
            let Some(group) = shared
                .queue
                .next_group(shared.config.group, !self.in_flight.is_empty())
            else {
                return;
            };
            shared.stats.sent(&group);
            let id = self.session.request("transact", |out| {
                out.push(b'[');
                // The config's name of a database holds no NUL, and encode_str refuses nothing else.
                let _ = encode_str(shared.config.database, out);
                for member in &group.members {
                    out.push(b',');
                    out.extend_from_slice(&member.encoded.bytes);
                }
                out.push(b']');
            });
            self.in_flight.push_back((id, group));
        }
    }
}

impl MonitorMethod {
    fn request(self) -> &'static str {
        match self {
            Self::Conditional => "monitor_cond",
            Self::Plain => "monitor",
        }
    }

    fn notification(self) -> &'static str {
        match self {
            Self::Conditional => "update2",
            Self::Plain => "update",
        }
    }
}

fn take_schema(shared: &Shared, outcome: Result<&str, &str>) -> Result<Next, ConnectionError> {
    let schema = outcome.map_err(|error| ConnectionError::Refused {
        method: "get_schema",
        error: error.to_owned(),
    })?;
    let schema = Schema::parse(schema)?;
    let changes = shared.db_mut().set_schema(&schema)?;
    shared.connected();
    shared.row_waits.wake(&shared.db(), &changes.rows);
    Ok(Next::Monitor(shared.config.monitor))
}

fn take_snapshot(
    shared: &Shared,
    method: MonitorMethod,
    outcome: Result<&str, &str>,
) -> Result<Next, ConnectionError> {
    match outcome {
        Ok(snapshot) => {
            let rows = shared.db().parse(method, snapshot)?;
            let changes = shared.db_mut().load_parsed(rows)?;
            shared.synced(&changes);
            Ok(Next::Nothing)
        }
        Err(error) if method == MonitorMethod::Conditional => {
            debug!(error, "the server refused monitor_cond; trying monitor");
            Ok(Next::Monitor(MonitorMethod::Plain))
        }
        Err(error) => Err(ConnectionError::Refused {
            method: method.request(),
            error: error.to_owned(),
        }),
    }
}

#[derive(Deserialize)]
struct UpdateParams<'a>(#[serde(borrow)] &'a RawValue, #[serde(borrow)] &'a RawValue);

fn notified(
    shared: &Shared,
    phase: Phase,
    notification: &str,
    params: &str,
) -> Result<(), ConnectionError> {
    match phase {
        Phase::Synced(method) if notification == method.notification() => {
            let UpdateParams(monitor, updates) =
                serde_json::from_str(params).map_err(ConnectionError::Notification)?;
            if monitor.get() == MONITOR {
                let rows = shared.db().parse(method, updates.get())?;
                let changes = shared.db_mut().apply_parsed(rows)?;
                shared.updated(&changes);
            }
            Ok(())
        }
        _ if notification == "monitor_canceled" => Err(ConnectionError::MonitorCancelled),
        _ => {
            debug!(notification, "an OVSDB notification that was not asked for");
            Ok(())
        }
    }
}

fn answered(
    shared: &Shared,
    in_flight: &mut VecDeque<(u64, Group)>,
    id: u64,
    outcome: Result<&str, &str>,
) -> Result<(), ConnectionError> {
    let Some(at) = in_flight.iter().position(|(request, _)| *request == id) else {
        return Ok(()); // an echo
    };
    let shapes: Vec<_> = in_flight[at]
        .1
        .members
        .iter()
        .map(|member| &member.encoded.shapes[..])
        .collect();
    // A reply that can't be read leaves the group in flight: its members learn that the connection ended.
    let verdict = batch::judge(outcome, &shapes)?;
    let Some((_, mut group)) = in_flight.remove(at) else {
        return Ok(());
    };
    match verdict {
        Verdict::Committed(outcomes) => {
            for (member, outcome) in group.members.into_iter().zip(outcomes) {
                member.answer(outcome);
            }
        }
        Verdict::Culprit { member, error } => {
            count(&shared.stats.failures);
            group.members.remove(member).answer(Err(error));
            shared.queue.put_back(group.members);
        }
        Verdict::Unattributed(error) if group.members.len() == 1 => {
            count(&shared.stats.failures);
            group
                .members
                .into_iter()
                .for_each(|member| member.answer(Err(error.clone())));
        }
        Verdict::Unattributed(_) => {
            group
                .members
                .iter_mut()
                .for_each(|member| member.alone = true);
            shared.queue.put_back(group.members);
        }
    }
    Ok(())
}

/// Writes as much as the stream takes, and is ready when it has read something. Both at once: a server that is itself blocked on
/// writing to us would never read.
fn drive(
    mut stream: &mut dyn Stream,
    session: &mut Session,
    chunk: &mut [u8],
    context: &mut Context<'_>,
) -> Poll<Result<usize, ConnectionError>> {
    while !session.outgoing().is_empty() {
        match Pin::new(&mut stream).poll_write(context, session.outgoing()) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(ConnectionError::Closed)),
            Poll::Ready(Ok(count)) => session.sent(count),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
            Poll::Pending => break,
        }
    }
    let mut buffer = ReadBuf::new(chunk);
    match Pin::new(&mut stream).poll_read(context, &mut buffer) {
        Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
            Poll::Ready(Err(ConnectionError::Closed))
        }
        Poll::Ready(Ok(())) => Poll::Ready(Ok(buffer.filled().len())),
        Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
        Poll::Pending => Poll::Pending,
    }
}
