"""The settings: every fault at once, each with its key, its value and what to write instead."""

import math

import pytest
from django.core.checks import Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from jobqueue import conf
from jobqueue.checks import check_settings
from jobqueue.conf import Settings

POSTGRESQL = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "x"}}
SQLITE = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}


@pytest.fixture
def given(settings):
    def give(**values):
        settings.JOBQUEUE = values
        return conf.read()

    return give


def codes(faults):
    return [fault.code for fault in faults]


@pytest.mark.spec("S232")
def test_without_the_setting_every_key_has_its_default(settings):
    del settings.JOBQUEUE
    assert conf.settings() == Settings()


def test_the_defaults_have_no_fault(given):
    assert given() == (Settings(), [])


def test_moments_without_a_zone_are_refused(settings, given):
    settings.USE_TZ = False
    (fault,) = given()[1]
    assert str(fault) == (
        "USE_TZ: is False; jobqueue's moments have a time zone. "
        "Write USE_TZ = True, which is Django's default."
    )
    with pytest.raises(ImproperlyConfigured, match="USE_TZ"):
        conf.settings()


@pytest.mark.spec("S232")
def test_every_fault_is_reported_at_once(given):
    _, faults = given(CONCURENCY=3, NOTIFY=1, LEASE_SECONDS=10, MAX_ATTEMPTS=0)
    assert codes(faults) == ["E002", "E003", "E003", "E006"]
    with pytest.raises(ImproperlyConfigured) as error:
        conf.settings()
    lines = str(error.value).splitlines()
    assert lines[0] == (
        "JOBQUEUE['CONCURENCY']: is not a setting of jobqueue. Did you mean 'CONCURRENCY'?"
    )
    assert lines[1] == "JOBQUEUE['NOTIFY']: is 1. Write True or False."
    assert lines[2] == "JOBQUEUE['MAX_ATTEMPTS']: is 0. Write a whole number from 1 to 100000."
    assert len(lines) == 4


BAD = {
    "DATABASE": [None, "", 3],
    "CONCURRENCY": [0, -1, 10_001, 1.5, "5", True, None],
    "POLL_SECONDS": [0, -1, math.nan, math.inf, 1e300, "5", None, True],
    "NOTIFY": [None, "yes", 0],
    "LEASE_SECONDS": [0, None, math.inf],
    "HEARTBEAT_SECONDS": [0, -1, None],
    "TIMEOUT_SECONDS": [0, -1, "1h", math.inf],
    "MAX_ATTEMPTS": [0, -1, 2**31, None, 1.0],
    "BACKOFF_BASE_SECONDS": [-1, None, math.nan],
    "BACKOFF_MAX_SECONDS": [-1, math.inf, 1e12],
    "DRAIN_SECONDS": [-1, None],
    "CANCEL_SECONDS": [-1, None],
    "LEADER_LEASE_SECONDS": [1, None],
    "RETENTION": [None, 5, {"RUNNING": 1}, {"DEAD": -1}, {"DEAD": "7d"}],
    "UNKNOWN_TASK_SECONDS": [-1, None],
    "ARGS_MAX_BYTES": [0, 2**40, None],
    "RESULT_MAX_BYTES": [0, "1MB"],
    "PROGRESS_MAX_BYTES": [0, 2**30],
    "REDACT": [None, "password", [1], [""]],
    "OPERATOR_TASKS": ["shop.tasks.clean_up", [1], ["clean_up"], [""], {"*"}],
    "PROBE_ADDRESS": ["here", "host:", "host:65536", "host:²", 9000],
}


def test_every_key_has_bad_values_here():
    assert set(BAD) == set(conf.KEYS)


@pytest.mark.spec("S232")
@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in BAD.items() for v in values])
def test_a_bad_value_is_named_with_its_key_and_what_to_write(given, key, value):
    settings, faults = given(**{key: value})
    [fault] = [fault for fault in faults if fault.code == "E003"]
    assert fault.key == f"JOBQUEUE['{key}']"
    assert fault.message == f"is {value!r}."
    assert fault.hint.startswith("Write ")
    assert getattr(settings, key.lower()) == getattr(Settings(), key.lower())


GOOD = {
    "TIMEOUT_SECONDS": [None, 0.5, 86400],
    "RETENTION": [{}, {"DEAD": None}, {"SUCCEEDED": 0}, {"ACTS": None}],
    "REDACT": [[], ["pin"], ("pin",)],
    "OPERATOR_TASKS": [None, [], ["*"], ("shop.tasks.clean_up",)],
    "PROBE_ADDRESS": [None, "127.0.0.1:0", "[::1]:9000"],
    "BACKOFF_BASE_SECONDS": [0, 3600],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in GOOD.items() for v in values])
def test_good_values_are_taken(given, key, value):
    _, faults = given(**{key: value})
    assert not [fault for fault in faults if fault.code.startswith("E")]


