"""Graph properties of an attention pattern, or of an attention matrix, over its tokens.

An edge (q, k) says that query q reads key k. Above `EXACT` tokens, distances start from `SAMPLE`
random tokens (each search is exact over the whole graph), and clustering is averaged over `SAMPLE`
random tokens; for the few hubs among them it uses `PAIRS` random pairs of neighbors. Degrees,
density and the spectrum are always exact; the spectrum comes from Lanczos iterations above
`DENSE_SPECTRUM` tokens. Memory grows with the number of edges.
"""

import dataclasses
import math

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from vitx.analysis.edges import Edges, distances, from_matrix, from_pattern
from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Pattern

EXACT, SAMPLE, PAIRS, DENSE_SPECTRUM = 4096, 256, 20_000, 1024


@dataclasses.dataclass(frozen=True)
class GraphFigures:
  """The graph properties of one head.

  Attributes:
    tokens: The number of tokens, N.
    edges: The number of (query, key) edges.
    density: The number of edges over N².
    out_degree: The least, mean and largest number of keys that a query reads, itself included.
    in_degree: The least, mean and largest number of queries that read a key.
    reach: The share of ordered pairs of different tokens that a path joins.
    path_length: The mean shortest path over joined pairs, or NaN without any.
    diameter: The longest shortest path over joined pairs.
    layers_to_mixing: The least L with (I + A)^L > 0 everywhere, which is the number of layers until
      every token may have read every other: the diameter, or infinity if some pair is not joined.
    clustering: The mean over tokens of the closed share of pairs of neighbors, undirected, without
      self-loops (Watts and Strogatz 1998); a token with fewer than two neighbors counts as 0.
    transitivity: Three times the triangles over the connected triples, undirected.
    clustering_directed: The mean of Fagiolo's coefficient (2007), which distinguishes directions.
    spectral_gap: The value 1 - |λ₂| of the random walk that follows the attention, uniform over the
      edges of a pattern, or by the weights of a matrix; a query without keys ends the walk.
    laplacian: The value λ₂ of I - D^(-1/2) U D^(-1/2), where U is undirected without self-loops; a
      token without neighbors counts as a component of its own.
    sampled: Whether path and clustering figures are estimates from a sample.
  """

  tokens: int
  edges: int
  density: float
  out_degree: tuple[int, float, int]
  in_degree: tuple[int, float, int]
  reach: float
  path_length: float
  diameter: int
  layers_to_mixing: float
  clustering: float
  transitivity: float
  clustering_directed: float
  spectral_gap: float
  laplacian: float
  sampled: bool


def graph_figures(
  graph: Pattern | np.ndarray,
  layout: TokenLayout | None = None,
  *,
  head: int = 0,
  threshold: float = 0.0,
  seed: int = 0,
) -> GraphFigures:
  """Computes all graph properties of one head.

  Args:
    graph: A pattern, or an attention matrix (N, N), boolean or of weights.
    layout: The layout of the tokens; a pattern needs it.
    head: The head of a pattern.
    threshold: The threshold of a matrix; weights above it are edges.
    seed: The random seed of the sample.

  Raises:
    ConfigError: A pattern has no layout, or a matrix is not square.
  """
  if isinstance(graph, Pattern):
    if layout is None:
      raise ConfigError("graph_figures(pattern) needs layout=TokenLayout(...)")
    edges = from_pattern(graph, layout, head)
  else:
    edges = from_matrix(graph, threshold)
  N = edges.length
  sampled = N > EXACT
  rng = np.random.default_rng(seed)
  tokens = np.sort(rng.choice(N, SAMPLE, replace=False)) if sampled else np.arange(N)
  counts = distances(edges, tokens)
  joined, steps = counts[1:].sum(), np.arange(counts.size)
  both = edges.undirected()
  clustering, transitivity, directed = compute_clusterings(
    edges, both, tokens if sampled else None, rng
  )
  return GraphFigures(
    tokens=N,
    edges=edges.keys.size,
    density=edges.keys.size / N**2,
    out_degree=_degrees(np.diff(edges.starts)),
    in_degree=_degrees(np.bincount(edges.keys, minlength=N)),
    reach=float(joined / (tokens.size * (N - 1))) if N > 1 else 1.0,
    path_length=float((counts * steps).sum() / joined) if joined else math.nan,
    diameter=counts.size - 1,
    layers_to_mixing=counts.size - 1 if joined == tokens.size * (N - 1) else math.inf,
    clustering=clustering,
    transitivity=transitivity,
    clustering_directed=directed,
    spectral_gap=compute_spectral_gap(edges),
    laplacian=compute_laplacian(both),
    sampled=sampled,
  )


def _degrees(degrees: np.ndarray) -> tuple[int, float, int]:
  return int(degrees.min()), float(degrees.mean()), int(degrees.max())


