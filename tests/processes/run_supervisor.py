"""A supervisor as a process of its own, with children that do what a test wants.

Arguments: JSON of the connection, JSON of the settings, number of processes, restart, seconds of
the run, command …
"""

import json
import sys

import django

django.setup()

from jobqueue import conf, supervisor  # noqa: E402

parameters, settings, processes, restart, max_runtime, *command = sys.argv[1:]
conf.connection_parameters = lambda alias=None: json.loads(parameters)
for name, value in json.loads(settings).items():
    if hasattr(supervisor, name):
        setattr(supervisor, name, value)
given = {n: v for n, v in json.loads(settings).items() if not hasattr(supervisor, n)}
sys.exit(
    supervisor.run(
        command,
        int(processes),
        conf.Settings(**given),
        restart=json.loads(restart),
        max_runtime=json.loads(max_runtime),
    )
)
