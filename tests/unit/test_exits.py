"""Every exit of a text from the app is in this list, with how it is covered and made printable.

A new place that writes, renders, logs or answers fails here until somebody has said which door it
goes through.
"""

import ast
from collections.abc import Iterator

from tests.documents import ROOT

APP = ROOT / "jobqueue"
# What a text can leave the process by, or be put before a person by.
DOORS = {
    *("write", "writelines", "print", "render", "sendall"),
    *("HttpResponse", "JsonResponse", "StreamingHttpResponse", "FileResponse", "Http404"),
    *("add_message", "success", "add_error", "ValidationError", "LogEntry"),
    *("handle", "getLogger", "makeRecord", "LogRecord", "warn", "CommandError"),
    *("dump_traceback", "dump_traceback_later", "set_attribute", "capture_exception"),
}
# Calls of these are doors that are listed themselves, or no exit of a text.
INNER = {
    *("self.render", "desk.render", "order.write", "self.order.write", "_output.write"),
    "made.handle",  # `Made.handle` below
    "options['worker_command'].handle",  # `runworker` below
}
OWN = "only texts of the app"
INPUT = "what the same person has just sent, as text"
STACK = "names of files and functions, and lines of code; no values"
EXITS = {
    "admin/actions.py QueueForm.clean_queue": INPUT,
    "admin/base.py DeskAdmin.render": "every page; its values: tests/web/test_covered_exits.py",
    "admin/base.py say": "cover_text",
    "admin/bulk_orders.py BulkOrderAdmin._get": OWN,
    "admin/charts.py _rows": "numbers",
    "admin/jobs.py JobAdmin._story": OWN,
    "admin/perform.py log_object": "cover_text",
    "admin/queues.py QueueAdmin.act": OWN,
    "admin/schedule_form.py ArgumentsField.to_python": "cover_text",
    "admin/schedule_form.py ScheduleForm._check_call": "cover_text",
    "admin/schedule_form.py ScheduleForm._value": OWN,
    "admin/schedule_form.py ScheduleForm.clean": INPUT,
    "admin/schedule_form.py ScheduleForm.validate_unique": OWN,
    "admin/schedules.py ScheduleAdmin._get": OWN,
    "admin/workers.py WorkerAdmin.worker_page": OWN,
    "enqueueing/enqueue.py warn_of_another_transaction": "names of DATABASES",
    "enqueueing/many.py enqueue_many": "the table itself",
    "launch.py _bound_the_exit.arm": STACK,
    "launch.py _bound_the_exit.enforce": STACK,
    "launch.py _say": "terminal",
    "log_output.py _readable.readable": "log_texts.for_terminal",
    "log_output.py _write": "rendered by as_json or readable, of covered fields",
    "log_texts.py loop_error": "cover_text, exception_text",
    "logs.py ": "the logger of events",
    "logs.py Made.handle": "log_texts.covered, exception_text",
    "logs.py handle_loop_error": "log_texts.loop_error",
    "management/commands/jobqueue.py Command._json": "cover, as ASCII",
    "management/commands/jobqueue.py Command._switch": "terminal",
    "management/commands/jobqueue.py Command._line": "covered by its callers, printable",
    "management/commands/jobqueue.py Command.handle": "terminal",
    "management/commands/jobqueue.py _chosen": OWN,
    "management/commands/runworker.py Command.handle": OWN,
    "operations/admin_log.py log_jobs": "its inner function",
    "operations/admin_log.py log_jobs.write": "cover_text",
    "operations/finished.py ": "Django's own logger: ids, paths, states; cover_text",
    "worker/outcomes/heard.py is_heard": "asks which handlers there are",
    "worker/outcomes/heard.py ": "Django's own logger: ids, paths and states",
    "worker/probe.py Probe._serve": "numbers, and words of the app",
    "worker/process/deadman.py DeadMan.arm": STACK,
    "worker/process/deadman.py DeadMan.write": STACK,
    "worker/process/watchdog.py Watchdog._read_signals": STACK,
    "worker/process/watchdog.py Watchdog.exit_now": STACK,
}


def found() -> set[str]:
    """Every door: its module in the app, and the function that it stands in."""
    return {
        f"{file.relative_to(APP)} {where}"
        for file in sorted(APP.rglob("*.py"))
        if "migrations" not in file.parts
        for where in doors(ast.parse(file.read_text()), "")
    }


def doors(node: ast.AST, where: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inner = where
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{where}.{child.name}".strip(".")
        if isinstance(child, ast.Call):
            called = ast.unparse(child.func)
            if called.rpartition(".")[2] in DOORS and called not in INNER:
                yield inner
            if called == "LogEntry.objects.create":
                yield inner
        yield from doors(child, inner)


def test_every_exit_of_a_text_is_listed_with_the_door_that_it_goes_through() -> None:
    assert found() - EXITS.keys() == set(), "say how these are covered, and list them"
    assert EXITS.keys() - found() == set(), "these are gone"


def test_what_is_said_to_be_covered_calls_the_function_that_covers() -> None:
    covering = {"cover", "cover_text", "terminal", "for_terminal", "exception_text"}
    checked = 0
    for where, how in EXITS.items():
        wanted = {each.strip().rpartition(".")[2] for each in how.split(",")} & covering
        module, _, path = where.partition(" ")
        for node in ast.parse((APP / module).read_text()).body:
            if wanted and getattr(node, "name", None) == path.partition(".")[0]:
                calls = [c for c in ast.walk(node) if isinstance(c, ast.Call)]
                called = {ast.unparse(call.func).rpartition(".")[2] for call in calls}
                assert wanted <= called, where
                checked += 1
    assert checked > 5
