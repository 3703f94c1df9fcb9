use super::event;
use super::message::Message;
use super::{Histogram, record};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

const PREFIX: &str = "events.out.tfevents.";

/// Writes an event file into a run's folder.
///
/// Every writer begins a file of its own, so that the torn last record of a killed process harms
/// none but itself. Events are buffered; [`flush`](Self::flush) and dropping hand them to the
/// system, whole records at a time, so that TensorBoard may read along.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: BufWriter<File>,
}

impl EventWriter {
    /// Begins a file in a folder, which is made if it is missing.
    ///
    /// A resumed run names as `purge_step` the first step that it takes again: of what earlier
    /// files of the folder have, TensorBoard drops the events of this and later steps.
    ///
    /// # Errors
    /// If the folder cannot be made or read, or the file not be written.
    ///
    /// # Reference
    /// `torch.utils.tensorboard.SummaryWriter`: same `purge_step`, same kind of file name.
    pub fn create(folder: &Path, purge_step: Option<u64>) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let now = SystemTime::now();
        let path = folder.join(file_name(seconds_of_name(folder, now)?));
        let file = BufWriter::new(File::create_new(&path)?);
        let mut writer = Self { path, file };
        writer.write(&event::version(now))?;
        if let Some(step) = purge_step {
            // Twice: the pages of TensorBoard take the first start in a folder for that of the run,
            // not for a restart, and drop nothing.
            writer.write(&event::start(now, step))?;
            writer.write(&event::start(now, step))?;
        }
        writer.flush()?;
        Ok(writer)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a number, rounded to single precision; infinities and NaN are legal.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn scalar(
        &mut self,
        tag: &str,
        step: u64,
        wall_time: SystemTime,
        value: f64,
    ) -> io::Result<()> {
        self.write(&event::scalar(tag, wall_time, step, value))
    }

    /// Writes how values are distributed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn histogram(
        &mut self,
        tag: &str,
        step: u64,
        wall_time: SystemTime,
        histogram: &Histogram,
    ) -> io::Result<()> {
        self.write(&event::histogram(tag, wall_time, step, histogram))
    }

    /// Writes words, which TensorBoard shows as Markdown.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn text(
        &mut self,
        tag: &str,
        step: u64,
        wall_time: SystemTime,
        text: &str,
    ) -> io::Result<()> {
        self.write(&event::text(tag, wall_time, step, text))
    }

    /// Hands what is buffered to the system.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    fn write(&mut self, event: &Message) -> io::Result<()> {
        // In one call: the buffer is emptied before a record that does not fit, not within it.
        self.file.write_all(&record::framed(event.bytes()))
    }
}

/// Chooses the time in the name of a new file: now, but later than that of every other.
///
/// TensorBoard reads the files of a folder in the order of their names, and a purge concerns what
/// it has read before. A run resumed within a second, or on a machine whose clock is behind, must
/// not come first.
fn seconds_of_name(folder: &Path, now: SystemTime) -> io::Result<u64> {
    let mut seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let others = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('.').next());
        if let Some(other) = others.and_then(|other| other.parse::<u64>().ok()) {
            seconds = seconds.max(other.saturating_add(1));
        }
    }
    Ok(seconds)
}

fn file_name(seconds: u64) -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => "localhost",
        host => host,
    };
    let counter = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{seconds:010}.{host}.{}.{counter}", process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_begins_with_its_version_and_its_starts() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("events");
        let writer = EventWriter::create(&inner, Some(300)).unwrap();
        let bytes = fs::read(writer.path()).unwrap();
        assert_eq!(bytes[..8], 24u64.to_le_bytes());
        assert_eq!(bytes[21..36], *b"\x1a\x0dbrain.Event:2");
        // Behind the second and the third record's head and time.
        for start in [40, 72] {
            assert_eq!(bytes[start + 12 + 9..][..7], [0x10, 0xac, 2, 0x3a, 2, 8, 1]);
        }
        assert_eq!(bytes.len(), 40 + 2 * 32);
    }

    #[test]
    fn later_files_have_greater_names() {
        let folder = tempfile::tempdir().unwrap();
        let ahead = format!("{PREFIX}9000000000.other.1.0");
        fs::write(folder.path().join(ahead), "").unwrap();
        fs::write(folder.path().join("events.out.tfevents.x"), "").unwrap();
        let first = EventWriter::create(folder.path(), None).unwrap();
        let second = EventWriter::create(folder.path(), None).unwrap();
        let name = |writer: &EventWriter| {
            writer.path().file_name().unwrap().to_string_lossy().into_owned()
        };
        assert!(name(&first).starts_with("events.out.tfevents.9000000001."), "{}", name(&first));
        assert!(name(&second).starts_with("events.out.tfevents.9000000002."));
        assert!(name(&second).contains(&format!(".{}.", process::id())));
    }

    #[test]
    fn what_reaches_the_file_are_whole_records() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path(), None).unwrap();
        let path = writer.path().to_owned();
        let records = || {
            let bytes = fs::read(&path).unwrap();
            let (mut rest, mut records) = (bytes.as_slice(), 0);
            while let Some(length) = rest.first_chunk::<8>() {
                rest = rest.get(u64::from_le_bytes(*length) as usize + 16..).expect("is whole");
                records += 1;
            }
            records
        };
        for step in 0..1000 {
            writer.scalar("loss", step, SystemTime::now(), f64::NAN).unwrap();
            if step % 50 == 0 {
                records();
            }
        }
        let before = records();
        assert!((2..1001).contains(&before), "{before}: neither each event apart nor all at once");
        writer.flush().unwrap();
        assert_eq!(records(), 1001);
    }
}
