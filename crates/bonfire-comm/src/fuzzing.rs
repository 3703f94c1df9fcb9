//! Entry points for fuzzing: every parser of bytes that another process has sent.
//!
//! Each takes arbitrary bytes, and panics when what was understood is not what comes back after it
//! is written and read again. The programs are in `fuzz/`.

#![allow(clippy::panic, reason = "a finding is reported by panicking")]

use crate::failure::Failure;
use crate::header::{HEADER_BYTES, Header};
use crate::store::{Answer, Note, Request};
use crate::wire::{HELLO_BYTES, Hello, read_frame, write_frame};

/// The frames of a connection to the store, one after the other.
pub fn frames(mut bytes: &[u8]) {
    while let Ok((kind, payload)) = read_frame(&mut bytes) {
        let mut again = Vec::new();
        let written = write_frame(&mut again, kind, &[&payload]);
        assert!(written.is_ok(), "a frame that was read is too long to be written");
        let read = read_frame(&mut &again[..]);
        assert_eq!(read.ok(), Some((kind, payload)));
    }
}

/// The first message of a connection.
pub fn hello(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk::<HELLO_BYTES>() else { return };
    if let Some(hello) = Hello::decode(bytes) {
        let again = Hello::decode(&hello.encode());
        assert!(again.is_some_and(|again| again.encode() == hello.encode()));
    }
}

/// The header of a transfer, and how an error tells of it.
pub fn header(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else { return };
    if let Some(header) = Header::decode(bytes) {
        assert_eq!(Header::decode(&header.encode()), Some(header));
        assert!(!header.to_string().is_empty());
        assert_eq!(header.parting(&header), None);
    }
}

/// A request, an answer or a note of the store: its kind, then the payload.
pub fn store_message(bytes: &[u8]) {
    let Some((&kind, payload)) = bytes.split_first() else { return };
    if let Some(request) = Request::decode(kind, payload) {
        let (kind, bytes) = request.encode();
        assert_eq!(Request::decode(kind, &bytes), Some(request));
    }
    if let Some(note) = Note::decode(kind, payload) {
        let (kind, bytes) = note.encode();
        assert_eq!(Note::decode(kind, &bytes), Some(note));
    }
    if let Some(answer) = Answer::decode(kind, payload.to_vec()) {
        let (kind, bytes) = answer.clone().encode();
        assert_eq!(Answer::decode(kind, bytes), Some(answer));
    }
    if let Some(failure) = Failure::decode(payload) {
        assert_eq!(Failure::decode(&failure.encode()), Some(failure));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Kinds of messages, and two that are none.
    fn kind() -> impl Strategy<Value = u8> {
        prop_oneof![0u8..8, 16u8..24]
    }

    /// A short string with its length before it, as keys travel; the length may be wrong.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        (any::<Vec<u8>>(), prop_oneof![9 => Just(0u32), 1 => any::<u32>()]).prop_map(
            |(text, wrong)| {
                [&(text.len() as u32).wrapping_add(wrong).to_le_bytes(), &text[..]].concat()
            },
        )
    }

    proptest! {
        #[test]
        fn frames_hold(bytes: Vec<u8>, kind: u8, payload: Vec<u8>) {
            frames(&bytes);
            let length = (payload.len() as u32 + 1).to_le_bytes();
            frames(&[&length[..], &[kind], &payload, &bytes].concat());
        }

        #[test]
        fn hellos_hold(mut bytes: [u8; HELLO_BYTES], role in 0u8..4) {
            hello(&bytes);
            bytes[..8].copy_from_slice(b"BONFIRE\x01");
            bytes[8] = role;
            hello(&bytes);
        }

        #[test]
        fn headers_hold(bytes: [u8; HEADER_BYTES]) {
            header(&bytes);
        }

        #[test]
        fn store_messages_hold(kind in kind(), text in text(), rest: Vec<u8>, bytes: Vec<u8>) {
            store_message(&bytes);
            store_message(&[&[kind][..], &rest].concat());
            store_message(&[&[kind][..], &text, &rest].concat());
        }
    }
}
