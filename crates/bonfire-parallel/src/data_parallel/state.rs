//! What a checkpoint keeps of a data-parallel model.

use super::DataParallel;
use crate::ParallelError;
use crate::optimizer::{FlatOptimizer, OptimizerState};
use crate::reducer::Reducer;
use bonfire_comm::HostBuffer;
use bonfire_tensor::TensorError;
use bonfire_tensor::parameters::{self, Role};
use bonfire_tensor::state::{HostTensor, Scalar, State, StateError, Stateful, gather_states};
use burn::module::Module;
use std::sync::Arc;

/// Scalar: optimizer steps taken.
const STEPS: &str = "steps";
/// Tensor: indices of the trainable parameters in the order in which their gradients arrive.
const ARRIVAL: &str = "arrival";
/// Scalar: ranks whose own state was saved.
const RANKS: &str = "ranks";
/// Scalar: the communication hook with its settings, if there is one.
const HOOK_SETTINGS: &str = "hook_settings";
/// Parts of a rank's own state.
const HOOK: &str = "hook";
const LOCAL: &str = "local";
const LOCAL_OPTIMIZER: &str = "local_optimizer";
/// State of the outer optimizer.
const OUTER: &str = "outer";

/// Parameters and buffers by module path.
impl<M: Module> Stateful for DataParallel<M> {
    fn state(&self) -> Result<State, TensorError> {
        if self.flat.is_empty() {
            let reason = "a step has failed half-way: the parameters are lost".to_string();
            return Err(TensorError::Read { reason });
        }
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

impl<M: Module> DataParallel<M> {
    /// The state of an optimizer of this model's buckets, by module path.
    ///
    /// # Collective
    /// Where ranks share the optimizer ([`ZeroStage`](crate::ZeroStage)), saving it is: rank 0 gets
    /// the state of all of them, the others an empty one. Loading is not; every rank takes its part
    /// of the whole state.
    pub fn optimizer_state<'a>(&self, optimizer: &'a mut dyn FlatOptimizer) -> OptimizerState<'a> {
        self.optimizer_state_of(&self.reducer, optimizer)
    }

