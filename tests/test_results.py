"""Every table of results/ follows from the runs beside it, and the copies of a figure equal it.

A figure that vitx measured has one home: a table of results/ or, if its runs were not kept as
CSV, one of `HOMES`. Elsewhere, the paragraph or the row of a table that quotes a figure links to
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
from vitx.sweeps.results import INDEX, format_index

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
CLAIMS = RESULTS / "CLAIMS.md"
TABLES = sorted(RESULTS.glob("*/*/table.md"))
NUMBER = r"([+-]?[0-9.]+)"
# Files with figures that have no CSV; each file says how its figures were measured.
HOMES = ("papers", "sparsifiner", "density", "gpu")
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
SPREAD = re.compile(r"\d\d\.\d\d ± \d\.\d\d|\d\.\d{4} ± \d\.\d{4}")  # in a table of results
CITED = re.compile(r"([\w.]+/[\w.]+)/table\.md|\b(\w+)\.md\b")


def read_table(path: Path) -> list[dict[str, str]]:
  """Returns the rows of a page's first table by column; the first column is called ""."""
  lines = [line for line in path.read_text().split("\n\n")[1].splitlines() if line[:1] == "|"]
  head, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
  return [dict(zip(head, row, strict=True)) for row in rows]


def read_rows(path: str) -> list[dict[str, str]]:
  """Returns the lines of a CSV file in results/."""
  return list(csv.DictReader((RESULTS / path).read_text().splitlines()))


def read_runs(name: str, column: str) -> dict[str, dict[int, float]]:
  """Returns a column of a design's runs by method and seed; failed runs are left out."""
  runs: dict[str, dict[int, float]] = {}
  for row in read_rows(f"{name}/runs.csv"):
    by_seed = runs.setdefault(row["method"], {})
    if not row["problem"]:
      by_seed[int(row["seed"])] = float(row[column])
  return runs


def read_percents(name: str, column: str = "test_top1") -> dict[str, list[float]]:
  """Returns a column of a table's runs in percent, by method, in the order of the seeds."""
  runs = read_runs(name, column)
  return {method: [100 * score[seed] for seed in sorted(score)] for method, score in runs.items()}


def name_design(path: Path) -> str:
  """Returns the source and the design of a table's path."""
  return path.parent.relative_to(RESULTS).as_posix()


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


@pytest.mark.parametrize("path", TABLES, ids=name_design)
def test_a_table_follows_from_its_runs(path):
  rows = read_table(path)
  named = next(name.removeprefix("test ") for name in rows[0] if name.startswith("test "))
  figure, scale, digits = {"top-1 %": ("top1", 100, 2), "bits": ("bits", 1, 4)}[named]
  minus = next(name for name in rows[0] if name.startswith("minus "))
  validation, test = (
    read_runs(name_design(path), f"{role}_{figure}") for role in ("validation", "test")
  )
  base = test[rows[0][""]]
  p_values = {}
  for row in rows:
    by_seed = test[row[""]]
    assert row["seeds"] == str(len(by_seed))
    assert row[f"test {named}"] == cell(list(by_seed.values()), scale, digits)
    assert row[f"validation {named}"] == cell(list(validation[row[""]].values()), scale, digits)
    if row is rows[0]:
      continue
    seeds = [seed for seed in by_seed if seed in base]
    pairs = [by_seed[seed] for seed in seeds], [base[seed] for seed in seeds]
    values = [float(text) for text in re.findall(NUMBER, row[minus])]
    expected = [np.mean(pairs[0]) - np.mean(pairs[1])]
    if len(seeds) > 1:
      ttest = stats.ttest_rel(*pairs)
      expected += list(ttest.confidence_interval(0.95))
      p_values[row[""]] = ttest.pvalue
    np.testing.assert_allclose(values, np.array(expected) * scale, atol=0.51 * 10**-digits)
  smallest, last = sorted(p_values, key=p_values.__getitem__), 0.0
  for place, name in enumerate(smallest):  # Holm: each times the number of those left
    last = min(max(last, p_values[name] * (len(smallest) - place)), 1.0)
    row = next(row for row in rows if row[""] == name)
    assert float(row["p"]) == pytest.approx(last, rel=5e-3)


