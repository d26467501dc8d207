"""Rows of configs/finetune.py: the sizes of their backbones, and files that fit them."""

import pytest

from configs import finetune, imagenet
from tests.configs.test_vix_rows import count_by_layers
from tests.interop.published import FILES, begin
from tests.slow import all_but
from vitx.checkpoints import workdir as wd
from vitx.config import ConfigError, load_base, with_overrides
from vitx.models import model_from_config, token_layout
from vitx.ops.layout import TokenLayout
from vitx.tasks.settle import complete_config
from vitx.training.phases import split_phases

# Parameters of the backbone, with DINOv2's token for a hidden patch, as its authors count.
BACKBONES = {"dinov2_s": 22_056_576, "dinov2_b": 86_580_480}
# Parameters as `transformers` counts them, with DINOv3's token for a hidden patch: 21.6, 85.7
# and 92.9 million.
TOWERS = {"dinov3_s": 21_596_544, "dinov3_b": 85_660_416, "siglip2_b": 92_884_224}


@pytest.mark.parametrize("size", all_but("ti", of=finetune.WIDTHS))
def test_augreg_has_the_parameters_of_deit(size):
  config = finetune.get_config(f"augreg_{size},model.num_classes=1000")
  assert count_by_layers(config) == imagenet.PUBLISHED[f"deit_{size}"]["parameters"]
  differs = {"block": {"name": "pre_norm"}, "stochastic_depth": 0.1}
  deit = finetune.get_config(f"deit_{size},model.num_classes=1000")
  assert deit.model.to_dict() == config.model.to_dict() | differs


@pytest.mark.parametrize("row", all_but("dinov2_s", of=BACKBONES))
def test_dinov2_has_the_published_number_of_parameters(row):
  width = finetune.WIDTHS[row[-1]]
  total = count_by_layers(finetune.get_config(f"{row},data.image_size=518"))
  assert total - 10 * (width + 1) + width == BACKBONES[row]
  registers = count_by_layers(finetune.get_config(f"dinov2_reg_{row[-1]},data.image_size=518"))
  assert registers - total == 4 * width - width  # with registers, the class token has no position


@pytest.mark.parametrize("row", all_but("siglip2_b", "dinov3_s", of=TOWERS))
def test_dinov3_and_siglip2_have_the_published_numbers_of_parameters(row):
  width = finetune.WIDTHS[row[-1]]
  mask_token = width if row.startswith("dinov3") else 0
  total = count_by_layers(finetune.get_config(row))
  assert total - 10 * (width + 1) + mask_token == TOWERS[row]


def test_dinov2_has_these_tokens_at_224_pixels():
  config = complete_config(finetune.get_config("dinov2_reg_s"))
  model = model_from_config(config.model)
  assert token_layout(model, (1, 224, 224, 3)) == TokenLayout((16, 16), 5)


def tiny(row, file, width=12):
  """Returns a row with the size of a recorded file, on gray digits at 56 pixels."""
  return finetune.get_config(
    f"{row},model.width={width},model.depth=2,model.num_heads=3,model.mlp_dim={4 * width},"
    "model.dtype=float32,"
    f"init_from={FILES[file]},init_from_except=('.*stem/embed/kernel',),dataset=digits,"
    "data.mean=None,data.std=None,data.image_size=56,batch_size=32,duration=4 steps,"
    "evaluation.every=4 steps,checkpoint.every=4 steps,schedule.warmup=1 steps"
  )


@pytest.mark.parametrize(
  ("row", "file"),
  all_but("dinov2_reg_s", of=[("dinov2_s", "timm_dinov2"), ("dinov2_reg_s", "dinov2_registers")]),
)
def test_a_tiny_backbone_begins_from_a_file(row, file, tmp_path, capsys):
  """The report says that 3 x 3 positions became 4 x 4; the head and the patch kernel are new."""
  begin(tiny(row, file), tmp_path)
  printed = capsys.readouterr().out
  assert " + 3 x 3 tokens -> " in printed and " + 4 x 4 tokens" in printed
  assert "params/head/kernel" in printed and "params/stem/embed/kernel" in printed


