import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.tasks.signals import task_finished
from django.utils import timezone

from jobqueue import notify, operations
from jobqueue.models import Attempt, Job, JobEvent, Queue
from jobqueue.notifications import Cancel, Message, Paused, Resumed
from jobqueue.results import load
from jobqueue.states import FINAL, TRANSITIONS, State, Verb
from jobqueue.versions import UNDERSTANDS
from tests.web import rows

VERBS = {
    Verb.CANCEL: operations.cancel,
    Verb.RETRY: operations.retry,
    Verb.RUN_NOW: operations.run_now,
}


@pytest.fixture
def news(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    heard: list[Message] = []
    monkeypatch.setattr(notify.Wake, "add", lambda self, message: heard.append(message))
    return heard


@pytest.mark.spec("S2", "S114", "D93")
@pytest.mark.django_db
@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_goes_only_the_ways_of_the_transition_table(verb: Verb, state: State) -> None:
    job = rows.job(state)
    allowed = {target for source, target in TRANSITIONS[verb] if source == state}
    result = VERBS[verb](job)
    job.refresh_from_db()
    if not allowed:
        assert (result.changed, dict(result.left)) == (0, {state: 1})
        assert job.state == state
    else:
        assert (result.changed, result.ids) == (1, (job.pk,))
        assert job.state in allowed


@pytest.mark.django_db
@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("verb", ["cancel", "retry", "run_now", "reprioritise", "move", "delete"])
def test_a_job_that_needs_newer_code_is_left_alone_and_the_answer_says_so(
    verb: str, state: State
) -> None:
    job = rows.job(state, needs=UNDERSTANDS + 1)
    before = Job.objects.values().get(pk=job.pk)
    further = {"reprioritise": [7], "move": ["mail"]}.get(verb, [])
    result = getattr(operations, verb)(job, *further)
    assert (result.changed, dict(result.left)) == (0, {operations.NEWER: 1})
    assert Job.objects.values().get(pk=job.pk) == before
    assert not JobEvent.objects.exists()


@pytest.mark.django_db
def test_a_prune_leaves_newer_jobs_too() -> None:
    old = timezone.now() - timedelta(days=9)
    newer = rows.job(State.DEAD, needs=UNDERSTANDS + 1, finished_at=old)
    rows.job(State.DEAD, finished_at=old)
    assert operations.prune({State.DEAD: 60.0}).changed == 1
    assert list(Job.objects.values_list("pk", flat=True)) == [newer.pk]


@pytest.mark.spec("S114", "S128")
@pytest.mark.django_db
def test_cancelling_a_waiting_job_ends_it_and_says_who_why_and_how() -> None:
    job = rows.job()
    operations.cancel(job.pk, by="ann", reason="wrong customer")
    job.refresh_from_db()
    assert (job.state, job.reason) == (State.CANCELLED, "cancelled before start")
    assert job.finished_at is not None
    assert (job.cancel_requested_by, job.cancel_reason) == ("ann", "wrong customer")
    event = JobEvent.objects.get(job=job.pk)
    assert (event.kind, event.actor, event.note) == ("cancel", "ann", "wrong customer")


@pytest.mark.spec("S114", "S115")
@pytest.mark.django_db(transaction=True)
def test_cancelling_a_running_job_stores_it_and_notifies_its_worker(
    news: list[Message],
) -> None:
    job = rows.job(State.RUNNING)
    result = operations.cancel(job, by="ann")
    again = operations.cancel(job, by="bob")
    job.refresh_from_db()
    assert (result.changed, result.asked) == (1, 1)
    assert (again.changed, dict(again.left)) == (0, {operations.ASKED: 1})
    assert (job.state, job.cancel_requested_by) == (State.RUNNING, "ann")
    assert news == [Cancel(str(job.worker))]


@pytest.mark.django_db
def test_a_retry_gives_a_fresh_budget_and_keeps_the_history() -> None:
    job = rows.job(
        State.DEAD,
        attempts=5,
        failures=5,
        reason="expired",
        cancel_requested_at=timezone.now(),
        cancel_requested_by="ann",
        expires_at=timezone.now(),
        result={"a": 1},
        last_error="E: x",
    )
    rows.attempt(job, 5)
    operations.retry(job)
    job.refresh_from_db()
    assert (job.state, job.reason, job.failures, job.attempts) == (State.READY, "", 0, 5)
    assert job.finished_at is job.cancel_requested_at is job.expires_at is job.result is None
    assert job.cancel_requested_by == ""
    assert Attempt.objects.filter(job=job).count() == 1


@pytest.mark.django_db
def test_a_job_that_its_old_process_may_still_touch_is_not_started_again() -> None:
    later = timezone.now() + timedelta(minutes=1)
    dead = rows.job(State.DEAD, hold_until=later)
    scheduled = rows.job(State.SCHEDULED, hold_until=later)
    assert dict(operations.retry(dead).left) == {operations.HELD: 1}
    assert dict(operations.run_now(scheduled).left) == {operations.HELD: 1}


@pytest.mark.django_db
def test_a_retry_leaves_alone_what_died_again_after_the_page_was_shown() -> None:
    job = rows.job(State.DEAD)
    shown = timezone.now() - timedelta(minutes=1)
    assert dict(operations.retry(job, as_of=shown).left) == {operations.LATER: 1}
    assert operations.retry(job, as_of=timezone.now()).changed == 1


@pytest.mark.django_db
def test_a_job_may_be_named_by_what_an_enqueue_returns() -> None:
    few = [rows.job(State.READY).pk for _ in range(12)]
    chosen, other = rows.job(State.READY, pk=max(few) * 1000 + 12), rows.job(State.READY)
    result = load(str(chosen.pk))
    # A text of several digits is one id, not the ids of its characters.
    assert operations.cancel(result.id).ids == (chosen.pk,)
    assert operations.retry(result).ids == (chosen.pk,)
    assert operations.cancel([result, other]).ids == tuple(sorted([chosen.pk, other.pk]))
    assert Job.objects.filter(state=State.CANCELLED).count() == 2


@pytest.mark.django_db
@pytest.mark.parametrize(
    "wrong", [None, "abc", "", "²", b"12", True, 1.5, object(), ["a"], [None], Queue.objects]
)
def test_what_is_no_job_is_refused_with_what_to_write(wrong: Any) -> None:
    with pytest.raises(TypeError, match="write a Job, its id or its TaskResult, or several"):
        operations.cancel(wrong)


@pytest.mark.spec("S127")
@pytest.mark.django_db(transaction=True)
def test_a_filter_is_worked_through_in_batches_with_honest_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations.jobs, "BATCH", 7)
    dead = [rows.job(State.DEAD).pk for _ in range(20)]
    rows.job(State.SUCCEEDED)
    result = operations.retry(Job.objects.all())
    assert (result.changed, result.ids, dict(result.left)) == (20, tuple(dead), {"SUCCEEDED": 1})
    assert operations.retry(Job.objects.filter(pk__in=dead)[:3]).left == {"READY": 3}
    assert operations.retry([*dead[:2], 10**12]).left == {"READY": 2, operations.MISSING: 1}
    assert JobEvent.objects.filter(kind="retry").count() == 20


