//! Pages in a browser: clicked through, and how fast they are.

use serde_json::{Value, json};

use super::{HOSTILE, context, data_of, folder, launch, options, page, training};
use crate::export::browser::Browser;
use crate::export::made::{give, timed};
use crate::output::Sink as _;
use nvcap_decode::driver::{Model, ModelOptions};
use nvcap_decode::record::{At, ChannelId, Fault, Record};

/// The timeline's view, ns.
pub(super) const VIEW: &str = "(() => { const v = report.timeline.aim; return [v.t0, v.t1]; })()";

pub(super) fn span(browser: &mut Browser) -> f64 {
    let view = browser.eval(VIEW);
    view[1].as_f64().unwrap() - view[0].as_f64().unwrap()
}

pub(super) fn no_complaints(browser: &Browser) {
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
#[ignore = "needs Chromium: cargo xtask test runs it where it is"]
fn a_fault_is_seen() {
    let Some(mut browser) = Browser::start("a_fault_is_seen") else {
        return;
    };
    let at = At::of_process(1_000_500_000, 4711);
    let fault = Record::Fault(Box::new(Fault {
        channel: Some(ChannelId(5)),
        only_these: false,
        ..Fault::of_notifier(at, 31)
    }));
    let page = page(options(), |sink, ledger| {
        let context = timed(context(5, 1, 1_000_000_000), 1_000_010_000, 20_000);
        give(sink, &context, &launch("first"));
        ledger.record(&fault);
        let model = Model::new(ModelOptions::default());
        sink.record(&fault, &model).unwrap();
    });
    let file = folder().join("fault.html");
    std::fs::write(&file, &page).unwrap();
    browser.open(&file, (1280, 900), "light");
    let said = browser.eval(
        "['#verdict strong', '#verdict .mark', '#faults'].map(of => document.querySelector(of).textContent)",
    );
    assert_eq!(said[0], "Complete, and the GPU faulted");
    assert_eq!(said[1], "!");
    let line = said[2].as_str().unwrap();
    assert!(line.contains(" s: Xid 31"), "{line}");
    // It lies in view, and is told where the pointer is.
    let mark = browser.eval(
        "(() => { const t = report.timeline, m = t.marks[0]; return [t.marks.length, t.at(t.x(m.at), 5).mark.what, m.at < t.all.t1]; })()",
    );
    assert_eq!(mark[0], 1);
    let what = mark[1].as_str().unwrap();
    assert!(what.starts_with("the GPU faulted: Xid 31"), "{what}");
    assert_eq!(mark[2], true);
    no_complaints(&browser);
}

#[test]
#[ignore = "needs Chromium: cargo xtask test runs it where it is"]
fn a_page_is_used() {
    let Some(mut browser) = Browser::start("a_page_is_used") else {
        return;
    };
    let file = folder().join("used.html");
    let page = training(3_000);
    std::fs::write(&file, &page).unwrap();
    browser.open(&file, (1280, 900), "light");
    let data = data_of(&page);

    // Every number came through the columns.
    let operations = browser.eval("[report.timeline.ops.length, report.timeline.ops.serial.at(-1), report.timeline.rows.length]");
    assert_eq!(operations, json!([data["shown"], 2_999, 4]));
    let text = browser.eval("document.querySelector('#verdict').textContent");
    assert!(
        text.as_str()
            .unwrap()
            .contains("3 entries missing (channel 5)"),
        "{text}"
    );

    // A hostile name is text.
    let shown = browser
        .eval("[...document.querySelectorAll('#kernel-grid button')].map(b => b.textContent)");
    assert!(
        shown.as_array().unwrap().iter().any(|n| n == HOSTILE),
        "{shown}"
    );
    let images = browser.eval("[document.images.length, document.title]");
    assert_eq!(images, json!([0, "made <here>.pcapng: nvcap report"]));

    // Search by the keyboard: / focuses it, Enter goes to the first match and closer.
    browser.key("/");
    for key in ["g", "e", "m", "m", "_", "b"] {
        browser.key(key);
    }
    let of =
        browser.eval("[document.activeElement.id, document.querySelector('#matches').textContent]");
    assert_eq!(of[0], "search");
    let count: u64 = of[1]
        .as_str()
        .unwrap()
        .replace(',', "")
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1_000..3_000).contains(&count), "{of}");
    let all = span(&mut browser);
    browser.key("Enter");
    let found = browser
        .eval("report.timeline.data.names[report.timeline.ops.name[report.timeline.chosen]]");
    assert!(found.as_str().unwrap().starts_with("gemm_bf16"), "{found}");
    assert!(span(&mut browser) < all / 10.0);
    let detail = browser.eval("document.querySelector('#detail').textContent");
    assert!(
        detail.as_str().unwrap().contains("grid 4096x1x1"),
        "{detail}"
    );
    browser.key("Escape");

    // The timeline by its keys.
    assert_eq!(browser.eval("document.activeElement.id"), "timeline");
    browser.key("Home");
    assert_eq!(span(&mut browser), all);
    browser.key("+");
    let closer = span(&mut browser);
    assert!(closer < 0.7 * all);
    let before = browser.eval(VIEW)[0].as_f64();
    browser.key("ArrowRight");
    assert!(browser.eval(VIEW)[0].as_f64() > before);
    browser.key("ArrowDown");
    browser.key(".");
    let first = browser.eval("report.timeline.chosen");
    browser.key(".");
    let second = browser.eval("report.timeline.chosen");
    assert!(
        first != second && second.as_u64().is_some(),
        "{first} {second}"
    );
    browser.key("-");
    browser.key("Home");
    browser.wait("report.timeline.goal === null");

    // Where the pointer is, the tooltip says what it is.
    let spot = browser.eval(
        "(() => { const t = report.timeline; const lane = t.rows[0].lanes[0]; let at = 0; \
         for (let i = 0; i < lane.used; i++) if (lane.end[i] - lane.begin[i] > lane.end[at] - lane.begin[at]) at = i; \
         t.show(lane.begin[at] - 20000, lane.end[at] + 20000, true); t.draw(); \
         document.querySelector('#canvas').scrollIntoView({ block: 'center', behavior: 'instant' }); \
         const b = document.querySelector('#canvas').getBoundingClientRect(); \
         return [b.left + t.x((lane.begin[at] + lane.end[at]) / 2), b.top + lane.y + 8, t.data.names[t.ops.name[lane.ops[at]]]]; })()",
    );
    let place = (spot[0].as_f64().unwrap(), spot[1].as_f64().unwrap());
    browser.point(place, true);
    let said = browser.eval("[document.querySelector('#tip').hidden, document.querySelector('#tip').firstChild?.textContent, report.timeline.data.names[report.timeline.ops.name[report.timeline.chosen]]]");
    assert_eq!(said, json!([false, spot[2], spot[2]]));

    // The table: sorted, searched, and from it to the timeline.
    let rows = "[...document.querySelectorAll('#kernel-grid tbody td:nth-child(2)')].map(c => Number(c.textContent.replaceAll(',', '')))";
    let header = browser.middle("#kernel-grid th:nth-child(2) button");
    browser.point(header, true);
    let sorted: Vec<u64> = serde_json::from_value(browser.eval(rows)).unwrap();
    assert!(
        sorted.len() > 10 && sorted.is_sorted_by(|a, b| a >= b),
        "{sorted:?}"
    );
    browser.point(header, true);
    let sorted: Vec<u64> = serde_json::from_value(browser.eval(rows)).unwrap();
    assert!(sorted.is_sorted(), "{sorted:?}");
    let order = browser
        .eval("document.querySelector('#kernel-grid th:nth-child(2)').getAttribute('aria-sort')");
    assert_eq!(order, "ascending");
    let input = browser.middle("#kernel-search");
    browser.point(input, true);
    for key in ["_", "s", "t", "a", "g", "e", "7"] {
        browser.key(key);
    }
    let found = browser.eval("document.querySelector('#kernel-count').textContent");
    assert!(found.as_str().unwrap().starts_with("1 of "), "{found}");
    let name = browser.middle("#kernel-grid td button");
    browser.point(name, true);
    let searched = browser.eval("document.querySelector('#search').value");
    assert!(
        searched.as_str().unwrap().ends_with("_stage7"),
        "{searched}"
    );

    // The plots by the keyboard.
    browser.eval("document.querySelector('#moves .plot').focus()");
    browser.key("ArrowRight");
    let said = browser.eval("[document.querySelector('#tip').hidden, document.querySelector('#moves [aria-live]').textContent]");
    assert_eq!(said[0], false);
    assert!(said[1].as_str().unwrap().contains("copy engine"), "{said}");

    // Help, theme.
    browser.key("?");
    assert_eq!(browser.eval("document.querySelector('#keys').open"), true);
    browser.key("Escape");
    assert_eq!(browser.eval("document.querySelector('#keys').open"), false);
    let ground = "getComputedStyle(document.body).backgroundColor";
    let light = browser.eval(ground);
    let theme = browser.middle("#theme");
    browser.point(theme, true);
    assert_ne!(browser.eval(ground), light);
    assert_eq!(
        browser.eval("document.querySelector('#theme').textContent"),
        "Theme: dark"
    );
    no_complaints(&browser);

    // Its policy lets it ask nobody. This is the one complaint.
    let asked =
        browser.eval("fetch('file:///etc/hostname').then(() => 'answered', () => 'refused')");
    assert_eq!(asked, "refused");
    assert!(
        browser
            .complaints()
            .iter()
            .any(|c| c.contains("Content Security Policy"))
    );
}

