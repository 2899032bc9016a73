//! The HTTP server: routes, and the rights that each needs. The answers come from outside ([`Answers`]).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use super::connections::{Bounded, Limits, Place, Places};
use super::{open_metrics, protobuf};

/// Threads that make metrics.
const METRICS_THREADS: usize = 2;
/// Threads that make reports: one whose process never answers leaves the other.
const REPORT_THREADS: usize = 2;
/// Threads that the server needs beside its own; one of them makes what is sent to a collector.
pub const THREADS: usize = METRICS_THREADS + REPORT_THREADS + 1;
/// The longest head of a request, bytes.
const LONGEST_HEAD: usize = 16 << 10;
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// Answers of the server. Called on threads that may block, but for [`Answers::health`].
pub trait Answers: Send + Sync + 'static {
    /// Returns the metrics, as text of OpenMetrics.
    fn metrics(&self) -> String;
    /// Returns the metrics in Prometheus's own format.
    fn families(&self) -> Vec<u8>;
    /// Tells whether counting goes on; if not, why. Never blocks.
    ///
    /// # Errors
    /// The reason.
    fn health(&self) -> Result<String, String>;
    /// Tells whether the first reading is over; if not, what it waits for.
    ///
    /// # Errors
    /// As [`Answers::health`].
    fn readiness(&self) -> Result<String, String>;
    /// The hang report of a process.
    ///
    /// # Errors
    /// Why there is none.
    fn dump(&self, pid: u32, json: bool) -> Result<Vec<u8>, NoDump>;
}

/// Reason why there is no hang report.
#[derive(Debug)]
pub enum NoDump {
    /// No such process, or none that uses a GPU.
    NotThere(String),
    /// The process could not be looked at.
    Failed(String),
}

/// Rights that a client needs.
#[derive(Clone, Debug, Default)]
pub struct Rights {
    /// Token that a request must show.
    pub token: Option<Token>,
    /// True if metrics, too, are given to those alone who show it.
    pub metrics_too: bool,
}

/// A secret.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(...)")
    }
}

/// The least length of a token, characters.
pub(crate) const SHORTEST_TOKEN: usize = 16;

impl Token {
    /// Reads it from the text of its file: the first line.
    ///
    /// # Errors
    /// When it is too short to be a secret, or cannot stand in a header.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let token = text.lines().next().unwrap_or_default().trim();
        if token.len() < SHORTEST_TOKEN || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(format!(
                "its first line must have {SHORTEST_TOKEN} or more characters, letters, digits and signs: \
                 make one with `head -c 24 /dev/urandom | base64`"
            ));
        }
        Ok(Self(token.to_owned()))
    }

    /// Tells whether a request shows the token. The time that this takes does not tell where the two texts differ.
    fn is_shown(&self, header: Option<&HeaderValue>) -> bool {
        let shown = header.and_then(|h| h.to_str().ok()).unwrap_or_default();
        let Some((scheme, shown)) = shown.split_once(' ') else {
            return false;
        };
        let (own, shown) = (self.0.as_bytes(), shown.trim().as_bytes());
        let differ = own.iter().zip(shown).fold(0, |sum, (a, b)| sum | (a ^ b));
        scheme.eq_ignore_ascii_case("bearer") && own.len() == shown.len() && differ == 0
    }
}

/// State that all connections share: the answers, and who may get them.
struct Served<A> {
    answers: A,
    rights: Rights,
    limits: Limits,
    /// Permits for threads that make metrics.
    metrics: Arc<Semaphore>,
    /// Permits for threads that make reports.
    reports: Arc<Semaphore>,
}

impl<A> Served<A> {
    fn new(answers: A, rights: Rights, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            answers,
            rights,
            limits,
            metrics: Arc::new(Semaphore::new(METRICS_THREADS)),
            reports: Arc::new(Semaphore::new(REPORT_THREADS)),
        })
    }
}

