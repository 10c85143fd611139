//! Writes to objects that others own, by their status alone: there an API server takes annotations
//! too, and changes neither a spec nor an image nor a taint. So whoever steals a token with the
//! right to patch a status can't, either.

use hyper::header::{ACCEPT, HeaderValue};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{PartialObjectMeta, Patch, PatchParams};
use kube::core::Request;
use kube::{Client, Resource};
use serde_json::Value;

/// Of the object, the server is to answer with the metadata alone.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Patches the status, or the annotations, of an object, and gives its metadata after that.
///
/// # Errors
/// The API server's.
pub async fn patch_status<K: Resource<DynamicType = ()>>(
    client: &Client,
    namespace: Option<&str>,
    name: &str,
    patch: &Patch<Value>,
) -> kube::Result<ObjectMeta> {
    patch_status_at(client, K::url_path(&(), namespace), name, patch).await
}

/// The same, for an object of a custom resource: `path` is that of all its objects.
///
/// # Errors
/// The API server's.
pub async fn patch_status_at(
    client: &Client,
    path: String,
    name: &str,
    patch: &Patch<Value>,
) -> kube::Result<ObjectMeta> {
    let objects = Request::new(path);
    let request = objects.patch_subresource("status", name, &PatchParams::default(), patch);
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    let metadata = HeaderValue::from_static(METADATA);
    request.headers_mut().insert(ACCEPT, metadata);
    let object: PartialObjectMeta = client.request(request).await?;
    Ok(object.metadata)
}

/// Whether a write came too late: the object is gone, or another has its name by now. A uid that
/// differs is 422 with a cause at `metadata.uid` if the patched object is validated (as
/// kube-apiserver does), and 409 if the uid is compared before that.
pub fn is_too_late(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    match status.code {
        404 | 409 => true,
        422 => causes
            .into_iter()
            .any(|cause| cause.field == "metadata.uid"),
        _ => false,
    }
}
