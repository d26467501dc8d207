"""TFDS sets that vitx itself knows how to prepare, by name.

One more is a package here with a TFDS builder class, and its line in `BUILDERS`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from etils import epath

from vitx.data.builders import digits, tiny_imagenet


@dataclass(frozen=True)
class OwnBuilder:
  """How a set is prepared as ArrayRecord, without TensorFlow.

  Attributes:
    shape: of its images, (height, width, C).
    classes: K.
    prepare: from the TFDS directory to write to, and the archive where one is needed, to the
      directory of the version.
    archive: file name of the archive that the user brings; "" if the set prepares itself.
    url: where the archive can be downloaded.
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
