//! A kubeconfig: the server, the CA of its certificate, and the client's credentials.
//!
//! The file is read here and not by [`Kubeconfig::read_from`], which also accepts UTF-16 and panics
//! if such a file has an odd number of bytes (kube 5.0, `read_path`): a file that is being written
//! would end the watch.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use serde_json::Value;

use crate::{LARGEST_FILE, Token, brief, read_file, read_text};

/// Why a kubeconfig can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file can't be read.
    #[error("{0}")]
    Read(io::Error),
    /// A file named in it can't be read.
    #[error("it names {}: {source}", path.display())]
    Named {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// It is no kubeconfig.
    #[error("not a kubeconfig: {0}")]
    Malformed(String),
    /// It refers to something that does not exist.
    #[error("{}", brief(.0))]
    Content(Box<KubeconfigError>),
    /// Its user gets credentials only from a program.
    #[error(
        "its user needs a program ({what}), but podwire starts none: give the user a token, a \
         token file or a client certificate"
    )]
    NeedsProgram {
        /// The field that names the program.
        what: &'static str,
    },
}

/// Reads a daemon's file; relative paths in it are relative to its directory.
///
/// # Errors
/// [`Problem`].
pub(super) async fn read(path: &Path) -> Result<(kube::Config, Token), Problem> {
    let file = read_one(path)?;
    usable(file, &KubeConfigOptions::default(), false).await
}

/// Merges a person's files, as kubectl does (client-go, clientcmd/loader.go: of a name that is in
/// several, the first file's meaning counts; files that do not exist are left out, unless none
/// does). The user's program may be started.
///
/// # Errors
/// [`Problem`].
pub(super) async fn read_personal(
    files: &[PathBuf],
    context: Option<&str>,
) -> Result<(kube::Config, Token), Problem> {
    let there = files.iter().any(|path| path.exists());
    let used = files.iter().filter(|path| !there || path.exists());
    let merged = used.map(|path| read_one(path));
    let merged = merged.reduce(|all, next| all?.merge(next?).map_err(content));
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    usable(
        merged.unwrap_or_else(|| Ok(Kubeconfig::default()))?,
        &options,
        true,
    )
    .await
}

fn read_one(path: &Path) -> Result<Kubeconfig, Problem> {
    let text = read_text(path, LARGEST_FILE).map_err(Problem::Read)?;
    let mut file = parse(&text)?;
    if let Some(directory) = path.parent() {
        for name in file_names(&mut file).flatten() {
            let named = directory.join(&*name);
            // kube reads it again, whatever its size and type.
            read_file(&named, LARGEST_FILE).map_err(|source| Problem::Named {
                path: named.clone(),
                source,
            })?;
            *name = named.to_string_lossy().into_owned();
        }
    }
    Ok(file)
}

/// Whether a kubeconfig with this text could be used, without a check of the files that it names.
///
/// # Errors
/// [`Problem`].
pub async fn check(text: &str) -> Result<(), Problem> {
    let mut file = parse(text)?;
    file_names(&mut file).for_each(|name| *name = None);
    usable(file, &KubeConfigOptions::default(), false)
        .await
        .map(drop)
}

fn parse(text: &str) -> Result<Kubeconfig, Problem> {
    // By way of a tree of values: the YAML parser's code for each of kube's types would add 0.3 MB.
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(malformed)?;
    documents
        .into_iter()
        .try_fold(Kubeconfig::default(), |kubeconfig, document| {
            let next = serde_json::from_value(document).map_err(malformed)?;
            kubeconfig.merge(next).map_err(content)
        })
}

async fn usable(
    file: Kubeconfig,
    options: &KubeConfigOptions,
    starts_programs: bool,
) -> Result<(kube::Config, Token), Problem> {
    let mut config = kube::Config::from_custom_kubeconfig(file, options)
        .await
        .map_err(content)?;
    let what = match &config.auth_info {
        _ if starts_programs => None,
        user if user.exec.is_some() => Some("exec"),
        user if user.auth_provider.is_some() => Some("auth-provider"),
        _ => None,
    };
    if let Some(what) = what {
        return Err(Problem::NeedsProgram { what });
    }
    let token = take_token(&mut config);
    Ok((config, token))
}

/// The token's file. It is read here and not by kube, which caches its content for a minute.
pub(super) fn take_token(config: &mut kube::Config) -> Token {
    match config.auth_info.token_file.take() {
        // A token beside its file is an older copy (client-go, clientcmd/overrides.go: the file has
        // precedence).
        Some(file) => {
            config.auth_info.token = None;
            Token::File(PathBuf::from(file))
        }
        None => Token::None,
    }
}

/// All file names that a kubeconfig may contain.
fn file_names(file: &mut Kubeconfig) -> impl Iterator<Item = &mut Option<String>> {
    let clusters = file
        .clusters
        .iter_mut()
        .filter_map(|named| named.cluster.as_mut());
    let users = file
        .auth_infos
        .iter_mut()
        .filter_map(|named| named.auth_info.as_mut());
    let of_users = users.flat_map(|user| {
        [
            &mut user.client_certificate,
            &mut user.client_key,
            &mut user.token_file,
        ]
    });
    clusters
        .map(|cluster| &mut cluster.certificate_authority)
        .chain(of_users)
}

fn malformed(error: impl fmt::Display) -> Problem {
    Problem::Malformed(brief(&error))
}

fn content(error: KubeconfigError) -> Problem {
    Problem::Content(Box::new(error))
}
