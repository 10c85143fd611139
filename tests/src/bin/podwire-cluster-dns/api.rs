//! Reads Services and Endpoints.

use http::Request;
use kube::Client;
use serde_json::Value;

/// The API server.
pub(crate) struct Api {
    pub(crate) client: Client,
}

impl Api {
    /// A Service.
    pub(crate) async fn service(&self, namespace: &str, name: &str) -> kube::Result<Value> {
        self.get(&format!("namespaces/{namespace}/services/{name}"))
            .await
    }

    /// A Service's Endpoints.
    pub(crate) async fn endpoints(&self, namespace: &str, name: &str) -> kube::Result<Value> {
        self.get(&format!("namespaces/{namespace}/endpoints/{name}"))
            .await
    }

    /// The items of all Services.
    pub(crate) async fn services(&self) -> kube::Result<Vec<Value>> {
        let mut list = self.get("services").await?;
        Ok(match list["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        })
    }

    /// An object of the core API; null if there is none.
    async fn get(&self, path: &str) -> kube::Result<Value> {
        let request = Request::get(format!("/api/v1/{path}"))
            .body(Vec::new())
            .map_err(kube::Error::HttpError)?;
        match self.client.request(request).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Value::Null),
            answer => answer,
        }
    }
}
