"""Parts of `vitx benchmark gpu` on a CPU, where XLA computes attention."""

import csv
import math
from functools import partial

import jax
import pytest

from tests.ops.lowered import record_kernels
from vitx.benchmark import gpu, gpu_check, tune
from vitx.cli.main import main
from vitx.config.errors import UserError
from vitx.ops import rule
from vitx.ops.implementation import lowering_for
from vitx.ops.sparse import triton_attention

EFFORT = {"repeats": 1, "seconds": 0.01}


# Two calls along something else than a pattern of the package; test_pattern_attention.py has those.
@pytest.mark.slow  # compiles gradients of several calls
@pytest.mark.parametrize("name", ["window_and_class with a key mask", "blocks drawn at run time"])
def test_agreeing_attention_passes_the_check(name):
  said = []
  table = gpu_check.check(said.append, {name: gpu_check.list_calls()[name]})
  assert said == [f"{name}, {dtype}: passed" for dtype in gpu_check.DTYPES]
  assert table.count(name) == 2 and "X" not in table


@pytest.mark.parametrize(("where", "dtype"), [("out", "float32"), ("gradient", "bfloat16")])
def test_attention_with_one_wrong_row_fails(dtype, where):
  right = gpu_check.list_calls()["causal"]

  @jax.custom_vjp
  def spoil(out):
    return out.at[1, 77, 2].multiply(1.5) if where == "out" else out

  def pull(_, d_out):
    return (d_out.at[1, 77, 2].multiply(1.5) if where == "gradient" else d_out,)

  spoil.defvjp(lambda out: (spoil(out), None), pull)

  def wrong(implementation, q, k, v):
    out = right(implementation, q, k, v)
    return spoil(out) if implementation == "kernelized" else out

  with pytest.raises(UserError, match=rf"1 checks .* failed: causal in {dtype}\. Report"):
    gpu_check.check(lambda message: None, {"causal": wrong}, [dtype])


def test_a_check_needs_kernels_equal_bits_and_numbers(monkeypatch):
  passed = gpu_check.Check("bigbird_etc", "float32", 0.5, repeats=True, has_kernel=False)
  assert passed.passed  # Without a GPU, XLA computes attention.
  assert not passed._replace(repeats=False).passed
  assert not passed._replace(share=math.nan).passed
  monkeypatch.setattr(triton_attention, "find_capability", lambda: 90)
  assert not passed.passed and passed._replace(has_kernel=True).passed
  dense = passed._replace(name="full", repeats=False)
  assert dense.passed and not dense._replace(share=math.nan).passed


@pytest.mark.slow  # traces the gradients of all calls
def test_every_checked_call_but_dense_ones_runs_the_kernels(monkeypatch):
  calls = record_kernels(monkeypatch)
  x = jax.ShapeDtypeStruct((2, gpu_check.LAYOUT.length, 4, 64), "bfloat16")
  for name, call in gpu_check.list_calls().items():
    calls.clear()
    with lowering_for("gpu"):
      jax.eval_shape(gpu_check._differentiate(partial(call, "kernelized")), x, x, x, x)
    assert {k for k, *_ in calls} == (set() if name in gpu_check.DENSE else {*tune.KERNELS})
    assert gpu_check.Check(name, "bfloat16", 0.5, repeats=True, has_kernel=bool(calls)).passed


def test_dense_attention_is_causal_beside_causal_patterns():
  shape = 1, 64, 1, 16
  makers = {k: gpu.make_ours(x, shape, "float32", False) for k, x in gpu.EDGES.items()}
  dense = {name: programs["cuDNN, dense"].args[0] for name, programs in makers.items()}
  causal = [name for name, attend in dense.items() if attend.keywords["is_causal"]]
  assert causal == ["causal", "causal window of 257", "strided, merged, l = 64"]


