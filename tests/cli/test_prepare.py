import importlib.util
import itertools
import json
import shutil
import struct
import zipfile

import pytest
import tensorflow_datasets as tfds
from etils import epath

from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.config.settings import change
from vitx.data import prepare
from vitx.data.builders import tfrecord_to_array_record
from vitx.data.sources import open_source


def records(directory, split):
  builder = tfds.builder_from_directory(str(directory))
  raw = tfds.decode.DeserializeMethod.RAW_BYTES
  return list(builder.as_data_source(split=split, deserialize_method=raw))


def frame(record: bytes) -> bytes:
  """Returns one record of a TFRECORD file; the CRC of the data is left zero."""
  length = struct.pack("<Q", len(record))
  return (
    length + struct.pack("<I", tfrecord_to_array_record.masked_crc32c(length)) + record + bytes(4)
  )


@pytest.fixture
def tfrecord_dir(digits_dir, tmp_path):
  """A TFRECORD copy of the digits, whose train split has three shards."""
  source, target = digits_dir / "digits" / "1.0.0", tmp_path / "old" / "digits" / "1.0.0"
  target.mkdir(parents=True)
  info = json.loads((source / "dataset_info.json").read_text())
  info["fileFormat"] = "tfrecord"
  for split, bounds in (("train", (0, 500, 1000, 1438)), ("test", (0, 359))):
    content = records(source, split)
    shards = list(itertools.pairwise(bounds))
    for i, (a, b) in enumerate(shards):
      name = f"digits-{split}.tfrecord-{i:05d}-of-{len(shards):05d}"
      (target / name).write_bytes(b"".join(map(frame, content[a:b])))
    entry = next(entry for entry in info["splits"] if entry["name"] == split)
    entry["shardLengths"] = [str(b - a) for a, b in shards]
  (target / "dataset_info.json").write_text(json.dumps(info))
  for name in ("features.json", "label.labels.txt"):
    shutil.copy(source / name, target / name)
  return tmp_path / "old"


def test_checksums_agree_with_rfc_3720():
  # RFC 3720, B.4: CRC-32C of 32 zero bytes and of 0..31; here masked as TFRECORD does.
  for data, crc in ((bytes(32), 0x8A9136AA), (bytes(range(32)), 0x46DD794E)):
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    assert tfrecord_to_array_record.masked_crc32c(data) == (rotated + 0xA282EAD8) & 0xFFFFFFFF


def test_a_tfrecord_copy_is_converted(tfrecord_dir, digits_dir, make_data, capsys):
  data = make_data(data_dir=str(tfrecord_dir))
  with pytest.raises(ConfigError, match=r"vitx prepare digits --from") as error:
    open_source(data, seed=0)
  # The command in the error, word for word.
  command = str(error.value).split("vitx prepare ")[1].split("  ")[0].split()
  assert command[:3] == ["digits", "--from", str(tfrecord_dir)]
  assert main(["prepare", *command]) == 0
  target = epath.Path(command[-1])
  assert f"ready in {target}" in capsys.readouterr().out
  version = target / "digits" / "1.0.0"
  assert sorted(path.name for path in version.iterdir()) == [
    "dataset_info.json",
    "digits-test.array_record-00000-of-00001",
    *(f"digits-train.array_record-0000{i}-of-00003" for i in range(3)),
    "features.json",
    "label.labels.txt",
  ]
  for split in ("train", "test"):
    assert records(version, split) == records(digits_dir / "digits" / "1.0.0", split)
  data = change(data, {"data_dir": str(target)})
  assert len(open_source(data, seed=0).test) == 359
  assert [path.name for path in (target / "digits").iterdir()] == ["1.0.0"]


def test_conversion_imports_no_foreign_class(tfrecord_dir, tmp_path, capsys):
  theirs = shutil.copytree(tfrecord_dir, tmp_path / "theirs")
  (features,) = theirs.rglob("features.json")
  image = "tensorflow_datasets.core.features.image_feature.Image"
  features.write_text(features.read_text().replace(image, "own_feature.Scan"))
  command = ["prepare", "digits", "--from", str(theirs), "--data_dir", str(tmp_path / "new")]
  assert main(command) == 1
  assert "own_feature.Scan' names Python code" in capsys.readouterr().err
  assert main([*command, "--trust_code"]) == 1  # the name is looked for, and does not exist
  assert "Unrecognized FeatureConnector type: own_feature.Scan" in capsys.readouterr().err


def test_the_directory_of_a_version_is_converted(tfrecord_dir, tmp_path):
  version = prepare.prepare("digits", str(tmp_path / "new"), str(tfrecord_dir / "digits" / "1.0.0"))
  assert len(records(version, "test")) == 359
  for place in (tfrecord_dir, tfrecord_dir / "digits" / "1.0.0"):
    with pytest.raises(ConfigError, match="has no copy of 'cifar10'"):
      prepare.prepare("cifar10", str(tmp_path / "new"), str(place))
  with pytest.raises(ConfigError, match=r"Name another directory"):
    prepare.prepare("digits", str(tfrecord_dir), str(tfrecord_dir))


