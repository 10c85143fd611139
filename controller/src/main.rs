//! `podwire-controller`: see the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory as _, FromArgMatches as _, Parser as _};
use podwire_controller::arguments::{Arguments, Command, NetworkVerb, Object};
use podwire_controller::config::{Config, addresses, object_name};
use podwire_controller::keys;
use podwire_controller::kubectl;
use podwire_controller::run::{Reporter, run};
use podwire_controller::tools::{self, Question, ToolError};
use podwire_daemon::exit::Exit;
use podwire_daemon::process;
use tracing::info;

fn main() -> ExitCode {
    if let Some(given) = kubectl::arguments(std::env::args_os()) {
        let arguments = kubectl::Arguments::parse_from(given);
        process::log_to_stderr("warn");
        return match process::runtime() {
            Ok(runtime) => runtime.block_on(kubectl::run(arguments)),
            Err(error) => failed(&format!("start the asynchronous runtime: {error}")),
        };
    }
    let given = Arguments::command().get_matches();
    let arguments = Arguments::from_arg_matches(&given).unwrap_or_else(|error| error.exit());
    if arguments.dry_run && arguments.command.is_some() {
        // A command would act.
        let message = "--dry-run can't be used before a command";
        Arguments::command()
            .error(ErrorKind::ArgumentConflict, message)
            .exit();
    }
    let config = &arguments.config;
    // Whoever runs a command reads its answer; in a pod its variables are the daemon's.
    let asked_for = given.value_source("log") == Some(ValueSource::CommandLine);
    let log = match arguments.leads() || asked_for {
        true => &config.log,
        false => "warn",
    };
    process::log_to_stderr(log);
    if arguments.leads() {
        info!(servers = addresses(&given), "starting");
        let privileges = match config.privileges() {
            Ok(privileges) => privileges,
            Err(error) => return failed(&error),
        };
        match privileges.keep(config.seccomp) {
            Ok(held) => info!(%held, "dropped all other privileges"),
            Err(error) => return failed(&format!("lock-down: {error}")),
        }
    }
    // One thread: the work for a pod passes through several tasks, and each change of threads would
    // have to wait for a processor.
    match process::runtime() {
        Ok(runtime) => runtime.block_on(answer(arguments)),
        Err(error) => failed(&format!("start the asynchronous runtime: {error}")),
    }
}

async fn answer(arguments: Arguments) -> ExitCode {
    let config = arguments.config;
    let answer = match arguments.command {
        None if arguments.dry_run => tools::dry_run(&config, arguments.output).await,
        None => return lead(config).await,
        Some(Command::Status { nb_cfg, format }) => {
            tools::status(&config, format.output, nb_cfg.map(Duration::from_secs)).await
        }
        Some(Command::Explain {
            object:
                Object::Pod {
                    pod,
                    to,
                    port,
                    format,
                },
        }) => {
            let question = Question { pod, to, port };
            tools::explain(&config, format.output, &question).await
        }
        Some(Command::Explain {
            object: Object::Service { service, format },
        }) => tools::explain_service(&config, format.output, &service).await,
        Some(Command::Policy {
            policy: Some(policy),
            format,
            ..
        }) => tools::policy(&config, &policy, format.output).await,
        Some(Command::Policy { files, format, .. }) => {
            let compared = tools::policy_dry_run(&config, &files, format.output).await;
            compared.map(|(text, cuts)| (text, !cuts))
        }
        Some(Command::Network { verb, nb: None }) => network(&config, verb).await,
        Some(Command::Network { verb, nb: Some(nb) }) => {
            let config = Config {
                nb_db: nb,
                ..config
            };
            network_alone(&config, verb).await
        }
        // `cluster` first is no command of these settings.
        Some(Command::Cluster { .. }) => {
            let usage = "write cluster before any flag: podwire-controller cluster status";
            eprintln!("podwire-controller: {usage}");
            return Exit::Usage.into();
        }
        Some(Command::Keys(wanted)) => match keys::make(&wanted) {
            Ok(made) => {
                let format = wanted.format.output;
                let text = format.encode(&made, || made.iter().map(ToString::to_string).collect());
                text.map(|text| (text, true)).map_err(ToolError::Format)
            }
            Err(error) => return failed(&error),
        },
    };
    match answer {
        Ok((text, is_well)) => {
            print!("{text}");
            Exit::by_health(is_well).into()
        }
        Err(error) => {
            eprintln!("podwire-controller: {error}");
            error.exit().into()
        }
    }
}

async fn network(config: &Config, verb: NetworkVerb) -> Result<(String, bool), ToolError> {
    use tools::network::{create, delete, import, networks, update};
    let named = |text: &str| {
        let named = object_name(text);
        named.map_err(|problem| ToolError::Mistake(format!("{text}: {problem}")))
    };
    match verb {
        NetworkVerb::List(format) => networks(config, None, format.output).await,
        NetworkVerb::Get { network, format } => {
            networks(config, Some(&network), format.output).await
        }
        NetworkVerb::Create {
            definition,
            topology,
            network,
            shape,
            format,
        } => {
            let definition = named(&definition)?;
            let made = create(config, &definition, network.as_deref(), topology, &shape);
            made.await?.encoded(format.output)
        }
        NetworkVerb::Update {
            definition,
            shape,
            format,
        } => {
            let done = update(config, &named(&definition)?, &shape).await?;
            done.encoded(format.output)
        }
        NetworkVerb::Delete { definition, format } => {
            let done = delete(config, &named(&definition)?).await?;
            done.encoded(format.output)
        }
        NetworkVerb::Import { files, namespace } => {
            import(&files, &namespace).map(|text| (text, true))
        }
    }
}

/// The same without a cluster.
async fn network_alone(config: &Config, verb: NetworkVerb) -> Result<(String, bool), ToolError> {
    use tools::network::nb::{create, delete, networks, update};
    let of_cluster = |what: &str| Err(ToolError::Mistake(format!("{what}: leave out --nb")));
    match verb {
        NetworkVerb::List(format) => networks(config, None, format.output).await,
        NetworkVerb::Get { network, format } => {
            networks(config, Some(&network), format.output).await
        }
        NetworkVerb::Create {
            network: Some(_), ..
        } => of_cluster("--network names the network of a definition"),
        NetworkVerb::Create {
            definition,
            topology,
            shape,
            format,
            ..
        } => {
            let done = create(config, &definition, topology, &shape).await?;
            done.encoded(format.output)
        }
        NetworkVerb::Update {
            definition,
            shape,
            format,
        } => {
            let done = update(config, &definition, &shape).await?;
            done.encoded(format.output)
        }
        NetworkVerb::Delete { definition, format } => {
            delete(config, &definition).await?.encoded(format.output)
        }
        NetworkVerb::Import { .. } => of_cluster("import prints definitions"),
    }
}

async fn lead(config: Config) -> ExitCode {
    let shutdown = match process::asked_to_end() {
        Ok(shutdown) => shutdown,
        Err(error) => return failed(&format!("signals can't be received: {error}")),
    };
    match run(config, &Reporter::default(), shutdown).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &impl std::fmt::Display) -> ExitCode {
    eprintln!("podwire-controller: {error}");
    ExitCode::FAILURE
}