@pytest.mark.spec("S127")
@pytest.mark.django_db(transaction=True)
def test_what_a_stopped_bulk_action_had_done_stays_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations.jobs, "BATCH", 5)
    jobs = [rows.job() for _ in range(12)]
    real, calls = operations.jobs._batch, []

    def failing(*args: Any) -> operations.Result:
        calls.append(args)
        if len(calls) == 3:
            raise RuntimeError("power cut")
        return real(*args)

    monkeypatch.setattr(operations.jobs, "_batch", failing)
    with pytest.raises(RuntimeError):
        operations.cancel([job.pk for job in jobs])
    assert Job.objects.filter(state=State.CANCELLED).count() == 10


@pytest.mark.django_db
def test_priority_and_queue_change_only_while_a_job_waits() -> None:
    waiting, running = rows.job(), rows.job(State.RUNNING)
    ids = [waiting.pk, running.pk]
    assert operations.reprioritise(ids, 7).left == {"RUNNING": 1}
    assert operations.reprioritise(ids, 7).left == {"RUNNING": 1, operations.SAME: 1}
    assert operations.move(ids, "mail").changed == 1
    waiting.refresh_from_db()
    assert (waiting.priority, waiting.queue) == (7, "mail")
    notes = JobEvent.objects.filter(job=waiting.pk).order_by("id").values_list("note", flat=True)
    assert list(notes) == ["0 to 7", "default to mail"]