@pytest.mark.parametrize("field", ["filepathTemplate", "name"])
def test_conversion_writes_no_file_outside_of_its_directory(tfrecord_dir, tmp_path, field):
  (path,) = tfrecord_dir.rglob("dataset_info.json")
  info = json.loads(path.read_text())
  for split in info["splits"]:
    split[field] = "a/../../../../../new/x"
  path.write_text(json.dumps(info))
  with pytest.raises(ConfigError, match="outside of"):
    prepare.prepare("digits", str(tmp_path / "out"), str(tfrecord_dir))
  assert not (tmp_path / "new").exists() and not list((tmp_path / "out" / "digits").iterdir())


def test_an_old_copy_names_no_format(tfrecord_dir, tmp_path, make_data):
  path = tfrecord_dir / "digits" / "1.0.0" / "dataset_info.json"
  info = json.loads(path.read_text())
  del info["fileFormat"]
  path.write_text(json.dumps(info))
  with pytest.raises(ConfigError, match=r"the format of .* is tfrecord"):
    open_source(make_data(data_dir=str(tfrecord_dir)), seed=0)
  version = prepare.prepare("digits", str(tmp_path / "new"), str(tfrecord_dir))
  assert len(records(version, "train")) == 1438


@pytest.mark.parametrize("damage", ["truncated", "header", "missing", "short"])
def test_a_damaged_copy_is_not_converted(tfrecord_dir, tmp_path, damage):
  shard = tfrecord_dir / "digits" / "1.0.0" / "digits-train.tfrecord-00001-of-00003"
  content = shard.read_bytes()
  if damage == "missing":
    shard.unlink()
  elif damage == "truncated":
    shard.write_bytes(content[:-7])
  elif damage == "header":
    shard.write_bytes(content[:3] + b"\1" + content[4:])
  else:  # a whole record is gone
    shard.write_bytes(content[12 + struct.unpack("<Q", content[:8])[0] + 4 :])
  with pytest.raises(ConfigError, match=f"{shard.name} is damaged"):
    prepare.prepare("digits", str(tmp_path / "new"), str(tfrecord_dir))
  assert not list((tmp_path / "new" / "digits").iterdir())


REFUSED = {
  "digits:9.9.9": "'digits:9.9.9' does not exist; vitx has only digits:1.0.0",
  "cifarr10": "is unknown. Did you mean 'cifar10'",
  "cifar10": "'cifar10' needs the extra",
  "tiny_imagenet": "vitx prepare tiny_imagenet --from",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_set_that_cannot_be_prepared_is_refused(name, tmp_path, monkeypatch, capsys):
  find = importlib.util.find_spec
  monkeypatch.setattr(
    importlib.util, "find_spec", lambda name: None if name == "tensorflow" else find(name)
  )
  assert main(["prepare", name, "--data_dir", str(tmp_path)]) == 1
  assert REFUSED[name] in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.fixture
def archive(tmp_path, draw):
  """A small Tiny ImageNet in the official layout: classes out of order, test unlabeled."""
  root = tmp_path / "tiny-imagenet-200"
  wnids = ["n03", "n01", "n02"]
  for c, wnid in enumerate(wnids):
    for i in range(4):
      draw(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", (64, 64), seed=10 * c + i)
    (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
  lines = []
  for i in range(6):
    mode = "L" if i == 0 else "RGB"  # some official images are gray
    draw(root / "val" / "images" / f"val_{i}.JPEG", (64, 64), mode, seed=100 + i)
    lines.append(f"val_{i}.JPEG\t{wnids[i % 3]}\t0\t0\t1\t1")
    draw(root / "test" / "images" / f"test_{i}.JPEG", (64, 64))
  (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
  (root / "wnids.txt").write_text("\n".join(wnids) + "\n")
  (root / "words.txt").write_text("n01\tgoldfish\nn02\tfire salamander\nn03\tbullfrog\nn99\tx\n")
  return root


@pytest.mark.parametrize("kind", ["parent", "zip"])
def test_tiny_imagenet_is_prepared(archive, tmp_path, make_data, kind):
  path = archive.parent
  if kind == "zip":
    path = tmp_path / "any name.zip"
    with zipfile.ZipFile(path, "w") as zipped:
      for file in archive.rglob("*.*"):
        zipped.write(file, file.relative_to(archive.parent))
  target = str(tmp_path / "tfds")
  assert main(["prepare", "tiny_imagenet", "--from", str(path), "--data_dir", target]) == 0
  data = make_data(source="tiny_imagenet", data_dir=target, validation=0.25)
  source = open_source(data, seed=0)
  assert source.info.class_names == ("n01", "n02", "n03")
  assert [len(source.role(role)) for role in ("train", "validation", "test")] == [9, 3, 6]
  wnids = ["n03", "n01", "n02"]
  for i in range(6):
    number = int(source.test.name(i).removeprefix("val_").removesuffix(".JPEG"))
    assert source.info.class_names[source.test[i]["label"]] == wnids[number % 3]
  for i in range(9):
    assert source.train.name(i).startswith(source.info.class_names[source.train.labels[i]])
  version = tmp_path / "tfds" / "tiny_imagenet" / "1.0.0"
  encoded = (archive / "train" / "n02" / "images" / "n02_1.JPEG").read_bytes()
  assert any(encoded in record for record in records(version, "train"))  # bytes untouched
  assert json.loads((version / "metadata.json").read_text())["words"]["n01"] == "goldfish"
