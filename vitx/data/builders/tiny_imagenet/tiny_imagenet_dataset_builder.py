"""The TFDS builder of `tiny_imagenet`."""

import tensorflow_datasets as tfds

from vitx.data.builders.tiny_imagenet.archive import Archive


class TinyImagenet(tfds.core.GeneratorBasedBuilder):
  """Tiny ImageNet-200: 200 classes with 500 training and 50 validation images each, 64x64 pixels.

  The source is Y. Le and X. Yang, Tiny ImageNet Visual Recognition Challenge, Stanford CS 231N
  (2015). The images keep the archive's encoding. The classes have their WordNet ids as names and
  are sorted by them. The unlabeled test images are left out.
  """

  VERSION = tfds.core.Version("1.0.0")

  def __init__(self, *, archive, **kwargs):
    self._archive = Archive(archive)
    super().__init__(**kwargs)

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description="Tiny ImageNet-200. Classes are WordNet ids in sorted order.",
      homepage="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
      features=tfds.features.FeaturesDict(
        {
          "image": tfds.features.Image(shape=(64, 64, 3), encoding_format="jpeg"),
          "label": tfds.features.ClassLabel(names=self._archive.wnids),
          "id": tfds.features.Text(),
        }
      ),
      supervised_keys=("image", "label"),
      metadata=tfds.core.MetadataDict(words=self._archive.words()),
    )

  def _split_generators(self, dl_manager):
    return {
      "train": self._generate_examples(self._archive.train()),
      "validation": self._generate_examples(self._archive.validation()),
    }

  def _generate_examples(self, images):
    for name, encoded, wnid in images:
      yield name, {"image": encoded, "label": wnid, "id": name}
