//! What a checkpoint holds, out and in.

mod message;

pub use message::gather_states;

use crate::TensorError;
use bonfire_comm::{DType, HostBuffer};
use std::collections::BTreeMap;

/// Something whose state a checkpoint holds: a model, an optimizer, a schedule, a sampler, a
/// callback.
///
/// Saving and then loading into an object built from the same configuration must leave it bit for
/// bit as it was.
pub trait Stateful {
    /// Returns the state as named tensors and scalars.
    ///
    /// # Errors
    /// When a tensor cannot be read from its device.
    fn state(&self) -> Result<State, TensorError>;

    /// Restores a state made by [`state`](Stateful::state).
    ///
    /// # Errors
    /// [`StateError`] naming the first entry that is missing, unexpected or of another shape or
    /// type; the object is then unchanged or must be discarded.
    fn load_state(&mut self, state: State) -> Result<(), TensorError>;
}

/// A tensor in host memory.
#[derive(Debug, Clone, PartialEq)]
pub struct HostTensor {
    /// Sizes of the dimensions; empty for a scalar.
    pub shape: Vec<usize>,
    /// The elements in row-major order.
    pub data: HostBuffer,
}

/// A value beside the tensors of a state.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    /// A truth value.
    Bool(bool),
    /// A count.
    Uint(u64),
    /// A signed number.
    Int(i64),
    /// A real number; saved with all its bits.
    Float(f64),
    /// A word.
    Text(String),
}

/// Named tensors and scalars.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    /// Tensors by name.
    pub tensors: BTreeMap<String, HostTensor>,
    /// Scalars by name.
    pub scalars: BTreeMap<String, Scalar>,
}

/// Why a state does not fit the object it is loaded into.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Happens when the object needs an entry that the state lacks.
    #[error("the state has no {kind} \"{name}\"; it was saved by another configuration")]
    Missing {
        /// Tensor or scalar.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// Happens when the state has an entry that the object does not know.
    #[error("the state has an unexpected entry \"{name}\"; it was saved by another configuration")]
    Unexpected {
        /// Its name.
        name: String,
    },
    /// Happens when a tensor has another shape or type than the object's.
    #[error(
        "tensor \"{name}\" of the state has shape {got:?} of {got_dtype:?}, \
         expected {expected:?} of {expected_dtype:?}"
    )]
    Shape {
        /// Its name.
        name: String,
        /// Shape needed.
        expected: Vec<usize>,
        /// Type needed.
        expected_dtype: DType,
        /// Shape found.
        got: Vec<usize>,
        /// Type found.
        got_dtype: DType,
    },
    /// Happens when a message between ranks is no state.
    #[error(
        "a message of {bytes} bytes from another rank is no state; do all ranks run the same program?"
    )]
    Message {
        /// Its length.
        bytes: usize,
    },
    /// Happens when a scalar has another kind or an impossible value.
    #[error("scalar \"{name}\" of the state is {got}, expected {expected}")]
    Scalar {
        /// Its name.
        name: String,
        /// What is needed.
        expected: String,
        /// What was found.
        got: String,
    },
}

