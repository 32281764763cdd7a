"""The `JOBQUEUE` settings: one frozen object, validated as a whole."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from math import ceil
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from jobqueue import conf_rules

DAY = 86400
# How many beats in a row may fail before a lease is in danger.
TOLERATED_FAILED_BEATS = 2
LEADER_TRUST_MARGIN_SECONDS = 1.0
# The whole process is gone at most this long after DRAIN_SECONDS + CANCEL_SECONDS.
EXIT_MARGIN_SECONDS = 2.0
# Connections of a worker besides its handlers': claims, outcomes, heartbeat, listener, history.
# From this many slots on it has a second one for claims; the leader of the fleet has these more.
WORKER_CONNECTIONS, SECOND_CLAIM_SLOTS, LEADER_CONNECTIONS = 5, 30, 2
# Per slot: the handler's own, and that of a call in the loop's default executor.
HANDLER_CONNECTIONS = 2

QUEUE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,62}\Z")
QUEUE_NAME_RULE = (
    "1 to 63 of the letters a-z and A-Z, digits, '_', '.' and '-', the first one a letter or '_'"
)

# In a worker's list of queues: every name, and the mark of a name to leave out.
EVERY_QUEUE, EXCEPT = "*", "-"
EVERY_TASK = "*"  # in OPERATOR_TASKS


def serves(queues: Collection[str], name: str) -> bool:
    """Whether a worker with this list of queues serves the queue of this name."""
    return name in queues or (EVERY_QUEUE in queues and EXCEPT + name not in queues)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault in the settings: the key, its value, and what to write instead."""

    code: str  # E0xx stops the process, W0xx is a warning
    key: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message} {self.hint}"


def _default_retention() -> dict[str, float | None]:
    return {"SUCCEEDED": 7 * DAY, "CANCELLED": 7 * DAY, "DEAD": 90 * DAY, "ACTS": 90 * DAY}


