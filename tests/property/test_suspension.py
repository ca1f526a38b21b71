"""Whatever users write into annotations and owner references: nothing is raised, and no bound is exceeded."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from kgwe.cluster.suspension import marks, owner_kinds
from kgwe.cluster.suspension.suspender import MOST_REPLICAS, limit_replicas
from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta, OwnerReference

KEYS = (*marks.RECORD, *marks.NOTICE, marks.KEEP_UNTIL)
TEXTS = st.one_of(
    st.text(max_size=600),
    st.integers().map(str),
    st.floats().map(str),
    st.datetimes().map(lambda at: at.isoformat() + "Z"),
    st.sampled_from(["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "IdleGPU: idle", "\n\n"]),
)
NOTES = st.dictionaries(st.sampled_from(KEYS), TEXTS)
COUNTS = st.none() | st.integers(0, 2**31)


@given(NOTES, st.floats(0, 4e9))
def test_any_annotations_can_be_read(notes: dict[str, str], now_s: float):
    record = marks.read_record(notes)
    assert record is None or record.replicas is None or record.replicas >= 0
    notice = marks.read_notice(notes)
    assert notice is None or notice.saving_per_hour is None or notice.saving_per_hour >= 0
    until = marks.kept_until_s(notes, now_s)
    assert until is None or now_s < until <= now_s + marks.MOST_KEEP_S
    meta = ObjectMeta(name="w", namespace="n", annotations=notes)
    reason, message = marks.describe_suspension(resources.GPU_WORKLOAD, meta)
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", reason), "what the API server allows"
    assert "\n" not in message
    assert len(message) < 1024


@given(COUNTS, COUNTS)
def test_never_more_replicas_are_restored_than_the_ledger_or_the_bound_allows(recorded: int | None, ledger: int | None):
    restored = limit_replicas(recorded, ledger)
    assert (restored is None) == (recorded is None and ledger is None)
    assert restored is None or 0 <= restored <= (MOST_REPLICAS if ledger is None else ledger)


@given(
    st.sampled_from([each.resource.api_version for each in owner_kinds.KINDS]) | st.text(max_size=40),
    st.sampled_from([each.resource.kind for each in owner_kinds.KINDS]),
    st.text(max_size=300) | st.sampled_from(["a", "a/b", "..", "a?x=y", "a%2Fb", "-a"]),
)
def test_a_reference_never_leads_out_of_the_collection_of_its_kind(api_version: str, kind: str, name: str):
    reference = OwnerReference(api_version, kind, name, "uid", controller=True)
    found = owner_kinds.kind_of_reference(reference)
    if found is not None:
        path = found.resource.path(namespace="team", name=name)
        assert re.fullmatch(r"/apis/[a-z0-9.-]+/v[0-9a-z]+/namespaces/team/[a-z]+/[a-z0-9.-]+", path)
        assert path.endswith(f"/{found.resource.plural}/{name}")