impl State {
    /// Takes a tensor out by name, checking shape and type.
    ///
    /// # Errors
    /// [`StateError::Missing`] or [`StateError::Shape`].
    pub fn take_tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        dtype: DType,
    ) -> Result<HostBuffer, StateError> {
        let Some(tensor) = self.tensors.remove(name) else {
            return Err(StateError::Missing { kind: "tensor", name: name.to_string() });
        };
        if tensor.shape != shape || tensor.data.dtype() != dtype {
            return Err(StateError::Shape {
                name: name.to_string(),
                expected: shape.to_vec(),
                expected_dtype: dtype,
                got: tensor.shape,
                got_dtype: tensor.data.dtype(),
            });
        }
        Ok(tensor.data)
    }

    /// Takes a count out by name.
    ///
    /// # Errors
    /// [`StateError::Missing`] or [`StateError::Scalar`].
    pub fn take_uint(&mut self, name: &str) -> Result<u64, StateError> {
        match self.take_scalar(name)? {
            Scalar::Uint(value) => Ok(value),
            other => Err(wrong_scalar(name, "a count", &other)),
        }
    }

    /// Takes a real number out by name.
    ///
    /// # Errors
    /// [`StateError::Missing`] or [`StateError::Scalar`].
    pub fn take_float(&mut self, name: &str) -> Result<f64, StateError> {
        match self.take_scalar(name)? {
            Scalar::Float(value) => Ok(value),
            other => Err(wrong_scalar(name, "a real number", &other)),
        }
    }

    /// Takes a yes or no out by name.
    ///
    /// # Errors
    /// [`StateError::Missing`] or [`StateError::Scalar`].
    pub fn take_bool(&mut self, name: &str) -> Result<bool, StateError> {
        match self.take_scalar(name)? {
            Scalar::Bool(value) => Ok(value),
            other => Err(wrong_scalar(name, "true or false", &other)),
        }
    }

    /// Takes a scalar out by name.
    ///
    /// # Errors
    /// [`StateError::Missing`].
    pub fn take_scalar(&mut self, name: &str) -> Result<Scalar, StateError> {
        let missing = || StateError::Missing { kind: "scalar", name: name.to_string() };
        self.scalars.remove(name).ok_or_else(missing)
    }

    /// Checks that everything was taken.
    ///
    /// # Errors
    /// [`StateError::Unexpected`] naming the first entry left.
    pub fn finish(self) -> Result<(), StateError> {
        match self.tensors.into_keys().chain(self.scalars.into_keys()).next() {
            Some(name) => Err(StateError::Unexpected { name }),
            None => Ok(()),
        }
    }

    /// Adds all entries of `part` under `prefix.`.
    pub fn insert_under(&mut self, prefix: &str, part: State) {
        let named = |name: String| format!("{prefix}.{name}");
        self.tensors.extend(part.tensors.into_iter().map(|(name, value)| (named(name), value)));
        self.scalars.extend(part.scalars.into_iter().map(|(name, value)| (named(name), value)));
    }

    /// Takes all entries under `prefix.`, without the prefix.
    pub fn take_under(&mut self, prefix: &str) -> State {
        fn split<T>(map: &mut BTreeMap<String, T>, prefix: &str) -> BTreeMap<String, T> {
            let (mut under, mut rest) = (BTreeMap::new(), BTreeMap::new());
            for (name, value) in std::mem::take(map) {
                match name.strip_prefix(prefix).and_then(|name| name.strip_prefix('.')) {
                    Some(short) => under.insert(short.to_string(), value),
                    None => rest.insert(name, value),
                };
            }
            *map = rest;
            under
        }
        State {
            tensors: split(&mut self.tensors, prefix),
            scalars: split(&mut self.scalars, prefix),
        }
    }
}

fn wrong_scalar(name: &str, expected: &str, got: &Scalar) -> StateError {
    StateError::Scalar {
        name: name.to_string(),
        expected: expected.to_string(),
        got: format!("{got:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_go_in_and_out_under_a_prefix() {
        let mut part = State::default();
        part.scalars.insert("step".into(), Scalar::Uint(7));
        let data = HostBuffer::from(vec![1.0f32, 2.0]);
        part.tensors.insert("w".into(), HostTensor { shape: vec![2], data });
        let mut whole = State::default();
        whole.scalars.insert("optimizers".into(), Scalar::Bool(true));
        whole.insert_under("optimizer", part.clone());
        assert_eq!(whole.take_under("optimizer"), part);
        assert_eq!(whole.scalars.len(), 1);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let mut state = State::default();
        let data = HostBuffer::from(vec![1.0f32, 2.0]);
        state.tensors.insert("w".into(), HostTensor { shape: vec![2], data });
        let error = state.clone().take_tensor("w", &[3], DType::F32).unwrap_err();
        assert!(error.to_string().contains("\"w\""), "{error}");
        assert!(state.clone().take_uint("step").unwrap_err().to_string().contains("step"));
        assert!(state.finish().unwrap_err().to_string().contains("\"w\""));
    }
}
