use crate::agreement::check_models_agree;
use crate::bucket::BucketLayout;
use crate::optimizer::{FlatOptimizer, FlatUpdate, OptimizerState};
use crate::reducer::Reducer;
use crate::{DataParallelConfig, GradientReduction, LossReduction, ParallelError};
use bonfire_comm::{HostBuffer, ProcessGroup, ReduceOp};
use bonfire_tensor::TensorError;
use bonfire_tensor::hook::{Anchors, GradientSink, hook_parameters};
use bonfire_tensor::host::{flat_from_host, reclaim, view};
use bonfire_tensor::parameters::{self, ParameterSpec, Role};
use bonfire_tensor::state::{HostTensor, State, StateError, Stateful};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What all ranks did in the window that a step ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// Sum of the micro-batches' weights.
    pub weight: f64,
    /// Sum of the votes.
    pub votes: f64,
}

/// A model whose gradients are reduced over the ranks of a group while the backward pass runs.
///
/// ```ignore
/// let mut parallel = DataParallel::new(model, group, DataParallelConfig::default())?;
/// let mut optimizer = SgdConfig::new(0.1).with_momentum(0.9).init()?;
/// for (input, target) in batches {
///     let loss = cross_entropy(parallel.replica()?.forward(input), target);
///     parallel.backward(loss)?;
///     parallel.step(&mut optimizer, 0.1)?;
/// }
/// ```
///
/// The parameters live in flat buckets ([`BucketLayout`]) and the model's tensors are views of
/// them. A replica is a clone of the model with a hook behind every trainable parameter; a hook
/// copies the gradient into its bucket, and a full bucket is reduced by the group's engine while
/// the backward pass goes on.
///
/// # Collective
/// `new`, and `replica`, `backward`, `step` as a whole, are collective: every rank calls them
/// equally often, in the same order. A rank without samples calls
/// [`backward_without_samples`](Self::backward_without_samples).
///
/// # Reference
/// Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020,
/// arXiv:2006.15704.
pub struct DataParallel<M> {
    model: M,
    replica: Option<M>,
    device: Device,
    /// Carries buffers and checks; gradients have a group of their own, in the reducer, since the
    /// relative order may differ between ranks.
    control: ProcessGroup,
    config: DataParallelConfig,
    specs: Vec<ParameterSpec>,
    has_buffers: bool,
    anchors: Anchors,
    reducer: Arc<Reducer>,
    /// Flat parameters of each bucket, without autodiff.
    flat: Vec<Tensor<1>>,
    synchronizing: bool,
    /// Whether the window has had a forward pass.
    window_begun: bool,
    comm_wait: Duration,
}

impl<M: Module> DataParallel<M> {
    /// Checks that all ranks hold the same model, gives all of them rank 0's parameters and
    /// buffers, and lays the parameters out in buckets.
    ///
    /// # Collective
    /// All ranks of `group`. The model keeps two duplicates of the group, so the caller may go on
    /// using its own.
    ///
    /// # Errors
    /// [`ParallelError::ModelsDiffer`] on every rank; [`ParallelError::NothingToTrain`]; failures of
    /// the group.
    pub fn new(
        model: M,
        group: &ProcessGroup,
        config: DataParallelConfig,
    ) -> Result<Self, ParallelError> {
        let gradients = group.duplicate("gradients")?;
        let control = group.duplicate("buffers")?;
        drop(model.valid());
        let specs = parameters::inspect(&model)?;
        check_models_agree(&control, &specs)?;
        let trainable = parameters::trainable(&specs);
        let device = model.devices().into_iter().next().ok_or(ParallelError::NothingToTrain)?;
        if trainable.is_empty() {
            return Err(ParallelError::NothingToTrain);
        }
        // A rank alone has nothing to send: a bucket for each parameter saves copying gradients.
        let caps = match group.world_size() {
            1 => (0.0, 0.0),
            _ => (config.first_bucket_mb, config.bucket_cap_mb),
        };
        let layout = BucketLayout::new(&trainable, caps.0, caps.1);
        let anchors = Anchors::new(trainable.len(), &device);
        let reducer = Arc::new(Reducer::new(layout, gradients, config.reduction));
        let has_buffers = specs.iter().any(|spec| spec.role == Role::Buffer);
        let mut parallel = Self {
            model,
            replica: None,
            device: device.inner(),
            control,
            config,
            specs,
            has_buffers,
            anchors,
            reducer,
            flat: Vec::new(),
            synchronizing: true,
            window_begun: false,
            comm_wait: Duration::ZERO,
        };
        let state = parameters::read(&parallel.model, |_| true)?;
        let state = broadcast_state(&parallel.control, state)?;
        parallel.adopt(state)?;
        Ok(parallel)
    }