def small(row, file):
  """Returns a row with the size of a recorded tower and with patches of 8 pixels."""
  pool = ",model.pool.num_heads=3" if row == "siglip2_b" else ""
  return with_overrides(tiny(row, file, 24), f"stem.patch=8,data.image_size=32{pool}")


@pytest.mark.parametrize(
  ("row", "file"),
  all_but(
    "siglip2_b", of=[("dinov3_s", "transformers_dinov3"), ("siglip2_b", "transformers_siglip")]
  ),
)
def test_a_tiny_tower_begins_from_a_file(row, file, tmp_path, capsys):
  """SigLIP 2 resizes its table of positions for another grid; DINOv3's rotary ones need none."""
  begin(small(row, file), tmp_path)
  printed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "params/" in line]
  expected = ["params/stem/embed/kernel", "params/head/bias", "params/head/kernel"]
  positions = ["params/posemb/table"] if row == "siglip2_b" else []
  assert sorted(printed) == sorted([*expected, *positions])


@pytest.fixture
def base(tmp_path):
  """A workdir with the config and the record of a ViT on gray digits; `swap` reads no more."""
  settings = complete_config(tiny("dinov2_s", "timm_dinov2"))
  wd.write_json(str(tmp_path), "config.json", wd.to_plain(settings))
  wd.write_json(str(tmp_path), wd.ENVIRONMENT, {"data": {}})
  return tmp_path


def test_a_swap_has_the_network_and_the_data_of_its_base(base):
  swap = f"swap,init_from={base},token_mixer=performer,swap.align=attention"
  config, old = finetune.get_config(f"{swap},phases.align.duration=7"), load_base(str(base))
  assert config.model.to_dict() == old.model.to_dict() | {"token_mixer": {"name": "performer"}}
  assert config.data.to_dict() == old.data.to_dict() and config.batch_size == old.batch_size == 32
  align, tune = split_phases(config, "there").values()
  teacher = align.task.teacher_model
  assert (align.task.teacher, teacher.token_mixer.name) == (str(base), "softmax")
  assert teacher.num_classes == 10 and (align.duration, align.init_from) == ("7", str(base))
  assert (align.optimizer.weight_decay, tune.optimizer.weight_decay) == (0.0, 0.05)
  assert tune.task.name == "classification" and tune.init_from == "there/align"
  changed = finetune.get_config(f"{swap},phases.align.optimizer.b2=0.95").phases.align.optimizer
  assert changed.to_dict() == {"weight_decay": 0.0, "b2": 0.95}
  other = finetune.get_config(f"{swap},dataset=cifar10")
  assert other.data.mean == old.data.mean and other.data.decode_size is None
  (shown,) = finetune.list_beside(f"{swap},token_mixer.features=8").values()
  assert shown.to_dict() == finetune.get_config(f"swap,init_from={base}").to_dict() | {
    "init_from_except": config.init_from_except
  }
  assert not finetune.list_beside(f"swap,init_from={base}")


@pytest.mark.parametrize("mixer", [None, "softmax"])
def test_a_base_may_name_its_mixer_or_leave_it_out(base, mixer):
  config = wd.read_config(str(base))
  del config["model"]["token_mixer"]
  wd.write_json(
    str(base),
    "config.json",
    config | {"model": config["model"] | ({"token_mixer": mixer} if mixer else {})},
  )
  adapted = finetune.get_config(f"lora,init_from={base}")
  assert adapted.model.token_mixer.to_dict() == {"name": "softmax"} and not adapted.init_from_except
  assert finetune.list_beside(f"swap,init_from={base},token_mixer=fnet")


def test_a_swap_of_published_weights_has_their_network():
  config = finetune.get_config("swap,init_from=timm:deit_tiny_patch16_224.fb_in1k,token_mixer=fnet")
  deit = imagenet.get_config("deit_ti").model.to_dict()
  assert config.model.to_dict() == deit | {"token_mixer": {"name": "fnet"}}
  assert config.init_from_except == (".*/token_mixer/.*",)
  assert config.data.mean == finetune.IMAGENET[0] and config.evaluation.weights == ("ema",)


def test_a_file_that_does_not_describe_its_network_needs_a_row():
  with pytest.raises(ConfigError, match=r"take the row of its backbone"):
    finetune.get_config(f"swap,init_from={FILES['timm_vit']}")
