//! Tests of the server's bounds: clients that read nothing, send nothing or too much, and processes that never answer.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex};

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::server::ResolvesServerCertUsingSni;

use super::*;
use nvcap_waiting::{GUARD, ends};

const TOKEN: &str = "0123456789abcdef";
/// Number of bytes that is more than the buffers of two sockets take.
const MUCH: usize = 32 << 20;
/// Bound of a time that passes at once, for what never comes.
const SHORT: Duration = Duration::from_millis(50);
/// Bounds of times that no test reaches.
const LONG: Limits = Limits {
    connections: 4,
    request: 64 << 10,
    head: Duration::from_secs(3600),
    unread: Duration::from_secs(3600),
    metrics: Duration::from_secs(3600),
    report: Duration::from_secs(3600),
    whole: Duration::from_secs(3600),
};

/// Permission for reports to end, and news of it.
type MayEnd = (Mutex<bool>, Condvar);

/// Much to read; and reports that end when they may.
struct Slow {
    metrics: String,
    begun: Mutex<Sender<u32>>,
    may_end: Arc<MayEnd>,
}

impl Slow {
    /// Also returns the processes whose reports have begun, and what ends them all.
    fn new(bytes: usize) -> (Self, Receiver<u32>, Arc<MayEnd>) {
        let (begun, begins) = channel();
        let may_end = Arc::new((Mutex::new(false), Condvar::new()));
        let slow = Self {
            metrics: "x".repeat(bytes),
            begun: Mutex::new(begun),
            may_end: Arc::clone(&may_end),
        };
        (slow, begins, may_end)
    }
}

fn end(may_end: &MayEnd) {
    *may_end.0.lock().unwrap() = true;
    may_end.1.notify_all();
}

impl Answers for Slow {
    fn metrics(&self) -> String {
        self.metrics.clone()
    }
    fn families(&self) -> Vec<u8> {
        Vec::new()
    }
    fn health(&self) -> Result<String, String> {
        Ok("ok".to_owned())
    }
    fn readiness(&self) -> Result<String, String> {
        Ok("ready".to_owned())
    }
    fn dump(&self, pid: u32, _: bool) -> Result<Vec<u8>, NoDump> {
        self.begun.lock().unwrap().send(pid).unwrap();
        let may_end = self.may_end.0.lock().unwrap();
        drop(self.may_end.1.wait_while(may_end, |may| !*may).unwrap());
        Ok(b"report".to_vec())
    }
}

/// Serves on a thread until the test's process ends.
fn started(slow: Slow, tls: Option<TlsAcceptor>, limits: Limits) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let rights = Rights {
        token: Some(Token::from_text(TOKEN).unwrap()),
        metrics_too: false,
    };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(THREADS)
            .build()
            .unwrap();
        let served = Served::new(slow, rights, limits);
        runtime.block_on(within(listener, tls, served)).unwrap();
    });
    address
}

fn connected(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(GUARD)).unwrap();
    stream.set_write_timeout(Some(GUARD)).unwrap();
    stream
}

/// A connection that has asked for this.
fn asking(to: SocketAddr, path: &str) -> TcpStream {
    let mut stream = connected(to);
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

/// Reads all that comes until the server closes the connection. A reset is an end too; silence is none.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut piece = vec![0; 1 << 16];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return all,
            Ok(n) => all.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("guard: neither an answer nor an end after {GUARD:?}")
            }
            Err(_) => return all,
        }
    }
}

fn got(to: SocketAddr, path: &str) -> String {
    String::from_utf8(rest(&mut asking(to, path))).unwrap()
}

fn is_ok(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 200 ")
}

/// Clients that ask and read nothing, and clients that say nothing, take all places and keep nobody out.
#[test]
fn clients_that_do_nothing_give_way() {
    for asks in [true, false] {
        let (slow, ..) = Slow::new(MUCH);
        let address = started(slow, None, LONG);
        let idle: Vec<TcpStream> = (0..LONG.connections * 2)
            .map(|_| match asks {
                true => asking(address, "/metrics"),
                false => connected(address),
            })
            .collect();
        for _ in 0..LONG.connections * 2 {
            assert!(is_ok(&got(address, "/healthz")), "asks: {asks}");
        }
        drop(idle);
    }
}

