//! `podwire-controller`: see the library.

use std::process::ExitCode;

use clap::Parser as _;
use podwire_controller::config::Config;
use podwire_controller::run::{Reporter, run};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let config = Config::parse();
    let filter = EnvFilter::new(&config.log);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let ended = match (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            let shutdown = async move {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            };
            run(config, &Reporter::default(), shutdown).await
        }
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("podwire-controller: signals can't be received: {error}");
            return ExitCode::FAILURE;
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("podwire-controller: {error}");
            ExitCode::FAILURE
        }
    }
}
