"""Every figure of results/*.md follows from the CSV beside it, and its copies equal it.

A figure that vitx measured has one home: a table of results/ or, if its runs were not kept as
CSV, one of `HOMES`. Elsewhere, the paragraph or the row of a table that quotes a figure names
its home.
"""

import ast
import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from configs import photos, simplified_cifar10
from tests.benchmarks.sparsifiner import NETWORKS

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
CLAIMS = RESULTS / "CLAIMS.md"
TABLES = [path for path in sorted(RESULTS.glob("*.md")) if path.with_suffix(".csv").exists()]
NUMBER = r"([+-]?[0-9.]+)"
# Files with figures that have no CSV; each file says how its figures were measured.
HOMES = ("docs/papers.md", "docs/sparsifiner.md", "docs/density.md", "docs/gpu.md")
PAGES = (
  "README.md",
  "results/CLAIMS.md",
  *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md")),
)
CONFIGS = tuple(sorted(f"configs/{path.name}" for path in ROOT.glob("configs/*.py")))
# Accuracies in percent, bits with three or four decimals, and differences of accuracies.
MEASURED = re.compile(
  r"(?<![\d.,])(?:(?:\d\d\.\d{1,2}|\d\.\d{3,4})(?: ± \d+\.\d+)?|[+-]\d+\.\d\d)(?![\d.]*\d)"
)
CITED = re.compile(r"\b(\w+)\.md\b")


def read_table(path: Path) -> list[dict[str, str]]:
  """Returns the rows of a page's first table by column; the first column is called ""."""
  lines = [line for line in path.read_text().split("\n\n")[1].splitlines() if line[:1] == "|"]
  head, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
  return [dict(zip(head, row, strict=True)) for row in rows]


def read_runs(path: Path, column: str) -> dict[str, dict[int, float]]:
  """Returns a column of the CSV by method and seed; failed runs are left out."""
  found: dict[str, dict[int, float]] = {}
  for row in csv.DictReader(path.with_suffix(".csv").read_text().splitlines()):
    own = found.setdefault(row["method"], {})
    if not row["problem"]:
      own[int(row["seed"])] = float(row[column])
  return found


def read_percents(name: str, column: str = "test_top1") -> dict[str, list[float]]:
  """Returns a column of a table's runs in percent, by method, in the order of the seeds."""
  runs = read_runs(RESULTS / f"{name}.md", column)
  return {method: [100 * own[seed] for seed in sorted(own)] for method, own in runs.items()}


