//! Drawing. It fits into any terminal: what has no room is left out.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::gauges::Gauge;
use super::state::{SECOND, Screen, State};
use super::table::{Column, Row, Table};
use nvcap_show::output::names::pid_name;
use nvcap_show::output::style::Plain;

/// Texts that are drawn beside the table.
#[derive(Clone, Debug, Default)]
pub struct Around {
    /// The first line: the time, and sums of the whole.
    pub head: String,
    /// Remark on the table, behind the words that say which it is.
    pub about: String,
    /// A message for the user, shown in the place of the keys.
    pub notice: Option<String>,
    /// The GPUs, drawn above the table.
    pub gauges: Vec<Gauge>,
    /// Faults, drawn below the GPUs.
    pub faults: Vec<String>,
    /// True if colours may be used.
    pub color: bool,
}

const HELP: &[(&str, &str)] = &[
    ("Up Down PgUp PgDn", "choose a row"),
    ("Enter", "the channels of the process"),
    ("k m", "its kernels by GPU time, its copies"),
    ("p c Tab", "processes, channels, the next screen"),
    ("Esc", "back"),
    ("/ F F4", "show only rows that have a text"),
    ("< > F6 1-9", "sort by another column"),
    ("r", "the other way round"),
    ("h", "what may hang first"),
    ("t", "sums of the last seconds, or from the beginning"),
    ("Left Right", "1 s back or on in a recording"),
    ("[ ] Shift+Left", "10 s"),
    ("Space", "pause; of a recording: play"),
    ("q Ctrl-C", "end;  Ctrl-Z: suspend"),
];

fn alarm(color: bool) -> Style {
    let style = Style::new().add_modifier(Modifier::BOLD);
    if color { style.fg(Color::Red) } else { style }
}

/// Draws all.
pub fn draw(frame: &mut Frame<'_>, state: &mut State, table: &Table, around: &Around) {
    // The table has the most room.
    let gpus = around
        .gauges
        .len()
        .min(usize::from(frame.area().height / 3)) as u16;
    let faults = around
        .faults
        .len()
        .min(usize::from(frame.area().height / 4)) as u16;
    let lines = [
        Constraint::Length(1),
        Constraint::Length(gpus),
        Constraint::Length(faults),
        Constraint::Length(1),
        Constraint::Length(u16::from(!table.part.is_empty())),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ];
    let [head, gauges, faulted, about, part, columns, body, foot] =
        Layout::vertical(lines).areas(frame.area());
    let drawn = around.gauges.iter().take(usize::from(gpus));
    let drawn: Vec<Line<'_>> = drawn
        .map(|g| gauge(g, around.color, gauges.width))
        .collect();
    frame.render_widget(Paragraph::new(drawn), gauges);
    let drawn = around.faults.iter().take(usize::from(faults));
    let drawn: Vec<Line<'_>> = drawn
        .map(|line| Line::styled(line.as_str(), alarm(around.color)))
        .collect();
    frame.render_widget(Paragraph::new(drawn), faulted);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let all = usize::from(head.width);
    let title = format!("nvcap top  {}", around.head);
    frame.render_widget(Line::styled(whole_parts(&title, all), bold), head);
    let text = about_text(state, &around.about);
    frame.render_widget(Line::raw(whole_parts(&text, all)), about);
    frame.render_widget(Line::styled(whole_parts(&table.part, all), bold), part);
    let heading = heading(table, state, columns.width);
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Line::styled(heading, reversed), columns);
    rows(frame, state, table, around, body);
    frame.render_widget(foot_line(state, around, all), foot);
    if state.helps {
        help(frame);
    }
}