/// Clients whose TLS handshake never comes keep nobody out either; and it is given up in time where there is room for all.
#[test]
fn handshakes_that_never_come() {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
    let tls = TlsAcceptor::from(Arc::new(config));
    let in_time = Limits {
        head: SHORT,
        ..LONG
    };
    for (limits, clients) in [(LONG, LONG.connections + 1), (in_time, 1)] {
        let (slow, ..) = Slow::new(0);
        let address = started(slow, Some(tls.clone()), limits);
        let mut idle: Vec<TcpStream> = (0..clients).map(|_| connected(address)).collect();
        assert_eq!(rest(&mut idle[0]), b"");
    }
}

/// A client that takes nothing of its answer is closed, whatever else it sends; so is one whose head or whole request takes too long.
#[test]
fn connections_end_in_time() {
    let unread = Limits {
        unread: SHORT,
        ..LONG
    };
    let head = Limits {
        head: SHORT,
        ..LONG
    };
    let whole = Limits {
        whole: SHORT,
        ..LONG
    };
    for (limits, path) in [
        (unread, Some("/metrics")),
        (whole, Some("/metrics")),
        (head, None),
        (whole, None),
    ] {
        let (slow, ..) = Slow::new(MUCH);
        let address = started(slow, None, limits);
        let Some(path) = path else {
            assert_eq!(rest(&mut connected(address)), b"");
            continue;
        };
        let mut stream = asking(address, path);
        // Nothing is read until the server has closed it: then what is sent to it comes back as a reset.
        ends("the server closes a connection", move || {
            while stream.write_all(b"X: 1\r\n").is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(rest(&mut stream).len() < MUCH);
        });
    }
}

/// A request is bounded in bytes, and nothing that comes behind it is answered.
#[test]
fn requests_are_bounded() {
    let (slow, ..) = Slow::new(1);
    let address = started(slow, None, LONG);
    let mut long = connected(address);
    ends("the server closes a connection", move || {
        let _ = long.write_all(b"GET / HTTP/1.1\r\n");
        while long.write_all(b"X: 1\r\n").is_ok() {}
        let _ = long.shutdown(Shutdown::Write);
        rest(&mut long);
    });
    let mut body = connected(address);
    ends("the server closes a connection", move || {
        let head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n";
        body.write_all(head.as_bytes()).unwrap();
        while body.write_all(&[b'x'; 4096]).is_ok() {}
        rest(&mut body);
    });
    let mut two = connected(address);
    let twice = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2);
    two.write_all(twice.as_bytes()).unwrap();
    let answers = String::from_utf8(rest(&mut two)).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 1, "{answers}");
}

/// Reports of processes that never answer stop neither metrics nor health, whether or not somebody still waits for them; another one is
/// refused at once.
#[test]
fn reports_that_hang() {
    let (slow, begins, may_end) = Slow::new(1);
    let limits = Limits {
        connections: 64,
        ..LONG
    };
    let address = started(slow, None, limits);
    let mut waits = asking(address, "/dump?pid=1");
    assert_eq!(begins.recv_timeout(GUARD), Ok(1));
    let gone = asking(address, "/dump?pid=2");
    assert_eq!(begins.recv_timeout(GUARD), Ok(2));
    drop(gone);
    for _ in 0..2 * THREADS {
        let refused = got(address, "/dump?pid=3");
        assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
        assert!(refused.contains("nvcap dump -p 3"), "{refused}");
        for path in ["/metrics", "/healthz", "/readyz"] {
            assert!(is_ok(&got(address, path)), "{path}");
        }
    }
    end(&may_end);
    assert!(
        String::from_utf8(rest(&mut waits))
            .unwrap()
            .ends_with("report")
    );
}

/// A client that waits for a report that does not come is told so.
#[test]
fn a_report_that_takes_too_long() {
    let (slow, _begins, may_end) = Slow::new(1);
    let limits = Limits {
        report: SHORT,
        ..LONG
    };
    let address = started(slow, None, limits);
    let late = got(address, "/dump?pid=1");
    assert!(late.starts_with("HTTP/1.1 503 "), "{late}");
    assert!(late.contains("process 1 has not been read"), "{late}");
    end(&may_end);
}
