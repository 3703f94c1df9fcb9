//! Gathers the gradients of a window into buckets and reduces each as soon as it is full.
//!
//! A *window* is the micro-batches between two optimizer steps; only its last one communicates. A
//! bucket goes Gathering -> InFlight -> Reduced -> (optimizer) -> Gathering:
//!
//! - Gathering: hooks copy (first micro-batch that uses the parameter) or add (later ones) gradients
//!   into the bucket's memory;
//! - InFlight: in the communicating micro-batch, all gradients of the bucket are there *and* all
//!   earlier buckets were launched; the engine owns the memory;
//! - Full, only the last bucket on an engine with blocking calls: the backward pass ends with it, so
//!   handing it to another thread would hide nothing and cost two changes of threads;
//! - Reduced: the engine has given it back. A rank alone has nobody to reduce with: there a gradient
//!   that is a whole bucket goes from Gathering to Reduced in the memory that it came in.
//!
//! ORDER: buckets are launched strictly in their layout's order, which is the same on every rank.

use crate::bucket::{Bucket, BucketLayout};
use crate::{GradientReduction, ParallelError};
use bonfire_comm::{Buffer, DType, HostBuffer, ProcessGroup, ReduceOp, Work};
use bonfire_tensor::hook::{Gradient, GradientSink};
use bonfire_tensor::host::{burn_type, flat_from_host};
use burn::tensor::{Device, Tensor};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) struct Reducer {
    layout: BucketLayout,
    group: ProcessGroup,
    op: ReduceOp,
    /// Whether two more elements behind the last bucket carry the window's totals to all ranks.
    in_band: bool,
    blocking_calls: bool,
    window: Mutex<Window>,
}

struct Window {
    slots: Vec<Slot>,
    /// Whether this micro-batch communicates.
    communicates: bool,
    next_launch: usize,
    totals: Totals,
    error: Option<ParallelError>,
}

/// What a rank, or all ranks together, did in a window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Totals {
    /// Samples, or other units of weight.
    pub(crate) weight: f64,
    /// See [`DataParallel::vote`](crate::DataParallel::vote).
    pub(crate) votes: f64,
}

/// Elements behind the last bucket: weight and votes.
const EXTRA: usize = 2;

struct Slot {
    memory: Memory,
    /// Segments still to fire in the communicating micro-batch.
    missing: usize,
    /// Segments with a gradient in this window.
    used: Vec<bool>,
}

enum Memory {
    /// `None` until the first gradient that must be copied.
    Gathering(Option<HostBuffer>),
    InFlight(Work),
    /// Full, and the next to be reduced, by the thread that waits for it.
    Full(HostBuffer),
    Reduced(Reduced),
    /// With the optimizer, or lost to a failure.
    Away,
}

/// The reduced gradients of a bucket, one behind the other.
#[derive(Clone)]
pub(crate) enum Reduced {
    /// In the bucket's memory.
    Host(HostBuffer),
    /// In the memory that the backward pass left them in.
    Adopted(Box<Tensor<1>>),
}

impl Reduced {
    /// Whether the bucket's own memory was not needed.
    pub(crate) fn is_adopted(&self) -> bool {
        matches!(self, Self::Adopted(_))
    }

    /// As a flat tensor; without a copy on the CPU.
    pub(crate) fn into_flat(self, device: &Device) -> Tensor<1> {
        match self {
            Self::Host(memory) => flat_from_host(memory, device),
            Self::Adopted(flat) => *flat,
        }
    }
}

impl Reducer {
    pub(crate) fn new(
        layout: BucketLayout,
        group: ProcessGroup,
        reduction: GradientReduction,
    ) -> Self {
        let op = match reduction {
            GradientReduction::MeanOverRanks => ReduceOp::Mean,
            GradientReduction::PerSample { .. } => ReduceOp::Sum,
        };
        // A 16-bit element does not hold a count exactly.
        let last = layout.buckets().last().map(|bucket| bucket.dtype);
        let in_band = matches!(last, Some(DType::F32 | DType::F64)) && group.world_size() > 1;
        let blocking_calls = group.capabilities().blocking_host_calls;
        let slots = layout.buckets().iter().map(Slot::new).collect();
        let window = Window {
            slots,
            communicates: false,
            next_launch: 0,
            totals: Totals::default(),
            error: None,
        };
        let reducer =
            Self { layout, op, in_band, blocking_calls, window: Mutex::new(window), group };
        for bucket in 0..reducer.layout.buckets().len() {
            reducer.recycle(bucket, None);
        }
        reducer
    }

