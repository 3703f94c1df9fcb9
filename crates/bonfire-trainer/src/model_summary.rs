//! What a model is made of: parameters, memory and arithmetic of every layer.

use crate::TrainError;
use crate::anomaly::{module_of, module_path};
use bonfire_nn::{LayerCall, Watch, watch_layers};
use bonfire_report::number::{bytes, short};
use bonfire_tensor::parameters::{self, ParameterSpec, Role};
use burn::module::Module;
use serde::Serialize;
use std::fmt;

/// Parameters, memory and arithmetic of a model, layer by layer.
///
/// ```ignore
/// let summary = ModelSummary::of(&model, 1, |model| model.forward(images))?;
/// println!("{summary}");
/// ```
///
/// # Reference
/// The columns of `torchinfo.summary`, and of Lightning's `ModelSummary`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelSummary {
    /// Samples of the forward pass that was looked at.
    pub samples: usize,
    /// Layers in the order in which they are called, then those that did not tell of a call.
    pub layers: Vec<LayerSummary>,
    /// Elements of trainable parameters.
    pub trainable: usize,
    /// Elements of frozen parameters.
    pub frozen: usize,
    /// Elements of buffers.
    pub buffers: usize,
    /// Bytes of parameters and buffers.
    pub bytes: usize,
    /// Bytes that the outputs of the layers take.
    pub activation_bytes: usize,
    /// Multiplications and additions of a forward pass, each counted as one.
    pub flops: u64,
}

/// A layer of a [`ModelSummary`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerSummary {
    /// Module path.
    pub path: String,
    /// Its type; `None` if it did not tell of a call.
    pub kind: Option<&'static str>,
    /// Shape of its output, in its last call.
    pub output: Vec<usize>,
    /// Calls of a forward pass.
    pub calls: usize,
    /// Elements of its parameters, frozen ones with them, and of its buffers.
    pub parameters: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Bytes of its outputs.
    pub activation_bytes: usize,
    /// Multiplications and additions of its calls, each counted as one.
    pub flops: u64,
}

impl ModelSummary {
    /// Looks at a forward pass of `samples` samples through the model without autodiff.
    ///
    /// The layers of `bonfire_nn` tell what they do, and so does whatever
    /// [`report_layer`](bonfire_nn::report_layer) is called for; of others only the parameters are known.
    ///
    /// # Errors
    /// When a parameter has a type that Bonfire does not know.
    pub fn of<M: Module, T>(
        model: &M,
        samples: usize,
        forward: impl FnOnce(&M) -> T,
    ) -> Result<Self, TrainError> {
        let specs = parameters::inspect(model)?;
        let (_, calls) = watch_layers(Watch::Shapes, || forward(&model.valid()));
        Ok(Self::from_parts(samples, &specs, &calls))
    }

    fn from_parts(samples: usize, specs: &[ParameterSpec], calls: &[LayerCall]) -> Self {
        let mut layers: Vec<LayerSummary> = Vec::new();
        for call in calls {
            let layer = find_or_add(&mut layers, &module_of(&call.name, specs));
            layer.kind = Some(call.kind);
            layer.output = call.output.to_vec();
            layer.calls += 1;
            layer.activation_bytes += call.output_bytes;
            layer.flops += call.flops;
        }
        for spec in specs {
            let layer = find_or_add(&mut layers, module_path(&spec.path));
            layer.parameters += spec.num_elements();
            layer.bytes += size(spec);
        }
        let elements = |role: Role| {
            specs.iter().filter(|spec| spec.role == role).map(ParameterSpec::num_elements).sum()
        };
        Self {
            samples,
            trainable: elements(Role::Trainable),
            frozen: elements(Role::Frozen),
            buffers: elements(Role::Buffer),
            bytes: specs.iter().map(size).sum(),
            activation_bytes: layers.iter().map(|layer| layer.activation_bytes).sum(),
            flops: layers.iter().map(|layer| layer.flops).sum(),
            layers,
        }
    }

    /// Whether every layer with parameters has told of its calls: then [`flops`](Self::flops) are all that
    /// matter.
    pub fn is_complete(&self) -> bool {
        self.layers.iter().all(|layer| layer.kind.is_some())
    }
}

fn size(spec: &ParameterSpec) -> usize {
    spec.num_elements() * spec.dtype.size_bytes()
}

fn find_or_add<'a>(layers: &'a mut Vec<LayerSummary>, path: &str) -> &'a mut LayerSummary {
    let index = layers.iter().position(|layer| layer.path == path).unwrap_or_else(|| {
        layers.push(LayerSummary {
            path: path.to_owned(),
            kind: None,
            output: Vec::new(),
            calls: 0,
            parameters: 0,
            bytes: 0,
            activation_bytes: 0,
            flops: 0,
        });
        layers.len() - 1
    });
    &mut layers[index]
}

impl fmt::Display for ModelSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<[String; 7]> = self.layers.iter().map(row).collect();
        let head = ["layer", "kind", "output", "parameters", "bytes", "output bytes", "FLOPs"];
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].len());
            cells.chain([head[column].len()]).max().unwrap_or(0)
        };
        let widths: [usize; 7] = std::array::from_fn(width);
        let line = |cells: [&str; 7]| {
            let cells = cells.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
                if column < 3 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        writeln!(f, "{}", line(head))?;
        for row in &rows {
            writeln!(f, "{}", line(std::array::from_fn(|column| row[column].as_str())))?;
        }
        write!(
            f,
            "{} trainable and {} frozen parameters, {} buffer values: {}; outputs of {} sample(s): {}; forward \
             pass: {} FLOPs",
            self.trainable,
            self.frozen,
            self.buffers,
            bytes(self.bytes as f64),
            self.samples,
            bytes(self.activation_bytes as f64),
            short(self.flops as f64)
        )?;
        if !self.is_complete() {
            write!(
                f,
                "\nlayers without a kind are not of bonfire_nn and do not tell what they compute: \
                 bonfire_nn::report_layer does it for them"
            )?;
        }
        Ok(())
    }
}

fn row(layer: &LayerSummary) -> [String; 7] {
    let told = |text: String| if layer.kind.is_some() { text } else { "-".to_owned() };
    let kind = layer.kind.unwrap_or("-");
    let kind = if layer.calls > 1 { format!("{kind} x {}", layer.calls) } else { kind.to_owned() };
    [
        layer.path.clone(),
        kind,
        told(format!("{:?}", layer.output)),
        layer.parameters.to_string(),
        bytes(layer.bytes as f64),
        told(bytes(layer.activation_bytes as f64)),
        told(short(layer.flops as f64)),
    ]
}