/// A GPU's line: its share of the time at work as a bar, the shares of the steps before, and whose work it was.
fn gauge(gauge: &Gauge, color: bool, all: u16) -> Line<'static> {
    let tint = |of: Color| match color {
        true => Style::new().fg(of),
        false => Style::new(),
    };
    let bar = usize::from(all / 4).clamp(8, 40);
    let full = (gauge.share.unwrap_or(0.0) * bar as f64).round() as usize;
    let percent = match gauge.share {
        Some(share) => format!("{:3.0} %", 100.0 * share),
        None => "  ? %".to_owned(),
    };
    let history = usize::from(all / 5).clamp(4, 60);
    let steps = gauge.history.chars().count();
    let late: String = { gauge.history.chars() }
        .skip(steps.saturating_sub(history))
        .collect();
    let number = gauge.gpu.map_or("?".to_owned(), |gpu| gpu.to_string());
    let before = 7 + bar + 2 + percent.len() + 1 + history + 2;
    let by = Plain(&gauge.by).to_string();
    let by = whole_parts(&by, usize::from(all).saturating_sub(before)).to_owned();
    Line::from(vec![
        Span::raw(format!("GPU {number:<3}")),
        Span::styled("\u{2588}".repeat(full), tint(Color::Green)),
        Span::styled(
            "\u{2591}".repeat(bar.saturating_sub(full)),
            tint(Color::DarkGray),
        ),
        Span::styled(
            format!(" {percent}  "),
            Style::new().add_modifier(Modifier::BOLD),
        ),
        Span::styled(format!("{late:>history$}  "), tint(Color::Cyan)),
        Span::raw(by),
    ])
}

/// The line above the table: what it is about, and how it is sorted and filtered.
fn about_text(state: &State, more: &str) -> String {
    let mut text = state.screen.word().to_owned();
    if let Some((pid, name)) = &state.of {
        text += &format!(" of process {} {}", pid_name(*pid), Plain(name));
    }
    if state.screen.is_of_works() || state.replay.is_some() {
        text += &match state.is_of_last {
            true => format!(", the last {} s", state.last_ns / SECOND),
            false => ", from the beginning".to_owned(),
        };
    }
    if !state.filter.is_empty() && !state.is_writing {
        text += &format!(", with \"{}\"", Plain(&state.filter));
    }
    if state.suspects_first {
        text += ", what may hang first";
    }
    if state.is_paused {
        text += match state.replay {
            Some(_) => "  [paused]",
            None => "  [PAUSED]",
        };
    }
    if !more.is_empty() {
        text += &format!("; {}", Plain(more));
    }
    text
}

/// The beginning of a text that has room, without a part that is cut: parts end at a comma, a semicolon or two blanks.
fn whole_parts(text: &str, width: usize) -> &str {
    if columns_of(text) <= width {
        return text;
    }
    let ends = [", ", "; ", "  "].into_iter();
    let ends = ends.flat_map(|end| text.match_indices(end).map(|(at, _)| at));
    let fitting = ends.filter_map(|at| text.get(..at));
    let fitting = fitting.filter(|part| columns_of(part) <= width);
    // Where not even the first part has room, it is cut.
    fitting.max_by_key(|part| part.len()).unwrap_or(text)
}

/// Returns a column's width: `left` for the one that takes what is left.
fn width(column: &Column, left: usize) -> usize {
    match column.width {
        0 => left,
        width => usize::from(width),
    }
}

fn columns_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// Pads a text to this number of columns of the screen.
fn padded(text: &str, width: usize, at_left: bool) -> String {
    let mut cut = String::new();
    let mut used = 0;
    for c in text.chars() {
        let next = columns_of(c.encode_utf8(&mut [0; 4]));
        if used + next > width {
            break;
        }
        used += next;
        cut.push(c);
    }
    let blank = " ".repeat(width - used);
    if at_left { cut + &blank } else { blank + &cut }
}

/// A line of the table, from the text of each column.
fn line_of<'a>(
    table: &Table,
    shown: &[usize],
    mut text: impl FnMut(usize) -> &'a str,
    all: usize,
) -> String {
    let mut line = String::new();
    for at in shown.iter().copied() {
        let Some(column) = table.columns.get(at) else {
            continue;
        };
        let left = all.saturating_sub(columns_of(&line) + 1);
        let width = width(column, left);
        line.push(' ');
        // A number that has no room is longer than its column, not another number.
        let text = text(at);
        let width = match column.is_text {
            true => width,
            false => width.max(columns_of(text)),
        };
        line += &padded(text, width, column.is_text && column.name != "PID");
    }
    line
}

