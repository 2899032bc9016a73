//! Bounds of the server's connections: how many there are, how long they last, how many bytes they send. A client that does nothing gives
//! way to others.

use std::collections::BTreeMap;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;
use tokio::time::Sleep;

/// The most connections at a time.
const MOST_CONNECTIONS: usize = 64;
/// The most bytes of a request, with those of its TLS.
const LONGEST_REQUEST: u64 = 64 << 10;
/// Time for the head of a request, or a TLS handshake.
const HEAD: Duration = Duration::from_secs(20);
/// Longest time in which a client takes nothing of its answer.
const UNREAD: Duration = Duration::from_secs(10);
/// Time for which metrics are waited for.
const METRICS: Duration = Duration::from_secs(10);
/// Time for which a report of a process is waited for.
const REPORT: Duration = Duration::from_secs(60);
/// Time of a connection, from its beginning to the end of its answer.
const WHOLE: Duration = Duration::from_secs(90);

/// The bounds, so that tests may have others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections at a time.
    pub(super) connections: usize,
    /// Bytes of a request.
    pub(super) request: u64,
    /// The time of a request's head, and of a TLS handshake.
    pub(super) head: Duration,
    /// The time in which a client takes nothing of its answer.
    pub(super) unread: Duration,
    /// The time in which metrics are made.
    pub(super) metrics: Duration,
    /// The time in which a report is made.
    pub(super) report: Duration,
    /// The time of the whole connection.
    pub(super) whole: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: MOST_CONNECTIONS,
            request: LONGEST_REQUEST,
            head: HEAD,
            unread: UNREAD,
            metrics: METRICS,
            report: REPORT,
            whole: WHOLE,
        }
    }
}

/// The places of all connections.
#[derive(Debug, Default)]
pub(super) struct Places {
    all: Mutex<BTreeMap<u64, Taken>>,
    /// The number of the newest place, or of what a client did last: a clock of steps.
    steps: AtomicU64,
}

#[derive(Debug)]
struct Taken {
    moves: Arc<Moves>,
    /// Handle that ends the connection.
    end: Option<AbortHandle>,
}

#[derive(Debug)]
struct Moves {
    /// Step at which its client last sent or took something.
    last: AtomicU64,
    /// True while its answer is being made: it does not wait for its client.
    works: AtomicBool,
}

impl Places {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Taken>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self) -> u64 {
        self.steps.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes a place for a new connection. Where `most` are taken, the one whose client has done nothing for the longest time gives way; those whose
    /// answers are being made do so last.
    pub(super) fn take(self: &Arc<Self>, most: usize) -> Place {
        let number = self.step();
        let moves = Arc::new(Moves {
            last: AtomicU64::new(number),
            works: AtomicBool::new(false),
        });
        let mut all = self.all();
        while all.len() >= most.max(1) {
            let idle = |taken: &Taken| {
                let moves = &taken.moves;
                let works = moves.works.load(Ordering::Relaxed);
                (works, moves.last.load(Ordering::Relaxed))
            };
            let Some(longest) = all.iter().min_by_key(|(_, t)| idle(t)).map(|(n, _)| *n) else {
                break;
            };
            if let Some(end) = all.remove(&longest).and_then(|taken| taken.end) {
                end.abort();
            }
        }
        let taken = Taken {
            moves: Arc::clone(&moves),
            end: None,
        };
        all.insert(number, taken);
        Place {
            places: Arc::clone(self),
            number,
            moves,
        }
    }

    /// Gives a place the handle that ends its connection, if it is still there.
    pub(super) fn may_end(&self, number: u64, end: AbortHandle) {
        if let Some(taken) = self.all().get_mut(&number) {
            taken.end = Some(end);
        }
    }
}

/// The place of a connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    pub(super) number: u64,
    moves: Arc<Moves>,
}

impl Place {
    /// Notes whether an answer is being made.
    pub(super) fn works(&self, works: bool) {
        self.moves.works.store(works, Ordering::Relaxed);
        self.moved();
    }

    fn moved(&self) {
        self.moves.last.store(self.places.step(), Ordering::Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.all().remove(&self.number);
    }
}

/// A connection whose request is bounded, and that ends when its client takes nothing of its answer.
#[derive(Debug)]
pub(super) struct Bounded<S> {
    stream: S,
    place: Arc<Place>,
    limits: Limits,
    /// Number of bytes that came.
    came: u64,
    /// Timer that ends the connection, while the client takes nothing.
    unread: Option<Pin<Box<Sleep>>>,
}

impl<S> Bounded<S> {
    pub(super) fn new(stream: S, place: Arc<Place>, limits: Limits) -> Self {
        Self {
            stream,
            place,
            limits,
            came: 0,
            unread: None,
        }
    }

    /// Hands on how far the client takes its answer; an error where it has taken nothing for too long.
    fn taken<T>(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.unread = None;
            self.place.moved();
            return done;
        }
        let limit = self.limits.unread;
        let unread = self
            .unread
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        match unread.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = to.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, to);
        let came = to.filled().len().saturating_sub(before) as u64;
        if came > 0 {
            this.place.moved();
            this.came = this.came.saturating_add(came);
        }
        if this.came > this.limits.request {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.taken(cx, done)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_write_vectored(cx, bytes);
        this.taken(cx, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    // A flush or an end that takes nothing from the client must not begin its time anew.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The connection that did nothing for the longest time gives way; those whose answers are made, last.
    #[test]
    fn who_gives_way() {
        let places = Arc::new(Places::default());
        let [a, b, c] = [(); 3].map(|()| places.take(3));
        let there = || places.all().keys().copied().collect::<Vec<_>>();
        assert_eq!(there(), [a.number, b.number, c.number]);
        a.moved();
        b.works(true);
        let d = places.take(3);
        assert_eq!(there(), [a.number, b.number, d.number], "c had done least");
        drop(c);
        assert_eq!(there(), [a.number, b.number, d.number], "c's is taken");
        d.works(true);
        a.works(true);
        let e = places.take(3);
        assert_eq!(there(), [a.number, d.number, e.number], "all were at work");
        drop((a, b, d, e));
        assert!(there().is_empty());
    }
}
