"""Fingerprints: the same work again has the same key; other work has another."""

from hypothesis import given
from hypothesis import strategies as st

from kgwe.model.usage.fingerprint import Shape, generalize_command, generalize_name, make_fingerprint, split_image


def _make(**changes):
    values = {
        "namespace": "ml",
        "owner_kind": "Job",
        "owner_name": "train-29384750",
        "image": "ghcr.io/org/app:1.2",
        "command": ["python", "train.py", "--epochs=10"],
        "labels": {"app": "train", "run": "17"},
        "shape": Shape(milli_gpus=1000),
    }
    return make_fingerprint(**{**values, **changes})


def test_the_next_run_of_the_same_work_has_the_same_key():
    again = _make(
        owner_name="train-29384800",
        image="ghcr.io/org/app@sha256:" + "a" * 64,
        command=["python", "train.py", "--epochs=12"],
        labels={"app": "train", "run": "18"},
    )
    assert again.key == _make().key
    assert again.version != _make().version


def test_other_work_has_another_key():
    others = [
        _make(namespace="other"),
        _make(owner_kind="Deployment"),
        _make(owner_name="serve"),
        _make(image="ghcr.io/org/other:1.2"),
        _make(command=["python", "eval.py"]),
        _make(labels={"app": "serve"}),
        _make(shape=Shape(milli_gpus=2000)),
    ]
    assert len({each.key for each in [_make(), *others]}) == len(others) + 1


def test_the_key_is_the_same_in_every_process():
    # History is stored under this key: a change of the rule loses it.
    assert _make().key == "5cda5cdcf4fa9cab417c04677cd22ec3"


def test_images_are_split_at_the_tag_not_at_the_port():
    assert split_image("registry:5000/org/app:1.2") == ("registry:5000/org/app", "1.2")
    assert split_image("registry:5000/org/app") == ("registry:5000/org/app", "")
    assert split_image("app:1@sha256:ab") == ("app", "1")


def test_a_long_name_of_suffixes_takes_no_time():
    """Time was exponential in the number of suffixes: a pod of this name stopped the optimizer."""
    name = "a" + "-22222" * 41 + "-x"
    assert generalize_name(name) == name
    assert generalize_name("a" + "-22222" * 5) == "a"
    assert len(generalize_name("-22222" * 100_000)) > 500_000


def test_generated_suffixes_are_removed_from_names():
    assert generalize_name("train-29384750-x7k2p") == "train"
    assert generalize_name("web-5d8f9c7b6d-abcde") == "web-5d8f9c7b6d-abcde"
    assert generalize_name("web-5d8f9c7b6d-bcdfg") == "web"
    assert generalize_name("-12345") == "-12345"


@given(st.text(max_size=300), st.lists(st.text(max_size=300), max_size=50))
def test_any_text_has_a_key(name, command):
    made = _make(owner_name=name, image=name, command=command)
    assert len(made.key) == 32
    assert len(generalize_command(command)) <= 32 * 129
