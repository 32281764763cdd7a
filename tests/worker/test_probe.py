"""Liveness, readiness and figures over HTTP."""

import http.client
import socket
from uuid import uuid4

import pytest

from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.worker.probe import MOST_CONNECTIONS, address_of
from jobqueue.worker.process.supervisor_link import SupervisorLink
from jobqueue.worker.startup import CannotStartError
from tests.children import wait_until
from tests.worker.parts import settings, working

pytestmark = pytest.mark.django_db(transaction=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port, path, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def port():
    return free_port()


@pytest.mark.spec("S134", "S214", "S136", "S220")
def test_a_worker_that_serves_is_live_and_ready_and_counts(port):
    with working(settings(probe_address=f"127.0.0.1:{port}", concurrency=7)) as worker:
        assert get(port, "/live") == (200, "the event loop answers\n")
        wait_until(lambda: get(port, "/ready") == (200, "ready\n"))
        status, body = get(port, "/metrics?all=1")
        assert status == 200
        lines = body.splitlines()
        assert "jobqueue_worker_slots_free 7" in lines
        assert 'jobqueue_worker_jobs_total{fate="completed"} 0' in lines
        assert 'jobqueue_worker_phase{phase="RUNNING"} 1' in lines
        assert any(line.startswith("jobqueue_worker_heartbeat_age_seconds ") for line in lines)
        assert get(port, "/live", "HEAD") == (200, "")
        assert get(port, "/elsewhere")[0] == 404
        assert get(port, "/live", "POST")[0] == 405

        def not_ready_for_its_age():
            worker.components.heartbeat.good_at -= 100  # again where a beat came in between
            status, body = get(port, "/ready")
            return status == 503 and "heartbeat" in body

        wait_until(not_ready_for_its_age)
    with socket.socket() as again:  # the port is free
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


@pytest.mark.spec("S134", "S220")
def test_a_worker_that_stops_is_live_but_not_ready_and_says_why(port, tmp_path, monkeypatch):
    from tests.processes import tempers as tasks

    monkeypatch.setenv("EFFECTS", str(tmp_path / "effects"))
    go = tmp_path / "go"
    with working(settings(probe_address=str(port), drain_seconds=30)) as worker:
        tasks.wait_for_file.enqueue(str(go))
        wait_until(lambda: len(worker.registry) == 1)
        worker.watchdog.loop.call_soon_threadsafe(worker.shutdown.request, "a deploy")
        wait_until(lambda: get(port, "/ready")[0] == 503)
        assert get(port, "/ready")[1] == "stopping (DRAINING): a deploy\n"
        worker.shutdown.reason = "service claimer ended: ValueError('hunter2')"
        assert get(port, "/ready")[1] == "stopping (DRAINING): service claimer ended\n"
        assert get(port, "/live")[0] == 200
        go.touch()
    assert worker.code == 0


def test_what_is_no_request_is_refused_and_too_many_are_turned_away(port):
    with working(settings(probe_address=f"127.0.0.1:{port}")):
        for rubbish in (b"\r\n\r\n", b"GET\r\n\r\n", b"\xff" * 5000 + b"\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), 10) as one:
                one.sendall(rubbish)
                assert b"200" not in one.recv(1000)
        silent = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(40)]
        turned_away = 0
        for one in silent:
            one.settimeout(0.2)
            try:
                turned_away += one.recv(10) == b""
            except TimeoutError:
                continue
        assert turned_away >= 40 - MOST_CONNECTIONS
        for one in silent:
            one.close()


@pytest.mark.spec("S214")
def test_silent_connections_do_not_keep_the_platform_from_asking(port):
    """The oldest that has said nothing makes room for whoever comes."""
    with working(settings(probe_address=f"127.0.0.1:{port}")):
        wait_until(lambda: live(port))
        for _ in range(30):
            silent = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(40)]
            assert get(port, "/live")[0] == 200
            for one in silent:
                one.close()


def live(port):
    try:
        return get(port, "/live")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.spec("S153")
def test_a_port_that_is_taken_ends_the_start_with_one_sentence(port):
    from jobqueue import conf
    from jobqueue.worker.worker import Worker, WorkerOptions

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        config = settings(probe_address=f"127.0.0.1:{port}")
        worker = Worker(
            config,
            ConnectionParameters(conf.connection_parameters),
            WorkerOptions(signals=False),
            on_start=lambda: None,
            send_finished=lambda ids: None,
        )
        with pytest.raises(CannotStartError, match=f"PROBE_ADDRESS: 127.0.0.1:{port} cannot be"):
            worker.run()


@pytest.mark.parametrize(
    ("address", "child", "expected"),
    [
        ("127.0.0.1:9000", None, ("127.0.0.1", 9000)),
        ("9000", None, ("127.0.0.1", 9000)),
        (":9000", None, ("127.0.0.1", 9000)),
        ("[::1]:9000", None, ("::1", 9000)),
        ("0.0.0.0:9000", 1, ("0.0.0.0", 9000)),
        ("0.0.0.0:9000", 3, ("0.0.0.0", 9002)),
        ("0.0.0.0:0", 3, ("0.0.0.0", 0)),
    ],
)
def test_where_it_listens(address, child, expected):
    parent = None if child is None else SupervisorLink("x", child, 0, uuid4())
    assert address_of(address, parent) == expected
