"""One round of the autoscaler: takes the census, finds what waits, buys, drains and removes, and writes the status.

Policies are served one after the other, the oldest first. An error of one policy delays only that policy. Every
purchase is in the status before the cloud is asked, and every removal is on the Node before the cloud is asked. So a
process that is killed anywhere continues where it was.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy as np
import structlog

from kgwe import errors
from kgwe.apps.autoscaler import launches, marks, node_pods, policy_status, removal
from kgwe.apps.autoscaler.census import BoughtNode, CensusTaker, Strays, find_strays
from kgwe.apps.autoscaler.demand import Demand, find_demand
from kgwe.apps.autoscaler.metrics import PolicyNumbers
from kgwe.apps.autoscaler.policy_status import Findings
from kgwe.apps.autoscaler.pool_offers import PolicyOffers, read_offers
from kgwe.apps.autoscaler.providers import TimedProvider
from kgwe.apps.autoscaler.purchase import PurchaseRound
from kgwe.apps.autoscaler.spot import serving
from kgwe.apps.autoscaler.spot.advisor import WORDS, SpotAdvisor
from kgwe.apps.autoscaler.spot.observer import SpotObserver
from kgwe.cloud.provider import InstanceState, LaunchError
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.kgwe.autoscalingpolicy import AutoscalingPolicy, AutoscalingPolicySpec, ScaleAction
from kgwe.kube.api.meta import Condition, ObjectMeta
from kgwe.kube.client.events import Event
from kgwe.kube.translate import podspec
from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.scaling.launch_memory import LaunchMemory, Offer, Setback
from kgwe.scaling.lifecycle import EXISTING, NodeFacts, Stage
from kgwe.scaling.spot.choice import PlanBook

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kgwe.apps.autoscaler.cluster_view import ClusterView
    from kgwe.apps.autoscaler.metrics import Metrics
    from kgwe.apps.autoscaler.node_pods import NodePods
    from kgwe.apps.autoscaler.removal import Checkpoint
    from kgwe.cloud.provider import Instance, Provider
    from kgwe.costing.prices.book import PriceBook
    from kgwe.kube.api.kgwe.autoscalingpolicy import LaunchRecord
    from kgwe.kube.client.client import KubeClient
    from kgwe.placement.fleet.snapshot import Snapshot
    from kgwe.placement.planning.ask import Ask
    from kgwe.scaling.purchase.pools import Unmet

log = structlog.get_logger(__name__)

FIELD_MANAGER: Final = "kgwe-autoscaler"
#: How often a purchase is planned again in one round after the cloud refused a part of it.
_FALLBACKS: Final = 6
_MOST_LOGGED: Final = 10
#: Actions that return nodes to the cloud.
_RETURNED: Final = frozenset({"ScaleDown", "Replace"})


@dataclass(slots=True)
class _PolicyMemory:
    """What a process remembers of a policy. All of it may be lost."""

    taker: CensusTaker = field(default_factory=CensusTaker)
    idle: removal.IdleClock = field(default_factory=removal.IdleClock)
    spot: SpotObserver = field(default_factory=SpotObserver)
    plans: PlanBook = field(default_factory=PlanBook)
    unmet: tuple[Unmet, ...] = ()
    """What the last plan bought nothing for."""
    choices: dict[str, str] = field(default_factory=dict)
    """Owner -> spot, wait or on-demand, as announced last."""
    strays: frozenset[str] = frozenset()
    """Instances of removed pools that were reported."""
    unwanted: dict[str, float] = field(default_factory=dict)
    """Launches of removed pools whose outcome is not known -> since when."""


@dataclass(frozen=True, slots=True)
class _NotListed:
    """Why the instances of a provider are not known."""

    reason: str
    message: str


@dataclass(slots=True)
class _Round:
    """One policy in one round."""

    policy: AutoscalingPolicy
    provider: TimedProvider
    found: Findings
    now_s: float
    memory: _PolicyMemory
    acts: bool

    @property
    def spec(self) -> AutoscalingPolicySpec:
        return self.policy.spec

    def report(self, action: str, pool: str, nodes: int, reason: str) -> None:
        """Note something that was done."""
        self.found.actions.append(ScaleAction(timestamp.format_time(self.now_s), action, pool, nodes, reason[:1024]))


class Controller:
    """Rounds of all policies: call `reconcile` after a change, and regularly."""

    def __init__(
        self,
        client: KubeClient,
        cluster: ClusterView,
        providers: Mapping[str, Provider],
        book: PriceBook,
        metrics: Metrics,
        *,
        record: Callable[[Event], None] = lambda _: None,
        dry_run: bool = False,
        uses: Callable[[], Mapping[str, float]] = dict,
        checkpoint: Checkpoint = removal.skip_checkpoint,
        timeout_s: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`uses`: node -> mean use of its GPUs; nodes without an entry are not known.

        `checkpoint`: asks pods of a node to save their work, before they are evicted.
        `timeout_s`: a provider that has not answered a call after this time fails.
        """
        self._client = client
        self._cluster = cluster
        self._providers = {name: TimedProvider(each, timeout_s) for name, each in providers.items()}
        self._book = book
        self.metrics = metrics
        self._record = record
        self._dry_run = dry_run
        self._uses = uses
        self._checkpoint = checkpoint
        self._clock = clock
        self._launch_memory: dict[str, LaunchMemory] = {}
        self._policies: dict[str, _PolicyMemory] = {}
        self._ownerless: dict[str, _PolicyMemory] = {}
        self._written: dict[str, AutoscalingPolicy] = {}

    def start_term(self) -> None:
        """Forget what another leader may have changed; the status of policies has it."""
        self._launch_memory.clear()
        self._written.clear()
        self._policies.clear()
        self._ownerless.clear()

    async def reconcile(self) -> None:
        """Serve all policies once."""
        began = time.perf_counter()
        policies = sorted(
            (self._find_newest(each) for each in self._cluster.policies.values()),
            key=lambda each: (each.metadata.creationTimestamp or "", each.metadata.name),
        )
        names = {each.metadata.name for each in policies}
        for gone in self._policies.keys() - names:
            del self._policies[gone]
            self.metrics.policies.pop(gone, None)
        instances = await self._list_instances(policies)
        pods = node_pods.read_node_pods(self._cluster.view)
        strays = {
            name: find_strays(name, listed, policies, self._cluster.nodes)
            for name, listed in instances.items()
            if isinstance(listed, tuple)
        }
        rounds = []
        taken: dict[tuple[str, str], str] = {}
        for policy in policies:
            problem = _claim_pools(policy, taken)
            found = instances.get(policy.spec.provider)
            if problem or found is None:
                await self._write_problem(policy, problem or "the provider is not known")
                continue
            if isinstance(found, _NotListed):
                await self._write_problem(policy, found.message, found.reason)
                continue
            try:
                mine = strays[policy.spec.provider].by_policy.get(policy.metadata.name, frozenset())
                rounds.append(self._begin(policy, found, pods, mine))
            except Exception as exc:  # noqa: BLE001 - one bad policy delays only itself
                await self._note_error(policy, exc)
        ownerless = self._list_ownerless(instances, strays, pods)
        demand = self._find_demand(rounds, ownerless)
        seated: set[str] = set()
        for each in rounds:
            try:
                await self._run_policy(each, replace(demand, asks=_without(demand, seated)), pods, seated)
            except Exception as exc:  # noqa: BLE001 - same
                await self._note_error(each.policy, exc)
        await self._return_ownerless(ownerless, replace(demand, asks=_without(demand, seated)), pods)
        await self._delete_ownerless_nodes(instances, names)
        if any(each.acts for each in rounds):
            unmet = {one.owner: f"{one.reason}: {one.message}" for each in rounds for one in each.found.unmet}
            await self._cluster.requests.write_conditions(self._client, demand.placed, unmet, self._clock())
        self.metrics.timeouts = {name: each.timeouts for name, each in self._providers.items()}
        self.metrics.last_round_s = self._clock()
        self.metrics.round_s.observe(time.perf_counter() - began)

    # --- beginning --------------------------------------------------------------------------------------

    def _find_newest(self, seen: AutoscalingPolicy) -> AutoscalingPolicy:
        """Return the policy as written last, where the watch has not shown it yet."""
        name = seen.metadata.name
        written = self._written.get(name)
        if written is None or written.metadata.uid != seen.metadata.uid:
            return seen
        if _version(seen) >= _version(written):
            del self._written[name]
            return seen
        return written

    async def _list_instances(
        self, policies: Sequence[AutoscalingPolicy]
    ) -> dict[str, tuple[Instance, ...] | _NotListed]:
        """Provider -> its instances, or why they are not known. Nothing is decided without them."""
        names = sorted(self._providers)
        listed = await asyncio.gather(*(self._list_provider(name) for name in names))
        found: dict[str, tuple[Instance, ...] | _NotListed] = dict(zip(names, listed, strict=True))
        for name in {policy.spec.provider for policy in policies}:
            if name not in self._providers:
                known = ", ".join(names) or "none"
                found[name] = _NotListed("CannotAct", f"provider {name} is not configured; configured: {known}")
            elif name not in self._launch_memory:
                mine = (each for each in policies if each.spec.provider == name)
                self._launch_memory[name] = policy_status.restore_memory(mine)
        return found

    async def _list_provider(self, name: str) -> tuple[Instance, ...] | _NotListed:
        """List one provider. What it does not list in time is unknown, not gone."""
        try:
            return await self._providers[name].list_instances()
        except LaunchError as exc:
            log.warning("instances_not_listed", provider=name, error=str(exc))
            return _NotListed("CloudFails", f"provider {name} does not list its instances: {exc}")
        except Exception as exc:  # one provider delays only its own policies
            log.exception("instances_not_listed", provider=name)
            return _NotListed("CloudFails", f"provider {name} does not list its instances: {type(exc).__name__}: {exc}")

    def _begin(
        self, policy: AutoscalingPolicy, instances: tuple[Instance, ...], pods: NodePods, strays: frozenset[str]
    ) -> _Round:
        now_s = self._clock()
        provider = self._providers[policy.spec.provider]
        memory = self._policies.get(policy.metadata.name)
        if memory is None:
            memory = _PolicyMemory(spot=SpotObserver.restore(policy.status))
            self._policies[policy.metadata.name] = memory
        census = memory.taker.take(
            policy,
            instances,
            self._cluster.nodes,
            busy=pods.busy,
            now_s=now_s,
            settle_s=provider.traits.settle_s,
            strays=strays,
        )
        offers = read_offers(policy, self._book, self._cluster.view.fleet.snapshot.nodes, now_s)
        found = Findings(
            census,
            offers,
            policy.status.launches,
            policy.status.sequence,
            self._launch_memory[policy.spec.provider],
            problems=list(offers.problems),
            use=measure_use(self._cluster.view.fleet.snapshot),
        )
        self.metrics.interruptions += memory.spot.observe(
            census, found.memory, now_s, generation=policy.metadata.generation, returned=provider.returned
        )
        found.spot = memory.spot
        memory.plans.begin_round()
        acts = policy.spec.enabled and not policy.spec.dryRun and not self._dry_run
        return _Round(policy, provider, found, now_s, memory, acts)

    def _list_ownerless(
        self,
        instances: Mapping[str, tuple[Instance, ...] | _NotListed],
        strays: Mapping[str, Strays],
        pods: NodePods,
    ) -> list[_Round]:
        found = []
        for name, listed in instances.items():
            if isinstance(listed, _NotListed):
                continue
            try:
                found.append(self._begin_ownerless(name, listed, strays[name], pods))
            except Exception:  # policies go on
                self.metrics.errors += 1
                log.exception("instances_without_policy_failed", provider=name)
        return found

    def _begin_ownerless(self, name: str, instances: tuple[Instance, ...], strays: Strays, pods: NodePods) -> _Round:
        """Begin a round for the instances of a provider whose policy is gone: as of a policy with default settings."""
        now_s, provider = self._clock(), self._providers[name]
        memory = self._ownerless.setdefault(name, _PolicyMemory())
        policy = AutoscalingPolicy(ObjectMeta(), AutoscalingPolicySpec(provider=name))
        census = memory.taker.take(
            policy,
            instances,
            self._cluster.nodes,
            busy=pods.busy,
            now_s=now_s,
            settle_s=provider.traits.settle_s,
            strays=strays.ownerless,
        )
        if strays.ownerless - memory.strays:
            log.warning(
                "instances_without_policy", provider=name, count=len(strays.ownerless),
                instances=sorted(strays.ownerless)[:_MOST_LOGGED],
            )  # fmt: skip
        memory.strays = strays.ownerless
        self.metrics.ownerless[name] = len(strays.ownerless)
        # A policy that cannot be read may have the pool.
        acts = not self._dry_run and not self._cluster.has_unread_policies
        return _Round(policy, provider, Findings(census, PolicyOffers((), ())), now_s, memory, acts)

    def _find_demand(self, rounds: Sequence[_Round], ownerless: Sequence[_Round]) -> Demand:
        masked = frozenset(
            each.name
            for one in (*rounds, *ownerless)
            for each in one.found.census.nodes
            if each.node is not None and each.stage in {Stage.JOINED, Stage.BROKEN, Stage.DRAINING, Stage.REMOVING}
        )
        timeout_s = min((one.policy.spec.pendingPodTimeoutSeconds for one in rounds), default=0)
        requests, now_s = self._cluster.requests, self._clock()
        demand = find_demand(
            self._cluster.view,
            masked,
            timeout_s,
            now_s,
            extra=requests.list_asks(self._cluster.view, now_s),
            booked=requests.list_bookings(),
        )
        self.metrics.pending_pods = demand.pending_pods
        self.metrics.use = measure_use(self._cluster.view.fleet.snapshot)
        return demand

    # --- one policy -------------------------------------------------------------------------------------

    async def _run_policy(self, each: _Round, demand: Demand, pods: NodePods, seated: set[str]) -> None:
        found = each.found
        found.pending_pods, found.names = demand.pending_pods, demand.names
        if each.acts:
            await self._mark_nodes(each)
            found.records = launches.settle_unwanted(
                each.policy,
                launches.list_open(found.records, found.census),
                found.census,
                each.memory.unwanted,
                now_s=each.now_s,
                wait_s=2 * each.provider.traits.settle_s,
            )
            each.found.census = launches.without_dropped(found.census, found.records)
            await self._repeat_launches(each)
            await self._replace_broken(each)
        undone = await self._undo_drains(each, demand)
        seated |= await self._scale_up(each, replace(demand, asks=demand.asks if not undone else ()))
        await self._scale_down(each, demand, pods)
        await self._finish(each)

    async def _return_ownerless(self, ownerless: Sequence[_Round], demand: Demand, pods: NodePods) -> None:
        for each in ownerless:
            try:
                await self._run_ownerless(each, demand, pods)
            except Exception:  # policies go on
                self.metrics.errors += 1
                log.exception("instances_without_policy_failed", provider=each.spec.provider)

    async def _run_ownerless(self, each: _Round, demand: Demand, pods: NodePods) -> None:
        """Return instances whose policy is gone, by the rules of scale-down. No policy can say so: the log does."""
        if not each.acts:
            return
        await self._replace_broken(each)
        await self._undo_drains(each, demand)
        await self._scale_down(each, demand, pods)
        provider = each.spec.provider
        for action in each.found.actions:
            log.info(
                "instance_without_policy", provider=provider, action=action.action, pool=action.pool,
                reason=action.reason,
            )  # fmt: skip
            if action.action in _RETURNED:
                self.metrics.count_action("scale_down", "", action.nodes)
        for failure in each.found.failures:
            log.warning("instances_without_policy_stay", provider=provider, error=failure)

    async def _delete_ownerless_nodes(
        self, instances: Mapping[str, tuple[Instance, ...] | _NotListed], policies: set[str]
    ) -> None:
        """Delete Nodes that were removed and whose policy and instance are gone, if every provider has answered."""
        if self._dry_run or self._cluster.has_unread_policies:
            return
        present = set()
        for listed in instances.values():
            if isinstance(listed, _NotListed):
                return
            present |= {each.provider_id for each in listed if each.state is not InstanceState.GONE}
        gone = [
            node
            for node in self._cluster.nodes.values()
            if marks.REMOVAL in node.metadata.annotations
            and marks.OWNER_LABEL in node.metadata.labels
            and node.metadata.labels[marks.OWNER_LABEL] not in policies
            and node.spec.providerID not in present
        ]
        try:
            await removal.Remover(self._client, lambda *_: None).delete_lost(gone, podspec.is_ready)
        except errors.KgweError as exc:
            self.metrics.errors += 1
            log.warning("nodes_without_policy_stay", error=str(exc))

    async def _finish(self, each: _Round) -> None:
        """Write the status, the Events and the metrics."""
        policy, found = each.policy, each.found
        if late := each.provider.describe_late("launch"):
            found.failures.append(late)
        self._launch_memory[policy.spec.provider] = found.memory
        if not each.acts:
            found.note = "dry run: plans are shown and nothing is done" if policy.spec.enabled else "disabled"
        status = policy_status.build_status(policy, found, each.now_s)
        each.policy = self._written[policy.metadata.name] = await policy_status.write_status(
            self._client, policy, status
        )
        for action in found.actions:
            kind: Literal["Normal", "Warning"] = "Normal"
            if action.action in {"LaunchFailed", "Replace"}:
                kind = "Warning"
            note = f"{action.pool}: {action.reason}" if action.pool else action.reason
            self._record(Event(resources.AUTOSCALING_POLICY, policy.metadata, kind, action.action, note, "Scale"))
        self._report_strays(each)
        self._announce_choices(each)
        self._set_metrics(each)

    def _announce_choices(self, each: _Round) -> None:
        """Say on work that waits what is bought for it, when that has changed."""
        choices = {owner: WORDS[verdict.choice] for owner, verdict in each.found.verdicts.items()}
        for owner, choice in choices.items():
            target = self._cluster.view.state.owners.event_target(owner)
            if each.acts and target is not None and each.memory.choices.get(owner) != choice:
                verdict = each.found.verdicts[owner]
                note = f"{choice}: {verdict.message}"
                self._record(Event(target.resource, target.meta, "Normal", verdict.reason, note, "Scale"))
        each.memory.choices = choices

    def _report_strays(self, each: _Round) -> None:
        """Say once that instances of a removed pool are still paid for."""
        strays = each.found.census.strays
        keys = each.found.census.stray_keys
        if keys - each.memory.strays:
            note = policy_status.describe_strays(each.policy, strays)
            meta = each.policy.metadata
            self._record(Event(resources.AUTOSCALING_POLICY, meta, "Warning", "PoolRemoved", note, "Scale"))
        each.memory.strays = keys

    async def _write_records(self, each: _Round) -> None:
        """Write the launch records now: a purchase that is not written is never made."""
        status = msgspec.structs.replace(each.policy.status, launches=each.found.records, sequence=each.found.sequence)
        each.policy = self._written[each.policy.metadata.name] = await policy_status.write_status(
            self._client, each.policy, status
        )

    async def _mark_nodes(self, each: _Round) -> None:
        """Write on nodes what they were bought with, and when their GPUs were ready."""
        for bought in each.found.census.nodes:
            node = bought.node
            if node is None:
                continue
            said, annotations = node.metadata.annotations, {}
            labels = launches.list_missing_labels(each.policy, bought)
            if marks.PROMISED not in said and bought.record is not None and bought.record.promised:
                annotations[marks.PROMISED] = marks.write_promised(bought.record.promised)
            if marks.READY_AT not in said and bought.facts.complete:
                annotations[marks.READY_AT] = timestamp.format_time(each.now_s)
                self.metrics.ready_s.observe(bought.facts.age_s)
            if annotations or labels:
                try:
                    await self._client.patch(
                        resources.NODE,
                        node.metadata.name,
                        {"metadata": {"annotations": annotations, "labels": labels}},
                    )
                except errors.NotFound:
                    continue

    # --- buying -----------------------------------------------------------------------------------------

    async def _repeat_launches(self, each: _Round) -> None:
        """Send launches again whose outcome is not known: after a crash, or after an error of the cloud."""
        found = each.found
        pools = {pool.name for pool in each.spec.nodePools}
        unsent = [record for record in found.records if not record.sent and record.pool in pools]
        for record in unsent:
            offer = Offer(record.pool, record.instanceType, record.zone, record.capacityType)
            if found.memory.find_retry(offer, each.now_s) is None:
                await self._send(each, record)

    async def _send(self, each: _Round, record: LaunchRecord) -> bool:
        """Send one launch and note what became of it. Returns whether something was bought, or may have been."""
        found = each.found
        launched = await launches.send_launch(each.provider, each.policy, record, found.offers, each.now_s)
        found.memory = launches.learn(found.memory, launched)
        others = tuple(one for one in found.records if one.requestID != record.requestID)
        found.records = (*others, launched.record) if launched.record is not None else others
        if launched.setback is not None:
            self.metrics.launch_errors[launched.setback.kind] += 1
            self.metrics.count_action("scale_up", record.capacityType, success=False)
            each.report(
                "LaunchFailed",
                record.pool,
                record.count - len(launched.instances),
                f"{launched.setback.offer}: {launched.setback.kind}: {launched.setback.message}",
            )
        kept = launched.record
        nodes = [one for one in found.census.nodes if one.request_id != record.requestID]
        if kept is not None:
            facts = NodeFacts()
            offer = Offer(kept.pool, kept.instanceType, kept.zone, kept.capacityType)
            nodes += [
                BoughtNode(f"{kept.requestID}/{number}", offer, Stage.REQUESTED, facts, kept.requestID, record=kept)
                for number in range(kept.count)
            ]
        found.census = replace(found.census, nodes=tuple(nodes))
        if launched.instances:
            self.metrics.count_action("scale_up", record.capacityType, len(launched.instances))
            reason = f"{len(launched.instances)} × {record.instanceType} ({record.capacityType}"
            reason += f", {record.zone})" if record.zone else ")"
            each.report("ScaleUp", record.pool, len(launched.instances), f"{reason} for {', '.join(record.owners)}")
        return kept is not None

    async def _scale_up(self, each: _Round, demand: Demand) -> set[str]:
        """Buy for what waits; offers that the cloud refuses are left out, and the rest is planned again."""
        found = each.found
        seated: set[str] = set()
        advisor = SpotAdvisor(self._cluster.view, each.memory.spot.offers, each.now_s, each.memory.plans)
        for _ in range(_FALLBACKS):
            planned = PurchaseRound(
                each.policy, found.offers, found.census, found.memory, each.now_s, advisor=advisor
            ).plan(demand)
            found.orders = found.orders or planned.orders
            found.unmet, found.verdicts = planned.unmet, planned.verdicts
            each.memory.unmet = planned.unmet
            seated = set(planned.settled)
            if not planned.orders or not each.acts:
                return seated
            wait_s = self._find_cooldown(each.policy.status.lastScaleUpTime, each.spec.scaleUpCooldownSeconds, each)
            if wait_s > 0:
                found.note = f"the next scale-up is allowed in {wait_s:.0f} s"
                return seated
            fresh = []
            for order in planned.orders:
                found.sequence += 1
                fresh.append(
                    launches.make_record(
                        each.policy, order, found.sequence, found.offers, names=demand.names, now_s=each.now_s
                    )
                )
            found.records = (*found.records, *fresh)
            await self._write_records(each)
            complete = True
            for record in fresh:
                complete &= await self._send(each, record)
            if complete:
                return seated
        return seated

    @staticmethod
    def _find_cooldown(last: str | None, cooldown_s: float, each: _Round) -> float:
        """Return the seconds until the next action; a clock that was set back does not lengthen it."""
        if last is None:
            return 0.0
        left_s = timestamp.epoch_seconds(last) + cooldown_s - each.now_s
        return min(max(left_s, 0.0), cooldown_s)

    # --- removing ---------------------------------------------------------------------------------------

    async def _replace_broken(self, each: _Round) -> None:
        """Return instances that never became ready, and drain nodes whose GPUs failed."""
        remover = removal.Remover(self._client, each.report)
        for bought in each.found.census.list_in(Stage.BROKEN):
            if bought.facts.has_pods or bought.facts.was_complete:
                await remover.begin_drain(bought, removal.BROKEN, each.now_s, "its GPUs have failed")
                continue
            why = "its GPUs did not come in time" if bought.node is not None else "its node did not join in time"
            each.found.memory = each.found.memory.record(
                Setback(bought.offer, "never-ready", why, each.now_s, generation=each.policy.metadata.generation)
            )
            await remover.remove(bought, each.provider, removal.BROKEN, each.now_s)
            self._drop(each, bought)
        await self._continue_removals(each, remover)
        each.found.failures += remover.failures

    @staticmethod
    def _drop(each: _Round, bought: BoughtNode) -> None:
        """Let a node that goes count as going in the rest of this round."""
        going = replace(bought, stage=Stage.REMOVING)
        nodes = tuple(going if one.key == bought.key else one for one in each.found.census.nodes)
        each.found.census = replace(each.found.census, nodes=nodes)

    @staticmethod
    async def _continue_removals(each: _Round, remover: removal.Remover) -> None:
        """Repeat what was ordered and may not have arrived."""
        ids = [one.instance.provider_id for one in each.found.census.list_in(Stage.REMOVING) if one.instance]
        if ids:
            await remover.terminate(each.provider, ids)
        await remover.delete_lost(each.found.census.lost, podspec.is_ready)

    async def _undo_drains(self, each: _Round, demand: Demand) -> bool:
        """Open drained nodes again for what waits; returns whether one was opened."""
        if not each.acts or not demand.asks:
            return False
        remover = removal.Remover(self._client, each.report)
        unmet = {one.owner for one in each.memory.unmet}
        draining = each.found.census.list_in(Stage.DRAINING)
        asks = removal.without_hopeless(demand.asks, unmet, self._cluster.view) if draining else ()
        undone = removal.find_drains_to_undo(each.found.census, asks, self._cluster.view)
        for bought in undone:
            await remover.undo_drain(bought, "something waits that fits on it")
        return bool(undone)

    async def _scale_down(self, each: _Round, demand: Demand, pods: NodePods) -> None:
        found, spec = each.found, each.spec
        names = [one.name for one in found.census.list_in(Stage.GPU_READY, Stage.IN_USE)]
        idle_s = each.memory.idle.observe(names, pods.busy, each.now_s)
        planned = removal.plan_scale_down(
            each.policy,
            self._cluster.view,
            demand,
            census=found.census,
            pods=pods,
            idle_s=idle_s,
            uses=self._uses(),
            now_s=each.now_s,
        )
        found.kept = dict(planned.kept)
        if not each.acts:
            return
        remover = removal.Remover(self._client, each.report, self._checkpoint)
        for bought in found.census.list_in(Stage.DRAINING):
            if spec.scaleDown.enabled or (bought.node is not None and removal.is_broken(bought.node)):
                await remover.continue_drain(bought, pods, each.policy, each.provider, each.now_s)
            else:
                await remover.undo_drain(bought, "scale-down is switched off")
        found.failures += remover.failures
        found.kept |= {name: ("DrainWaits", why) for name, why in remover.refused.items()}
        if not spec.scaleDown.enabled:
            return
        wait_s = self._find_cooldown(each.policy.status.lastScaleDownTime, spec.scaleDownCooldownSeconds, each)
        if wait_s > 0:
            return
        unmet = {one.owner for one in found.unmet}
        asks = removal.without_hopeless(demand.asks, unmet, self._cluster.view) if planned.removals else ()
        wanted = removal.find_wanted([one.node for one in planned.removals], asks, self._cluster.view)
        found.kept |= dict.fromkeys(wanted, ("Wanted", "something waits that fits on it"))
        by_name = {one.name: one for one in found.census.nodes}
        for each_removal in planned.removals:
            if each_removal.node in wanted:
                continue
            bought = by_name[each_removal.node]
            moves = f"{len(each_removal.moves)} pods have a place elsewhere" if each_removal.moves else "it is idle"
            reason = removal.UNDERUSED if each_removal.moves else removal.IDLE
            await remover.begin_drain(bought, reason, each.now_s, moves)
            self.metrics.count_action("drain", bought.offer.capacity_type)

        await self._return_to_spot(each, pods, remover)

    async def _return_to_spot(self, each: _Round, pods: NodePods, remover: removal.Remover) -> None:
        """Drain one on-demand node whose replica goes back to spot, if its service can spare it."""
        census = each.found.census
        if census.list_in(Stage.DRAINING, Stage.REQUESTED, Stage.LAUNCHING, Stage.JOINED):
            return
        bought = {one.name: one for one in census.list_in(Stage.IN_USE) if one.offer.capacity_type == "on-demand"}
        generation = each.policy.metadata.generation
        usable = [
            one
            for one in each.found.offers.offers
            if each.found.memory.find_block(one.offer, each.now_s, generation) is None
        ]
        lost = {offer: one.lost_s for offer, one in each.memory.spot.offers.items()}
        held = {name: pods.list_held(name) for name in bought}
        node = serving.find_return(self._cluster.view, held, usable, lost, each.now_s) if bought else ""
        if node:
            reason = "its replica goes back to spot"
            await remover.begin_drain(bought[node], removal.TO_SPOT, each.now_s, reason)

    # --- reporting --------------------------------------------------------------------------------------

    def _set_metrics(self, each: _Round) -> None:
        found = each.found
        numbers = PolicyNumbers(
            multi_tier=each.spec.enableMultiTierScaling, predictive=each.spec.enablePredictiveScaling
        )
        for bought in found.census.nodes:
            if bought.stage not in EXISTING:
                continue
            numbers.nodes[bought.offer.capacity_type] += 1
            numbers.stages[bought.stage] += 1
            offer = found.offers.find(bought.offer)
            if offer is not None:
                numbers.cost_micro[bought.offer.capacity_type] += offer.price_micro
                numbers.on_demand_micro += offer.on_demand_micro
        numbers.saved_micro = max(numbers.on_demand_micro - numbers.cost_micro.total(), 0)
        numbers.desired = each.policy.status.desiredNodes or 0
        numbers.orphans = len(found.census.orphans) + len(found.census.strays)
        numbers.unmet = Counter(str(one.reason) for one in found.unmet)
        uses = self._uses()
        low = each.spec.scaleDownThreshold
        numbers.underused = sum(uses.get(one.name, 1.0) < low for one in found.census.list_in(Stage.IN_USE))
        status = each.policy.status
        numbers.up_cooldown_s = self._find_cooldown(status.lastScaleUpTime, each.spec.scaleUpCooldownSeconds, each)
        numbers.down_cooldown_s = self._find_cooldown(
            status.lastScaleDownTime, each.spec.scaleDownCooldownSeconds, each
        )
        for action in found.actions:
            if action.action in _RETURNED:
                self.metrics.count_action("scale_down", "", action.nodes)
        self.metrics.policies[each.policy.metadata.name] = numbers

    async def _write_problem(self, policy: AutoscalingPolicy, problem: str, reason: str = "CannotAct") -> None:
        condition = Condition("Ready", "False", reason, problem[:1024])
        now = timestamp.format_time(self._clock())
        generation = policy.metadata.generation
        conditions = policy_status.set_conditions(policy.status.conditions, (condition,), generation, now)
        status = msgspec.structs.replace(policy.status, conditions=conditions, observedGeneration=generation)
        self._record(Event(resources.AUTOSCALING_POLICY, policy.metadata, "Warning", reason, problem, "Scale"))
        try:
            self._written[policy.metadata.name] = await policy_status.write_status(self._client, policy, status)
        except errors.KgweError as exc:
            log.info("problem_not_written", policy=policy.metadata.name, error=str(exc))

    async def _note_error(self, policy: AutoscalingPolicy, exc: Exception) -> None:
        self.metrics.errors += 1
        self._written.pop(policy.metadata.name, None)
        if isinstance(exc, errors.Conflict | errors.NotFound | errors.Transient):
            log.info("policy_postponed", policy=policy.metadata.name, error=str(exc))
        elif isinstance(exc, errors.KgweError):
            log.warning("policy_failed", policy=policy.metadata.name, error=str(exc))
            await self._write_problem(policy, str(exc), "CloudFails" if isinstance(exc, LaunchError) else "CannotAct")
        else:
            log.error("policy_crashed", policy=policy.metadata.name, exc_info=exc)
            await self._write_problem(policy, f"{type(exc).__name__}: {exc}")


