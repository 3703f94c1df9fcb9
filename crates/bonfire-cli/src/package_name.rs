//! What a package may be called.

/// Reserved words of Rust, which `cargo new` refuses as the names of crates.
const KEYWORDS: [&str; 52] = [
    "Self", "abstract", "as", "async", "await", "become", "box", "break", "const", "continue",
    "crate", "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if",
    "impl", "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub",
    "ref", "return", "self", "static", "struct", "super", "trait", "true", "try", "type", "typeof",
    "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];
/// Folders of Cargo's beside the program that it builds.
const FOLDERS: [&str; 4] = ["build", "deps", "examples", "incremental"];
/// Crates that come with Rust.
const OF_RUST: [&str; 5] = ["alloc", "core", "proc_macro", "std", "test"];
/// Crates that a new package depends on.
const DEPENDENCIES: [&str; 4] = ["bonfire", "bonfire_cli", "burn", "serde"];

/// Says what is wrong with a name for a package that depends on Bonfire, if anything is.
///
/// # Reference
/// `cargo new`, `cargo::util::restricted_names`.
pub(crate) fn problem(name: &str) -> Option<&'static str> {
    let begins = name.chars().next().is_some_and(|first| first.is_ascii_alphabetic());
    let goes_on = name.chars().all(|it| it.is_ascii_alphanumeric() || it == '_' || it == '-');
    // In code a hyphen is an underscore.
    let krate = name.replace('-', "_");
    let one_of = |names: &[&str]| names.contains(&krate.as_str());
    if !(begins && goes_on) {
        return Some("it needs a letter first, then letters, digits, - and _");
    }
    if one_of(&KEYWORDS) {
        return Some("it is a reserved word of Rust");
    }
    if one_of(&FOLDERS) {
        return Some("Cargo has a folder of that name where programs are built");
    }
    if one_of(&OF_RUST) {
        return Some("a crate of Rust has that name");
    }
    one_of(&DEPENDENCIES).then_some("the package depends on a crate of that name")
}
