"""The door in: what a call stores, what it refuses, and what workers are notified of."""

import datetime as dt
import json
from collections.abc import Iterator

import psycopg
import pytest
from django.db import IntegrityError, close_old_connections, connection, transaction
from django.tasks.exceptions import InvalidTask
from django.test.utils import CaptureQueriesContext
from structlog.contextvars import bound_contextvars

import jobqueue
from jobqueue import conf, notify
from jobqueue.context import current_job
from jobqueue.enqueueing.enqueue import insert
from jobqueue.enqueueing.job_row import draft
from jobqueue.exceptions import ArgumentsError, EnqueueError
from jobqueue.models import Job
from jobqueue.notifications import Ready
from jobqueue.states import State
from tests.sample_tasks import post, send
from tests.web.blocks import rolled_back

FAR = dt.datetime(2090, 1, 1, tzinfo=dt.UTC)
LONG_AGO = dt.datetime(1, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def heard(transactional_db: None) -> Iterator[list[dict[str, object]]]:
    """Collects notifications; call it to fetch what has come so far."""
    with psycopg.connect(**conf.connection_parameters(), autocommit=True) as listener:
        listener.execute("LISTEN jobqueue")

        def fetch(count: int) -> list[dict[str, object]]:
            # Their own end marker: whatever was sent before it has arrived, too.
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_notify('jobqueue', 'end')")
            found = []
            for note in listener.notifies(timeout=10):
                if note.payload == "end":
                    break
                found.append(json.loads(note.payload))
            assert len(found) == count
            return found

        yield fetch


@pytest.mark.spec("S1")
@pytest.mark.django_db
def test_the_row_holds_all_that_a_worker_needs() -> None:
    result = send.using(priority=7, timeout=5, max_attempts=2).enqueue(3, text="é")
    job = Job.objects.get(pk=result.id)
    assert (job.task, job.args, job.kwargs) == ("tests.sample_tasks.send", [3], {"text": "é"})
    assert (job.queue, job.backend, job.priority) == ("default", "default", 7)
    assert (job.options, job.max_attempts) == ({"timeout": 5}, 2)
    assert (job.state, job.attempts, job.failures) == (State.READY, 0, 0)
    assert job.run_at == job.enqueued_at
    assert job.signature == "(number=0, *, text='')"
    assert job.args_bytes == len("[3]") + len('{"text":"é"}'.encode())
    assert job.parent is None


@pytest.mark.django_db
def test_every_way_in_writes_down_how_large_the_arguments_are() -> None:
    ids = jobqueue.enqueue_many([(send, [3]), (send, [], {"text": "é" * 10_000}), (send,)])
    sizes = dict(Job.objects.filter(pk__in=ids).values_list("pk", "args_bytes"))
    assert [sizes[id] for id in ids] == [3 + 2, 2 + 11 + 20_000, 2 + 2]


@pytest.mark.spec("S20")
@pytest.mark.django_db
def test_the_budget_is_the_one_of_the_moment_of_the_enqueue(settings) -> None:
    settings.JOBQUEUE = {"MAX_ATTEMPTS": 8}
    first = send.enqueue()
    settings.JOBQUEUE = {"MAX_ATTEMPTS": 2}
    assert Job.objects.get(pk=first.id).max_attempts == 8


@pytest.mark.spec("S29", "S11")
@pytest.mark.django_db
def test_a_later_start_is_a_state_of_its_own() -> None:
    job = Job.objects.get(pk=send.using(run_after=FAR).enqueue().id)
    assert (job.state, job.run_at) == (State.SCHEDULED, FAR)


@pytest.mark.spec("S29")
@pytest.mark.django_db
@pytest.mark.parametrize("moment", [LONG_AGO, dt.datetime(1971, 1, 1, tzinfo=dt.UTC)])
def test_a_start_in_the_past_means_now_by_the_database_s_clock(moment) -> None:
    job = Job.objects.get(pk=send.using(run_after=moment).enqueue().id)
    assert (job.state, job.run_at) == (State.READY, job.enqueued_at)


@pytest.mark.spec("S79")
@pytest.mark.django_db
def test_a_deadline_counts_from_the_earliest_start() -> None:
    now = Job.objects.get(pk=send.using(expires=60).enqueue().id)
    assert now.expires_at == now.enqueued_at + dt.timedelta(seconds=60)
    later = Job.objects.get(pk=send.using(expires=60, run_after=FAR).enqueue().id)
    assert later.expires_at == FAR + dt.timedelta(seconds=60)


@pytest.mark.spec("S22")
@pytest.mark.django_db
def test_a_bad_call_is_refused_before_anything_is_sent(django_assert_num_queries) -> None:
    with django_assert_num_queries(0):
        with pytest.raises(ArgumentsError, match=r"send: args\[0\]\['a'\] is of type set"):
            send.enqueue({"a": {1}})
        with pytest.raises(ArgumentsError, match=r"kwargs\['text'\] contains a NUL"):
            send.enqueue(text="\0")
        with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
            send.enqueue(colour=1)
        with pytest.raises(TypeError, match=r"post\(address.*\): missing a required argument"):
            post.enqueue()
    assert send.enqueue(1).id  # the transaction is still usable


@pytest.mark.spec("S13")
@pytest.mark.django_db
def test_arguments_above_the_limit_are_refused_with_the_setting_s_name(settings) -> None:
    settings.JOBQUEUE = {"ARGS_MAX_BYTES": 100}
    send.enqueue("x" * 90)
    with pytest.raises(ArgumentsError, match="ARGS_MAX_BYTES allows 100"):
        send.enqueue("x" * 97)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "value", [r"\u0000", 1e23, -1.7e308, 5e-324, 2**1000, 0.1, "\N{PILE OF POO}", {"": None}]
)
def test_arguments_come_back_from_the_database_equal(value) -> None:
    assert Job.objects.get(pk=send.enqueue(value, text=[value]).id).args == [value]