def test_the_growth_of_the_sparse_transformer_s_time_follows_from_its_runs():
  """CLAIMS has the exponents with 95 % t intervals, and docs/density.md the mean ratios."""
  runs: dict[str, dict[int, list[float]]] = {}
  for row in read_rows("sparse_transformer/growth/runs.csv"):
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
  bits = read_runs("density_digits/patterns", "test_bits")
  strided = list(bits["strided"].values())
  for other in ("fixed", "dense"):
    interval = contrast(strided, list(bits[other].values()))
    assert quote(*interval, form=".3f") in CLAIMS.read_text() and interval[2] < -0.01


def test_the_contrasts_of_sparsifiner_follow_from_its_runs():
  """The page has each interval on CIFAR-10, and CLAIMS the verdicts of the margins stated there."""
  page, claims = (path.read_text() for path in (ROOT / "docs/sparsifiner.md", CLAIMS))
  verdicts: dict[str, str] = {}
  for table, shares in {"": ("0.25", "0.1"), "_twentieth": ("0.05",)}.items():
    values = read_percents(f"sparsifiner_small/cifar10{table}")
    for share in shares:
      names = (f"cifar10_{name}" for name in (f"keep_{share}", f"random_{share}", "tuned"))
      keep, random, tuned = (values[name] for name in names)
      contrasts = [contrast(*pair) for pair in ((keep, tuned), (random, tuned), (keep, random))]
      cells = [f"{mean:+.2f} ({low:+.2f} to {high:+.2f})" for mean, low, high in contrasts]
      assert f"| {share} | {' | '.join(cells)} |" in page
      assert quote(*contrasts[2]) in claims
      _, low, high = contrasts[2]
      verdicts[share] = "holds" if low > 0 else "fails" if high < 0.5 else "open"
      if share == "0.25":
        assert contrasts[0][1] < -1 < contrasts[0][2] < 0 and quote(*contrasts[0]) in claims
  assert verdicts == {"0.25": "open", "0.1": "fails", "0.05": "open"}


def test_the_overlap_of_sparsifiners_masks_follows_from_its_runs():
  """In each layer the intervals of both overlaps are below the margin of CLAIMS, 0.9."""
  layers: dict[str, dict[str, list[float]]] = {}
  for row in read_rows("sparsifiner_small/cifar10_masks/runs.csv"):
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
  for row in read_rows("simplified_cifar10/w128_vanilla/runs.csv"):
    values = runs.setdefault(row["block"], {}).setdefault(int(row["epoch"]), [])
    values.append(100 * float(row["train_top1"]))
  published = simplified_cifar10.PUBLISHED["vanilla_w128_d8"]["train_top1"] | {2: 35.3, 3: 41.4}
  page = (ROOT / "docs/papers.md").read_text()
  distances = []
  for block, epochs in runs.items():
    assert list(map(len, epochs.values())) == [2] * 5
    line = next(line for line in page.splitlines() if line.startswith(f"| {block}"))
    cells = [cell(values, 1, 1) for values in epochs.values()]
    assert [text.strip() for text in line.split("|")[2:-1]] == cells
    distances.append(np.mean([abs(np.mean(epochs[n]) - published[n]) for n in (1, 2, 3, 5)]))
  assert abs(np.mean(runs["two normalizations"][5]) - published[5]) < 2
  assert abs(np.subtract(*distances)) < 0.5  # so the text of the source decides
  assert f"{np.mean(runs['two normalizations'][5]):.1f} % after 5" in CLAIMS.read_text()


def test_training_at_width_96_follows_from_its_runs():
  """CLAIMS has simplified minus vanilla, below the margin, and a page has the means."""
  runs: dict[str, dict[int, list[float]]] = {}
  for row in read_rows("simplified_cifar10/w96_blocks/training.csv"):
    values = runs.setdefault(row["row"], {}).setdefault(int(row["epoch"]), [])
    values.append(100 * float(row["train_top1"]))
  page = (ROOT / "docs/papers.md").read_text()
  for name, epochs in runs.items():
    cells = [cell(values, 1, 1) for values in epochs.values()]
    assert f"| `{name}`, ours | {' | '.join(cells)} |" in page
  interval = contrast(runs["simplified_w96_d8"][50], runs["vanilla_w96_d8"][50])
  assert quote(*interval) in CLAIMS.read_text() and interval[2] < -2


