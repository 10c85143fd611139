//! One connection, from its first byte to its last: the check for the leader if required, schema,
//! snapshot, then updates and transactions.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;
use tracing::debug;

use super::config::ClientConfig;
use super::error::ConnectionError;
use super::queue::Group;
use super::server::{self, ServerView};
use super::{Context, Event, Ticket};
use crate::replica::{MonitorMethod, Schema};
use crate::transact::TransactError;
use crate::transact::batch::{self, Verdict};
use crate::value::{append, encode_str};
use crate::wire::{self, Session};

/// The name of the monitor of the database.
const MONITOR: &str = "\"podwire\"";

#[derive(Debug)]
pub(super) struct Connection {
    session: Session,
    phase: Phase,
    /// The server's state of the database, if only a leader is suitable.
    server: Option<ServerView>,
    in_flight: VecDeque<(u64, Group)>,
    last_byte: Instant,
    /// The echo that no byte has followed yet.
    probe: Option<Instant>,
    /// Nothing more is sent: another connection takes over.
    is_retired: bool,
}

/// The progress of the connection. Each number is a request's id.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Server(u64),
    Schema(u64),
    Snapshot(u64, MonitorMethod),
    Synced(MonitorMethod),
}

/// What an event requires; events borrow from the session, so their handlers can't write to it.
enum Next {
    Nothing,
    Schema,
    Monitor(MonitorMethod),
}

impl Connection {
    pub(super) fn new(context: &Context, now: Instant) -> Result<Self, ConnectionError> {
        let config = &context.config;
        let mut session = Session::new(config.limits);
        let server = config.leader_only.then(ServerView::new).transpose()?;
        let phase = match &server {
            Some(server) => {
                Phase::Server(session.request("monitor_cond", |out| server.request(out)))
            }
            None => Phase::Schema(request_schema(&mut session, config)),
        };
        Ok(Self {
            session,
            phase,
            server,
            in_flight: VecDeque::new(),
            last_byte: now,
            probe: None,
            is_retired: false,
        })
    }

    /// Sends no further transaction.
    pub(super) fn retire(&mut self) {
        self.is_retired = true;
    }

    pub(super) fn is_retired(&self) -> bool {
        self.is_retired
    }

