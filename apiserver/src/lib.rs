//! The client of the Kubernetes API server, from a kubeconfig, flags or a service account's files,
//! and the watch of its objects.
//!
//! A token in a file is read for every request: kubelet and others rotate it in place, and requests
//! are made a few times an hour. What the server sends is limited (`bounds`).

#![forbid(unsafe_code)]

pub mod bounds;
pub mod event;
mod follow;
pub mod kubeconfig;
pub mod object;
mod status;
mod unread;
pub mod watch;

pub use follow::Follow;
pub use status::{create_at, delete_at, is_too_late, patch_at, patch_status, patch_status_at};
pub use unread::Unread;

use std::error::Error;
use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::Request;
use hyper::header::{AUTHORIZATION, HeaderValue};
use kube::Client;
use kube::client::{Body, ClientBuilder};
use tower::filter::FilterLayer;
use tower::util::MapErrLayer;
use tower::{BoxError, service_fn};

use bounds::Bounds;

/// The largest kubeconfig, CA file or token file, in bytes.
const LARGEST_FILE: usize = 1 << 20;
/// Time limit for a connection, with its TLS handshake. Shorter than those of requests, whose
/// errors can't name the server: it ends a wait for one that drops packets, or is stopped.
const CONNECT: Duration = Duration::from_secs(4);

/// The API server, and how to authenticate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// From a kubeconfig, for a daemon: no program is started for it.
    Kubeconfig(PathBuf),
    /// From a person's kubeconfigs, as kubectl uses them.
    Personal {
        /// The files, the most important first.
        files: Vec<PathBuf>,
        /// None for the current one.
        context: Option<String>,
    },
    /// From flags, or a service account's files.
    Server {
        /// Its URL.
        url: String,
        /// The CA of its certificate; None for the system's CAs.
        ca: Option<PathBuf>,
        /// The bearer token.
        token: Token,
    },
    /// With a pod's service account.
    InCluster,
}

/// A bearer token.
#[derive(Clone, PartialEq, Eq)]
pub enum Token {
    /// None: the server requires no authentication.
    None,
    /// This one.
    Text(String),
    /// The content of the file at the time of a request.
    File(PathBuf),
}