    pub(crate) fn layout(&self) -> &BucketLayout {
        &self.layout
    }

    /// Elements of a bucket's memory: its parameters and, in the last one, the totals.
    pub(crate) fn memory_len(&self, bucket: usize) -> usize {
        let last = bucket + 1 == self.layout.buckets().len();
        self.layout.buckets()[bucket].num_elements() + if self.in_band && last { EXTRA } else { 0 }
    }

    /// Begins a micro-batch; with `communicates`, buckets leave as they fill.
    pub(crate) fn begin(&self, communicates: bool, weight: f64) -> Result<(), ParallelError> {
        let mut window = self.lock();
        if window.slots.iter().any(|slot| !matches!(slot.memory, Memory::Gathering(_))) {
            return Err(ParallelError::WindowOver { rank: self.group.rank() });
        }
        window.error = None;
        window.communicates = communicates;
        window.totals.weight += weight;
        window.next_launch = 0;
        for slot in &mut window.slots {
            slot.missing = slot.used.len();
        }
        Ok(())
    }

    /// Ends a micro-batch: what did not fire in it is completed, and the rest is launched.
    pub(crate) fn finish(&self, accept_unused: bool) -> Result<(), ParallelError> {
        let mut window = self.lock();
        if let Some(error) = window.error.take() {
            // The other ranks wait for what this one cannot send.
            self.group.abort(&error.to_string());
            return Err(error);
        }
        if !window.communicates {
            return Ok(());
        }
        let unused = self.zero_unused(&mut window);
        if !accept_unused && !unused.is_empty() {
            let error =
                ParallelError::UnusedParameters { rank: self.group.rank(), parameters: unused };
            self.group.abort(&error.to_string());
            return Err(error);
        }
        window.slots.iter_mut().for_each(|slot| slot.missing = 0);
        self.launch_ready(&mut window)
    }

    /// Waits until every bucket is reduced. The window is not locked meanwhile.
    pub(crate) fn wait(&self) -> Result<(), ParallelError> {
        for bucket in 0..self.layout.buckets().len() {
            let memory = std::mem::replace(&mut self.lock().slots[bucket].memory, Memory::Away);
            let (memory, result) = match memory {
                Memory::InFlight(work) => {
                    (Memory::Reduced(Reduced::Host(work.wait()?.into_host()?)), Ok(()))
                }
                Memory::Full(mut memory) => {
                    self.reduce_here(&mut memory)?;
                    (Memory::Reduced(Reduced::Host(memory)), Ok(()))
                }
                Memory::Reduced(memory) => (Memory::Reduced(memory), Ok(())),
                other => (other, Err(ParallelError::NoGradients { rank: self.group.rank() })),
            };
            self.lock().slots[bucket].memory = memory;
            result?;
        }
        Ok(())
    }

    /// The segments of each bucket that had a gradient in this window on this rank.
    pub(crate) fn used(&self) -> Vec<Vec<bool>> {
        self.lock().slots.iter().map(|slot| slot.used.clone()).collect()
    }

    /// Adds this rank's vote to the window.
    pub(crate) fn vote(&self, value: f64) {
        self.lock().totals.votes = value;
    }

    /// The window's totals over all ranks; on `control` when they did not travel with the
    /// gradients.
    pub(crate) fn totals(&self, control: &ProcessGroup) -> Result<Totals, ParallelError> {
        if !self.in_band {
            let own = self.lock().totals;
            let mut values = [own.weight, own.votes];
            control.all_reduce(&mut values, ReduceOp::Sum)?;
            return Ok(Totals { weight: values[0], votes: values[1] });
        }
        let last = self.layout.buckets().len() - 1;
        let totals = self.with_reduced(last, |reduced| match reduced {
            Reduced::Host(memory) => read_totals(memory),
            Reduced::Adopted(_) => None,
        })?;
        let [weight, votes] = totals.unwrap_or_default();
        let ranks = if self.op == ReduceOp::Mean { self.group.world_size() as f64 } else { 1.0 };
        Ok(Totals { weight: weight * ranks, votes: votes * ranks })
    }

