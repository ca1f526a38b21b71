"""The engine for single pods: the best node now, or why there is none.

    engine = Engine(snapshot)
    answer = engine.decide(request)
    if isinstance(answer, Decision):
        undo = snapshot.commit(answer.grant)

Pods of one template are equal requests, so the status and rank of every node are cached per request. Only nodes that
changed since the last decision are checked again; then the largest rank is the answer. The result is exactly what a
fresh check of every node would give; ties go to the first node.

The engine does not book anything, and randomness is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.placement.pod import score as scoring
from kgwe.placement.pod import shortage, wording
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.pod.mixfit_strategy import ArrivalMix, MixFitStrategy
from kgwe.placement.pod.ranking import Ranking, Strategy
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant, Snapshot
    from kgwe.placement.pod.request_tables import Codes
    from kgwe.placement.pod.score import Floats

# Requests whose ranks are kept, the oldest forgotten first: 0.5 MB each in a fleet of 10,000 nodes.
_KEPT: Final = 128
_NOWHERE: Final = -np.inf
_STATUSES: Final = len(FitStatus)
# If every other node is offered, one of the best eight is offered in 255 of 256 cases.
_TRIED: Final = 8


@dataclass(frozen=True, slots=True)
class Score:
    """The score, 0..100, and its parts."""

    total: float
    topology: float
    resource: float
    balance: float
    hint: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """The node chosen for a pod, and its grant there."""

    #: per `FitStatus`, the number of nodes
    counts: tuple[int, ...]
    node: int
    name: str
    grant: Grant
    score: Score
    #: ring through its GPUs, data-sheet figures; None for fewer than two, 0 when not known
    gb_per_s: float | None

    @property
    def fitting(self) -> int:
        """The number of nodes where the pod fits."""
        return self.counts[FitStatus.FITS]


@dataclass(slots=True)
class _View:
    """Cached results for one request under one strategy, up to a version of the snapshot."""

    request: Request
    strategy: Strategy
    codes: Codes
    topology: Floats
    resource: Floats
    balance: Floats
    score: Floats
    #: -inf where the pod does not fit
    rank: Floats
    seen: int = -1
    counts: NDArray[np.intp] = field(default_factory=lambda: np.zeros(_STATUSES, np.intp))
    refusal: Refusal | None = None


class Engine:
    """Decisions over one snapshot."""

    def __init__(
        self,
        snapshot: Snapshot,
        weights: scoring.Weights = scoring.Weights(),  # noqa: B008 - frozen
        strategy: Strategy = Strategy.SCORE,
        *,
        fitter: Fitter | None = None,
        mix: ArrivalMix | None = None,
    ) -> None:
        """`mix`: the arrivals known so far, for the strategy mixfit. Its decisions are added."""
        self.snapshot = snapshot
        self.fitter = fitter or Fitter(snapshot)
        self.scorer = scoring.Scorer(self.fitter, weights)
        self.strategy = strategy
        self._ranking = Ranking(snapshot.nodes, self.scorer)
        self._views: dict[tuple[Request, Strategy], _View] = {}
        self.mix = ArrivalMix() if mix is None else mix
        self._packer: MixFitStrategy | None = None

    def decide(
        self,
        request: Request,
        *,
        strategy: Strategy | None = None,
        hint: Floats | None = None,
        rng: np.random.Generator | None = None,
        candidates: NDArray[np.intp] | None = None,
    ) -> Decision | Refusal:
        """The best node for the pod.

        `hint`: node -> points of a forecast; `rng`: for the strategy random only; `candidates`: the only nodes to
        choose from.
        """
        view = self._view(request, strategy or self.strategy)
        if view.counts[0] == 0:
            return self._refuse(view)
        if candidates is not None:
            return self._decide_among_candidates(view, candidates)
        if view.strategy is Strategy.RANDOM:
            node = self._draw_node(view, rng)
        elif hint is None:
            node = int(self._ranks(view).argmax())
        else:
            node = int((self._ranks(view) - view.score + _add_hint(view.score, hint)).argmax())
        return self._decide_node(view, node, hint)

    def _decide_among_candidates(self, view: _View, among: NDArray[np.intp]) -> Decision | Refusal:
        ranks = self._ranks(view)[among]
        if not len(ranks) or ranks.max() == _NOWHERE:
            return self._refuse(view)
        return self._decide_node(view, int(among[int(ranks.argmax())]), None)

    def decide_offered(
        self,
        request: Request,
        offered: Callable[[str], bool],
        *,
        strategy: Strategy | None = None,
        excluded: NDArray[np.bool_] | None = None,
    ) -> Decision | Refusal | None:
        """The best node that is `offered` and not `excluded`; None: not among the best few, call `decide(candidates=)`.

        If most nodes are offered, this does not need the list of them.
        """
        view = self._view(request, strategy or self.strategy)
        if view.counts[0] == 0:
            return self._refuse(view)
        rank = self._ranks(view)
        if excluded is not None:
            rank = np.where(excluded, _NOWHERE, rank)
        nodes = self.snapshot.nodes
        for tried in range(_TRIED):
            node = int(rank.argmax())
            if rank[node] == _NOWHERE:
                return self._refuse(view)
            if offered(nodes[node].name):
                return self._decide_node(view, node, None)
            if not tried and excluded is None:
                rank = rank.copy()
            rank[node] = _NOWHERE
        return None

    def list_best_nodes(self, request: Request, most: int, *, strategy: Strategy | None = None) -> list[int]:
        """The best nodes that fit, best first; at most `most`."""
        rank = self._ranks(self._view(request, strategy or self.strategy))
        fitting = np.flatnonzero(rank > _NOWHERE)
        return [int(node) for node in fitting[np.argsort(-rank[fitting], kind="stable")[:most]]]

    def score_nodes(self, request: Request, *, hint: Floats | None = None) -> Floats:
        """Node -> its score; 0 where the pod does not fit."""
        view = self._view(request, self.strategy)
        score = np.clip(view.score, 0.0, scoring.HIGHEST) if hint is None else _add_hint(view.score, hint)
        return np.where(view.codes, 0.0, score)

    def check_nodes(self, request: Request) -> Codes:
        """Node -> its status; shared, do not write to it."""
        return self._view(request, self.strategy).codes

    # --- answers ----------------------------------------------------------------------------------------

    def _decide_node(self, view: _View, node: int, hint: Floats | None) -> Decision:
        points = 0.0 if hint is None else float(scoring.bound_hint(hint[node : node + 1])[0])
        total = min(max(float(view.score[node]) + points, 0.0), scoring.HIGHEST)
        parts = (float(view.topology[node]), float(view.resource[node]), float(view.balance[node]))
        return Decision(
            counts=tuple(view.counts.tolist()),
            node=node,
            name=self.snapshot.nodes[node].name,
            grant=self._build_grant(view, node),
            score=Score(total, *parts, points),
            gb_per_s=self.fitter.predict_gb_per_s(view.request, node),
        )

    def _build_grant(self, view: _View, node: int) -> Grant:
        grant = self.fitter.build_grant(view.request, node)
        if view.strategy is not Strategy.MIXFIT:
            return grant
        if grant.share is not None and self._packer is not None:
            _, milli, mib = grant.share
            grant = replace(grant, share=(self._packer.choose_gpu(view.request, node), milli, mib))
        self.mix.add(view.request)
        return grant

    def _refuse(self, view: _View) -> Refusal:
        if view.refusal is None:
            counts = count_reasons(view.counts.tolist())
            nearest = shortage.find_nearest(self.fitter, view.request, view.codes)
            gpus = view.request.gpus
            best = wording.describe_nearest(view.request, nearest) if nearest else ""
            listed = wording.describe_counts(counts, gpus)
            view.refusal = Refusal(
                Reason.NO_ROOM,
                wording.describe_refusal(len(self.snapshot), wording.describe_gpus(gpus), listed, best),
                counts,
                possible=bool((self.fitter.check_empty_nodes(view.request) == FitStatus.FITS).any()),
                detail=nearest,
            )
        return view.refusal

    @staticmethod
    def _draw_node(view: _View, rng: np.random.Generator | None) -> int:
        if rng is None:
            raise errors.InvariantBroken("the strategy random needs a source of randomness")
        fitting = np.flatnonzero(view.rank == view.rank.max())
        return int(fitting[rng.integers(len(fitting))])

    # --- the strategy mixfit ---------------------------------------------------------------------------

    def _ranks(self, view: _View) -> Floats:
        """Node -> rank. Those of mixfit follow prices of the whole fleet and are computed for every request."""
        if view.strategy is not Strategy.MIXFIT or view.request.gpus.slices or not self.snapshot.milli.shape[1]:
            return view.rank
        if self._packer is None:
            self._packer = MixFitStrategy(self.fitter, self.mix)
        nodes = np.flatnonzero(view.codes == FitStatus.FITS)
        ranks = np.full(len(view.rank), _NOWHERE)
        ranks[nodes] = self._ranking.defer_spot(view.request, nodes, self._packer.rank(view.request, nodes))
        return ranks

    # --- cached views -----------------------------------------------------------------------------------

    def _view(self, request: Request, strategy: Strategy) -> _View:
        key = (request, strategy)
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= _KEPT:
                del self._views[next(iter(self._views))]
            view = self._views[key] = self._new_view(request, strategy)
        elif view.seen != self.snapshot.version:
            self._update_view(view, self.snapshot.changed_since(view.seen))
        return view

    def _new_view(self, request: Request, strategy: Strategy) -> _View:
        size = len(self.snapshot)
        topology, resource, balance, score, rank = np.zeros((5, size))
        view = _View(request, strategy, np.zeros(size, np.uint8), topology, resource, balance, score, rank)
        view.counts[FitStatus.FITS] = size
        self._update_view(view, np.arange(size))
        return view

    def _update_view(self, view: _View, nodes: NDArray[np.intp]) -> None:
        request = view.request
        codes = self.fitter.check_nodes(request, nodes)
        parts = self.scorer.score_parts(request, nodes)
        score = self.scorer.score(parts)
        rank = self._ranking.rank(view.strategy, request, nodes, parts, score)
        before = view.codes[nodes]
        if (codes != before).any():
            view.counts += np.bincount(codes, minlength=_STATUSES) - np.bincount(before, minlength=_STATUSES)
            view.codes[nodes] = codes
        view.topology[nodes], view.resource[nodes], view.balance[nodes] = parts.topology, parts.resource, parts.balance
        view.score[nodes] = score
        view.rank[nodes] = np.where(codes, _NOWHERE, rank)
        view.seen = self.snapshot.version
        view.refusal = None


def count_reasons(counts: Sequence[int]) -> dict[str, int]:
    """Reason -> nodes that do not take the pod for it, the most frequent first; `counts` are by status."""
    found = {FitStatus(code).reason: count for code, count in enumerate(counts) if code and count}
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def _add_hint(score: Floats, hint: Floats) -> Floats:
    return np.clip(score + scoring.bound_hint(hint), 0.0, scoring.HIGHEST)
