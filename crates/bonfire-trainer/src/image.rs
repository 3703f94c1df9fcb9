use bonfire_data::transform::{BatchMix, Mix};
use bonfire_data::{BatchContext, Collate, DataError, ImageSample};
use bonfire_nn::ImageShape;
use burn::tensor::{DType, Device, Element, Int, Tensor, TensorData};

/// Images and their classes.
#[derive(Debug, Clone)]
pub struct ImageBatch {
    /// Shape `[batch, channels, height, width]`.
    pub images: Tensor<4>,
    /// Shape `[batch]`.
    pub targets: Tensor<1, Int>,
    /// The other classes of images that are mixed; only in training, and only when the loader mixes.
    pub mixed: Option<MixedTargets>,
}

/// What the images of a batch were mixed with.
#[derive(Debug, Clone)]
pub struct MixedTargets {
    /// Classes of the images that were mixed in, shape `[batch]`.
    pub partners: Tensor<1, Int>,
    /// Share of an image's own class in its target, in 0..1; the partner's class has the rest.
    pub lambda: f64,
}

impl ImageBatch {
    /// Makes a batch of images that are not mixed.
    pub fn new(images: Tensor<4>, targets: Tensor<1, Int>) -> Self {
        Self { images, targets, mixed: None }
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.targets.dims()[0]
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Makes an [`ImageBatch`] of samples: pixels become `(x / 255 - mean) / std`, and images may be mixed
/// with each other.
#[derive(Debug, Clone)]
pub struct ImageCollate {
    shape: ImageShape,
    device: Device,
    dtype: DType,
    /// For each channel what each byte becomes.
    tables: Vec<Vec<f64>>,
    mix: Option<BatchMix>,
}

impl ImageCollate {
    /// Makes a collation to `device` (without autodiff) with the device's default float type.
    ///
    /// `normalize` is mean and standard deviation of the pixels in 0..1, for all channels.
    pub fn new(shape: ImageShape, normalize: Option<(f64, f64)>, device: &Device) -> Self {
        let (mean, std) = normalize.unwrap_or((0.0, 1.0));
        let device = device.clone().without_autodiff();
        let dtype = device.settings().float_dtype.into();
        let tables = vec![table(mean, std); shape.channels];
        Self { shape, device, dtype, tables, mix: None }
    }

    /// Normalises each channel by its own mean and standard deviation, or all by the same when there
    /// is one of them.
    ///
    /// # Errors
    /// [`DataError`] when there are neither one nor as many as channels.
    pub fn with_normalization(mut self, mean: &[f64], std: &[f64]) -> Result<Self, DataError> {
        let channels = self.shape.channels;
        let of_channel = |values: &[f64], what: &str, channel: usize| match values {
            [one] => Ok(*one),
            many if many.len() == channels => Ok(many[channel]),
            many => Err(DataError::message(format!(
                "{} {what} are given to normalise images of {channels} channels: give one, or one for \
                 each channel",
                many.len()
            ))),
        };
        self.tables = (0..channels)
            .map(|channel| {
                let mean = of_channel(mean, "means", channel)?;
                Ok(table(mean, of_channel(std, "standard deviations", channel)?))
            })
            .collect::<Result<_, DataError>>()?;
        Ok(self)
    }

    /// Mixes the images of every batch that a loader makes; for training.
    #[must_use]
    pub fn with_mix(self, mix: BatchMix) -> Self {
        Self { mix: Some(mix), ..self }
    }

    fn batch(&self, items: &[ImageSample], mix: Option<&Mix>) -> Result<ImageBatch, DataError> {
        let mut images = match self.dtype {
            DType::F64 => self.images(
                items,
                mix,
                |value| value,
                |own, partner, lambda| own * lambda + partner * (1.0 - lambda),
            )?,
            _ => self.images(
                items,
                mix,
                |value| value as f32,
                |own, partner, lambda| own * lambda as f32 + partner * (1.0 - lambda) as f32,
            )?,
        };
        let classes = items.iter().map(|item| i64::from(item.label));
        let mixed = mix.map(|mix| {
            let partners = Mix::partners(items.len()).map(|place| i64::from(items[place].label));
            MixedTargets { partners: self.classes(partners), lambda: mix.lambda() }
        });
        // A GPU copies from such memory by itself, while it computes.
        self.device.staging(std::iter::once(&mut images));
        let images = Tensor::from_data(images, (&self.device, self.dtype));
        Ok(ImageBatch { images, targets: self.classes(classes), mixed })
    }

    fn classes(&self, classes: impl Iterator<Item = i64>) -> Tensor<1, Int> {
        let classes: Vec<i64> = classes.collect();
        let count = classes.len();
        Tensor::from_data(TensorData::new(classes, [count]), &self.device)
    }

    /// Normalises and mixes; `blend` makes `lambda * own + (1 - lambda) * partner`.
    fn images<E: Element>(
        &self,
        items: &[ImageSample],
        mix: Option<&Mix>,
        convert: impl Fn(f64) -> E,
        blend: impl Fn(E, E, f64) -> E,
    ) -> Result<TensorData, DataError> {
        let ImageShape { channels, height, width } = self.shape;
        let tables: Vec<Vec<E>> = self
            .tables
            .iter()
            .map(|table| table.iter().map(|value| convert(*value)).collect())
            .collect();
        let mut values = Vec::with_capacity(items.len() * channels * height * width);
        for item in items {
            self.check(item)?;
            for (channel, table) in tables.iter().enumerate() {
                let plane = item.image.pixels().iter().skip(channel).step_by(channels);
                values.extend(plane.map(|pixel| table[usize::from(*pixel)]));
            }
        }
        if let Some(mix) = mix {
            let lambda = mix.lambda();
            mix.apply(&mut values, [channels, height, width], |own, partner| {
                blend(own, partner, lambda)
            });
        }
        Ok(TensorData::new(values, [items.len(), channels, height, width]))
    }

    fn check(&self, item: &ImageSample) -> Result<(), DataError> {
        let ImageShape { channels, height, width } = self.shape;
        let [rows, columns, of] = item.image.shape();
        if [rows, columns, of] == [height, width, channels] {
            return Ok(());
        }
        Err(DataError::message(format!(
            "an image has {rows} rows, {columns} columns and {of} channels, the model expects \
             {height}, {width} and {channels}"
        )))
    }
}

/// What each byte becomes.
fn table(mean: f64, std: f64) -> Vec<f64> {
    (0..=255).map(|pixel| (f64::from(pixel) / 255.0 - mean) / std).collect()
}

impl Collate<ImageSample> for ImageCollate {
    type Batch = ImageBatch;

    fn collate(&self, items: Vec<ImageSample>) -> Result<ImageBatch, DataError> {
        self.batch(&items, None)
    }

    fn collate_at(
        &self,
        items: Vec<ImageSample>,
        context: &BatchContext,
    ) -> Result<ImageBatch, DataError> {
        let size = [self.shape.height, self.shape.width];
        let mix = self.mix.and_then(|mix| mix.draw(context, size));
        self.batch(&items, mix.as_ref())
    }
}
