"""What torchsummary says of the Vision X-formers' PyTorch networks: their "Size (MB)".

torchsummary 1.5.1 adds 8 bytes for every number that a module returns for one image (4 forward, 4
backward), 4 for every number of the image and 4 for every parameter that it counts, in units of
2^20 bytes. It asks every module but the network, `Sequential` and `ModuleList`, so that a wrapper's
result counts again and what is computed between modules does not: an X-former's products inside
count nothing, a softmax that is a module all of its H N N. The batch is what the first axis is,
even where heads are folded into it.

So the figure depends on how the code is cut into modules, and is told here for theirs only:
vit-pytorch's of 2021 with the mixers of performer-pytorch, linformer and nystrom-attention, and
compact-transformers'. That they are cut like this was read off the figures that Jeevan and Sethi
(WACV 2022) print: with it 53 of 54 come out to the last digit.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

BYTES, MEGABYTE = 4, 2**20


class Layer(NamedTuple):
  """The sizes that a layer's modules return.

  Attributes:
    mixer: the `token_mixer` of the model.
    tokens: N.
    width: C.
    hidden: of the MLP.
    heads: H.
    inner: H D.
  """

  mixer: Mapping[str, Any]
  tokens: int
  width: int
  hidden: int
  heads: int
  inner: int


def estimate_size(
  model: Mapping[str, Any], side: int | tuple[int, int], parameters: int
) -> float | None:
  """Returns torchsummary's "Estimated Total Size (MB)", as printed; None for a network not theirs.

  Args:
    model: the `model` of a config.
    side: of the images, of three channels; theirs are square.
    parameters: as torchsummary counts them.
  """
  mixer = model["token_mixer"]
  body = (mixer["name"] if mixer["name"] == "mlp_mixing" else "", model["name"])
  if not isinstance(side, int) or body not in BODIES or not (body[0] or mixer["name"] in MIXERS):
    return None
  if model["stem"]["name"] not in STEMS or not FIELDS.get(mixer["name"], set()) <= set(mixer):
    return None
  outputs = BODIES[body](model, side)
  total = BYTES * (3 * side**2 + 2 * outputs + parameters)
  return round(total / MEGABYTE, 2)


def _layer(model: Mapping[str, Any], tokens: int, stage: int = 0) -> Layer:
  mixer, heads = model["token_mixer"], model["num_heads"]
  widths = model["width"] if isinstance(model["width"], tuple) else (model["width"],)
  width = widths[stage]
  inner = heads * (mixer.get("head_dim") or width // heads)
  return Layer(mixer, tokens, width, model["mlp_dim"], heads, inner)


def _softmax(x: Layer) -> int:
  """Query, key and value in one; softmax or its dropout; out; dropout; the whole."""
  return x.tokens * (3 * x.inner + 3 * x.width) + x.heads * x.tokens**2


def _performer(x: Layer) -> int:
  """Query, key, value; the attention proper; out; dropout; the whole."""
  return x.tokens * (4 * x.inner + 3 * x.width)


def _linformer(x: Layer) -> int:
  """Query; key, and value if it is another; dropout on the matrix; out; the whole."""
  key = x.inner // x.heads if x.mixer["one_kv_head"] else x.inner
  read = key if x.mixer["share_kv"] else 2 * key
  return x.tokens * (x.inner + read + x.heads * x.mixer["slots"] + 2 * x.width)


def _nystrom(x: Layer) -> int:
  """Query, key and value in one; convolution of the values; out; dropout, all padded; the whole."""
  landmarks = x.mixer["landmarks"]
  padded = math.ceil(x.tokens / landmarks) * landmarks
  return padded * (4 * x.inner + 2 * x.width) + x.tokens * x.width


def _fourier(x: Layer) -> int:
  return x.tokens * x.width


def _levit(x: Layer) -> int:
  """Query, key, value, each also normalized; softmax; GELU; out, so too; dropout; the whole."""
  return x.tokens * (7 * x.inner + 4 * x.width) + x.heads * x.tokens**2


def _cvt(x: Layer) -> int:
  """Separable convolutions of query and of key and value; softmax; out; dropout; the whole."""
  query = 2 * x.width + 2 * x.inner  # the depthwise part, also normalized; the rest; both
  both = 2 * x.width + 4 * x.inner
  # Softmax has the heads in the axis of the batch.
  return x.tokens * (query + both + 3 * x.width) + x.tokens**2


MIXERS: dict[str, Callable[[Layer], int]] = {
  "softmax": _softmax,
  "performer": _performer,
  "linformer": _linformer,
  "nystromformer": _nystrom,
  "fnet": _fourier,
  "levit": _levit,
  "cvt": _cvt,
}


# Fields of the rows' mixers that the sizes depend on.
FIELDS = {"linformer": {"one_kv_head", "share_kv", "slots"}, "nystromformer": {"landmarks"}}
STEMS = ("linear", "hybrid", "cct")


def _mlp(x: Layer) -> int:
  """First map, GELU, dropout; second map, dropout; the whole."""
  return x.tokens * (3 * x.hidden + 3 * x.width)


def _mix(x: Layer) -> int:
  return MIXERS[x.mixer["name"]](x)


def _pre_norm(x: Layer) -> int:
  """Mixer and MLP, each with its normalization and the wrapper of both."""
  return _mix(x) + _mlp(x) + 4 * x.tokens * x.width


def _stem(model: Mapping[str, Any], side: int) -> tuple[int, int]:
  """Returns N, and what a stem's modules return: patches laid out and mapped, or convolutions."""
  stem, width = model["stem"], model["width"]
  width = width[0] if isinstance(width, tuple) else width
  if stem["name"] == "linear":
    tokens = (side // stem["patch"]) ** 2
    return tokens, tokens * (3 * stem["patch"] ** 2 + width)
  tokens = (side // math.prod(stem["strides"])) ** 2
  return tokens, tokens * (sum(stem["channels"]) + width)


def _vit(model: Mapping[str, Any], side: int) -> int:
  tokens, outputs = _stem(model, side)
  x = _layer(model, tokens + 1)
  if model["stem"]["name"] != "linear":
    outputs += tokens * x.width  # laid out as tokens
  outputs += 2 * x.tokens * x.width  # dropout of the embedding; all layers
  return outputs + model["depth"] * _pre_norm(x) + 2 * x.width + model["num_classes"]


def _mlp_mixer(model: Mapping[str, Any], side: int) -> int:
  tokens, outputs = _stem(model, side)
  x = _layer(model, tokens)
  if model["stem"]["name"] != "linear":
    outputs += tokens * x.width
  tokens_mlp = x.width * 5 * x.tokens  # two maps of the tokens, GELU, two dropouts
  channels_mlp = x.tokens * (3 * x.hidden + 2 * x.width)
  wrapped = 4 * x.tokens * x.width
  outputs += model["depth"] * (tokens_mlp + channels_mlp + wrapped)
  return outputs + x.tokens * x.width + x.width + model["num_classes"]


def _levit_body(model: Mapping[str, Any], side: int) -> int:
  tokens, outputs = _stem(model, side)
  x = _layer(model, tokens)
  turned = 0 if x.mixer["name"] == "levit" else 2 * tokens * x.width  # to tokens, and back
  outputs += tokens * x.width + model["depth"] * (_mix(x) + turned + _mlp(x))
  return outputs + 2 * x.width + model["num_classes"]


def _cct(model: Mapping[str, Any], side: int) -> int:
  tokens, convolved = _stem(model, side)
  x = _layer(model, tokens)
  outputs = 3 * convolved + 2 * tokens * x.width  # ReLU, pooling; laid out; the whole tokenizer
  # Two normalizations, the drop of each of two paths, the layer; no module for GELU and the MLP.
  mlp = x.tokens * (2 * x.hidden + 2 * x.width)
  outputs += model["depth"] * (_mix(x) + mlp + 5 * x.tokens * x.width)
  # Dropout, last normalization, the weights of the pool, the classifier within the network.
  return outputs + 2 * x.tokens * x.width + x.tokens + 2 * model["num_classes"]


def _cvt_body(model: Mapping[str, Any], side: int) -> int:
  tokens, _ = _stem(model, side)
  x = _layer(model, tokens)
  turned = 0 if x.mixer["name"] == "cvt" else 2 * tokens * x.width
  layers = sum(model["depth"]) * (_pre_norm(x) + turned)
  stages = len(model["depth"]) * 3 * tokens * x.width  # convolution, normalization, all layers
  return layers + stages + 2 * x.width + model["num_classes"]


def _pit(model: Mapping[str, Any], side: int) -> int:
  tokens, outputs = _stem(model, side)
  first = _layer(model, tokens + 1)
  if model["stem"]["name"] == "linear":
    outputs += tokens * 3 * model["stem"]["patch"] ** 2  # unfolded, then laid out
  else:
    outputs += tokens * first.width
  outputs += first.tokens * first.width  # dropout
  second = _layer(model, tokens // 4 + 1, 1)
  for x, depth in zip((first, second), model["depth"], strict=True):
    outputs += depth * _pre_norm(x) + x.tokens * x.width
  # Pooling: the class token's map; depthwise convolution, the one after it, both; the whole.
  outputs += second.width + 3 * (second.tokens - 1) * second.width + second.tokens * second.width
  return outputs + second.width + model["num_classes"]


# By the mixer that makes a body of its own, and the body.
BODIES: dict[tuple[str, str], Callable[[Mapping[str, Any], int], int]] = {
  ("", "vit"): _vit,
  ("mlp_mixing", "vit"): _mlp_mixer,
  ("", "levit"): _levit_body,
  ("", "cct"): _cct,
  ("", "cvt"): _cvt_body,
  ("", "pit"): _pit,
}
