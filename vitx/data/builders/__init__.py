"""The TFDS sets for which vitx has its own builders.

To add a set, write a package here with a TFDS builder class, and an entry of `BUILDERS`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from etils import epath

from vitx.data.builders import digits, tiny_imagenet


@dataclass(frozen=True)
class OwnBuilder:
  """A set that is prepared as ArrayRecord without TensorFlow.

  Attributes:
    shape: The shape of its images, (height, width, C).
    classes: The number of classes K.
    prepare: A function from the TFDS directory to write to, and the archive if one is needed, to
      the directory of the prepared version.
    archive: The file name of the archive that the user provides; "" if none is needed.
    url: The URL of the archive.
  """

  shape: tuple[int, int, int]
  classes: int
  prepare: Callable[..., epath.Path]
  archive: str = ""
  url: str = ""


BUILDERS = {
  "digits": OwnBuilder((8, 8, 1), 10, digits.prepare),
  "tiny_imagenet": OwnBuilder(
    (64, 64, 3),
    200,
    tiny_imagenet.prepare,
    archive="tiny-imagenet-200.zip",
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
  ),
}
