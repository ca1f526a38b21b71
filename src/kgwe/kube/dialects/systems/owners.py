"""Gangs by the controller of their pods: Job, JobSet and Kubeflow. LeaderWorkerSet has a module of its own.

Some of them create pods one after the other. A gang that waited for pods which wait for it would never start, so what
comes later is a gang of its own (the ordered parts of a JobSet, a launcher that waits for its workers), or goes by what
is known of it (`Followers`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kgwe.kube.api.resources import JOB as JOB_KIND
from kgwe.kube.api.resources import Resource
from kgwe.kube.dialects import kinds, requests, values
from kgwe.kube.dialects.dialect import Dialect
from kgwe.kube.dialects.membership import Followers, Key, Membership, Size, TopologyRequest, Unreadable
from kgwe.placement.gang.request import Segment

if TYPE_CHECKING:
    from kgwe.kube.api import core, gangs
    from kgwe.kube.dialects.groups import Groups

_COMPLETION_INDEX: Final = ("batch.kubernetes.io/job-completion-index",)

# --- Job ------------------------------------------------------------------------------------------------


def _job_key(pod: core.Pod, groups: Groups) -> Key | None:
    """The key of a Job's gang, only if the Job asks for it: pods of most Jobs are independent."""
    owner = pod.metadata.controller
    if owner is None or owner.kind != "Job" or not owner.apiVersion.startswith("batch/"):
        return None
    named = requests.read_annotations(pod, groups)(requests.GANG) not in ("", "false")
    asked = named or requests.has_requests(pod, groups)
    return Key(pod.metadata.namespace, "Job.batch", owner.name) if asked else None


def _read_job(pod: core.Pod, key: Key, groups: Groups) -> Membership:
    owner = pod.metadata.controller
    job: core.Job = groups.get(key.namespace, owner.name if owner else key.name, JOB_KIND)
    count = max(_at_once(job.spec.parallelism, job.spec.completions, job.status.succeeded), 1)
    return Membership(key, JOB.name, Size(count, count), index=values.read_index(pod), done=0)


def _at_once(parallelism: int, completions: int | None, succeeded: int = 0) -> int:
    """Pods of a Job that run at the same time."""
    return parallelism if completions is None else min(parallelism, max(completions - succeeded, 0))


def count_succeeded(pod: core.Pod, groups: Groups) -> int | None:
    """How many pods of the pod's Job have succeeded; None: its Job is not known."""
    jobs: list[core.Job] = [owner for kind, owner in groups.owners(pod) if kind == JOB_KIND]
    return jobs[0].status.succeeded if jobs else None


JOB: Final = Dialect("job", requests.KEYS, _job_key, _read_job)


# --- JobSet ---------------------------------------------------------------------------------------------

_JOB_SET: Final = "jobset.sigs.k8s.io/"
_EXCLUSIVE: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_BY_SELECTOR: Final = "alpha.jobset.sigs.k8s.io/node-selector"


def _job_set_key(pod: core.Pod, groups: Groups) -> Key | None:
    name = values.read_key(pod, _JOB_SET + "jobset-name")
    if not name:
        return None
    found: gangs.JobSet | None = groups.find(pod.metadata.namespace, name, kinds.JOB_SET)
    own = values.read_key(pod, _JOB_SET + "replicatedjob-name")
    later = found is not None and own not in [each.name for each in _first_jobs(found)]
    return Key(pod.metadata.namespace, "JobSet.jobset.x-k8s.io", f"{name}/{own}" if later else name)


def _first_jobs(job_set: gangs.JobSet) -> list[gangs.ReplicatedJob]:
    """The parts that are created at once; every other one is created when those before it run."""
    parts = job_set.spec.replicatedJobs
    policy = job_set.spec.startupPolicy
    if policy is not None and policy.startupPolicyOrder == "InOrder":
        return list(parts[:1])
    return [part for part in parts if not part.dependsOn]


def _job_set(pod: core.Pod, key: Key, groups: Groups) -> Membership:
    name, own = (values.read_key(pod, _JOB_SET + word) for word in ("jobset-name", "replicatedjob-name"))
    found: gangs.JobSet = groups.get(key.namespace, name, kinds.JOB_SET)
    part = next((each for each in found.spec.replicatedJobs if each.name == own), None)
    if part is None:
        raise Unreadable(
            f"JobSet {key.namespace}/{name} has no replicatedJob {own!r}, which pod {pod.metadata.name} names"
        )
    together = _first_jobs(found) if key.name == name else [part]
    left = {each.name: _count_left(key.namespace, name, each, groups) for each in together}
    total = max(sum(left.values()), 1)
    child, inside = values.read_index(pod, (_JOB_SET + "job-index",)), values.read_index(pod, _COMPLETION_INDEX)
    wish, followers = _read_exclusive(pod, groups, _child_pods(part), inside)
    return Membership(
        key,
        JOB_SET.name,
        Size(total, total),
        roles=tuple((role, count) for role, count in left.items() if count),
        role=own,
        index=None if child is None or inside is None else child * _child_pods(part) + inside,
        wish=wish,
        followers=followers,
        done=0,
    )