def compute_clusterings(
  edges: Edges, both: Edges, tokens: np.ndarray | None, rng: np.random.Generator
) -> tuple[float, float, float]:
  """Returns mean C_i, transitivity and mean directed C_i, over all tokens or a sample.

  Args:
    edges: The directed edges.
    both: The undirected version of `edges`.
    tokens: The tokens of the sample; `None` means all tokens.
    rng: The random generator for pairs of neighbors of hubs.
  """
  degree = np.diff(both.starts).astype(np.float64)
  total, mutual = _directed_degrees(edges)
  triples, directed_triples = degree * (degree - 1), total * (total - 1) - 2 * mutual
  if tokens is None:
    U, A = both.dense(), edges.dense()
    np.fill_diagonal(A, 0)
    A += A.T  # entries 0, 1, 2
    closed = np.einsum("ij,ij->i", U @ U, U, dtype=np.float64)
    directed = np.einsum("ij,ij->i", A @ A, A, dtype=np.float64)
  else:
    closed, directed = _sampled_triangles(edges, both, tokens, rng)
    triples, directed_triples = triples[tokens], directed_triples[tokens]
  local = np.divide(closed, triples, out=np.zeros_like(triples), where=triples > 0)
  fagiolo = np.divide(
    directed, 2 * directed_triples, out=np.zeros_like(triples), where=directed_triples > 0
  )
  transitivity = float(closed.sum() / triples.sum()) if triples.sum() else 0.0
  return float(local.mean()), transitivity, float(fagiolo.mean())


def _directed_degrees(edges: Edges) -> tuple[np.ndarray, np.ndarray]:
  """Returns each token's in- plus out-degree and number of mutual edges, without self-loops."""
  N, q, k = edges.length, edges.queries, edges.keys
  apart = q != k
  q, k = q[apart].astype(np.int64), k[apart].astype(np.int64)
  total = np.bincount(q, minlength=N) + np.bincount(k, minlength=N)
  mutual = np.isin(q * N + k, k * N + q, assume_unique=True)
  return total.astype(np.float64), np.bincount(q[mutual], minlength=N).astype(np.float64)


def _sampled_triangles(
  edges: Edges, both: Edges, tokens: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the tokens' (U³)_ii and ((A + Aᵀ)³)_ii; for hubs, estimates from pairs of neighbors."""
  N = edges.length
  codes = edges.queries.astype(np.int64) * N + edges.keys  # ascending
  closed, directed = np.zeros(tokens.size), np.zeros(tokens.size)
  for number, token in enumerate(tokens):
    near = both.keys[both.starts[token] : both.starts[token + 1]].astype(np.int64)
    if near.size < 2:
      continue
    if near.size**2 <= PAIRS:
      first, second = (grid.reshape(-1) for grid in np.indices((near.size, near.size)))
    else:
      first, second = rng.integers(near.size, size=(2, PAIRS))
    scale = near.size**2 / first.size
    a, b = near[first], near[second]
    across = _multiplicity(codes, a * N + b) + _multiplicity(codes, b * N + a)
    across[a == b] = 0
    here = _multiplicity(codes, token * N + near) + _multiplicity(codes, near * N + token)
    closed[number] = scale * (across > 0).sum()
    directed[number] = scale * (here[first] * across * here[second]).sum()
  return closed, directed


def _multiplicity(codes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
  """Returns 1 for each wanted edge that exists, else 0."""
  place = np.minimum(np.searchsorted(codes, wanted), codes.size - 1)
  return (codes[place] == wanted).astype(np.int64)


def compute_spectral_gap(edges: Edges) -> float:
  """Returns 1 - |λ₂| of D_out⁻¹ A, the walk that follows the attention (`GraphFigures`)."""
  weights = np.ones(edges.keys.size) if edges.weights is None else edges.weights
  A = scipy.sparse.csr_array((weights, edges.keys, edges.starts), shape=(edges.length,) * 2)
  out = np.asarray(A.sum(axis=1)).reshape(-1)
  P = scipy.sparse.diags_array(np.divide(1.0, out, out=np.zeros_like(out), where=out > 0)) @ A
  if edges.length <= DENSE_SPECTRUM:
    values = np.linalg.eigvals(P.toarray())
  else:
    values = scipy.sparse.linalg.eigs(P, k=2, which="LM", v0=_start(P), return_eigenvectors=False)
  sizes = np.sort(np.abs(values))
  return float(1 - sizes[-2]) if sizes.size > 1 else 1.0


def compute_laplacian(both: Edges) -> float:
  """Returns the second smallest eigenvalue of an undirected graph's normalized Laplacian."""
  degree = np.diff(both.starts).astype(np.float64)
  root = np.divide(1.0, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0)
  # An isolated token is a component: its eigenvalue 0 of the Laplacian is a 1 here.
  alone = scipy.sparse.diags_array((degree == 0).astype(np.float64))
  U = scipy.sparse.csr_array(
    (np.ones(both.keys.size), both.keys, both.starts), shape=(both.length,) * 2
  )
  M = scipy.sparse.diags_array(root) @ U @ scipy.sparse.diags_array(root) + alone
  if both.length <= DENSE_SPECTRUM:
    values = np.linalg.eigvalsh(M.toarray())
  else:
    values = scipy.sparse.linalg.eigsh(
      M, k=2, which="LA", ncv=32, v0=_start(M), return_eigenvectors=False
    )
  return float(1 - np.sort(values)[-2]) if values.size > 1 else 0.0


def _start(matrix: scipy.sparse.sparray) -> np.ndarray:
  """Returns Lanczos's start: fixed, for repeatability; random, to have all eigenvectors in it."""
  return np.random.default_rng(0).normal(size=matrix.shape[0])
