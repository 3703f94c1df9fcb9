//! Gathers the gradients of a window into buckets and sends each off as soon as it is full.
//!
//! A *window* is the micro-batches between two optimizer steps; only its last one communicates. A
//! bucket goes Gathering -> InFlight -> Reduced -> (optimizer) -> Gathering:
//!
//! - Gathering: hooks copy (first micro-batch that uses the parameter) or add (later ones) gradients
//!   into the bucket's memory (`receive.rs`);
//! - InFlight: in the communicating micro-batch, all gradients of the bucket are there *and* all
//!   earlier buckets were launched; the engine, or the communication hook, owns the memory;
//! - Full, on an engine with blocking calls: the last bucket, with which the backward pass ends, and
//!   tiny ones. Handing them to another thread would hide little and cost two changes of threads; the
//!   thread that waits reduces them;
//! - Reduced: it has come back. Where nothing is exchanged, a gradient that is a whole bucket goes
//!   from Gathering to Reduced in the memory that it came in.
//!
//! A gradient that is a whole bucket is not copied: the bucket takes its memory.
//!
//! On a device a bucket keeps the gradients themselves (Collecting) and becomes one flat tensor when it
//! leaves (`apart.rs`); the host waits for none of it.
//!
//! ORDER: buckets are launched strictly in their layout's order, which is the same on every rank, and
//! the Full ones in that order after all others.

mod apart;
mod receive;
mod slot;
mod totals;

pub(crate) use slot::Reduced;
pub(crate) use totals::Totals;

use crate::bucket::BucketLayout;
use crate::exchange::{self, Arrived, Exchange, HookRunner};
use crate::shard::Sharding;
use crate::{ParallelError, exchange::Pending};
use bonfire_comm::{DType, HostBuffer, ProcessGroup, flight, range_of};
use bonfire_tensor::host::{flat_from_host, to_host};
use burn::tensor::Device;
use slot::{Memory, Slot};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use totals::EXTRA;

/// Whole buckets on their way at once where a rank keeps a part only.
const MOST_IN_FLIGHT: usize = 2;

pub(crate) struct Reducer {
    layout: Arc<BucketLayout>,
    /// Elements of each bucket's memory: its parameters, the totals in the last one, padding.
    lens: Vec<usize>,
    group: ProcessGroup,
    sharding: Option<Sharding>,
    hook: Option<Arc<HookRunner>>,
    /// The bucket behind which the window's totals have a place.
    totals_in: Option<usize>,
    blocking_calls: bool,
    /// Where the buckets lie, if host memory is out of reach from there.
    apart: Option<Device>,
    /// What the flight recorder calls the collectives of each bucket.
    labels: Vec<Arc<str>>,
    window: Mutex<Window>,
}

struct Window {
    slots: Vec<Slot>,
    exchange: Exchange,
    /// Whether this micro-batch communicates.
    communicates: bool,
    next_launch: usize,
    totals: Totals,
    /// Trainable parameters that had no gradient on this rank, where that is an error.
    unused: Vec<String>,
    /// Parameters that have a gradient in every window, if that was promised; by index.
    expected: Option<Vec<bool>>,
    error: Option<ParallelError>,
    /// Bucket memory that nobody uses.
    spare: Vec<HostBuffer>,
}

impl Reducer {
    pub(crate) fn new(
        layout: BucketLayout,
        group: ProcessGroup,
        sharding: Option<Sharding>,
        hook: Option<Arc<HookRunner>>,
        apart: Option<Device>,
    ) -> Self {
        let blocking_calls = group.capabilities().blocking_host_calls && apart.is_none();
        let totals_in = match group.world_size() {
            1 => None,
            _ => place_of_totals(&layout, blocking_calls),
        };
        let count = layout.buckets().len();
        let len = |index: usize| {
            let extra = if totals_in == Some(index) { EXTRA } else { 0 };
            let len = layout.buckets()[index].num_elements() + extra;
            let len = if apart.is_some() { apart::padded(len) } else { len };
            sharding.map_or(len, |sharding| sharding.padded(len))
        };
        let window = Window {
            slots: layout
                .buckets()
                .iter()
                .map(|bucket| Slot::new(bucket, apart.is_some()))
                .collect(),
            exchange: Exchange::None,
            communicates: false,
            next_launch: 0,
            totals: Totals::default(),
            unused: Vec::new(),
            expected: None,
            error: None,
            spare: Vec::new(),
        };
        Self {
            lens: (0..count).map(len).collect(),
            blocking_calls,
            layout: Arc::new(layout),
            group,
            sharding,
            hook,
            totals_in,
            apart,
            labels: (0..count).map(|bucket| format!("bucket {bucket}").into()).collect(),
            window: Mutex::new(window),
        }
    }

