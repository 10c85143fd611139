//! Limits on what an API server may send: an answer, a line of a watch, the text of a refusal.
//!
//! A broken server, or an impostor, may send without end; the agent's memory must not grow with it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::TryFutureExt as _;
use futures_util::future::BoxFuture;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use hyper::{Request, Response};
use kube::client::Body;
use tower::{BoxError, Layer, Service};

/// Pods per page of a list of metadata, unless that is more than [`LARGEST_ANSWER`].
pub const PAGE: u32 = 20;
/// The largest answer, in bytes, and the longest line of a watch that is not given up.
pub const LARGEST_ANSWER: usize = 32 << 20;
/// How much of a line of a watch is read, in bytes: more than any object of 1.5 MiB (etcd's
/// `--max-request-bytes`), stored as protobuf, has as JSON, where `<` is six bytes. What is behind
/// it is skipped.
pub const LONGEST_LINE: usize = 16 << 20;
/// How much of a refusal is read, in bytes. The rest is ignored: the status and the first words are
/// enough.
const LARGEST_REFUSAL: usize = 32 << 10;

/// A response was too large.
#[derive(Debug, thiserror::Error)]
pub enum TooLarge {
    /// An answer.
    #[error("the server's answer is larger than {LARGEST_ANSWER} bytes")]
    Answer,
    /// A line of a watch.
    #[error("a line of the server's watch is longer than {LARGEST_ANSWER} bytes")]
    Line,
}

/// Limits every response to a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds;

impl<S> Layer<S> for Bounds {
    type Service = Bounded<S>;

    fn layer(&self, service: S) -> Bounded<S> {
        Bounded(service)
    }
}

#[derive(Debug)]
pub(crate) struct Bounded<S>(S);

impl<S, B> Service<Request<Body>> for Bounded<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    B: 'static,
{
    type Response = Response<BoundedBody<B>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_watch = request
            .uri()
            .query()
            .is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"));
        let bounded = move |response: Response<B>| {
            let limit = match response.status() {
                status if !status.is_success() => Limit::Refusal,
                _ if is_watch => Limit::Line,
                _ => Limit::Answer,
            };
            response.map(|body| BoundedBody::new(body, limit))
        };
        Box::pin(self.0.call(request).map_ok(bounded))
    }
}

#[derive(Debug, Clone, Copy)]
enum Limit {
    Answer,
    Line,
    Refusal,
}

impl Limit {
    fn bytes(self) -> usize {
        match self {
            Self::Answer => LARGEST_ANSWER,
            Self::Line => LONGEST_LINE,
            Self::Refusal => LARGEST_REFUSAL,
        }
    }
}

/// A response body that ends, or fails, at its limit.
#[derive(Debug)]
pub(crate) struct BoundedBody<B> {
    body: B,
    limit: Limit,
    /// Bytes that may still arrive: in total, or on the current line of a watch.
    left: usize,
    /// Bytes of the current line of a watch that were skipped.
    skipped: usize,
    is_cut: bool,
}

impl<B> BoundedBody<B> {
    fn new(body: B, limit: Limit) -> Self {
        let left = limit.bytes();
        Self {
            body,
            limit,
            left,
            skipped: 0,
            is_cut: false,
        }
    }

    fn admit(&mut self, mut data: Bytes) -> Result<Bytes, TooLarge> {
        if let Limit::Line = self.limit {
            return self.admit_lines(data);
        }
        match (self.left.checked_sub(data.len()), self.limit) {
            (Some(left), _) => self.left = left,
            (None, Limit::Refusal) => {
                // Not within a character: the text is UTF-8, in which continuation bytes are 0b10….
                let is_inner = |at: &usize| data[*at] & 0b1100_0000 == 0b1000_0000;
                let end = (0..=self.left).rev().find(|at| !is_inner(at));
                data.truncate(end.unwrap_or(0));
                self.is_cut = true;
            }
            (None, _) => return Err(TooLarge::Answer),
        }
        Ok(data)
    }

    /// Without what is behind the limit of each line, except for its end.
    fn admit_lines(&mut self, data: Bytes) -> Result<Bytes, TooLarge> {
        let limit = self.limit.bytes();
        if data.len() <= self.left && self.skipped == 0 {
            let end = data.iter().rposition(|byte| *byte == b'\n');
            self.left = match end {
                Some(end) => limit - (data.len() - end - 1),
                None => self.left - data.len(),
            };
            return Ok(data);
        }
        let mut admitted = Vec::with_capacity(data.len());
        for line in data.split_inclusive(|byte| *byte == b'\n') {
            let (read, skipped) = line.split_at(line.len().min(self.left));
            admitted.extend_from_slice(read);
            self.left -= read.len();
            self.skipped += skipped.len();
            if self.skipped > LARGEST_ANSWER - limit {
                return Err(TooLarge::Line);
            }
            if line.ends_with(b"\n") {
                admitted.extend(skipped.last());
                (self.left, self.skipped) = (limit, 0);
            }
        }
        Ok(admitted.into())
    }
}

impl<B> HttpBody for BoundedBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.is_cut {
            return Poll::Ready(None);
        }
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            None => None,
            Some(Err(error)) => Some(Err(error.into())),
            // A frame without data is a trailer, which is ignored.
            Some(Ok(frame)) => match frame.into_data() {
                Err(trailers) => Some(Ok(trailers)),
                Ok(data) => Some(self.admit(data).map(Frame::data).map_err(BoxError::from)),
            },
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.is_cut || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests;