def contrast(values: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
  """Returns the mean of the paired differences and the ends of its 95 % t interval."""
  low, high = stats.ttest_rel(values, base).confidence_interval(0.95)
  return np.mean(values) - np.mean(base), low, high


def quote(mean: float, low: float, high: float, form: str = "+.2f") -> str:
  """Returns a difference and its interval as CLAIMS prints them."""
  return f"{mean:{form}}, interval {low:{form}} to {high:{form}}"


def cell(values: list[float], scale: float, digits: int) -> str:
  spread = f" ± {np.std(values, ddof=1) * scale:.{digits}f}" if len(values) > 1 else ""
  return f"{np.mean(values) * scale:.{digits}f}{spread}"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_follows_from_its_runs(path):
  rows = read_table(path)
  named = next(name.removeprefix("test ") for name in rows[0] if name.startswith("test "))
  figure, scale, digits = {"top-1 %": ("top1", 100, 2), "bits": ("bits", 1, 4)}[named]
  minus = next(name for name in rows[0] if name.startswith("minus "))
  validation, test = (read_runs(path, f"{role}_{figure}") for role in ("validation", "test"))
  base = test[rows[0][""]]
  p_values = {}
  for row in rows:
    own = test[row[""]]
    assert row["seeds"] == str(len(own))
    assert row[f"test {named}"] == cell(list(own.values()), scale, digits)
    assert row[f"validation {named}"] == cell(list(validation[row[""]].values()), scale, digits)
    if row is rows[0]:
      continue
    seeds = [seed for seed in own if seed in base]
    pairs = [own[seed] for seed in seeds], [base[seed] for seed in seeds]
    values = [float(text) for text in re.findall(NUMBER, row[minus])]
    wanted = [np.mean(pairs[0]) - np.mean(pairs[1])]
    if len(seeds) > 1:
      found = stats.ttest_rel(*pairs)
      wanted += list(found.confidence_interval(0.95))
      p_values[row[""]] = found.pvalue
    np.testing.assert_allclose(values, np.array(wanted) * scale, atol=0.51 * 10**-digits)
  smallest, last = sorted(p_values, key=p_values.__getitem__), 0.0
  for place, name in enumerate(smallest):  # Holm: each times the number of those left
    last = min(max(last, p_values[name] * (len(smallest) - place)), 1.0)
    row = next(row for row in rows if row[""] == name)
    assert float(row["p"]) == pytest.approx(last, rel=5e-3)


def test_the_growth_of_the_sparse_transformer_s_time_follows_from_its_runs():
  """CLAIMS has the exponents with 95 % t intervals, and docs/density.md the mean ratios."""
  runs: dict[str, dict[int, list[float]]] = {}
  with open(RESULTS / "density_growth.csv", newline="") as file:
    for row in csv.DictReader(file):
      ratios = runs.setdefault(row["pattern"], {}).setdefault(int(row["tokens"]), [])
      ratios.append(float(row["times_faster"]))
  claims, page = (path.read_text() for path in (CLAIMS, ROOT / "docs/density.md"))
  for pattern, by_length in runs.items():
    x, y = np.log([(n, ratio) for n, ratios in by_length.items() for ratio in ratios]).T
    fit = stats.linregress(x, y)
    half = stats.t.ppf(0.975, len(x) - 2) * fit.stderr
    interval = f"{fit.slope:.2f} ({fit.slope - half:.2f} to {fit.slope + half:.2f})"
    assert f"{pattern.split()[-1]} {interval}" in claims
    for n, ratios in by_length.items():
      line = next(line for line in page.splitlines() if line.startswith(f"| {n:,} |"))
      assert cell(ratios, 1, 2) in line


def test_the_contrast_of_the_sparse_transformer_follows_from_its_runs():
  """CLAIMS has strided minus fixed and minus dense; both intervals are below the margin."""
  bits = read_runs(RESULTS / "density_digits.md", "test_bits")
  strided = list(bits["strided"].values())
  for other in ("fixed", "dense"):
    found = contrast(strided, list(bits[other].values()))
    assert quote(*found, form=".3f") in CLAIMS.read_text() and found[2] < -0.01


def test_the_contrasts_of_sparsifiner_follow_from_its_runs():
  """The page has each interval on CIFAR-10, and CLAIMS the verdicts of the margins stated there."""
  page, claims = (path.read_text() for path in (ROOT / "docs/sparsifiner.md", CLAIMS))
  verdicts: dict[str, str] = {}
  for table, shares in {"": ("0.25", "0.1"), "_twentieth": ("0.05",)}.items():
    values = read_percents(f"sparsifiner_cifar10{table}")
    for share in shares:
      names = (f"cifar10_{name}" for name in (f"keep_{share}", f"random_{share}", "tuned"))
      keep, random, tuned = (values[name] for name in names)
      found = [contrast(*pair) for pair in ((keep, tuned), (random, tuned), (keep, random))]
      cells = [f"{mean:+.2f} ({low:+.2f} to {high:+.2f})" for mean, low, high in found]
      assert f"| {share} | {' | '.join(cells)} |" in page
      assert quote(*found[2]) in claims
      _, low, high = found[2]
      verdicts[share] = "holds" if low > 0 else "fails" if high < 0.5 else "open"
      if share == "0.25":
        assert found[0][1] < -1 < found[0][2] < 0 and quote(*found[0]) in claims
  assert verdicts == {"0.25": "open", "0.1": "fails", "0.05": "open"}


def test_the_overlap_of_sparsifiners_masks_follows_from_its_runs():
  """In each layer the intervals of both overlaps are below the margin of CLAIMS, 0.9."""
  layers: dict[str, dict[str, list[float]]] = {}
  for row in csv.DictReader((RESULTS / "sparsifiner_masks.csv").read_text().splitlines()):
    for name in list(row)[2:]:
      layers.setdefault(row["layer"], {}).setdefault(name, []).append(float(row[name]))
  page, claims = (path.read_text() for path in (ROOT / "docs/sparsifiner.md", CLAIMS))
  for layer, values in layers.items():
    overlaps = ["overlap_of_images", "overlap_of_queries"]
    names = [*overlaps, "attention_kept", "coefficient_zeros", "basis_zeros"]
    assert f"| {layer} | {' | '.join(cell(values[name], 1, 2) for name in names)} |" in page
    for name in overlaps:
      low, high = stats.ttest_1samp(values[name], 0).confidence_interval(0.95)
      assert high < 0.9
      assert f"{np.mean(values[name]):.2f} ({low:.2f} to {high:.2f})" in claims
  both = np.array([[v["basis_zeros"], v["coefficient_zeros"]] for v in layers.values()])
  assert np.mean(np.prod(1 - both, axis=1)) == pytest.approx(
    NETWORKS["sparsifiner_small"].density, abs=5e-4
  )


def test_the_choice_of_the_vanilla_block_follows_from_its_runs():
  """The criterion of CLAIMS chooses two normalizations, and the pages have the runs' figures."""
  runs: dict[str, dict[int, list[float]]] = {}
  for row in csv.DictReader((RESULTS / "vanilla_blocks.csv").read_text().splitlines()):
    values = runs.setdefault(row["block"], {}).setdefault(int(row["epoch"]), [])
    values.append(100 * float(row["train_top1"]))
  published = simplified_cifar10.PUBLISHED["vanilla_w128_d8"]["train_top1"] | {2: 35.3, 3: 41.4}
  page, doc = (ROOT / "docs/papers.md").read_text(), simplified_cifar10.__doc__
  distances = []
  for block, epochs in runs.items():
    assert list(map(len, epochs.values())) == [2] * 5
    line = next(line for line in page.splitlines() if line.startswith(f"| {block}"))
    cells = [cell(values, 1, 1) for values in epochs.values()]
    assert [text.strip() for text in line.split("|")[2:-1]] == cells
    assert "  ".join(text.partition(" ")[0] for text in cells) in doc
    distances.append(np.mean([abs(np.mean(epochs[n]) - published[n]) for n in (1, 2, 3, 5)]))
  assert abs(np.mean(runs["two normalizations"][5]) - published[5]) < 2
  assert abs(np.subtract(*distances)) < 0.5  # so the text of the source decides
  assert f"{np.mean(runs['two normalizations'][5]):.1f} % after 5" in CLAIMS.read_text()


def test_training_at_width_96_follows_from_its_runs():
  """CLAIMS has simplified minus vanilla, below the margin; a page and a config have the means."""
  runs: dict[str, dict[int, list[float]]] = {}
  for row in csv.DictReader((RESULTS / "simplified_w96_training.csv").read_text().splitlines()):
    values = runs.setdefault(row["row"], {}).setdefault(int(row["epoch"]), [])
    values.append(100 * float(row["train_top1"]))
  page, doc = (ROOT / "docs/papers.md").read_text(), simplified_cifar10.__doc__
  for name, epochs in runs.items():
    cells = [cell(values, 1, 1) for values in epochs.values()]
    assert f"| `{name}`, ours | {' | '.join(cells)} |" in page
    assert "  ".join(text.partition(" ")[0] for text in cells) in doc
  found = contrast(runs["simplified_w96_d8"][50], runs["vanilla_w96_d8"][50])
  assert quote(*found) in CLAIMS.read_text() and found[2] < -2


def test_six_points_are_excluded_on_imagenette():
  """CLAIMS has each set of keys minus full attention; the intervals end below the margin."""
  runs = read_percents("bbvit_imagenette_epochs")
  full = runs.pop("tiny_vit")
  for own in runs.values():
    found = contrast(own, full)
    assert quote(*found) in CLAIMS.read_text() and found[2] < 6


def test_the_contrasts_of_the_vision_x_formers_follow_from_their_runs():
  """CLAIMS has the lead of each mixer over ViT and the mean gain of the three convolutions."""
  runs, claims = read_percents("vix_cifar10_stride_4"), CLAIMS.read_text()
  verdicts = {}
  for row in ("vin", "vip", "vil"):
    found = contrast(runs[row], runs["vit"])
    assert quote(*found) in claims
    verdicts[row] = "holds" if found[1] > 0 else "fails" if found[2] < 0 else "open"
  assert verdicts == {"vin": "holds", "vip": "holds", "vil": "open"}
  plain = [runs[row] for row in ("vit", "vip", "vil", "vin")]
  hybrid = [runs[f"hybrid_{row}"] for row in ("vit", "vip", "vil", "vin")]
  found = contrast(np.mean(hybrid, axis=0), np.mean(plain, axis=0))
  assert quote(*found) in claims and found[1] < 0 < found[2] < 1
  assert quote(*contrast(runs["hybrid_vin"], runs["vin"])) in claims


def test_the_contrast_of_l1_and_l2_follows_from_its_runs():
  """CLAIMS has L2 minus L1, below the margin of one point, and the shares of zeros in the bases."""
  row, tables = "cifar10_keep_0.25", ("sparsifiner_cifar10_l2", "sparsifiner_cifar10_l1")
  found, claims = contrast(*(read_percents(name)[row] for name in tables)), CLAIMS.read_text()
  assert quote(*found) in claims and found[1] < 0 and found[2] < 1
  zeros = [np.mean(read_percents(name, "test_basis_sparsity")[row]) for name in tables]
  assert f"at {zeros[0]:.0f} and {zeros[1]:.0f} % zeros in the bases" in claims


NOT = "does not help"
# Of a table and the share of images with labels: whether pretraining on all images helps, whether
# that on the labeled images helps, and whether the former helps more than the latter.
PRETRAINED = [
  ("few_labels", "0.02", "helps", "helps", "open"),
  ("few_labels_450", "0.1", "does not help", "does not help", "does not help"),
  ("few_labels_locality", "0.02", "open", "open", "open"),
  ("few_labels_locality_450", "0.1", "does not help", "does not help", "does not help"),
  ("few_imagenette", "0.053", "helps", "helps", "open"),
  ("few_imagenette_180", "0.211", "helps", "helps", "open"),
  ("few_imagenette_locality", "0.053", "open", "does not help", "open"),
]


# Runs are named by a table and the share of images in its method's name.
@pytest.mark.parametrize(
  ("runs", "base", "wanted"),
  [
    *((f"{name}/1.0", f"{name}_scratch/{x}", verdict) for name, x, verdict, _, _ in PRETRAINED),
    *((f"{name}/{x}", f"{name}_scratch/{x}", verdict) for name, x, _, verdict, _ in PRETRAINED),
    *((f"{name}/1.0", f"{name}/{x}", verdict) for name, x, _, _, verdict in PRETRAINED),
    ("few_labels_locality_scratch/0.02", "few_labels_scratch/0.02", "helps"),
    ("few_labels_locality/1.0", "few_labels/1.0", "open"),
    ("few_labels_locality/0.02", "few_labels/0.02", "open"),
    ("few_labels_locality_450_scratch/0.1", "few_labels_450_scratch/0.1", "helps"),
    ("few_labels_locality_450/1.0", "few_labels_450/1.0", "open"),
    ("few_labels_locality_450/0.1", "few_labels_450/0.1", "open"),
    ("few_imagenette_locality_scratch/0.053", "few_imagenette_scratch/0.053", "open"),
    ("few_imagenette_convolutions/0.053", "few_imagenette_scratch/0.053", "helps"),
    ("few_imagenette_convolutions/0.053", "few_imagenette_locality_scratch/0.053", "open"),
    ("few_imagenette_locality_180_every/1.0", "few_imagenette_locality_180_scratch/0.211", NOT),
    ("few_imagenette_locality_180/0.211", "few_imagenette_locality_180_scratch/0.211", NOT),
    ("few_imagenette_locality_180_every/1.0", "few_imagenette_locality_180/0.211", "open"),
    ("few_imagenette_locality_180_scratch/0.211", "few_imagenette_180_scratch/0.211", "helps"),
    ("few_imagenette_locality_180_every/1.0", "few_imagenette_180/1.0", NOT),
    ("few_imagenette_locality_180/0.211", "few_imagenette_180/0.211", NOT),
    ("few_imagenette_locality_all_scratch/1.0", "few_imagenette_all_scratch/1.0", "open"),
    ("few_imagenette_all/1.0", "few_imagenette_all_scratch/1.0", NOT),
    ("few_imagenette_locality_all/1.0", "few_imagenette_locality_all_scratch/1.0", NOT),
    ("few_imagenette_locality_all/1.0", "few_imagenette_all/1.0", NOT),
    ("few_imagenette_locality/1.0", "few_imagenette/1.0", NOT),
    ("few_imagenette_locality/0.053", "few_imagenette/0.053", NOT),
    ("few_imagenette_convolutions/0.053", "few_imagenette/1.0", NOT),
  ],
)
def test_the_gains_with_few_labels_follow_from_their_runs(runs, base, wanted):
  """CLAIMS has each difference, paired by seed, and the verdict of a margin of one point."""
  named = (name.split("/") for name in (runs, base))
  pair = [read_runs(RESULTS / f"{table}.md", "test_top1")[f"fraction-{x}"] for table, x in named]
  seeds = sorted(set(pair[0]) & set(pair[1]))
  found = contrast(*([100 * own[seed] for seed in seeds] for own in pair))
  assert quote(*found) in " ".join(CLAIMS.read_text().split())
  assert wanted == ("helps" if found[1] > 1 else NOT if found[2] < 1 else "open")


def test_the_default_row_of_photos_validates_best():
  """By the rule in CLAIMS, `from_scratch` leads on validation with 45 labeled images a class."""
  names = ("few_imagenette", "few_imagenette_locality")
  tables = [f"{name}{arm}" for name in names for arm in ("", "_scratch")]
  others = [
    np.mean(values)
    for table in tables
    for values in read_percents(table, "validation_top1").values()
  ]
  default = read_percents("few_imagenette_convolutions", "validation_top1")["fraction-0.053"]
  assert len(others) == 6 and np.mean(default) > max(others)
  assert photos.get_config().model == photos.get_config("from_scratch").model


def test_the_time_of_the_simplified_steps_follows_from_its_runs():
  """CLAIMS has the share of time saved at each width with its 95 % t interval, above 5 %."""
  saved: dict[str, list[float]] = {}
  for row in csv.DictReader((RESULTS / "simplified_steps.csv").read_text().splitlines()):
    saved.setdefault(row["width"], []).append(100 * (1 - float(row["seconds_over_vanilla"])))
  for width, shares in saved.items():
    low, high = stats.ttest_1samp(shares, 0).confidence_interval(0.95)
    text = f"{np.mean(shares):.1f} % ({low:.1f} to {high:.1f}) at width {width}"
    assert low > 5 and text in CLAIMS.read_text()


def test_there_are_tables():
  assert len(TABLES) >= 6


def read_scopes(path: str) -> Iterator[str]:
  """Yields the paragraphs and the rows of tables of a page, or of the docstring of a config.

  The first cell of a row is left out: it says what was measured or claimed.
  """
  text = (ROOT / path).read_text()
  if path in CONFIGS:  # A list belongs to the sentence before it.
    text = re.sub(r":\n\n(?=  )", ": ", ast.get_docstring(ast.parse(text)) or "")
  for block in re.sub(r"^```.*?^```", "", text, flags=re.S | re.M).split("\n\n"):
    if block.startswith("|"):
      yield from (row.partition("|")[2].partition("|")[2] for row in block.splitlines())
    else:
      yield " ".join(block.split())


def find_measured(text: str) -> set[str]:
  """Returns the figures in a text; a mean with a deviation is returned alone too."""
  found = set(MEASURED.findall(text))
  return found | {figure.partition(" ")[0] for figure in found}


HOME_FIGURES = {path.stem: find_measured(path.read_text()) for path in TABLES} | {
  Path(path).stem: find_measured((ROOT / path).read_text()) for path in HOMES
}
TEST_FIGURES = {
  path.stem: {row[name] for row in read_table(path) for name in row if name.startswith("test ")}
  for path in TABLES
}


@pytest.mark.parametrize("path", [*PAGES, *CONFIGS])
def test_a_figure_that_names_its_home_is_the_one_found_there(path):
  for scope in read_scopes(path):
    homes = set(CITED.findall(scope)) & HOME_FIGURES.keys() - {Path(path).stem}
    if homes:
      found = set(MEASURED.findall(scope))
      missing = found - set().union(*(HOME_FIGURES[home] for home in homes))
      assert not missing, f"{path}: {missing} are not in {homes}: {scope}"
    for home in homes & TEST_FIGURES.keys():
      rows = {row[""]: row for row in read_table(RESULTS / f"{home}.md")}
      for name, figure in re.findall(r"`([\w+]+)` (\d\d\.\d\d(?: ± \d\.\d\d)?)", scope):
        assert name not in rows or figure in rows[name].values(), f"{path}: {name} {figure}"


@pytest.mark.parametrize("path", [*PAGES, *CONFIGS])
def test_no_figure_of_results_is_quoted_without_its_home(path):
  for scope in read_scopes(path):
    for home, figures in TEST_FIGURES.items():
      # In a row of a method that has not run yet, an equal figure is a published one.
      copies = (
        set() if scope.endswith("| not yet run |") else figures & set(MEASURED.findall(scope))
      )
      assert not copies or home in CITED.findall(scope), f"{path}: {copies} of results/{home}.md"
