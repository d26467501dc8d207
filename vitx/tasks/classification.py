"""Classification of images: a loss against (mixed, smoothed) class targets."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from vitx.config.checks import NonNegative, Probability
from vitx.config.errors import ConfigError
from vitx.config.fields import DataSettings, HostInterpolation, ResizeMode, RunSettings, Size
from vitx.data.dataset import ArraySpec, DatasetInfo, check_arrays
from vitx.data.images.augment import make_eval_preprocess, make_train_augment
from vitx.data.images.decode import ValueRange, decode_size
from vitx.data.images.resizing import ResizeImages
from vitx.data.images.settings import find_channels, find_size, image_spec, sides
from vitx.data.images.statistics import WHITENED_SAMPLE, sample, statistics, whiten
from vitx.data.in_memory import transform_one
from vitx.data.sources.folder_layout import SUFFIXES
from vitx.models import model_from_config, names
from vitx.tasks.base import Batch, Task, follow_source, run_model
from vitx.tasks.classification_figures import (
  FIGURES,
  TOP,
  agreement,
  classification_sums,
  cross_entropy,
  probability_columns,
  summarize_classification,
)
from vitx.tasks.classification_losses import MeanLoss, find_class_weights, make_loss
from vitx.tasks.image_inputs import check_image, read_image


@dataclasses.dataclass(frozen=True)
class Classification(Task):
  """The assignment of one of K classes to an image.

  The values of the collection "losses" that the model sows in training are added to the loss.

  Attributes:
    model: The network, called as `model.apply(variables, images, train=...)`; it returns logits
      (B, K).
    augment: The augmentation in training, `(key, index, images, labels) -> (images, targets)`.
    preprocess: The preparation of images in evaluation, `images -> images`.
    num_classes: The number of classes K.
    decode_size: The side S of the images that the host keeps, or (height, width) in place of (S,
      S). With `resize_mode` "random" the crops of training images have `image_size` instead.
    image_size: The side s of the model's input, or (height, width).
    channels: The number of channels C.
    resize_mode: The way in which the host resizes an image in training.
    interpolation: The interpolation of the host's resizing.
    value_range: The range of the values of images to predict, `data.value_range`.
    mean_loss: The mean loss of a batch, a function of logits and targets (B, K).
    alternates: Whether the augmentation flips an image by the parity of its epoch.
    answer: The shape and dtype of each array in `targets`; None stands for the number of classes.
  """

  model: nn.Module
  augment: Callable
  preprocess: Callable
  num_classes: int
  decode_size: Size
  image_size: Size
  channels: int
  resize_mode: ResizeMode = DataSettings.resize_mode
  interpolation: HostInterpolation = DataSettings.interpolation
  value_range: ValueRange = None
  mean_loss: MeanLoss = cross_entropy
  alternates: bool = False

  targets: ClassVar[tuple[str, ...]] = ("label",)
  answer: ClassVar[ArraySpec] = ArraySpec((), "int32")
  input_suffixes: ClassVar[tuple[str, ...]] = SUFFIXES
  measured: ClassVar[tuple[str, ...]] = ("augment", "preprocess", "mean_loss")

  @property
  def figures(self):
    """Returns the accuracies, the negative log-likelihood and the calibration error.

    The top-5 accuracy is among them if there are more than 5 classes.
    """
    return FIGURES if self.num_classes > TOP else tuple(x for x in FIGURES if x.name != "top5")

  @classmethod
  def resolve(cls, config, source):
    """Sets the number of classes, sizes, channels and pixel statistics according to the data."""
    classes = getattr(source, "info", source).class_names or ()
    resolve_images(config, source, {"label": ("integer", 0)}, len(classes))
    resolve_class_weights(config, source)

  @classmethod
  def state_info(cls, config):
    """Returns the description of the data set that follows from the config alone.

    Returns None if the config lacks the image size, or a number of classes that the task needs.
    """
    data, classes = config.data, config.model.get("num_classes")
    needs_classes = not {"label", "labels"}.isdisjoint(cls.targets)
    if data.image_size is None or (needs_classes and classes is None):
      return None
    names = None if classes is None else tuple(map(str, range(classes)))
    spec = cls._arrays(data.image_size, data.channels, classes)
    return DatasetInfo(data.source, spec, class_names=names)

  @classmethod
  def _arrays(cls, size: Size, channels: int, classes: int) -> dict[str, ArraySpec]:
    shape = tuple(classes if side is None else side for side in cls.answer.shape)
    answers = dict.fromkeys(cls.targets, ArraySpec(shape, cls.answer.dtype))
    return {**image_spec(channels, sides(size), labeled=False), **answers}

  @classmethod
  def from_config(
    cls,
    config: RunSettings,
    *,
    label_smoothing: Probability = 0.0,
    loss: Literal["softmax", "sigmoid", "focal"] = "softmax",
    focal_gamma: NonNegative = 2.0,
    class_weights: Literal["balanced"] | tuple[NonNegative, ...] | None = None,
  ) -> Self:
    """Returns the task of resolved settings.

    Args:
      config: The resolved settings.
      label_smoothing: The smoothing e; targets are (1 - e) one-hot + e / K.
      loss: The loss: "softmax" is the cross-entropy of the softmax, "sigmoid" the sum over the
        classes of binary cross-entropies (one class against all others), "focal" the focal loss.
      focal_gamma: The exponent of the focal loss; 0 is the cross-entropy.
      class_weights: The weight of each class's examples in the loss, in the order of the classes;
        "balanced" is n / (K n_c) for a class with n_c of the n training examples; None weights all
        equally.
    """
    data, classes = config.data, config.model.num_classes
    size, stored, mean, std = data.image_size, data.decode_size, data.mean, data.std
    assert size is not None and stored is not None and mean is not None and std is not None
    seen: dict[str, Any] = dict(image_size=size, mean=mean, std=std)
    return cls(
      model=model_from_config(config.model),
      augment=make_train_augment(
        config.augment, num_classes=classes, label_smoothing=label_smoothing, **seen
      ),
      preprocess=make_eval_preprocess(config.evaluation, **seen),
      num_classes=classes,
      decode_size=stored,
      image_size=size,
      channels=data.channels,
      resize_mode=data.resize_mode,
      interpolation=data.interpolation,
      value_range=data.value_range,
      # Without data there are no numbers for "balanced", and no result depends on them.
      mean_loss=make_loss(
        loss,
        focal_gamma,
        (1.0,) * classes if class_weights == "balanced" else class_weights,
        label_smoothing,
      ),
      alternates=config.augment.alternate_flips,
    )

  @property
  def element_spec(self):
    """Returns the shapes and dtypes of `image`, uint8 (height, width, C), and `label`, int32 ().

    The image has the size `decode_size`.
    """
    return self._spec(self.decode_size)

  @property
  def train_spec(self):
    """Returns the shapes and dtypes of `image` and `label` in training.

    The image has the size `image_size` if `resize_mode` is "random", otherwise `decode_size`.
    `parity`, int32 (), is there too if it decides flips.
    """
    parity = {"parity": jax.ShapeDtypeStruct((), np.int32)} if self.alternates else {}
    return self._spec(self._train_size) | parity

  @property
  def _train_size(self) -> Size:
    return self.image_size if self.resize_mode == "random" else self.decode_size

  def _spec(self, size: Size) -> dict[str, jax.ShapeDtypeStruct]:
    arrays = self._arrays(size, self.channels, self.num_classes)
    return {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in arrays.items()}

  def transform(self, *, train):
    """Returns the transform that resizes an image on the host and keeps the array of `targets`.

    In evaluation, a center crop replaces a random one.
    """
    size = self._train_size if train else self.decode_size
    array = next(iter(self.targets), None)
    draws = train and self.resize_mode == "random"  # otherwise all roles share one transform
    return ResizeImages(size, self.resize_mode, self.interpolation, train=draws, array=array)

  def begin(self, params, train):
    """Sets the convolution `whitening` of a stem, if there is one, from the training images."""
    stem = params.get(names.STEM, {})
    layer = stem.get(names.WHITENING)
    if layer is None:
      return params
    transform, chosen = self.transform(train=False), sample(train, WHITENED_SAMPLE)
    images = np.stack([transform_one(train, transform, i)["image"] for i in chosen])
    kernel = whiten(np.asarray(self.preprocess(images)), len(layer[names.KERNEL]))
    layer = {**layer, names.KERNEL: kernel}
    return {**params, names.STEM: {**stem, names.WHITENING: layer}}

  def loss(self, params, state, constants, batch, key, step):
    """Computes the loss of an augmented batch, the new state and `metrics`."""
    images, targets = self.draw(batch, key)
    outputs, new_state, sown = run_model(self.model, params, state, images, batch, key)
    loss = self.mean_loss(outputs, targets) + sown
    return loss, (new_state, self.metrics(outputs, targets))

  def metrics(self, outputs: jax.Array, targets: jax.Array) -> dict[str, jax.Array]:
    """Returns the top-1 accuracy on an augmented batch, from logits and targets (B, K)."""
    return {"top1": agreement(outputs, targets)}

  def draw(self, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns augmented images (B, height, width, C) of `image_size`, and targets (B, K)."""
    return self.augmented(batch, key, batch[self.targets[0]])

  def augmented(
    self, batch: Batch, key: jax.Array, targets: jax.Array | None = None
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the augmented images of a batch, and its targets after smoothing and mixing.

    Without targets, all examples have the class 0.
    """
    if targets is None:
      targets = jnp.zeros(len(batch["index"]), jnp.int32)
    numbers = {name: batch[name] for name in ("index", "parity") if name in batch}
    key = jax.random.fold_in(key, 0)
    return self.augment(key, images=batch["image"], labels=targets, **numbers)

  def model_inputs(self, batch):
    """Returns the normalized images of a batch, (B, height, width, C) of `image_size`."""
    return self.preprocess(batch["image"])

  def evaluate(self, params, state, constants, batch):
    """Returns the sums for `summarize`, and the probabilities and logits (B, K) of a batch."""
    inputs = self.model_inputs(batch)
    logits: Any = self.model.apply({"params": params, **state}, inputs, train=False)
    return classification_sums(logits, batch["label"], batch["mask"], self.num_classes)

  def summarize(self, sums):
    """Returns the dict of `summarize_classification`, such as the accuracy `top1`."""
    return summarize_classification(sums)

  def read_input(self, entry, number):
    """Reads an image: a file, a Pillow image, or an array (height, width, C).

    An array is uint8, or float in 0..1; for C = 1 it may also be (height, width). `Task.read_input`
    describes the other inputs.
    """
    image = read_image(entry, self.channels, number, self.value_range)
    if image is not None:
      return {"image": image}
    example = super().read_input(entry, number)
    if "image" in example:
      image = check_image(np.asarray(example["image"]), self.channels, number)
      example = {**example, "image": image}
    return example

  def predictions(self, class_names, batch, rows):
    """Returns the columns label, prediction and "p(NAME)", the probability of each class."""
    names, p = np.array(class_names, object), rows["probabilities"]
    columns = {"label": names[batch["label"]], "prediction": names[p.argmax(axis=1)]}
    return {head: x.tolist() for head, x in columns.items()} | probability_columns(names, p)


def resolve_images(
  config: ConfigDict,
  source: Any,
  targets: Mapping[str, tuple[str, int]],
  outputs: int | None = None,
) -> None:
  """Sets the fields of a config that follow from a data set of images, in place.

  These fields are the sizes, the number of channels, the mean and standard deviation of the pixels,
  and the number of the network's outputs.

  Args:
    config: The unlocked config.
    source: A source, or only its `DatasetInfo`.
    targets: The dtype and number of axes of the task's arrays beside the image, by name.
    outputs: The number of classes or other outputs; `None` is the number of classes of the data
      set, or 1 if it has none.
  """
  info, data = getattr(source, "info", source), config.data
  size, channels = find_size(info), find_channels(info)
  check_arrays(info, {"image": ("uint8", 3), **targets}, config.task.name)
  area = config.augment.random_resized_crop
  if area and data.resize_mode == "random":
    raise ConfigError(
      f"augment.random_resized_crop={tuple(area)!r} would crop once more what data.resize_mode="
      "'random' has cropped at random; set augment.random_resized_crop=()."
    )
  if data.image_size is None:
    data.image_size = _side(info.name, size, data.default_image_size)
  data.decode_size = decode_size(data, info, config.evaluation.crop_ratio)
  data.channels = channels
  data.mean, data.std = statistics(data, info, getattr(source, "train", None))
  if outputs is None:
    outputs = len(info.class_names or (None,))
  follow_source(config.model, "num_classes", outputs, info.name)


def resolve_class_weights(config: ConfigDict, source: Any) -> None:
  """Sets `task.class_weights` to numbers, in place, see `find_class_weights`.

  The config is unlocked. With only a `DatasetInfo` in place of a source, "balanced" stays.
  """
  weights = config.task.get("class_weights")
  if weights is None:
    return
  if weights == "balanced" == config.data.sampling:
    raise ConfigError(
      f"task.class_weights={weights!r} and data.sampling='balanced' would balance the classes"
      " twice, so that the smallest class would count most; leave one of the two out."
    )
  info, train = getattr(source, "info", source), getattr(source, "train", None)
  labels = getattr(train, "labels", None)
  if weights == "balanced" and train is not None and labels is None:
    raise ConfigError(
      f"task.class_weights={weights!r} counts the examples of each class, but those of"
      f" data.source={info.name!r} have labels=None; give a number for each class."
    )
  numbers = find_class_weights(weights, info.class_names or (), labels)
  config.task = ConfigDict({**config.task.to_dict(), "class_weights": numbers})


def _side(name: str, size: tuple[int, int] | None, default: Size | None) -> Size:
  """Returns the side of a data set's images, or the default if not all are squares of one size."""
  if size is not None and size[0] == size[1]:
    return size[0]
  if default is not None:
    return default
  raise ConfigError(
    f"data.image_size is not set, and the images of data.source={name!r} are no squares of one"
    " size; set it, such as data.image_size=224 or data.image_size=(224, 160)."
  )
