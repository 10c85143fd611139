//! A route as ovn-kubernetes' annotations spell it.

use super::RouteIntent;
use super::annotation::{AnnotationError, Problem};
use super::node::Node;

/// `{dest, nextHop}`, nextHop optional. A default route is refused: it belongs in the member
/// `gateways` beside the routes.
pub(super) fn parse_route(
    node: &Node<'_>,
    gateways: &'static str,
) -> Result<RouteIntent, AnnotationError> {
    let dest = node.required("dest")?;
    let dst = dest.destination()?;
    if dst.addr().is_unspecified() {
        return Err(dest.refuse(Problem::DefaultRoute(gateways)));
    }
    let gateway = node
        .member("nextHop")?
        .map(|hop| hop.next_hop(dst))
        .transpose()?;
    Ok(RouteIntent {
        dst,
        gateway,
        mtu: None,
    })
}
