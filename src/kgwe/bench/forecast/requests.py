"""Recorded GenAI requests as queries of the run-time forecast."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from kgwe.bench.forecast.data import parse_number, read_rows
from kgwe.forecast.runtime.query import Query
from kgwe.forecast.runtime.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COLUMNS: Final = (
    "gmt_create",
    "predict_type",
    "exec_time_seconds",
    "groupId",
    "prompt_length",
    "negative_prompt_length",
    "num_images_per_prompt",
    "num_inference_steps",
    "checkpoint_model_version_id",
    "num_lora",
)
SCHEMA: Final = Schema(
    ("request", "user's shape", "shape and model", "model", "shape"),
    ("prompt length", "negative prompt length", "images", "steps", "LoRAs", "type"),
)
_LANE: Final = 3
_SHARED: Final = 2
_TYPES: Final = {"TXT_2_IMG": 0.0, "IMG_2_IMG": 1.0, "INPAINTING": 2.0}


@dataclass(frozen=True, slots=True)
class Request:
    """One request: what was known when it was created, and how long it took."""

    query: Query
    lasted_s: float


def read_requests(paths: Sequence[Path]) -> tuple[list[Request], list[int], int]:
    """Return the requests of files that follow each other, the number of each file, and how many rows were skipped.

    A row without a usable time or duration is skipped. Requests are ordered by time.
    """
    found: list[tuple[float, int, Request]] = []
    skipped = 0
    for number, path in enumerate(paths):
        for row in read_rows(path, COLUMNS):
            request = _read_request(row)
            if request is None:
                skipped += 1
            else:
                found.append((request.query.submitted_s, number, request))
    found.sort(key=lambda item: item[0])
    return [item[2] for item in found], [item[1] for item in found], skipped


def _read_request(row: dict[str, str]) -> Request | None:
    lasted = parse_number(row["exec_time_seconds"])
    try:
        created = datetime.fromisoformat(row["gmt_create"])
    except (TypeError, ValueError):
        return None
    if not math.isfinite(lasted) or lasted < 0:
        return None
    kind, user, model = row["predict_type"], row["groupId"], row["checkpoint_model_version_id"]
    shape = "|".join(
        (row["num_images_per_prompt"], row["num_inference_steps"], row["num_lora"], kind),
    )
    numbers = (
        parse_number(row["prompt_length"]),
        parse_number(row["negative_prompt_length"]),
        parse_number(row["num_images_per_prompt"]),
        parse_number(row["num_inference_steps"]),
        parse_number(row["num_lora"]),
        _TYPES.get(kind, math.nan),
    )
    keys = (
        f"request|{user}|{model}|{shape}|{row['prompt_length']}",
        f"user|{user}|{model}|{shape}",
        f"config|{model}|{shape}",
        f"model|{model}|{row['num_lora']}",
        f"shape|{shape}",
    )
    submitted = created.replace(tzinfo=created.tzinfo or UTC).timestamp()
    return Request(Query(submitted, keys, user, _LANE, numbers, _SHARED), lasted)
