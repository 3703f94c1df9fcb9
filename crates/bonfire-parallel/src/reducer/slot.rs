//! One bucket's place in a window.

use crate::bucket::Bucket;
use crate::exchange::Pending;
use bonfire_comm::HostBuffer;
use bonfire_tensor::host::flat_from_host;
use burn::tensor::{Device, Tensor};

pub(super) struct Slot {
    pub(super) memory: Memory,
    /// Segments still to fire in the communicating micro-batch.
    pub(super) missing: usize,
    /// Segments with a gradient in this window.
    pub(super) used: Vec<bool>,
    /// Whether gradients come in memory that serves as the bucket's.
    pub(super) brings_memory: bool,
}

impl Slot {
    pub(super) fn new(bucket: &Bucket, apart: bool) -> Self {
        let used = vec![false; bucket.segments.len()];
        let memory = match apart {
            true => Memory::collecting(used.len()),
            false => Memory::Gathering(None),
        };
        Self { memory, missing: used.len(), used, brings_memory: false }
    }
}

pub(super) enum Memory {
    /// `None` until the first gradient that must be copied.
    Gathering(Option<HostBuffer>),
    /// The gradients so far, on their device.
    Collecting(Vec<Option<Tensor<1>>>),
    InFlight(Box<Pending>),
    /// Full, and the next to be reduced, by the thread that waits for it.
    Full(HostBuffer),
    Reduced(Reduced),
    /// With the optimizer, or lost to a failure.
    Away,
}

impl Memory {
    pub(super) fn collecting(segments: usize) -> Self {
        Self::Collecting(vec![None; segments])
    }

    pub(super) fn in_flight(pending: Pending) -> Self {
        Self::InFlight(Box::new(pending))
    }

    /// Whether gradients may still come.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Gathering(_) | Self::Collecting(_))
    }

    /// Bytes held, as far as they are here.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Gathering(Some(memory)) | Self::Full(memory) => memory.as_bytes().len(),
            Self::Reduced(reduced) => reduced.bytes(),
            Self::Collecting(parts) => parts.iter().flatten().map(bytes_of).sum(),
            Self::Gathering(None) | Self::InFlight(_) | Self::Away => 0,
        }
    }
}

/// The reduced gradients of a bucket, one behind the other.
#[derive(Clone)]
pub(crate) enum Reduced {
    /// In the bucket's memory.
    Host(HostBuffer),
    /// In the memory that the backward pass left them in.
    Adopted(Box<Tensor<1>>),
    /// This rank's part of them.
    Part(HostBuffer),
    /// The same, on a device.
    FlatPart(Box<Tensor<1>>),
}

fn bytes_of(flat: &Tensor<1>) -> usize {
    flat.dims()[0] * flat.dtype().size()
}

impl Reduced {
    /// Whether the bucket's own memory was not needed.
    pub(crate) fn is_adopted(&self) -> bool {
        matches!(self, Self::Adopted(_))
    }

    /// As a flat tensor; without a copy on the CPU.
    pub(crate) fn into_flat(self, device: &Device) -> Tensor<1> {
        match self {
            Self::Host(memory) | Self::Part(memory) => flat_from_host(memory, device),
            Self::Adopted(flat) | Self::FlatPart(flat) => *flat,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Host(memory) | Self::Part(memory) => memory.as_bytes().len(),
            Self::Adopted(flat) | Self::FlatPart(flat) => bytes_of(flat),
        }
    }
}

/// The buffer with `len` elements, all zero, in the same memory if it is large enough.
pub(super) fn zeroed(buffer: HostBuffer, len: usize) -> HostBuffer {
    fn resized<T: Clone + Default>(mut values: Vec<T>, len: usize) -> Vec<T> {
        values.clear();
        values.resize(len, T::default());
        values
    }
    match buffer {
        HostBuffer::F32(values) => resized(values, len).into(),
        HostBuffer::F64(values) => resized(values, len).into(),
        HostBuffer::F16(values) => resized(values, len).into(),
        HostBuffer::BF16(values) => resized(values, len).into(),
        HostBuffer::I32(values) => resized(values, len).into(),
        HostBuffer::I64(values) => resized(values, len).into(),
        HostBuffer::U8(values) => resized(values, len).into(),
    }
}
