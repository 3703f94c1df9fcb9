//! Averages of running statistics, in host memory.

use bonfire_comm::{CommError, DType, Element};
use bonfire_tensor::TensorError;
use bonfire_tensor::state::{HostTensor, StateError};
use std::collections::BTreeMap;

/// Moves floating-point buffers towards their newest values by `weight` of the way; takes over the
/// others.
pub(super) fn update(
    averages: &mut BTreeMap<String, HostTensor>,
    newest: BTreeMap<String, HostTensor>,
    weight: f64,
) -> Result<(), TensorError> {
    if averages.is_empty() {
        *averages = newest;
        return Ok(());
    }
    for (name, new) in newest {
        let Some(average) = averages.get_mut(&name) else {
            return Err(StateError::Missing { kind: "tensor", name }.into());
        };
        if average.shape != new.shape || average.data.dtype() != new.data.dtype() {
            return Err(StateError::Shape {
                name,
                expected: new.shape,
                expected_dtype: new.data.dtype(),
                got: average.shape.clone(),
                got_dtype: average.data.dtype(),
            }
            .into());
        }
        let result = match new.data.dtype() {
            DType::F32 => mix(average, &new, |a: f32, b| a + weight as f32 * (b - a)),
            DType::F64 => mix(average, &new, |a: f64, b| a + weight * (b - a)),
            _ => {
                *average = new;
                Ok(())
            }
        };
        result.map_err(|error| TensorError::Read { reason: error.to_string() })?;
    }
    Ok(())
}

fn mix<E: Element>(
    average: &mut HostTensor,
    new: &HostTensor,
    mix: impl Fn(E, E) -> E,
) -> Result<(), CommError> {
    let new = new.data.as_slice::<E>()?;
    for (average, new) in average.data.as_mut_slice::<E>()?.iter_mut().zip(new) {
        *average = mix(*average, *new);
    }
    Ok(())
}
