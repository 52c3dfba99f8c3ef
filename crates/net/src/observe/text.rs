//! Numbers in the text format that Prometheus reads (version 0.0.4).

use std::fmt::Write as _;

use super::numbers::Numbers;

/// What this is, for HTTP.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All numbers, a line each, below what they mean.
pub fn write(numbers: &Numbers) -> String {
    let mut out = String::new();
    for family in numbers.families() {
        let (name, kind) = (&family.name, family.kind.name());
        // Writing to a string can't fail.
        let _ = writeln!(out, "# HELP {name} {}", family.help);
        let _ = writeln!(out, "# TYPE {name} {kind}");
        for number in &family.numbers {
            let _ = write!(out, "{name}{}", number.suffix);
            for (at, (label, value)) in number.labels.iter().enumerate() {
                let before = if at == 0 { '{' } else { ',' };
                let _ = write!(out, "{before}{label}=\"{}\"", escaped(value));
            }
            if !number.labels.is_empty() {
                out.push('}');
            }
            let _ = writeln!(out, " {}", text_of(number.value));
        }
    }
    out
}

fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

fn text_of(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".into(),
        f64::NEG_INFINITY => "-Inf".into(),
        value if value.is_nan() => "NaN".into(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use echoic_replay::table::{Form, Table, TableConfig};

    use super::*;
    use crate::server::ListenerStats;
    use crate::wire::observed::Kind;

    #[test]
    fn names_labels_and_numbers_are_as_the_format_wants_them() {
        let config = TableConfig::new("a \"b\"\\\n", Form::Trajectories(None), 5);
        let mut numbers = Numbers::default();
        numbers.add_table(&Table::new(config).unwrap());
        numbers.add_listeners(&ListenerStats::default(), &[]);
        let text = write(&numbers);
        let table = r#"table="a \"b\"\\\n""#;
        for line in [
            "# TYPE echoic_table_items gauge".to_owned(),
            format!("echoic_table_items{{{table}}} 0"),
            "# TYPE echoic_table_inserts_total counter".to_owned(),
            format!(r#"echoic_table_blocked{{{table},side="sample",reason="MIN_SIZE"}} 1"#),
            format!(r#"echoic_table_blocked{{{table},side="insert",reason="NONE"}} 0"#),
            "echoic_connections 0".to_owned(),
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
        for family in numbers.families() {
            let good = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(family.name.starts_with("echoic_") && family.name.chars().all(good));
            assert!(family.help.ends_with('.') && !family.help.contains(['\n', '\\']));
            assert_eq!(family.kind == Kind::Counter, family.name.ends_with("_total"));
        }
    }

    #[test]
    fn numbers_that_are_none_have_names() {
        let texts = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.1, 1e21].map(text_of);
        assert_eq!(texts, ["NaN", "+Inf", "-Inf", "0.1", "1000000000000000000000"]);
    }
}
