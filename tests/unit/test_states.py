"""The transition table: what may follow what, and nothing else."""

from itertools import product

import pytest

from jobqueue.states import FINAL, TRANSITIONS, WAITING, State, Verb

# Written out a second time by hand: a change of the table is a change of the contract.
CONTRACT = {
    "enqueue": "- READY, - SCHEDULED, - BLOCKED",
    "promote": "SCHEDULED READY, SCHEDULED BLOCKED",
    "claim": "READY RUNNING",
    "renew": "RUNNING RUNNING",
    "finish": (
        "RUNNING SUCCEEDED, RUNNING DEAD, RUNNING CANCELLED, RUNNING SCHEDULED, RUNNING READY"
    ),
    "release": "RUNNING READY, RUNNING SCHEDULED, RUNNING CANCELLED",
    "reclaim": "RUNNING READY, RUNNING SCHEDULED, RUNNING DEAD, RUNNING CANCELLED",
    "expire": "SCHEDULED DEAD, READY DEAD, BLOCKED DEAD",
    "admit": "BLOCKED READY",
    "cancel": "SCHEDULED CANCELLED, READY CANCELLED, BLOCKED CANCELLED, RUNNING RUNNING",
    "retry": "DEAD READY, DEAD BLOCKED, CANCELLED READY, CANCELLED BLOCKED",
    "run now": "SCHEDULED READY",
    "prune": "SUCCEEDED -, DEAD -, CANCELLED -",
}


def written(text):
    return {tuple(pair.split()) for pair in text.split(", ")}


@pytest.mark.spec("S2")
@pytest.mark.parametrize("verb", Verb)
def test_every_pair_of_states_is_allowed_or_not_as_the_contract_says(verb):
    allowed = written(CONTRACT[verb])
    for source, target in product([None, *State], repeat=2):
        pair = (source or "-", target or "-")
        assert ((source, target) in TRANSITIONS[verb]) == (pair in allowed), (verb, pair)


@pytest.mark.spec("S2")
def test_every_verb_has_its_line_in_the_table():
    assert set(TRANSITIONS) == set(Verb) == set(map(Verb, CONTRACT))


@pytest.mark.spec("S2")
def test_only_an_operator_s_retry_leaves_a_final_state_alive():
    for verb, pairs in TRANSITIONS.items():
        leaving = {pair for pair in pairs if pair[0] in FINAL and pair[1] is not None}
        assert not leaving or verb == Verb.RETRY


def test_each_state_is_waiting_running_or_final():
    assert WAITING | FINAL | {State.RUNNING} == set(State)
    assert not WAITING & FINAL