    /// Gives a reduced bucket to the optimizer.
    pub(crate) fn take(&self, bucket: usize) -> Result<Reduced, ParallelError> {
        let mut window = self.lock();
        match std::mem::replace(&mut window.slots[bucket].memory, Memory::Away) {
            Memory::Reduced(buffer) => Ok(buffer),
            other => {
                window.slots[bucket].memory = other;
                Err(ParallelError::NoGradients { rank: self.group.rank() })
            }
        }
    }

    /// Reads a reduced bucket in place.
    pub(crate) fn with_reduced<T>(
        &self,
        bucket: usize,
        read: impl FnOnce(&Reduced) -> T,
    ) -> Result<T, ParallelError> {
        match &self.lock().slots[bucket].memory {
            Memory::Reduced(reduced) => Ok(read(reduced)),
            _ => Err(ParallelError::NoGradients { rank: self.group.rank() }),
        }
    }

    /// Returns memory for a bucket's next window; its content does not matter.
    pub(crate) fn recycle(&self, bucket: usize, memory: Option<HostBuffer>) {
        let dtype = self.layout.buckets()[bucket].dtype;
        let len = self.memory_len(bucket);
        let memory = memory.filter(|memory| memory.len() == len && memory.dtype() == dtype);
        let mut window = self.lock();
        let slot = &mut window.slots[bucket];
        slot.memory = Memory::Gathering(memory);
        slot.used.iter_mut().for_each(|used| *used = false);
        window.totals = Totals::default();
    }