def test_six_points_are_excluded_on_imagenette():
  """CLAIMS has each set of keys minus full attention; the intervals end below the margin."""
  runs = read_percents("bbvit_imagenette/small_25_epochs")
  full = runs.pop("tiny_vit")
  for values in runs.values():
    interval = contrast(values, full)
    assert quote(*interval) in CLAIMS.read_text() and interval[2] < 6


@pytest.mark.parametrize(
  ("arm", "base", "verdicts"),
  [
    ("untrained", "base", {"open": {"bigbird", "erdos_renyi"}}),
    ("tuned", "base", {"holds": {"softmax", "neighborhood"}, "open": {"bigbird"}}),
    ("aligned", "base_again", {"open": {"nystromformer", "linear_transformer"}}),
    ("scratch", "base_again", {}),
  ],
)
def test_swaps_survive_by_the_margin_of_one_point(arm, base, verdicts):
  """The page on swaps has each mixer minus the base."""
  (before,) = read_percents(f"swap_cifar10/{base}").values()
  page, verdict_of = (ROOT / "docs" / "swap.md").read_text(), {}
  for method, values in read_percents(f"swap_cifar10/{arm}").items():
    interval = contrast(values, before)
    assert quote(*interval) in page
    name = method.removeprefix("token_mixer-").removeprefix("name-").split("-")[0]
    verdict_of[name] = "holds" if interval[1] > -1 else "fails" if interval[2] < -1 else "open"
  methods = {x: {name for name in verdict_of if verdict_of[name] == x} for x in ("holds", "open")}
  assert {verdict: names for verdict, names in methods.items() if names} == verdicts


def test_a_swap_is_better_than_training_from_scratch():
  """The page on swaps has linear attention, aligned and tuned, minus the same from scratch."""
  mixer = "token_mixer-linear_transformer"
  swap, scratch = (read_percents(f"swap_cifar10/{arm}")[mixer] for arm in ("aligned", "scratch"))
  interval = contrast(swap, scratch)
  assert quote(*interval) in (ROOT / "docs" / "swap.md").read_text() and interval[1] > 0


def test_the_contrasts_of_the_vision_x_formers_follow_from_their_runs():
  """CLAIMS has the lead of each mixer over ViT and the mean gain of the three convolutions."""
  runs, claims = read_percents("vix_cifar10/stride_4"), CLAIMS.read_text()
  verdicts = {}
  for row in ("vin", "vip", "vil"):
    interval = contrast(runs[row], runs["vit"])
    assert quote(*interval) in claims
    verdicts[row] = "holds" if interval[1] > 0 else "fails" if interval[2] < 0 else "open"
  assert verdicts == {"vin": "holds", "vip": "holds", "vil": "open"}
  plain = [runs[row] for row in ("vit", "vip", "vil", "vin")]
  hybrid = [runs[f"hybrid_{row}"] for row in ("vit", "vip", "vil", "vin")]
  interval = contrast(np.mean(hybrid, axis=0), np.mean(plain, axis=0))
  assert quote(*interval) in claims and interval[1] < 0 < interval[2] < 1
  assert quote(*contrast(runs["hybrid_vin"], runs["vin"])) in claims


def test_the_contrast_of_l1_and_l2_follows_from_its_runs():
  """CLAIMS has L2 minus L1, below the margin of one point, and the shares of zeros in the bases."""
  row, tables = (
    "cifar10_keep_0.25",
    ("sparsifiner_small/cifar10_l2", "sparsifiner_small/cifar10_l1"),
  )
  interval, claims = contrast(*(read_percents(name)[row] for name in tables)), CLAIMS.read_text()
  assert quote(*interval) in claims and interval[1] < 0 and interval[2] < 1
  zeros = [np.mean(read_percents(name, "test_basis_sparsity")[row]) for name in tables]
  assert f"at {zeros[0]:.0f} and {zeros[1]:.0f} % zeros in the bases" in claims


