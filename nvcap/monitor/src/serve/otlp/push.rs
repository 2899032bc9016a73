//! Sends metrics to a collector by POST. A request is sent again while the collector says that it is busy, but not after the next metrics
//! are due: those have all that the old ones had.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flate2::{Compression, write::GzEncoder};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{self, HeaderMap};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::target::Target;

/// Time that a request may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The first pause before a request is sent again; each later one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest answer, bytes.
const LONGEST_ANSWER: usize = 64 << 10;

/// Reason why a request was not taken.
#[derive(Debug)]
enum Failure {
    /// The request may be sent again, at the earliest after this time.
    Later(Option<Duration>, String),
    /// The request would not be taken another time either.
    Never(String),
}

/// Sends to one collector.
pub struct Sender {
    target: Target,
    tls: Option<TlsConnector>,
    version: String,
}

/// Reads the certificates of authorities that may vouch for a collector's: those of `file`, or this machine's.
///
/// # Errors
/// What is wrong with the file; that this machine has none.
fn trusted(file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(file) => {
            let certificates = CertificateDer::pem_file_iter(file)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|e| format!("cannot read the certificates {}: {e}", file.display()))?;
            roots.add_parsable_certificates(certificates);
            if roots.is_empty() {
                return Err(format!(
                    "{} has no certificate that can be used: it must be a PEM file",
                    file.display()
                ));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(
                    "this machine has no certificates of authorities: install ca-certificates, or name a file with --otlp-ca FILE"
                        .to_owned(),
                );
            }
        }
    }
    Ok(roots)
}

impl Sender {
    /// A sender to this collector. `authorities`: a file with certificates, used instead of this machine's.
    ///
    /// # Errors
    /// What is wrong with the certificates.
    pub fn new(target: Target, authorities: Option<&Path>, version: &str) -> Result<Self, String> {
        let mut tls = None;
        if target.tls {
            let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
            let config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|e| format!("TLS cannot be used: {e}"))?
                .with_root_certificates(trusted(authorities)?)
                .with_no_client_auth();
            tls = Some(TlsConnector::from(Arc::new(config)));
        }
        Ok(Self {
            target,
            tls,
            version: version.to_owned(),
        })
    }

    /// The collector's URL.
    pub fn url(&self) -> String {
        self.target.uri.to_string()
    }

    /// Sends one request until it is taken, or `until` has come. Gives what the collector said of it, if anything.
    ///
    /// # Errors
    /// Why it was not taken.
    pub async fn send(
        &self,
        request: &ExportMetricsServiceRequest,
        until: Instant,
    ) -> Result<Option<String>, String> {
        let mut zip = GzEncoder::new(Vec::new(), Compression::fast());
        let zipped = { zip.write_all(&request.encode_to_vec()) }.and_then(|()| zip.finish());
        let body = Bytes::from(zipped.map_err(|e| e.to_string())?);
        let mut pause = FIRST_PAUSE;
        loop {
            let (least, why) = match self.once(body.clone()).await {
                Ok(said) => return Ok(said),
                Err(Failure::Never(why)) => return Err(why),
                Err(Failure::Later(least, why)) => (least, why),
            };
            // Many hosts that were refused at once do not come again at once.
            let wait = least.unwrap_or(pause.mul_f64(0.5 + fastrand::f64()));
            let again = Instant::now() + wait;
            if again + PATIENCE > until {
                return Err(why);
            }
            sleep_until(again).await;
            pause *= 2;
        }
    }

    /// One request, in no more time than it may take.
    async fn once(&self, body: Bytes) -> Result<Option<String>, Failure> {
        let asked = timeout(PATIENCE, self.asked(body)).await;
        asked.unwrap_or_else(|_| {
            let why = format!("no answer in {} s", PATIENCE.as_secs());
            Err(Failure::Later(None, why))
        })
    }

    async fn asked(&self, body: Bytes) -> Result<Option<String>, Failure> {
        let later = |why: String| Failure::Later(None, why);
        let address = (self.target.host.as_str(), self.target.port);
        let stream = TcpStream::connect(address).await;
        let stream = stream.map_err(|e| later(format!("cannot connect: {e}")))?;
        let answer = match &self.tls {
            None => self.exchange(stream, body).await,
            Some(tls) => {
                let name = ServerName::try_from(self.target.host.clone())
                    .map_err(|e| Failure::Never(e.to_string()))?;
                let stream = tls.connect(name, stream).await;
                let stream = stream.map_err(|e| later(format!("TLS: {e}")))?;
                self.exchange(stream, body).await
            }
        };
        let (status, headers, body) = answer.map_err(later)?;
        match status {
            StatusCode::OK => Ok(partly(&body)),
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => {
                Err(Failure::Later(retry_after(&headers), format!("{status}")))
            }
            _ => Err(Failure::Never(format!("{status}"))),
        }
    }

    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        body: Bytes,
    ) -> Result<(StatusCode, HeaderMap, Bytes), String> {
        let say = |e: hyper::Error| e.to_string();
        let stream = TokioIo::new(stream);
        let (mut sender, connection) = { hyper::client::conn::http1::handshake(stream).await }
            .map_err(|e| format!("no HTTP: {e}"))?;
        let connection = tokio::spawn(connection);
        let path = self.target.uri.path_and_query();
        let mut request = Request::post(path.map_or("/", |path| path.as_str()))
            .header(
                header::HOST,
                self.target.uri.authority().map_or("", |a| a.as_str()),
            )
            .header(header::CONTENT_TYPE, "application/x-protobuf")
            .header(header::CONTENT_ENCODING, "gzip")
            .header(header::CONNECTION, "close")
            .header(header::USER_AGENT, format!("nvcap/{}", self.version));
        for (name, value) in &self.target.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body)).map_err(|e| e.to_string())?;
        let (head, body) = sender
            .send_request(request)
            .await
            .map_err(say)?
            .into_parts();
        let body = Limited::new(body, LONGEST_ANSWER).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        connection.abort();
        Ok((head.status, head.headers, body))
    }
}

