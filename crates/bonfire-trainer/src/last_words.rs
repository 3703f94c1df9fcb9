//! What a process that panics leaves for its launcher.

use std::backtrace::Backtrace;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Once;

/// Names the file in which a rank leaves what has ended it.
const ERROR_FILE: &str = "BONFIRE_ERROR_FILE";

/// From now on, a panic of this process is written to the file that its launcher has named, with its place
/// and a backtrace, before it is told as always. [`init`](crate::init) calls it; does nothing without a
/// launcher.
pub fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(path) = std::env::var_os(ERROR_FILE) else { return };
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            leave(Path::new(&path), &format!("{panic}\n{}", Backtrace::force_capture()));
            told(panic);
        }));
    });
}

/// Writes the words, unless there are some: the first panic is the cause of the others.
fn leave(path: &Path, words: &str) {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    // Without it the launcher still has the exit code.
    drop(file.and_then(|mut file| file.write_all(words.as_bytes())));
}

#[cfg(test)]
mod tests {
    use super::leave;

    #[test]
    fn the_first_words_stand() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error");
        leave(&path, "first");
        leave(&path, "second");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "first");
    }
}
