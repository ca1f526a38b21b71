"""A card's health: into trouble at once, out of it slowly, and never by silence."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kgwe.model.gpu.driver_data import Faults, Link, LinkErrors, Reading, Throttle
from kgwe.model.health import transitions as watching
from kgwe.model.health.health import DEFAULTS, HealthAssessment, HealthState, Policy, Watch, assess_health
from kgwe.model.health.xids import XIDS, Action, XidClass, look_up

DOCUMENT = Path(__file__).parents[4] / "docs" / "health.md"
T0 = 1_800_000_000.0
EVERY_S = 5.0
CALM = Reading("GPU-1", gpu_c=50, slowdown_c=90, energy_j=1000.0, faults=Faults(ecc_corrected=0, ecc_uncorrected=0))


class Card:
    """A card that is read every five seconds."""

    def __init__(self) -> None:
        self.now_s = T0
        self.watch = Watch.new(T0)
        self.reading = CALM

    def listen(self, seconds: float, **changes: object) -> HealthAssessment:
        self.reading = replace(self.reading, **changes)  # type: ignore[arg-type]  # names of fields, as given
        for _ in range(max(int(seconds / EVERY_S), 1)):
            self.now_s += EVERY_S
            self.reading = replace(self.reading, energy_j=(self.reading.energy_j or 0.0) + 500)
            self.watch = watching.on_reading(self.watch, self.reading, self.now_s)
        return self.verdict

    def silence(self, seconds: float) -> HealthAssessment:
        for _ in range(int(seconds / EVERY_S)):
            self.now_s += EVERY_S
            self.watch = watching.on_silence(self.watch, self.now_s)
        return self.verdict

    def xid(self, number: int) -> HealthAssessment:
        self.watch = watching.on_xid(self.watch, number, self.now_s)
        return self.verdict

    def links(self, up: str) -> HealthAssessment:
        """`+-`: the first is up, the second down."""
        links = [Link(index, state == "+") for index, state in enumerate(up)]
        self.watch = watching.on_links(self.watch, links, self.now_s)
        return self.verdict

    @property
    def verdict(self) -> HealthAssessment:
        return assess_health(self.watch)


@pytest.fixture
def card() -> Card:
    card = Card()
    card.listen(60)
    return card


# --- the table ------------------------------------------------------------------------------------------


def test_what_the_device_plugin_leaves_in_service_stays_in_service():
    for number in (13, 31, 43, 45, 68, 109):
        assert look_up(number).xid_class is XidClass.APPLICATION


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 158])
def test_what_the_catalogue_answers_with_a_reset_or_restart_is_fatal(number):
    found = look_up(number)
    assert found.xid_class is XidClass.FATAL
    assert found.action in (Action.RESET, Action.RESTART_NODE)


def test_a_number_nobody_has_explained_is_fatal():
    assert look_up(9999).xid_class is XidClass.FATAL


def test_reasons_are_words_for_a_condition():
    for found in XIDS.values():
        assert found.reason.isalnum()
        assert found.reason[0].isupper()
        assert found.words


def test_the_documentation_lists_every_number_as_it_is():
    rows = re.findall(r"^\| ([\d, -]+) \| (\w+) \| `(\w+)` \| (.+) \| (\w+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    told: dict[int, list[str]] = {}
    for numbers, *meaning in rows:
        for span in numbers.split(", "):
            first, _, last = span.partition("-")
            told |= dict.fromkeys(range(int(first), int(last or first) + 1), meaning)
    assert told == {number: [xid.xid_class, xid.reason, xid.words, xid.action] for number, xid in XIDS.items()}


# --- states ---------------------------------------------------------------------------------------------


def test_a_card_is_unknown_until_it_has_spoken():
    card = Card()
    assert (card.verdict.state, card.verdict.reason) == ("Unknown", "NotReadYet")
    assert card.silence(600).state == "Unknown"
    card.watch = watching.on_reading(card.watch, Reading("GPU-1"), card.now_s)
    assert card.verdict.state == "Unknown", "a reading in which nothing is known is no answer"
    assert card.listen(5).state == "Healthy"


def test_a_fatal_error_condemns_at_once_and_until_a_reset(card):
    found = card.xid(79)
    assert (found.state, found.reason, found.action) == ("Unhealthy", "FallenOffTheBus", Action.RESTART_NODE)
    assert (found.since_s, found.last_xid) == (card.now_s, 79)
    assert card.listen(7200).state == "Unhealthy"
    card.watch = watching.on_reset(card.watch, card.now_s)
    assert card.verdict.state == "Unknown", "after a reset it has to speak first"
    assert card.listen(5, energy_j=0.0).state == "Healthy"


def test_an_energy_counter_that_starts_anew_shows_a_reset(card):
    card.xid(95)
    assert card.listen(5, energy_j=0.0).state == "Unhealthy", "one odd reading shows nothing"
    assert card.listen(5).state == "Healthy"


def test_a_single_odd_figure_of_energy_is_no_reset(card):
    card.xid(95)
    before = card.reading.energy_j
    card.listen(5, energy_j=0.0)
    assert card.listen(60, energy_j=before).state == "Unhealthy"


def test_an_error_of_the_application_is_only_remembered(card):
    found = card.xid(31)
    assert (found.state, found.last_xid) == ("Healthy", 31)
    assert card.watch.incidents[-1].reason == "GPUMemoryPageFault"


def test_a_contained_error_degrades_and_passes(card):
    found = card.xid(94)
    assert (found.state, found.action) == ("Degraded", Action.RESTART_APPLICATION)
    assert card.listen(DEFAULTS.contained_quiet_s - 60).state == "Degraded"
    assert card.listen(120).state == "Healthy"


def test_contained_errors_that_repeat_condemn(card):
    for _ in range(2):
        assert card.xid(94).state == "Degraded"
        card.xid(63)  # told in another way in the same moment: still one
        card.listen(600)
    found = card.xid(94)
    assert (found.state, found.reason, found.action) == ("Unhealthy", "RepeatedContainedErrors", Action.RESET)
    assert card.listen(7200).state == "Unhealthy"


def test_uncorrected_memory_degrades(card):
    faults = Faults(ecc_corrected=0, ecc_uncorrected=2)
    found = card.listen(5, faults=faults)
    assert (found.state, found.reason) == ("Degraded", "UncorrectedECCErrors")


def test_a_failed_remap_condemns_as_long_as_the_card_says_so(card):
    found = card.listen(5, faults=Faults(has_remap_failed=True, is_remap_pending=True))
    assert (found.state, found.reason, found.action) == ("Unhealthy", "RowRemapFailed", Action.REPLACE)
    assert "1 more" in found.message
    card.watch = watching.on_reset(card.watch, card.now_s)
    assert card.listen(5).state == "Unhealthy", "a reset did not help"
    assert card.listen(DEFAULTS.quiet_s + 10, faults=Faults()).state == "Healthy"


def test_a_pending_remap_leaves_the_card_in_service(card):
    found = card.listen(5, faults=Faults(is_remap_pending=True))
    assert (found.state, found.reason, found.action) == ("Degraded", "RowRemapPending", Action.RESET)


def test_corrected_errors_matter_by_their_rate(card):
    for total in range(0, 500, 10):
        card.listen(5, faults=Faults(ecc_corrected=total))
    assert card.verdict.state == "Healthy"
    found = card.listen(5, faults=Faults(ecc_corrected=2000))
    assert (found.state, found.reason) == ("Degraded", "CorrectedECCErrors")


def test_a_lost_card_that_is_back_must_prove_itself(card):
    assert card.listen(5, is_lost=True).reason == "GPULost"
    assert card.listen(600, is_lost=False).state == "Unhealthy"
    assert card.listen(DEFAULTS.contained_quiet_s).state == "Healthy"


def test_silence_makes_unknown_and_speech_ends_it(card):
    assert card.silence(DEFAULTS.silent_s).state == "Healthy"
    assert (card.silence(10).state, card.verdict.reason) == ("Unknown", "DriverSilent")
    assert card.listen(5).state == "Healthy"


def test_a_condemned_card_that_falls_silent_stays_condemned(card):
    card.xid(48)
    assert card.silence(3600).state == "Unhealthy"


def test_silence_is_no_quiet_time(card):
    card.xid(94)
    card.silence(2 * DEFAULTS.contained_quiet_s)
    assert card.listen(5).state == "Degraded"


# --- heat -----------------------------------------------------------------------------------------------


def test_heat_must_last_and_must_go_before_it_is_over(card):
    assert card.listen(DEFAULTS.hot_s - 10, gpu_c=90).state == "Healthy"
    assert card.listen(20).reason == "Overheated"
    assert card.listen(3600, gpu_c=85).state == "Degraded", "not cool enough yet"
    assert card.listen(DEFAULTS.quiet_s - 10, gpu_c=80).state == "Degraded"
    assert card.listen(20).state == "Healthy"


def test_a_spike_of_heat_is_nothing(card):
    for _ in range(20):
        card.listen(DEFAULTS.hot_s - 10, gpu_c=95)
        assert card.listen(5, gpu_c=85).state == "Healthy"


def test_the_hardware_that_slows_down_is_hot_whatever_the_thermometer_says(card):
    found = card.listen(120, gpu_c=None, slowdown_c=None, throttle=Throttle.THERMAL_HARDWARE | Throttle.POWER_CAP)
    assert found.reason == "Overheated"
    assert card.listen(DEFAULTS.quiet_s + 10, throttle=Throttle.NONE).state == "Healthy"


# --- links ----------------------------------------------------------------------------------------------


def test_a_link_that_was_up_and_is_down_degrades_until_it_is_up_for_a_while(card):
    assert card.links("++-").state == "Healthy", "the third may lead nowhere"
    found = card.links("+--")
    assert (found.state, found.reason, found.message) == ("Degraded", "NVLinkDown", "NVLink 1 is down")
    assert card.listen(7200).state == "Degraded"
    card.links("++-")
    assert card.listen(DEFAULTS.quiet_s - 10).state == "Degraded"
    assert card.listen(20).state == "Healthy"


def test_a_link_that_comes_and_goes_flaps(card):
    card.links("+")
    for up in "-+-":
        card.listen(30)
        card.links(up)
        assert "NVLinkFlapping" not in [each.reason for each in card.watch.troubles]
    card.listen(30)
    card.links("+")
    assert "NVLinkFlapping" in [each.reason for each in card.watch.troubles]


def test_errors_of_a_link_count_by_their_rate_and_are_charged_to_the_link(card):
    for total in range(0, 400, 4):
        card.listen(60, faults=Faults(links=(LinkErrors(3, replays=total),)))
    assert card.verdict.state == "Healthy"
    found = card.listen(5, faults=Faults(links=(LinkErrors(3, replays=700, crc=5),)))
    assert (found.state, found.reason) == ("Degraded", "NVLinkErrors")
    assert card.watch.links[3].record.demerits > 0
    assert card.watch.record.demerits == 0


def test_what_is_kept_of_a_flood_is_bounded(card):
    policy = Policy(same_s=0.0)
    for number in range(500):
        card.now_s += 1
        card.watch = watching.on_xid(card.watch, (63, 94, 1000 + number)[number % 3], card.now_s, policy)
    assert len(card.watch.contained_s) <= policy.contained_most
    assert len(card.watch.incidents) == policy.incidents_most
    assert len(card.watch.troubles) == policy.troubles_most


# --- clocks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leap_s", [-1e9, -3600.0, 3600.0, 1e9])
def test_a_leap_of_the_clock_neither_heals_nor_condemns(card, leap_s):
    card.now_s += leap_s
    assert card.listen(5).state == "Healthy"
    card.xid(94)
    card.now_s += leap_s
    assert card.listen(5).state == "Degraded"
    card.listen(DEFAULTS.contained_quiet_s + 60)
    assert card.verdict.state == "Healthy"
    card.now_s += leap_s
    assert card.silence(5).state == "Healthy"
    card.now_s += leap_s
    assert card.listen(5, gpu_c=95).state == "Healthy", "not hot for a minute"


def test_the_time_told_is_that_on_the_wall(card):
    card.now_s += 1e6
    assert card.xid(79).since_s == card.now_s


# --- reliability ----------------------------------------------------------------------------------------


def test_one_failure_that_shows_in_many_ways_is_charged_once(card):
    for number in (48, 95, 119, 79):
        card.xid(number)
    assert card.watch.record.demerits == pytest.approx(1.0)
    assert len(card.watch.incidents) == 4


def test_programs_alone_never_ruin_a_card(card):
    for _ in range(60):
        card.xid(13)
        card.listen(300)
    assert card.watch.record.score(card.watch.clock_s) >= 0.9
    assert card.verdict.state == HealthState.HEALTHY