/// The message of a collector that took a request, but not all of its points, or that has a warning.
fn partly(body: &[u8]) -> Option<String> {
    let answer = ExportMetricsServiceResponse::decode(body).ok()?;
    let partial = answer.partial_success?;
    match (partial.rejected_data_points, partial.error_message.as_str()) {
        (0, "") => None,
        (0, said) => Some(said.to_owned()),
        (n, said) => Some(format!("{n} points were not taken: {said}")),
    }
}

/// Returns the time for which the collector wants to be left alone; the form with a date is not read.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

/// Every `interval`, sends what `made` gives, as soon as it gives metrics. `tell` gets each message for the user once, until it changes.
pub async fn push<F>(sender: Arc<Sender>, interval: Duration, made: F, tell: impl Fn(String) + Send)
where
    F: Fn() -> Option<ExportMetricsServiceRequest> + Send + Sync + 'static,
{
    let made = Arc::new(made);
    let (mut next, mut failed, mut said) = (Instant::now(), 0_u64, None);
    loop {
        let make = Arc::clone(&made);
        let request = tokio::task::spawn_blocking(move || make()).await.ok();
        let Some(request) = request.flatten() else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            next = Instant::now();
            continue;
        };
        let until = due(next, interval, Instant::now() + PATIENCE);
        match sender.send(&request, until).await {
            Ok(now) => {
                if failed > 0 {
                    tell(format!(
                        "{} takes metrics again; missed before: {failed}",
                        sender.url()
                    ));
                }
                failed = 0;
                if now != said {
                    if let Some(now) = &now {
                        tell(format!("{} says: {now}", sender.url()));
                    }
                    said = now;
                }
            }
            Err(why) => {
                if failed == 0 {
                    tell(format!(
                        "{} took no metrics ({why}); the next are sent in {} s, with all counts",
                        sender.url(),
                        interval.as_secs()
                    ));
                }
                failed += 1;
            }
        }
        next = due(next, interval, Instant::now());
        sleep_until(next).await;
    }
}

/// Returns the time at which the next metrics are due after those of `last`: an interval later, or now where that has passed. Metrics that a
/// collector kept waiting are not made up for.
pub(super) fn due(last: Instant, interval: Duration, now: Instant) -> Instant {
    (last + interval).max(now)
}