    /// The same reducer over other buckets, at the start of a window.
    pub(crate) fn with_layout(&self, layout: BucketLayout) -> Self {
        let apart = self.apart.clone();
        let new = Self::new(layout, self.group.clone(), self.sharding, self.hook.clone(), apart);
        new.lock().expected = self.lock().expected.clone();
        new
    }

    pub(crate) fn layout(&self) -> &BucketLayout {
        &self.layout
    }

    /// Carries gradients and nothing else while a window communicates.
    pub(crate) fn group(&self) -> &ProcessGroup {
        &self.group
    }

    pub(crate) fn hook(&self) -> Option<&HookRunner> {
        self.hook.as_deref()
    }

    /// Elements of a bucket's memory.
    pub(crate) fn memory_len(&self, bucket: usize) -> usize {
        self.lens[bucket]
    }

    /// Begins a micro-batch that ends the window, whose buckets leave as they fill.
    pub(crate) fn begin_last(&self, exchange: Exchange, weight: f64) -> Result<(), ParallelError> {
        let mut window = self.begin(weight)?;
        window.exchange = exchange;
        window.communicates = true;
        window.next_launch = 0;
        let window = &mut *window;
        let Some(expected) = &window.expected else {
            window.slots.iter_mut().for_each(|slot| slot.missing = slot.used.len());
            return Ok(());
        };
        for (slot, bucket) in window.slots.iter_mut().zip(self.layout.buckets()) {
            slot.missing =
                bucket.segments.iter().filter(|segment| expected[segment.parameter]).count();
        }
        Ok(())
    }

    /// Begins a micro-batch whose gradients stay here.
    pub(crate) fn begin_quiet(&self, weight: f64) -> Result<(), ParallelError> {
        self.begin(weight)?.communicates = false;
        Ok(())
    }