def _default_redact() -> tuple[str, ...]:
    return (
        # Django's own list, then the usual compounds, then the words of the shipped languages.
        *("api", "auth", "token", "key", "secret", "pass", "signature"),
        *("password", "passwd", "passphrase", "authorization", "cookie", "card", "credential"),
        *("dsn", "apikey", "authtoken", "accesskey", "accesstoken", "refreshtoken", "privatekey"),
        *("secretkey", "clientsecret", "sessionid", "csrfmiddlewaretoken", "pwd", "pgpassword"),
        *("dbpassword", "userpassword"),
        *("passwort", "kennwort", "schlüssel", "schluessel", "geheimnis", "zugangsdaten"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every key of `JOBQUEUE` with its default. Durations are in seconds."""

    database: str = "default"
    concurrency: int = 10
    poll_seconds: float = 5.0
    notify: bool = True
    lease_seconds: float = 30.0
    heartbeat_seconds: float = 5.0
    timeout_seconds: float | None = 3600.0
    max_attempts: int = 5
    backoff_base_seconds: float = 1.0
    backoff_max_seconds: float = 3600.0
    drain_seconds: float = 20.0
    cancel_seconds: float = 5.0
    leader_lease_seconds: float = 15.0
    retention: Mapping[str, float | None] = field(default_factory=_default_retention)
    unknown_task_seconds: float = 86400.0
    args_max_bytes: int = 1024 * 1024
    result_max_bytes: int = 1024 * 1024
    progress_max_bytes: int = 16 * 1024
    redact: tuple[str, ...] = field(default_factory=_default_redact)
    operator_tasks: tuple[str, ...] | None = None
    probe_address: str | None = None

    @property
    def migrate_command(self) -> str:
        """The command that makes the tables, as typed."""
        where = "" if self.database == "default" else f" --database {self.database}"
        return f"manage.py migrate{where}"

    @property
    def beat_budget_seconds(self) -> float:
        """How many seconds one whole beat may take."""
        return self.heartbeat_seconds * 2 / 5

    @property
    def lease_margin_seconds(self) -> float:
        """How many seconds before its end a lease is no longer relied on."""
        return self.lease_seconds / 30

    @property
    def trust_seconds(self) -> float:
        """How long a lease is trusted after its last good claim or renewal was sent."""
        return self.lease_seconds - self.lease_margin_seconds

    @property
    def tolerated_silence_seconds(self) -> float:
        """The longest time between two good beats of a worker in health: some beats may fail."""
        beat, budget = self.heartbeat_seconds, self.beat_budget_seconds
        return beat + (TOLERATED_FAILED_BEATS + 1) * (budget + beat / 4)

    @property
    def least_lease_seconds(self) -> float:
        """The shortest lease that outlives the tolerated failed beats and the clean-up."""
        return self.tolerated_silence_seconds + self.cancel_seconds + self.lease_margin_seconds

    @property
    def exit_seconds(self) -> float:
        """From the first signal to the enforced end of the process."""
        return self.drain_seconds + self.cancel_seconds + EXIT_MARGIN_SECONDS

    @property
    def leader_renew_seconds(self) -> float:
        return self.leader_lease_seconds / 5

    @property
    def effective_poll_seconds(self) -> float:
        """The poll interval; once a second without notifications."""
        return self.poll_seconds if self.notify else min(1.0, self.poll_seconds)


_positive = conf_rules.number(low=0, exclusive=True)
_RULES: dict[str, conf_rules.Rule] = {
    "DATABASE": lambda v: None if isinstance(v, str) and v else "an alias of DATABASES",
    "CONCURRENCY": conf_rules.whole(1, 10_000),
    "POLL_SECONDS": _positive,
    "NOTIFY": lambda v: None if isinstance(v, bool) else "True or False",
    "LEASE_SECONDS": _positive,
    "HEARTBEAT_SECONDS": _positive,
    "TIMEOUT_SECONDS": conf_rules.number(low=0, exclusive=True, none=True),
    "MAX_ATTEMPTS": conf_rules.whole(1, 100_000),
    "BACKOFF_BASE_SECONDS": conf_rules.number(low=0),
    "BACKOFF_MAX_SECONDS": conf_rules.number(low=0),
    "DRAIN_SECONDS": conf_rules.number(low=0),
    "CANCEL_SECONDS": conf_rules.number(low=0),
    "LEADER_LEASE_SECONDS": conf_rules.number(low=2 * LEADER_TRUST_MARGIN_SECONDS),
    "RETENTION": conf_rules.retention,
    "UNKNOWN_TASK_SECONDS": conf_rules.number(low=0),
    "ARGS_MAX_BYTES": conf_rules.whole(1, 256 * 1024 * 1024),
    "RESULT_MAX_BYTES": conf_rules.whole(1, 256 * 1024 * 1024),
    "PROGRESS_MAX_BYTES": conf_rules.whole(64, 1024 * 1024),
    "REDACT": conf_rules.redact,
    "OPERATOR_TASKS": conf_rules.operator_tasks,
    "PROBE_ADDRESS": conf_rules.address,
}
KEYS = tuple(f.name.upper() for f in fields(Settings))


def wish(key: str, value: object) -> str | None:
    """Return what to write instead of this value; None if it is valid."""
    return _RULES[key](value)


def read() -> tuple[Settings, list[Fault]]:
    """Return the settings and everything that is wrong with them.

    A key with a fault keeps its default, so that the rest can be checked too.
    """
    given = getattr(django_settings, "JOBQUEUE", {})
    if not isinstance(given, Mapping):
        hint = 'Write a dict, for example JOBQUEUE = {"CONCURRENCY": 10}.'
        kind = type(given).__name__
        return Settings(), [Fault("E001", "JOBQUEUE", f"is a {kind}, not a dict.", hint)]
    faults = [_unknown(key) for key in given if key not in _RULES]
    good: dict[str, Any] = {}
    for key, value in given.items():
        wanted = wish(key, value) if key in _RULES else None
        if wanted:
            name = f"JOBQUEUE['{key}']"
            faults.append(Fault("E003", name, f"is {value!r}.", f"Write {wanted}."))
        elif key in _RULES:
            good[key.lower()] = value
    if "retention" in good:
        good["retention"] = {**_default_retention(), **good["retention"]}
    for key in {"redact", "operator_tasks"} & good.keys():
        good[key] = good[key] if good[key] is None else tuple(good[key])
    settings = Settings(**good)
    return settings, faults + _database_faults(settings) + _clock_faults() + _sum_faults(settings)


def _unknown(key: object) -> Fault:
    from difflib import get_close_matches

    close = get_close_matches(str(key).upper(), KEYS, n=1)
    hint = f"Did you mean '{close[0]}'?" if close else f"Known are {', '.join(KEYS)}."
    return Fault("E002", f"JOBQUEUE['{key}']", "is not a setting of jobqueue.", hint)


def _database_faults(settings: Settings) -> list[Fault]:
    alias, databases = settings.database, django_settings.DATABASES
    if alias not in databases:
        known = ", ".join(map(repr, databases))
        hint = f"Write one of {known}." if known else "Fill DATABASES first."
        return [Fault("E004", "JOBQUEUE['DATABASE']", f"{alias!r} is not in DATABASES.", hint)]
    engine = databases[alias].get("ENGINE") or ""
    if not _is_postgresql(engine):
        hint = "Point DATABASES at PostgreSQL, or name the alias of one in JOBQUEUE['DATABASE']."
        message = f"uses {engine or 'no engine'}; jobqueue needs PostgreSQL."
        return [Fault("E005", f"DATABASES['{alias}']", message, hint)]
    if not databases[alias].get("AUTOCOMMIT", True):
        name = f"DATABASES['{alias}']['AUTOCOMMIT']"
        message = "is False: what handlers write would be rolled back after them."
        return [Fault("E011", name, message, "Remove it, or write True.")]
    return []


def fleet_connections(slots: Sequence[int], supervisors: int) -> int:
    """Return how many connections workers with these slots may open; a supervisor has one too."""
    seconds = sum(count >= SECOND_CLAIM_SLOTS for count in slots)
    leading = LEADER_CONNECTIONS if slots else 0
    workers = WORKER_CONNECTIONS * len(slots) + seconds
    return HANDLER_CONNECTIONS * sum(slots) + workers + leading + supervisors


def _clock_faults() -> list[Fault]:
    if django_settings.USE_TZ:
        return []
    hint = "Write USE_TZ = True, which is Django's default."
    return [Fault("E008", "USE_TZ", "is False; jobqueue's moments have a time zone.", hint)]


@cache
def _is_postgresql(engine: str) -> bool:
    if not engine or "postgresql" in engine or "postgis" in engine:
        return bool(engine)
    from importlib import import_module

    try:  # a wrapper of another name, such as one that adds metrics
        return import_module(f"{engine}.base").DatabaseWrapper.vendor == "postgresql"  # type: ignore[no-any-return]
    except (ImportError, AttributeError, ImproperlyConfigured):
        return False


def _sum_faults(settings: Settings) -> list[Fault]:
    faults, s = [], settings
    if s.lease_seconds < s.least_lease_seconds:
        numbers = (
            f"{s.lease_seconds:g} s is shorter than beat {s.heartbeat_seconds:g} + "
            f"{TOLERATED_FAILED_BEATS + 1} * (budget {s.beat_budget_seconds:g} + "
            f"{s.heartbeat_seconds / 4:g}) + CANCEL_SECONDS {s.cancel_seconds:g} + "
            f"margin {s.lease_margin_seconds:.3g} = {s.least_lease_seconds:.4g} s."
        )
        # The margin grows with the lease.
        enough = ceil((s.least_lease_seconds - s.lease_margin_seconds) * 30 / 29 * 100) / 100
        hint = f"Write at least {enough:g}, or lower HEARTBEAT_SECONDS or CANCEL_SECONDS."
        faults.append(Fault("E006", "JOBQUEUE['LEASE_SECONDS']", numbers, hint))
    if s.backoff_max_seconds < s.backoff_base_seconds:
        message = f"{s.backoff_max_seconds:g} is below BACKOFF_BASE_SECONDS."
        hint = f"Write at least {s.backoff_base_seconds:g}."
        faults.append(Fault("E007", "JOBQUEUE['BACKOFF_MAX_SECONDS']", message, hint))
    if s.exit_seconds > 30:
        message = f"with CANCEL_SECONDS the worker may need {s.exit_seconds:g} s to leave."
        hint = (
            "Give your platform a longer grace period than that: "
            "Kubernetes kills after 30 s, Docker after 10 s."
        )
        faults.append(Fault("W001", "JOBQUEUE['DRAIN_SECONDS']", message, hint))
    if s.timeout_seconds is None:
        message = "is None: an attempt that hangs keeps its slot indefinitely."
        hint = "Write the longest time in seconds that an attempt may run."
        faults.append(Fault("W002", "JOBQUEUE['TIMEOUT_SECONDS']", message, hint))
    return faults


@cache
def settings() -> Settings:
    """Return the valid settings. Raises ImproperlyConfigured naming every fault at once."""
    value, faults = read()
    errors = [str(fault) for fault in faults if fault.code.startswith("E")]
    if errors:
        raise ImproperlyConfigured("\n".join(errors))
    return value


def connection_parameters(alias: str | None = None) -> dict[str, Any]:
    """Return the keyword arguments of psycopg's connect for the queue's database."""
    from django.db import connections

    wrapper: Any = connections[alias or settings().database]
    options = wrapper.settings_dict["OPTIONS"]
    parameters = dict(wrapper.get_connection_params())
    # Django's cursor class and adapters belong to its own connections.
    for key in ("cursor_factory", "context"):
        parameters.pop(key, None)
    # Django switches prepared statements off by default; the worker's few statements gain from
    # them, and an explicit None (for an old transaction pooler) is kept.
    parameters["prepare_threshold"] = options.get("prepare_threshold", 1)
    if role := options.get("assume_role"):
        escaped = role.replace("\\", "\\\\").replace(" ", "\\ ")
        parameters["options"] = f"{parameters.get('options', '')} -c role={escaped}".strip()
    return parameters


def _forget(*, setting: str, **_: object) -> None:
    if setting in ("JOBQUEUE", "DATABASES", "USE_TZ"):
        settings.cache_clear()


setting_changed.connect(_forget)