/// Serves until the process ends.
///
/// # Errors
/// When the socket cannot be used.
pub async fn serve(
    listener: std::net::TcpListener,
    tls: Option<TlsAcceptor>,
    rights: Rights,
    answers: impl Answers,
) -> std::io::Result<()> {
    within(
        listener,
        tls,
        Served::new(answers, rights, Limits::default()),
    )
    .await
}

async fn within<A: Answers>(
    listener: std::net::TcpListener,
    tls: Option<TlsAcceptor>,
    served: Arc<Served<A>>,
) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let limits = served.limits;
    let places = Arc::new(Places::default());
    loop {
        let (stream, _): (TcpStream, SocketAddr) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                // Too many open files, or a connection that went away meanwhile.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let place = Arc::new(places.take(limits.connections));
        let number = place.number;
        let (served, tls) = (Arc::clone(&served), tls.clone());
        let stream = Bounded::new(stream, Arc::clone(&place), limits);
        let task = tokio::spawn(tokio::time::timeout(limits.whole, async move {
            match tls {
                None => connection(stream, served, place).await,
                Some(tls) => {
                    let handshake = tokio::time::timeout(limits.head, tls.accept(stream)).await;
                    if let Ok(Ok(stream)) = handshake {
                        connection(stream, served, place).await;
                    }
                }
            }
        }));
        places.may_end(number, task.abort_handle());
        // Connections that gave way are closed before there are more.
        tokio::task::yield_now().await;
    }
}

