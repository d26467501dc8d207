"""The table of kernels, from a profile as a GPU writes it, and from one of this CPU."""

import jax
import jax.numpy as jnp
import pytest
from jax.profiler import ProfileData

from tests.benchmarks import kernels

# Two passes: a kernel of 3 us, a pause of 1 us, and another kernel of 2 us; then 4 us of nothing.
TEXT = """
planes {
  name: "/device:GPU:0"
  event_metadata { key: 1 value { id: 1 name: "forward" } }
  event_metadata { key: 2 value { id: 2 name: "backward" } }
  stat_metadata { key: 1 value { id: 1 name: "kernel_details" } }
  lines {
    name: "Stream #13(Compute)"
    events { metadata_id: 1 offset_ps: 0 duration_ps: 3000000
      stats { metadata_id: 1 str_value: "regs:32 grid:64,4,2 block:128,1,1 occ_pct:50" } }
    events { metadata_id: 2 offset_ps: 4000000 duration_ps: 2000000 }
    events { metadata_id: 1 offset_ps: 10000000 duration_ps: 3000000
      stats { metadata_id: 1 str_value: "regs:32 grid:64,4,2 block:128,1,1 occ_pct:50" } }
    events { metadata_id: 2 offset_ps: 14000000 duration_ps: 2000000 }
  }
  lines { name: "XLA Ops" events { metadata_id: 1 offset_ps: 0 duration_ps: 9000000 } }
}
planes { name: "/host:CPU" }
"""


# With this warning as an error, Python 3.12 crashes while jax 0.12 makes a type.
@pytest.mark.filterwarnings("ignore:builtin type event_stats:DeprecationWarning")
def test_kernels_are_counted_in_each_pass():
  data = ProfileData.text_proto_to_serialized_xspace(TEXT)
  table = kernels.read_kernels(ProfileData.from_serialized_xspace(data), 2, 128)
  assert table.splitlines()[2:] == [
    "| forward | 1.0 | 0.003 | 512 | 4.0 |",
    "| backward | 1.0 | 0.002 | - | - |",
    "| no kernel |  | 0.003 |  |  |",
  ]


@pytest.mark.slow  # writes a profile
def test_a_profile_can_be_read():
  step = jax.jit(lambda x: x @ x)
  data = kernels.profile(lambda: jax.block_until_ready(step(jnp.ones((8, 8)))))
  assert any(plane.name == "/host:CPU" for plane in data.planes)
  table = kernels.read_kernels(data, kernels.PASSES, None)
  assert table.count("\n") == 2, "a CPU has no kernels"
