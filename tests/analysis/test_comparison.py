"""The table of a sweep: methods are compared by means, differences, ranks and curves."""

import csv
import dataclasses
import io

import pytest

from vitx.analysis import statistics
from vitx.analysis.comparison import Comparison, Method, Outcome, format_csv, format_table
from vitx.analysis.figures import alignment, curves


def outcome(method, seed, test, best=10):
  figures = {"kind": "test", "step": best, "examples": 4, "class_top1": [0.5, None]}
  return Outcome(method, seed, best, {"top1": test - 0.01}, {**figures, "top1": test}, seconds=1.5)


def compare(*outcomes, mode="max", **published):
  names = dict.fromkeys(run.method for run in outcomes)
  methods = [Method(n, 40, 2 * 10**12, 1234, published.get(n, {})) for n in names]
  return Comparison("top1", mode, methods, outcomes)


FOUR = (
  *(outcome("a", seed, value) for seed, value in enumerate((0.5, 0.6, 0.7))),
  *(outcome("b", seed, value) for seed, value in enumerate((0.6, 0.7, 0.9))),
  outcome("c", 0, 0.4),
  Outcome("c", 1, problem="the loss is nan at step 3"),
  Outcome("d", 0, problem="the loss is nan at step 4"),
)


def test_lines_pair_by_seed_and_leave_failures_out():
  a, b, c, d = compare(*FOUR, a={"top1": 50.0}, b={"top1": 40.0}, d={"top1": 90.0}).lines()
  assert a.test == statistics.spread([0.5, 0.6, 0.7]) and a.difference is None
  assert a.validation.mean == pytest.approx(0.59)
  assert b.difference == statistics.compare_pairs([0.6, 0.7, 0.9], [0.5, 0.6, 0.7])
  assert c.test.count == 1 and c.difference.count == 1
  assert c.difference.mean == pytest.approx(-0.1)
  assert d.test is None and d.difference is None and d.rank is None
  assert [line.rank for line in (a, b, c)] == [2, 1, 3]
  assert [line.published_rank for line in (a, b, c, d)] == [1, 2, None, None]


def test_folds_are_runs_of_a_method():
  """Methods are paired by fold and seed."""
  two = [
    dataclasses.replace(outcome(method, seed, base + 0.1 * fold), fold=fold)
    for method, base in (("a", 0.5), ("b", 0.6))
    for seed in (0, 1)
    for fold in ((0, 1) if method == "a" or seed else (1,))
  ]
  comparison = compare(*two)
  a, b = comparison.lines()
  assert a.test == statistics.spread([0.5, 0.6, 0.5, 0.6])
  assert b.difference.count == 3 and b.difference.mean == pytest.approx(0.1)
  assert "over folds and seeds" in format_table(comparison)
  rows = list(csv.DictReader(io.StringIO(format_csv(comparison))))
  assert [row["fold"] for row in rows] == ["0", "1", "0", "1", "1", "0", "1"]


def test_the_best_on_test_has_no_part_in_ranks():
  """The best figure on the test split is shown, but has no part in ranks and differences."""
  seen = [[{"top1": x} for x in rows] for rows in ((0.4, 0.8, 0.6), (0.7, 0.65, 0.6))]
  runs = [dataclasses.replace(outcome("a", i, 0.6), test_curve=rows) for i, rows in enumerate(seen)]
  (line,) = compare(*runs).lines()
  assert line.best_on_test == statistics.spread([0.8, 0.7]) and line.test.mean == 0.6
  (low,) = compare(*runs, mode="min").lines()
  assert low.best_on_test == statistics.spread([0.4, 0.6])
  (partly,) = compare(*runs, outcome("a", 2, 0.6)).lines()  # a run without such evaluations
  assert partly.test.count == 3 and partly.best_on_test is None


def test_a_low_figure_may_be_the_good_one():
  assert [line.rank for line in compare(*FOUR, mode="min").lines()] == [2, 3, 1, None]