@pytest.mark.django_db
def test_large_arguments_do_not_depend_on_the_size_of_a_notification() -> None:
    assert Job.objects.get(pk=send.enqueue("x" * 1_000_000).id).args == ["x" * 1_000_000]


@pytest.mark.spec("S33")
@pytest.mark.django_db
def test_the_trace_context_is_stored_and_a_malformed_one_ignored() -> None:
    good = f"00-{'a' * 32}-{'b' * 16}-01"
    with bound_contextvars(traceparent=good):
        assert Job.objects.get(pk=send.enqueue().id).traceparent == good
    for bad in ("junk", good.upper(), f"{good}\n", 5):
        with bound_contextvars(traceparent=bad):
            assert Job.objects.get(pk=send.enqueue().id).traceparent == ""


@pytest.mark.django_db
def test_a_job_knows_the_job_that_enqueued_it() -> None:
    token = current_job.set(41)
    try:
        assert Job.objects.get(pk=send.enqueue().id).parent == 41
    finally:
        current_job.reset(token)


@pytest.mark.spec("S30")
@pytest.mark.django_db
def test_many_jobs_are_stored_at_once_in_order() -> None:
    changed = send.using(priority=3, run_after=FAR, expires=60, timeout=None)
    ids = jobqueue.enqueue_many(
        [(send, [1], {"text": "a"}), (post, ("b",)), (send,), (changed, [4])]
    )
    assert ids == sorted(ids)
    jobs = [Job.objects.get(pk=id) for id in ids]
    assert [(job.args, job.kwargs) for job in jobs] == [
        ([1], {"text": "a"}),
        (["b"], {}),
        ([], {}),
        ([4], {}),
    ]
    assert [job.queue for job in jobs] == ["default", "mail", "default", "default"]
    single = Job.objects.get(pk=changed.enqueue(4).id)
    for name in ("state", "priority", "run_at", "expires_at", "options", "max_attempts"):
        assert getattr(jobs[3], name) == getattr(single, name), name


