//! Test that compares the published messages with the messages in use.

/// Messages by name, each with its fields: number, name and type, in protobuf's terms.
type Messages = std::collections::BTreeMap<String, Vec<(u32, String, String)>>;

/// First number of the fields that belong to no record.
const ADDED: u32 = 100;

/// Returns the messages of `docs/nvcap.proto`.
fn published() -> Messages {
    let text = include_str!("../../../../../docs/nvcap.proto");
    let mut all = Messages::new();
    let mut message = None;
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or("").trim();
        if let Some(name) = line.strip_prefix("message ") {
            message = name.split_whitespace().next().map(str::to_owned);
            all.entry(message.clone().unwrap()).or_default();
        }
        let Some((field, number)) = line.trim_end_matches(';').split_once(" = ") else {
            continue;
        };
        let words: Vec<&str> = field.split_whitespace().collect();
        let [.., kind, name] = words[..] else {
            continue;
        };
        if let (Ok(number), Some(message)) = (number.parse(), &message) {
            let fields = all.get_mut(message).unwrap();
            fields.push((number, name.to_owned(), kind.to_owned()));
        }
    }
    all
}

/// Returns the messages of `messages.rs`. Fields of a `oneof` are in an enum, with names of their own.
fn used() -> Messages {
    let text = concat!(
        include_str!("../messages.rs"),
        include_str!("../fault_messages.rs"),
        include_str!("../kernel_messages.rs"),
        include_str!("../sample_messages.rs"),
        include_str!("../skipped_messages.rs"),
        include_str!("../switch_messages.rs"),
        include_str!("../stack_messages.rs"),
        include_str!("../trapped_messages.rs"),
        include_str!("../snapshot_messages.rs")
    );
    let mut all = Messages::new();
    let mut oneofs = Messages::new();
    let mut name = String::new();
    let mut field = None;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line
            .strip_prefix("pub(super) struct ")
            .or(line.strip_prefix("pub(super) enum "))
        {
            name = rest.trim_end_matches(" {").to_owned();
            let of = if line.contains("enum") {
                &mut oneofs
            } else {
                &mut all
            };
            of.insert(name.clone(), Vec::new());
        }
        if let Some(rest) = line.strip_prefix("#[prost(") {
            let rest = rest.trim_end_matches(")]");
            let number = rest
                .rsplit_once("tag = \"")
                .map(|(_, n)| n.trim_matches('"'));
            let kind = rest.split(',').next().unwrap().trim();
            field = number
                .and_then(|n| n.parse().ok())
                .map(|n: u32| (n, kind.to_owned()));
            continue;
        }
        let Some((number, kind)) = field.take() else {
            continue;
        };
        let (name_of_field, of_type) = match line.strip_prefix("pub ") {
            Some(line) => line.trim_end_matches(',').split_once(": ").unwrap(),
            None => line.trim_end_matches("),").split_once('(').unwrap(),
        };
        let of_type = of_type
            .trim_start_matches("Option<")
            .trim_start_matches("Vec<")
            .trim_start_matches("m::")
            .trim_end_matches('>');
        let kind = match kind.as_str() {
            "message" => of_type.to_owned(),
            kind => kind.split(" = ").next().unwrap().to_owned(),
        };
        let entry = (number, name_of_field.to_lowercase(), kind);
        match oneofs.get_mut(&name) {
            Some(fields) => fields.push(entry),
            None => all.get_mut(&name).unwrap().push(entry),
        }
    }
    for (of, oneof) in [("Process", "Life"), ("Loss", "Lost"), ("Between", "News")] {
        let fields = oneofs.remove(oneof).unwrap();
        all.get_mut(of).unwrap().extend(fields);
    }
    all
}

#[test]
fn the_published_messages_are_those_that_are_used() {
    let without_names = |messages: Messages| -> Messages {
        let mut messages = messages;
        // Within a `oneof`, Rust's names have no underscore.
        let fields = messages.values_mut().flatten();
        fields.for_each(|f| f.1 = f.1.replace('_', ""));
        messages
    };
    let (mut published, used) = (without_names(published()), without_names(used()));
    // Messages that `nvcap export wireshark` adds belong to no record.
    let added = ["Class", "Decoded", "Method", "Operation", "Stop", "Value"];
    added
        .iter()
        .for_each(|name| assert!(published.remove(*name).is_some(), "{name}"));
    published
        .values_mut()
        .for_each(|fields| fields.retain(|f| f.0 < ADDED));
    assert!(used.len() > 25, "{}", used.len());
    for (name, fields) in &used {
        let mut fields = fields.clone();
        fields.sort();
        assert_eq!(published.get(name), Some(&fields), "{name}");
    }
    assert_eq!(published.len(), used.len());
}