#[test]
#[ignore = "needs Chromium: cargo xtask test runs it where it is"]
fn a_hundred_thousand_operations_are_fluent() {
    let Some(mut browser) = Browser::start("a_hundred_thousand_operations_are_fluent") else {
        return;
    };
    let file = folder().join("many.html");
    std::fs::write(&file, training(100_000)).unwrap();
    browser.open(&file, (1280, 900), "dark");
    // Generous: this machine has no GPU and other work.
    let first = browser.eval("Number(document.documentElement.dataset.ready)");
    assert!(
        first.as_f64().unwrap() < 10_000.0,
        "first picture after {first} ms"
    );
    // The times between frames, beside those that drawing takes.
    browser.eval(
        "window.gaps = []; (() => { let before; const next = now => { if (before) gaps.push(now - before); before = now; \
         requestAnimationFrame(next); }; requestAnimationFrame(next); })()",
    );
    println!("100,000 operations: first picture after {first} ms");
    let canvas = browser.middle("#canvas");
    browser.eval("document.querySelector('#timeline').focus({ preventScroll: true })");
    for (how, least) in [("keys", 30), ("wheel", 30), ("drag", 20)] {
        browser.eval("report.timeline.frames.length = gaps.length = 0");
        match how {
            "keys" => {
                for key in [
                    "+",
                    "+",
                    "+",
                    "ArrowRight",
                    "+",
                    "+",
                    "+",
                    "+",
                    "-",
                    "-",
                    "-",
                    "Home",
                ] {
                    browser.key(key);
                    browser.wait("report.timeline.goal === null && !report.timeline.asked");
                }
            }
            "wheel" => {
                let all = span(&mut browser);
                for _ in 0..30 {
                    browser.wheel(canvas, -60.0);
                }
                assert!(span(&mut browser) < all / 100.0);
                browser.wait("report.timeline.goal === null && !report.timeline.asked");
                for _ in 0..20 {
                    browser.wheel(canvas, 60.0);
                }
                browser.wait("report.timeline.goal === null && !report.timeline.asked");
            }
            _ => {
                let before = browser.eval(VIEW)[0].as_f64().unwrap();
                browser.drag(canvas, 5.0, 60);
                assert!(browser.eval(VIEW)[0].as_f64().unwrap() > before);
                browser.wait("!report.timeline.asked");
            }
        }
        let mut sorted = |what: &str| -> Vec<f64> {
            let mut all: Vec<f64> = serde_json::from_value(browser.eval(what)).unwrap();
            all.sort_by(f64::total_cmp);
            all
        };
        let (frames, gaps) = (sorted("report.timeline.frames"), sorted("gaps"));
        let at = |of: &[f64], percent: usize| of[of.len() * percent / 100];
        let (middle, slow) = (at(&frames, 50), at(&frames, 95));
        println!(
            "{how}: {} frames, half drawn within {middle:.1} ms, 95 % within {slow:.1} ms; from frame to frame half {:.1} ms, 95 % {:.1} ms",
            frames.len(),
            at(&gaps, 50),
            at(&gaps, 95)
        );
        assert!(frames.len() >= least, "{how}: {} frames", frames.len());
        // 60 frames a second leave 16.7 ms for each; other work of this machine counts, too.
        assert!(
            middle < 16.7 && slow < 60.0,
            "{how}: {middle} ms a frame, {slow} ms at 95 %"
        );
    }
    no_complaints(&browser);

    for (width, height, theme) in [
        (1280, 900, "dark"),
        (1280, 900, "light"),
        (390, 844, "light"),
        (390, 844, "dark"),
    ] {
        browser.open(&file, (width, height), theme);
        browser.wait("report.timeline.goal === null && !report.timeline.asked");
        let picture = folder().join(format!("many-{width}-{theme}.png"));
        browser.picture(&picture);
        // Nothing sticks out.
        let wide: Value = browser.eval("document.documentElement.scrollWidth <= innerWidth");
        assert_eq!(wide, true, "{width} {theme}");
    }
    no_complaints(&browser);
}

