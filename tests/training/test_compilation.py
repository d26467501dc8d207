"""The compiler options of training."""

import jax
import pytest

from configs import digits
from vitx.tasks.settle import complete_config
from vitx.training import compilation, trial


@pytest.mark.slow  # compiles two steps
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="an option of the CPU's compiler")
def test_operands_of_a_step_do_not_wait_in_memory(data_dir, monkeypatch):
  config = complete_config(digits.get_config("softmax,model.depth=2,batch_size=32"))
  chosen = trial.measure_training_bytes(config)
  monkeypatch.setattr(compilation, "CPU_OPTIONS", {})
  assert chosen < 0.95 * trial.measure_training_bytes(config)
