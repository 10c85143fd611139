//! healthCheckNodePort: load balancers query it to learn whether a service has endpoints on this
//! node (Kubernetes, externalTrafficPolicy: Local).

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::Arc;

use hyper::StatusCode;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::warn;

use crate::cluster::Name;
use crate::http::{self, Page};

/// The served ports.
#[derive(Debug, Default)]
pub(super) struct Health(BTreeMap<u16, Served>);

#[derive(Debug)]
struct Served {
    state: watch::Sender<(Name, usize)>,
    task: AbortHandle,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Health {
    /// Serves these ports, each with the service and its number of endpoints here.
    pub(super) async fn serve(&mut self, wanted: &BTreeMap<u16, (Name, usize)>) {
        self.0.retain(|port, _| wanted.contains_key(port));
        for (port, state) in wanted {
            if let Some(served) = self.0.get(port) {
                served.state.send_if_modified(|was| {
                    let differs = was != state;
                    was.clone_from(state);
                    differs
                });
                continue;
            }
            // For both families, unless the machine has no IPv6.
            let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, *port)).await {
                Ok(listener) => Ok(listener),
                Err(_) => TcpListener::bind(("0.0.0.0", *port)).await,
            };
            match listener {
                Ok(listener) => {
                    let (sender, receiver) = watch::channel(state.clone());
                    let receiver = Arc::new(receiver);
                    let answer = move |_: &str| page(&receiver.borrow());
                    let task = tokio::spawn(http::serve(listener, answer)).abort_handle();
                    let state = sender;
                    self.0.insert(*port, Served { state, task });
                }
                Err(error) => {
                    let ((namespace, name), _) = state;
                    warn!(port, %error, service = %format!("{namespace}/{name}"),
                        "healthCheckNodePort is not served");
                }
            }
        }
    }
}

/// In kube-proxy's form.
fn page(((namespace, name), count): &(Name, usize)) -> Page {
    let status = match count {
        0 => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    };
    let service = json!({"namespace": namespace, "name": name});
    let body = json!({"service": service, "localEndpoints": count, "serviceProxyHealthy": true});
    (status, "application/json", body.to_string())
}