fn heading(table: &Table, state: &State, all: u16) -> String {
    let order = state.order();
    let mark = if order.reversed {
        "\u{2191}"
    } else {
        "\u{2193}"
    };
    let names: Vec<String> = { table.columns.iter().enumerate() }
        .map(|(at, column)| match at == order.column {
            true => format!("{}{mark}", column.name),
            false => column.name.to_owned(),
        })
        .collect();
    let name = |at: usize| names.get(at).map_or("", String::as_str);
    let left = usize::from(all).saturating_sub(1);
    let shown = table.fitting(left, order.column);
    let line = format!(" {}", line_of(table, &shown, name, left));
    padded(&line, usize::from(all), true)
}

fn rows(frame: &mut Frame<'_>, state: &mut State, table: &Table, around: &Around, area: Rect) {
    let rows = state.rows(table);
    let chosen = state.chosen(&rows);
    let page = usize::from(area.height);
    let first = state.first.min(rows.len().saturating_sub(page));
    // A page may have no line at all.
    let first = first.max((chosen + 1).saturating_sub(page)).min(chosen);
    let all = usize::from(area.width);
    let left = all.saturating_sub(1);
    let shown = table.fitting(left, state.order().column);
    let lines: Vec<Line<'_>> = { rows.iter().enumerate().skip(first).take(page) }
        .map(|(at, row)| {
            let cell = |at: usize| row.cells.get(at).map_or("", |cell| cell.text.as_str());
            let mark = if row.suspect.is_some() { "!" } else { " " };
            let line = format!("{mark}{}", line_of(table, &shown, cell, left));
            Line::styled(padded(&line, all, true), style(row, at == chosen, around))
        })
        .collect();
    let lines = match (lines.is_empty(), table.rows.is_empty()) {
        (true, true) => vec![Line::raw(format!("  {}", table.empty))],
        (true, false) => vec![Line::raw("  no row has this text (Esc shows all)")],
        (false, _) => lines,
    };
    state.first = first;
    state.page = page;
    frame.render_widget(Paragraph::new(lines), area);
}

fn style(row: &Row, is_chosen: bool, around: &Around) -> Style {
    let style = match row.suspect {
        Some(_) => alarm(around.color),
        None => Style::new(),
    };
    match is_chosen {
        true => style.add_modifier(Modifier::REVERSED),
        false => style,
    }
}

fn foot_line<'a>(state: &State, around: &Around, width: usize) -> Line<'a> {
    if state.is_writing {
        return Line::raw(format!(
            "Only rows with: {}_  (Enter: done, Esc: all)",
            Plain(&state.filter)
        ));
    }
    if let Some(notice) = &around.notice {
        return Line::styled(Plain(notice).to_string(), alarm(around.color));
    }
    let time = match state.replay {
        Some(_) => "  Left/Right time  t last/all",
        None if state.screen.is_of_works() => "  t last/all",
        None => "",
    };
    let more = match state.screen {
        Screen::Processes => "Enter channels  k kernels",
        _ => "Esc back  k kernels",
    };
    let keys =
        format!("? help  q quit  {more}  m copies  / filter  > sort  r reverse  h hangs{time}");
    Line::raw(whole_parts(&keys, width).to_owned())
}

fn help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let width = area.width.min(72);
    let height = area.height.min(HELP.len() as u16 + 2);
    let place = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    let lines: Vec<Line<'_>> = { HELP.iter() }
        .map(|(keys, what)| Line::raw(format!(" {keys:<18} {what}")))
        .collect();
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" Keys (any key goes on) ");
    frame.render_widget(Paragraph::new(lines).block(block), place);
}