    fn begin(&self, weight: f64) -> Result<MutexGuard<'_, Window>, ParallelError> {
        let mut window = self.lock();
        if window.slots.iter().any(|slot| !slot.memory.is_open()) {
            return Err(ParallelError::WindowOver { rank: self.group.rank() });
        }
        window.error = None;
        window.totals.weight += weight;
        Ok(window)
    }

    /// Ends a micro-batch. In the last one of a window, what no micro-batch used is completed with
    /// zeros, and the rest is launched.
    ///
    /// Unless `accept_unused`, the parameters without a gradient are kept for
    /// [`unused`](Self::unused), and counted in the totals: all ranks have to hear of them.
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
        if !accept_unused {
            window.unused = self.missing_gradients(&window);
            window.totals.unused = window.unused.len() as f64;
        }
        window.slots.iter_mut().for_each(|slot| slot.missing = 0);
        self.launch_ready(&mut window)
    }

    /// Waits until every bucket has come back. The window is not locked meanwhile.
    pub(crate) fn wait(&self) -> Result<(), ParallelError> {
        for bucket in 0..self.lens.len() {
            let memory = std::mem::replace(&mut self.lock().slots[bucket].memory, Memory::Away);
            let reduced = match memory {
                Memory::InFlight(pending) => {
                    let arrived = pending.wait(self.sharding)?;
                    self.lock().arrived(bucket, arrived, self.apart.as_ref())
                }
                Memory::Full(mut memory) => {
                    if self.totals_in == Some(bucket) {
                        let at = self.layout.buckets()[bucket].num_elements();
                        let ranks = self.group.world_size();
                        self.lock().totals.write(&mut memory, at, ranks);
                    }
                    flight::label(self.labels[bucket].clone(), || {
                        exchange::all_reduce_here(&self.group, &mut memory)
                    })?;
                    Reduced::Host(memory)
                }
                Memory::Reduced(reduced) => reduced,
                other => {
                    self.lock().slots[bucket].memory = other;
                    return Err(ParallelError::NoGradients { rank: self.group.rank() });
                }
            };
            self.lock().slots[bucket].memory = Memory::Reduced(reduced);
        }
        Ok(())
    }

    /// The segments of each bucket that had a gradient in this window on this rank.
    pub(crate) fn used(&self) -> Vec<Vec<bool>> {
        self.lock().slots.iter().map(|slot| slot.used.clone()).collect()
    }

    /// Paths of the parameters that should have had a gradient in this window and had none.
    pub(crate) fn unused(&self) -> Vec<String> {
        self.lock().unused.clone()
    }

    /// From now on the parameters that were used in this window, and only they, have a gradient in
    /// every window.
    pub(crate) fn expect_the_same(&self) {
        let mut window = self.lock();
        let mut expected = vec![false; self.layout.segments().count()];
        for (slot, bucket) in window.slots.iter().zip(self.layout.buckets()) {
            for (segment, used) in bucket.segments.iter().zip(&slot.used) {
                expected[segment.parameter] = *used;
            }
        }
        window.expected = Some(expected);
    }

    /// Marks the parameters that a hook has a gradient for, be it only what it held back before: equal
    /// on all ranks, as the reduced gradients are.
    pub(crate) fn mark_owed(&self, used: &mut [bool]) -> Result<(), ParallelError> {
        for (index, bucket) in self.layout.buckets().iter().enumerate() {
            let unused = || bucket.segments.iter().filter(|segment| !used[segment.parameter]);
            if unused().next().is_none() {
                continue;
            }
            let size = bucket.dtype.size_bytes();
            let owed: Vec<usize> = self.with_reduced(index, |reduced| {
                let copy;
                let memory = match reduced {
                    Reduced::Host(memory) => memory,
                    Reduced::Adopted(flat) => {
                        copy = to_host(flat.as_ref().clone())?;
                        &copy
                    }
                    Reduced::Part(_) | Reduced::FlatPart(_) => return Ok(Vec::new()),
                };
                let bytes = memory.as_bytes();
                let is_zero = |range: &std::ops::Range<usize>| {
                    bytes[range.start * size..range.end * size].iter().all(|byte| *byte == 0)
                };
                let owed = unused().filter(|segment| !is_zero(&segment.range));
                Ok::<_, ParallelError>(owed.map(|segment| segment.parameter).collect())
            })??;
            owed.into_iter().for_each(|parameter| used[parameter] = true);
        }
        Ok(())
    }

    /// Takes a bucket over that another reducer has reduced.
    pub(crate) fn put(&self, bucket: usize, reduced: Reduced) {
        self.lock().slots[bucket].memory = Memory::Reduced(reduced);
    }

    /// Gives a reduced bucket to the optimizer.
    pub(crate) fn take(&self, bucket: usize) -> Result<Reduced, ParallelError> {
        let mut window = self.lock();
        match std::mem::replace(&mut window.slots[bucket].memory, Memory::Away) {
            Memory::Reduced(reduced) => Ok(reduced),
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

    /// Ends a bucket's window. `memory` serves the next one; its content does not matter.
    pub(crate) fn recycle(&self, bucket: usize, memory: Option<HostBuffer>) {
        let dtype = self.layout.buckets()[bucket].dtype;
        let len = self.lens[bucket];
        let memory = memory.filter(|memory| memory.len() == len && memory.dtype() == dtype);
        let mut window = self.lock();
        let slot = &mut window.slots[bucket];
        slot.memory = match self.apart {
            Some(_) => Memory::collecting(slot.used.len()),
            None => Memory::Gathering(if slot.brings_memory { None } else { memory }),
        };
        slot.brings_memory = false;
        slot.used.iter_mut().for_each(|used| *used = false);
        window.totals = Totals::default();
        window.unused = Vec::new();
    }

    /// Bytes of gradient memory that this rank holds now.
    pub(crate) fn gradient_bytes(&self) -> usize {
        let window = self.lock();
        let spare = window.spare.iter().map(|memory| memory.as_bytes().len()).sum::<usize>();
        spare + window.slots.iter().map(|slot| slot.memory.bytes()).sum::<usize>()
    }

    fn lock(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launch_ready(&self, window: &mut Window) -> Result<(), ParallelError> {
        while window.next_launch < window.slots.len()
            && window.slots[window.next_launch].missing == 0
        {
            self.launch(window, window.next_launch)?;
            window.next_launch += 1;
        }
        Ok(())
    }

    fn launch(&self, window: &mut Window, bucket: usize) -> Result<(), ParallelError> {
        let _range = range_of(|| format!("bucket {bucket}"));
        flight::label(self.labels[bucket].clone(), || self.send_off(window, bucket))
    }

    fn send_off(&self, window: &mut Window, bucket: usize) -> Result<(), ParallelError> {
        let mut memory = match std::mem::replace(&mut window.slots[bucket].memory, Memory::Away) {
            Memory::Gathering(Some(memory)) => memory,
            Memory::Gathering(None) => self.fresh(window, bucket)?,
            Memory::Collecting(parts) => return self.launch_apart(window, bucket, parts),
            other => {
                let adopted = matches!(other, Memory::Reduced(_));
                window.slots[bucket].memory = other;
                return match adopted {
                    true => Ok(()),
                    false => Err(ParallelError::NoGradients { rank: self.group.rank() }),
                };
            }
        };
        self.zero_unused(window, bucket, &mut memory);
        window.slots[bucket].memory = match (window.exchange, &self.hook) {
            (Exchange::None, _) => Memory::Reduced(Reduced::Host(memory)),
            (Exchange::Hook, Some(hook)) => {
                Memory::in_flight(hook.start(&self.layout, bucket, memory)?)
            }
            (Exchange::AllReduce, _) if is_full(&self.layout, bucket, self.blocking_calls) => {
                Memory::Full(memory)
            }
            (exchange, _) => Memory::in_flight(exchange::start(&self.group, exchange, memory)?),
        };
        Ok(())
    }

    /// Memory for a bucket that begins to fill, zeroed.
    fn fresh(&self, window: &mut Window, bucket: usize) -> Result<HostBuffer, ParallelError> {
        let (dtype, len) = (self.layout.buckets()[bucket].dtype, self.lens[bucket]);
        window.reclaim_parts(self.sharding)?;
        Ok(match window.spare.iter().position(|memory| memory.dtype() == dtype) {
            Some(index) => slot::zeroed(window.spare.swap_remove(index), len),
            None => HostBuffer::zeros(dtype, len),
        })
    }
}

/// Buckets of fewer bytes are reduced by the thread that waits.
const TINY: usize = 64 * 1024;

/// Whether a bucket, once full, is left to the thread that waits for it.
fn is_full(layout: &BucketLayout, bucket: usize, blocking_calls: bool) -> bool {
    let buckets = layout.buckets();
    blocking_calls && (bucket + 1 == buckets.len() || buckets[bucket].num_bytes() < TINY)
}

/// The last bucket that leaves after the backward pass, when all counts are known, and that takes no
/// gradient's memory, in which there is no room. A 16-bit element does not hold a count exactly.
fn place_of_totals(layout: &BucketLayout, blocking_calls: bool) -> Option<usize> {
    layout.buckets().iter().enumerate().rposition(|(index, bucket)| {
        is_full(layout, index, blocking_calls)
            && bucket.segments.len() > 1
            && matches!(bucket.dtype, DType::F32 | DType::F64)
    })
}

impl Window {
    /// Sorts what came back into the bucket's result and memory for others.
    fn arrived(&mut self, bucket: usize, arrived: Arrived, apart: Option<&Device>) -> Reduced {
        match arrived {
            Arrived::Flat(flat) => Reduced::Adopted(Box::new(flat)),
            Arrived::FlatPart(part) => Reduced::FlatPart(Box::new(part)),
            // A hook has had it in host memory.
            Arrived::Whole(memory) => match apart {
                Some(device) => Reduced::Adopted(Box::new(flat_from_host(memory, device))),
                None => Reduced::Host(memory),
            },
            Arrived::Part { part, memory } => {
                // The next gradient brings its own again.
                if !self.slots[bucket].brings_memory {
                    self.spare.push(memory);
                }
                Reduced::Part(part)
            }
        }
    }

    /// Frees the memory of buckets whose part has come back, and waits for the oldest one where more
    /// than [`MOST_IN_FLIGHT`] are on their way: parts are there to save memory.
    fn reclaim_parts(&mut self, sharding: Option<Sharding>) -> Result<(), ParallelError> {
        let part = |slot: &Slot| match &slot.memory {
            Memory::InFlight(pending) => {
                matches!(**pending, Pending::Part(_) | Pending::LentPart(_))
            }
            _ => false,
        };
        let mut on_their_way = self.slots.iter().filter(|slot| part(slot)).count();
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let free = match &slot.memory {
                Memory::InFlight(pending) => match pending.as_ref() {
                    Pending::Part(_) => on_their_way > MOST_IN_FLIGHT || pending.is_done(),
                    // To wait on a device would stop the backward pass there.
                    Pending::LentPart(_) => pending.is_done(),
                    _ => false,
                },
                _ => false,
            };
            if free
                && let Memory::InFlight(pending) = std::mem::replace(&mut slot.memory, Memory::Away)
            {
                let arrived = pending.wait(sharding)?;
                let reduced = self.arrived(index, arrived, None);
                self.slots[index].memory = Memory::Reduced(reduced);
                on_their_way -= 1;
            }
        }
        Ok(())
    }
}
