"""Sizes and channels of images in `config.data` and in data sets."""

from vitx.config.checks import check_choice
from vitx.config.errors import ConfigError, listing
from vitx.config.fields import DataSettings, Size
from vitx.data.dataset import ArraySpec, DatasetInfo


def sides(size: Size) -> tuple[int, int]:
  """Returns a size, which may be the side of a square, as (height, width)."""
  return (size, size) if isinstance(size, int) else (size[0], size[1])


def scale_size(size: Size, numerator: float, denominator: float) -> Size:
  """Multiplies a side or a (height, width) by numerator / denominator, and rounds the result."""
  if isinstance(size, int):
    return round(size * numerator / denominator)
  height, width = (round(side * numerator / denominator) for side in size)
  return height, width


# The numbers of channels that image files have, and the modes of Pillow that hold them.
FILE_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def check_file_settings(settings: DataSettings) -> None:
  """Checks the settings `channels` and `value_range` of image files."""
  check_choice(settings.channels, "data.channels", tuple(FILE_MODES))
  values = settings.value_range
  if values is not None and not values[0] < values[1]:
    raise ConfigError(f"data.value_range={values}: black must be below white, as in (0, 4095).")


def image_spec(
  channels: int, size: tuple[int | None, int | None] = (None, None), *, labeled: bool = True
) -> dict[str, ArraySpec]:
  """Returns the shapes and dtypes of an image example; None for a side that varies."""
  image = {"image": ArraySpec((*size, channels), "uint8")}
  return {**image, "label": ArraySpec((), "int32")} if labeled else image


def find_size(info: DatasetInfo) -> tuple[int, int] | None:
  """Returns the (height, width) of a set's images, or None if they vary."""
  height, width, _ = _find_shape(info)
  return None if height is None or width is None else (height, width)


def find_channels(info: DatasetInfo) -> int:
  """Returns the number of channels of a set's images."""
  return _find_shape(info)[2]


def _find_shape(info: DatasetInfo) -> tuple[int | None, int | None, int]:
  shape = info.spec["image"].shape if "image" in info.spec else ()
  if len(shape) != 3 or shape[2] is None:
    raise ConfigError(
      f"data.source={info.name!r} has no images (height, width, channels). Its arrays are"
      f" {listing(f'{key} {array.dtype} {array.shape}' for key, array in info.spec.items())}."
    )
  return shape[0], shape[1], shape[2]
