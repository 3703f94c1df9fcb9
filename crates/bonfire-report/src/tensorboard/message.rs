//! The wire format of protocol buffers, as far as events need it.

/// How the value of a field is laid out.
#[derive(Clone, Copy)]
enum Wire {
    Varint = 0,
    Eight = 1,
    Counted = 2,
    Four = 5,
}

/// A message in the making; fields follow each other in the order of the calls.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn double(mut self, field: u32, value: f64) -> Self {
        self.key(field, Wire::Eight);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn float(mut self, field: u32, value: f32) -> Self {
        self.key(field, Wire::Four);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// An integer or an enumeration. Readers take a missing field for 0, which is left out.
    pub(super) fn integer(mut self, field: u32, value: u64) -> Self {
        if value != 0 {
            self.key(field, Wire::Varint);
            self.varint(value);
        }
        self
    }

    pub(super) fn text(self, field: u32, text: &str) -> Self {
        self.counted(field, text.as_bytes())
    }

    pub(super) fn message(self, field: u32, message: &Message) -> Self {
        self.counted(field, message.bytes())
    }

    /// A packed list.
    pub(super) fn doubles(
        mut self,
        field: u32,
        values: impl ExactSizeIterator<Item = f64>,
    ) -> Self {
        self.key(field, Wire::Counted);
        self.varint(values.len() as u64 * 8);
        values.for_each(|value| self.0.extend(value.to_le_bytes()));
        self
    }

    fn counted(mut self, field: u32, bytes: &[u8]) -> Self {
        self.key(field, Wire::Counted);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn key(&mut self, field: u32, wire: Wire) {
        self.varint(u64::from(field) << 3 | wire as u64);
    }

    /// Seven bits a byte, the lowest first; the highest bit says that more follow.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_take_seven_bits_a_byte() {
        let written = |value| {
            let mut message = Message::default();
            message.varint(value);
            message.0
        };
        assert_eq!(written(0), [0]);
        assert_eq!(written(127), [0x7f]);
        assert_eq!(written(128), [0x80, 0x01]);
        assert_eq!(written(300), [0xac, 0x02]);
        assert_eq!(written(u64::MAX), [[0xff; 9].as_slice(), &[0x01]].concat());
    }

    /// The examples of the format's own documentation, and one of each other kind.
    #[test]
    fn fields_are_laid_out_as_documented() {
        assert_eq!(Message::default().integer(1, 150).bytes(), [0x08, 0x96, 0x01]);
        assert_eq!(Message::default().text(2, "testing").bytes(), b"\x12\x07testing");
        let inner = Message::default().integer(1, 150);
        assert_eq!(Message::default().message(3, &inner).bytes(), [0x1a, 3, 0x08, 0x96, 1]);
        assert_eq!(Message::default().float(2, 1.0).bytes(), [0x15, 0, 0, 0x80, 0x3f]);
        let one = [0, 0, 0, 0, 0, 0, 0xf0, 0x3f];
        assert_eq!(Message::default().double(1, 1.0).bytes(), [&[0x09], &one[..]].concat());
        let list = Message::default().doubles(6, [1.0, 1.0].into_iter());
        assert_eq!(list.bytes(), [&[0x32, 16], &one[..], &one[..]].concat());
        assert!(Message::default().integer(20, 0).bytes().is_empty());
        assert_eq!(Message::default().integer(20, 1).bytes(), [0xa0, 0x01, 1]);
    }
}
