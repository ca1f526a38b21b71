"""A trained model as text: one line of JSON, then the LightGBM models. Nothing in it is executed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe.forecast.runtime.conformal import ConformalTable  # noqa: TC001 -- msgspec reads it
from kgwe.forecast.runtime.query import QUANTILES
from kgwe.forecast.runtime.shortest import ShortestTable  # noqa: TC001 -- msgspec reads it
from kgwe.forecast.runtime.trees import BadModel

if TYPE_CHECKING:
    from kgwe.forecast.runtime.schema import Schema

FORMAT: Final = "kgwe-runtime-model"
VERSION: Final = 3


class ModelHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a model without its trees: enough to accept, compare and roll back."""

    format: str = FORMAT
    version: int = VERSION
    feature_schema: str
    """Hash of the names of the features."""
    trained_at_s: float
    rows: int
    first_s: float
    last_s: float
    """Submission of the first and last run it was trained on."""
    shift: float
    """Added to the median, in log seconds."""
    training_error: float
    """Mean absolute error in log seconds on runs after the training part."""
    metrics: dict[str, float]
    table: ConformalTable
    shortest: ShortestTable
    lengths: tuple[int, ...]
    """Characters of each model text, in the order of the quantiles."""
    checksum: str


class RuntimeModel(msgspec.Struct, frozen=True):
    """A model: its header, and one LightGBM text per quantile."""

    header: ModelHeader
    texts: tuple[str, ...]


def dump_model(model: RuntimeModel) -> str:
    """Return the model as text."""
    return msgspec.json.encode(model.header).decode() + "\n" + "".join(model.texts)


def load_model(text: str, schema: Schema) -> RuntimeModel:
    """Return the model of a text. Raise BadModel if it is truncated, damaged or has another schema."""
    line, _, body = text.partition("\n")
    try:
        header = msgspec.json.decode(line, type=ModelHeader)
    except (msgspec.MsgspecError, UnicodeError) as problem:
        raise BadModel(f"not a run-time model of KGWE ({problem}); train it again") from problem
    if header.format != FORMAT or header.version != VERSION:
        raise BadModel(f"the model has format {header.format} {header.version}, not {FORMAT} {VERSION}; train it again")
    if header.feature_schema != schema.digest:
        raise BadModel("the model was trained with other features; train it again or roll back")
    if len(header.lengths) != len(QUANTILES) or digest_texts((body,)) != header.checksum:
        raise BadModel("the model is truncated or damaged; roll back or train it again")
    texts = []
    for length in header.lengths:
        texts.append(body[:length])
        body = body[length:]
    return RuntimeModel(header, tuple(texts))


def digest_texts(texts: tuple[str, ...]) -> str:
    """Return the checksum of model texts."""
    return hashlib.blake2b("".join(texts).encode(), digest_size=16).hexdigest()