def test_our_order_is_compared_with_the_published_one():
  """Of the variants "b" and "d" of one published row, only one enters the rank correlation."""
  runs = [outcome(name, 0, x) for name, x in {"a": 0.5, "b": 0.6, "c": 0.7, "d": 0.4}.items()]
  printed = {"a": {"top1": 60.0}, "b": {"top1": 50.0}, "c": {"top1": 70.0}}
  printed["d"] = printed["b"]
  comparison = compare(*runs, **printed)
  assert comparison.agreement().rho == pytest.approx(0.5) and comparison.agreement().count == 3
  assert [line.published_rank for line in comparison.lines()] == [2, 3, 1, None]
  words = "Spearman's correlation with the published order over 3 lines: 0.500"
  assert words in format_table(comparison)
  assert compare(*runs, a={"top1": 60.0}, b={"train_top1": {1: 2.0}}).agreement() is None


def test_equal_published_figures_tie():
  """Two published rows with equal figures are no variants of one row."""
  runs = [outcome(name, 0, x) for name, x in {"a": 0.5, "b": 0.6, "c": 0.7}.items()]
  comparison = compare(*runs, a={"top1": 50.0}, b={"top1": 50.0}, c={"top1": 70.0})
  assert [line.published_rank for line in comparison.lines()] == [2.5, 2.5, 1]
  assert comparison.agreement().count == 3


def cells(text):
  lines = [line for line in text.splitlines() if line.startswith("|")]
  head, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
  return head, {row[0]: row[1:] for row in body}


def test_the_table_has_figures_as_text():
  text = format_table(compare(*FOUR, a={"top1": 50.25}))
  head, rows = cells(text)
  assert head[:5] == ["", "seeds", "published", "validation top-1 %", "test top-1 %"]
  assert rows["a"][:4] == ["3", "50.25", "59.00 ± 10.00", "60.00 ± 10.00"]
  assert rows["a"][-3:] == ["1,234", "40", "2"]
  assert rows["b"][4] == "+13.33 [-1.01, +27.68]" and rows["b"][5] == "0.0572"
  assert rows["c"][3:6] == ["40.00", "-10.00", ""]
  assert rows["d"][:5] == ["0", "", "", "", ""]
  assert "c, seed 1, failed: the loss is nan at step 3" in text
  assert all(len(row) == len(head) - 1 for row in rows.values())


def test_p_values_are_corrected_for_the_number_of_lines():
  runs = [
    outcome(name, seed, base + seed / 10 + noise)
    for name, base in (("a", 0.1), ("b", 0.2), ("c", 0.25))
    for seed, noise in enumerate((0.0, 0.02 if name == "b" else 0.0, 0.01 if name == "c" else 0.0))
  ]
  _, b, c = compare(*runs).lines()
  assert c.difference.p < b.difference.p
  assert (b.p, c.p) == (pytest.approx(max(b.difference.p, 2 * c.difference.p)), 2 * c.difference.p)


def test_the_table_states_examples_and_their_standard_error():
  runs = [
    Outcome("a", seed, 10, {"top1": 0.5, "examples": 100}, {"top1": 0.9, "examples": 10_000})
    for seed in range(2)
  ]
  text = format_table(compare(*runs))
  assert "of 100 examples of validation and 10,000 of test; at the mean of 90.0% the" in text
  assert "standard error of one run's test figure is 0.3 points." in text


def test_the_file_of_points_has_every_number_and_no_time():
  rows = list(csv.DictReader(io.StringIO(format_csv(compare(*FOUR)))))
  assert [row["method"] for row in rows] == list("aaabbbccd")
  assert rows[0] == {
    **{"method": "a", "seed": "0", "parameters": "1234", "steps": "40", "flops": "2000000000000"},
    **{"problem": "", "best_step": "10", "validation_top1": "0.49"},
    **{"test_examples": "4", "test_top1": "0.5"},
  }
  assert rows[-1]["problem"] and rows[-1]["test_top1"] == ""


def test_early_stopping_makes_steps_a_maximum():
  whole = compare(*FOUR)
  early = dataclasses.replace(whole.methods[1], ends_early=True)
  comparison = dataclasses.replace(whole, methods=[whole.methods[0], early, *whole.methods[2:]])
  table = format_table(comparison)
  assert table.count("| 1,234 | ≤ 40 | ≤ 2 |") == 1 and table.count("| 1,234 | 40 | 2 |") == 3
  rows = list(csv.DictReader(io.StringIO(format_csv(comparison))))
  assert [(row["steps"], row["flops"]) for row in rows[2:4]] == [("40", f"{2 * 10**12}"), ("", "")]


