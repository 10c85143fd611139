//! Writes to objects. Those that others own are written by their status alone: there an API server
//! takes annotations too, and changes neither a spec nor an image nor a taint. So whoever steals a
//! token with the right to patch a status can't, either.

use hyper::header::{ACCEPT, HeaderValue};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PartialObjectMeta, Patch, PatchParams, PostParams, Preconditions};
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
    metadata_by(client, request).await
}

/// Makes an object of a custom resource, and gives its metadata: `path` is that of all objects of
/// its kind in its namespace, `content` is JSON.
///
/// # Errors
/// The API server's.
pub async fn create_at(client: &Client, path: String, content: String) -> kube::Result<ObjectMeta> {
    let request = Request::new(path).create(&PostParams::default(), content.into_bytes());
    metadata_by(client, request).await
}

/// Patches an object of a custom resource, as [`create_at`]; not its status.
///
/// # Errors
/// The API server's.
pub async fn patch_at(
    client: &Client,
    path: String,
    name: &str,
    patch: &Patch<Value>,
) -> kube::Result<ObjectMeta> {
    let request = Request::new(path).patch(name, &PatchParams::default(), patch);
    metadata_by(client, request).await
}

/// Removes the object of a custom resource that has this uid.
///
/// # Errors
/// The API server's; another object has its name by now.
pub async fn delete_at(client: &Client, path: String, name: &str, uid: &str) -> kube::Result<()> {
    let preconditions = Some(Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: None,
    });
    let parameters = DeleteParams {
        preconditions,
        ..DeleteParams::default()
    };
    let request = Request::new(path).delete(name, &parameters);
    // It answers with the object as it was, or with a status.
    let request = request.map_err(kube::Error::BuildRequest)?;
    client.request_text(request).await.map(drop)
}

type Prepared = Result<hyper::Request<Vec<u8>>, kube::core::request::Error>;

async fn metadata_by(client: &Client, request: Prepared) -> kube::Result<ObjectMeta> {
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    let metadata = HeaderValue::from_static(METADATA);
    request.headers_mut().insert(ACCEPT, metadata);
    let object: PartialObjectMeta = client.request(request).await?;
    Ok(object.metadata)
}

/// Whether a write came too late: the object is gone, another has its name by now, or its namespace
/// is being deleted (403 with the cause NamespaceTerminating). A uid that
/// differs is 422 with a cause at `metadata.uid` if the patched object is validated (as
/// kube-apiserver does), and 409 if the uid is compared before that.
pub fn is_too_late(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    match status.code {
        404 | 409 => true,
        403 => causes
            .into_iter()
            .any(|cause| cause.reason == "NamespaceTerminating"),
        422 => causes
            .into_iter()
            .any(|cause| cause.field == "metadata.uid"),
        _ => false,
    }
}
