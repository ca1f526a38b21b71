"""Gradient-boosted trees as NumPy arrays, read from LightGBM's text format.

All trees are walked at once, level by level: one prediction takes a tenth of a millisecond, with the share of each
feature in the answer. LightGBM itself is needed for training only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_DEFAULT_LEFT: Final = 2
_CATEGORICAL: Final = 1
_END: Final = "end of trees"


class BadModel(errors.Permanent):
    """A model text that cannot be read: truncated, of another format or of another schema."""


@dataclass(frozen=True, slots=True)
class _Tree:
    feature: NDArray[np.intp]
    threshold: NDArray[np.float64]
    left: NDArray[np.intp]
    right: NDArray[np.intp]
    nan_left: NDArray[np.bool_]
    value: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Forest:
    """The trees of several models. A leaf is a node that leads to itself, so that all trees have the same depth."""

    feature: NDArray[np.intp]
    threshold: NDArray[np.float64]
    nan_left: NDArray[np.bool_]
    child: NDArray[np.intp]
    """Right and left child of each node, alternating."""
    value: NDArray[np.float64]
    roots: NDArray[np.intp]
    starts: NDArray[np.intp]
    """First root of each model."""
    depth: int

    def predict(self, row: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the answer of each model."""
        return self._sum(self._walk(row))

    def explain(self, row: NDArray[np.float64], model: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the answer of each model, and how much each feature moved one model's along the paths."""
        walked = self._walk(row)
        end = self.starts[model + 1] if model + 1 < len(self.starts) else len(self.roots)
        path = np.stack(walked)[:, self.starts[model] : end]
        feature, value = self.feature[path[:-1]], self.value[path]
        moved = np.bincount(feature.ravel(), np.diff(value, axis=0).ravel(), minlength=len(row))
        return self._sum(walked), moved.astype(np.float64)

    def _sum(self, walked: list[NDArray[np.intp]]) -> NDArray[np.float64]:
        return np.asarray(np.add.reduceat(self.value[walked[-1]], self.starts))

    def _walk(self, row: NDArray[np.float64]) -> list[NDArray[np.intp]]:
        """Return the nodes of all trees at each depth."""
        nodes = self.roots
        path = [nodes]
        unknown = np.isnan(row)
        known = np.where(unknown, 0.0, row)
        for _ in range(self.depth):
            feature = self.feature[nodes]
            goes_left = np.where(unknown[feature], self.nan_left[nodes], known[feature] <= self.threshold[nodes])
            nodes = self.child[2 * nodes + goes_left]
            path.append(nodes)
        return path


def compile_models(texts: Sequence[str], features: int) -> Forest:
    """Return the trees of models in LightGBM's text format. Raise BadModel if a text is not whole."""
    trees: list[_Tree] = []
    starts: list[int] = []
    for text in texts:
        starts.append(len(trees))
        trees += _read_trees(text, features)
    offsets = np.cumsum([0, *(len(tree.feature) for tree in trees)])
    child = np.empty(2 * offsets[-1], dtype=np.intp)
    child[0::2] = np.concatenate([tree.right + offset for tree, offset in zip(trees, offsets, strict=False)])
    child[1::2] = np.concatenate([tree.left + offset for tree, offset in zip(trees, offsets, strict=False)])
    roots = offsets[:-1].astype(np.intp)
    return Forest(
        np.concatenate([tree.feature for tree in trees]),
        np.concatenate([tree.threshold for tree in trees]),
        np.concatenate([tree.nan_left for tree in trees]),
        child,
        np.concatenate([tree.value for tree in trees]),
        roots,
        np.array(starts, dtype=np.intp),
        _measure_depth(child, roots),
    )


def _measure_depth(child: NDArray[np.intp], roots: NDArray[np.intp]) -> int:
    nodes, depth = roots, 0
    while depth <= len(child):
        below = np.unique(np.concatenate([child[2 * nodes], child[2 * nodes + 1]]))
        if np.array_equal(child[2 * below], below) and np.array_equal(child[2 * below + 1], below):
            return depth + 1
        nodes, depth = below, depth + 1
    raise BadModel("the model's trees contain a circle; train it again")


def _read_trees(text: str, features: int) -> list[_Tree]:
    if _END not in text or not text.startswith("tree\n"):
        raise BadModel("the model text is truncated or not a LightGBM model; train it again")
    try:
        found = [_read_tree(fields) for fields in _split(text.split(_END, 1)[0])]
        declared = int(next(line for line in text.splitlines() if line.startswith("max_feature_idx")).split("=")[1])
    except (KeyError, ValueError, IndexError, StopIteration) as problem:
        raise BadModel(f"the model text is damaged ({problem}); train it again") from problem
    if not found:
        raise BadModel("the model has no trees; train it again")
    if declared + 1 != features:
        raise BadModel(f"the model has {declared + 1} features instead of {features}; train it again")
    return found


def _split(text: str) -> Iterator[dict[str, str]]:
    for block in text.split("\nTree=")[1:]:
        yield dict(line.split("=", 1) for line in block.splitlines()[1:] if "=" in line)


def _read_tree(fields: dict[str, str]) -> _Tree:
    """Return one tree: inner nodes first, then leaves."""
    leaves = int(fields["num_leaves"])
    inner = leaves - 1
    values = np.array(fields["leaf_value"].split(), dtype=np.float64)
    if leaves < 1 or len(values) != leaves:
        raise ValueError("leaves are missing")
    own = np.arange(inner, inner + leaves)

    def read(name: str, kind: type) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.array(fields[name].split() if inner else [], dtype=kind)
        if len(found) != inner:
            raise ValueError(f"{name} is cut off")
        return found

    left, right = (read(name, np.int64).astype(np.intp) for name in ("left_child", "right_child"))
    left, right = (np.where(side < 0, inner + ~side, side) for side in (left, right))
    if inner and (max(left.max(), right.max()) >= inner + leaves):
        raise ValueError("a child is missing")
    decision = read("decision_type", np.int64).astype(np.int64)
    if (decision & _CATEGORICAL).any():
        raise ValueError("categorical splits are not supported")
    threshold = read("threshold", np.float64)
    # Missing type none (0): an unknown value counts as zero.
    nan_left = np.where((decision >> 2) == 0, threshold >= 0.0, (decision & _DEFAULT_LEFT) != 0)
    return _Tree(
        np.concatenate([read("split_feature", np.int64), np.zeros(leaves)]).astype(np.intp),
        np.concatenate([threshold, np.zeros(leaves)]),
        np.concatenate([left, own]).astype(np.intp),
        np.concatenate([right, own]).astype(np.intp),
        np.concatenate([nan_left, np.ones(leaves, dtype=bool)]).astype(np.bool_),
        np.concatenate([read("internal_value", np.float64), values]),
    )
