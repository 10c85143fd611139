//! `podwire node run`: its arguments, and what it sets up before its loop.

use std::future::ready;
use std::os::fd::AsFd as _;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use hyper::Request;
use itertools::Itertools as _;
use podwire_daemon::http;
use podwire_daemon::lockdown::Seccomp;
use podwire_daemon::process::{log_to_stderr, raise_descriptor_limit};
use podwire_daemon::settings::loopback;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use super::{Failure, Surroundings, Wanted, ended, hold, say};
use crate::alive;
use crate::privileges::privileges;
use crate::reconcile::Reconciler;
use crate::record::Record;
use crate::run;
use crate::watch::Watch;

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    wanted: Wanted,
    /// If another `podwire node run` is active, wait until it ends instead of failing; for rolling
    /// updates
    #[arg(long, env = "PODWIRE_STANDBY")]
    standby: bool,
    /// Loopback address, IP:PORT, for GET /metrics and /healthz
    #[arg(long, value_name = "IP:PORT", env = "PODWIRE_NODE_METRICS_ADDRESS")]
    metrics_address: Option<String>,
    /// End when standard input, a socket, is closed: together with the process that started this
    /// one
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
    /// What to log: a level, or filters such as info,podwire_ovs=debug
    #[arg(
        long,
        value_name = "FILTER",
        env = "PODWIRE_LOG",
        default_value = "info"
    )]
    log: String,
    /// What to do with system calls that the node role does not make: enforce, log or off
    #[arg(
        long,
        value_name = "ACTION",
        env = "PODWIRE_SECCOMP",
        default_value = "enforce"
    )]
    seccomp: Seccomp,
}

impl RunArgs {
    /// Opens the log and drops the privileges that are not needed, while there is one thread.
    pub(super) fn prepare(&self, surroundings: &Surroundings<'_>) -> Result<(), Failure> {
        log_to_stderr(&self.log);
        let Wanted {
            settings,
            places,
            api,
            ..
        } = &self.wanted;
        let mut given = vec![("--mode", settings.mode.name().to_owned())];
        given.push(("--ovsdb", places.ovsdb.clone()));
        given.extend(
            settings
                .southbound
                .ovn_remote
                .clone()
                .map(|it| ("--ovn-remote", it)),
        );
        given.extend(api.server());
        let mut given = given.into_iter().map(|(flag, value)| {
            let origin = (surroundings.origin)(flag);
            format!("{flag} {value}{origin}")
        });
        tracing::info!(settings = given.join(", "), "starting");
        let places = places.clone().check()?;
        let held = privileges(&places).keep(self.seccomp)?;
        tracing::info!(%held, "dropped all other privileges");
        Ok(())
    }

    pub(super) async fn run(self, surroundings: &Surroundings<'_>) -> Result<ExitCode, Failure> {
        let metrics_address = self.metrics_address.as_deref().map(loopback).transpose()?;
        let (goal, access, places) = self.wanted.check(surroundings).await?;
        let signals = ended()?;
        let starter = self.until_stdin_ends.then(starter).transpose();
        let mut starter = starter.map_err(Failure::Signals)?;
        let stop = async move {
            tokio::select! {
                () = signals => {}
                () = starter_ended(&mut starter) => return,
            }
            if let Some(starter) = &mut starter {
                // This tells it that nothing has failed.
                let _ = starter.write(b"\n").await;
            }
        };
        raise_descriptor_limit().map_err(Failure::Descriptors)?;
        let record = Record::open(&places.directory);
        let mut pages = JoinSet::new();
        if let Some(address) = metrics_address {
            let listener = http::listen(address);
            let listener = listener.map_err(|source| Failure::Listen { address, source })?;
            let metrics = record.metrics();
            let page = move |request: Request<_>| ready(metrics.page(request.uri().path()));
            pages.spawn(http::serve(listener, Arc::default(), page));
        }
        let settings = goal.settings.as_ref();
        let watch = match (access, settings) {
            (Some(access), Some(settings)) => {
                Some(Watch::start(&access, &settings.node_name, settings.mode).await?)
            }
            _ => None,
        };
        let mut stop = pin!(stop);
        let tell = |text| say(&format!("{text}\n"));
        let journal = hold(&places, self.standby, tell, stop.as_mut()).await?;
        let directory = places.directory.clone();
        pages.spawn(async move {
            let served = alive::serve(&directory).await;
            served.inspect_err(
                |error| tracing::warn!(%error, "nobody can ask whether the role works"),
            )
        });
        let reconciler = Reconciler::with_journal(goal, &places, journal).await?;
        run::run(reconciler, record, watch, surroundings, stop).await?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The process that started this one, by standard input.
fn starter() -> std::io::Result<UnixStream> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

/// Waits until that process ends; without one, for ever.
async fn starter_ended(starter: &mut Option<UnixStream>) {
    match starter {
        Some(stream) => while stream.read(&mut [0]).await.is_ok_and(|length| length > 0) {},
        None => std::future::pending().await,
    }
}
