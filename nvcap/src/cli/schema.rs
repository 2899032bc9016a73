//! `nvcap schema`: the tables that `nvcap export csv` and `nvcap export parquet` write.

use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use serde_json::{Value, json};

use super::target;
use nvcap_show::export::tables::all::{TABLES, Table};

const EXAMPLES: &str = "\
Examples:
  nvcap schema                          all tables and columns
  nvcap schema --table kernels          one of them
  nvcap schema --json | jq '.[] | {name, columns: [.columns[].name]}'

docs/tables.md has the same.";

/// Choice of tables.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Show this table; may be given several times. By default all of them
    #[arg(
        long = "table",
        value_name = "NAME",
        value_parser = PossibleValuesParser::new(TABLES.each_ref().map(|t| t.name))
    )]
    pub tables: Vec<String>,

    /// Write one JSON array, with an object a table
    #[arg(long)]
    pub json: bool,
}

/// Shows the tables.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let is_chosen = |t: &&Table| args.tables.is_empty() || args.tables.iter().any(|n| n == t.name);
    let chosen = TABLES.iter().filter(is_chosen);
    let mut out = target::open(None, false, false, &[])?;
    let to = out.object();
    if args.json {
        let all: Vec<Value> = chosen.map(as_json).collect();
        nvcap_show::output::json::write(to, &all);
        to.push(b'\n');
    } else {
        let all: Vec<String> = chosen.map(as_text).collect();
        to.extend_from_slice(all.join("\n").as_bytes());
    }
    target::written(&mut out)?;
    Ok(ExitCode::SUCCESS)
}

fn as_json(table: &Table) -> Value {
    let columns: Vec<Value> = table
        .columns()
        .map(|c| {
            json!({
                "name": c.name,
                "type": c.kind.name(),
                "nullable": c.optional,
                "unit": Some(c.unit).filter(|unit| !unit.is_empty()),
                "source": c.source.name(),
                "about": c.about,
            })
        })
        .collect();
    json!({"name": table.name, "about": table.about, "columns": columns})
}

/// Returns a table as text. A `?` after the type of a column means that its value may be missing.
fn as_text(table: &Table) -> String {
    let columns: Vec<[String; 4]> = table
        .columns()
        .map(|c| {
            let presence = if c.optional { "?" } else { "" };
            [
                c.name.to_owned(),
                format!("{}{presence}", c.kind.name()),
                c.unit.to_owned(),
                c.source.name().to_owned(),
            ]
        })
        .collect();
    let width = |n: usize| columns.iter().map(|c| c[n].len()).max().unwrap_or(0);
    let widths: [usize; 4] = std::array::from_fn(width);
    let mut text = format!("{}: {}\n", table.name, table.about);
    for (words, column) in columns.iter().zip(table.columns()) {
        text.push_str("  ");
        for (word, width) in words.iter().zip(widths) {
            text.push_str(&format!("{word:width$}  "));
        }
        text.push_str(column.about);
        text.push('\n');
    }
    text
}
