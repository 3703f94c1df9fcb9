//! The bytes with which every connection begins, and the frames of the store.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// First bytes of a connection; the last one is the version of the protocol.
const MAGIC: [u8; 8] = *b"BONFIRE\x01";
/// Size of a hello, which is all that an unknown peer may send.
pub(crate) const HELLO_BYTES: usize = 56;
/// Time in which an unknown peer must have said hello.
pub(crate) const HELLO_DEADLINE: Duration = Duration::from_secs(5);
/// Largest value of the store.
pub(crate) const MAX_VALUE_BYTES: usize = 1 << 20;
/// Largest key of the store.
pub(crate) const MAX_KEY_BYTES: usize = 4096;
/// Largest frame: a longer one closes the connection before anything is allocated.
const MAX_FRAME_BYTES: usize = MAX_VALUE_BYTES + MAX_KEY_BYTES + 64;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Store,
    Presence,
    Mesh,
}

/// What proves that a peer belongs to this run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Credentials {
    token: u128,
    run: u64,
    restart: u32,
}

impl Credentials {
    /// No token is the same as an empty one.
    pub(crate) fn new(token: Option<&str>, run_id: &str, restart: u32) -> Self {
        let token = xxh3_128(token.unwrap_or_default().as_bytes());
        Self { token, run: xxh3_64(run_id.as_bytes()), restart }
    }
}

/// The first message of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Hello {
    pub(crate) role: Role,
    pub(crate) credentials: Credentials,
    pub(crate) rank: u32,
    pub(crate) group: u64,
}

/// The answer to a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Welcome,
    WrongToken,
    WrongVersion,
    WrongRun,
}

impl Verdict {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Welcome => "welcome",
            Self::WrongToken => {
                "the tokens differ; give every rank the same BONFIRE_TOKEN, or none on one machine"
            }
            Self::WrongVersion => "it speaks another version of the protocol, or is no Bonfire",
            Self::WrongRun => {
                "it belongs to another run (run id or restart count differ); is an earlier run \
                 still alive on this port?"
            }
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Welcome,
            1 => Self::WrongToken,
            3 => Self::WrongRun,
            _ => Self::WrongVersion,
        }
    }
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8] = self.role as u8;
        bytes[12..16].copy_from_slice(&self.credentials.restart.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.credentials.token.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.credentials.run.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.rank.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.group.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        if bytes[0..8] != MAGIC {
            return None;
        }
        let role = match bytes[8] {
            0 => Role::Store,
            1 => Role::Presence,
            2 => Role::Mesh,
            _ => return None,
        };
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let token = u128::from_le_bytes(*bytes.get(16..)?.first_chunk()?);
        let credentials = Credentials { token, run: long(32)?, restart: word(12)? };
        Some(Self { role, credentials, rank: word(40)?, group: long(48)? })
    }

    /// Introduces this process on a new connection and returns the verdict of the other end.
    pub(crate) fn say(&self, stream: &mut TcpStream, deadline: Instant) -> io::Result<Verdict> {
        stream.set_write_timeout(Some(HELLO_DEADLINE))?;
        stream.write_all(&self.encode())?;
        let mut verdict = [0];
        read_exact(stream, &mut verdict, deadline.min(Instant::now() + HELLO_DEADLINE))?;
        stream.set_read_timeout(None)?;
        Ok(Verdict::from_code(verdict[0]))
    }

    /// Reads the hello of an unknown peer, and answers it.
    ///
    /// `check_run` is whether run id and restart count must be those of `own` too.
    pub(crate) fn hear(
        stream: &mut TcpStream,
        own: &Credentials,
        check_run: bool,
    ) -> io::Result<Option<Self>> {
        let mut bytes = [0; HELLO_BYTES];
        stream.set_write_timeout(Some(HELLO_DEADLINE))?;
        read_exact(stream, &mut bytes, Instant::now() + HELLO_DEADLINE)?;
        let hello = Self::decode(&bytes);
        let verdict = match &hello {
            None => Verdict::WrongVersion,
            Some(hello) if !same_token(&hello.credentials, own) => Verdict::WrongToken,
            Some(hello) if check_run && !same_run(&hello.credentials, own) => Verdict::WrongRun,
            Some(_) => Verdict::Welcome,
        };
        stream.write_all(&[verdict as u8])?;
        stream.set_read_timeout(None)?;
        Ok(hello.filter(|_| verdict == Verdict::Welcome))
    }
}

/// Compares in a time that does not depend on where the tokens differ.
fn same_token(theirs: &Credentials, own: &Credentials) -> bool {
    let pairs = theirs.token.to_le_bytes().into_iter().zip(own.token.to_le_bytes());
    let difference = pairs.fold(0u8, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
    difference == 0
}

fn same_run(theirs: &Credentials, own: &Credentials) -> bool {
    (theirs.run, theirs.restart) == (own.run, own.restart)
}

/// Fills `bytes`, however slowly they drip, but not beyond `deadline`.
fn read_exact(stream: &mut TcpStream, bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes one frame: length, kind, payload.
pub(crate) fn write_frame(stream: &mut impl Write, kind: u8, parts: &[&[u8]]) -> io::Result<()> {
    let len = 1 + parts.iter().map(|part| part.len()).sum::<usize>();
    if len > MAX_FRAME_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("frame of {len} bytes")));
    }
    let mut frame = Vec::with_capacity(4 + len);
    frame.extend_from_slice(&(len as u32).to_le_bytes());
    frame.push(kind);
    parts.iter().for_each(|part| frame.extend_from_slice(part));
    stream.write_all(&frame)
}

/// Reads one frame and returns its kind and payload.
pub(crate) fn read_frame(stream: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len == 0 || len > MAX_FRAME_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("frame of {len} bytes")));
    }
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    // Grows with what arrives, so that a length alone takes no memory.
    let mut payload = Vec::new();
    let read = stream.take(len as u64 - 1).read_to_end(&mut payload)?;
    if read + 1 < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((kind[0], payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_survives_the_wire() {
        let credentials = Credentials::new(Some("secret"), "run", 2);
        let hello = Hello { role: Role::Mesh, credentials, rank: 7, group: 99 };
        let decoded = Hello::decode(&hello.encode()).unwrap();
        assert!(decoded.credentials == credentials);
        assert_eq!((decoded.role, decoded.rank, decoded.group), (Role::Mesh, 7, 99));
        assert!(Hello::decode(&[0xff; HELLO_BYTES]).is_none());
    }

    #[test]
    fn a_garbage_length_is_refused_before_it_is_allocated() {
        let error = read_frame(&mut &[0xff; 64][..]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let error = read_frame(&mut &[0xff, 0xff, 0, 0, 1, 2][..]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    proptest::proptest! {
        #[test]
        fn any_frame_comes_back(kind: u8, payload: Vec<u8>) {
            let mut bytes = Vec::new();
            write_frame(&mut bytes, kind, &[&payload]).unwrap();
            proptest::prop_assert_eq!(read_frame(&mut &bytes[..]).unwrap(), (kind, payload));
        }

        #[test]
        fn no_garbage_panics(bytes: Vec<u8>) {
            let _ = read_frame(&mut &bytes[..]);
        }
    }
}