@pytest.mark.spec("S30", "D74")
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ((send, [object()]), r"item 2: tests.sample_tasks.send: args\[0\] is of type object"),
        (
            (send, [1, 2, 3]),
            r"item 2: .*send\(number=0, \*, text=''\): too many positional arguments",
        ),
        ((print, []), r"item 2: write \(task, args, kwargs\)"),
        ((send, "abc"), r"item 2: write \(task, args, kwargs\)"),
        ((send, [], {}, 4), r"item 2: write \(task, args, kwargs\)"),
        (send, r"item 2: write \(task, args, kwargs\)"),
        ((), r"item 2: write \(task, args, kwargs\)"),
    ],
)
def test_one_bad_item_refuses_all_and_is_named(bad, sentence) -> None:
    with pytest.raises(EnqueueError, match=sentence):
        jobqueue.enqueue_many([(send,), (send,), bad, (send,)])
    assert not Job.objects.exists()
    assert jobqueue.enqueue_many([]) == []


@pytest.mark.spec("S30", "D74")
@pytest.mark.django_db
def test_five_thousand_jobs_are_a_few_statements(django_assert_max_num_queries) -> None:
    with django_assert_max_num_queries(6):
        ids = jobqueue.enqueue_many((send, [number]) for number in range(5_000))
    assert Job.objects.count() == 5_000
    assert Job.objects.get(pk=ids[1234]).args == [1234]


@pytest.mark.spec("S21", "S41", "D30")
def test_one_wake_a_queue_goes_out_right_after_the_commit(heard) -> None:
    with transaction.atomic():
        send.enqueue()
        send.enqueue()
        post.enqueue("a")
        with transaction.atomic():
            send.enqueue()
    assert sorted(str(news["queue"]) for news in heard(2)) == ["default", "mail"]


@pytest.mark.spec("S21")
def test_no_wake_goes_out_for_what_was_rolled_back(heard) -> None:
    with rolled_back():
        send.enqueue()
        with transaction.atomic():
            post.enqueue("a")
    assert heard(0) == []


def test_a_wake_is_sent_for_a_job_after_an_inner_block_was_rolled_back(heard) -> None:
    with transaction.atomic():
        with rolled_back():
            send.enqueue()
        send.enqueue()
    assert heard(1) == [{"kind": "ready", "queue": "default", "priority": 0}]


def test_wakes_close_together_are_spared_but_for_something_more_urgent(heard, monkeypatch) -> None:
    monkeypatch.setattr(notify, "THIN_SECONDS", 60.0)
    monkeypatch.setattr(notify, "_latest", {})
    for priority in (0, 0, 5, 5, -1):
        send.using(priority=priority).enqueue()
    assert heard(2) == [
        {"kind": "ready", "queue": "default", "priority": 0},
        {"kind": "ready", "queue": "default", "priority": 5},
    ]


def test_one_transaction_sends_one_wake_with_its_most_urgent_priority(heard) -> None:
    with transaction.atomic():
        for priority in (1, 7, 3):
            send.using(priority=priority).enqueue()
    assert heard(1) == [{"kind": "ready", "queue": "default", "priority": 7}]


def test_a_wake_that_failed_spares_none(heard, monkeypatch) -> None:
    monkeypatch.setattr(notify, "THIN_SECONDS", 60.0)
    monkeypatch.setattr(notify, "_latest", {})
    with monkeypatch.context() as broken:
        broken.setattr(notify, "NOTIFY", b"SELECT no_such_function(%b)")
        send.enqueue()
    send.enqueue()
    assert heard(1) == [{"kind": "ready", "queue": "default", "priority": 0}]


def test_a_scheduled_job_notifies_the_promoter_of_its_earliest_moment(heard) -> None:
    with transaction.atomic():
        send.using(run_after=FAR).enqueue()
        send.using(run_after=FAR - dt.timedelta(days=1)).enqueue()
    earliest = (FAR - dt.timedelta(days=1)).timestamp()
    assert heard(1) == [{"kind": "scheduled", "at": earliest}]