def test_a_retention_that_names_some_states_keeps_the_others_defaults(given):
    settings, _ = given(RETENTION={"DEAD": None})
    assert settings.retention == {**Settings().retention, "DEAD": None}


@pytest.mark.spec("S97", "S232")
def test_a_lease_too_short_for_its_beat_is_refused_with_the_numbers(given):
    _, [fault] = given(LEASE_SECONDS=20)
    assert str(fault) == (
        "JOBQUEUE['LEASE_SECONDS']: 20 s is shorter than beat 5 + 3 * (budget 2 + 1.25) + "
        "CANCEL_SECONDS 5 + margin 0.667 = 20.42 s. "
        "Write at least 20.44, or lower HEARTBEAT_SECONDS or CANCEL_SECONDS."
    )


@pytest.mark.spec("S97", "S232")
def test_the_lease_that_the_hint_names_is_long_enough(given):
    assert given(LEASE_SECONDS=20.44)[1] == []


@pytest.mark.spec("S97")
def test_the_shortest_lease_at_the_defaults_is_the_documented_one():
    assert Settings().least_lease_seconds == pytest.approx(20.75)


@pytest.mark.spec("S232")
def test_what_is_no_dict_is_refused(settings):
    settings.JOBQUEUE = ["CONCURRENCY"]
    _, [fault] = conf.read()
    assert str(fault) == (
        'JOBQUEUE: is a list, not a dict. Write a dict, for example JOBQUEUE = {"CONCURRENCY": 10}.'
    )


@pytest.mark.spec("S232")
@pytest.mark.parametrize(
    ("databases", "sentence"),
    [
        (SQLITE, "DATABASES['default']: uses django.db.backends.sqlite3; jobqueue needs"),
        ({"default": {}}, "DATABASES['default']: uses no engine; jobqueue needs PostgreSQL."),
        ({"default": {"ENGINE": "no.such.engine"}}, "uses no.such.engine; jobqueue needs"),
        ({}, "JOBQUEUE['DATABASE']: 'default' is not in DATABASES. Fill DATABASES first."),
        ({"other": POSTGRESQL["default"]}, "'default' is not in DATABASES. Write one of 'other'."),
    ],
)
def test_a_database_that_is_no_postgresql_is_refused(monkeypatch, databases, sentence):
    monkeypatch.setattr(conf.django_settings, "DATABASES", databases)
    _, [fault] = conf.read()
    assert sentence in str(fault)


@pytest.mark.spec("S80", "S232")
def test_a_database_without_autocommit_is_refused(monkeypatch):
    databases = {"default": {**POSTGRESQL["default"], "AUTOCOMMIT": False}}
    monkeypatch.setattr(conf.django_settings, "DATABASES", databases)
    assert check_settings() == [
        Error(
            "DATABASES['default']['AUTOCOMMIT']: is False: "
            "what handlers write would be rolled back after them.",
            hint="Remove it, or write True.",
            id="jobqueue.E011",
        )
    ]


@pytest.mark.parametrize(
    "engine",
    ["django.db.backends.postgresql", "django.contrib.gis.db.backends.postgis", "x.postgresql_y"],
)
def test_postgresql_under_another_engine_is_taken(monkeypatch, engine):
    monkeypatch.setattr(conf.django_settings, "DATABASES", {"default": {"ENGINE": engine}})
    assert conf.read()[1] == []


@pytest.mark.spec("S151", "S215", "S232")
def test_the_system_checks_report_the_same_faults(given):
    given(DRAIN_SECONDS=40, BACKOFF_MAX_SECONDS=0.5, TIMEOUT_SECONDS=None)
    assert check_settings() == [
        Error(
            "JOBQUEUE['BACKOFF_MAX_SECONDS']: 0.5 is below BACKOFF_BASE_SECONDS.",
            hint="Write at least 1.",
            id="jobqueue.E007",
        ),
        Warning(
            "JOBQUEUE['DRAIN_SECONDS']: with CANCEL_SECONDS the worker may need 47 s to leave.",
            hint="Give your platform a longer grace period than that: "
            "Kubernetes kills after 30 s, Docker after 10 s.",
            id="jobqueue.W001",
        ),
        Warning(
            "JOBQUEUE['TIMEOUT_SECONDS']: is None: "
            "an attempt that hangs keeps its slot indefinitely.",
            hint="Write the longest time in seconds that an attempt may run.",
            id="jobqueue.W002",
        ),
    ]


def test_a_warning_stops_nothing(given):
    given(TIMEOUT_SECONDS=None)
    assert conf.settings().timeout_seconds is None


def test_a_role_with_a_space_reaches_the_server_as_one_word():
    connections["default"].settings_dict["OPTIONS"] = {"assume_role": "job runner"}
    try:
        assert conf.connection_parameters()["options"] == r"-c role=job\ runner"
    finally:
        connections["default"].settings_dict["OPTIONS"] = {}
