"""Estimates torchsummary's "Size (MB)" of the Vision X-formers' PyTorch networks.

torchsummary 1.5.1 adds 8 bytes for every number that a module returns for one image (4 forward, 4
backward), 4 for every number of the image and 4 for every parameter that it counts, in units of
2^20 bytes. It visits every module except the network, `Sequential` and `ModuleList`. So the numbers
that a module inside a wrapper returns count again for the wrapper. Numbers that no module returns
do not count, such as the products inside an X-former. But a softmax module returns a number for
each head, query and key, and these count. torchsummary takes the first axis for the batch, even if
heads are folded into it.

So the size depends on how the code is divided into modules. It is estimated here only for the
authors' code: vit-pytorch of 2021 with the mixers of performer-pytorch, linformer and
nystrom-attention, and compact-transformers. The division was inferred from the figures that Jeevan
and Sethi (WACV 2022) print: it reproduces 53 of 54 figures to the last digit.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

BYTES, MEGABYTE = 4, 2**20


class Layer(NamedTuple):
  """The dimensions of a layer, from which the sizes of its modules' outputs follow.

  Attributes:
    mixer: The `token_mixer` of the model.
    tokens: The number of tokens, N.
    width: The width of a token, C.
    hidden: The hidden width of the MLP.
    heads: The number of heads, H.
    inner: The width of all heads together, H D.
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
  """Returns torchsummary's "Estimated Total Size (MB)".

  Returns None for a network that is not in the authors' code.

  Args:
    model: The `model` of a config.
    side: The side of the images in pixels, or (height, width), for which the result is None. Images
      have three channels.
    parameters: The number of parameters that torchsummary counts.
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
  """Counts the numbers that the modules of softmax attention return for one image.

  The modules are the joint projection of queries, keys and values (3 N H D), the softmax or dropout
  (H N N), and the output projection, its dropout and the whole mixer (N C each).
  """
  return x.tokens * (3 * x.inner + 3 * x.width) + x.heads * x.tokens**2


def _performer(x: Layer) -> int:
  """Counts the numbers that the modules of Performer return for one image.

  The modules are the projections of queries, keys and values and the attention (N H D each), and
  the output projection, its dropout and the whole mixer (N C each).
  """
  return x.tokens * (4 * x.inner + 3 * x.width)


def _linformer(x: Layer) -> int:
  """Counts the numbers that the modules of Linformer return for one image.

  The modules are the projections of queries, keys and, if separate, values; the dropout of the
  attention matrix (H N M for M slots); and the output projection and the whole mixer (N C each).
  """
  key = x.inner // x.heads if x.mixer["one_kv_head"] else x.inner
  read = key if x.mixer["share_kv"] else 2 * key
  return x.tokens * (x.inner + read + x.heads * x.mixer["slots"] + 2 * x.width)


def _nystrom(x: Layer) -> int:
  """Counts the numbers that the modules of Nyströmformer return for one image.

  The modules are the joint projection of queries, keys and values, the convolution of the values,
  the output projection and its dropout, all for the tokens with padding; and the whole mixer (N C).
  """
  landmarks = x.mixer["landmarks"]
  padded = math.ceil(x.tokens / landmarks) * landmarks
  return padded * (4 * x.inner + 2 * x.width) + x.tokens * x.width


def _fourier(x: Layer) -> int:
  return x.tokens * x.width


def _levit(x: Layer) -> int:
  """Counts the numbers that the modules of LeViT's attention return for one image.

  The modules are the projections of queries, keys and values, their normalizations and the GELU
  (N H D each); the softmax (H N N); and the output projection, its normalization, the dropout and
  the whole mixer (N C each).
  """
  return x.tokens * (7 * x.inner + 4 * x.width) + x.heads * x.tokens**2


def _cvt(x: Layer) -> int:
  """Counts the numbers that the modules of CvT's attention return for one image.

  The modules are the separable convolutions of the queries and of the keys and values, with their
  inner modules; the softmax (N N); and the output projection, its dropout and the whole mixer (N C
  each).
  """
  query = 2 * x.width + 2 * x.inner  # depthwise and normalized; pointwise; the whole module
  both = 2 * x.width + 4 * x.inner
  # torchsummary ignores the heads of the softmax, since they are folded into the batch axis.
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


# The fields of the mixers that the sizes depend on.
FIELDS = {"linformer": {"one_kv_head", "share_kv", "slots"}, "nystromformer": {"landmarks"}}
STEMS = ("linear", "hybrid", "cct")


def _mlp(x: Layer) -> int:
  """Counts the numbers that the modules of an MLP return for one image.

  The modules are the first linear map, the GELU and a dropout, which have the hidden width; and the
  second linear map, a dropout and the whole MLP (N C each).
  """
  return x.tokens * (3 * x.hidden + 3 * x.width)


def _mix(x: Layer) -> int:
  return MIXERS[x.mixer["name"]](x)


def _pre_norm(x: Layer) -> int:
  """Counts the numbers that the modules of a pre-norm block return for one image.

  The modules are those of the mixer and of the MLP, with a normalization and a wrapper for each of
  the two (N C each).
  """
  return _mix(x) + _mlp(x) + 4 * x.tokens * x.width


def _stem(model: Mapping[str, Any], side: int) -> tuple[int, int]:
  """Returns the number of tokens N, and how many numbers the modules of a stem return.

  The modules are the patches and their linear map, or the convolutions.
  """
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
    outputs += tokens * x.width  # The feature map is laid out as tokens.
  outputs += 2 * x.tokens * x.width  # dropout of the embedding; the module of all layers
  return outputs + model["depth"] * _pre_norm(x) + 2 * x.width + model["num_classes"]


def _mlp_mixer(model: Mapping[str, Any], side: int) -> int:
  tokens, outputs = _stem(model, side)
  x = _layer(model, tokens)
  if model["stem"]["name"] != "linear":
    outputs += tokens * x.width
  tokens_mlp = x.width * 5 * x.tokens  # two maps over the tokens, GELU, two dropouts
  channels_mlp = x.tokens * (3 * x.hidden + 2 * x.width)
  wrapped = 4 * x.tokens * x.width
  outputs += model["depth"] * (tokens_mlp + channels_mlp + wrapped)
  return outputs + x.tokens * x.width + x.width + model["num_classes"]


def _levit_body(model: Mapping[str, Any], side: int) -> int:
  tokens, outputs = _stem(model, side)
  x = _layer(model, tokens)
  turned = 0 if x.mixer["name"] == "levit" else 2 * tokens * x.width  # to tokens and back
  outputs += tokens * x.width + model["depth"] * (_mix(x) + turned + _mlp(x))
  return outputs + 2 * x.width + model["num_classes"]


def _cct(model: Mapping[str, Any], side: int) -> int:
  tokens, convolved = _stem(model, side)
  x = _layer(model, tokens)
  outputs = 3 * convolved + 2 * tokens * x.width  # ReLU, pooling; tokens; the whole tokenizer
  # Two normalizations, the drop of each of two paths, the layer; GELU and the MLP are no modules.
  mlp = x.tokens * (2 * x.hidden + 2 * x.width)
  outputs += model["depth"] * (_mix(x) + mlp + 5 * x.tokens * x.width)
  # Dropout, the last normalization, the weights of the pool, the classifier inside the network.
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
    outputs += tokens * 3 * model["stem"]["patch"] ** 2  # The patches are unfolded, then laid out.
  else:
    outputs += tokens * first.width
  outputs += first.tokens * first.width  # dropout
  second = _layer(model, tokens // 4 + 1, 1)
  for x, depth in zip((first, second), model["depth"], strict=True):
    outputs += depth * _pre_norm(x) + x.tokens * x.width
  # Pooling: the map of the class token; two convolutions and their wrapper; the whole module.
  outputs += second.width + 3 * (second.tokens - 1) * second.width + second.tokens * second.width
  return outputs + second.width + model["num_classes"]


# Functions that count the numbers of a whole network. A key has the name of the mixer, if the mixer
# needs a network of its own, and the name of the model.
BODIES: dict[tuple[str, str], Callable[[Mapping[str, Any], int], int]] = {
  ("", "vit"): _vit,
  ("mlp_mixing", "vit"): _mlp_mixer,
  ("", "levit"): _levit_body,
  ("", "cct"): _cct,
  ("", "cvt"): _cvt_body,
  ("", "pit"): _pit,
}
