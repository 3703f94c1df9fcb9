//! How figures travel between ranks: a tag, a version, then 64-bit words, all little-endian.
//!
//! Readers check every length against the bytes that are there before they take memory for it.

use crate::MetricError;

/// Grows whenever the bytes of anything change.
const VERSION: u8 = 1;

/// What bytes are of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    /// The first bytes.
    pub(crate) tag: [u8; 4],
    /// What error messages call it.
    pub(crate) name: &'static str,
}

pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(kind: Kind) -> Self {
        let mut bytes = kind.tag.to_vec();
        bytes.push(VERSION);
        Self(bytes)
    }

    pub(crate) fn number(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn numbers(&mut self, values: impl ExactSizeIterator<Item = u64>) {
        self.0.reserve(values.len() * 8);
        values.for_each(|value| self.number(value));
    }

    /// Writes bytes behind their length.
    pub(crate) fn section(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

pub(crate) struct Reader<'a> {
    kind: Kind,
    num_bytes: usize,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads tag and version.
    pub(crate) fn new(kind: Kind, bytes: &'a [u8]) -> Result<Self, MetricError> {
        let mut reader = Self { kind, num_bytes: bytes.len(), rest: bytes };
        if reader.take(4)? != kind.tag {
            return Err(reader.error("they are of something else"));
        }
        match reader.take(1)? {
            [VERSION] => Ok(reader),
            other => Err(reader.error(format!("version {other:?} is not [{VERSION}]"))),
        }
    }

    pub(crate) fn error(&self, reason: impl Into<String>) -> MetricError {
        let Self { kind: Kind { name: what, .. }, num_bytes, .. } = *self;
        MetricError::Bytes { num_bytes, what, reason: reason.into() }
    }

    fn take(&mut self, num_bytes: usize) -> Result<&'a [u8], MetricError> {
        let Some((taken, rest)) = self.rest.split_at_checked(num_bytes) else {
            return Err(self.error("they end too early"));
        };
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn number(&mut self) -> Result<u64, MetricError> {
        let Some((taken, rest)) = self.rest.split_first_chunk::<8>() else {
            return Err(self.error("they end too early"));
        };
        self.rest = rest;
        Ok(u64::from_le_bytes(*taken))
    }

    /// Reads a number that counts things in memory.
    pub(crate) fn size(&mut self) -> Result<usize, MetricError> {
        let value = self.number()?;
        usize::try_from(value).map_err(|_| self.error(format!("{value} is beyond any memory")))
    }

    /// Reads `rows` times `columns` numbers, no memory being taken before they are there.
    pub(crate) fn numbers(
        &mut self,
        rows: usize,
        columns: usize,
    ) -> Result<impl ExactSizeIterator<Item = u64> + use<'a>, MetricError> {
        let num_bytes = rows.checked_mul(columns).and_then(|numbers| numbers.checked_mul(8));
        let Some(num_bytes) = num_bytes else {
            return Err(self.error(format!("{rows} x {columns} numbers are beyond any memory")));
        };
        let (chunks, _) = self.take(num_bytes)?.as_chunks::<8>();
        Ok(chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)))
    }

    /// Reads bytes behind their length.
    pub(crate) fn section(&mut self) -> Result<&'a [u8], MetricError> {
        let num_bytes = self.size()?;
        self.take(num_bytes)
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Checks that nothing is left.
    pub(crate) fn finish(self) -> Result<(), MetricError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(self.error(format!("{left} bytes are left over"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind { tag: *b"test", name: "test" };

    #[test]
    fn what_is_written_is_read() {
        let mut writer = Writer::new(KIND);
        writer.number(u64::MAX);
        writer.numbers([1, 2, 3, 4, 5, 6].into_iter());
        writer.section(b"abc");
        let bytes = writer.finish();
        let mut reader = Reader::new(KIND, &bytes).unwrap();
        assert_eq!(reader.number().unwrap(), u64::MAX);
        assert_eq!(reader.numbers(2, 3).unwrap().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(reader.section().unwrap(), b"abc");
        reader.finish().unwrap();
    }

    #[test]
    fn an_error_says_what_is_wrong() {
        let reason = |bytes: &[u8], read: fn(&mut Reader<'_>) -> Result<(), MetricError>| {
            let read = |mut reader: Reader<'_>| read(&mut reader).and_then(|()| reader.finish());
            Reader::new(KIND, bytes).and_then(read).unwrap_err().to_string()
        };
        let nothing = |_: &mut Reader<'_>| Ok(());
        assert!(reason(b"tes", nothing).contains("3 bytes are no test: they end too early"));
        assert!(reason(b"text\x01", nothing).contains("they are of something else"));
        assert!(reason(b"test\x02", nothing).contains("version [2] is not [1]"));
        assert!(reason(b"test\x01ab", nothing).contains("2 bytes are left over"));
        let many = |reader: &mut Reader<'_>| reader.numbers(usize::MAX, 9).map(drop);
        assert!(reason(b"test\x01", many).contains("beyond any memory"));
        let missing = |reader: &mut Reader<'_>| reader.numbers(1, 1).map(drop);
        assert!(reason(b"test\x01", missing).contains("they end too early"));
    }
}
