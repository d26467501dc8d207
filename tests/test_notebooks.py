"""Every notebook is short, stored without outputs, and runs from top to bottom."""

import json
import os
import re
import shutil
import sys

import nbclient
import nbformat
import pytest
from jupyter_client.manager import start_new_kernel

from tests import runs
from tests.interop.published import FILES
from tests.test_folder_end_to_end import draw

NOTEBOOKS = sorted((runs.ROOT / "colab").glob("*.ipynb"))
PAGES = (runs.ROOT / "README.md", *(runs.ROOT / "docs").glob("*.md"))


def find_workdirs(*paths):
  return {name for path in paths for name in re.findall(r"\bruns/\w+", path.read_text())}


def code(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_stored_without_outputs(path):
  notebook = nbformat.read(path, as_version=4)
  nbformat.validate(notebook)
  assert all(not cell.outputs and cell.execution_count is None for cell in code(notebook))
  install = code(notebook)[0].source
  assert '".[colab]"' in install and 'if "google.colab" in sys.modules' in install
  # The address of the repository is not known yet.
  everything = "".join(cell.source for cell in notebook.cells)
  assert '\nREPOSITORY = ""\n' in everything and "github.com" not in everything


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_has_workdirs_of_its_own(path):
  """A page and a notebook may train for different durations, which one workdir refuses."""
  assert not find_workdirs(path) & find_workdirs(*PAGES)
  others = [other for other in NOTEBOOKS if other != path]
  assert find_workdirs(path) & find_workdirs(*others) <= {"runs/notebook_pictures"}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
  """A Jupyter kernel on the CPU, which runs one notebook after another."""
  folder = tmp_path_factory.mktemp("jupyter")
  command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
  spec = {"argv": command, "display_name": "Python 3", "language": "python"}
  (folder / "kernels" / "python3").mkdir(parents=True)
  (folder / "kernels" / "python3" / "kernel.json").write_text(json.dumps(spec))
  paths = (folder, os.environ.get("JUPYTER_PATH"))
  variables = {
    "JUPYTER_PATH": os.pathsep.join(str(path) for path in paths if path),
    "PYTHONPATH": str(runs.ROOT),
    "JAX_PLATFORMS": "cpu",
  }
  with pytest.MonkeyPatch.context() as patch:
    for name, value in variables.items():
      patch.setenv(name, value)
    manager, client = start_new_kernel(startup_timeout=300, kernel_name="python3")
  client.stop_channels()
  yield manager
  manager.shutdown_kernel(now=True)


@pytest.fixture
def workplace(tmp_path):
  """A copy of a clone's `colab/` and `configs/`."""
  for name in ("colab", "configs"):
    shutil.copytree(runs.ROOT / name, tmp_path / name)
  return tmp_path


# Changes that shorten a notebook: environment variables, and a text with its replacement. Three
# notebooks train one network for as many steps, so that its programs are compiled once.
PLAIN = "model.depth=1,augment.rotate=0.0,augment.pad_crop=0"
TRAIN = "config.duration = DURATION"
STILL = "config.augment.update(vitx.config.default_config().augment)"
SHORT = {
  "attention_patterns": ({}, ("", "")),
  "compare_mixers": (
    {"VITX_MIXERS": "softmax,fnet", "VITX_SEEDS": "1", "VITX_STEPS": "4"},
    ("log_every=20", f"log_every=20,{PLAIN}"),
  ),
  "density": ({"VITX_STEPS": "10"}, ("width=96, depth=4", "width=32, depth=1")),
  "evaluate_checkpoint": ({"VITX_STEPS": "4"}, ("softmax,pool=cls", f"softmax,{PLAIN}")),
  "sparsifiner": (
    {"VITX_STEPS": "2", "VITX_DEPTH": "1"},
    ("digits_keep_0.25", f"digits_keep_0.25,{PLAIN}"),
  ),
  "swap": (
    {"VITX_MIXERS": "performer", "VITX_SEEDS": "1", "VITX_STEPS": "2"},
    ("log_every=20", f"log_every=20,{PLAIN}"),
  ),
  "train": (
    {"VITX_DURATION": "6 steps"},
    (TRAIN, f"{STILL}; config.schedule.warmup, config.model.depth = '2 steps', 1; {TRAIN}"),
  ),
}
# The cells that must end in a picture.
PICTURES = {
  "attention_patterns": ("look", "field", "field-small-world", "cost"),
  "compare_mixers": ("table", "cost", "maps", "heads"),
  "density": ("watch", "past"),
  "evaluate_checkpoint": ("predict", "maps", "side", "weights"),
  "sparsifiner": ("masks", "basis"),
  "swap": ("errors",),
  "train": ("train", "evaluate", "predict", "attention", "folder", "folder-use"),
}
# Statements that are executed after the last cell of a notebook.
CHECKS = {
  "attention_patterns": """
densities = {name: graph.density for name, graph in graphs.items()}
assert len(densities) == 7 and logits.shape == (2, 10)
assert all(a < 0.5 * b for a, b in zip(costs["kernelized"][-1], costs["masked"][-1]))""",
  "compare_mixers": """
assert [m.label for m in maps] == ["softmax_seed-0"] and len(open(table).readlines()) == 3""",
  "density": "assert figures['bits'] < 8 and len(samples.texts) == 2",
  "evaluate_checkpoint": """
assert figures["examples"] == 359 and len(prediction.classes) == 6
assert products["query_key"].shape == (1, 4, 64, 64)""",
  "sparsifiner": """
kept = [line.split(",") for line in table.read_text().splitlines()]
assert figures["examples"] == 359 and float(dict(zip(*kept))["kept_keys"]) == 17""",
  "swap": """
import json
run = Path("runs/notebook_aligned/token_mixer-performer_seed-0/align")
rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
errors = [row["alignment_errors"] for row in rows if row["kind"] == "validation"][-1]
assert picture.name == "alignment_notebook_aligned.png"
assert len(errors) == 1 and 0 < errors[0] < 10""",
  "train": """
assert figures["examples"] == 359 and own_figures["examples"] == 6
assert set(own_prediction.classes) <= set(own_figures["class_names"])""",
}


# Each test executes a notebook, and most notebooks train models: up to a minute.
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_from_top_to_bottom(path, workplace, kernel):
  text = workplace / "text.txt"
  text.write_bytes((runs.ROOT / "vitx" / "testing.py").read_bytes() * 4)
  variables, shorter = SHORT[path.stem]
  folder = draw(workplace / "images", per_class=10)  # fewer test images than the notebook shows
  files = {"VITX_FOLDER": str(folder), "VITX_TEXT": str(text)}
  execute(kernel, workplace, path.stem, CHECKS[path.stem], files | variables, *shorter)


def execute(kernel, workplace, name, check, variables, old="", new=""):
  """Executes a notebook and the statements of `check`; looks for its pictures."""
  notebook = nbformat.read(workplace / "colab" / f"{name}.ipynb", as_version=4)
  assert any(old in cell.source for cell in code(notebook))
  for cell in code(notebook) if old else ():
    cell.source = cell.source.replace(old, new)
  begin = f"""%reset -f
import contextvars, os
from tests import programs
from vitx.runtime import sharing
sharing._results = contextvars.ContextVar("shared", default=programs._results)
os.chdir({str(workplace / "colab")!r})
for name in [name for name in os.environ if name.startswith("VITX_") and name != "VITX_CHOICES"]:
  del os.environ[name]
os.environ.update({variables})
%reset -f"""
  notebook.cells.insert(0, nbformat.v4.new_code_cell(begin))
  notebook.cells.append(nbformat.v4.new_code_cell(check))
  client = nbclient.NotebookClient(notebook, km=kernel, timeout=600, iopub_timeout=60)
  client.execute()
  client.kc.stop_channels()
  outputs = {cell.id: cell.outputs for cell in code(notebook)}
  for cell in PICTURES[name]:
    assert any("image/png" in output.get("data", {}) for output in outputs[cell]), cell


@pytest.mark.slow  # executes a notebook
def test_a_notebook_reads_published_weights_and_images_of_ones_own(workplace, kernel):
  """The notebook reads published weights of five classes and 24 x 24 pixels without their data."""
  row = "deit_ti,model.width=12,model.depth=2,model.num_heads=3,model.mlp_dim=48,stem.patch=8"
  row += ",data.image_size=24,model.num_classes=5,model.dtype=float32"
  images = sorted(draw(workplace / "images").rglob("*.jpg"))[:3]
  variables = {
    "VITX_FOREIGN": str(FILES["timm_vit"]),
    "VITX_FOREIGN_CONFIG": f"imagenet:{row}",
    "VITX_IMAGES": " ".join(map(str, images)),
  }
  check = """
assert len(prediction.classes) == 3 and set(prediction.classes) <= set("01234")
assert [layer.shape for layer in maps.layers] == [(3, 3, 10, 10)] * 2"""
  execute(kernel, workplace, "evaluate_checkpoint", check, variables)
