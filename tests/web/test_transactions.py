"""A job commits and vanishes together with what its caller wrote."""

import asyncio
import contextlib
from io import StringIO

import psycopg
import pytest
import pytest_asyncio
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.http import HttpResponse
from django.tasks import TaskResultStatus
from django.test import Client, TestCase, TransactionTestCase
from django.urls import path

import jobqueue
from jobqueue import conf
from jobqueue.exceptions import ArgumentsError
from jobqueue.models import Job
from tests.sample_tasks import post, send
from tests.web.blocks import Failure, rolled_back


@pytest.fixture
def elsewhere(transactional_db):
    """Counts the jobs that another session can see."""
    with psycopg.connect(**conf.connection_parameters(), autocommit=True) as other:
        yield lambda: other.execute("SELECT count(*) FROM jobqueue_job").fetchone()[0]


@pytest.mark.spec("D47", "S21")
def test_nobody_else_sees_the_job_before_the_caller_s_commit(elsewhere):
    with transaction.atomic():
        send.enqueue(User.objects.create(username="ann").pk)
        jobqueue.enqueue_many([(send, [1])])
        assert Job.objects.count() == 2
        assert elsewhere() == 0
    assert elsewhere() == 2


@pytest.mark.spec("S21")
def test_without_a_transaction_the_job_is_there_at_once(elsewhere):
    send.enqueue()
    assert elsewhere() == 1


def test_that_the_wake_need_not_reach_the_disk_holds_for_no_later_commit(elsewhere):
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        before = cursor.fetchone()
        send.enqueue()
        jobqueue.enqueue_many([(send, [1])])
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == before == ("on",)


@pytest.mark.spec("D48", "S21")
def test_a_job_remains_only_if_everything_around_it_committed(elsewhere):
    with rolled_back():
        send.enqueue("outer")
    with rolled_back(), transaction.atomic():
        send.enqueue("inner of a failed one")
    with transaction.atomic():
        send.enqueue("kept")
        with rolled_back():
            send.enqueue("savepoint")
    with transaction.atomic():
        send.enqueue("set_rollback")
        transaction.set_rollback(True)
    assert elsewhere() == 1
    assert Job.objects.get().args == ["kept"]


def failing(request):
    send.enqueue()
    raise Failure


def working(request):
    return HttpResponse(send.enqueue().id)


urlpatterns = [path("failing/", failing), path("working/", working)]


