//! A headless Chromium, driven over its DevTools protocol through two pipes: no port, no network, no package beside it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longest time that an answer takes before the test fails.
const LONGEST: Duration = Duration::from_secs(60);

/// Names of browsers that speak the protocol, the smallest first.
const BROWSERS: [&str; 4] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
];

/// A headless Chromium, driven over its DevTools protocol through two pipes.
pub(super) struct Browser {
    process: Child,
    to: File,
    from: Receiver<Value>,
    folder: PathBuf,
    session: String,
    sent: u64,
    /// Messages that came without having been asked for.
    pub events: Vec<Value>,
}

/// Returns the path of a browser, if there is one.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut all = BROWSERS
        .iter()
        .flat_map(|name| folders.iter().map(move |f| f.join(name)));
    all.find(|file| file.is_file())
}

impl Browser {
    /// Starts one; none where there is none, which is said in `test`'s name.
    pub(super) fn start(test: &str) -> Option<Self> {
        let Some(program) = program() else {
            println!(
                "NOT RUN {test}: no Chromium; cargo xtask test installs chromium-headless-shell where apt has it"
            );
            return None;
        };
        let folder = std::env::temp_dir().join(format!("nvcap-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [into, out] = ["in", "out"].map(|name| folder.join(name));
        let made = Command::new("mkfifo").arg(&into).arg(&out).status();
        assert!(made.unwrap().success());
        // It reads commands from file descriptor 3 and writes answers to 4.
        let process = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<\"$IN\" 4>\"$OUT\""])
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
            ])
            .args([
                "--remote-debugging-pipe",
                "--no-first-run",
                "--force-color-profile=srgb",
            ])
            .arg(format!("--user-data-dir={}", folder.join("user").display()))
            .arg("about:blank")
            .env("IN", &into)
            .env("OUT", &out)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let to = File::options().write(true).open(&into).unwrap();
        let answers = File::open(&out).unwrap();
        let (send, from) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else {
                    return;
                };
                if send.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            process,
            to,
            from,
            folder,
            session: String::new(),
            sent: 0,
            events: Vec::new(),
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached = browser.call(
            "Target.attachToTarget",
            json!({"targetId": target["targetId"], "flatten": true}),
        );
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Runtime", "Log", "Page", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Sends a command and waits for its answer.
    pub(super) fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut command = json!({"id": self.sent, "method": method, "params": params});
        if !self.session.is_empty() {
            command["sessionId"] = self.session.clone().into();
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        loop {
            let message = self.from.recv_timeout(LONGEST);
            let mut message = message.unwrap_or_else(|e| panic!("guard: {method}: {e}"));
            if message["id"] == self.sent {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
            self.events.push(message);
        }
    }

    /// Evaluates an expression in the page.
    pub(super) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", params);
        let failed = &answer["exceptionDetails"];
        assert!(failed.is_null(), "{expression}: {failed}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub(super) fn wait(&mut self, expression: &str) {
        let begun = Instant::now();
        while self.eval(expression) != json!(true) {
            assert!(
                begun.elapsed() < LONGEST,
                "guard: not true yet: {expression}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Opens a file of `nvcap report` in a window of this size.
    pub(super) fn open(&mut self, file: &Path, size: (u32, u32), theme: &str) {
        self.visit(&format!("file://{}", file.display()), size, theme);
        self.wait("document.documentElement?.dataset.ready !== undefined");
    }

    /// Opens a page in a window of this size.
    pub(super) fn visit(&mut self, url: &str, (width, height): (u32, u32), theme: &str) {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}),
        );
        self.call(
            "Emulation.setEmulatedMedia",
            json!({"features": [{"name": "prefers-color-scheme", "value": theme}]}),
        );
        self.call("Page.navigate", json!({"url": url}));
    }

    /// Presses a key.
    pub(super) fn key(&mut self, key: &str) {
        let text = (key.chars().count() == 1).then_some(key);
        for kind in ["keyDown", "keyUp"] {
            let mut params = json!({"type": kind, "key": key});
            // A dialog, and what moves the focus, listen to the key itself.
            for (name, code) in [("Escape", 27), ("Tab", 9)] {
                if key == name {
                    params["windowsVirtualKeyCode"] = code.into();
                }
            }
            if let (Some(text), "keyDown") = (text, kind) {
                params["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    /// Moves the pointer, and with `click` clicks.
    pub(super) fn point(&mut self, (x, y): (f64, f64), click: bool) {
        let mut all = vec!["mouseMoved"];
        if click {
            all.extend(["mousePressed", "mouseReleased"]);
        }
        for kind in all {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            let params = json!({"type": kind, "x": x, "y": y, "button": button, "clickCount": 1});
            self.call("Input.dispatchMouseEvent", params);
        }
    }

    /// Turns the wheel with Ctrl held: closer with negative steps.
    pub(super) fn wheel(&mut self, (x, y): (f64, f64), steps: f64) {
        let params = json!({"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": steps, "modifiers": 2});
        self.call("Input.dispatchMouseEvent", params);
    }

    /// Drags from a place to the left, `pixels` with each move.
    pub(super) fn drag(&mut self, (x, y): (f64, f64), pixels: f64, moves: u32) {
        for at in 0..moves + 2 {
            let (kind, held) = match at {
                0 => ("mousePressed", 1),
                at if at <= moves => ("mouseMoved", 1),
                _ => ("mouseReleased", 0),
            };
            let x = x - pixels * f64::from(at.min(moves));
            let params = json!({"type": kind, "x": x, "y": y, "button": "left", "buttons": held, "clickCount": 1});
            self.call("Input.dispatchMouseEvent", params);
        }
    }

    /// The middle of an element, in the window.
    pub(super) fn middle(&mut self, selector: &str) -> (f64, f64) {
        let found = self.eval(&format!(
            "(() => {{ const e = document.querySelector({selector:?}); e.scrollIntoView({{ block: 'center', behavior: 'instant' }}); \
             const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; }})()"
        ));
        (found[0].as_f64().unwrap(), found[1].as_f64().unwrap())
    }

    /// A picture of the whole page.
    pub(super) fn picture(&mut self, file: &Path) {
        let size = self.eval("[innerWidth, document.documentElement.scrollHeight]");
        let clip = json!({"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1});
        let shot = self.call(
            "Page.captureScreenshot",
            json!({"format": "png", "captureBeyondViewport": true, "clip": clip}),
        );
        let text = shot["data"].as_str().unwrap();
        std::fs::write(file, bytes_of(text)).unwrap();
    }

    /// Returns the page's complaints, and its requests for anything beside itself.
    pub(super) fn complaints(&self) -> Vec<String> {
        let is_complaint = |e: &&Value| match e["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded") => true,
            Some("Network.requestWillBeSent") => {
                let url = e["params"]["request"]["url"].as_str().unwrap_or_default();
                !url.starts_with("file:") || e["params"]["type"] != "Document"
            }
            _ => false,
        };
        let all = self.events.iter().filter(is_complaint);
        all.map(ToString::to_string).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The bytes of base64.
pub(super) fn bytes_of(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (mut word, mut bits) = (0_u32, 0);
    for digit in text.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        word = word << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
        }
    }
    bytes
}
