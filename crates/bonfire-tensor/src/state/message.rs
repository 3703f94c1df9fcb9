//! States between ranks.

use super::{HostTensor, Scalar, State, StateError};
use crate::TensorError;
use bonfire_comm::{DType, HostBuffer, ProcessGroup};
use std::collections::BTreeMap;

impl State {
    /// Packs the state into one message between ranks that run the same program.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_len(&mut bytes, self.tensors.len());
        for (name, tensor) in &self.tensors {
            put_bytes(&mut bytes, name.as_bytes());
            put_len(&mut bytes, tensor.shape.len());
            tensor.shape.iter().for_each(|size| put_len(&mut bytes, *size));
            bytes.push(dtype_code(tensor.data.dtype()));
            put_bytes(&mut bytes, tensor.data.as_bytes());
        }
        put_len(&mut bytes, self.scalars.len());
        for (name, scalar) in &self.scalars {
            put_bytes(&mut bytes, name.as_bytes());
            let (kind, value) = match scalar {
                Scalar::Bool(value) => (0, vec![u8::from(*value)]),
                Scalar::Uint(value) => (1, value.to_le_bytes().to_vec()),
                Scalar::Int(value) => (2, value.to_le_bytes().to_vec()),
                Scalar::Float(value) => (3, value.to_le_bytes().to_vec()),
                Scalar::Text(value) => (4, value.as_bytes().to_vec()),
            };
            bytes.push(kind);
            put_bytes(&mut bytes, &value);
        }
        bytes
    }

    /// Unpacks what [`to_bytes`](Self::to_bytes) made.
    ///
    /// # Errors
    /// [`StateError::Message`] for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StateError> {
        let mut reader = Reader(bytes);
        let state = reader.state().ok_or(StateError::Message { bytes: bytes.len() })?;
        if reader.0.is_empty() {
            Ok(state)
        } else {
            Err(StateError::Message { bytes: bytes.len() })
        }
    }
}

/// Collects a state of every rank on rank 0, in rank order; the others get nothing.
///
/// Rank 0 holds one message at a time beside the result.
///
/// # Collective
/// All ranks of the group.
///
/// # Errors
/// Failures of the group.
pub fn gather_states(group: &ProcessGroup, own: State) -> Result<Vec<State>, TensorError> {
    if group.rank() > 0 {
        let bytes = own.to_bytes();
        group.send(&[bytes.len() as i64], 0)?;
        group.send(&bytes, 0)?;
        return Ok(Vec::new());
    }
    let mut states = vec![own];
    for rank in 1..group.world_size() {
        let mut len = [0i64];
        group.recv(&mut len, rank)?;
        let mut bytes = vec![0u8; usize::try_from(len[0]).unwrap_or(0)];
        group.recv(&mut bytes, rank)?;
        states.push(State::from_bytes(&bytes)?);
    }
    Ok(states)
}

fn put_len(bytes: &mut Vec<u8>, len: usize) {
    bytes.extend((len as u64).to_le_bytes());
}

fn put_bytes(bytes: &mut Vec<u8>, part: &[u8]) {
    put_len(bytes, part.len());
    bytes.extend_from_slice(part);
}

fn dtype_code(dtype: DType) -> u8 {
    DType::ALL.iter().position(|other| *other == dtype).map_or(u8::MAX, |code| code as u8)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn state(&mut self) -> Option<State> {
        let mut tensors = BTreeMap::new();
        for _ in 0..self.len()? {
            let name = self.text()?;
            let rank = self.len()?;
            let shape: Vec<usize> = (0..rank).map(|_| self.len()).collect::<Option<_>>()?;
            let dtype = *DType::ALL.get(usize::from(self.byte()?))?;
            let bytes = self.part()?;
            let mut data = HostBuffer::zeros(dtype, bytes.len() / dtype.size_bytes());
            if data.as_bytes().len() != bytes.len() || data.len() != shape.iter().product::<usize>()
            {
                return None;
            }
            data.as_bytes_mut().copy_from_slice(bytes);
            tensors.insert(name, HostTensor { shape, data });
        }
        let mut scalars = BTreeMap::new();
        for _ in 0..self.len()? {
            let name = self.text()?;
            let scalar = match (self.byte()?, self.part()?) {
                (0, [value]) => Scalar::Bool(*value != 0),
                (1, value) => Scalar::Uint(u64::from_le_bytes(value.try_into().ok()?)),
                (2, value) => Scalar::Int(i64::from_le_bytes(value.try_into().ok()?)),
                (3, value) => Scalar::Float(f64::from_le_bytes(value.try_into().ok()?)),
                (4, value) => Scalar::Text(String::from_utf8(value.to_vec()).ok()?),
                _ => return None,
            };
            scalars.insert(name, scalar);
        }
        Some(State { tensors, scalars })
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (part, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(part)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn len(&mut self) -> Option<usize> {
        usize::try_from(u64::from_le_bytes(self.take(8)?.try_into().ok()?)).ok()
    }

    fn part(&mut self) -> Option<&'a [u8]> {
        let len = self.len()?;
        self.take(len)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.part()?.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_survives_the_wire_and_a_cut_one_is_refused() {
        let mut state = State::default();
        let data = HostBuffer::from(vec![1.5f64, f64::NAN, -0.0]);
        state.tensors.insert("a.b".into(), HostTensor { shape: vec![3, 1], data });
        let empty = HostTensor { shape: vec![0], data: HostBuffer::from(Vec::<u8>::new()) };
        state.tensors.insert(String::new(), empty);
        for (name, scalar) in [
            ("bool", Scalar::Bool(true)),
            ("uint", Scalar::Uint(u64::MAX)),
            ("int", Scalar::Int(-3)),
            ("float", Scalar::Float(f64::MIN_POSITIVE)),
            ("text", Scalar::Text("größer".into())),
        ] {
            state.scalars.insert(name.into(), scalar);
        }
        let bytes = state.to_bytes();
        let back = State::from_bytes(&bytes).unwrap();
        assert_eq!(back.to_bytes(), bytes);
        assert_eq!(back.scalars, state.scalars);
        for len in 0..bytes.len() {
            assert!(State::from_bytes(&bytes[..len]).is_err(), "cut at {len}");
        }
    }
}