    pub(super) fn optimizer_state_of<'a>(
        &self,
        reducer: &Reducer,
        optimizer: &'a mut dyn FlatOptimizer,
    ) -> OptimizerState<'a> {
        let lens = (0..reducer.layout().buckets().len()).map(|k| reducer.memory_len(k)).collect();
        let parts = self.sharding.map(|sharding| (sharding, self.control.clone()));
        let (layout, device) = (reducer.layout().clone(), self.device.clone());
        OptimizerState::new(optimizer, layout, lens, device, parts)
    }

    /// What a continuation needs beside the model and the optimizer: the order of the buckets, the
    /// number of steps, and what each rank has for itself (what a compressing hook holds back,
    /// parameters and optimizer state between two averages).
    ///
    /// Rank 0 gets the state of all ranks, the others an empty one.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// When a tensor cannot be read; failures of the group.
    pub fn exchange_state(
        &self,
        optimizer: &mut dyn FlatOptimizer,
    ) -> Result<State, ParallelError> {
        let own = self.own_exchange_state(optimizer)?;
        let all = gather_states(&self.control, own)?;
        Ok(self.combined_exchange_state(all))
    }

    /// What [`exchange_state`](Self::exchange_state) returns to rank 0, without asking the others; to
    /// save a run whose ranks do not answer any more. `None` where only the ranks together know it:
    /// with a communication hook, a sharded optimizer, or between two averages of
    /// [`LocalSgd`](crate::LocalSgd).
    pub fn replicated_exchange_state(&self) -> Option<State> {
        let ranks = self.control.world_size();
        let apart = self.reducer.hook().is_some()
            || (self.sharding.is_some() && ranks > 1)
            || self.config.local_sgd.is_some() && ranks > 1;
        (!apart).then(|| self.combined_exchange_state(vec![State::default(); ranks]))
    }

    /// What this rank has for itself.
    fn own_exchange_state(
        &self,
        optimizer: &mut dyn FlatOptimizer,
    ) -> Result<State, ParallelError> {
        let mut own = State::default();
        if let Some(hook) = self.reducer.hook() {
            own.insert_under(HOOK, hook.hook().state()?);
        }
        if self.drifts() {
            own.insert_under(
                LOCAL,
                parameters::read(&self.model, |spec| spec.role == Role::Trainable)?,
            );
        }
        if self.optimizers_differ() {
            own.insert_under(LOCAL_OPTIMIZER, self.optimizer_state(optimizer).state()?);
        }
        Ok(own)
    }

    /// The state of all ranks from that of each; empty on a rank that has been told of none.
    fn combined_exchange_state(&self, all: Vec<State>) -> State {
        let mut state = State::default();
        if all.is_empty() {
            return state;
        }
        state.scalars.insert(STEPS.to_string(), Scalar::Uint(self.steps));
        state.scalars.insert(RANKS.to_string(), Scalar::Uint(all.len() as u64));
        if self.reducer.hook().is_some() {
            let settings = format!("{:?}", self.config.compression);
            state.scalars.insert(HOOK_SETTINGS.to_string(), Scalar::Text(settings));
        }
        if let Some(arrival) = &self.arrival {
            let order: Vec<i64> = arrival.iter().map(|index| *index as i64).collect();
            let shape = vec![order.len()];
            let order = HostTensor { shape, data: HostBuffer::from(order) };
            state.tensors.insert(ARRIVAL.to_string(), order);
        }
        state.insert_under(OUTER, self.outer.state(self.reducer.layout()));
        for (rank, own) in all.into_iter().enumerate() {
            state.insert_under(&format!("rank{rank}"), own);
        }
        state
    }

    /// Restores what [`exchange_state`](Self::exchange_state) of rank 0 returned, and the state of
    /// the optimizer; after the model.
    ///
    /// With another number of ranks than at saving time, every rank goes on from the model and from
    /// rank 0's optimizer, and a hook from the mean of what was held back; a rank alone has no hook.
    ///
    /// # Errors
    /// [`StateError`] when a state belongs to another model or other settings.
    pub fn load_exchange_state(
        &mut self,
        mut state: State,
        optimizer: &mut dyn FlatOptimizer,
        optimizer_state: State,
    ) -> Result<(), ParallelError> {
        self.steps = state.take_uint(STEPS)?;
        let saved = state.take_uint(RANKS)? as usize;
        if let Some(order) = state.tensors.remove(ARRIVAL) {
            self.load_arrival(&order)?;
        }
        let outer = state.take_under(OUTER);
        if self.config.local_sgd.is_some() {
            let lens = (0..self.flat.len()).map(|bucket| self.reducer.memory_len(bucket));
            self.outer.load(outer, self.reducer.layout(), lens)?;
        }
        let mut ranks: Vec<State> =
            (0..saved).map(|rank| state.take_under(&format!("rank{rank}"))).collect();
        let saved_hook = state.scalars.remove(HOOK_SETTINGS);
        state.finish()?;
        let states = ranks.iter_mut().map(|own| own.take_under(HOOK)).collect();
        self.load_hook_state(saved_hook, states)?;
        let mut own = match saved == self.control.world_size() {
            true => ranks.swap_remove(self.control.rank()),
            false => State::default(),
        };
        let local = own.take_under(LOCAL);
        if !local.tensors.is_empty() {
            let mut whole = self.state()?;
            whole.tensors.extend(local.tensors);
            self.load_state(whole)?;
        }
        let local = own.take_under(LOCAL_OPTIMIZER);
        let optimizer_state = if local == State::default() { optimizer_state } else { local };
        optimizer.reset();
        Ok(self.optimizer_state(optimizer).load_state(optimizer_state)?)
    }

    /// Restores what a hook has held back, if it is the hook that has saved it.
    fn load_hook_state(
        &self,
        saved: Option<Scalar>,
        states: Vec<State>,
    ) -> Result<(), ParallelError> {
        let saved = match saved {
            Some(Scalar::Text(name)) => name,
            _ => "none".to_string(),
        };
        let now = match self.reducer.hook() {
            Some(_) => format!("{:?}", self.config.compression),
            None => "none".to_string(),
        };
        if saved == now {
            let Some(hook) = self.reducer.hook() else { return Ok(()) };
            let (rank, ranks) = (self.control.rank(), self.control.world_size());
            return Ok(hook.hook().load_state(&states, rank, ranks)?);
        }
        if saved != "none" && self.control.rank() == 0 {
            tracing::warn!(
                "the checkpoint was made with the communication hook {saved}, this run has {now}: \
                 what was held back is lost"
            );
        }
        Ok(())
    }

    /// Whether every rank's optimizer has seen gradients of its own.
    fn optimizers_differ(&self) -> bool {
        let local = |policy: &crate::LocalSgd| self.steps > 0 && policy.is_local(self.steps - 1);
        self.control.world_size() > 1 && self.config.local_sgd.as_ref().is_some_and(local)
    }

    fn load_arrival(&mut self, order: &HostTensor) -> Result<(), ParallelError> {
        let order: Vec<usize> =
            order.data.as_slice::<i64>()?.iter().map(|index| *index as usize).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..self.reducer.layout().segments().count()) {
            let name = ARRIVAL.to_string();
            return Err(StateError::Unexpected { name }.into());
        }
        self.trace = None;
        if let Some(reducer) = self.follow(&order) {
            let old = std::mem::replace(&mut self.reducer, Arc::new(reducer));
            self.move_parameters(old.layout())?;
        }
        Ok(())
    }
}