/// Expression for the element with the focus: its id or tag, and the row of a table that the element is in.
const FOCUSED: &str = "(e => [e.id || e.tagName, e.closest('#kernel-grid tr')?.getAttribute('aria-rowindex') ?? null])(document.activeElement)";

#[test]
#[ignore = "needs Chromium: cargo xtask test runs it where it is"]
fn the_keyboard_reaches_all_of_a_page() {
    let Some(mut browser) = Browser::start("the_keyboard_reaches_all_of_a_page") else {
        return;
    };
    let file = folder().join("keyboard.html");
    std::fs::write(&file, training(3_000)).unwrap();
    browser.open(&file, (1280, 900), "light");
    // Once round the page: each control that is there, and of the rows of the table one.
    let controls = "[...document.querySelectorAll('a[href], button, input, summary, [tabindex]')].filter(e => e.checkVisibility() && !e.disabled && e.tabIndex >= 0).length";
    let count = browser.eval(controls).as_u64().unwrap();
    let mut seen = Vec::new();
    for _ in 0..100 {
        browser.key("Tab");
        let focused = browser.eval(FOCUSED);
        if focused[0] == "BODY" {
            break;
        }
        seen.push(focused);
    }
    assert_eq!(seen.len() as u64, count, "{seen:?}");
    for id in [
        "theme",
        "search",
        "fit",
        "timeline",
        "kernel-grid",
        "kernel-search",
    ] {
        assert!(seen.iter().any(|s| s[0] == id), "{id}: {seen:?}");
    }
    let rows: Vec<_> = { seen.iter() }
        .filter(|s| s[1].as_str().is_some_and(|row| row != "1"))
        .collect();
    assert_eq!(rows.len(), 1, "{seen:?}");

    // The table by its arrows, also where rows leave the document.
    browser.eval("document.querySelector('#kernel-grid').focus()");
    let last =
        browser.eval("document.querySelector('#kernel-grid table').getAttribute('aria-rowcount')");
    let last: u64 = last.as_str().unwrap().parse().unwrap();
    assert!(last > 30);
    let second = "3".to_owned();
    for (key, row) in [
        ("ArrowDown", "2".to_owned()),
        ("ArrowDown", second.clone()),
        ("End", last.to_string()),
        ("ArrowDown", last.to_string()),
        ("ArrowUp", (last - 1).to_string()),
        ("Home", "2".to_owned()),
        ("ArrowDown", second),
    ] {
        browser.key(key);
        assert_eq!(browser.eval(FOCUSED)[1], row.as_str(), "{key}");
        let visible = browser.eval(
            "(() => { const [row, grid] = [document.activeElement, document.querySelector('#kernel-grid')].map(e => e.getBoundingClientRect()); \
             return row.top >= grid.top && row.bottom <= grid.bottom; })()",
        );
        assert_eq!(visible, true, "{key}");
    }
    // Drawn again by its scrolling, it keeps the focus.
    browser.eval("document.querySelector('#kernel-grid').dispatchEvent(new Event('scroll'))");
    browser.eval("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))");
    assert_eq!(browser.eval(FOCUSED)[1], "3");
    no_complaints(&browser);
}