def test_many_jobs_wake_each_queue_once(heard) -> None:
    jobqueue.enqueue_many([(send,), (post, ["a"]), (send,), (send.using(run_after=FAR),)])
    assert sorted(str(news.get("queue")) for news in heard(3)) == ["None", "default", "mail"]


def test_a_queue_s_name_is_sent_as_it_is(heard) -> None:
    name = 'it\'s \\ a "quéue"'
    notify.notify(Ready(name, 3))
    assert heard(1) == [{"kind": "ready", "queue": name, "priority": 3}]


def test_a_wake_that_met_a_lost_session_leaves_it_to_be_replaced(
    transactional_db: None, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(
        "jobqueue.notify.NOTIFY", b"SELECT pg_terminate_backend(pg_backend_pid()), %b"
    )
    send.enqueue()
    assert "wake_failed" in caplog.text
    close_old_connections()  # as at the end of each request
    assert Job.objects.count() == 1


def test_nothing_is_sent_with_notifications_switched_off(heard, settings) -> None:
    settings.JOBQUEUE = {"NOTIFY": False}
    send.enqueue()
    assert heard(0) == []


def test_a_job_can_be_enqueued_in_a_transaction_that_django_does_not_manage(heard) -> None:
    transaction.set_autocommit(False)
    try:
        send.enqueue()
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert Job.objects.count() == 1


def test_a_failed_wake_is_logged_and_the_job_stays(
    transactional_db: None, monkeypatch, caplog
) -> None:
    monkeypatch.setattr("jobqueue.notify.NOTIFY", b"SELECT no_such_function(%b)")
    send.enqueue()
    assert Job.objects.count() == 1
    assert "wake_failed" in caplog.text


@pytest.mark.django_db
def test_the_database_refuses_what_went_past_the_door() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Job.objects.create(task="x.y", priority=101)


@pytest.mark.spec("S22")
@pytest.mark.django_db
def test_a_task_under_another_queue_than_its_backend_s_is_refused(settings) -> None:
    with pytest.raises(InvalidTask, match="Queue 'nosuch' is not valid"):
        send.using(queue_name="nosuch")


@pytest.mark.django_db
def test_a_job_of_a_bare_task_bears_the_backend_that_stored_it(settings) -> None:
    from django.tasks import Task, task_backends

    settings.TASKS = {
        "default": {"BACKEND": "jobqueue.backend.JobQueueBackend", "QUEUES": []},
        "dummy": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"},
    }
    plain = Task(func=send.func, backend="dummy")
    result = task_backends["default"].enqueue(plain, [1], {})
    assert Job.objects.get(pk=result.id).backend == result.backend == "default"


@pytest.mark.spec("S228")
@pytest.mark.django_db(transaction=True)
def test_what_the_server_shows_of_an_enqueue_holds_no_arguments(settings) -> None:
    """`pg_stat_activity` is read by others: monitoring, whoever has the same role."""
    seen = []
    look = "SELECT query FROM pg_stat_activity WHERE pid = %s"
    with psycopg.connect(**conf.connection_parameters(), autocommit=True) as other:
        for _ in range(2):
            with transaction.atomic():
                send.enqueue(3, text="hunter2")
                seen += other.execute(look, [connection.connection.info.backend_pid]).fetchone()
    for query in seen:
        assert "INSERT INTO jobqueue_job" in query
        assert "hunter2" not in query
    with CaptureQueriesContext(connection) as queries:  # Django's own log has the statement
        send.enqueue(3, text="hunter2")
    assert any("INSERT INTO jobqueue_job" in query["sql"] for query in queries)
    with pytest.raises(IntegrityError), transaction.atomic():  # and its error classes stay
        insert(draft(send, [], {}, conf.settings()) | {"task": None})
