"""A supervisor as a process of its own, with children that do what a test wants.

Arguments: JSON of the connection, JSON of the settings, number of processes, restart, seconds of
the run, command …
"""

import json
import sys

import django

django.setup()

from jobqueue import conf, supervisor  # noqa: E402
from jobqueue.worker.process import child_watch  # noqa: E402

parameters, settings, processes, restart, max_runtime, *command = sys.argv[1:]
conf.connection_parameters = lambda alias=None: json.loads(parameters)
given = json.loads(settings)
for name in [name for name in given if name.isupper()]:
    setattr(supervisor if hasattr(supervisor, name) else child_watch, name, given.pop(name))
sys.exit(
    supervisor.run(
        command,
        int(processes),
        conf.Settings(**given),
        restart=json.loads(restart),
        max_runtime=json.loads(max_runtime),
    )
)
