"""Tasks with labels from a table: training, resuming, evaluation, prediction, refusals."""

import csv
import json

import jax
import numpy as np
import pytest
from jax import export
from PIL import Image
from sklearn import metrics as reference

import vitx
from tests import programs, runs
from tests.slow import all_but
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.config.settings import change
from vitx.inference.evaluate import evaluate
from vitx.inference.export import make_program
from vitx.inference.probe import probe
from vitx.tasks.settle import complete_config
from vitx.training import loop, trial
from vitx.training.experiment import make_experiment

COUNT = 48
TASKS = {
  "masked_autoencoder": ("class", "()"),  # no column has labels
  "multilabel": ("classes", "colors"),
  "regression": ("number", "level"),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
  """A table of images with their colors, their gray level and their group."""
  folder = tmp_path_factory.mktemp("table")
  random = np.random.default_rng(0)
  rows = [["file", "colors", "level", "group"]]
  for i in range(COUNT):
    colors = [name for name, on in zip("rgb", random.uniform(size=3) < 0.6, strict=True) if on]
    colors = colors or ["r"]
    image = np.full((8, 8, 3), 30, np.uint8)
    for name in colors:
      image[..., "rgb".index(name)] = 220
    Image.fromarray(image).save(folder / f"{i}.png")
    level = round(40 + 5 * float(image.mean()) / 255, 3)
    rows.append([f"{i}.png", ";".join(colors), level, "ab"[i % 2]])
  with (folder / "labels.csv").open("w", newline="") as file:
    csv.writer(file).writerows(rows)
  return folder / "labels.csv"


def config(task, table, *overrides):
  kind, column = TASKS[task]
  fields = (
    f"task={task}",
    f"dataset='csv:{table}'",
    f"data.label_kind={kind}",
    f"data.label_columns={column}",
    *("data.image_size=8", "batch_size=8", "duration=12 steps", "log_every=4 steps"),
    *("evaluation.every=6 steps", "checkpoint.every=6 steps", "augment.hflip=0.5"),
    *("data.mean=(0.5,0.5,0.5)", "data.std=(0.3,0.3,0.3)", "schedule=constant"),
    *("learning_rate=0.01", "ema_decay=0.0", *runs.PLAIN),
  )
  if task == "masked_autoencoder":
    fields += (
      "task.decoder_width=16",
      "task.decoder_depth=1",
      "task.decoder_heads=2",
      "stem.patch=2",
    )
  return runs.tiny(*fields, *overrides)


@pytest.fixture(scope="module", params=all_but(of=TASKS))  # trains
def run(request, table, tmp_path_factory):
  workdir = tmp_path_factory.mktemp(request.param)
  with jax.numpy_dtype_promotion("standard"), programs.shared():
    loop.train(config(request.param, table), workdir)
  return request.param, workdir


def test_it_learns_and_records_what_follows_from_the_data(run):
  task, workdir = run
  losses = [row["loss"] for row in runs.rows(workdir) if row["kind"] == "train"]
  assert losses[-1] < losses[0]
  stored = json.loads((workdir / "config.json").read_text())
  if task == "regression":
    assert 40 < stored["task"]["target_mean"] < 45 and stored["task"]["target_std"] > 0
  assert stored["model"]["num_classes"] == {"multilabel": 3}.get(task, 1)


def test_figures_are_scikit_learns_on_the_predictions(run, table, tmp_path):
  task, workdir = run
  file = tmp_path / "p.csv"
  figures = evaluate(workdir, split="all", predictions=file)
  with file.open(newline="") as opened:
    rows = list(csv.DictReader(opened))
  assert len(rows) == figures["examples"] == COUNT
  if task == "masked_autoencoder":
    assert figures["loss"] == pytest.approx(np.mean([float(row["loss"]) for row in rows]), rel=1e-5)
    with pytest.raises(
      ConfigError, match=r"task='decoder_width=8': the model of .* of another shape"
    ):
      evaluate(workdir, task="decoder_width=8")
    unlabeled = evaluate(workdir, source=f"folder:{table.parent}")  # no directories of classes
    assert unlabeled["examples"] == COUNT and unlabeled["loss"] == pytest.approx(figures["loss"])
    return
  if task == "regression":
    target, output = (np.array([row[name] for row in rows], float) for name in list(rows[0])[1:])
    assert figures["mae"] == pytest.approx(reference.mean_absolute_error(target, output), rel=1e-4)
    assert figures["rmse"] ** 2 == pytest.approx(
      reference.mean_squared_error(target, output), rel=1e-3
    )
    assert figures["r2"] == pytest.approx(reference.r2_score(target, output), rel=1e-3, abs=1e-3)
    return
  names = figures["class_names"]
  labels = np.array([[name in row["labels"].split(";") for name in names] for row in rows])
  scores = np.array([[row[f"p({name})"] for name in names] for row in rows], float)
  assert figures["class_ap"] == pytest.approx(
    [reference.average_precision_score(labels[:, k], scores[:, k]) for k in range(3)], abs=1e-6
  )
  chosen = np.array([[name in row["prediction"].split(";") for name in names] for row in rows])
  assert figures["f1"] == pytest.approx(reference.f1_score(labels, chosen, average="micro"))


def test_commands_evaluate_and_predict(run, table, tmp_path, capsys):
  task, workdir = run
  assert main(["evaluate", "--workdir", str(workdir)]) == 0
  out = capsys.readouterr().out
  assert {"multilabel": "mAP", "regression": "mean absolute error"}.get(
    task, "squared error"
  ) in out
  words = ["predict", "--workdir", str(workdir), str(table.parent / "3.png")]
  assert main([*words, "--json", str(tmp_path / "p.json")]) == 0
  head, line = capsys.readouterr().out.splitlines()
  (entry,) = json.loads((tmp_path / "p.json").read_text())
  if task == "masked_autoencoder":
    assert set(entry) == {"name", "loss"} and line.split()[1] == f"{entry['loss']:.4f}"
    return
  assert {"name", "prediction"} <= set(entry) and not {"labels", "target"} & set(entry)
  assert head.split()[:2] == ["name", "prediction"]
  assert task == "regression" or line.split()[1:] == entry["prediction"].split()


def test_an_exported_program_answers_as_predict(run, table):
  loaded = vitx.load(run[1])
  images = np.stack([np.asarray(Image.open(table.parent / f"{i}.png")) for i in range(3)])
  program = export.deserialize(make_program(loaded, ("cpu",), None, "masked").serialize())
  outputs, expected = jax.jit(program.call)(images), vitx.predict(loaded, images).rows
  more = {"image", "masked", "reconstruction"} if run[0] == "masked_autoencoder" else set()
  assert set(outputs) == set(expected) | more
  for name, value in expected.items():
    np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # trains
@pytest.mark.usefixtures("whole_runs")
def test_an_interrupted_run_ends_with_the_bits_of_an_uninterrupted_one(run, table, tmp_path):
  task, whole = run
  with programs.shared():
    loop.train(config(task, table, "stop_after=5 steps"), tmp_path)
    loop.train(config(task, table), tmp_path)
  assert runs.rows(whole) == runs.rows(tmp_path)
  jax.tree.map(np.testing.assert_array_equal, runs.final_state(whole), runs.final_state(tmp_path))


@pytest.mark.usefixtures("whole_runs")
def test_losses_and_plans_of_a_regression(table):
  overrides = "task.loss=huber", "task.huber_delta=0.5", "task.target_mean=40.0"
  experiment = make_experiment(config("regression", table, *overrides))
  loss = experiment.task.mean_loss(np.float32([[2.0]]), np.float32([[0.0]]))
  assert experiment.task.target_mean == 40.0 and loss == 0.5 * 0.5**2 + 0.5 * (2.0 - 0.5)


@pytest.mark.usefixtures("whole_runs")
def test_a_class_without_training_images_is_named(table, caplog):
  head, *rows = table.read_text().splitlines()
  role = lambda row: "test" if "b" in row.split(",")[1] else "train"  # noqa: E731
  (table.parent / "splits.csv").write_text(
    "\n".join([f"{head},split", *(f"{row},{role(row)}" for row in rows)])
  )
  make_experiment(config("multilabel", table, "task.class_weights=balanced"))
  assert "train has no example" not in caplog.text
  make_experiment(config("multilabel", table.parent / "splits.csv"))
  assert "train has no example of 1 of the 3 classes (b)" in caplog.text


@pytest.mark.usefixtures("whole_runs")
@pytest.mark.parametrize("task", TASKS)
def test_a_plan_needs_no_table_where_the_config_says_enough(task, table):
  short = config(task, table)
  complete = complete_config(short)
  assert trial.count_training_flops(complete) > 0
  again = complete_config(change(complete, {"data.source": "csv:nowhere.csv"}))
  assert again.model == complete.model and again.task == complete.task


BAD = (
  ("multilabel", "data.label_kind=class,data.label_columns=group", "declares no array 'labels'"),
  ("regression", "data.label_kind=class,data.label_columns=group", "declares no array 'target'"),
  ("multilabel", "task=classification", "no array 'label', but the task 'classification' needs"),
  ("regression", "model.num_classes=3", "model.num_classes=3"),
  ("regression", "schedule=plateau,schedule.mode=max", "schedule.mode='max': the mae of this"),
  ("masked_autoencoder", "token_mixer=fnet", "FNet does not allow"),
  ("masked_autoencoder", "schedule=plateau,schedule.mode=max", "schedule.mode='max': the loss"),
)


@pytest.mark.usefixtures("whole_runs")
@pytest.mark.parametrize(("task", "overrides", "message"), BAD)
def test_fields_that_do_not_fit_are_refused_before_compilation(table, task, overrides, message):
  with pytest.raises(ConfigError, match=message):
    make_experiment(config(task, table, *vitx.config.overrides.split(overrides)))


def test_a_probe_needs_one_class_for_each_example_and_a_head(run, tmp_path):
  with pytest.raises(
    ConfigError,
    match=r"no class for each example|no head, whose input|'head', which this network lacks",
  ):
    probe(run[1], cache=tmp_path)