/// Answers one request: what its client has sent behind it is not read.
async fn connection<A: Answers>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    served: Arc<Served<A>>,
    place: Arc<Place>,
) {
    let head = served.limits.head;
    let service = service_fn(move |request: Request<Incoming>| {
        let (served, place) = (Arc::clone(&served), Arc::clone(&place));
        async move {
            place.works(true);
            let answer = answer(&request, served).await;
            place.works(false);
            Ok::<_, Infallible>(answer)
        }
    });
    // An error is the client's: it went away, or spoke something else.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(LONGEST_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

type Answer = Response<Full<Bytes>>;

fn text(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

fn refusal(status: StatusCode, why: &str) -> Answer {
    text(status, TEXT, format!("{why}\n"))
}

fn unauthorized() -> Answer {
    let why = "this needs the token of --token-file: Authorization: Bearer TOKEN";
    let mut answer = refusal(StatusCode::UNAUTHORIZED, why);
    let scheme = HeaderValue::from_static("Bearer");
    answer
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, scheme);
    answer
}

fn state(state: Result<String, String>) -> Answer {
    match state {
        Ok(said) => refusal(StatusCode::OK, &said),
        Err(why) => refusal(StatusCode::SERVICE_UNAVAILABLE, &why),
    }
}

async fn answer<B, A: Answers>(request: &Request<B>, served: Arc<Served<A>>) -> Answer {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return refusal(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered");
    }
    let shown = request.headers().get(header::AUTHORIZATION);
    let token = served.rights.token.as_ref();
    let allowed = token.is_some_and(|token| token.is_shown(shown));
    let blocking = |what: fn(&A) -> Answer| made(Arc::clone(&served), what);
    match request.uri().path() {
        "/healthz" => state(served.answers.health()),
        "/readyz" => blocking(|a| state(a.readiness())).await,
        "/metrics" if served.rights.metrics_too && !allowed => unauthorized(),
        "/metrics" => match request
            .headers()
            .get(header::ACCEPT)
            .map(HeaderValue::to_str)
        {
            Some(Ok(accept)) if protobuf::is_wanted(accept) => {
                blocking(|a| text(StatusCode::OK, protobuf::CONTENT_TYPE, a.families())).await
            }
            _ => blocking(|a| text(StatusCode::OK, open_metrics::CONTENT_TYPE, a.metrics())).await,
        },
        "/dump" if token.is_none() => refusal(
            StatusCode::FORBIDDEN,
            "reports show what a process has in memory, so they are off without a token: start nvcap serve with --token-file FILE",
        ),
        "/dump" if !allowed => unauthorized(),
        "/dump" => {
            let query = request.uri().query().unwrap_or_default().to_owned();
            dump(&query, served).await
        }
        "/" => refusal(
            StatusCode::OK,
            "nvcap serve: /metrics /healthz /readyz /dump?pid=N",
        ),
        _ => refusal(
            StatusCode::NOT_FOUND,
            "there are /metrics, /healthz, /readyz and /dump?pid=N",
        ),
    }
}

/// Lets a thread make an answer of the counts, within the time for it.
async fn made<A: Answers>(served: Arc<Served<A>>, what: fn(&A) -> Answer) -> Answer {
    let limit = served.limits.metrics;
    let making = async move {
        let free = Arc::clone(&served.metrics).acquire_owned().await.ok()?;
        let work = move || {
            // It is the thread's, which goes on when nobody waits for it any more.
            let _free = free;
            what(&served.answers)
        };
        tokio::task::spawn_blocking(work).await.ok()
    };
    match tokio::time::timeout(limit, making).await {
        Ok(Some(answer)) => answer,
        Ok(None) => refusal(StatusCode::INTERNAL_SERVER_ERROR, "it failed"),
        Err(_) => refusal(
            StatusCode::SERVICE_UNAVAILABLE,
            &format!(
                "a reading of processes has taken more than {} s: ask again later; /healthz says whether counting goes on",
                limit.as_secs()
            ),
        ),
    }
}

async fn dump<A: Answers>(query: &str, served: Arc<Served<A>>) -> Answer {
    let (mut pid, mut json) = (None, false);
    for part in query.split('&') {
        match part.split_once('=') {
            Some(("pid", number)) => pid = number.parse::<u32>().ok().filter(|pid| *pid > 0),
            Some(("format", "json")) => json = true,
            Some(("format", "text")) => json = false,
            _ => pid = None,
        }
    }
    let Some(pid) = pid else {
        return refusal(
            StatusCode::BAD_REQUEST,
            "which process? /dump?pid=N, or /dump?pid=N&format=json",
        );
    };
    let Ok(free) = Arc::clone(&served.reports).try_acquire_owned() else {
        return refusal(
            StatusCode::SERVICE_UNAVAILABLE,
            &format!(
                "{REPORT_THREADS} other reports are being made: ask again in a second, or type: nvcap dump -p {pid}"
            ),
        );
    };
    let limit = served.limits.report;
    let work = move || {
        // As in `made`.
        let _free = free;
        served.answers.dump(pid, json)
    };
    match tokio::time::timeout(limit, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(Ok(bytes))) => text(StatusCode::OK, if json { JSON } else { TEXT }, bytes),
        Ok(Ok(Err(NoDump::NotThere(why)))) => refusal(StatusCode::NOT_FOUND, &why),
        Ok(Ok(Err(NoDump::Failed(why)))) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &why),
        Ok(Err(_)) => refusal(StatusCode::INTERNAL_SERVER_ERROR, "it failed"),
        Err(_) => refusal(
            StatusCode::SERVICE_UNAVAILABLE,
            &format!(
                "process {pid} has not been read after {} s: its memory, or a file of it, may not answer",
                limit.as_secs()
            ),
        ),
    }
}

