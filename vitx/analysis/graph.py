"""Computes graph properties of an attention pattern, or of an attention matrix, over its tokens.

An edge (q, k) means that query q reads key k. Beyond `EXACT` tokens, some properties are estimates
from `SAMPLE` random tokens: shortest paths are searched from these tokens only (each search is
exact over the whole graph), and clustering is averaged over these tokens. Degrees, density and the
spectrum are always exact; beyond `DENSE_SPECTRUM` tokens the spectrum comes from Lanczos
iterations, unless no query reads a later token. Memory grows with the number of edges.
"""

import dataclasses
import math

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from vitx.analysis.edges import distances, from_matrix, from_pattern
from vitx.analysis.statistics import divide
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Pattern

EXACT, SAMPLE, DENSE_SPECTRUM = 4096, 256, 1024


@dataclasses.dataclass(frozen=True)
class GraphFigures:
  """The graph properties of one head.

  Attributes:
    tokens: The number of tokens, N.
    edges: The number of (query, key) edges.
    density: The number of edges divided by N².
    out_degree: The least, mean and largest number of keys that a query reads. A self-loop counts.
    in_degree: The least, mean and largest number of queries that read a key.
    reach: The share of ordered pairs of different tokens that a path joins.
    path_length: The mean length of the shortest paths of joined pairs, or NaN if no pair is joined.
    diameter: The largest length of the shortest paths of joined pairs.
    layers_to_mixing: The number of layers until every token may have read every other: the least L
      with (I + A)^L > 0 everywhere, where A is the adjacency matrix. It is the diameter, or
      infinity if some pair is not joined.
    clustering: The share of a token's pairs of neighbors that are neighbors themselves, averaged
      over the tokens, in the undirected graph without self-loops (Watts and Strogatz 1998); a token
      with fewer than two neighbors counts as 0.
    transitivity: Three times the number of triangles divided by the number of connected triples, in
      the undirected graph.
    clustering_directed: The mean of Fagiolo's coefficient (2007), which distinguishes directions.
    spectral_gap: The value 1 - |λ₂|, where λ₂ is the second eigenvalue of the random walk from
      queries to keys. The walk takes all edges of a pattern with equal probability, and those of an
      attention matrix in proportion to their weights. A query without keys ends the walk.
    laplacian: The second smallest eigenvalue of I - D^(-1/2) U D^(-1/2), where U is the adjacency
      matrix of the undirected graph without self-loops, and D has its degrees. A token without
      neighbors counts as a component of its own.
    sampled: Whether path and clustering properties are estimates from a sample.
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
  """
  if isinstance(graph, Pattern):
    edges = from_pattern(graph, layout, head)  # type: ignore[arg-type]
  else:
    edges = from_matrix(graph, threshold)
  N = edges.shape[0]
  sampled = N > EXACT
  rng = np.random.default_rng(seed)
  tokens = np.sort(rng.choice(N, SAMPLE, replace=False)) if sampled else np.arange(N)
  counts = distances(edges, tokens)
  joined, steps = counts[1:].sum(), np.arange(counts.size)
  ones = scipy.sparse.csr_array((np.ones(edges.nnz), edges.indices, edges.indptr), edges.shape)
  edge_counts = ones + ones.T
  edge_counts = edge_counts - scipy.sparse.diags_array(edge_counts.diagonal())
  clustering, transitivity, directed = compute_clusterings(edge_counts, tokens)
  return GraphFigures(
    tokens=N,
    edges=edges.nnz,
    density=edges.nnz / N**2,
    out_degree=_degrees(np.diff(edges.indptr)),
    in_degree=_degrees(np.bincount(edges.indices, minlength=N)),
    reach=float(joined / (tokens.size * (N - 1))) if N > 1 else 1.0,
    path_length=float((counts * steps).sum() / joined) if joined else math.nan,
    diameter=counts.size - 1,
    layers_to_mixing=counts.size - 1 if joined == tokens.size * (N - 1) else math.inf,
    clustering=clustering,
    transitivity=transitivity,
    clustering_directed=directed,
    spectral_gap=compute_spectral_gap(edges),
    laplacian=compute_laplacian(edge_counts),
    sampled=sampled,
  )


