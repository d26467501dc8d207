"""Every notebook is short, stored without outputs, and runs from top to bottom."""

import json
import os
import shutil
import sys

import nbclient
import nbformat
import pytest

from tests import runs
from tests.test_folder_end_to_end import CLASSES, draw

NOTEBOOKS = sorted((runs.ROOT / "colab").glob("*.ipynb"))


def code(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_stored_as_source(path):
  notebook = nbformat.read(path, as_version=4)
  nbformat.validate(notebook)
  assert len(code(notebook)) <= 12
  assert all(not cell.outputs and cell.execution_count is None for cell in code(notebook))
  assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
  assert notebook.metadata.kernelspec.name == "python3"
  install = next(cell.source for cell in code(notebook) if "pip install" in cell.source)
  assert '".[colab]"' in install and 'if "google.colab" in sys.modules' in install


@pytest.fixture
def workplace(tmp_path, monkeypatch):
  """A clone's `colab/` and `configs/` elsewhere, and a kernel of this interpreter, on the CPU."""
  for name in ("colab", "configs"):
    shutil.copytree(runs.ROOT / name, tmp_path / name)
  kernel = tmp_path / "jupyter" / "kernels" / "python3"
  kernel.mkdir(parents=True)
  command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
  spec = {"argv": command, "display_name": "Python 3", "language": "python"}
  (kernel / "kernel.json").write_text(json.dumps(spec))
  paths = (tmp_path / "jupyter", os.environ.get("JUPYTER_PATH"))
  monkeypatch.setenv("JUPYTER_PATH", os.pathsep.join(str(path) for path in paths if path))
  monkeypatch.setenv("PYTHONPATH", str(runs.ROOT))
  monkeypatch.setenv("JAX_PLATFORMS", "cpu")
  monkeypatch.delenv("XLA_FLAGS", raising=False)  # it trains for long enough to be optimized
  return tmp_path


# Each executes a notebook and trains models in it: about a minute.
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_runs_from_top_to_bottom(path, workplace, monkeypatch):
  monkeypatch.setenv("VITX_DURATION", "3 epochs")
  monkeypatch.setenv("VITX_FOLDER", str(draw(workplace / "images")))
  notebook = nbformat.read(workplace / "colab" / path.name, as_version=4)
  result = nbformat.v4.new_code_cell(
    "import json\n"
    "json.dump([figures, own_figures, own_prediction.classes], open('result.json', 'w'))"
  )
  notebook.cells.append(result)
  resources = {"metadata": {"path": str(workplace / "colab")}}
  nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
  figures, own, classes = json.loads((workplace / "result.json").read_text())
  assert figures["examples"] == 359 and figures["top1"] > 0.5
  assert own["class_names"] == list(CLASSES) and own["examples"] == 15
  assert len(classes) == 8 and set(classes) <= set(CLASSES)
  outputs = {cell.id: cell.outputs for cell in code(notebook)}
  printed = "".join(output.get("text", "") for output in outputs["evaluate"])
  assert f"{figures['top1']:.2%}" in printed
  for cell in ("watch", "predict", "folder", "folder-use"):
    assert any("image/png" in output.get("data", {}) for output in outputs[cell]), cell