@pytest.mark.django_db
@pytest.mark.parametrize("priority", [-101, 101])
def test_a_priority_out_of_range_is_refused_before_the_database(priority: int) -> None:
    with pytest.raises(ValueError, match="between -100 and 100"):
        operations.reprioritise(1, priority)


@pytest.mark.django_db
def test_a_queue_name_is_checked() -> None:
    with pytest.raises(ValueError, match="is not a queue name"):
        operations.move(1, "no spaces")
    with pytest.raises(ValueError, match="is not a queue name"):
        operations.pause("")


@pytest.mark.django_db
@pytest.mark.parametrize("state", list(State))
def test_only_final_jobs_can_be_deleted_and_their_attempts_go_with_them(state: State) -> None:
    job = rows.job(state)
    rows.attempt(job)
    result = operations.delete(job, by="ann")
    if state in FINAL:
        assert result.changed == 1
        assert not Job.objects.exists()
        assert not Attempt.objects.exists()
        assert JobEvent.objects.get().kind == "delete"
    else:
        assert dict(result.left) == {state: 1}


@pytest.mark.django_db(transaction=True)
def test_a_queue_is_paused_once_and_resumed_once(news: list[Message]) -> None:
    assert operations.pause("mail", by="ann").changed == 1
    assert dict(operations.pause("mail", by="bob").left) == {operations.SAME: 1}
    assert Queue.objects.get(name="mail").paused_by == "ann"
    assert operations.resume("mail").changed == 1
    assert operations.resume("mail").changed == 0
    assert Queue.objects.get(name="mail").paused_at is None
    assert news == [Paused("mail"), Resumed("mail")]
    assert list(JobEvent.objects.values_list("kind", flat=True)) == ["pause", "resume"]


@pytest.mark.django_db
def test_ids_beyond_32_and_53_bits_work() -> None:
    for pk in (2**31 + 1, 2**53 + 1):
        rows.job(pk=pk)
        assert operations.cancel(pk).ids == (pk,)
        assert operations.retry(pk).ids == (pk,)


@pytest.mark.spec("D93")
@pytest.mark.django_db(transaction=True)
def test_ten_clicks_at_once_have_one_effect() -> None:
    job = rows.job(State.DEAD)
    results: list[operations.Result] = []

    def click() -> None:
        try:
            results.append(operations.retry(job.pk))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=click) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(result.changed for result in results) == [0] * 9 + [1]
    assert JobEvent.objects.count() == 1


@pytest.mark.spec("S114")
@pytest.mark.django_db(transaction=True)
def test_a_cancel_that_meets_a_claim_decides_from_the_row_as_it_is_then() -> None:
    job = rows.job()
    result: list[operations.Result] = []

    def cancel() -> None:
        try:
            result.append(operations.cancel(job.pk))
        finally:
            connections.close_all()

    with transaction.atomic():
        held = rows.job(State.RUNNING)
        Job.objects.filter(pk=job.pk).update(
            state=State.RUNNING,
            worker=held.worker,
            lease_token=held.lease_token,
            lease_expires_at=held.lease_expires_at,
            claimed_at=held.claimed_at,
        )
        thread = threading.Thread(target=cancel)
        thread.start()
        _wait_until_somebody_waits_for_a_lock()
    thread.join(20)
    job.refresh_from_db()
    assert (result[0].changed, result[0].asked) == (1, 1)
    assert (job.state, job.cancel_requested_at is None) == (State.RUNNING, False)


def _wait_until_somebody_waits_for_a_lock() -> None:
    deadline = timezone.now() + timedelta(seconds=10)
    while timezone.now() < deadline:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            if cursor.fetchone()[0]:
                return
    pytest.fail("nobody waits")


@pytest.mark.django_db(transaction=True)
def test_django_hears_that_a_waiting_job_finished_and_nothing_of_a_running_one() -> None:
    heard: list[str] = []

    def receiver(task_result: Any, **_: object) -> None:
        heard.append(task_result.id)

    task_finished.connect(receiver)
    try:
        waiting, running = rows.job(args=[1]), rows.job(State.RUNNING)
        gone = rows.job(task="shop.tasks.old")
        operations.cancel([waiting.pk, running.pk, gone.pk])
    finally:
        task_finished.disconnect(receiver)
    assert heard == [str(waiting.pk)]