def _degrees(degrees: np.ndarray) -> tuple[int, float, int]:
  return int(degrees.min()), float(degrees.mean()), int(degrees.max())


def compute_clusterings(
  edge_counts: scipy.sparse.csr_array, tokens: np.ndarray
) -> tuple[float, float, float]:
  """Returns three clustering coefficients of a graph, over all tokens or a sample.

  Args:
    edge_counts: The number of edges between every two tokens in either direction, 0, 1 or 2, of
      shape (N, N). The diagonal is zero.
    tokens: The tokens of the sample, or all tokens.

  Returns:
    The properties clustering, transitivity and clustering_directed of `GraphFigures`.
  """
  undirected = (edge_counts > 0).astype(np.float64)
  degree, total = undirected.sum(axis=1)[tokens], edge_counts.sum(axis=1)[tokens]
  mutual = total - degree  # A neighbor with edges in both directions counts twice in `total`.
  triples, directed_triples = degree * (degree - 1), total * (total - 1) - 2 * mutual
  closed, directed = (_count_triangles(graph, tokens) for graph in (undirected, edge_counts))
  local, fagiolo = divide(closed, triples), divide(directed, 2 * directed_triples)
  transitivity = float(closed.sum() / triples.sum()) if triples.sum() else 0.0
  return float(local.mean()), transitivity, float(fagiolo.mean())


def _count_triangles(graph: scipy.sparse.csr_array, tokens: np.ndarray) -> np.ndarray:
  """Returns (G³)_ii of a symmetric matrix G for tokens i: twice the triangles, if G is 0 or 1."""
  if tokens.size == graph.shape[0]:
    dense = graph.astype(np.float32).toarray()
    return np.einsum("ij,ij->i", dense @ dense, dense, dtype=np.float64)
  rows = graph[tokens]
  return (rows @ graph).multiply(rows).sum(axis=1)


def compute_spectral_gap(edges: scipy.sparse.csr_array) -> float:
  """Returns the spectral gap 1 - |λ₂| of the random walk along the edges, see `GraphFigures`.

  The transition matrix of the walk is the matrix of the edges, with each row divided by its sum.
  """
  P = scipy.sparse.diags_array(divide(1.0, edges.sum(axis=1))) @ edges
  if not scipy.sparse.triu(edges, 1).nnz:
    # The matrix of a causal walk is triangular, and iterations on it need not converge.
    values = P.diagonal()
  elif edges.shape[0] <= DENSE_SPECTRUM:
    values = np.linalg.eigvals(P.toarray())
  else:
    values = scipy.sparse.linalg.eigs(P, k=2, which="LM", v0=_start(P), return_eigenvectors=False)
  sizes = np.sort(np.abs(values))
  return float(1 - sizes[-2]) if sizes.size > 1 else 1.0


def compute_laplacian(edge_counts: scipy.sparse.csr_array) -> float:
  """Returns the second smallest eigenvalue of an undirected graph's normalized Laplacian."""
  undirected = (edge_counts > 0).astype(np.float64)
  degree = undirected.sum(axis=1)
  root = divide(1.0, np.sqrt(degree))
  # M is I minus the Laplacian. An isolated token is a component, with eigenvalue 1 of M.
  alone = scipy.sparse.diags_array((degree == 0).astype(np.float64))
  M = scipy.sparse.diags_array(root) @ undirected @ scipy.sparse.diags_array(root) + alone
  if edge_counts.shape[0] <= DENSE_SPECTRUM:
    values = np.linalg.eigvalsh(M.toarray())
  else:
    values = scipy.sparse.linalg.eigsh(
      M, k=2, which="LA", ncv=32, v0=_start(M), return_eigenvectors=False
    )
  return float(1 - np.sort(values)[-2]) if values.size > 1 else 0.0


def _start(matrix: scipy.sparse.sparray) -> np.ndarray:
  """Returns a start vector (N,) of Lanczos iterations, with a part along every eigenvector."""
  return np.random.default_rng(0).normal(size=matrix.shape[0])