    fn lock(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launch_ready(&self, window: &mut Window) -> Result<(), ParallelError> {
        while window.next_launch < window.slots.len()
            && window.slots[window.next_launch].missing == 0
        {
            let bucket = window.next_launch;
            let memory = std::mem::replace(&mut window.slots[bucket].memory, Memory::Away);
            let mut memory = match memory {
                Memory::Gathering(memory) => memory.unwrap_or_else(|| self.zeros(bucket)),
                // Adopted: there is nobody to reduce with.
                Memory::Reduced(reduced) if self.group.world_size() == 1 => {
                    window.slots[bucket].memory = Memory::Reduced(reduced);
                    window.next_launch += 1;
                    continue;
                }
                other => {
                    window.slots[bucket].memory = other;
                    return Err(ParallelError::NoGradients { rank: self.group.rank() });
                }
            };
            if self.memory_len(bucket) > self.layout.buckets()[bucket].num_elements() {
                write_totals(&mut memory, window.totals);
            }
            let last = bucket + 1 == window.slots.len();
            window.slots[bucket].memory = if last && self.blocking_calls {
                Memory::Full(memory)
            } else {
                Memory::InFlight(self.group.start_all_reduce(Buffer::Host(memory), self.op)?)
            };
            window.next_launch += 1;
        }
        Ok(())
    }

    /// New memory for a bucket.
    fn zeros(&self, bucket: usize) -> HostBuffer {
        HostBuffer::zeros(self.layout.buckets()[bucket].dtype, self.memory_len(bucket))
    }

    fn reduce_here(&self, memory: &mut HostBuffer) -> Result<(), ParallelError> {
        match memory {
            HostBuffer::F32(values) => self.group.all_reduce(values, self.op)?,
            HostBuffer::F64(values) => self.group.all_reduce(values, self.op)?,
            HostBuffer::F16(values) => self.group.all_reduce(values, self.op)?,
            HostBuffer::BF16(values) => self.group.all_reduce(values, self.op)?,
            _ => {}
        }
        Ok(())
    }

    /// Zeroes what no micro-batch of the window used, and returns the paths.
    fn zero_unused(&self, window: &mut Window) -> Vec<String> {
        let mut paths = Vec::new();
        for (index, slot) in window.slots.iter_mut().enumerate() {
            let bucket = &self.layout.buckets()[index];
            let Memory::Gathering(memory) = &mut slot.memory else { continue };
            if slot.used.iter().all(|used| *used) {
                continue;
            }
            let memory = memory.get_or_insert_with(|| self.zeros(index));
            for (segment, used) in bucket.segments.iter().zip(&slot.used) {
                if !used {
                    paths.push(segment.path.clone());
                    let size = bucket.dtype.size_bytes();
                    memory.as_bytes_mut()[segment.range.start * size..segment.range.end * size]
                        .fill(0);
                }
            }
        }
        paths
    }

    fn receive(&self, index: usize, gradient: Gradient) -> Result<(), ParallelError> {
        let mut window = self.lock();
        let Some((bucket, segment)) = self.layout.place(index) else { return Ok(()) };
        let segments = &self.layout.buckets()[bucket].segments;
        let range = segments[segment].range.clone();
        let adopts = self.adopts(&window) && segments.len() == 1;
        let slot = &mut window.slots[bucket];
        let Memory::Gathering(memory) = &mut slot.memory else { return Ok(()) };
        let accumulate = slot.used[segment];
        if adopts
            && !accumulate
            && let Some(flat) = gradient.as_flat()
            && flat.dtype() == burn_type(self.layout.buckets()[bucket].dtype)
            && flat.dims() == [range.len()]
        {
            slot.memory = Memory::Reduced(Reduced::Adopted(Box::new(flat)));
            return self.received(window, bucket, segment);
        }
        let memory = memory.get_or_insert_with(|| self.zeros(bucket));
        match memory {
            HostBuffer::F32(values) => gradient.write_to(&mut values[range], accumulate)?,
            HostBuffer::F64(values) => gradient.write_to(&mut values[range], accumulate)?,
            HostBuffer::F16(values) => gradient.write_to(&mut values[range], accumulate)?,
            HostBuffer::BF16(values) => gradient.write_to(&mut values[range], accumulate)?,
            _ => {}
        }
        self.received(window, bucket, segment)
    }

    /// Whether a gradient that is a whole bucket may stay where it is: with nobody to reduce it with,
    /// and no micro-batch of the window behind this one.
    fn adopts(&self, window: &Window) -> bool {
        window.communicates && self.group.world_size() == 1
    }

    fn received(
        &self,
        mut window: MutexGuard<'_, Window>,
        bucket: usize,
        segment: usize,
    ) -> Result<(), ParallelError> {
        let slot = &mut window.slots[bucket];
        slot.used[segment] = true;
        slot.missing = slot.missing.saturating_sub(1);
        if window.communicates { self.launch_ready(&mut window) } else { Ok(()) }
    }
}

impl Slot {
    fn new(bucket: &Bucket) -> Self {
        let used = vec![false; bucket.segments.len()];
        Self { memory: Memory::Away, missing: used.len(), used }
    }
}

impl GradientSink for Reducer {
    // A hook cannot return an error through the backward pass: it is kept for `finish`.
    fn gradient(&self, index: usize, gradient: Gradient) {
        if let Err(error) = self.receive(index, gradient) {
            self.lock().error.get_or_insert(error);
        }
    }
}

fn write_totals(memory: &mut HostBuffer, totals: Totals) {
    let values = [totals.weight, totals.votes];
    match memory {
        HostBuffer::F32(memory) => {
            let at = memory.len() - EXTRA;
            memory[at..].copy_from_slice(&values.map(|value| value as f32));
        }
        HostBuffer::F64(memory) => {
            let at = memory.len() - EXTRA;
            memory[at..].copy_from_slice(&values);
        }
        _ => {}
    }
}

fn read_totals(memory: &HostBuffer) -> Option<[f64; EXTRA]> {
    match memory {
        HostBuffer::F32(memory) => memory.last_chunk::<EXTRA>().map(|x| x.map(f64::from)),
        HostBuffer::F64(memory) => memory.last_chunk::<EXTRA>().copied(),
        _ => None,
    }
}
