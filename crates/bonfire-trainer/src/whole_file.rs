use crate::TrainError;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Opens a file for what comes behind its content.
pub(crate) fn appending(path: &Path) -> Result<File, TrainError> {
    let file = File::options().create(true).append(true).open(path);
    file.map_err(TrainError::io("opening", path))
}

/// Appends bytes, or leaves the file as it was: half a line would be in the way of the next.
pub(crate) fn append_whole(file: &mut File, bytes: &[u8]) -> std::io::Result<()> {
    let before = file.metadata()?.len();
    file.write_all(bytes).inspect_err(|_| drop(file.set_len(before)))
}

/// Writes a file at once: whoever is killed meanwhile leaves the one that was there, or the new one.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}.partial"));
    let mut file = File::create(&aside)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if written.is_err() {
        // A full disk needs the room.
        drop(std::fs::remove_file(&aside));
        return written;
    }
    std::fs::rename(&aside, path)
}