# Pairs of runs with few labels: the network and how it was trained, minus another one.
PAIRS = (
  *((f"{network} all", f"{network} scratch") for network in ("patches", "locality")),
  *((f"{network} labeled", f"{network} scratch") for network in ("patches", "locality")),
  *((f"{network} all", f"{network} labeled") for network in ("patches", "locality")),
  *((f"locality {arm}", f"patches {arm}") for arm in ("scratch", "all", "labeled")),
  *(("convolutions scratch", other) for other in ("patches scratch", "locality scratch")),
  ("convolutions scratch", "patches all"),
)


def read_arm(place: str, fraction: str, name: str) -> dict[int, float]:
  """Returns the test top-1 by seed of a network that was trained from scratch or pretrained."""
  network, arm = name.split()
  folders = f"{place}_{network}_{'scratch' if arm == 'scratch' else 'pretrained'}*"
  runs: dict[str, dict[int, float]] = {}
  for folder in RESULTS.glob(folders):
    runs |= read_runs(folder.relative_to(RESULTS).as_posix(), "test_top1")
  return runs[f"fraction-{'1.0' if arm == 'all' else fraction}"]


def judge(difference: tuple[float, float, float]) -> str:
  """Returns whether a recipe helps, does not help, or is open, by a margin of one point."""
  _, low, high = difference
  return "H" if low > 1 else "N" if high < 1 else "O"


# The verdict of each pair; "-" if it was not run.
@pytest.mark.parametrize(
  ("place", "fraction", "verdicts"),
  [
    ("photos_cifar10/90_labels", "0.02", "HOHOOOHOO---"),
    ("photos_cifar10/450_labels", "0.1", "NNNNNNHOO---"),
    ("photos_imagenette/45_labels", "0.053", "HOHNOOONNHON"),
    ("photos_imagenette/180_labels", "0.211", "HNHNOOHNN---"),
    ("photos_imagenette/852_labels", "1.0", "NN----ON----"),
  ],
)
def test_the_gains_with_few_labels_follow_from_their_runs(place, fraction, verdicts):
  """CLAIMS has each difference, paired by seed, and the verdict of a margin of one point."""
  claims = " ".join(CLAIMS.read_text().split())
  for names, verdict in zip(PAIRS, verdicts, strict=True):
    if verdict == "-":
      continue
    pair = [read_arm(place, fraction, name) for name in names]
    seeds = sorted(set(pair[0]) & set(pair[1]))
    difference = contrast(*([100 * arm[seed] for seed in seeds] for arm in pair))
    assert quote(*difference) in claims, names
    assert verdict == judge(difference), names


# Recipes for few labels, each minus another one.
RECIPES = (
  *((recipe, "convolutions") for recipe in ("locality", "pretrained", "finetuned", "lora")),
  ("finetuned", "locality"),
  ("lora", "finetuned"),
)


@pytest.mark.parametrize(
  ("place", "verdicts"),
  [
    ("recipes_cifar10/10_labels", "NOHHHN"),
    ("recipes_cifar10/50_labels", "NNOOHN"),
    ("recipes_cifar10/200_labels", "NNONON"),
    ("recipes_imagenette/10_labels", "ONHHHO"),
    ("recipes_imagenette/50_labels", "NNHOHN"),
    ("recipes_imagenette/200_labels", "NNNNHN"),
    ("recipes_digits/10_labels", "ONNNOO"),
    ("recipes_digits/50_labels", "NNNNNN"),
    ("recipes_tiny_imagenet/10_labels", "NNHHHN"),
    ("recipes_tiny_imagenet/50_labels", "NNHHHN"),
  ],
)
def test_the_verdicts_on_recipes_follow_from_their_runs(place, verdicts):
  """docs/photos.md has each difference, paired by seed, and CLAIMS states the margin of a point."""
  page = " ".join((ROOT / "docs/photos.md").read_text().split())
  for names, verdict in zip(RECIPES, verdicts, strict=True):
    pair = [read_percents(f"{place}_{name}").popitem()[1] for name in names]
    difference = contrast(*pair)
    assert "{:+.2f} ({:+.2f} to {:+.2f})".format(*difference) in page, names
    assert verdict == judge(difference), names


