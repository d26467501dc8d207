"""`vitx export` writes a file that needs no vitx, predicts as vitx does, and describes itself."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import vitx
from tests import runs
from vitx.cli.main import main
from vitx.config.errors import MissingExtraError
from vitx.data.sources import open_source

ALONE = """
import sys

sys.modules["vitx"] = None  # whoever imports it now gets an ImportError
try:
  import vitx
except ImportError:
  pass
else:
  raise SystemExit("vitx can be imported")

import jax
import numpy as np

program, given, outputs = sys.argv[1:]
with open(program, "rb") as file:
  exported = jax.export.deserialize(bytearray(file.read()))
assert exported.platforms == ("cpu", "cuda", "tpu")
np.savez(outputs, **exported.call(np.load(given)))
assert not any(name.startswith("vitx.") for name in sys.modules)
"""


@pytest.fixture(scope="module")
def run(finished_run):
  return finished_run[0]


@pytest.fixture(scope="module")
def digits():
  """Five digits, uint8 (5, 8, 8, 1)."""
  test = open_source(runs.tiny().data, seed=0).test
  return np.stack([test[i]["image"] for i in range(5)])


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
  """The file that `vitx export` writes for the finished run."""
  path = tmp_path_factory.mktemp("exported") / "digits.jaxprogram"
  assert main(["export", "--workdir", str(run), "--out", str(path)]) == 0
  return path


@pytest.mark.slow
def test_a_program_runs_without_vitx(exported, run, digits, tmp_path):
  np.save(tmp_path / "given.npy", digits)
  environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
  paths = [str(path) for path in (exported, tmp_path / "given.npy", tmp_path / "outputs.npz")]
  command = [sys.executable, "-c", ALONE, *paths]
  done = subprocess.run(
    command,
    cwd=tmp_path,
    env=environment | {"JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  outputs, expected = np.load(tmp_path / "outputs.npz"), vitx.predict(run, digits)
  for name in ("logits", "probabilities"):
    np.testing.assert_allclose(outputs[name], expected.rows[name], rtol=1e-5, atol=1e-5)


def test_a_program_describes_itself(exported):
  outputs = json.loads(exported.with_name(exported.name + ".json").read_text())
  assert outputs["inputs"] == [{"name": "image", "shape": ["b", 8, 8, 1], "dtype": "uint8"}]
  whole = {"shape": ["b", 10], "dtype": "float32"}
  assert outputs["outputs"] == {"logits": whole, "probabilities": whole}
  assert outputs["class_names"] == [str(i) for i in range(10)]
  assert outputs["platforms"] == ["cpu", "cuda", "tpu"] and outputs["implementation"] == "masked"
  assert outputs["prepared_by"].startswith("ResizeImages(decode_size=8, resize_mode='center'")


def test_one_platform_may_have_a_fixed_batch(run, tmp_path, capsys):
  out = tmp_path / "p"
  words = ["--platforms", "tpu", "--batch", "4", "--implementation", "kernelized"]
  assert main(["export", "--workdir", str(run), "--out", str(out), *words]) == 0
  printed = capsys.readouterr().out
  assert "bytes for tpu" in printed and "image uint8 (4, 8, 8, 1)" in printed
  assert "logits float32 (4, 10)" in printed and out.stat().st_size


def test_without_flatbuffers_the_extra_is_named(run, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "flatbuffers", None)
  with pytest.raises(MissingExtraError, match=r"out='.*p' needs the extra \"export\""):
    vitx.export(run, tmp_path / "p")
  assert not list(tmp_path.iterdir())
