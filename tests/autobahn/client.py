"""Runs cases of the Autobahn suite against a server; for CPython 2.7, started by run.py.

Arguments: the folder that the suite is installed in, and a JSON object with `url`, `cases` and `exclude`, the latter
lists of patterns such as `9.*`. Prints a JSON object for each case as it ends; what the suite itself has to say goes to
standard error.
"""

from __future__ import print_function

import json
import os
import site
import sys

site.addsitedir(sys.argv[1])
results = os.fdopen(os.dup(1), "w", 1)
os.dup2(2, 1)

from autobahntestsuite import fuzzing  # noqa: E402
from twisted.internet import reactor  # noqa: E402

# The suite gives a server up after a second or so, which says nothing on a machine that stood still for as long.
PATIENCE_FACTOR = 30
PATIENCE_SECONDS = 60
TIMEOUTS = ("openHandshakeTimeout", "closeHandshakeTimeout", "serverConnectionDropTimeout")

# Between the parts of a message, to see whether the server fails before it has the whole; costs this much in each run.
PAUSE_FACTOR = 3


class Factory(fuzzing.FuzzingClientFactory):
    """Reports each case at once, and writes no reports to the disk."""

    def __init__(self, url, cases, exclude):
        server = {"agent": "gateway", "url": url, "options": {name: PATIENCE_SECONDS for name in TIMEOUTS}}
        spec = {"servers": [server], "cases": cases, "exclude-cases": exclude, "exclude-agent-cases": {}}
        fuzzing.FuzzingClientFactory.__init__(self, spec)

    def logCase(self, case):
        names = ("id", "behavior", "behaviorClose", "remoteCloseCode", "result", "resultClose")
        print(json.dumps({name: case[name] for name in names}, encoding="latin-1"), file=results)

    def createReports(self):
        pass


def stretch(name, factor):
    wait = getattr(fuzzing.FuzzingProtocol, name).im_func

    def wait_longer(protocol, seconds, *rest):
        wait(protocol, seconds * factor, *rest)

    setattr(fuzzing.FuzzingProtocol, name, wait_longer)


stretch("killAfter", PATIENCE_FACTOR)
stretch("continueLater", PAUSE_FACTOR)
# What a case sent and received would be kept for the reports.
fuzzing.FuzzingProtocol.createWirelog = property(lambda protocol: False, lambda protocol, value: None)

Factory(**json.loads(sys.argv[2]))
reactor.run()
