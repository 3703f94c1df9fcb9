//! The pictures that a command line names, decoded and brought to a model's shape.

use crate::CliError;
use bonfire_data::transform::Transforms;
use bonfire_data::{Channels, IMAGE_SUFFIXES, IdxImages, Image, SampleContext, decode_image};
use bonfire_nn::ImageShape;
use image::imageops::FilterType;
use image::{DynamicImage, GrayImage, RgbImage};
use std::path::{Path, PathBuf};

/// Part of the name of a file of MNIST's images.
const IDX: &str = "idx3-ubyte";

/// A picture that a command line names, not decoded yet.
pub(crate) enum Picture {
    /// A file of its own.
    File(PathBuf),
    /// One of the images in a file of the IDX format.
    Idx { file: PathBuf, index: usize, image: Image },
}

impl Picture {
    /// What it is called in the output.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Idx { file, index, .. } => format!("{}:{index}", file.display()),
        }
    }

    /// Decodes it, transforms it as validation images are, and brings it to a shape.
    pub(crate) fn read(
        &self,
        shape: ImageShape,
        transforms: &Transforms,
    ) -> Result<Image, CliError> {
        let refuse = |reason: String| CliError::Picture { path: self.name().into(), reason };
        let image = match self {
            Self::File(path) => {
                let channels = match shape.channels {
                    1 => Channels::Grey,
                    3 => Channels::Rgb,
                    other => {
                        return Err(refuse(format!(
                            "the model takes images of {other} channels, and pictures have 1 or 3"
                        )));
                    }
                };
                let bytes = std::fs::read(path).map_err(|error| refuse(error.to_string()))?;
                decode_image(&bytes, channels).map_err(refuse)?
            }
            Self::Idx { image, .. } => image.clone(),
        };
        // Nothing random is among the transforms of a validation.
        let context = SampleContext { seed: 0, epoch: 0, index: 0 };
        let image = transforms.apply(image, &context).map_err(|error| refuse(error.to_string()))?;
        if image.shape() == [shape.height, shape.width, shape.channels] {
            return Ok(image);
        }
        cover(image, shape).ok_or_else(|| refuse("it is empty".to_string()))?
    }
}

/// What paths name.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) pictures: Vec<Picture>,
    /// Why a path, or a file in a folder, is of no use.
    pub(crate) problems: Vec<String>,
}

/// Finds the pictures that paths name, in the order of the paths; folders are searched to the bottom,
/// in the order of names.
pub(crate) fn find(paths: &[PathBuf]) -> Found {
    let mut found = Found::default();
    for path in paths {
        let before = (found.pictures.len(), found.problems.len());
        found.take(path);
        if (found.pictures.len(), found.problems.len()) == before {
            let reason =
                "there is no picture in it: expected .png, .jpg, .jpeg, .webp or IDX files";
            found.refuse(CliError::Picture { path: path.clone(), reason: reason.to_string() });
        }
    }
    found
}

impl Found {
    fn refuse(&mut self, error: impl Into<CliError>) {
        self.problems.push(error.into().to_string());
    }

    /// Adds a file, or all that a folder has.
    fn take(&mut self, path: &Path) {
        if path.is_dir() {
            self.search(path);
        } else if is_idx(path) {
            self.open_idx(path);
        } else {
            self.pictures.push(Picture::File(path.to_path_buf()));
        }
    }

    fn search(&mut self, folder: &Path) {
        let entries = std::fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let entries = match entries {
            Ok(entries) => entries,
            Err(source) => {
                let path = folder.to_path_buf();
                return self.refuse(CliError::Io { action: "reading", path, source });
            }
        };
        let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths.iter().filter(|path| !name_of(path).starts_with('.')) {
            if path.is_dir() || is_idx(path) || is_picture(path) {
                self.take(path);
            }
        }
    }

    fn open_idx(&mut self, path: &Path) {
        match IdxImages::open_unlabelled(path) {
            Ok(images) => self.pictures.extend(
                images.into_iter().enumerate().map(|(index, image)| Picture::Idx {
                    file: path.to_path_buf(),
                    index,
                    image,
                }),
            ),
            Err(error) => self.refuse(error),
        }
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default()
}

fn is_picture(path: &Path) -> bool {
    let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_lowercase());
    suffix.is_some_and(|suffix| IMAGE_SUFFIXES.contains(&suffix.as_str()))
}

fn is_idx(path: &Path) -> bool {
    name_of(path).contains(IDX)
}

/// Scales an image until it covers a shape, and cuts its middle out.
fn cover(image: Image, shape: ImageShape) -> Option<Result<Image, CliError>> {
    let [height, width, channels] = image.shape().map(|length| length as u32);
    let pixels = image.into_vec();
    let picture: DynamicImage = match channels {
        1 => GrayImage::from_raw(width, height, pixels)?.into(),
        _ => RgbImage::from_raw(width, height, pixels)?.into(),
    };
    let ImageShape { channels, height, width } = shape;
    let filter = FilterType::Triangle;
    let picture = picture.resize_to_fill(width as u32, height as u32, filter);
    let pixels = match channels {
        1 => picture.into_luma8().into_raw(),
        _ => picture.into_rgb8().into_raw(),
    };
    Some(Image::new(pixels, [height, width, channels]).map_err(CliError::from))
}