@pytest.mark.spec("D48", "S21")
@pytest.mark.urls(__name__)
def test_a_failing_view_leaves_no_job_behind(elsewhere, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    client = Client(raise_request_exception=False)
    assert client.get("/failing/").status_code == 500
    assert elsewhere() == 0
    assert client.get("/working/").status_code == 200
    assert elsewhere() == 1


def fail():
    raise Failure


@pytest.mark.spec("D49", "S21")
def test_a_failing_hook_of_somebody_else_does_not_undo_the_job(elsewhere):
    def work():
        with transaction.atomic():
            transaction.on_commit(fail)
            send.enqueue()

    with pytest.raises(Failure):
        work()
    assert elsewhere() == 1


@pytest.mark.spec("S21")
def test_a_job_that_is_enqueued_on_commit_waits_for_it(elsewhere):
    with transaction.atomic():
        jobqueue.enqueue_on_commit(send, 1, text="x")
        assert not Job.objects.exists()
    assert Job.objects.get().kwargs == {"text": "x"}
    with rolled_back():
        jobqueue.enqueue_on_commit(send, 2)
    jobqueue.enqueue_on_commit(send, 3)
    assert elsewhere() == 2


@pytest.mark.spec("S22")
def test_the_arguments_of_a_later_enqueue_are_checked_at_once(elsewhere):
    with transaction.atomic():
        with pytest.raises(ArgumentsError):
            jobqueue.enqueue_on_commit(send, {1})
        with pytest.raises(TypeError):
            jobqueue.enqueue_on_commit(post)
        with pytest.raises(TypeError, match=r"is not a task: write enqueue_on_commit\(task, "):
            jobqueue.enqueue_on_commit(post.enqueue, "x")
        send.enqueue()
    assert elsewhere() == 1


@pytest.mark.spec("S22")
def test_a_refused_call_leaves_the_transaction_usable(elsewhere):
    with transaction.atomic():
        with pytest.raises(ArgumentsError):
            send.enqueue({1})
        User.objects.create(username="ann")
        send.enqueue()
    assert (User.objects.count(), elsewhere()) == (1, 1)


@pytest.fixture
def another_database(transactional_db):
    """A second alias, of the same server."""
    config = {**connections.databases["default"]}
    connections["other"] = connections["default"].__class__(config, "other")
    connections["other"].ensure_connection()
    connections.databases["other"] = config  # last: Django's tests forbid aliases that they know
    yield "other"
    connections["other"].close()
    del connections["other"]
    del connections.databases["other"]


def test_a_transaction_on_another_database_only_is_warned_of(another_database):
    with (
        transaction.atomic(using=another_database),
        pytest.warns(RuntimeWarning, match="A transaction is open on 'other', but jobs are stored"),
    ):
        send.enqueue()
    with transaction.atomic(using=another_database), transaction.atomic():
        send.enqueue()
    assert Job.objects.count() == 2


def test_the_queue_s_own_alias_decides_the_transaction(another_database, settings):
    settings.JOBQUEUE = {"DATABASE": "other"}
    with transaction.atomic(using="other"):
        result = send.enqueue()
        assert not Job.objects.using("default").exists()
    assert Job.objects.using("default").get().pk == int(result.id)


@pytest_asyncio.fixture
async def thread(transactional_db):
    """Closes what Django has opened in the thread of async callers."""
    yield
    await sync_to_async(connections.close_all)()


@pytest.mark.spec("D52")
async def test_an_async_caller_gets_a_committed_job(thread):
    result = await send.aenqueue(5)
    assert await Job.objects.filter(pk=result.id, args=[5]).acount() == 1
    assert (await send.aget_result(result.id)).args == [5]


@pytest.mark.spec("D52")
async def test_a_hundred_async_enqueues_at_once_leave_no_connection_behind(elsewhere, thread):
    results = await asyncio.gather(*(send.aenqueue(number) for number in range(100)))
    assert len({result.id for result in results}) == 100
    assert await sync_to_async(elsewhere)() == 100
    count = """SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'idle in transaction'"""

    def idle_in_transaction():
        with connection.cursor() as cursor:
            cursor.execute(count)
            return cursor.fetchone()[0]

    assert await sync_to_async(idle_in_transaction)() == 0


@pytest.mark.spec("D52", "S21")
def test_an_async_enqueue_inside_atomic_belongs_to_its_transaction(elsewhere):
    with transaction.atomic():
        async_to_sync(send.aenqueue)(1)
        assert Job.objects.count() == 1
        assert elsewhere() == 0
    with rolled_back():
        async_to_sync(send.aenqueue)(2)
    assert elsewhere() == 1


class InATestCase(TestCase):
    """Django's own, whose transaction is never committed."""

    def test_jobs_are_stored_and_the_connection_survives(self):
        with self.captureOnCommitCallbacks(execute=True) as hooks:
            send.enqueue(1)
            jobqueue.enqueue_many([(send, [2])])
        assert len(hooks) == 1  # the wake
        assert Job.objects.count() == 2
        assert User.objects.count() == 0

    @pytest.mark.spec("D51")
    def test_a_worker_would_see_nothing_of_it_and_says_so(self):
        send.enqueue(1)
        said = StringIO()
        with contextlib.redirect_stderr(said), pytest.raises(SystemExit, match=r"^1$"):
            call_command("runworker", until_idle=True)
        assert "a transaction is open here on 'default', and a worker sees" in said.getvalue()
        assert Job.objects.get().state == Job.State.READY


class InATransactionTestCase(TransactionTestCase):
    """Django's own, whose rows are committed."""

    @pytest.mark.spec("D51", "D8")
    def test_a_worker_runs_in_the_test_s_process_until_nothing_is_left(self):
        result = send.enqueue(1)
        call_command("runworker", until_idle=True, max_runtime=30)
        result.refresh()
        assert result.status == TaskResultStatus.SUCCESSFUL
        assert User.objects.count() == 0  # the test's own connection is as it was
