//! `extends = "other.toml"`: a file on top of another.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::DeTable;
use toml::{Table, Value};

use super::environment;
use super::error::{Excerpt, Problem};
use super::overrides::replace_excluded;
use super::source::{Source, join, line_at};

/// What a file, with all that it extends, amounts to.
pub(super) struct Document {
    pub(super) table: Table,
    pub(super) source: Source,
    pub(super) problems: Vec<Problem>,
}

/// Parses a text and puts it on top of the file that it extends, and that on top of the next. Paths of files
/// are relative to the one that names them; `folder` is that of the text.
///
/// `None` when the text itself, or a file on the way, cannot be used; `problems` say why.
pub(super) fn read(text: &str, origin: &str, folder: &Path) -> Result<Document, Vec<Problem>> {
    on_top(text, origin, folder, &mut Vec::new())
}

fn on_top(
    text: &str,
    origin: &str,
    folder: &Path,
    above: &mut Vec<PathBuf>,
) -> Result<Document, Vec<Problem>> {
    let (mut table, mut source) = parse(text, origin)?;
    let variable = |name: &str| std::env::var(name).ok();
    let problems = environment::substitute(&mut table, &mut source, variable);
    let own = Document { table, source, problems };
    match own.table.get("extends").cloned() {
        None => Ok(own),
        Some(Value::String(path)) => extend(own, &folder.join(path), above),
        Some(other) => {
            let message = format!("extends = {other}: expected the path of a file");
            Err(with(own.problems, own.source.problem("extends", message)))
        }
    }
}

/// Reads the file at `path` and puts `child` on top of it.
fn extend(
    mut child: Document,
    path: &Path,
    above: &mut Vec<PathBuf>,
) -> Result<Document, Vec<Problem>> {
    let name = path.display().to_string();
    let at_extends = |child: Document, message: String| {
        let problem = child.source.problem("extends", format!("extends: {message}"));
        Err(with(child.problems, problem))
    };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return at_extends(child, format!("cannot read \"{name}\": {error}")),
    };
    let known = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    if above.contains(&known) {
        return at_extends(
            child,
            format!("\"{name}\" extends itself, directly or by way of other files"),
        );
    }
    above.push(known);
    let folder = path.parent().unwrap_or(Path::new("."));
    let parent = on_top(&text, &name, folder, above);
    child.table.remove("extends");
    match parent {
        Ok(parent) => Ok(merge(parent, child)),
        Err(problems) => Err(child.problems.into_iter().chain(problems).collect()),
    }
}

/// Puts `child` on top of `parent`: its values take the place of the parent's, key by key. A section in
/// which it names another `kind` takes nothing from the parent's, whose keys are another kind's.
fn merge(mut parent: Document, child: Document) -> Document {
    let mut set = Vec::new();
    let mut source = parent.source.clone();
    source.rename(&child.source);
    merge_table(&mut parent.table, child.table, "", &mut |key, is_value| {
        source.forget(key);
        source.adopt(key, &child.source);
        if is_value {
            set.push(key.to_owned());
        }
    });
    replace_excluded(&mut parent.table, &mut source, &set);
    let problems = child.problems.into_iter().chain(parent.problems).collect();
    Document { table: parent.table, source, problems }
}

fn merge_table(parent: &mut Table, child: Table, prefix: &str, taken: &mut impl FnMut(&str, bool)) {
    for (key, value) in child {
        let path = join(prefix, &key);
        match (parent.get_mut(&key), value) {
            (Some(Value::Table(parent)), Value::Table(child))
                if !is_of_another_kind(parent, &child) =>
            {
                merge_table(parent, child, &path, taken);
            }
            (_, value) => {
                taken(&path, !value.is_table());
                parent.insert(key, value);
            }
        }
    }
}

fn is_of_another_kind(parent: &Table, child: &Table) -> bool {
    matches!((parent.get("kind"), child.get("kind")), (Some(parent), Some(child)) if parent != child)
}

/// Parses TOML and notes the place of every key.
fn parse(text: &str, origin: &str) -> Result<(Table, Source), Vec<Problem>> {
    let shared: Arc<str> = text.into();
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut problems: Vec<Problem> =
        errors.iter().map(|error| syntax(error, &shared, origin)).collect();
    // One slip can make several errors in a line; the first says enough.
    problems.sort_by_key(|problem| problem.line);
    problems.dedup_by_key(|problem| problem.line);
    let table = match text.parse::<Table>() {
        Ok(table) => table,
        Err(error) => {
            if problems.is_empty() {
                problems.push(syntax(&error, &shared, origin));
            }
            return Err(problems);
        }
    };
    Ok((table, Source::of_document(origin, &shared, document.get_ref())))
}

fn syntax(error: &toml::de::Error, text: &Arc<str>, origin: &str) -> Problem {
    let excerpt = error.span().map(|range| Excerpt { text: text.clone(), range });
    let line = error.span().map(|span| line_at(text, span.start));
    let message = format!("not valid TOML: {}", error.message());
    Problem { line, excerpt, ..Problem::of_source(origin, message) }
}

fn with(mut problems: Vec<Problem>, problem: Problem) -> Vec<Problem> {
    problems.push(problem);
    problems
}