@pytest.mark.slow  # compiles several programs
def test_the_table_has_every_program_that_runs():
  said = []
  settings = {"dtypes": ["float32"], "sizes": (1, 1, 16), "effort": EFFORT}
  settings["edges"] = {"causal window of 257": gpu.EDGES["causal window of 257"]}
  (title, (line,)), (other, _) = gpu.measure_table([256], said.append, **settings)
  assert title == "float32, N = 256, D = 16, forward and backward, ms"
  assert other.endswith("D = 16, forward, ms")
  assert line["ours ms"] > 0 and line["ours by XLA ms"] > 0 and line["ours MB"] > 0
  assert line["blocks"] == 0.75 and "cuDNN, dense ms" not in line
  assert any("cuDNN, dense" in message for message in said)
  assert "| 75.0% |" in gpu.format_table(title, [line])


def test_efficiency_is_the_rate_on_visited_blocks_over_that_of_cudnn():
  dense = {"blocks": 1.0, "ours ms": 2.5, "cuDNN, dense ms": 2.0}
  causal = {"blocks": 0.5, "ours ms": 1.25, "cuDNN, dense ms": 0.5}
  lines = [dense, causal, {"blocks": 0.5}]
  gpu._add_efficiency(lines)
  assert [line.get("efficiency") for line in lines] == [0.8, 0.8, None]
  gpu._add_efficiency([alone := {"blocks": 0.5, "ours ms": 1.25, "cuDNN, dense ms": 0.5}])
  assert "efficiency" not in alone, "no line has all blocks"


@pytest.mark.slow  # compiles training steps
def test_training_steps_are_timed_or_skipped(monkeypatch):
  said, text = [], "vix_cifar10:vit,stride=4,model.depth=1,batch_size=2"
  table = gpu.measure_steps(said.append, [text], effort=EFFORT)
  assert f"| {text} | 2 |" in table and "| - |" not in table
  monkeypatch.setattr("vitx.benchmark.timing.find_free_bytes", lambda: 10**5)
  assert "| - |" in gpu.measure_steps(said.append, [text], effort=EFFORT)
  assert "GB are free" in said[-1]


def test_the_command_needs_a_gpu(capsys):
  assert main(["benchmark", "gpu"]) == 1
  error = capsys.readouterr().err
  assert "vitx benchmark gpu needs" in error and "no CUDA device" in error
  assert len(error.splitlines()) == 1
  assert main(["benchmark", "gpu", "--parts=tabel"]) == 1
  assert "Did you mean 'table'" in capsys.readouterr().err


def test_the_command_writes_its_report_part_by_part(tmp_path, monkeypatch, capsys):
  line = {"tokens": 64, "edges": "dense", "blocks": 1.0, "ours ms": 1.25, "ours MB": 3.0}
  tiles = {"sizes": {"float32": {"64": None}}, "measured": {"date": "today"}}
  monkeypatch.setenv(rule.VARIABLE, str(tmp_path))
  monkeypatch.setattr(tune, "check_kernels", lambda where: None)
  monkeypatch.setattr(tune, "measure", lambda minutes, say: tiles)
  monkeypatch.setattr(gpu_check, "check", lambda say: "checked")
  monkeypatch.setattr(gpu, "measure_steps", lambda say, **_: "steps")
  monkeypatch.setattr(gpu, "measure_table", lambda tokens, say, **_: [(f"N = {tokens}", [line])])
  out, rows = tmp_path / "gpu.md", tmp_path / "gpu.csv"
  assert not main(["benchmark", "gpu", f"--out={out}", f"--csv={rows}", "--tokens=64"])
  text = out.read_text()
  assert text.startswith("checked\n\nMeasured on") and "\n\nsteps\n\n| N = [64] |" in text
  assert "| dense | 100.0% | 1.250 | - | 3 | - | - | - |" in text
  with open(rows, newline="", encoding="utf-8") as file:
    assert next(csv.DictReader(file))["ours ms"] == "1.25"
  assert "| N = [64] |" in capsys.readouterr().out
  assert rule.load_rule("cpu").tiles == {"float32": {64: None}}
