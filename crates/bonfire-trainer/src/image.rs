use bonfire_data::{Collate, DataError, ImageSample};
use bonfire_nn::ImageShape;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

/// Images and their classes.
#[derive(Debug, Clone)]
pub struct ImageBatch {
    /// Shape `[batch, channels, height, width]`.
    pub images: Tensor<4>,
    /// Shape `[batch]`.
    pub targets: Tensor<1, Int>,
}

impl ImageBatch {
    /// Number of images.
    pub fn len(&self) -> usize {
        self.targets.dims()[0]
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Makes an [`ImageBatch`] of samples: pixels become `(x / 255 - mean) / std`.
#[derive(Debug, Clone)]
pub struct ImageCollate {
    shape: ImageShape,
    device: Device,
    dtype: DType,
    table: Vec<f64>,
}

impl ImageCollate {
    /// Makes a collation to `device` (without autodiff) with the device's default float type.
    ///
    /// `normalize` is mean and standard deviation of the pixels in 0..1.
    pub fn new(shape: ImageShape, normalize: Option<(f64, f64)>, device: &Device) -> Self {
        let (mean, std) = normalize.unwrap_or((0.0, 1.0));
        let device = device.clone().without_autodiff();
        let dtype = device.settings().float_dtype.into();
        let table = (0..=255).map(|pixel| (f64::from(pixel) / 255.0 - mean) / std).collect();
        Self { shape, device, dtype, table }
    }

    fn images<E: burn::tensor::Element>(
        &self,
        items: &[ImageSample],
        convert: impl Fn(f64) -> E,
    ) -> Result<TensorData, DataError> {
        let ImageShape { channels, height, width } = self.shape;
        let size = channels * height * width;
        let table: Vec<E> = self.table.iter().map(|value| convert(*value)).collect();
        let mut values = Vec::with_capacity(items.len() * size);
        for item in items {
            let image = &item.image;
            if image.shape() != [height, width, channels] {
                let [rows, columns, of] = image.shape();
                return Err(DataError::message(format!(
                    "an image has {rows} rows, {columns} columns and {of} channels, the model expects \
                     {height}, {width} and {channels}"
                )));
            }
            for channel in 0..channels {
                let plane = image.pixels().iter().skip(channel).step_by(channels);
                values.extend(plane.map(|pixel| table[usize::from(*pixel)]));
            }
        }
        Ok(TensorData::new(values, [items.len(), channels, height, width]))
    }
}

impl Collate<ImageSample> for ImageCollate {
    type Batch = ImageBatch;

    fn collate(&self, items: Vec<ImageSample>) -> Result<ImageBatch, DataError> {
        let images = match self.dtype {
            DType::F64 => self.images(&items, |value| value)?,
            _ => self.images(&items, |value| value as f32)?,
        };
        let targets: Vec<i64> = items.iter().map(|item| i64::from(item.label)).collect();
        let count = targets.len();
        Ok(ImageBatch {
            images: Tensor::from_data(images, (&self.device, self.dtype)),
            targets: Tensor::from_data(TensorData::new(targets, [count]), &self.device),
        })
    }
}