    /// The model with the current parameters. Cheap to clone; do not train through it.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The tensors of the model.
    pub fn specs(&self) -> &[ParameterSpec] {
        &self.specs
    }

    /// Where each parameter lies.
    pub fn layout(&self) -> &BucketLayout {
        self.reducer.layout()
    }

    /// Time spent waiting for reductions that the backward pass did not hide.
    pub fn comm_wait(&self) -> Duration {
        self.comm_wait
    }

    /// The model to run forward in this micro-batch, with hooks behind its parameters.
    ///
    /// Before the backward pass all calls return the same replica, so a loss may be made of several
    /// forward passes.
    ///
    /// # Collective
    /// The first micro-batch of a window, inside [`no_sync`](Self::no_sync) or not, broadcasts
    /// rank 0's running statistics if the model has any, as PyTorch does.
    ///
    /// # Errors
    /// Failures of the group.
    pub fn replica(&mut self) -> Result<M, ParallelError> {
        if let Some(replica) = &self.replica {
            return Ok(replica.clone());
        }
        self.begin_window()?;
        let sink: Arc<dyn GradientSink> = self.reducer.clone();
        let replica = hook_parameters(self.model.clone(), &self.anchors, &sink);
        self.replica = Some(replica.clone());
        Ok(replica)
    }

    /// Runs the backward pass of a micro-batch; outside [`no_sync`](Self::no_sync) its gradients,
    /// and those accumulated before, are reduced meanwhile.
    ///
    /// With [`GradientReduction::PerSample`] the loss counts as the mean over `nominal` samples;
    /// [`backward_weighted`](Self::backward_weighted) says how many there were.
    ///
    /// # Errors
    /// [`ParallelError::UnusedParameters`], [`ParallelError::LossShape`], failures of the group.
    pub fn backward(&mut self, loss: Tensor<1>) -> Result<(), ParallelError> {
        let weight = match self.config.reduction {
            GradientReduction::MeanOverRanks => 1.0,
            GradientReduction::PerSample { nominal } => nominal,
        };
        self.backward_weighted(loss, LossReduction::Mean, weight)
    }

    /// As [`backward`](Self::backward), for a micro-batch of `weight` samples (or other units of
    /// weight). Without [`GradientReduction::PerSample`] the weight has no influence.
    ///
    /// # Errors
    /// As [`backward`](Self::backward).
    pub fn backward_weighted(
        &mut self,
        loss: Tensor<1>,
        reduction: LossReduction,
        weight: f64,
    ) -> Result<(), ParallelError> {
        let elements = loss.shape().num_elements();
        if elements != 1 {
            return Err(ParallelError::LossShape { elements });
        }
        let factor = match (self.config.reduction, reduction) {
            (GradientReduction::MeanOverRanks, _) => 1.0,
            (GradientReduction::PerSample { nominal }, LossReduction::Mean) => weight / nominal,
            (GradientReduction::PerSample { nominal }, LossReduction::Sum) => 1.0 / nominal,
        };
        let loss = if factor == 1.0 { loss } else { loss.mul_scalar(factor) };
        self.reducer.begin(self.synchronizing, weight)?;
        drop(loss.backward());
        self.end_micro_batch(self.accepts_unused())
    }

    /// Takes part in a micro-batch for which this rank has no samples: contributes zeros.
    ///
    /// # Errors
    /// Failures of the group.
    pub fn backward_without_samples(&mut self) -> Result<(), ParallelError> {
        self.begin_window()?;
        self.reducer.begin(self.synchronizing, 0.0)?;
        self.end_micro_batch(true)
    }