# The verdict on a part of the row `fast`, whose runs without it come first, or on one more part.
PARTS = {
  **{"without_whitening": "helps", "adamw": "helps", "random_flips": "open"},
  **{"moving_average": "open", "rates": "open", "growing_images": "open"},
}


def read_record(name: str) -> list[float]:
  return read_percents(f"record_cifar10/{name}").popitem()[1]


def test_the_verdicts_on_five_minutes_follow_from_the_runs():
  page = " ".join((ROOT / "docs/training.md").read_text().split())
  row = read_record("fast")
  differences = {name: contrast(row, read_record(name)) for name in ("resnet20", "convmixer")}
  assert differences["resnet20"][2] < 0 < differences["convmixer"][1], "as CLAIMS says"
  parts = {}
  for place, name in enumerate(PARTS):
    is_in_row = place < 3
    pair = (row, read_record(name)) if is_in_row else (read_record(name), row)
    parts[name] = contrast(*pair)
    _, low, high = parts[name]
    assert PARTS[name] == ("helps" if low > 0 else "harms" if high < 0 else "open"), name
  for name, difference in (differences | parts).items():
    assert "{:+.2f} ({:+.2f} to {:+.2f})".format(*difference) in page, name


def test_the_default_row_of_photos_validates_best():
  """By the rule in CLAIMS, `from_scratch` leads on validation with 45 labeled images a class."""
  means = {}
  for folder in (RESULTS / "photos_imagenette").glob("45_labels_*"):
    design = folder.relative_to(RESULTS).as_posix()
    for method, values in read_percents(design, "validation_top1").items():
      means[f"{folder.name} {method}"] = np.mean(values)
  assert len(means) == 7
  assert max(means, key=means.__getitem__) == "45_labels_convolutions_scratch fraction-0.053"
  assert photos.get_config().model == photos.get_config("from_scratch").model


def test_the_time_of_the_simplified_steps_follows_from_its_runs():
  """CLAIMS has the share of time saved at each width with its 95 % t interval, above 5 %."""
  saved: dict[str, list[float]] = {}
  for row in read_rows("simplified_cifar10/step_times/runs.csv"):
    saved.setdefault(row["width"], []).append(100 * (1 - float(row["seconds_over_vanilla"])))
  for width, shares in saved.items():
    low, high = stats.ttest_1samp(shares, 0).confidence_interval(0.95)
    text = f"{np.mean(shares):.1f} % ({low:.1f} to {high:.1f}) at width {width}"
    assert low > 5 and text in CLAIMS.read_text()


def test_the_index_follows_from_the_tables():
  assert (RESULTS / INDEX).read_text() == format_index(RESULTS) and len(TABLES) >= 35


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


def find_measured(path: Path) -> set[str]:
  """Returns the figures of a page; a mean with a deviation is returned alone too."""
  figures = set(MEASURED.findall(path.read_text()))
  return figures | {figure.partition(" ")[0] for figure in figures}


HOME_FIGURES = {name_design(path): find_measured(path) for path in TABLES} | {
  name: find_measured(ROOT / f"docs/{name}.md") for name in HOMES
}
TABLE_FIGURES = set().union(*(SPREAD.findall(path.read_text()) for path in TABLES))


@pytest.mark.parametrize("path", [*PAGES, *CONFIGS])
def test_a_figure_is_the_one_in_the_table_that_its_paragraph_links_to(path):
  for scope in read_scopes(path):
    homes = {"".join(names) for names in CITED.findall(scope)} & HOME_FIGURES.keys()
    homes -= {Path(path).stem}
    linked = set().union(*(HOME_FIGURES[home] for home in homes))
    figures = set(MEASURED.findall(scope)) if homes else TABLE_FIGURES & set(SPREAD.findall(scope))
    assert figures <= linked, f"{path}: {figures - linked} are not in {homes}: {scope}"
