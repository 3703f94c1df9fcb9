use std::io::Write;
use std::path::Path;

/// Writes a file at once: whoever is killed meanwhile leaves the one that was there, or the new one.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}.partial"));
    let mut file = std::fs::File::create(&aside)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if written.is_err() {
        // A full disk needs the room.
        drop(std::fs::remove_file(&aside));
        return written;
    }
    std::fs::rename(&aside, path)
}