    /// Runs `f` without communication: gradients of backward passes inside accumulate locally, and
    /// the first backward pass outside reduces them with its own.
    pub fn no_sync<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let outer = std::mem::replace(&mut self.synchronizing, false);
        let result = f(self);
        self.synchronizing = outer;
        result
    }

    /// Waits until all gradients of the window are reduced. [`step`](Self::step) does it too.
    ///
    /// # Errors
    /// Failures of the group, on every rank.
    pub fn synchronize(&mut self) -> Result<(), ParallelError> {
        let start = Instant::now();
        let result = self.reducer.wait();
        self.comm_wait += start.elapsed();
        result
    }

    /// Waits for the reduced gradients and lets `optimizer` update the parameters with learning
    /// rate `learning_rate`. Ends the window.
    ///
    /// # Errors
    /// [`ParallelError::NoGradients`] without a backward pass, [`ParallelError::NoSamples`],
    /// failures of the group.
    pub fn step(
        &mut self,
        optimizer: &mut dyn FlatOptimizer,
        learning_rate: f64,
    ) -> Result<StepReport, ParallelError> {
        self.synchronize()?;
        let totals = self.reducer.totals(&self.control)?;
        let gradient_scale = match self.config.reduction {
            GradientReduction::MeanOverRanks => 1.0,
            GradientReduction::PerSample { nominal } if totals.weight > 0.0 => {
                nominal / totals.weight
            }
            GradientReduction::PerSample { .. } => return Err(ParallelError::NoSamples),
        };
        let rates = self.segment_rates(learning_rate)?;
        let mut old = Vec::with_capacity(self.flat.len());
        for (bucket, rates) in rates.iter().enumerate() {
            let reduced = self.reducer.take(bucket)?;
            let adopted = reduced.is_adopted();
            let gradients = reduced.into_flat(&self.device);
            let segments = &self.reducer.layout().buckets()[bucket].segments;
            let new = optimizer.step(
                bucket,
                FlatUpdate {
                    parameters: &self.flat[bucket],
                    gradients,
                    gradient_scale,
                    segments,
                    rates,
                },
            )?;
            old.push((std::mem::replace(&mut self.flat[bucket], new), adopted));
        }
        self.show_flat();
        for (bucket, (memory, adopted)) in old.into_iter().enumerate() {
            // The next gradient of such a bucket brings its own memory again.
            self.reducer.recycle(bucket, if adopted { None } else { reclaim(memory) });
        }
        Ok(StepReport { weight: totals.weight, votes: totals.votes })
    }

    /// Sets this rank's vote in the coming window; the step returns the sum over all ranks.
    ///
    /// The vote travels with the gradients, so ranks can agree on something (to stop, say) without
    /// a collective of its own. Set it before the window's last backward pass.
    pub fn vote(&mut self, value: f64) {
        self.reducer.vote(value);
    }

    /// The reduced gradient of a parameter after [`synchronize`](Self::synchronize), before any
    /// optimizer has scaled it.
    ///
    /// Returns `None` for an unknown path, another number of dimensions, or before synchronising.
    pub fn gradient<const D: usize>(&self, path: &str) -> Option<Tensor<D>> {
        let layout = self.reducer.layout();
        let (bucket, segment) = layout.buckets().iter().enumerate().find_map(|(b, bucket)| {
            bucket.segments.iter().find(|segment| segment.path == path).map(|segment| (b, segment))
        })?;
        let shape: [usize; D] = segment.shape.clone().try_into().ok()?;
        let reduced = self.reducer.with_reduced(bucket, Clone::clone).ok()?;
        Some(view(&reduced.into_flat(&self.device), segment.range.clone(), shape))
    }

    /// Gives every rank rank 0's running statistics and other buffers.
    ///
    /// # Collective
    /// All ranks; does nothing when the model has no buffers.
    ///
    /// # Errors
    /// Failures of the group.
    pub fn synchronize_buffers(&mut self) -> Result<(), ParallelError> {
        if !self.has_buffers || self.control.world_size() == 1 {
            return Ok(());
        }
        let buffers = parameters::read(&self.model, |spec| spec.role == Role::Buffer)?;
        let buffers = broadcast_state(&self.control, buffers)?;
        self.model = parameters::write(self.model.clone(), buffers)?;
        Ok(())
    }

    /// Fingerprint of all parameters in path order; equal on ranks that hold the same bits.
    ///
    /// # Errors
    /// When a tensor cannot be read.
    pub fn fingerprint(&self) -> Result<u64, ParallelError> {
        let state = parameters::read(&self.model, |spec| spec.role != Role::Buffer)?;
        Ok(parameters::fingerprint(&state))
    }

    /// The state of an optimizer of this model's buckets, by module path.
    pub fn optimizer_state<'a>(&self, optimizer: &'a mut dyn FlatOptimizer) -> OptimizerState<'a> {
        let lens = (0..self.flat.len()).map(|bucket| self.reducer.memory_len(bucket)).collect();
        OptimizerState::new(optimizer, self.reducer.layout().clone(), lens, self.device.clone())
    }

    fn accepts_unused(&self) -> bool {
        self.config.find_unused_parameters || self.control.world_size() == 1
    }

    /// Broadcasts running statistics before the first forward pass of a window.
    fn begin_window(&mut self) -> Result<(), ParallelError> {
        if std::mem::replace(&mut self.window_begun, true) || !self.config.broadcast_buffers {
            return Ok(());
        }
        self.synchronize_buffers()
    }

    fn end_micro_batch(&mut self, accept_unused: bool) -> Result<(), ParallelError> {
        self.replica = None;
        if self.synchronizing {
            self.window_begun = false;
        }
        self.reducer.finish(accept_unused)
    }

    /// Makes the model's parameters views of fresh buckets that hold `state`'s values.
    fn adopt(&mut self, state: State) -> Result<(), TensorError> {
        self.replica = None;
        self.model = parameters::write(self.model.clone(), state.clone())?;
        let layout = self.reducer.layout();
        let mut flat = Vec::with_capacity(layout.buckets().len());
        for (index, bucket) in layout.buckets().iter().enumerate() {
            let mut memory = HostBuffer::zeros(bucket.dtype, self.reducer.memory_len(index));
            let size = bucket.dtype.size_bytes();
            for segment in &bucket.segments {
                if let Some(tensor) = state.tensors.get(&segment.path) {
                    memory.as_bytes_mut()[segment.range.start * size..segment.range.end * size]
                        .copy_from_slice(tensor.data.as_bytes());
                }
            }
            flat.push(flat_from_host(memory, &self.device));
        }
        self.flat = flat;
        self.show_flat();
        Ok(())
    }

    fn show_flat(&mut self) {
        self.replica = None;
        let layout = self.reducer.layout();
        let flat = &self.flat;
        self.model = parameters::set_trainable(self.model.clone(), |parameter| {
            let (bucket, segment) = layout.place(parameter)?;
            Some((flat[bucket].clone(), layout.buckets()[bucket].segments[segment].range.clone()))
        });
    }

    /// The learning rate of each segment; none for one that no rank used.
    fn segment_rates(&self, learning_rate: f64) -> Result<Vec<Vec<Option<f64>>>, ParallelError> {
        let used = self.reducer.used();
        let mut flags: Vec<u8> = used.iter().flatten().map(|used| u8::from(*used)).collect();
        if self.config.find_unused_parameters {
            self.control.all_reduce(&mut flags, ReduceOp::Max)?;
        } else if !self.accepts_unused() {
            flags.fill(1);
        }
        let mut flags = flags.into_iter();
        let mut rate = |_: &bool| (flags.next() == Some(1)).then_some(learning_rate);
        Ok(used.iter().map(|bucket| bucket.iter().map(&mut rate).collect()).collect())
    }
}

/// Parameters and buffers by module path.
impl<M: Module> Stateful for DataParallel<M> {
    fn state(&self) -> Result<State, TensorError> {
        parameters::read(&self.model, |_| true)
    }

    fn load_state(&mut self, state: State) -> Result<(), TensorError> {
        for spec in &self.specs {
            if !state.tensors.contains_key(&spec.path) {
                return Err(StateError::Missing { kind: "tensor", name: spec.path.clone() }.into());
            }
        }
        self.adopt(state)
    }
}

/// Gives every rank rank 0's tensors, one broadcast for each.
fn broadcast_state(group: &ProcessGroup, state: State) -> Result<State, ParallelError> {
    if group.world_size() == 1 {
        return Ok(state);
    }
    let mut works = Vec::new();
    for (name, tensor) in state.tensors {
        let work = group.start_broadcast(bonfire_comm::Buffer::Host(tensor.data), 0)?;
        works.push((name, tensor.shape, work));
    }
    let mut out = State::default();
    for (name, shape, work) in works {
        if let bonfire_comm::Buffer::Host(data) = work.wait()? {
            out.tensors.insert(name, HostTensor { shape, data });
        }
    }
    Ok(out)
}