#[cfg(test)]
mod bounds;
#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    struct Fixed;

    impl Answers for Fixed {
        fn metrics(&self) -> String {
            "# EOF\n".to_owned()
        }
        fn families(&self) -> Vec<u8> {
            b"families".to_vec()
        }
        fn health(&self) -> Result<String, String> {
            Ok("ok".to_owned())
        }
        fn readiness(&self) -> Result<String, String> {
            Err("not yet".to_owned())
        }
        fn dump(&self, pid: u32, json: bool) -> Result<Vec<u8>, NoDump> {
            match pid {
                7 => Ok(format!("7 {json}").into_bytes()),
                _ => Err(NoDump::NotThere("no such process".to_owned())),
            }
        }
    }

    const TOKEN: &str = "0123456789abcdef";

    fn asked(rights: &Rights, path: &str, shown: Option<&str>) -> (u16, String) {
        let mut request = Request::builder().uri(path);
        if let Some(shown) = shown {
            request = request.header("Authorization", shown);
        }
        let (status, _, said) = answered(rights, request.body(()).unwrap());
        (status, said)
    }

    fn answered(rights: &Rights, request: Request<()>) -> (u16, String, String) {
        let served = Served::new(Fixed, rights.clone(), Limits::default());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let answer = answer(&request, served).await;
            let status = answer.status().as_u16();
            let kind = answer.headers()[header::CONTENT_TYPE]
                .to_str()
                .unwrap()
                .to_owned();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            (status, kind, String::from_utf8(body.to_vec()).unwrap())
        })
    }

    /// A client that asks for Prometheus's own format gets it, all others text.
    #[test]
    fn formats_of_metrics() {
        for (accept, kind, body) in [
            (
                Some(protobuf::CONTENT_TYPE),
                protobuf::CONTENT_TYPE,
                "families",
            ),
            (Some("*/*"), open_metrics::CONTENT_TYPE, "# EOF\n"),
            (None, open_metrics::CONTENT_TYPE, "# EOF\n"),
        ] {
            let mut request = Request::builder().uri("/metrics");
            if let Some(accept) = accept {
                request = request.header("Accept", accept);
            }
            let got = answered(&Rights::default(), request.body(()).unwrap());
            assert_eq!(got, (200, kind.to_owned(), body.to_owned()), "{accept:?}");
        }
    }

    #[test]
    fn who_may_ask_for_what() {
        let open = Rights::default();
        let local = Rights {
            token: Some(Token::from_text(TOKEN).unwrap()),
            metrics_too: false,
        };
        let remote = Rights {
            metrics_too: true,
            ..local.clone()
        };
        let right = format!("Bearer {TOKEN}");
        let right = Some(right.as_str());
        for (rights, path, shown, status) in [
            (&open, "/metrics", None, 200),
            (&open, "/healthz", None, 200),
            (&open, "/readyz", None, 503),
            (&open, "/dump?pid=7", None, 403),
            (&open, "/dump?pid=7", right, 403),
            (&open, "/else", None, 404),
            (&local, "/metrics", None, 200),
            (&local, "/dump?pid=7", None, 401),
            (&local, "/dump?pid=7", Some("Bearer 0123456789abcdeg"), 401),
            (&local, "/dump?pid=7", Some("Bearer 0123456789abcdef0"), 401),
            (&local, "/dump?pid=7", Some("Bearer "), 401),
            (&local, "/dump?pid=7", Some("Basic 0123456789abcdef"), 401),
            (&local, "/dump?pid=7", right, 200),
            (&local, "/dump?pid=8", right, 404),
            (&local, "/dump?pid=0", right, 400),
            (&local, "/dump?pid=7&x=1", right, 400),
            (&local, "/dump", right, 400),
            (&remote, "/metrics", None, 401),
            (&remote, "/metrics", right, 200),
            (&remote, "/healthz", None, 200),
        ] {
            let (got, said) = asked(rights, path, shown);
            assert_eq!(got, status, "{path} {shown:?}: {said}");
        }
        let json = asked(&local, "/dump?pid=7&format=json", right);
        assert_eq!(json, (200, "7 true".to_owned()));
    }

    #[test]
    fn tokens() {
        assert!(Token::from_text("short\n").is_err());
        assert!(Token::from_text("with a blank in it, and long").is_err());
        let token = Token::from_text(&format!("{TOKEN}\nmore\n")).unwrap();
        assert_eq!(
            (token.0.as_str(), format!("{token:?}")),
            (TOKEN, "Token(...)".to_owned())
        );
    }
}