impl Token {
    /// The given token, or else the file's.
    pub fn of(text: Option<&str>, file: Option<&Path>) -> Self {
        match (text, file) {
            (Some(text), _) => Self::Text(text.to_owned()),
            (None, Some(path)) => Self::File(path.to_owned()),
            (None, None) => Self::None,
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Text(_) => f.write_str("Text(…)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig(path) => write!(f, "the API server of {}", Path::display(path)),
            Self::Personal { files, context } => {
                write!(f, "the API server of {}", Path::display(&together(files)))?;
                match context {
                    Some(context) => write!(f, ", context {context}"),
                    None => Ok(()),
                }
            }
            Self::Server { url, .. } => f.write_str(url),
            Self::InCluster => f.write_str("the cluster's API server"),
        }
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A kubeconfig can't be used.
    #[error("kubeconfig {}: {source}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: kubeconfig::Problem,
    },
    /// A URL is invalid.
    #[error("API server {url}: {problem}")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file with CA certificates or a token can't be used.
    #[error("read {what} {}: {problem}", path.display())]
    File {
        /// Its content.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// There is no service account.
    #[error("service account: {0}")]
    ServiceAccount(#[source] Box<dyn Error + Send + Sync>),
    /// Certificates or keys can't be used.
    #[error("create a client of the API server: {0}")]
    Client(#[source] Box<kube::Error>),
}

/// A request got no answer. The connection's own error says neither from whom nor where that is.
#[derive(Debug, thiserror::Error)]
#[error("API server {url}: {problem}")]
struct Unanswered {
    url: String,
    problem: String,
}

impl Unanswered {
    fn of(url: &str, error: &(dyn Error + 'static)) -> BoxError {
        Box::new(Self {
            url: url.trim_end_matches('/').to_owned(),
            problem: with_causes(error),
        })
    }
}

/// A client. Files are read now, again after a request that got no answer, since certificates may
/// have been replaced, and a token's file for every request.
///
/// # Errors
/// [`AccessError`].
pub async fn client(access: &Access) -> Result<Client, AccessError> {
    let first = connected(access).await?;
    let namespace = first.default_namespace().to_owned();
    let (access, current) = (access.clone(), Arc::new(Mutex::new(Some(first))));
    let renewing = service_fn(move |request: Request<Body>| {
        let (access, current) = (access.clone(), Arc::clone(&current));
        async move {
            let known = lock(&current).clone();
            let client = match known {
                Some(client) => client,
                None => {
                    let client = connected(&access).await?;
                    lock(&current).insert(client).clone()
                }
            };
            let answer = client.send(request).await;
            if answer.is_err() {
                *lock(&current) = None;
            }
            Ok::<_, BoxError>(answer?)
        }
    });
    Ok(Client::new(renewing, namespace))
}

fn lock(client: &Mutex<Option<Client>>) -> MutexGuard<'_, Option<Client>> {
    // Whoever holds it sets it, and nothing else.
    client.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client with what the files have now.
pub(crate) async fn connected(access: &Access) -> Result<Client, AccessError> {
    let (mut config, token) = config(access).await?;
    // The watch retries by itself, and reports what is wrong.
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    let url = config.cluster_url.to_string();
    let builder =
        ClientBuilder::try_from(config).map_err(|error| AccessError::Client(error.into()))?;
    let authorize = FilterLayer::new(move |request| authorized(request, &token));
    let name = MapErrLayer::new(move |error: BoxError| Unanswered::of(&url, &*error));
    let builder = builder.with_layer(&Bounds).with_layer(&authorize);
    Ok(builder.with_layer(&name).build())
}

/// The API server's name or address.
///
/// # Errors
/// [`AccessError`].
pub async fn host(access: &Access) -> Result<String, AccessError> {
    let (config, _) = config(access).await?;
    let host = config.cluster_url.host().unwrap_or_default();
    Ok(host.trim_matches(['[', ']']).to_owned())
}

async fn config(access: &Access) -> Result<(kube::Config, Token), AccessError> {
    Ok(match access {
        Access::Kubeconfig(path) => {
            let unusable = |source| AccessError::Kubeconfig {
                path: path.clone(),
                source,
            };
            kubeconfig::read(path).await.map_err(unusable)?
        }
        Access::Personal { files, context } => {
            let read = kubeconfig::read_personal(files, context.as_deref()).await;
            read.map_err(|source| AccessError::Kubeconfig {
                path: together(files),
                source,
            })?
        }
        Access::InCluster => {
            let mut config = kube::Config::incluster()
                .map_err(|error| AccessError::ServiceAccount(error.into()))?;
            let token = kubeconfig::take_token(&mut config);
            (config, token)
        }
        Access::Server { url, ca, token } => (from_flags(url, ca.as_deref())?, token.clone()),
    })
}

/// Several files, as the variable KUBECONFIG names them.
fn together(files: &[PathBuf]) -> PathBuf {
    std::env::join_paths(files).unwrap_or_default().into()
}

/// Another program's text in one line of limited length: it may point to a place over several
/// lines, or quote a whole value, and it is used in log lines, CNI errors and a pod's Event.
pub fn brief(error: &impl fmt::Display) -> String {
    const LONGEST: usize = 300;
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    let plain = |character: char| match character.is_control() {
        true => ' ',
        false => character,
    };
    let mut brief: String = line.chars().take(LONGEST).map(plain).collect();
    if brief.len() < line.len() {
        brief.push('…');
    }
    brief
}

/// The text of an error with all of its causes: the outermost is often just "client error". Each is
/// cut as by [`brief`].
pub fn with_causes(error: &dyn Error) -> String {
    const MOST_CAUSES: usize = 8;
    let causes = std::iter::successors(Some(error), |error: &&dyn Error| (*error).source());
    let (mut text, mut outer) = (String::new(), String::new());
    for error in causes.take(MOST_CAUSES) {
        let cause = error.to_string();
        if text.is_empty() {
            text = brief(&cause);
        } else if !outer.ends_with(&cause) {
            text = format!("{text}: {}", brief(&cause));
        }
        outer = cause;
    }
    text
}

/// The content of a regular file of limited size. Any other file could be endless, or make the
/// agent wait for its writer.
///
/// # Errors
/// The kernel's error, or the file is not regular, or larger than `most` bytes.
pub fn read_file(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut content = Vec::new();
    let limit = most as u64 + 1;
    std::fs::File::open(path)?
        .take(limit)
        .read_to_end(&mut content)?;
    match content.len() > most {
        true => Err(io::Error::other(format!("larger than {most} bytes"))),
        false => Ok(content),
    }
}

/// Like [`read_file`], as text.
///
/// # Errors
/// As there, or the file is not UTF-8.
pub fn read_text(path: &Path, most: usize) -> io::Result<String> {
    String::from_utf8(read_file(path, most)?).map_err(|_| io::Error::other("not UTF-8"))
}

fn from_flags(url: &str, ca: Option<&Path>) -> Result<kube::Config, AccessError> {
    let uri = url.parse().map_err(|error| AccessError::Url {
        url: url.to_owned(),
        problem: format!("{error}"),
    })?;
    let mut config = kube::Config::new(uri);
    if let Some(path) = ca {
        // Read here for a clear error; kube reads it again when it changes.
        config.root_cert = Some(certificates(path)?);
        config.root_cert_file = Some(path.to_owned());
    }
    Ok(config)
}

/// The certificates of a PEM file, in DER.
fn certificates(path: &Path) -> Result<Vec<Vec<u8>>, AccessError> {
    let problem = |problem: String| AccessError::File {
        what: "CA certificates",
        path: path.to_owned(),
        problem,
    };
    let text = read_file(path, LARGEST_FILE).map_err(|error| problem(error.to_string()))?;
    let blocks = pem::parse_many(text).map_err(|error| problem(error.to_string()))?;
    let certificates: Vec<Vec<u8>> = blocks
        .into_iter()
        .filter(|block| block.tag() == "CERTIFICATE")
        .map(pem::Pem::into_contents)
        .collect();
    match certificates.is_empty() {
        true => Err(problem("it has no PEM certificate".to_owned())),
        false => Ok(certificates),
    }
}

fn authorized(mut request: Request<Body>, token: &Token) -> Result<Request<Body>, BoxError> {
    let token = match token {
        Token::None => return Ok(request),
        Token::Text(text) => text.clone(),
        Token::File(path) => read_token(path)?,
    };
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))?;
    value.set_sensitive(true);
    request.headers_mut().insert(AUTHORIZATION, value);
    Ok(request)
}

fn read_token(path: &Path) -> Result<String, AccessError> {
    let problem = |problem: String| AccessError::File {
        what: "token",
        path: path.to_owned(),
        problem,
    };
    let text = read_text(path, LARGEST_FILE).map_err(|error| problem(error.to_string()))?;
    match text.trim() {
        "" => Err(problem("it is empty".to_owned())),
        token => Ok(token.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use podwire_tests::apiserver::ApiServer;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn after_a_failure_the_ca_s_file_is_read_again() {
        let (server, other) = (ApiServer::start_tls(), ApiServer::start_tls());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), other.ca()).unwrap();
        let access = Access::Server {
            url: server.url(),
            ca: Some(file.path().into()),
            token: Token::None,
        };
        let client = client(&access).await.unwrap();
        let version = async || client.apiserver_version().await.map(drop);
        let error = with_causes(&version().await.unwrap_err());
        assert!(error.contains("certificate"), "{error}");
        std::fs::write(file.path(), server.ca()).unwrap();
        // The stand-in has no version to tell, but it answers.
        let answer = version().await;
        assert!(
            matches!(answer, Ok(()) | Err(kube::Error::Api(_))),
            "{answer:?}"
        );
        std::fs::write(file.path(), "").unwrap();
        drop(server);
        version().await.unwrap_err();
        let error = with_causes(&version().await.unwrap_err());
        assert!(error.contains(&*file.path().to_string_lossy()), "{error}");
    }

    /// Its own time limit would hide it: a stopped server, or one behind a wall.
    #[tokio::test]
    async fn an_api_server_that_takes_no_connection_is_named() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", silent.local_addr().unwrap());
        let access = Access::Server {
            url: url.clone(),
            ca: None,
            token: Token::None,
        };
        let client = client(&access).await.unwrap();
        let answer = client.apiserver_version();
        let answer = tokio::time::timeout(CONNECT * 4, answer).await.unwrap();
        let error = with_causes(&answer.unwrap_err());
        assert!(error.contains(&format!("API server {url}: ")), "{error}");
    }
}