def test_curves_are_averaged_at_common_steps():
  steps, mean, deviation = curves.average([{10: 1.0, 20: 2.0, 30: 9.0}, {10: 3.0, 20: 2.0}])
  assert steps.tolist() == [10, 20] and mean.tolist() == [2.0, 2.0]
  assert deviation.tolist() == [pytest.approx(2**0.5), 0.0]
  assert [x.tolist() for x in curves.average([{10: 1.0}])] == [[10], [1.0], [0.0]]


def test_equal_curves_give_equal_files(tmp_path):
  for name in ("one", "two"):
    (path,) = curves.draw(curves.RunCurves(thirteen("m")[:4], "top1", name), tmp_path)
    assert path == tmp_path / f"{name}.png" and path.read_bytes().startswith(b"\x89PNG")
  assert path.read_bytes() == (tmp_path / "one.png").read_bytes()


def thirteen(name):
  """Returns 26 curves: two seeds of each of thirteen methods."""
  return [
    curves.Curve(f"{name}{n:02d}", {5: 2.0}, {5: 0.2, 10: 0.3 + 0.01 * n + 0.1 * seed}, {5: 0.1}, 2)
    for n in range(13)
    for seed in range(2)
  ]


@pytest.mark.slow
def test_each_of_many_methods_has_a_diagram():
  canvas = curves.plot_curves(thirteen("m"), "top1")
  assert [axes.get_title() for axes in canvas.axes] == [f"m{n:02d} (2)" for n in range(13)]
  for n, axes in enumerate(canvas.axes):
    line = axes.lines[-2]  # The last line has the published values, of which there are none.
    assert line.get_xdata().tolist() == [5, 10] and len(axes.lines) == 13 + 2
    assert line.get_ydata().tolist() == pytest.approx([20.0, 35.0 + n])


def test_a_run_without_validation_hides_no_other():
  runs = [curves.Curve("m", {5: 2.0}, {10: 0.5}), curves.Curve("m", {5: 3.0}, {})]
  left, right = curves.plot_curves(runs, "top1").axes
  assert left.lines[0].get_xydata().tolist() == [[5, 2.5]]
  assert right.lines[0].get_xydata().tolist() == [[10, 50]]


def test_the_errors_of_layers_are_averaged_over_the_runs_of_a_method(tmp_path):
  errors = {"a": [(0.5, 0.25), (0.25, 0.75)], "b": [(0.1, 0.2, 0.3)], "c": [()]}
  aligned = [curves.Curve(m, {}, {}, layers=run) for m, runs in errors.items() for run in runs]
  lines = alignment.plot_alignment(aligned).axes[0].lines
  assert [line.get_label() for line in lines] == ["a (2)", "b (1)"]
  assert lines[0].get_xydata().tolist() == [[1, 0.375], [2, 0.5]]
  (path,) = alignment.draw(curves.RunCurves(aligned, "top1", "curves_sweep"), tmp_path)
  assert path.name == "alignment_sweep.png"
  assert not alignment.plot_alignment(aligned[-1:]).axes[0].lines


def find_crosses(axes):
  return [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "x"]


def test_published_curves_are_drawn_over_ours():
  fourth = curves.plot_curves(thirteen("m"), "top1", {"m03": {1.0: 12.0}}).axes[3]
  assert fourth.lines[-2].get_xydata().tolist() == [[5, 10.0]]  # The training figure.
  assert find_crosses(fourth) == [[[2, 12.0]]]
  runs = [curves.Curve(name, {5: 2.0}, {10: 0.5}, {5: 0.25, 10: 0.5}, 2.5) for name in "ab"]
  published = {"a": {1: 30.0, 4: 60.0, 5: 70.0}}
  _, training, validation = curves.plot_curves(runs, "top1", published).axes
  assert training.get_ylabel() == "training top-1 %" and len(validation.lines) == 2
  assert find_crosses(training) == [[[2.5, 30], [10, 60]], []]  # No cross is beyond our last step.