def _without(demand: Demand, seated: set[str]) -> tuple[Ask, ...]:
    return tuple(ask for ask in demand.asks if ask.owner not in seated)


def _claim_pools(policy: AutoscalingPolicy, taken: dict[tuple[str, str], str]) -> str:
    """Return why the policy may not act: another one has one of its pools. The older policy keeps a pool."""
    keys = [(policy.spec.provider, pool.name) for pool in policy.spec.nodePools]
    double = next((key for key in keys if key in taken), None)
    if double is not None:
        return f"node pool {double[1]} belongs to AutoscalingPolicy {taken[double]}; rename or remove it here"
    taken.update(dict.fromkeys(keys, policy.metadata.name))
    return ""


def _version(policy: AutoscalingPolicy) -> int:
    text = policy.metadata.resourceVersion
    return int(text) if text.isdecimal() else 0


def measure_use(snapshot: Snapshot) -> float | None:
    """Return the fraction of GPUs in use; None without GPUs."""
    total = sum(node.usable.bit_count() + len(node.cut) for node in snapshot.nodes)
    if not total:
        return None
    free = float(np.minimum(snapshot.milli, GPU_MILLI).sum()) / GPU_MILLI
    for (number, gpu), slices in snapshot.free_slices.items():
        cut = snapshot.nodes[number].cut[gpu]
        free += len(slices) / max(len(cut), 1)
    return round(min(max(1.0 - free / total, 0.0), 1.0), 4)