def _child_pods(part: gangs.ReplicatedJob) -> int:
    return max(_at_once(part.template.spec.parallelism, part.template.spec.completions), 1)


def _count_left(namespace: str, job_set: str, part: gangs.ReplicatedJob, groups: Groups) -> int:
    """Pods of one part that have not succeeded."""
    left = 0
    for number in range(part.replicas):
        child: core.Job | None = groups.find(namespace, f"{job_set}-{part.name}-{number}", JOB_KIND)
        left += max(_child_pods(part) - (child.status.succeeded if child else 0), 0)
    return left


def _read_exclusive(
    pod: core.Pod, groups: Groups, size: int, index: int | None
) -> tuple[TopologyRequest, Followers | None]:
    """Each child Job inside one domain; its other pods are admitted only once the first has a node."""
    topology = pod.metadata.annotations.get(_EXCLUSIVE, "")
    if not topology:
        return TopologyRequest(), None
    level = groups.levels.find_level(topology, _EXCLUSIVE)
    if topology in pod.spec.nodeSelector:
        # It follows an existing pod; its node selector enforces the domain.
        return TopologyRequest(exclusive=level), None
    leads = index == 0 and size > 1 and _BY_SELECTOR not in pod.metadata.annotations
    return TopologyRequest(segments=(Segment(size, level),), exclusive=level), Followers(
        size - 1, pod
    ) if leads else None


JOB_SET: Final = Dialect("jobset", frozenset({values.domain_of(_JOB_SET)}), _job_set_key, _job_set)


# --- Kubeflow -------------------------------------------------------------------------------------------

_TRAINING: Final = "training.kubeflow.org/"
_LAUNCHER: Final = "launcher"


def _training_key(pod: core.Pod, groups: Groups) -> Key | None:
    name = values.read_key(pod, _TRAINING + "job-name")
    if not name:
        return None
    found = groups.find(pod.metadata.namespace, name, *_training_kinds(pod))
    if found is not None and _read_role(pod) == _LAUNCHER and _launches_later(found):
        name = f"{name}/{_LAUNCHER}"
    return Key(pod.metadata.namespace, "TrainingJob.kubeflow.org", name)


def _read_role(pod: core.Pod) -> str:
    return (values.read_key(pod, _TRAINING + "replica-type") or values.read_key(pod, _TRAINING + "job-role")).lower()


def _training_kinds(pod: core.Pod) -> list[Resource[Any]]:
    """The kinds to look in: that of the pod's owner first, because names are not unique across kinds."""
    owner = pod.metadata.controller
    return sorted(kinds.TRAINING_JOBS, key=lambda kind: owner is None or kind.kind != owner.kind)


def _launches_later(job: gangs.TrainingJob) -> bool:
    return job.spec.launcherCreationPolicy == "WaitForWorkersReady"


def _read_training_job(pod: core.Pod, key: Key, groups: Groups) -> Membership:
    name = values.read_key(pod, _TRAINING + "job-name")
    found: gangs.TrainingJob = groups.get(key.namespace, name, *_training_kinds(pod))
    index = values.read_index(pod, (_TRAINING + "replica-index",))
    if key.name != name:
        return Membership(key, TRAINING.name, Size(1, 1), role=_LAUNCHER, index=index)
    left = {role: count - found.status.count_succeeded(role) for role, count in found.spec.replicas.items()}
    counts = {role: count for role, count in left.items() if count > 0}
    if _launches_later(found):
        counts.pop(_LAUNCHER, None)
    total = sum(counts.values())
    if not total:
        raise Unreadable(f"{key.title} has no replicas that KGWE can read")
    least = min(_training_least(found.spec, total), total)
    return Membership(
        key,
        TRAINING.name,
        Size(least, total),
        roles=_with_slack(counts, total - least),
        role=_read_role(pod),
        index=index,
        done=0,
    )


def _training_least(spec: gangs.TrainingJobSpec, total: int) -> int:
    policy = spec.runPolicy.schedulingPolicy
    if policy is not None and policy.minAvailable:
        return max(policy.minAvailable, 1)
    if spec.elasticPolicy is not None and spec.elasticPolicy.minReplicas:
        return max(spec.elasticPolicy.minReplicas, 1)
    return total


def _with_slack(counts: dict[str, int], slack: int) -> tuple[tuple[str, int], ...]:
    """The fewest pods of each role, if only the largest role may have fewer."""
    largest = max(counts, key=lambda role: counts[role])
    return tuple((role, max(count - slack, 1) if role == largest else count) for role, count in counts.items())


TRAINING: Final = Dialect("kubeflow", frozenset({values.domain_of(_TRAINING)}), _training_key, _read_training_job)
