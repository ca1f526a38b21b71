import builtins

import msgspec
import numpy as np
import pytest

from kgwe.forecast.runtime.artifact import RuntimeModel, dump_model, load_model
from kgwe.forecast.runtime.query import QUANTILES
from kgwe.forecast.runtime.schema import Schema
from kgwe.forecast.runtime.training import Untrained, train_model
from kgwe.forecast.runtime.trees import BadModel, compile_models


def test_compiled_trees_answer_as_lightgbm_does(model, training_set):
    lightgbm = pytest.importorskip("lightgbm", exc_type=ImportError)
    forest = compile_models(model.texts, training_set.features.shape[1])
    rows = training_set.features[::37]
    expected = [lightgbm.Booster(model_str=text).predict(rows, num_threads=1) for text in model.texts]
    found = np.array([forest.predict(row) for row in rows])
    assert found == pytest.approx(np.array(expected).T, abs=1e-9)


def test_the_moves_of_all_features_add_up_to_the_answer(model, training_set):
    forest = compile_models(model.texts, training_set.features.shape[1])
    row = training_set.features[700]
    values, moves = forest.explain(row, 1)
    ends = np.append(forest.starts, len(forest.roots))
    base = forest.value[forest.roots[ends[1] : ends[2]]].sum()
    assert base + moves.sum() == pytest.approx(values[1], abs=1e-9)
    assert values == pytest.approx(forest.predict(row))


def test_a_model_survives_being_written_and_read(model, training_set):
    text = dump_model(model)
    again = load_model(text, training_set.schema)
    assert again == model
    assert len(again.texts) == len(QUANTILES)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_model_is_refused(model, training_set, share):
    text = dump_model(model)
    with pytest.raises(BadModel, match=r"train|roll back"):
        load_model(text[: int(len(text) * share)], training_set.schema)


def test_a_damaged_model_is_refused(model, training_set):
    text = dump_model(model)
    with pytest.raises(BadModel, match="damaged"):
        load_model(text[:-200] + "9" + text[-199:], training_set.schema)


def test_a_model_of_another_schema_is_refused(model):
    with pytest.raises(BadModel, match="other features"):
        load_model(dump_model(model), Schema(("job",)))


def test_a_model_of_another_version_is_refused(model, training_set):
    newer = RuntimeModel(msgspec.structs.replace(model.header, version=99), model.texts)
    with pytest.raises(BadModel, match="99"):
        load_model(dump_model(newer), training_set.schema)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("left_child=", "left_child=999 "),
        ("threshold=", "threshold=x "),
        ("num_leaves=", "num_leaves=77"),
        ("max_feature_idx=", "max_feature_idx=9"),
    ],
)
def test_damaged_trees_are_refused(model, training_set, old, new):
    with pytest.raises(BadModel):
        compile_models([model.texts[1].replace(old, new)], training_set.features.shape[1])


def test_the_same_seed_trains_the_same_model(model, training_set):
    assert train_model(training_set, now_s=1e6) == model


def test_few_runs_train_no_model(training_set):
    few = type(training_set)(
        training_set.schema,
        training_set.features[:50],
        training_set.lasted_s[:50],
        training_set.has_ended[:50],
        training_set.submitted_s[:50],
    )
    assert isinstance(train_model(few, now_s=0.0), Untrained)


def test_without_lightgbm_the_reason_is_a_value(training_set, monkeypatch):
    real = builtins.__import__

    def refuse(name, *arguments, **options):
        if name == "lightgbm":
            raise OSError("libgomp.so.1: cannot open shared object file")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    answer = train_model(training_set, now_s=0.0)
    assert isinstance(answer, Untrained)
    assert "libgomp" in answer.reason
