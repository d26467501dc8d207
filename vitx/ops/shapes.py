"""Annotations of arrays: the kind of their dtype, and a letter for each of their axes.

The letters are B batch, N tokens, H heads, D channels of a head, E channels of a head's values, C
channels, M keys, landmarks, slots or features, and L layers. A letter's size may differ between
functions. Type checkers read the annotations as jaxtyping's, `Float[Array, "B N H D"]`. At run time
the annotations need no package and check nothing; a test turns them into jaxtyping's, which check
the shapes, and calls the ops.
"""

from typing import TYPE_CHECKING, Annotated, Any

from jax import Array as Array

if TYPE_CHECKING:
  from jaxtyping import Bool, Float, Int, Shaped
else:

  class _Kind:
    """A kind of dtype, such as `Float` in the annotation `Float[Array, "B N H D"]`."""

    def __init__(self, name: str):
      self.name = name

    def __getitem__(self, item: tuple[Any, str]) -> Any:
      array, axes = item
      return Annotated[array, self.name, axes]

  Bool, Float, Int, Shaped = map(_Kind, ("Bool", "Float", "Int", "Shaped"))

Tokens = Float[Array, "B N C"]
TokenMask = Bool[Array, "B N"] | None  # True = may be attended; None allows all
TokenPlaces = Int[Array, " N"] | None  # None means all tokens in order
