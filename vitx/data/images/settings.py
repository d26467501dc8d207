"""The fields of `config.data` that concern images, and what a set of images says of itself."""

from dataclasses import dataclass
from typing import Annotated, Literal

from vitx.config.checks import Finite, Positive, Range, check_choice
from vitx.config.errors import ConfigError, listing
from vitx.data.dataset import ArraySpec, DatasetInfo

Side = Annotated[int, Range("[1, 65536]")]
Size = Side | tuple[Side, Side]  # a square's side, or (height, width)
ResizeMode = Literal["center", "squash", "random"]
Interpolation = Literal["nearest", "bilinear", "bicubic"]
# Of the host, with Pillow; "random" draws one of the two for each crop.
HostInterpolation = Literal["bilinear", "bicubic", "random"]


@dataclass(frozen=True)
class ImageSettings:
  """How images are read, and which size the host keeps.

  Attributes:
    channels: 1 (gray), 3 (RGB) or 4 (RGBA), for sources whose images have no number of their own;
      a source of your own may have any number.
    value_range: the values of black and white in images of more than 8 bits; None is what their
      format states.
    image_size: of what the model sees, in pixels: the side of a square or (height, width); None is
      the source's own.
    default_image_size: that size for sources whose images vary in size.
    decode_size: of what the host keeps, alike; None is enough for the above.
    resize_mode: how an image gets that size, see `resizing.ResizeImages`.
    interpolation: of the host's resizing; random draws bilinear or bicubic for each random crop.
    mean: per channel, of pixels in 0..1; None is the source's.
    std: per channel, of pixels in 0..1; None is the source's.
  """

  channels: Annotated[int, Range("[1, 4096]")] = 3
  value_range: tuple[Finite, Finite] | None = None
  image_size: Size | None = None
  default_image_size: Size | None = None
  decode_size: Size | None = None
  resize_mode: ResizeMode = "center"
  interpolation: HostInterpolation = "bilinear"
  mean: tuple[Finite, ...] | None = None
  std: tuple[Positive, ...] | None = None


def sides(size: Size) -> tuple[int, int]:
  """Returns (height, width) of a size, which may be the side of a square."""
  return (size, size) if isinstance(size, int) else (size[0], size[1])


def scale_size(size: Size, numerator: float, denominator: float) -> Size:
  """Returns a size times numerator / denominator, rounded, in the form that it has."""
  if isinstance(size, int):
    return round(size * numerator / denominator)
  height, width = (round(side * numerator / denominator) for side in size)
  return height, width


FILE_CHANNELS = (1, 3, 4)


def check_file_settings(settings: ImageSettings) -> None:
  """Raises ConfigError for channels or a range of values that no image file can be read in."""
  check_choice(settings.channels, "data.channels", FILE_CHANNELS)
  given = settings.value_range
  if given is not None and not given[0] < given[1]:
    raise ConfigError(f"data.value_range={given}: black must be below white, such as (0, 4095)")


def image_spec(
  channels: int, size: tuple[int | None, int | None] = (None, None), *, labeled: bool = True
) -> dict[str, ArraySpec]:
  """Returns the spec of images of (height, width), None where it varies; with labels or without."""
  image = {"image": ArraySpec((*size, channels), "uint8")}
  return {**image, "label": ArraySpec((), "int32")} if labeled else image


def find_size(info: DatasetInfo) -> tuple[int, int] | None:
  """Returns (height, width) of a set's images; None if they vary.

  Raises:
    ConfigError: the set holds no images.
  """
  height, width, _ = _find_shape(info)
  return None if height is None or width is None else (height, width)


def find_channels(info: DatasetInfo) -> int:
  """Returns the number of channels of a set's images.

  Raises:
    ConfigError: the set holds no images, or their channels vary.
  """
  channels = _find_shape(info)[2]
  if channels is None:
    raise ConfigError(f"data.source={info.name!r}: all its images need one number of channels.")
  return channels


def _find_shape(info: DatasetInfo) -> tuple[int | None, ...]:
  spec = info.spec.get("image")
  if spec is None or len(spec.shape) != 3:
    raise ConfigError(
      f"data.source={info.name!r} holds no images (height, width, channels): its arrays are"
      f" {listing(f'{key} {array.dtype} {array.shape}' for key, array in info.spec.items())}."
    )
  return spec.shape
