//! The plots of a page in a browser, and the page of a real recording.

use std::path::Path;

use serde_json::{Value, json};

use super::opened::{VIEW, no_complaints, span};
use super::*;
use nvcap_recording::file::{orc, packed};

/// Reads whether the tooltip is hidden, and the text of the plot within `of` for programs that read it aloud.
fn said(browser: &mut browser::Browser, of: &str) -> (bool, String) {
    let said = browser.eval(&format!(
        "[document.querySelector('#tip').hidden, document.querySelector('{of} [aria-live]').textContent]"
    ));
    (said[0] == true, said[1].as_str().unwrap().to_owned())
}

/// Depth and busy have the times of the timeline: a stretch that is dragged out in one of them is what all show then.
#[test]
#[ignore = "needs Chromium: cargo xtask test runs it where it is"]
fn a_drag_in_the_plots_of_the_gpu_chooses_what_is_shown() {
    let Some(mut browser) = browser::Browser::start("a_drag_in_the_plots_of_the_gpu") else {
        return;
    };
    let file = folder().join("gpu.html");
    std::fs::write(&file, training(3_000)).unwrap();
    browser.open(&file, (1280, 900), "light");
    for (n, title) in [(0, "Queue depth"), (1, "GPU busy")] {
        let plot = format!("#gpu .plot:nth-of-type({})", n + 1);
        browser.eval("document.querySelector('#fit').click()");
        browser.wait("report.timeline.goal === null && !report.timeline.asked");
        let all = span(&mut browser);
        let (x, y) = browser.middle(&plot);
        // Where the pointer moves, the values of this moment.
        browser.point((x - 1.0, y), false);
        browser.point((x, y), false);
        let tip = browser.eval(
            "[document.querySelector('#tip').hidden, document.querySelector('#tip').textContent]",
        );
        assert_eq!(tip[0], false, "{title}");
        assert!(tip[1].as_str().unwrap().starts_with(title), "{tip}");
        // The moments under both ends of the drag, by the timeline's own scale.
        let moments = browser.eval(&format!(
            "(() => {{ const t = report.timeline; const left = document.querySelector('{plot} .u-over').getBoundingClientRect(); \
             const at = x => t.view.t0 + (x - left.left) / left.width * (t.view.t1 - t.view.t0); return [at({x} - 200), at({x})]; }})()"
        ));
        browser.drag((x, y), 5.0, 40);
        browser.wait("report.timeline.goal === null && !report.timeline.asked");
        let view = browser.eval(VIEW);
        for end in [0, 1] {
            let [found, wanted] = [&view, &moments].map(|v| v[end].as_f64().unwrap());
            // Some pixels of 1,280.
            assert!(
                (found - wanted).abs() < all / 300.0,
                "{title}: {view} {moments}"
            );
        }
        assert!(span(&mut browser) < all / 4.0, "{title}");
        // The plots are drawn anew with these times.
        let edges = browser.eval("[report.timeline.view.t0, report.timeline.view.t1]");
        assert_eq!(edges, view, "{title}");
    }
    no_complaints(&browser);
}

/// The page of tests/captures/h200-mixed: 600 submissions of tests/gpu/work.cu, with graphs of 1 to 1,024 kernels.
#[test]
#[ignore = "needs Chromium: cargo xtask test runs it where it is"]
fn a_page_of_a_real_recording_is_used() {
    if !cfg!(feature = "xz") {
        println!("NOT RUN a_page_of_a_real_recording_is_used: built without the feature xz");
        return;
    }
    let Some(mut browser) = browser::Browser::start("a_page_of_a_real_recording") else {
        return;
    };
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures");
    let reader = packed::open(&capture.join("h200-mixed.orc.xz")).unwrap();
    let memory = Place::default();
    let sink = Report::new(Output::to(Box::new(memory.clone())), options());
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(sink)]);
    for record in orc::Orc::new(reader) {
        pipeline.record(record.unwrap()).unwrap();
    }
    pipeline.finish().unwrap();
    let page = memory.bytes.lock().unwrap().clone();
    let data = data_of(std::str::from_utf8(&page).unwrap());
    let file = folder().join("h200-mixed.html");
    std::fs::write(&file, &page).unwrap();
    // The nodes and bytes of the capture's replays (tests/captures/README.md; nvcap stats).
    let mut replays = vec![(1, 76), (2, 76), (4, 76), (8, 92), (16, 92), (32, 108)];
    replays.extend([(64, 140), (128, 204), (256, 316), (512, 572), (1024, 1052)]);

    for (size, theme) in [((1280, 900), "light"), ((390, 844), "dark")] {
        browser.open(&file, size, theme);
        let shown = browser
            .eval("[report.timeline.ops.length, document.querySelector('#verdict').textContent]");
        assert_eq!(shown[0], data["shown"]);
        assert!(shown[0].as_u64().unwrap() > 400, "{shown}");
        let verdict = shown[1].as_str().unwrap();
        assert!(
            verdict.contains("600 submissions on 20 channels"),
            "{verdict}"
        );
        let wide: Value = browser.eval("document.documentElement.scrollWidth <= innerWidth");
        assert_eq!(wide, true, "{theme}");
        // Without times of the GPU the plots of it say how to get them.
        let gpu = browser.eval("document.querySelector('#gpu').textContent");
        assert!(
            gpu.as_str().unwrap().contains("nvcap record --gpu-time"),
            "{gpu}"
        );

        let rows = browser.eval(
            "[...document.querySelectorAll('#graphs tbody tr')].map(r => [...r.cells].slice(0, 4).map(c => Number(c.textContent.replaceAll(',', ''))))",
        );
        let rows: Vec<[u64; 4]> = serde_json::from_value(rows).unwrap();
        let table: Vec<(u64, u64)> = rows.iter().map(|r| (r[0], r[2])).collect();
        for replay in &replays {
            assert!(table.contains(replay), "{replay:?}: {table:?}");
        }

        // Once round its points by the arrow keys: each replay is two points, of bytes and of doorbells.
        browser.eval("document.querySelector('#graphs .plot').focus()");
        let mut points = Vec::new();
        for _ in 0..2 * rows.len() {
            browser.key("ArrowRight");
            let (hidden, text) = said(&mut browser, "#graphs");
            assert!(!hidden, "{text}");
            points.push(text);
        }
        for [nodes, _, bytes, doorbells] in &rows {
            let texts = points.iter().filter(|text| {
                let text = text.replace(',', "");
                let numbers: Vec<u64> = text.split(' ').filter_map(|w| w.parse().ok()).collect();
                numbers.starts_with(&[*nodes, *bytes, *doorbells])
            });
            assert!(texts.count() >= 2, "{nodes}: {points:#?}");
        }
        assert!(points[0].starts_with("1 node:"), "{}", points[0]);
        browser.key("ArrowRight");
        assert_eq!(said(&mut browser, "#graphs").1, points[0]);
        browser.key("ArrowLeft");
        assert_eq!(said(&mut browser, "#graphs").1, points[points.len() - 1]);
        browser.key("Escape");
        assert!(said(&mut browser, "#graphs").0);
        assert_eq!(
            browser.eval("document.querySelector('#graphs-section').hidden"),
            json!(false)
        );
    }
    no_complaints(&browser);
}
