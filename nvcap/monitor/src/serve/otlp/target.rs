//! Target of metrics, and what is sent with them: a URL, and the environment variables that OpenTelemetry's exporters have in common
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>). Pure.

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};

/// A collector.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its whole URL.
    pub uri: Uri,
    /// Its name, or its address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// True if TLS is used.
    pub tls: bool,
    /// Headers of each request: most often a token.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// URL of a collector on this machine.
pub const LOCAL: &str = "http://127.0.0.1:4318";
/// Path that is added to the URL of a collector for its metrics.
const PATH: &str = "/v1/metrics";

impl Target {
    /// A collector's URL, to which `/v1/metrics` is added where it is not there; `headers` as in `OTEL_EXPORTER_OTLP_HEADERS`.
    ///
    /// # Errors
    /// What is wrong with which of the two. A header's value, which may be a secret, is not told.
    pub fn new(url: &str, headers: &str) -> Result<Self, String> {
        let base = url.trim_end_matches('/');
        let whole = match base.ends_with(PATH) {
            true => base.to_owned(),
            false => format!("{base}{PATH}"),
        };
        let bad = |why: &str| {
            format!(
                "{url:?} is no collector's URL: {why}; type one such as {LOCAL} or https://collector:4318"
            )
        };
        let uri: Uri = whole.parse().map_err(|_| bad("it cannot be read"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad("it must begin with http:// or https://")),
        };
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| bad("it names no host"))?;
        if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
            return Err(bad(
                "a name or a secret in it would be seen by all: put it into OTEL_EXPORTER_OTLP_HEADERS",
            ));
        }
        if uri.query().is_some() {
            return Err(bad("it must not have a query"));
        }
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            tls,
            headers: parse_headers(headers)?,
            uri,
        })
    }
}

/// Decodes `%20` and the like.
fn decoded(text: &str) -> Option<String> {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        out.push(match first {
            b'%' => {
                let (digits, after) = rest.split_at_checked(2)?;
                rest = after;
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            byte => *byte,
        });
    }
    String::from_utf8(out).ok()
}

/// Reads `key1=value1,key2=value2`, values percent-encoded.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let parts = text.split(',').map(str::trim).filter(|p| !p.is_empty());
    let pair = |part: &str| {
        let (key, value) = part.split_once('=')?;
        let key = key.trim();
        (!key.is_empty()).then_some(())?;
        Some((key.to_owned(), decoded(value.trim())?))
    };
    parts.map(pair).collect()
}

fn parse_headers(text: &str) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let bad =
        || "OTEL_EXPORTER_OTLP_HEADERS must be like \"authorization=Bearer%20TOKEN\"".to_owned();
    let header = |(key, value): (String, String)| {
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::from_bytes(key.as_bytes()).ok()?, value))
    };
    let headers = pairs(text).ok_or_else(bad)?.into_iter().map(header);
    headers.collect::<Option<_>>().ok_or_else(bad)
}

/// Attributes of this host in each request: `more` as in `OTEL_RESOURCE_ATTRIBUTES`, whose words go before nvcap's own.
///
/// # Errors
/// When it cannot be read.
pub fn resource(
    version: &str,
    host: Option<&str>,
    machine: Option<&str>,
    more: &str,
) -> Result<Vec<(String, String)>, String> {
    let more = pairs(more).ok_or_else(|| {
        "OTEL_RESOURCE_ATTRIBUTES must be like \"k8s.cluster.name=a,deployment.environment.name=b\""
            .to_owned()
    })?;
    let own = [
        ("service.name", Some("nvcap")),
        ("service.version", Some(version)),
        ("host.name", host),
        ("host.id", machine),
        ("os.type", Some("linux")),
    ];
    let own = own.into_iter().filter_map(|(key, value)| {
        let value = value.map(str::trim).filter(|value| !value.is_empty())?;
        let is_given = more.iter().any(|(given, _)| given == key);
        (!is_given).then(|| (key.to_owned(), value.to_owned()))
    });
    Ok(own.chain(more.iter().cloned()).collect())
}
