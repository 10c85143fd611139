//! healthCheckNodePort: load balancers query it to learn whether a service has endpoints on this
//! node (Kubernetes, externalTrafficPolicy: Local).

use std::collections::BTreeMap;
use std::future::ready;
use std::net::Ipv6Addr;
use std::sync::Arc;

use hyper::StatusCode;
use podwire_cluster::ObjectName;
use podwire_daemon::http::{self, ConnectionLimit, Response};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::warn;

/// The served ports.
#[derive(Debug, Default)]
pub(super) struct Health {
    served: BTreeMap<u16, Served>,
    /// All ports share it, however many services there are.
    limit: Arc<ConnectionLimit>,
}

#[derive(Debug)]
struct Served {
    state: watch::Sender<(ObjectName, usize)>,
    task: AbortHandle,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Health {
    /// Serves these ports, each with the service and its number of endpoints here.
    pub(super) fn serve(&mut self, wanted: &BTreeMap<u16, (ObjectName, usize)>) {
        self.served.retain(|port, _| wanted.contains_key(port));
        for (port, state) in wanted {
            if let Some(served) = self.served.get(port) {
                served.state.send_if_modified(|was| {
                    let differs = was != state;
                    was.clone_from(state);
                    differs
                });
                continue;
            }
            match http::listen((Ipv6Addr::UNSPECIFIED, *port).into()) {
                Ok(listener) => {
                    let (sender, receiver) = watch::channel(state.clone());
                    let pages = move |_| ready(page(&receiver.borrow()));
                    let limit = Arc::clone(&self.limit);
                    let task = tokio::spawn(http::serve(listener, limit, pages)).abort_handle();
                    let state = sender;
                    self.served.insert(*port, Served { state, task });
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
fn page(((namespace, name), count): &(ObjectName, usize)) -> Response {
    let status = match count {
        0 => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    };
    let service = json!({"namespace": namespace.as_str(), "name": name.as_str()});
    let body = json!({"service": service, "localEndpoints": count, "serviceProxyHealthy": true});
    http::typed(status, "application/json", body.to_string())
}