    pub(super) fn is_synced(&self) -> bool {
        matches!(self.phase, Phase::Synced(_))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// The transactions with unknown outcome.
    pub(super) fn into_tickets(self) -> Vec<Ticket> {
        let groups = self.in_flight.into_iter();
        groups
            .flat_map(|(_, group)| group.members)
            .map(|member| member.ticket)
            .collect()
    }

    /// The caller of a transaction in flight has left: it must not be sent again.
    pub(super) fn abandon(&mut self, ticket: Ticket) {
        let members = self
            .in_flight
            .iter_mut()
            .flat_map(|(_, group)| &mut group.members);
        members
            .filter(|member| member.ticket == ticket)
            .for_each(|member| member.abandoned = true);
    }

    pub(super) fn timeout(&self, config: &ClientConfig) -> Instant {
        self.probe.unwrap_or(self.last_byte) + self.patience(config)
    }

    fn patience(&self, config: &ClientConfig) -> Duration {
        match self.is_synced() {
            true => config.probe,
            false => config.sync_probe,
        }
    }

    pub(super) fn handle_timeout(
        &mut self,
        config: &ClientConfig,
        now: Instant,
    ) -> Result<(), ConnectionError> {
        if now < self.timeout(config) {
            return Ok(());
        }
        if self.probe.is_some() {
            return Err(ConnectionError::Silent(self.patience(config)));
        }
        self.session
            .request("echo", |out| out.extend_from_slice(b"[]"));
        self.probe = Some(now);
        Ok(())
    }

    pub(super) fn poll_transmit(&mut self, context: &mut Context) -> &[u8] {
        self.send_groups(context);
        self.session.outgoing()
    }

    pub(super) fn transmitted(&mut self, count: usize) {
        self.session.sent(count);
    }

    pub(super) fn handle_input(
        &mut self,
        context: &mut Context,
        now: Instant,
        bytes: &[u8],
    ) -> Result<(), ConnectionError> {
        self.last_byte = now;
        self.probe = None;
        self.session.feed(bytes);
        loop {
            let Self {
                session,
                phase,
                server,
                in_flight,
                ..
            } = self;
            let Some(event) = session.poll()? else {
                return Ok(());
            };
            let next = match event {
                wire::Event::Answered => Next::Nothing,
                wire::Event::Notification { method, params } => {
                    notified(context, *phase, server.as_mut(), &method, params)?;
                    Next::Nothing
                }
                wire::Event::Reply { id, outcome } => match *phase {
                    Phase::Server(request) if request == id => {
                        take_server(context, server, outcome)?;
                        Next::Schema
                    }
                    Phase::Schema(request) if request == id => take_schema(context, outcome)?,
                    Phase::Snapshot(request, method) if request == id => {
                        let next = take_snapshot(context, method, outcome)?;
                        if matches!(next, Next::Nothing) {
                            *phase = Phase::Synced(method);
                        }
                        next
                    }
                    _ => {
                        answered(context, in_flight, id, outcome)?;
                        Next::Nothing
                    }
                },
            };
            match next {
                Next::Nothing => {}
                Next::Schema => {
                    self.phase = Phase::Schema(request_schema(&mut self.session, &context.config));
                }
                Next::Monitor(method) => self.request_monitor(context, method),
            }
        }
    }

    fn request_monitor(&mut self, context: &Context, method: MonitorMethod) {
        let request = self.session.request(method.request(), |out| {
            let database = context.config.database;
            append(out, format_args!(r#"["{database}",{MONITOR},"#));
            let only: &[_] = match method {
                MonitorMethod::Conditional => &context.config.only,
                MonitorMethod::Plain => &[],
            };
            context.db().encode_monitor_requests(only, out);
            out.push(b']');
        });
        self.phase = Phase::Snapshot(request, method);
    }

    fn send_groups(&mut self, context: &mut Context) {
        if !self.is_synced() || self.is_retired {
            return;
        }
        while self
            .in_flight
            .iter()
            .all(|(_, group)| group.is_lone_retry())
        {
            let limits = context.config.group;
            let Some(members) = context.queue.next_group(limits, !self.in_flight.is_empty()) else {
                return;
            };
            let again = members.iter().filter(|member| member.again).count();
            context.stats.requested(members.len(), again);
            let operations = context
                .fence
                .iter()
                .chain(members.iter().map(|member| &member.encoded));
            let id = self.session.request("transact", |out| {
                out.push(b'[');
                // The config's name of a database contains no NUL, and encode_str refuses nothing
                // else.
                let _ = encode_str(context.config.database, out);
                for encoded in operations {
                    out.push(b',');
                    out.extend_from_slice(&encoded.bytes);
                }
                out.push(b']');
            });
            let fence = context.fence.as_ref().map(|fence| fence.shapes.clone());
            self.in_flight.push_back((id, Group { members, fence }));
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

fn request_schema(session: &mut Session, config: &ClientConfig) -> u64 {
    session.request("get_schema", |out| {
        append(out, format_args!(r#"["{}"]"#, config.database));
    })
}

/// A server without `_Server` is older than clusters.
fn take_server(
    context: &Context,
    server: &mut Option<ServerView>,
    outcome: Result<&str, &str>,
) -> Result<(), ConnectionError> {
    match (outcome, server.as_mut()) {
        (Ok(snapshot), Some(view)) => {
            view.load(snapshot)?;
            view.check(context.config.database)
        }
        (outcome, _) => {
            let reason = outcome.err();
            debug!(reason, "the server has no database _Server");
            *server = None;
            Ok(())
        }
    }
}

fn take_schema(
    context: &mut Context,
    outcome: Result<&str, &str>,
) -> Result<Next, ConnectionError> {
    let schema = outcome.map_err(|error| ConnectionError::Refused {
        method: "get_schema",
        error: error.to_owned(),
    })?;
    let schema = Schema::parse(schema)?;
    let forgotten = context.db_mut().set_schema(&schema)?;
    context.events.push_back(Event::Connected(forgotten));
    Ok(Next::Monitor(context.config.monitor))
}

fn take_snapshot(
    context: &mut Context,
    method: MonitorMethod,
    outcome: Result<&str, &str>,
) -> Result<Next, ConnectionError> {
    match outcome {
        Ok(snapshot) => {
            let rows = context.db().parse(method, snapshot)?;
            let changes = context.db_mut().load_parsed(rows)?;
            context.stats.resyncs += 1;
            context.events.push_back(Event::Synced(changes));
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
    context: &mut Context,
    phase: Phase,
    server: Option<&mut ServerView>,
    notification: &str,
    params: &str,
) -> Result<(), ConnectionError> {
    let updates = || serde_json::from_str(params).map_err(ConnectionError::Notification);
    match (phase, server) {
        (_, Some(server)) if notification == "update2" && params.contains(server::MONITOR) => {
            let UpdateParams(monitor, updates) = updates()?;
            if monitor.get() == server::MONITOR {
                server.apply(updates.get())?;
                return server.check(context.config.database);
            }
            take_update(context, phase, monitor, updates)
        }
        (Phase::Synced(method), _) if notification == method.notification() => {
            let UpdateParams(monitor, updates) = updates()?;
            take_update(context, phase, monitor, updates)
        }
        _ if notification == "monitor_canceled" => Err(ConnectionError::MonitorCancelled),
        _ => {
            debug!(notification, "an OVSDB notification that was not asked for");
            Ok(())
        }
    }
}

fn take_update(
    context: &mut Context,
    phase: Phase,
    monitor: &RawValue,
    updates: &RawValue,
) -> Result<(), ConnectionError> {
    if let Phase::Synced(method) = phase
        && monitor.get() == MONITOR
    {
        let rows = context.db().parse(method, updates.get())?;
        let changes = context.db_mut().apply_parsed(rows)?;
        context.stats.updates += 1;
        context.events.push_back(Event::Updated(changes));
    }
    Ok(())
}

fn answered(
    context: &mut Context,
    in_flight: &mut VecDeque<(u64, Group)>,
    id: u64,
    outcome: Result<&str, &str>,
) -> Result<(), ConnectionError> {
    let Some(at) = in_flight.iter().position(|(request, _)| *request == id) else {
        return Ok(()); // an echo
    };
    // An unreadable reply leaves the group in flight: its members get the error that the connection
    // ended.
    let verdict = in_flight[at].1.judge(outcome)?;
    let Some((_, mut group)) = in_flight.remove(at) else {
        return Ok(());
    };
    match verdict {
        Verdict::Committed(outcomes) => {
            for (member, outcome) in group.members.into_iter().zip(outcomes) {
                context.answer(member.ticket, outcome);
            }
        }
        Verdict::Culprit { member, error } => {
            context.stats.failures += 1;
            let culprit = group.members.remove(member);
            context.answer(culprit.ticket, Err(error));
            context.queue.put_back(group.members);
        }
        Verdict::Unattributed(error)
            if group.members.len() == 1 || matches!(error, TransactError::Fenced { .. }) =>
        {
            for member in group.members {
                context.stats.failures += 1;
                context.answer(member.ticket, Err(error.clone()));
            }
        }
        Verdict::Unattributed(_) => {
            group
                .members
                .iter_mut()
                .for_each(|member| member.alone = true);
            context.queue.put_back(group.members);
        }
    }
    Ok(())
}

impl Group {
    /// The meaning of the reply for the members, apart from the fence.
    fn judge(&self, reply: Result<&str, &str>) -> Result<Verdict, ConnectionError> {
        let members = self.members.iter().map(|member| &member.encoded.shapes);
        let shapes: Vec<_> = self
            .fence
            .iter()
            .chain(members)
            .map(Vec::as_slice)
            .collect();
        let verdict = batch::judge(reply, &shapes).map_err(ConnectionError::BadReply)?;
        if self.fence.is_none() {
            return Ok(verdict);
        }
        Ok(match verdict {
            Verdict::Committed(mut outcomes) => Verdict::Committed(outcomes.split_off(1)),
            Verdict::Culprit { member: 0, error } => Verdict::Unattributed(TransactError::Fenced {
                error: error.to_string(),
            }),
            Verdict::Culprit { member, error } => Verdict::Culprit {
                member: member - 1,
                error,
            },
            unattributed @ Verdict::Unattributed(_) => unattributed,
        })
    }
}
